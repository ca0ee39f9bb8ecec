# SPDX-License-Identifier: Apache-2.0
"""Looks after the workers while they fill a feed.

In: messages and ends of workers. Out: invitations to the feed, processes in place of dead ones, or the reason why no
further batch can come.
"""

from __future__ import annotations

import os
import threading
import weakref
from multiprocessing.connection import wait
from typing import Any, List, Set

from ._connection import logger
from ._errors import UnavailableError
from ._produced_feed import ProducedFeed
from ._worker_pool import WorkerPool

MAX_DEATHS = 3  # of workers without a batch in between
_MAX_REFUSALS = 20  # of invitations, by workers, without a batch in between
_RETRY_S = 0.1


class TooLarge(Exception):
    """A batch needs larger slots. Interrupts the trainer, which opens another feed."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class Supervisor:
    """A thread that serves the workers of one feed. When no further batch can come, it interrupts the feed and ends.

    Owns the thread and its wake-up pipe. Borrows pool and feed, which outlive `stop`; nobody else uses the pool until
    then. Threads: `start` and `stop` from the trainer's, and `deaths` after `stop`. `yielded` is written by the trainer.
    """

    def __init__(self, pool: WorkerPool, feed: ProducedFeed, first: int) -> None:
        self._pool = pool
        self._feed = feed
        self._first = first
        pool.generation += 1
        self._generation = pool.generation
        self.yielded = 0
        self._seen = 0
        self.deaths: List[str] = []  # since the last batch
        self._refusals = 0
        self._wake_reader, self._wake_writer = os.pipe()
        self._close_wake = weakref.finalize(self, _close_both, self._wake_reader, self._wake_writer)
        self._close_wake.atexit = False  # the thread may still be told to stop then
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

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # whatever it is, the trainer gets it
            self._feed.interrupt(error)

    def _serve(self) -> None:
        uninvited = set(range(len(self._pool.pipes)))
        while True:
            uninvited = {worker for worker in sorted(uninvited) if not self._invite(worker)}
            pipes = {pipe: worker for worker, pipe in enumerate(self._pool.pipes)}
            sentinels = {process.sentinel: worker for worker, process in enumerate(self._pool.processes)}
            # While there is no daemon there is nothing to wait on: it is asked again from time to time.
            ready = wait([self._wake_reader, *pipes, *sentinels], _RETRY_S if uninvited else None)
            if self._wake_reader in ready:
                return
            dead: Set[int] = set()
            for each in ready:
                if each in pipes:
                    try:
                        message = self._pool.pipes[pipes[each]].recv()
                    except (EOFError, OSError):
                        dead.add(pipes[each])
                        continue
                    if self._receive(message):
                        uninvited.add(pipes[each])
                else:
                    dead.add(sentinels[each])
            for worker in sorted(dead):
                self._replace(worker)
                uninvited.add(worker)

    def _invite(self, worker: int) -> bool:
        """Invites a worker to the feed. Returns False while there is no daemon."""
        try:
            invitation = self._feed.invite_producer()
        except UnavailableError:
            return False
        self._pool.send(worker, "feed", self._generation, invitation, self._first)
        return True

    def _receive(self, message: Any) -> bool:
        """Handles a worker's message. Returns whether the worker needs another invitation."""
        kind = message[0]
        if kind == "grow" and message[1] == self._generation:
            raise TooLarge(message[3])
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
            self._refusals = 0

    def _replace(self, worker: int) -> None:
        self._count_progress()
        self.deaths.append(self._pool.describe_death(worker))
        if len(self.deaths) >= MAX_DEATHS:
            raise worker_deaths(self.deaths)
        logger.warning("%s; another one takes its place, and its batch", self.deaths[-1])
        self._pool.replace(worker)


def _close_both(reader: int, writer: int) -> None:
    os.close(reader)
    os.close(writer)


def worker_deaths(deaths: List[str]) -> RuntimeError:
    """Returns the error after too many deaths."""
    return RuntimeError(
        f"{deaths[-1]}. It is the last of {len(deaths)} that ended without a batch in between: {'; '.join(deaths)}. If they were "
        "killed, memory may be short: use fewer workers, or smaller batches. With num_workers=0 an error shows where it happens"
    )
