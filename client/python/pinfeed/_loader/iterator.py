# SPDX-License-Identifier: Apache-2.0
"""What the iterators of a loader have in common, and the one that loads in the calling thread.

In: a loader and the epoch that begins. Out: its batches, in the sampler's order.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional

from .._base.errors import Code, Error, invalid
from .._base.optional_torch import torch_or_none
from .._worker.epoch_state import Epoch
from .._worker.fetch import Kind, explain, load, refuse_encoded
from .._worker.iterable import IterableFetcher, same_state, told
from .._worker.lanes import open_stream, saved_stream
from .._worker.seeding import global_states, set_global_states
from .carried import arguments_of
from .device_copies import mover
from .pinning import pinner

if TYPE_CHECKING:
    from .data_loader import DataLoader


class LoaderIterator(Iterator[Any]):
    """One epoch of a loader. Threads: one; `close` from any."""

    _SHARED_LENGTH = ""
    over = True  # until it is made: one whose constructor raised leaves no position

    def __init__(self, loader: "DataLoader[Any]", epoch: Epoch) -> None:
        self._arguments = arguments_of(loader)
        self._carried = loader._carried
        self._epoch = epoch
        # What becomes of a batch in the calling thread.
        self._finish = pinner(loader.pin_memory, loader.pin_memory_device) if loader._ordinal < 0 else mover(loader._ordinal)
        self._yielded = epoch.first
        self._expected = loader._IterableDataset_len_called if loader._kind is Kind.ITERABLE else None
        torch = torch_or_none()
        self._is_profiled = None if torch is None else torch.autograd._profiler_enabled
        self._pending: Any = None  # counted as yielded, and not yet with the caller
        self._latest = loader._carried.latest
        self._complete = False
        self._inside = 0  # the thread that is in __next__ or in `close`, where another `close` is postponed
        self._close_asked = False  # by one
        self._in_next: Dict[str, int] = {}  # the thread that is in __next__: a dict, whose setdefault no other thread comes between
        self.superseded = False  # ended by the loader's next iterator

    @property
    def _num_yielded(self) -> int:  # as torch's iterators have it, for SpeechBrain's checkpoints
        return self._yielded - (self._pending is not None)

    def state_dict(self) -> Dict[str, Any]:
        return self._epoch.state(self._yielded)

    def close(self) -> None:
        """Ends the epoch early. If a signal handler or another thread calls it within `__next__`, that does so at its end."""
        thread = threading.get_ident()
        if self._inside:
            self._close_asked = True
            return
        self._inside = thread  # no call since the look at it: neither a signal handler nor another thread comes between
        try:
            self._leave()
        finally:
            self._inside = 0

    def supersede(self) -> None:
        """Ends the epoch early, for the loader's next iterator."""
        if not self.over:
            self.superseded = True
        self.close()  # also if a signal handler has interrupted that

    def _leave(self) -> None:
        """Ends the iterator. Leaves the position with the loader, unless the epoch is complete or another one was begun."""
        left: Any
        if not self.over and not self._complete and self._carried.latest is self._latest:
            try:
                left = self.state_dict()
            except Exception as error:  # told if somebody asks for the state
                left = f"the position where the epoch was left has no state: {type(error).__name__}: {error}"
            self._carried.left, self.over = left, True  # no call in between: behind the position no batch is given
        self.over = True

    def _close_if_asked(self) -> None:
        """Closes the iterator for `close` within `__next__`."""
        if self._close_asked and not self._inside:
            self.close()

    def __next__(self) -> Any:
        self._close_if_asked()  # which came too late in the call before
        thread = threading.get_ident()
        if self._inside == thread and not self.over:
            raise RuntimeError("a signal handler, or the dataset, has called next() of this iterator within its next(): take no batch there")
        if self._in_next.setdefault("thread", thread) != thread:
            raise RuntimeError("another thread is in next() of this iterator: take batches in one thread and hand them to the others by a queue.Queue")
        if self.over or self._inside:  # by a handler just before; or another thread closes it
            self._in_next.clear()
            if self.superseded:
                raise RuntimeError(
                    "this iterator was ended because another one was to begin: a DataLoader has one iterator at a time with persistent_workers, and when an iterable dataset "
                    "gets the state that was loaded"
                )
            raise StopIteration
        self._inside = thread  # no call since the look at it
        try:
            batch = self._profiled_next() if self._is_profiled is not None and self._is_profiled() else self._next()
            if self._finish is not None:
                batch = self._finished(batch)
            if self._close_asked:
                pending, self._inside, self._pending = self._pending, 0, None  # the caller gets it
                try:
                    self.close()
                except BaseException:  # it does not
                    self._pending, self.over = pending, False
                    self._leave()
                    raise
            self._inside, self._pending = 0, None
            self._in_next = {}  # no call: from here on no signal handler runs, and no other thread
            return batch
        except StopIteration:
            self._inside, self._complete = 0, True
            self._in_next.clear()
            self.close()
            raise
        except BaseException:
            self._inside = 0
            self._in_next.clear()
            self._close_if_asked()
            raise

    def _finished(self, batch: Any) -> Any:
        assert self._finish is not None
        try:
            return self._finish(batch)
        except Exception:
            self._pending = None
            raise

    def _profiled_next(self) -> Any:
        """Takes the next batch under the name by which tools for torch's profiler know the time of a DataLoader."""
        with torch_or_none().autograd.profiler.record_function(f"enumerate(DataLoader)#{type(self).__name__}.__next__"):
            return self._next()

    def _next(self) -> Any:
        raise NotImplementedError

    def _check_length(self) -> None:
        """Warns if more batches have been yielded than the dataset's length said."""
        if self._expected is not None and self._yielded > self._expected:
            warnings.warn(
                f"Length of IterableDataset {self._arguments.dataset} was reported to be {self._expected} (when accessing len(dataloader)), but "
                f"{self._yielded} samples have been fetched. {self._SHARED_LENGTH}",
                stacklevel=4,
            )

    def __len__(self) -> int:
        return self._arguments.length()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: make it in the process that uses it")


class SingleIterator(LoaderIterator):
    """Loads in the calling thread, without a daemon and without other seeds, as torch does."""

    def __init__(self, loader: "DataLoader[Any]", epoch: Epoch) -> None:
        super().__init__(loader, epoch)
        self._recipe = loader._recipe
        # No signal handler runs between the number and the indices.
        self._numbered = zip(epoch.indices, itertools.count(epoch.first))
        self._draws_order = epoch.start.get("first_draw", "drawn") is None  # for the first batch
        self._stream: Optional[IterableFetcher] = None
        self._unread: Optional[Dict[str, Any]] = None  # what a state has of the dataset before its first sample
        if loader._kind is Kind.ITERABLE:
            resumes = "stream" in epoch.start  # then it has the generators from before `iter(dataset)`
            if not resumes:
                epoch.start["stream"] = global_states()
            for before in loader._streams:
                iterator = before()
                if iterator is not None:
                    iterator._settle()
            self._unread = epoch.lanes
            before_iter = None
            if epoch.lanes is None and not epoch.first:
                before_iter = told(loader.dataset)
                with contextlib.suppress(Exception):  # before its first sample it may have none to tell of
                    self._unread = None if before_iter is None else loader._stream_between()
            loader._streams = (*(each for each in loader._streams if each() is not None), weakref.ref(self))
            if epoch.first and epoch.lanes is None:
                self._stream = self._read_again()
            else:
                self._stream = self._open(epoch.start["stream"] if resumes else None)
            # Where nothing tells where the dataset had stood before this loader, the state behind `iter(dataset)` is right, if it is another one.
            unread = self._carried.stream_left is None and self._carried.begun_again is None
            if before_iter is not None and unread and not same_state(before_iter, told(loader.dataset)):
                self._unread = None
        self.over = False

    def _open(self, begun_with: Any = None) -> IterableFetcher:
        """`begun_with`: the global generators that an epoch had begun with."""
        dataset = self._recipe.dataset
        stream, begun = open_stream(dataset, self._recipe.batched, self._arguments.drop_last, self._epoch.lanes, begun_with)
        if begun is not None:
            self._carried.begun_again = begun, told(dataset)
        return stream

    def _read_again(self) -> IterableFetcher:
        """Reads a dataset without a state up to where the epoch continues, with the random numbers that the epoch began with. The global generators are
        afterwards as before.
        """
        first, start = self._epoch.first, self._epoch.start
        before = global_states()
        try:
            set_global_states(start.get("stream", before))
            stream = self._open()
            set_global_states(start.get("first_draw") or before)
            stream.fetch(self._arguments.batch_size or 1)
            drawn = pickle.dumps(global_states())
            for _ in range(1, first):
                stream.fetch(self._arguments.batch_size or 1)
            if drawn != pickle.dumps(global_states()):
                warnings.warn(
                    "the dataset has no state and is read again up to the loaded position. It draws random numbers while it is read, from generators that the "
                    "program uses as well: if its order depends on them, samples are lost or repeated. Give the dataset state_dict() and load_state_dict(), or "
                    "a generator of its own that it seeds when it begins",
                    stacklevel=6,
                )
            return stream
        except StopIteration:
            raise invalid(f"the dataset ends before batch {first}, where the state is to continue: give the dataset that it is from") from None
        finally:
            set_global_states(before)

    def __del__(self) -> None:
        if "over" in self.__dict__:
            self._leave()
            self._settle()

    def _settle(self) -> None:
        """Ends an epoch whose last batch was taken, and of which nobody has asked for another one."""
        if self._stream is not None and self._stream.ended and not self._complete:
            self._complete = True
            self._end(self._stream)

    def supersede(self) -> None:
        super().supersede()
        self._stream = None  # a generator ends here, and may change the dataset

    @property
    def _num_yielded(self) -> int:
        return self._yielded - (self._pending is True)

    def state_dict(self) -> Dict[str, Any]:
        if self._unread is not None:
            return self._epoch.state(self._yielded, self._unread)
        if self._stream is not None and self._pending and self._in_next:  # by a signal handler, or another thread
            raise Error(Code.FAILED_PRECONDITION, "next() has read samples that nobody has got yet: take the state once it has returned")
        stream = None if self._stream is None else self._stream.state()
        return self._epoch.state(self._yielded - (self._stream is None and self._pending is not None), None if stream is None else saved_stream(stream))

    def _next(self) -> Any:
        if self._draws_order and not self._epoch.drawn.batches:
            # Samplers draw their order for the first batch. Unlike workers' loaders, this one asks for it only when the trainer does.
            self._epoch.start["first_draw"] = global_states()
        try:
            indices, number = next(self._numbered)
        except StopIteration:
            self._epoch.drawn.all = True
            raise
        self._epoch.drawn.add(number, indices)
        self._pending = None if self._stream is None else "read"  # the dataset goes on, and then it is True
        try:
            batch = self._load(indices)
        except Exception:
            if self._stream is None:
                self._yielded = number + 1  # the next call returns the next batch
            self._pending = None
            raise
        if self._stream is None:  # also behind a batch that an interrupt has cost
            self._yielded, self._pending = number + 1, True
        self._check_length()
        return batch

    def _fetch(self, stream: IterableFetcher) -> Any:
        if stream.ended:
            self._end(stream)
            raise StopIteration
        before = self._place(stream) if self._unread is not None else None
        try:
            samples = stream.fetch(self._arguments.batch_size or 1)
        except BaseException as error:
            # An error before the first sample leaves the dataset where it was.
            if self._unread is not None and not isinstance(error, StopIteration) and same_state(before, self._place(stream)):
                raise
            self._begin_to_read(stream)
            if stream.ended:
                self._end(stream)
            raise
        if self._unread is not None or self._carried.stream_left is not True or stream.ended:
            self._begin_to_read(stream)
        return samples

    def _begin_to_read(self, stream: IterableFetcher) -> None:
        self._unread = self._carried.begun_again = None
        self._carried.stream_left = not stream.ended

    def _end(self, stream: IterableFetcher) -> None:
        self._carried.stream_left = False
        if self._unread is None:  # otherwise it had ended where the state was taken
            with contextlib.suppress(Exception):  # behind its last sample it may have none to tell of
                left = stream.leave()
                if left is not None and left[1] is not None:
                    self._carried.begun_again = left, copy.deepcopy(left[0])

    def _place(self, stream: IterableFetcher) -> Any:
        with contextlib.suppress(Exception):
            return copy.deepcopy(stream.state())

    def _load(self, indices: Any) -> Any:
        if self._stream is None:
            samples = load(self._recipe, indices)
        else:
            samples = self._fetch(self._stream)
            self._yielded, self._pending = self._yielded + 1, True  # no call. Though the rest may raise: the dataset has gone on
        refuse_encoded(samples, self._recipe.batched)
        try:
            return self._arguments.collate_fn(samples)
        except (RuntimeError, TypeError) as error:
            if self._recipe.collate_fn is None and self._recipe.rows is None:
                explain(samples, error)
            raise
