# SPDX-License-Identifier: Apache-2.0
"""Opens a feed, checks its first two batches, closes it, and so on at a steady pace: by the package, or by the plain client of the protocol's tests.

In: package|plain, address, dataset, seconds, opens a minute. Out, as JSON: how many, how many a minute, and how long the longest took to open.
"""
import json
import sys
import time

import numpy
import pinfeed
from raw_client import Client, messages

BATCH = 8


def check(numbers, index):
    width = numbers.shape[1]
    assert (numbers.reshape(-1) == numpy.arange(BATCH * width) + index * BATCH * width).all(), f"batch {index} is wrong"


def by_package(address, dataset):
    began = time.monotonic()
    with pinfeed.open(dataset, batch_size=BATCH, address=address, framework="numpy", timeout=60, open_timeout=60) as feed:
        took = time.monotonic() - began
        for index, batch in zip(range(2), feed):
            check(batch.x, index)
            del batch
    return took


def by_plain_client(address, dataset):
    began = time.monotonic()
    client = Client(address, messages().FeedSpec(dataset=messages().DatasetSpec(path=dataset), batch_size=BATCH))
    took = time.monotonic() - began
    for index in range(2):
        batch = client.take()
        check(client.tensor(batch, client.offer.tensors[0], numpy.int64), index)
        client.release(batch)
    client.bye()
    return took


def main():
    kind, address, dataset, seconds, a_minute = sys.argv[1:]
    once = by_package if kind == "package" else by_plain_client
    began, opens, longest_s = time.monotonic(), 0, 0.0
    while time.monotonic() - began < float(seconds):
        longest_s = max(longest_s, once(address, dataset))
        opens += 1
        ahead = opens * 60 / float(a_minute) - (time.monotonic() - began)
        time.sleep(max(0, ahead))  # the pace
    print(json.dumps({"opens": opens, "a_minute": opens * 60 / (time.monotonic() - began), "longest_s": longest_s}))


main()
