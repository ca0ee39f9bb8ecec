# SPDX-License-Identifier: Apache-2.0
"""Batches of a feed one after the other, whatever their epochs.

What comes in: a feed's session. What goes out: its next batch, once there is one, and how long that took.
"""

from __future__ import annotations

import ctypes
import math
import time
import warnings
from typing import Optional, Union

from . import _abi
from ._batch import Batch, BatchMaker
from ._connection import Connection
from ._device import DeviceBatchMaker, LentBatchMaker, memory_of
from ._errors import Code, Error, SlotsHeldWarning
from ._rank import Rank
from ._spec import Spec

# One wait inside the library. Between two, Python handles signals and this module looks whether the trainer starves itself.
_SLICE_MS = 200


class Stream(Connection):
    """An open feed's batches. Invariant: an exception, also Ctrl-C, loses no batch."""

    def __init__(
        self,
        library: _abi.Library,
        handle: ctypes.c_void_p,
        spec: Spec,
        rank: Rank,
        framework: str,
        zero_copy: Optional[bool],
        timeout: Optional[float],
        address: str,
        ordinal: int,
    ) -> None:
        super().__init__(library, handle, spec, rank, address)
        self._maker: Union[BatchMaker, DeviceBatchMaker]
        if self._device >= 0:
            memory = memory_of(framework, self._device)
            if zero_copy:
                self._maker = LentBatchMaker(library, handle, self._output_count, memory, self._device)
            else:
                self._maker = DeviceBatchMaker(library, handle, self._output_count, memory)
        else:
            # Where the daemon could not bring the tensors to the GPU, the framework does.
            move_to = f"cuda:{ordinal}" if ordinal >= 0 else None
            self._maker = BatchMaker(library, self._tensor_count, self.batch_size, framework, zero_copy, move_to)
        self._framework = framework
        self._timeout = timeout
        # The pointer that pf_next gave and that no Batch owns yet: an exception may come between the two.
        self._out = ctypes.c_void_p()
        self._out_ref = ctypes.byref(self._out)
        self._warned = False
        self._wait_seconds = 0.0

    @property
    def framework(self) -> str:
        """Whose tensors it yields: "torch", "cupy" or "numpy"."""
        return self._framework

    @property
    def held(self) -> int:
        """Batches of this feed that are referred to now."""
        return len(self._maker.live)

    @property
    def wait_seconds(self) -> float:
        """Seconds that iterating had to wait for batches, in all: what a faster feed would save."""
        return self._wait_seconds

    def _take(self) -> Optional[Batch]:
        """The next batch of the library, or None after the last epoch."""
        out = self._out
        if out.value is None:
            library = self._library
            result = library.pf_next_info_quick(self._handle, 0, self._out_ref, self._maker.info_ref)
            if result == Code.DEADLINE_EXCEEDED:
                result = self._wait()
            if library._messages:
                library.drain_log()
            if result:
                if result == Code.OUT_OF_RANGE:
                    return None
                raise library.error(result)
        return self._maker.make(out)

    def _wait(self) -> int:
        """pf_next for as long as it takes, in slices."""
        begin = time.perf_counter()
        try:
            while True:
                slice_ms = _SLICE_MS
                if self._timeout is not None:
                    left = self._timeout - (time.perf_counter() - begin)
                    slice_ms = max(0, min(slice_ms, math.ceil(left * 1000)))
                result: int = self._library.pf_next_info(self._handle, slice_ms, self._out_ref, self._maker.info_ref)
                if result != Code.DEADLINE_EXCEEDED or slice_ms == 0:
                    return result
                self._library.drain_log()
                if self._closing:
                    raise Error(Code.CANCELLED, "the feed was closed by another thread while this one waited for a batch")
                held = self.held
                if held >= self._slots and not self._warned:
                    self._warned = True
                    warnings.warn(
                        f"all {self._slots} slots of the feed are held by batches that are still referred to, so no further one can come: "
                        "drop them, keep copies, or open the feed with more slots",
                        SlotsHeldWarning,
                        stacklevel=5,
                    )
        finally:
            self._wait_seconds += time.perf_counter() - begin

    def _drop_unclaimed(self) -> None:
        if self._out.value is not None:
            handle, self._out.value = self._out.value, None
            self._library.pf_batch_release(handle)

    def _forget(self) -> None:
        self._drop_unclaimed()
