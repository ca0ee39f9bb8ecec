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
from ._connection import Connection, Opened, logger
from ._device import DeviceBatchMaker, LentBatchMaker, memory_of
from ._errors import Code, DeadlineExceededError, Error, SlotsHeldWarning
from ._spec import describe

# One wait inside the library. Between two, Python handles signals and this module looks whether the trainer starves itself.
_SLICE_MS = 200


# How long a group may be incomplete before that is told.
_GROUP_PATIENCE_S = 5.0


_REMEDIES = (
    "open it with zero_copy=False, keep copies (images.clone()), or raise slots. Whatever shares a batch's memory holds its slot: labels "
    "and slices too, what .cpu() or .numpy() made without copying, and what autograd saved for a backward pass"
)


class Stream(Connection):
    """An open feed's batches. Invariant: an exception, also Ctrl-C, loses no batch: what the library gave is in `_out`, then in `_taken`,
    until the trainer has it. Signal handlers may call anything of it."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        self._maker: Union[BatchMaker, DeviceBatchMaker]
        if self._device >= 0:
            memory = memory_of(opened.framework, self._device)
            if opened.zero_copy:
                self._maker = LentBatchMaker(opened.library, opened.handle, self._output_count, memory, self._device)
            else:
                self._maker = DeviceBatchMaker(opened.library, opened.handle, self._output_count, memory)
        else:
            # Where the daemon could not bring the tensors to the GPU, the framework does.
            move_to = f"cuda:{opened.ordinal}" if opened.ordinal >= 0 else None
            self._maker = BatchMaker(opened.library, self._tensor_count, self.batch_size, opened.framework, opened.zero_copy, move_to)
        self._framework = opened.framework
        self._timeout = opened.timeout
        # The pointer that pf_next gave and that nothing owns yet: an exception may come between.
        self._out = ctypes.c_void_p()
        self._out_ref = ctypes.byref(self._out)
        self._taken: Any = None  # what the maker's take gave, until the trainer has the batch
        self._warned = False
        self._group_pending = opened.spec.get("group_size", 1) > 1  # no batch came yet, and nothing was told of that
        self._wait_seconds = 0.0

    @property
    def framework(self) -> str:
        """Whose tensors it yields: "torch", "cupy" or "numpy"."""
        return self._framework

    @property
    def held(self) -> int:
        """Batches of this feed that are referred to now."""
        return self._maker.held

    @property
    def wait_seconds(self) -> float:
        """Seconds that iterating had to wait for batches, in all: what a faster feed would save."""
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
        try:
            while True:
                waited = time.perf_counter() - begin
                slice_ms = _SLICE_MS
                if self._timeout is not None:
                    slice_ms = max(0, min(slice_ms, math.ceil((self._timeout - waited) * 1000)))
                if self._handle is None:  # closed by a signal handler, or by the thread that had the lock
                    self._check_open()
                result: int = self._library.pf_next_info(self._handle, slice_ms, self._out_ref, self._maker.info_ref)
                if result != Code.DEADLINE_EXCEEDED:
                    return result
                self._library.drain_log()
                self._check_open()
                if self._closing:
                    raise Error(Code.CANCELLED, "the feed was closed by another thread while this one waited for a batch")
                if slice_ms == 0:
                    raise self._late()
                _daemon.revive(self._address)
                self._tell(waited)
        finally:
            self._wait_seconds += time.perf_counter() - begin

    def _late(self) -> Error:
        all_held = f": all its {self._slots} slots are held, so none could come; {_REMEDIES}" if self.held >= self._slots else ""
        # The library's own words say more when it is the daemon that is away.
        said = "" if all_held else f" ({self._library.error(Code.DEADLINE_EXCEEDED)})"
        return DeadlineExceededError(
            Code.DEADLINE_EXCEEDED, f"the feed of {describe(self._spec)} had no batch within timeout={self._timeout:g} seconds{all_held}{said}"
        )

    def _tell(self, waited: float) -> None:
        """Says once why no batch may be coming."""
        if self._group_pending and waited >= _GROUP_PATIENCE_S:
            self._group_pending = False
            logger.warning(
                "no batch of group %r for %.0f s: it starts when group_size=%d feeds have joined; `pinfeed status` shows how many have",
                self._spec["group"],
                waited,
                self._spec["group_size"],
            )
        if not self._warned and self.held >= self._slots:
            self._warned = True
            warnings.warn(
                f"all {self._slots} slots of the feed of {describe(self._spec)} are held by batches that are still referred to, so no further "
                f"one can come: {_REMEDIES}",
                SlotsHeldWarning,
                stacklevel=7,
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
