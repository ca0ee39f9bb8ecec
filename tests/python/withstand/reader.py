# SPDX-License-Identifier: Apache-2.0
"""A trainer: reads a feed of conftest.py's `numbers` until it ends, an endless one until stdin does, checks every value, counts in a shared file.

What comes out, as JSON: epoch, index and sample ids of each batch. It knows nothing of daemons that vanish: the loop is a user's.
"""
import json
import os
import select
import sys
import time

import numpy

import pinfeed._feed.batch_maker

pinfeed._feed.batch_maker.SMALL_BYTES = 0  # views, also of small tensors: what is kept stays in its slot


def main():
    address, dataset, progress, options = sys.argv[1:]
    options = json.loads(options)
    hold, step_s = options.pop("hold", 0), options.pop("step_s", 0)
    progress = numpy.memmap(progress, numpy.uint64, "r+")
    stdin = select.poll()
    stdin.register(0, select.POLLIN | select.POLLHUP)
    seen, held = [], []
    feed = pinfeed.open(dataset, sample_ids=True, framework="numpy", address=address, **options)
    while feed.epochs is None or feed.epoch < feed.epochs:
        for batch in feed:
            ids = batch.sample_id
            width = batch.x.shape[1]
            assert (batch.x == ids[:, None] * width + numpy.arange(width)).all(), f"wrong data in epoch {batch.epoch}, batch {batch.index}"
            seen.append((batch.epoch, batch.index, ids.tolist()))
            held.append((batch, batch.x.copy()))
            while len(held) > hold:
                kept, copy = held.pop(0)
                assert (kept.x == copy).all(), "a held batch changed"
                del kept
            del batch, ids
            if step_s:
                time.sleep(step_s)  # a training step
            progress[0] += 1
            if feed.epochs is None and stdin.poll(0) and not os.read(0, 1):
                held.clear()
                feed.close()
                return seen
    return seen


print(json.dumps(main()))
