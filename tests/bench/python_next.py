#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a batch that is ready: the time of next(), with two tensors, over a private daemon.

usage: python_next.py [--framework torch|numpy] [--batches 20000]. Prints percentiles in microseconds. PINFEED_DAEMON and PINFEED_LIBRARY
choose the build, as always; by default it is build/release.
"""

import argparse
import pathlib
import sys
import tempfile
import time

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))
import pinfeed  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="auto")
    parser.add_argument("--batches", type=int, default=20000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numpy.save(f"{folder}/image.npy", numpy.zeros((4096, 64), "u1"))
        numpy.save(f"{folder}/label.npy", numpy.zeros(4096, "i8"))
        feed = pinfeed.open(folder, batch_size=8, framework=arguments.framework, slots=64, drop_last=True)
        ready, whole, waited = [], [], []
        iterator = iter(feed)
        clock = time.perf_counter_ns
        while len(whole) < arguments.batches:
            before = feed.wait_seconds
            begin = clock()
            batch = next(iterator, None)
            took = clock() - begin
            if batch is None:
                iterator = iter(feed)
                continue
            image, label = batch
            del batch, image, label  # gives the slot back
            whole.append(clock() - begin)
            (ready if feed.wait_seconds == before else waited).append(took)
        feed.close()
    for name, times in (("next(), batch ready", ready), ("next(), batch not ready", waited), ("next() and release", whole)):
        if times:
            p50, p90, p99 = numpy.percentile(times, (50, 90, 99)) / 1000
            print(f"{name:24} {len(times):6} x  p50 {p50:7.1f} us  p90 {p90:7.1f} us  p99 {p99:7.1f} us")


if __name__ == "__main__":
    main()
