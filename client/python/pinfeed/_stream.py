# SPDX-License-Identifier: Apache-2.0
"""Batches of a feed one after the other, whatever their epochs.

What comes in: a feed's session. What goes out: its next batch, once there is one, and how long that took.
"""

from __future__ import annotations

import ctypes
import math
import time
import warnings
from typing import Any, Optional, Tuple, Union

from . import _daemon
from ._batch import BatchMaker
from ._connection import _LOOK_S, Connection, Opened, logger
from ._device import DeviceBatchMaker, LentBatchMaker, memory_of
from ._errors import Code, DeadlineExceededError, Error, SlotsHeldWarning
from ._spec import describe

# One wait inside the library. Between two, Python handles signals, and this module looks whether another thread closes the feed. The
# first is short: only then is it worth while to note for other threads where the feed is.
_SLICE_MS = 50
_FIRST_SLICE_MS = 2


# How long a group may be incomplete before that is told.
_GROUP_PATIENCE_S = 5.0


class Stream(Connection):
    """An open feed's batches. Invariant: an exception, also Ctrl-C, loses no batch: what the library gave is in `_out`, then in `_taken`,
    until the trainer has it. Signal handlers may call anything of it."""

    def __init__(self, opened: Opened) -> None:
        # The pointer that pf_next gave and that nothing owns yet: an exception may come between.
        self._out = ctypes.c_void_p()
        self._out_ref = ctypes.byref(self._out)
        self._taken: Any = None  # what the maker's take gave, until the trainer has the batch
        self._warned = False
        self._copied = 0
        self._group_pending = opened.spec.get("group_size", 1) > 1  # no batch came yet, and nothing was told of that
        self._wait_seconds = 0.0
        super().__init__(opened)

    def _attach(self, opened: Opened) -> None:
        super()._attach(opened)
        library, handle = opened.library, opened.handle
        # One slot is left to the daemon, and not more: in a plain loop the batch before is still referred to when the next one is
        # asked for. Members of a group share the others (decision 0023).
        most_held = (self._slots - 1) // int(self._spec.get("group_size", 1))
        self._maker: Union[BatchMaker, DeviceBatchMaker]
        if self._device >= 0:
            memory = memory_of(opened.framework, self._device)
            if opened.zero_copy:
                self._maker = LentBatchMaker(library, handle, self._output_count, self.batch_size, most_held, memory, self._device)
            else:
                self._maker = DeviceBatchMaker(library, handle, self._output_count, self.batch_size, most_held, memory)
        else:
            # Where the daemon could not bring the tensors to the GPU, the framework does.
            gpu = opened.ordinal
            self._maker = BatchMaker(library, self._tensor_count, self.batch_size, most_held, opened.framework, opened.zero_copy, gpu)
        self._framework = opened.framework
        self._timeout = opened.timeout

    @property
    def framework(self) -> str:
        """The framework of the tensors: "torch", "cupy" or "numpy"."""
        return self._framework

    @property
    def held(self) -> int:
        """Batches of this feed whose slots are in use now."""
        return self._maker.held

    @property
    def copied(self) -> int:
        """Batches that came as copies because the trainer held too many slots; see `SlotsHeldWarning`."""
        return self._copied

    @property
    def wait_seconds(self) -> float:
        """Total seconds that iteration waited for batches: the time that a faster feed would save."""
        return self._wait_seconds

    def _take(self) -> Any:
        """The next batch of the library as the maker's `take` gives it, also in `_taken`; None after the last epoch."""
        out = self._out
        library = self._library
        while True:
            self._check_open()
            if out.value is None:
                result = library.pf_next_info_quick(self._handle, 0, self._out_ref, self._maker.info_ref)
                if result == Code.DEADLINE_EXCEEDED:
                    result = self._wait()
                if library._messages:
                    library.drain_log()
                if result:
                    if result == Code.OUT_OF_RANGE:
                        return None
                    self._check_open()
                    raise library.error(result)
            try:
                self._taken = self._maker.take(out)
            except Error:
                self._check_open()  # a signal handler may have closed it under the maker
                raise
            if self._taken is not None:
                self._group_pending = False
                return self._taken

    def _wait(self) -> int:
        """pf_next for as long as it takes, in slices."""
        begin = time.perf_counter()
        slice_ms = _FIRST_SLICE_MS
        try:
            while True:
                waited = time.perf_counter() - begin
                if self._timeout is not None:
                    slice_ms = max(0, min(slice_ms, math.ceil((self._timeout - waited) * 1000)))
                self._check_open()  # a signal handler may have closed it
                if self._closing:
                    self._end()
                    raise Error(Code.CANCELLED, "the feed was closed by another thread while this one waited for a batch")
                result: int = self._library.pf_next_info(self._handle, slice_ms, self._out_ref, self._maker.info_ref)
                if result != Code.DEADLINE_EXCEEDED:
                    return result
                late = self._library.error(result)
                self._library.drain_log()
                if slice_ms == 0:
                    raise DeadlineExceededError(
                        late.code, f"the feed of {describe(self._spec)} had no batch within timeout={self._timeout:g} seconds ({late})"
                    )
                _daemon.revive(self._address)
                self._tell(waited)
                slice_ms = _SLICE_MS
                self._check_open()
                self._reconnects = self._get_info().reconnects
                self._seen = self._look()
        finally:
            self._seen = None
            self._wait_seconds += time.perf_counter() - begin

    def _look(self) -> Any:
        """The position of the feed, for other threads that ask while this one waits for a batch."""
        raise NotImplementedError

    def _look_beside_waits(self) -> Any:
        """What `_look` says; while another thread waits for a batch, what it said then, at once."""
        patience = 0.0
        while not self._lock.acquire(timeout=patience):
            seen = self._seen
            if seen is not None:
                return seen
            patience = _LOOK_S  # that thread is doing something short, or is about to wait
        try:
            self._check_open()
            return self._look()
        finally:
            self._lock.release()

    def _tell(self, waited: float) -> None:
        """Says once why no batch may be coming."""
        if self._group_pending and waited >= _GROUP_PATIENCE_S:
            self._group_pending = False
            logger.warning(
                "group %r has not started after %.0f s: it starts when group_size=%d feeds have joined; `pinfeed status` shows how many have",
                self._spec["group"],
                waited,
                self._spec["group_size"],
            )

    def _count_copied(self, held: int) -> None:
        """The batch that is about to be given is a copy: `held` slots would be in use with its own."""
        self._library.pf_count_copied_quick(self._handle)
        self._copied += 1
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{held - 1} of the {self._slots} slots of the feed of {describe(self._spec)} are held by batches that are still referred to: this batch "
                "is a copy, and later ones will be too until some are freed. Keep copies of what is needed longer (images.clone()), or "
                "raise slots; zero_copy=False always copies. Whatever shares a batch's memory holds its slot: slices too, what .cpu() or .numpy() made "
                "without copying, and what autograd saved for a backward pass",
                SlotsHeldWarning,
                stacklevel=5,
            )

    def _unclaimed(self) -> Optional[Tuple[int, ...]]:
        """Epoch, index and so on of a batch that the library gave and the trainer has not got."""
        if self._taken is not None:
            info: Tuple[int, ...] = self._taken.info
            return info
        return self._maker.next_info() if self._out.value is not None else None

    def _drop_unclaimed(self) -> None:
        self._taken = None
        if self._out.value is not None:
            handle, self._out.value = self._out.value, None
            self._library.pf_batch_release(handle)

    def _forget(self) -> None:
        self._drop_unclaimed()

    def __del__(self) -> None:
        if "_taken" in self.__dict__:  # else the constructor failed before
            self._drop_unclaimed()  # held, it would keep the session's memory for the life of the process
        super().__del__()
