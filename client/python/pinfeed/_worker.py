# SPDX-License-Identifier: Apache-2.0
"""A worker process of a loader.

In: messages from the trainer on a pipe, and tasks from the daemon. Out: batches in the feed's memory.

The trainer sends ("epoch", seed) and then the descriptor of the index log; ("measure", generation, batch): compute this
batch in private memory; ("feed", generation, invitation, first): fill batches of the feed until it hangs up, where the
feed's batch 0 is batch `first`; ("exit",). The worker answers ("measured", generation, batch, bytes), or ("failed",
generation, batch, memory) with the memory of a batch that is an exception; and ("again", generation, reason) after a
feed hung up. It sends ("grow", generation, batch, bytes) for a batch that needs larger slots, and leaves its task to
the next feed.
"""

from __future__ import annotations

import os
import pickle
import signal
from multiprocessing import reduction
from typing import Any, Callable, NamedTuple, Optional, Tuple

from ._batch_memory import BatchTooLarge, BatchWriter
from ._errors import Code, Error, ResourceExhaustedError
from ._fetch import Recipe, assemble, load
from ._index_log import END, IndexLogReader
from ._producer import Producer, end_with_process
from ._seeding import Seeder
from ._torch import torch_or_none
from ._worker_info import set_worker_info

_ERROR_BYTES = 1 << 18  # for an exception and its traceback


class Job(NamedTuple):
    """What a worker needs to know. Picklable if its members are."""

    recipe: Recipe
    worker_init_fn: Optional[Callable[[int], Any]]
    num_workers: int
    base_seed: int
    grows: bool  # a batch may ask for larger slots; otherwise it is an error
    trainer: Tuple[int, int]  # process id and start time


def process_start_time(pid: int) -> int:
    """Returns when a process started, in ticks since the host did; 0 if there is no such process. With the process id
    it names a process for good.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def worker_main(pipe: Any, number: int, job: Job) -> None:
    """Runs a worker until the trainer says so, closes the pipe or ends."""
    pid, start = job.trainer
    end_with_process(pid)
    if process_start_time(pid) != start:
        os._exit(1)  # the trainer had ended before
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = Worker(pipe, number, job)
    try:
        worker.serve()
    except (EOFError, ConnectionError):
        pass  # the trainer closed the pipe


class Worker:
    """Serves one trainer. Owns the pipe and its reader of the index log. Threads: one."""

    def __init__(self, pipe: Any, number: int, job: Job) -> None:
        self._pipe = pipe
        self._number = number
        self._recipe = job.recipe
        self._grows = job.grows
        self._log: Optional[IndexLogReader] = None
        self._seed = 0
        self._prepared: Optional[Tuple[int, BatchWriter]] = None  # a batch computed in private memory
        self._init_error: Optional[Exception] = None
        torch = torch_or_none()
        if torch is not None:
            torch.set_num_threads(1)
        self._seeder = Seeder()
        seed = self._seeder.seed_worker(job.base_seed, number)
        set_worker_info(number, job.num_workers, seed, job.recipe.dataset)
        if job.worker_init_fn is not None:
            try:
                job.worker_init_fn(number)
            except Exception as error:  # every batch of this worker raises it
                self._init_error = error

    def serve(self) -> None:
        while True:
            message = self._pipe.recv()
            kind = message[0]
            if kind == "epoch":
                self._begin_epoch(message[1])
            elif kind == "measure":
                self._pipe.send(self._measure(*message[1:]))
            elif kind == "feed":
                reason = self._produce(*message[1:])
                self._pipe.send(("again", message[1], reason))
            else:
                return

    def _begin_epoch(self, seed: int) -> None:
        if self._log is not None:
            self._log.close()
        self._log = IndexLogReader(reduction.recv_handle(self._pipe))
        self._seed = seed
        self._prepared = None

    def _indices(self, batch: int) -> Any:
        assert self._log is not None  # the trainer begins with an epoch
        return self._log.read(batch)

    def _samples(self, batch: int, indices: Any) -> Any:
        if self._init_error is not None:
            raise self._init_error
        return load(self._recipe, indices, self._seeder, self._seed, batch)

    def _prepare(self, batch: int, samples: Any) -> int:
        """Makes a batch in private memory, for a later task. Returns the bytes that it needs."""
        writer = BatchWriter(None)
        needed: int = writer.finish(assemble(self._recipe, samples, writer.allocate))
        self._prepared = batch, writer
        return needed

    def _measure(self, generation: int, batch: int) -> Tuple[Any, ...]:
        try:
            return "measured", generation, batch, self._prepare(batch, self._samples(batch, self._indices(batch)))
        except Exception as error:
            memory = bytearray(_ERROR_BYTES)
            used = BatchWriter(memoryview(memory)).finish_error(error, worker=self._number)
            return "failed", generation, batch, bytes(memory[:used])

    def _produce(self, generation: int, invitation: bytes, first: int) -> str:
        """Fills batches until the feed hangs up. Returns why it could not attach; empty if it did."""
        try:
            producer = Producer(invitation)
        except Error as error:
            return str(error) or error.code.name
        try:
            while True:
                task = producer.next()
                if task is None:
                    return ""
                batch = first + task.batch_index
                try:
                    indices = self._indices(batch)
                except (Error, OSError, pickle.UnpicklingError) as error:
                    producer.done(task, error=f"worker {self._number} cannot read the indices of batch {batch}: {error}")
                    continue
                if indices is END:
                    continue  # the epoch ends before this batch: nobody waits for it
                needed = self._fill(task.memory, batch, indices)
                if needed:
                    self._pipe.send(("grow", generation, batch, needed))
                else:
                    producer.done(task)
        finally:
            producer.close()

    def _fill(self, memory: memoryview, batch: int, indices: Any) -> int:
        """Writes a batch, or the exception that it raised, to a slot. Returns 0, or the bytes that it needs instead."""
        try:
            prepared, self._prepared = self._prepared, None
            if prepared is not None and prepared[0] == batch:
                prepared[1].replay(memory)
                return 0
            samples = self._samples(batch, indices)
            try:
                writer = BatchWriter(memory)
                writer.finish(assemble(self._recipe, samples, writer.allocate))
                return 0
            except BatchTooLarge as large:
                if self._grows:
                    return self._prepare(batch, samples)
                raise ResourceExhaustedError(
                    Code.RESOURCE_EXHAUSTED,
                    f"batch {batch} of indices {_shown(indices)} needs {large.needed} bytes, and max_batch_bytes={len(memory)} bytes are there for "
                    f"each: give max_batch_bytes={large.needed} or more, or omit it",
                ) from None
        except Exception as error:
            BatchWriter(memory).finish_error(error, worker=self._number)
            return 0


def _shown(indices: Any) -> str:
    text = repr(indices)
    return text if len(text) <= 200 else text[:196] + " ..."
