# SPDX-License-Identifier: Apache-2.0
"""The first batch of a feed, which says how large its slots are.

In: the batch's number. Out: its size, from the first worker that has made it, or what it has in its place: an exception, or the end of its data.
"""

from __future__ import annotations

import collections
import math
import os
import time
from multiprocessing.connection import wait
from typing import Any, Counter, Dict, List, Optional, Sequence, Tuple

from .._base.abi import logger
from .._worker.lanes import Lanes
from .worker_pool import MAX_DEATHS, WorkerPool, worker_deaths

_SLICE_S, _PATIENCE_S = 1.0, 30.0  # of waiting; before a warning
_MAX_WORKERS = 3  # that make it, as the daemon lets at most three fill a slot with a batch


class FirstBatch:
    """Has workers make a batch in their own memory: one, and another one each time that `retry_after` seconds have
    passed. All that are asked are listened to. With lanes, the other workers make their first batches meanwhile, since a dataset may have
    them wait for one another. Borrows the pool, which nobody else uses meanwhile. Threads: one.
    """

    def __init__(self, pool: WorkerPool, retry_after: float, timeout: float, lanes: Optional[Lanes]) -> None:
        """`retry_after`, `timeout`: 0: never. With `lanes`, only one worker can make the batch."""
        self._pool = pool
        self._lanes = lanes
        self._retry_s = retry_after or math.inf
        self._timeout_s = timeout or math.inf
        self._most = min(_MAX_WORKERS, len(pool.pipes)) if retry_after and lanes is None else 1
        self._number = -1
        self._asked: List[int] = []
        self._asked_at = 0.0  # the latest of them
        self._interruption: Optional[BaseException] = None
        self.holder = 0  # the worker that has made the latest one, and is asked first

    def interrupt(self, reason: BaseException) -> None:
        """Makes `take` raise `reason` when it would have to wait."""
        self._interruption = reason

    def begin(self, number: int) -> None:
        """Asks the first worker for a batch."""
        self._asked.clear()
        self._ask(self.holder if self._lanes is None else number, number)
        for worker in self._watched():
            if worker not in self._asked:
                self._send(worker, number)
        self._number = number  # not before: a signal handler may raise

    def take(self, number: int) -> Optional[Tuple[Any, ...]]:
        """Returns ("measured", generation, number, bytes, structure, images, generator), or ("instead", generation, number, memory) with the
        memory of an exception or `END`. None after `timeout` seconds; it may be called again. Raises RuntimeError if workers keep
        dying.
        """
        if number != self._number:
            self.begin(number)
        try:
            return self._await(number)
        except BaseException:
            self._number = -1  # a signal handler may have cost the worker's message: it is asked again
            raise

    def _await(self, number: int) -> Optional[Tuple[Any, ...]]:
        deaths: List[str] = []
        deaths_of: "Counter[int]" = collections.Counter()  # by batch: something may kill all workers at once
        begun = told = time.monotonic()
        until = begun + self._timeout_s
        while True:
            retry = self._asked_at + self._retry_s if len(self._asked) < self._most else math.inf
            if self._interruption is not None:
                raise self._interruption
            patience = min(until, retry, told + _PATIENCE_S, time.monotonic() + _SLICE_S) - time.monotonic()
            pipes: Dict[Any, int] = {self._pool.pipes[worker]: worker for worker in self._asked}
            ends: Dict[Any, int] = {self._pool.ends[worker]: worker for worker in self._watched()}
            ready = wait([*pipes, *ends], max(patience, 0))
            dead = {ends[each] for each in ready if each in ends}
            for worker in [pipes[each] for each in ready if each in pipes]:
                try:
                    message = self._pool.receive(worker)
                except (EOFError, OSError):
                    dead.add(worker)
                    continue
                if message is not None and message[0] == "one-off":  # of an earlier epoch
                    os.close(message[-1])
                elif message is not None and message[1:3] == (self._pool.generation, number):  # others are about earlier epochs
                    self.holder = worker
                    self._number = -1
                    return message
            for worker in sorted(dead):
                deaths.append(self._pool.describe_death(worker))
                batch = self._batch_of(worker, number)
                deaths_of[batch] += 1
                if deaths_of[batch] >= MAX_DEATHS:
                    raise worker_deaths(deaths)
                if self._lanes is not None:
                    self._lanes.check(worker, deaths[-1], first_batch=True)
                logger.warning("%s; another one takes its place", deaths[-1])
                self._pool.replace(worker)
                self._send(worker, number)
            if not ready and time.monotonic() >= retry:
                logger.warning("no worker has made batch %d of the DataLoader within retry_after; the next worker makes it too", number)
                self._ask(self._asked[0] + len(self._asked), number)
            elif not ready and time.monotonic() >= until:
                return None
            elif time.monotonic() >= told + _PATIENCE_S:
                told = time.monotonic()
                pids = ", ".join(str(self._pool.processes[worker].pid) for worker in self._watched())
                alone = ". One worker makes it alone: if it waits for the others, give max_batch_bytes=" if self._lanes is None else ""
                # Polars has such threads.
                forked = '. A library that had threads before the fork may hang: multiprocessing_context="forkserver" has none' if self._pool.forks else ""
                logger.warning(
                    "no batch of the DataLoader for %.0f s: its first one, batch %d, is still being made (pid %s); `py-spy dump --pid` shows where%s%s",
                    told - begun, number, pids, alone, forked
                )  # fmt: skip

    def _ask(self, worker: int, number: int) -> None:
        worker %= len(self._pool.pipes)
        self._asked.append(worker)
        self._asked_at = time.monotonic()
        self._send(worker, number)

    def _watched(self) -> Sequence[int]:
        """The workers that make a batch."""
        return self._asked if self._lanes is None else range(len(self._pool.pipes))

    def _batch_of(self, worker: int, number: int) -> int:
        return number if worker in self._asked else number + (worker - number) % len(self._pool.pipes)

    def _send(self, worker: int, number: int) -> None:
        if worker in self._asked:
            self._pool.send(worker, "measure", self._pool.generation, number)
        else:
            self._pool.send(worker, "prepare", self._batch_of(worker, number))
