# SPDX-License-Identifier: Apache-2.0
"""The iterators of a loader: one that loads in the calling thread, and one whose workers fill a feed.

In: a loader and the epoch that begins. Out: its batches, in the sampler's order.
"""

from __future__ import annotations

import atexit
import functools
import os
import warnings
import weakref
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from ._batch_memory import read_batch
from ._device_copies import DeviceCopies, mover
from ._errors import Code, DataLossError, DeadlineExceededError
from ._fetch import IterableFetcher, Kind, load
from ._index_log import IndexLog
from ._loader_state import Epoch
from ._pinning import pinner
from ._produced_feed import ProducedFeed, open_produced
from ._supervisor import MAX_DEATHS, Supervisor, TooLarge, worker_deaths

if TYPE_CHECKING:
    from ._loader import DataLoader

_MIN_SLOTS, _MAX_SLOTS = 3, 64
_HELD_SLOTS = 2  # by the trainer: the batch in use, and the one before it
_MIN_SLACK_BYTES = 64 * 1024
_PAGE = 4096
_MAX_NAME_BYTES = 128


class LoaderIterator(Iterator[Any]):
    """One epoch of a loader. Threads: one."""

    def __init__(self, loader: "DataLoader[Any]", epoch: Epoch) -> None:
        self._loader = loader
        self._epoch = epoch
        on_gpu = loader._ordinal >= 0
        # What becomes of a batch in the calling thread.
        self._finish = None if on_gpu else pinner(loader.pin_memory, loader.pin_memory_device)
        self._yielded = epoch.first
        self.over = False

    def state_dict(self) -> Dict[str, Any]:
        return self._epoch.state(self._yielded)

    def close(self) -> None:
        """Ends the epoch early."""
        self.over = True

    def __next__(self) -> Any:
        if self.over:
            raise StopIteration
        try:
            batch = self._next()
        except StopIteration:
            self.close()
            raise
        return batch if self._finish is None else self._finish(batch)

    def _next(self) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._loader)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: make it in the process that uses it")


class SingleIterator(LoaderIterator):
    """Loads in the calling thread, without a daemon and without other seeds, as torch does."""

    def __init__(self, loader: "DataLoader[Any]", epoch: Epoch) -> None:
        super().__init__(loader, epoch)
        self._recipe = loader._recipe
        if loader._ordinal >= 0:
            self._finish = mover(loader._ordinal)
        self._stream: Optional[IterableFetcher] = None
        self._expected: Optional[int] = None
        if loader._kind is Kind.ITERABLE:
            self._stream = IterableFetcher(loader.dataset, loader._batched, loader.collate_fn, loader.drop_last)
            self._expected = loader._len_called
            for _ in range(epoch.first):  # such a dataset cannot skip
                self._stream.fetch(range(loader.batch_size or 1))

    def _next(self) -> Any:
        indices = next(self._epoch.indices)
        if self._stream is not None:
            batch = self._stream.fetch(indices)
        else:
            batch = self._loader.collate_fn(load(self._recipe, indices))
        self._yielded += 1
        if self._expected is not None and self._yielded > self._expected:
            warnings.warn(
                f"Length of IterableDataset {self._loader.dataset} was reported to be {self._expected} (when accessing len(dataloader)), but "
                f"{self._yielded} samples have been fetched. ",
                stacklevel=3,
            )
        return batch


class WorkerIterator(LoaderIterator):
    """Takes the batches of a feed that workers fill.

    Owns the index log, the feed and its supervisor, and the workers unless they are persistent. Errors: an exception
    of the dataset is raised in place of its batch, and the next call returns the next batch.

    Invariant: before the feed is asked for a batch, the log has `_ahead` batches from that one on, or the epoch's end.
    The daemon deals no batch beyond those, because it has `_ahead - 1` slots.
    """

    def __init__(self, loader: "DataLoader[Any]", epoch: Epoch) -> None:
        super().__init__(loader, epoch)
        self._feed: Optional[ProducedFeed] = None
        self._supervisor: Optional[Supervisor] = None
        self._copies = DeviceCopies(loader._ordinal) if loader._ordinal >= 0 else None
        self._measuring = -1  # the batch that a worker measures
        self._owner = os.getpid()
        in_flight = loader.num_workers * (loader.prefetch_factor or 1)
        self._slots = min(max(in_flight + _HELD_SLOTS, _MIN_SLOTS), _MAX_SLOTS)
        self._ahead = self._slots + 1
        self._log = IndexLog(epoch.first)
        self._pool = loader._start_workers(epoch.base_seed)
        _iterators.add(self)
        self._pool.begin_epoch(epoch.seed, self._log)
        self._append()
        if self._log.end == epoch.first:
            return
        if loader._capacity:
            self._open(loader._capacity)
        else:
            self._begin_measuring()

    def _append(self) -> None:
        """Adds the indices of the following batches to the log."""
        while self._log.end is None and self._log.appended < self._yielded + self._ahead:
            try:
                indices = next(self._epoch.indices)
            except StopIteration:
                self._log.append_end()
                return
            self._log.append(indices)

    def _next(self) -> Any:
        self._log.consume(self._yielded)
        self._append()
        if self._yielded == self._log.end:
            raise StopIteration
        while True:
            if self._feed is None:
                content, error = self._measure()
                if self._feed is None:  # the batch is an exception
                    break
            try:
                content, error = self._take()
                break
            except TooLarge as large:
                self._close_feed()
                self._open(_capacity_for(large.needed))
        self._yielded += 1
        if self._supervisor is not None:
            self._supervisor.yielded = self._yielded
        try:
            if error is not None:
                raise error
            return content
        finally:
            del error  # otherwise its traceback and this frame would keep each other, and the iterator, alive

    # ---- The feed ----

    def _open(self, capacity: int) -> None:
        loader = self._loader
        name = type(loader.dataset).__name__.encode("utf-8")[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
        self._feed = open_produced(name, capacity, self._slots, loader.timeout or None, loader._address, loader._ordinal)
        loader._capacity = capacity
        self._supervisor = Supervisor(self._pool, self._feed, self._yielded)
        self._supervisor.yielded = self._yielded
        self._supervisor.start()

    def _take(self) -> "Tuple[Any, Optional[Exception]]":
        """Returns the next batch, or the exception that its worker raised."""
        assert self._feed is not None and self._supervisor is not None
        if self._copies is not None:
            self._copies.let_go(wait=self._feed.held >= _HELD_SLOTS)
        try:
            # With too few free slots, workers would wait for the trainer: it gets copies of what it holds beyond its share.
            content, failure = self._feed.take(functools.partial(_read, self._copies, copy=self._feed.held >= _HELD_SLOTS))
            return content, failure
        except DeadlineExceededError as error:
            raise self._late() from error
        except TooLarge:
            raise
        except DataLossError as error:
            raise self._deaths_or(error) from error
        except Exception:
            if self._feed.interrupted:
                self.close()
            raise

    def _deaths_or(self, error: DataLossError) -> Exception:
        """Ends the epoch. Returns the error of workers that keep dying, which the daemon may notice before their
        supervisor; `error` if none died.
        """
        assert self._supervisor is not None
        self._supervisor.stop()
        deaths = self._supervisor.deaths + self._pool.deaths()
        self.close()
        return worker_deaths(deaths) if deaths else error

    def _late(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            Code.DEADLINE_EXCEEDED,
            f"DataLoader timed out after {self._loader.timeout:g} seconds: no worker had batch {self._yielded} ready. Raise timeout=, or "
            "find out with py-spy what the workers wait for",
        )

    def _close_feed(self) -> None:
        feed, self._feed = self._feed, None
        supervisor, self._supervisor = self._supervisor, None
        if self._copies is not None:
            self._copies.close()
        if feed is not None:
            feed.close()  # the workers see a hang-up
        if supervisor is not None:
            supervisor.stop()

    # ---- The first batch, which says how large a slot is ----

    def _begin_measuring(self) -> None:
        self._measuring = self._yielded
        self._pool.send(0, "measure", self._pool.generation, self._measuring)

    def _measure(self) -> "Tuple[Any, Optional[Exception]]":
        """Opens the feed when a worker has computed the next batch. Returns its exception instead if it raised one."""
        if self._measuring != self._yielded:
            self._begin_measuring()
        deaths: List[str] = []
        while True:
            process, pipe = self._pool.processes[0], self._pool.pipes[0]
            ready = wait([pipe, process.sentinel], self._loader.timeout or None)
            if not ready:
                raise self._late()
            try:
                message: Any = pipe.recv() if pipe in ready else ("dead",)
            except (EOFError, OSError):
                message = ("dead",)
            if message[0] == "dead":
                deaths.append(self._pool.describe_death(0))
                if len(deaths) >= MAX_DEATHS:
                    self.close()
                    raise worker_deaths(deaths)
                self._pool.replace(0)
                self._begin_measuring()
            elif message[1:3] == (self._pool.generation, self._measuring):  # others are about earlier epochs
                self._measuring = -1
                if message[0] == "failed":
                    return _read(None, _bytes(message[3]))
                self._open(_capacity_for(message[3]))
                return None, None

    # ---- The end ----

    def close(self) -> None:
        """Ends the epoch: closes the feed and ends the workers, unless they are persistent."""
        self.over = True
        if os.getpid() != self._owner:
            return
        self._close_feed()
        if not self._loader.persistent_workers:
            self._pool.stop()
        self._log.close()

    def __del__(self) -> None:
        if "_pool" in self.__dict__ and not self.over:
            self.close()


_iterators: "weakref.WeakSet[WorkerIterator]" = weakref.WeakSet()


def _close_all() -> None:
    for iterator in list(_iterators):
        if not iterator.over and iterator._owner == os.getpid():
            iterator._close_feed()


atexit.register(_close_all)  # runs before the workers are terminated


def _read(copies: Optional[DeviceCopies], memory: Any, copy: bool = False) -> "Tuple[Any, Optional[Exception]]":
    """Returns the batch in a slot, or the exception that is there instead."""
    if copy:
        memory = memory.clone() if hasattr(memory, "clone") else memory.copy()
    try:
        return read_batch(memory) if copies is None else copies.read(memory), None
    except Exception as error:
        return None, error.with_traceback(None)  # the worker's is in its text


def _bytes(data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(bytearray(data), numpy.uint8)


def _capacity_for(needed: int) -> int:
    """Returns the size of slots for batches like one of `needed` bytes."""
    return (needed + max(needed // 4, _MIN_SLACK_BYTES) + _PAGE - 1) // _PAGE * _PAGE
