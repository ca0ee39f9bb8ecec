# SPDX-License-Identifier: Apache-2.0
"""Looks after the workers while they fill a feed.

In: messages and ends of workers. Out: invitations to the feed, processes in place of dead ones, or the reason why no
further batch can come.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
import weakref
from multiprocessing.connection import wait
from typing import Any, Counter, Dict, List, Optional, Set

from .._base.abi import logger
from .._base.errors import UnavailableError
from .._worker.lanes import Lanes
from .one_off import OneOffBatches
from .produced_feed import ProducedFeed
from .worker_pool import MAX_DEATHS, WorkerPool, worker_deaths

_MAX_REFUSALS = 20  # of a worker's invitations, without a batch in between
_RETRY_S = 0.1
_HOLDER_S = 2.0  # for a worker that has the first batch to attach


class Supervisor:
    """A thread that serves the workers of one feed. When no further batch can come, it interrupts the feed and ends.

    Owns the thread and its wake-up pipe. Borrows pool and feed, which outlive `stop`; nobody else uses the pool until
    then. Threads: all from the trainer's, and `deaths` after `stop`. Its own thread logs nothing: a trainer that Ctrl-C interrupted
    while it logged, or forked, may hold the lock of `logging` for ever, and waits for this thread. `one_offs` has the batches
    that did not fit into a slot.
    """

    def __init__(self, pool: WorkerPool, feed: ProducedFeed, first: int, lanes: Optional[Lanes], encoded: int = 0, holder: Optional[int] = None) -> None:
        """`first`: the number of the feed's first batch. `encoded`: the bytes of a slot for images. `holder`: the worker that has the first batch."""
        self._pool = pool
        self._lanes = lanes
        self.one_offs = OneOffBatches(first)
        self._feed = feed
        self._first = first
        self._encoded = encoded
        self._holder = holder  # others wait until it has attached: the first batch is dealt to it, and is not made again
        self._alone_until = time.monotonic() + _HOLDER_S
        pool.generation += 1
        self._generation = pool.generation
        self._next = self._seen = first  # the trainer's next batch, now and at the latest death or refusal
        self._warnings: "collections.deque[str]" = collections.deque()  # for the trainer's thread to log
        self.deaths: List[str] = []  # since the last batch
        self._deaths_of: "Counter[int]" = collections.Counter()  # by worker: something may kill all of them at once
        self._refusals_of: "Counter[int]" = collections.Counter()
        self._wake_reader, self._wake_writer = os.pipe()
        self._close_wake = weakref.finalize(self, _close_both, self._wake_reader, self._wake_writer)
        self._close_wake.atexit = False  # the thread may still be told to stop then
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="pinfeed-workers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. May be called twice, and again after a signal handler has interrupted it."""
        if self._stopped:
            return
        if self._close_wake.alive:  # otherwise the garbage collector has closed it, and the descriptor may be another file's
            os.write(self._wake_writer, b"s")  # closing it would not do: forked children have it too
        if threading.current_thread() is not self._thread:  # which may run the iterator's __del__
            with contextlib.suppress(RuntimeError):  # it was never started
                self._thread.join()
            self._close_wake()
        self.one_offs.close()
        self.pass_on_warnings()
        self._stopped = True

    def pass_on_warnings(self) -> None:
        """Logs what the thread has had to say since."""
        while self._warnings:
            logger.warning("%s", self._warnings.popleft())

    def advance(self, number: int) -> None:
        """The trainer's next batch is `number`."""
        self._next = number
        self.one_offs.advance(number)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # whatever it is, the trainer gets it
            error = error.with_traceback(None)  # whose frames would keep the feed, and so themselves, and the workers' pipes
            self.one_offs.end(error)
            self._feed.interrupt(error)
        else:
            self.one_offs.end()

    def _serve(self) -> None:
        uninvited = set(range(len(self._pool.pipes)))
        while True:
            if time.monotonic() >= self._alone_until:
                self._holder = None
            uninvited = {worker for worker in sorted(uninvited) if self._holder not in (None, worker) or not self._invite(worker)}
            pipes = {pipe: worker for worker, pipe in enumerate(self._pool.pipes)}
            ends: Dict[Any, int] = {end: worker for worker, end in enumerate(self._pool.ends)}
            # While there is no daemon there is nothing to wait on: it is asked again from time to time.
            ready = wait([self._wake_reader, *pipes, *ends], _RETRY_S if uninvited else None)
            if self._wake_reader in ready:
                return
            dead: Set[int] = set()
            for each in ready:
                if each in pipes:
                    try:
                        invite = self._receive(pipes[each])
                    except (EOFError, OSError):
                        dead.add(pipes[each])
                        continue
                    if invite:
                        uninvited.add(pipes[each])
                else:
                    dead.add(ends[each])
            for worker in sorted(dead):
                self._receive_rest(worker)
                self._replace(worker)
                uninvited.add(worker)

    def _invite(self, worker: int) -> bool:
        """Invites a worker to the feed. Returns False while there is no daemon."""
        try:
            lane = 0 if self._lanes is None else (worker - self._first) % len(self._pool.pipes)
            invitation = self._feed.invite_producer(lane)
        except UnavailableError:
            return False
        self._pool.send(worker, "feed", self._generation, invitation, self._first, self._encoded)
        return True

    def _receive(self, worker: int) -> bool:
        """Handles a worker's message. Returns whether the worker needs another invitation."""
        message = self._pool.receive(worker)
        if message is None:
            return False  # a part of it is still to come
        kind, generation = message[:2]
        if generation != self._generation:  # about an earlier feed
            if kind == "one-off":
                os.close(message[-1])
            return False
        if kind == "one-off":
            self.one_offs.add(message[2], message[-1])
            return False
        self._holder = None  # it has attached, or cannot
        if kind == "attached":
            return False
        if message[2]:
            self._count_progress()
            self._refusals_of[worker] += 1
            if self._refusals_of[worker] >= _MAX_REFUSALS:
                raise RuntimeError(f"DataLoader workers cannot attach to their feed: {message[2]}")
        return True

    def _receive_rest(self, worker: int) -> None:
        """Handles what a worker sent before its end: the trainer may wait for a batch in memory of its own."""
        with contextlib.suppress(EOFError, OSError):
            while self._pool.pipes[worker].poll():
                self._receive(worker)

    def _count_progress(self) -> None:
        if self._next != self._seen:
            self._seen = self._next
            self.deaths.clear()
            self._deaths_of.clear()
            self._refusals_of.clear()

    def _replace(self, worker: int) -> None:
        if worker == self._holder:
            self._holder = None
        self._count_progress()
        self.deaths.append(self._pool.describe_death(worker))
        self._deaths_of[worker] += 1
        if self._lanes is not None:
            self._lanes.check(worker, self.deaths[-1])
        if self._deaths_of[worker] >= MAX_DEATHS:
            raise worker_deaths(self.deaths)
        self._warnings.append(f"{self.deaths[-1]}; another one takes its place, and its batch")
        self._pool.replace(worker)


def _close_both(reader: int, writer: int) -> None:
    os.close(reader)
    os.close(writer)
