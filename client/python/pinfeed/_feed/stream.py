# SPDX-License-Identifier: Apache-2.0
"""The batches of a feed in order, across epochs.

In: a feed's session. Out: its next batch once it is ready, and how long that took.
"""

from __future__ import annotations

import ctypes
import math
import time
import warnings
from typing import Any, Optional, Tuple, Union

from .._base import abi, daemon
from .._base.abi import logger
from .._base.checks import UINT32_MAX
from .._base.errors import Code, DeadlineExceededError, Error, SlotsHeldWarning, invalid
from .batch import Batch
from .batch_maker import BatchMaker
from .connection import POLL_S, Connection, Opened
from .device import DeviceBatchMaker, LentBatchMaker, memory_of
from .plain_next import make_next
from .spec import describe

# The length of one wait inside the library. Between waits, Python handles signals and the stream checks whether another
# thread closes the feed. The first wait is short; only after it is the position recorded for other threads.
_SLICE_MS = 50
_FIRST_SLICE_MS = 10
# How long a group may be incomplete before a warning. Each time it is so long again, there is another one.
_GROUP_PATIENCE_S = 5.0


class Stream(Connection):
    """The batches of an open feed. Invariant: an exception, even Ctrl-C, loses no batch: a batch from the library is in
    `_out`, then in `_taken`, until the trainer has it. Signal handlers may call any method.
    """

    def __init__(self, opened: Opened) -> None:
        # The pointer from pf_next while nothing owns it yet: an exception may occur in between.
        self._out = ctypes.c_void_p()
        self._out_ref = ctypes.byref(self._out)
        self._taken: Any = None  # from the maker's take, until the trainer has the batch
        self._quick: Any = None  # the extension's, from the first batch on; see plain_next
        self._quick_made = False
        self._making = False  # within `_make`
        self._output = opened.output
        self._warned = False
        self._copied = 0
        self._group_pending = opened.spec.get("group_size", 1) > 1  # no batch yet since the latest connection
        self._group_waits = 0  # warnings about that
        self._wait_seconds = 0.0
        super().__init__(opened)

    def _attach(self, opened: Opened) -> None:
        super()._attach(opened)
        library, handle = opened.library, opened.handle
        max_held = self._max_held()
        self._maker: Union[BatchMaker, DeviceBatchMaker]
        if self._device >= 0:
            memory = memory_of(opened.framework, self._device)
            if opened.zero_copy:
                if self._decode != "cpu":
                    raise invalid(f'zero_copy: True is not possible with decode="{self._decode}": the slots have encoded images; use None')
                if self._resident_bytes:
                    raise invalid("zero_copy: True is not possible with resident samples: the slots list them; use None")
                self._maker = LentBatchMaker(library, handle, self._output_count, self.batch_size, memory, max_held, self._device)
            else:
                self._maker = DeviceBatchMaker(library, handle, self._output_count, self.batch_size, memory)
        else:
            # If the daemon could not deliver to the GPU, the framework copies the tensors there.
            gpu = opened.ordinal
            self._maker = BatchMaker(library, self._tensor_count, self.batch_size, max_held, opened.framework, opened.zero_copy, gpu)
        self._quick, self._quick_made = None, False
        self._framework = opened.framework
        self._timeout = opened.timeout

    def _max_held(self) -> int:
        # One slot is left to the daemon: a plain loop still refers to the previous batch when it requests the next.
        # Members of a group share the other slots (decision 0023).
        return (self._slots - 1) // int(self._spec.get("group_size", 1))

    def _follow_session(self) -> None:
        """Another session may have another number of slots. Call after what may open one."""
        slots = self._get_info().slot_count
        if slots == self._slots:
            return
        self._slots = slots
        if self._maker.max_held != UINT32_MAX:  # batches hold slots
            self._maker.max_held = self._max_held()
            if self._quick is not None:
                self._quick.max_held = self._maker.max_held

    @property
    def framework(self) -> str:
        """The framework of the tensors: "torch", "cupy" or "numpy"."""
        return self._framework

    @property
    def held(self) -> int:
        """The number of batches of this feed whose slots are in use."""
        return self._maker.held + (int(self._quick.held) if self._quick is not None else 0)

    @property
    def copied(self) -> int:
        """The number of batches that were copied because the trainer held too many slots; see `SlotsHeldWarning`."""
        return self._copied

    @property
    def wait_seconds(self) -> float:
        """Seconds that iteration has waited for batches in total: what a faster feed would save."""
        return self._wait_seconds

    def _take(self) -> Any:
        """Returns the library's next batch as returned by the maker's `take`, also stored in `_taken`. None after the
        last epoch.
        """
        out = self._out
        library = self._library
        while True:
            self._check_open()
            if out.value is None:
                result = library.pf_next_info_quick(self._handle, abi.ONLY_LOOK, self._out_ref, self._maker.info_ref)
                if result == Code.DEADLINE_EXCEEDED:
                    result = self._wait()
                if result:
                    error = library.error(result)
                    library.drain_log()
                    self._check_open()  # a signal handler may have closed it just before the call
                    if result == Code.OUT_OF_RANGE:
                        return None
                    raise error
            if library._messages:
                library.drain_log()
            try:
                self._taken = self._maker.take(out)
            except Error:
                self._check_open()  # a signal handler may have closed the feed
                raise
            if self._taken is not None:
                self._group_pending, self._group_waits = False, 0
                return self._taken

    def _wait(self) -> int:
        """Calls pf_next, in slices, until it has a batch or fails."""
        begin = time.perf_counter()
        slice_ms = _FIRST_SLICE_MS
        try:
            while True:
                waited = time.perf_counter() - begin
                if self._timeout is not None:
                    slice_ms = max(0, min(slice_ms, math.ceil((self._timeout - waited) * 1000)))
                self._check_open()  # a signal handler may have closed the feed
                if self._closing:
                    self._end()
                    raise Error(Code.CANCELLED, "the feed was closed by another thread while this one waited for a batch")
                result: int = self._library.pf_next_info(self._handle, slice_ms, self._out_ref, self._maker.info_ref)
                if result != Code.DEADLINE_EXCEEDED:
                    self._follow_session()
                    return result
                late = self._library.error(result)
                self._library.drain_log()
                daemon.revive(self._address)
                if slice_ms == 0:
                    raise DeadlineExceededError(f"the feed of {describe(self._spec)} had no batch within timeout={self._timeout:g} seconds ({late})")
                self._check_wait()
                self._warn_of_incomplete_group(waited)
                slice_ms = _SLICE_MS
                self._check_open()
                reconnects = self._get_info().reconnects
                if reconnects != self._reconnects:  # the group has to come together again
                    self._group_pending, self._group_waits = self._spec.get("group_size", 1) > 1, 0
                self._reconnects = reconnects
                self._snapshot = self._take_snapshot()
        finally:
            self._snapshot = None
            self._wait_seconds += time.perf_counter() - begin

    def _check_wait(self) -> None:
        """Raises if it is pointless to wait on for a batch. Overridden by subclasses."""

    def _take_snapshot(self) -> Any:
        """Returns the feed's position, for other threads that ask while this one waits for a batch."""
        raise NotImplementedError

    def _current_snapshot(self) -> Any:
        """Returns `_take_snapshot()`, or, while another thread waits for a batch, the one that it recorded."""
        patience = 0.0
        while not self._lock.acquire(timeout=patience):
            snapshot = self._snapshot
            if snapshot is not None:
                return snapshot
            patience = POLL_S  # that thread does something short, or is about to wait
        try:
            self._check_open()
            return self._take_snapshot()
        finally:
            self._lock.release()

    def _warn_of_incomplete_group(self, waited: float) -> None:
        """Warns if the group has given no batch for a while, and then each time that the wait has doubled."""
        if not self._group_pending or waited < _GROUP_PATIENCE_S * 2**self._group_waits:
            return
        self._group_waits += 1
        restarted = (
            "; the daemon was restarted, so every member has to come back to where it was: one that has left the group, or is in another epoch, "
            "never does. Then stop the others, and continue all of them from a state"
        )
        counted = (
            "; a DataLoader has a group for each of its epochs, whose number stands behind #. A member that was started anew counts from 1, unless it continues "
            "from a state that another member took when the epoch before had ended"
        )
        logger.warning(
            "group %r has given this feed no batch for %.0f s: it starts when group_size=%d feeds have joined, and then goes on as its slowest "
            "members do; `pinfeed status` shows how many have joined, and what it waits for%s%s",
            self._spec["group"],
            waited,
            self._spec["group_size"],
            counted if "produced" in self._spec["dataset"] else "",
            restarted if self._reconnects else "",
        )

    def _count_copied(self, held: int) -> None:
        """Counts a batch that comes as a copy. `held` is the number of slots that would be in use with its own."""
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

    def _undelivered(self) -> Optional[Tuple[int, ...]]:
        """Returns epoch, index and so on of a batch that the library returned but the trainer does not have; else None."""
        if self._taken is not None:
            info: Tuple[int, ...] = self._taken.info
            return info
        return self._maker.next_info() if self._out.value is not None or self._extension_takes() else None

    def _make(self, taken: Any) -> Optional[Batch]:
        """Returns the batch of what `_take` returned. None if a signal handler has released that before. Closes the feed for one that calls `close`
        meanwhile.
        """
        self._making = True
        try:
            return self._maker.make(taken) if self._taken is taken else None
        finally:
            self._making = False
            self._end_if_closed()

    def _end_if_closed(self) -> None:
        """Closes the feed if a signal handler has called `close` where that could not be done."""
        if self._closing:
            self._end()

    def _postpone_end(self) -> bool:
        self._disarm()
        self._maker.closing = self._making
        return self._making or self._extension_takes()

    def _extension_takes(self) -> bool:
        """Whether this thread is within the extension's ``__next__``, in a signal handler."""
        return self._quick is not None and bool(self._quick.taking)

    def _make_quick(self) -> None:
        """Makes the extension's object, once the layout is known."""
        self._quick = make_next(self._library, self._handle, self._out, self._lock, self._maker.plain(), self._output)
        self._quick_made = True

    def _disarm(self) -> None:
        """Keeps the extension from taking batches until the next one was returned. Before the feed or its position changes."""
        if self._quick is not None:
            self._quick.disarm()

    def _release_undelivered(self, closing: bool = False) -> None:
        self._disarm()
        if self._extension_takes():
            self._quick.drop()
        taken, self._taken = self._taken, None
        gives_back = closing and self._spec.get("sharing") == "QUEUE"  # another member gets it
        if gives_back and taken is not None and not taken.leaving:
            self._maker.give_back(taken)
        if self._out.value is not None:
            handle, self._out.value = self._out.value, None
            if not gives_back or self._library.pf_batch_give_back(handle):
                self._library.pf_batch_release(handle)

    def _close_handle(self, handle: abi.FeedHandle) -> None:
        """Releases the batch that the trainer does not have: if held, it would keep the session's memory until the process ends."""
        try:
            if "_spec" in self.__dict__:  # otherwise the constructor failed early
                self._release_undelivered(closing=True)
        finally:
            super()._close_handle(handle)
