# SPDX-License-Identifier: Apache-2.0
"""Looks after the workers while they fill a feed.

In: messages and ends of workers. Out: invitations to the feed, processes in place of dead ones, or the reason why no
further batch can come.
"""

from __future__ import annotations

import collections
import mmap
import os
import threading
import weakref
from multiprocessing.connection import wait
from typing import Any, Counter, Dict, List, Optional, Set

from ._connection import logger
from ._errors import Code, Error, UnavailableError
from ._lanes import Lanes
from ._produced_feed import ProducedFeed
from ._worker_pool import WorkerPool

MAX_DEATHS = 3  # of a worker and those in its place, without a batch in between
_MAX_REFUSALS = 20  # of invitations, by workers, without a batch in between
_RETRY_S = 0.1


class Supervisor:
    """A thread that serves the workers of one feed. When no further batch can come, it interrupts the feed and ends.

    Owns the thread and its wake-up pipe. Borrows pool and feed, which outlive `stop`; nobody else uses the pool until
    then. Threads: `start`, `stop` and `take_one_off` from the trainer's, and `deaths` after `stop`. `yielded` is written
    by the trainer.
    """

    def __init__(self, pool: WorkerPool, feed: ProducedFeed, first: int, lanes: Optional[Lanes]) -> None:
        """`first`: the number of the feed's first batch."""
        self._pool = pool
        self._lanes = lanes
        self._one_off: Dict[int, int] = {}  # descriptors of batches that did not fit into a slot
        self._arrived = threading.Condition()
        self._feed = feed
        self._first = first
        pool.generation += 1
        self._generation = pool.generation
        self.yielded = 0
        self._seen = 0
        self.deaths: List[str] = []  # since the last batch
        self._deaths_of: "Counter[int]" = collections.Counter()  # by worker: something may kill all of them at once
        self._refusals = 0
        self._wake_reader, self._wake_writer = os.pipe()
        self._close_wake = weakref.finalize(self, _close_both, self._wake_reader, self._wake_writer)
        self._close_wake.atexit = False  # the thread may still be told to stop then
        weakref.finalize(self, _close_all, self._one_off)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="pinfeed-workers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        os.write(self._wake_writer, b"s")  # closing it would not do: forked children have it too
        if threading.current_thread() is not self._thread:  # which may run the iterator's __del__
            self._thread.join()
            self._close_wake()

    def take_one_off(self, batch: int) -> mmap.mmap:
        """Returns the memory of a batch that did not fit into its slot."""
        with self._arrived:
            self._arrived.wait_for(lambda: batch in self._one_off or not self._thread.is_alive())
            if batch not in self._one_off:
                raise Error(Code.INTERNAL, f"batch {batch} is in memory of its own, which its worker did not send")
            fd = self._one_off.pop(batch)
        try:
            return mmap.mmap(fd, 0)
        finally:
            os.close(fd)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # whatever it is, the trainer gets it
            self._feed.interrupt(error)
        finally:
            with self._arrived:
                self._arrived.notify_all()

    def _serve(self) -> None:
        uninvited = set(range(len(self._pool.pipes)))
        while True:
            uninvited = {worker for worker in sorted(uninvited) if not self._invite(worker)}
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
                self._replace(worker)
                uninvited.add(worker)

    def _invite(self, worker: int) -> bool:
        """Invites a worker to the feed. Returns False while there is no daemon."""
        try:
            lane = 0 if self._lanes is None else (worker - self._first) % len(self._pool.pipes)
            invitation = self._feed.invite_producer(lane)
        except UnavailableError:
            return False
        self._pool.send(worker, "feed", self._generation, invitation, self._first)
        return True

    def _receive(self, worker: int) -> bool:
        """Handles a worker's message. Returns whether the worker needs another invitation."""
        message = self._pool.pipes[worker].recv()
        kind = message[0]
        if kind == "one-off":
            fd = self._pool.receive_descriptor(worker)
            if message[1] != self._generation:
                os.close(fd)
                return False
            with self._arrived:
                earlier, self._one_off[message[2]] = self._one_off.get(message[2]), fd
                self._arrived.notify_all()
            if earlier is not None:  # of a worker that died before it told the daemon
                os.close(earlier)
            return False
        if kind != "again" or message[1] != self._generation:
            return False  # about an earlier feed
        if message[2]:
            self._count_progress()
            self._refusals += 1
            if self._refusals >= _MAX_REFUSALS:
                raise RuntimeError(f"DataLoader workers cannot attach to their feed: {message[2]}")
        return True

    def _count_progress(self) -> None:
        if self.yielded != self._seen:
            self._seen = self.yielded
            self.deaths.clear()
            self._deaths_of.clear()
            self._refusals = 0

    def _replace(self, worker: int) -> None:
        self._count_progress()
        self.deaths.append(self._pool.describe_death(worker))
        self._deaths_of[worker] += 1
        if self._lanes is not None and not self._lanes.can_continue(worker):
            raise RuntimeError(
                f"{self.deaths[-1]}, and its place in the data is lost with it. Give the dataset state_dict() and load_state_dict(), and "
                "another worker takes its place"
            )
        if self._deaths_of[worker] >= MAX_DEATHS:
            raise worker_deaths(self.deaths)
        logger.warning("%s; another one takes its place, and its batch", self.deaths[-1])
        self._pool.replace(worker)


def _close_all(descriptors: Dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _close_both(reader: int, writer: int) -> None:
    os.close(reader)
    os.close(writer)


def worker_deaths(deaths: List[str]) -> RuntimeError:
    """Returns the error after too many deaths."""
    return RuntimeError(
        f"{deaths[-1]}. It is the last of {len(deaths)} that ended without a batch in between: {'; '.join(deaths)}. If they were "
        "killed, memory may be short: use fewer workers, or smaller batches. With num_workers=0 an error shows where it happens"
    )
