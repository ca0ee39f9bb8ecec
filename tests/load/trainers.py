# SPDX-License-Identifier: Apache-2.0
"""Trainers: a process with one or more feeds, each in a thread that takes batches and checks every one.

In: options, as JSON; lines on stdin. Out: {"opened": seconds} when all feeds are open; for each line on stdin, of every feed, how many
batches it took and its longest wait since the last line; an exit status other than 0 when a batch was wrong or did not come.
"""
import json
import sys
import threading
import time

import numpy

import pinfeed


class Trainer:
    """One feed, read in order. `most`: takes so many batches, then holds still; 0: takes them for as long as it may."""

    def __init__(self, address, dataset, most=0, step_s=0.0, crop=0, samples=512, **options):
        if crop:
            options["transforms"] = [pinfeed.RandomResizedCrop(crop)]
        self.feed = pinfeed.open(dataset, address=address, sample_ids=True, framework="numpy", timeout=60, open_timeout=60, **options)
        self.most, self.step_s, self.samples = most, step_s, samples
        self.batches, self.longest_s, self.error, self.stopped = 0, 0.0, None, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            while not self.stopped and (not self.most or self.batches < self.most):
                self.read_epoch()
        except Exception as error:  # told at the end: another thread waits for it
            self.error = error

    def read_epoch(self):
        batches = iter(self.feed)
        while not self.stopped and (not self.most or self.batches < self.most):
            began = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.check(batch)
            del batch
            self.batches += 1
            time.sleep(self.step_s)  # a training step

    def check(self, batch):
        ids = batch.sample_id
        first = self.batches * self.feed.batch_size % self.samples
        assert (ids == first + numpy.arange(self.feed.batch_size)).all(), f"batch {self.batches} has samples {ids.tolist()}"
        if hasattr(batch, "x"):
            assert (batch.x == ids[:, None] * batch.x.shape[1] + numpy.arange(batch.x.shape[1])).all(), f"batch {self.batches} has wrong numbers"


def main():
    options = json.loads(sys.argv[1])
    began = time.monotonic()
    trainers = [Trainer(**options["trainer"]) for _ in range(options["feeds"])]
    print(json.dumps({"opened": time.monotonic() - began}), flush=True)
    for trainer in trainers:
        trainer.thread.start()
    for _ in sys.stdin:
        told = [(trainer.batches, trainer.longest_s) for trainer in trainers]
        for trainer in trainers:
            trainer.longest_s = 0.0
        print(json.dumps(told), flush=True)
    for trainer in trainers:
        trainer.stopped = True
    for trainer in trainers:
        trainer.thread.join()
        trainer.feed.close()
    faults = [str(trainer.error) for trainer in trainers if trainer.error]
    sys.exit("\n".join(faults) or 0)


main()
