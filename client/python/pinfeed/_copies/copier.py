# SPDX-License-Identifier: Apache-2.0
"""Copies between this process's memory and its GPUs: the library's copiers, and torch's streams and memory.

In: addresses. Out: copies queued on a stream. One `Copier` a GPU, for the whole process.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import sys
import threading
from typing import Any, ContextManager, Deque, Dict, Iterable, List, Sequence, Tuple

from .._base import abi
from .._base.errors import Code, Error
from .._base.fork_locks import add_fork_lock
from .._base.gpu_errors import torch_fault
from .._base.optional_torch import capture_query, stream_query, torch_or_none

IDLE, BUSY, CAPTURING = range(3)
# So much is added before its copies begin, if they are such that the caller need not wait for.
_BEGIN_BYTES = 64 << 20


class TorchStreams:
    """PyTorch's allocator and streams on one GPU. Owns a stream beside those of the caller. Threads: any."""

    def __init__(self, ordinal: int) -> None:
        torch = torch_or_none()
        fault = torch_fault(ordinal)
        if fault is not None:
            raise fault
        self._cuda = torch.cuda
        self._empty = torch.empty
        self.device = torch.device("cuda", ordinal)
        self._side = torch.cuda.Stream(self.device)
        self.side = int(self._side.cuda_stream)
        self.current = stream_query(torch, self.device)
        self.is_capturing = capture_query(torch)

    def empty(self, shape: Tuple[int, ...], dtype: Any) -> Any:
        """Returns memory of the GPU for work on the current stream."""
        return self._empty(shape, dtype=dtype, device=self.device)

    def on_side(self) -> ContextManager[Any]:
        """Makes `side` the current stream."""
        scope: ContextManager[Any] = self._cuda.stream(self._side)
        return scope

    def join(self, tensors: Iterable[Any]) -> None:
        """Lets the current stream wait for `side`, and use tensors that were made on it."""
        caller = self._cuda.current_stream(self.device)
        caller.wait_stream(self._side)
        for tensor in tensors:
            tensor.record_stream(caller)

    def fork(self, tensors: Iterable[Any]) -> None:
        """Lets `side` wait for the current stream, and use tensors that were made on it."""
        self._side.wait_stream(self._cuda.current_stream(self.device))
        for tensor in tensors:
            tensor.record_stream(self._side)

    def to(self, tensor: Any, non_blocking: bool) -> Any:
        """Copies a tensor on the current stream, by torch."""
        return tensor.to(self.device, non_blocking=non_blocking)

    def event(self, stream: int) -> Any:
        """Returns an event behind what was queued on the current stream or on `side`."""
        return (self._side if stream == self.side else self._cuda.current_stream(self.device)).record_event()

    def host_empty(self, shape: Tuple[int, ...], dtype: Any) -> Any:
        """Returns page-locked memory of torch's pool, which gets it back once no copy uses it."""
        return self._empty(shape, dtype=dtype, device="cpu", pin_memory=True)  # not on torch's default device


class Copier:
    """Copies to one GPU. Owns the library's copier, which lives as long as the process. Threads: any.

    Invariant: sources that the GPU still reads are kept.
    """

    def __init__(self, ordinal: int, make_streams: Any) -> None:
        self._library = abi.load()
        options = abi.CopierOptions()
        self._library.pf_copier_options_init(options, ctypes.sizeof(options))
        options.device = ordinal
        self._handle = ctypes.c_void_p()
        # The driver first: its errors tell which GPUs there are.
        self._library.check(self._library.pf_copier_open(options, ctypes.byref(self._handle)))
        try:
            self.streams = make_streams(ordinal)
        except BaseException:
            self._library.pf_copier_close(self._handle)
            raise
        self._copy = self._library.pf_copy_to_device
        self._state = self._library.pf_copier_stream_state_quick
        self._lock = threading.Lock()
        self._kept: Deque[Tuple[Any, Any]] = collections.deque()  # an event, and the sources that are free behind it

    def state(self) -> int:
        """Returns whether the caller's stream is IDLE, BUSY or CAPTURING."""
        state = ctypes.c_int()
        self._library.check(self._state(self._handle, self.streams.current(), state))
        return state.value

    def choose_stream(self, name: str) -> int:
        """Returns the stream to copy on: the caller's if it has nothing to do, as nothing can overlap then; else `side`.
        Raises Error (FAILED_PRECONDITION) if the caller captures a graph; `name`: the function that it called.
        """
        state = self.state()
        if state == CAPTURING:
            raise Error(
                Code.FAILED_PRECONDITION,
                f"{name}: the current stream is being captured: a graph would repeat the copy from memory that is used again; call it before the capture",
            )
        return int(self.streams.current() if state == IDLE else self.streams.side)

    def scope(self, stream: int) -> ContextManager[Any]:
        """Makes a stream from `choose_stream` the current one."""
        if stream == self.streams.current():
            return contextlib.nullcontext()
        scope: ContextManager[Any] = self.streams.on_side()
        return scope

    def begin(self, copies: "CopyArray", stream: int) -> int:
        """Queues copies on a stream. When it returns, the sources have been read, but for page-locked ones: their number."""
        reading = ctypes.c_uint64()
        self._library.check(self._copy(self._handle, copies.address(), len(copies), stream, 1, reading))
        return reading.value

    def keep(self, event: Any, sources: Any) -> None:
        """Keeps sources until an event."""
        with self._lock:
            self._kept.append((event, sources))

    def let_go(self) -> None:
        """Lets go of the sources that the GPU has read."""
        done: List[Any] = []  # their ends may run code, so not under the lock
        with self._lock:
            while self._kept and self._kept[0][0].query():
                done.append(self._kept.popleft())


class CopyArray:
    """Copies as the library takes them: an array of pf_host_copy."""

    def __init__(self) -> None:
        self._columns = [array.array("Q") for _ in range(4)]

    def add(self, sources: Iterable[int], size: int, targets: Iterable[int], span: int, count: int) -> None:
        """Adds `count` copies of `size` bytes each, with zeros behind them up to `span`."""
        sizes, spans = (array.array("Q", (value,)) * count for value in (size, span))
        for column, values in zip(self._columns, (array.array("Q", sources), sizes, array.array("Q", targets), spans)):
            column += values

    def __len__(self) -> int:
        return len(self._columns[0])

    def address(self) -> int:
        """Returns the address of the array, which is valid until the next call."""
        self._array = array.array("Q", bytes(32 * len(self)))
        for number, column in enumerate(self._columns):
            self._array[number::4] = column
        return self._array.buffer_info()[0]


class Sending:
    """Copies on one stream. The first begin while others are added. After an error nothing reads the sources. Threads:
    one.
    """

    def __init__(self, copier: Copier, stream: int) -> None:
        self._copier = copier
        self._stream = stream
        self._copies, self._bytes = CopyArray(), 0
        self._reading = 0
        self._early = True  # copies begin before all are added

    def __enter__(self) -> "Sending":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None and self._reading:
            self._copier.streams.event(self._stream).synchronize()

    def add(self, sources: Sequence[int], size: int, targets: Iterable[int], span: int) -> None:
        """Adds copies of `size` bytes each, with zeros behind them up to `span`."""
        self._copies.add(sources, size, targets, span, len(sources))
        self._bytes += span * len(sources)
        if self._bytes >= _BEGIN_BYTES and self._early:
            self._begin()

    def _begin(self) -> None:
        reading = self._copier.begin(self._copies, self._stream)
        self._early = reading > 0  # others wait for threads, which are quicker with all copies than with some at a time
        self._reading += reading
        self._copies, self._bytes = CopyArray(), 0

    def finish(self, non_blocking: bool, sources: Any) -> None:
        """Returns when the sources have been read. With `non_blocking` it does not wait for page-locked ones, and keeps
        `sources` until then.
        """
        self._begin()
        if self._reading:
            event = self._copier.streams.event(self._stream)
            if non_blocking:
                self._copier.keep(event, sources)
            else:
                event.synchronize()
        self._copier.let_go()


_copiers: Dict[int, Copier] = {}  # a forked child keeps them: the library refuses it
_opening: threading.Lock
add_fork_lock(sys.modules[__name__], "_opening")
make_streams: Any = TorchStreams


def copier(ordinal: int) -> Copier:
    """Returns the process's copier of a GPU. Raises UnavailableError without CUDA, InvalidArgumentError if there is no
    such GPU.
    """
    found = _copiers.get(ordinal)
    if found is None:
        with _opening:
            found = _copiers.get(ordinal) or _copiers.setdefault(ordinal, Copier(ordinal, make_streams))
    return found
