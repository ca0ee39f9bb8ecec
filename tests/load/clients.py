# SPDX-License-Identifier: Apache-2.0
"""Honest clients: in processes of their own, and in this one."""

import json
import pathlib
import subprocess
import sys

import numpy
import pinfeed
from hardship import read_status

HERE = pathlib.Path(__file__).resolve().parent


class Trainers:
    """trainers.py in a process of its own."""

    def __init__(self, daemon, dataset, feeds=1, batch_size=8, **trainer):
        options = {"feeds": feeds, "trainer": {"address": daemon.address, "dataset": str(dataset), "batch_size": batch_size, **trainer}}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "trainers.py"), json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _answer(self):
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def await_open(self):
        return self._answer()["opened"]

    def tell(self):
        """[(batches so far, longest wait since it was last asked)] of each feed."""
        self.process.stdin.write("tell\n")
        self.process.stdin.flush()
        return self._answer()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            _, said = self.process.communicate(timeout=120)
        finally:
            self.process.kill()
            self.process.wait()
        assert kind or self.process.returncode == 0, said


class Feed:
    """A feed of an honest client in this process, read in order; its batches are checked."""

    def __init__(self, daemon, dataset, **options):
        self.feed = pinfeed.open(dataset, address=daemon.address, framework="numpy", sample_ids=True, timeout=30, **options)
        self.batches, self.taken = iter(self.feed), 0

    def take(self, count):
        for _ in range(count):
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(self.feed)
                batch = next(self.batches)
            expected = self.taken % len(self.feed) * self.feed.batch_size + numpy.arange(self.feed.batch_size)
            assert (batch.sample_id == expected).all() and (batch.x[:, 0] == expected * batch.x.shape[1]).all(), f"batch {self.taken} is wrong"
            del batch
            self.taken += 1


def fill(make):
    """Makes feeds until one is refused. Returns them and the refusal."""
    feeds = []
    while len(feeds) < 100:
        try:
            feeds.append(make())
        except pinfeed.Error as error:
            return feeds, error
    raise AssertionError("100 feeds were opened, and none refused")


def try_open(make):
    try:
        return make()
    except pinfeed.ResourceExhaustedError:
        return None


def is_reached(daemon):
    try:
        return read_status(daemon.address)["state"] == "ready"
    except pinfeed.Error:
        return False
