# SPDX-License-Identifier: Apache-2.0
"""Datasets for the tests of `pinfeed.DataLoader`, in a module that spawned workers can import."""

import collections
import os
import random
import signal
import sys
import time

import numpy
import torch

Point = collections.namedtuple("Point", "x y")


def seeded(number=3):
    return torch.Generator().manual_seed(number)


def values(loader):
    return [batch.tolist() for batch in loader]


class Numbers:
    """`count` samples: i for index i, made by `make`."""

    def __init__(self, count, make=lambda index: index):
        self.count = count
        self.make = make

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


def tensor(index):
    return torch.full((2, 3), float(index))


def array(index):
    return numpy.full(5, index, numpy.uint8)


def pair(index):
    return torch.tensor([index]), index % 10


def record(index):
    return {"image": array(index), "name": f"sample {index}", "box": [index, index + 0.5], "point": Point(index, tensor(index))}


def big(index):
    return torch.full((300, 300), index)


STRUCTURES = {each.__name__: each for each in (tensor, array, pair, record, big)}


def randoms(index):
    """Draws from every global generator."""
    return index, random.random(), numpy.random.rand(), torch.rand(())


def place_of_worker(index):
    info = torch.utils.data.get_worker_info()
    return (index, os.getpid(), -1, -1, -1) if info is None else (index, os.getpid(), info.id, info.num_workers, torch.get_num_threads())


def talkative(index):
    """Writes to the streams of Python and past them, each line at once: other workers write, too."""
    print(f"sample {index}\n", end="")
    print(f"warning {index}\n", end="", file=sys.stderr)
    os.write(1, b"bytes %d\n" % index)
    return index


def slow(index):
    """Takes a millisecond."""
    time.sleep(0.001)
    return index, torch.full((100,), index)


def failing(index):
    if index in (5, 6):
        raise KeyError(f"no sample {index}")
    return index


def growing(index):
    return torch.zeros(10 * 4 ** (index // 4))


def deadly(index):
    if index == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


class Batched(Numbers):
    """Has only whole batches."""

    def __getitem__(self, index):
        raise AssertionError("__getitems__ is there")

    def __getitems__(self, indices):
        return [self.make(index) for index in indices]


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, count, said=None):
        self.count = count
        self.said = count if said is None else said

    def __len__(self):
        return self.said

    def __iter__(self):
        return iter(range(self.count))


class Shards(torch.utils.data.IterableDataset):
    """Worker w yields make(1000 w), make(1000 w + 1) and so on: counts[w] of them. `log`: a file that gets a byte for each sample."""

    def __init__(self, counts, said=None, make=lambda index: index, fails=None, log=None):
        self.counts, self.said, self.make, self.fails, self.log = counts, said, make, fails, log

    def __len__(self):
        if self.said is None:
            raise TypeError("of unknown length")
        return self.said

    def __iter__(self):
        for place in range(self.counts[self.worker()]):
            yield self.sample(place)

    @staticmethod
    def worker():
        info = torch.utils.data.get_worker_info()
        return 0 if info is None else info.id

    def sample(self, place):
        if place == self.fails:
            raise ValueError(f"no sample {place}")
        if self.log is not None:
            with open(self.log, "ab") as log:
                log.write(b"s")
        return self.make(1000 * self.worker() + place)


class Resumable(Shards):
    """The dataset has a state."""

    place = 0

    def __iter__(self):
        first, self.place = self.place, 0
        for place in range(first, self.counts[self.worker()]):
            self.place = place + 1
            yield self.sample(place)
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Cursor:
    def __init__(self, shards):
        self.shards = shards
        self.place = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.place >= self.shards.counts[self.shards.worker()]:
            raise StopIteration
        self.place += 1
        return self.shards.sample(self.place - 1)

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class ResumableIterator(Shards):
    """Its iterator has a state."""

    def __iter__(self):
        return Cursor(self)


class Position(torch.utils.data.IterableDataset):
    """`count` numbers in each worker, by a position that outlives its iterators."""

    def __init__(self, count=12):
        self.count, self.at = count, 0

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        while self.at < self.count:
            self.at += 1
            yield self.at - 1 + (0 if info is None else 100 * info.id)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Once(Position):
    """A loaded position is that of the next iterator, and of no other."""

    def __init__(self, count=12):
        super().__init__(count)
        self.loaded = 0

    def __iter__(self):
        self.at, self.loaded = self.loaded, 0
        info = torch.utils.data.get_worker_info()
        while self.at < self.count:
            self.at += 1
            yield self.at - 1 + (0 if info is None else 100 * info.id)

    def load_state_dict(self, state):
        self.loaded = state["at"]


class OnceInBody(Once):
    """The same, but it counts its epochs, and their numbers tell which one they are of."""

    epoch = 0

    def __iter__(self):
        for number in super().__iter__():
            yield number + 1000 * self.epoch
        self.epoch += 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.loaded, self.epoch = state["at"], state["epoch"]


def same(one, other):
    """Whether two batches are equal, in types too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def all_same(ones, others):
    return same(list(ones), list(others))
