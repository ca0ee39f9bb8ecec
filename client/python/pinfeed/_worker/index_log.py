# SPDX-License-Identifier: Apache-2.0
"""The index log: which indices each batch has, written by the trainer and read by the workers.

In: the lists of indices of a sampler, in order. Out: the list of any batch, in any process that has the descriptor.

The log is a memory file. It begins with the number of batches once that is known, and with the number of those that
nobody needs any more. Then comes a ring of entries, one per batch, then the pickled lists one after another. The file
only grows. The memory of lists that nobody needs any more is returned to the system by punching holes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import io
import os
import pickle
import struct
import sys
import weakref
from typing import Any, Callable, Iterator, Optional, cast

from .._base.errors import Code, Error, ResourceExhaustedError
from .batch_memory import END

ENTRIES = 4096  # of the ring
MAX_IN_FLIGHT = 4000  # batches, which leaves entries for those that the daemon keeps

_NUMBER = struct.Struct("<Q")
_END_OFFSET, _CONSUMED_OFFSET = 0, 8
_ENTRY = struct.Struct("<QQQ")  # the batch's number plus 1, offset, length
_UNKNOWN_END = 2**64 - 1
_RING = 64  # its offset
_DATA = (_RING + ENTRIES * _ENTRY.size + 4095) // 4096 * 4096
_PUNCH_BYTES = 1 << 20  # holes are punched in steps of this size
_PAGE = 4096
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2


class IndexLog:
    """The writing side. Owns the memory file. Threads: one at a time.

    Invariants: 1. an entry is written after what it refers to. 2. At most `ENTRIES` batches are appended and not
    consumed.
    """

    def __init__(self, first: int = 0) -> None:
        """`first`: the number of the first batch that will be appended."""
        with _limits_told():
            self._fd = os.memfd_create("pinfeed-index-log", os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._fd)
        self._close.atexit = False
        self._offset = _DATA
        self._punched = _DATA
        self._consumed = first
        self.appended = first  # the number of the next batch
        self.end: Optional[int] = None  # the number of batches of the epoch, once known
        _write(self._fd, _NUMBER.pack(_UNKNOWN_END), _END_OFFSET)
        _write(self._fd, _NUMBER.pack(first), _CONSUMED_OFFSET)

    def fileno(self) -> int:
        return self._fd

    def append(self, indices: Any) -> None:
        """Adds the next batch's indices, or its single index. Raises what pickling raises."""
        if self.appended - self._consumed >= ENTRIES:
            raise Error(Code.INTERNAL, f"the index log holds {ENTRIES} batches that are not consumed")
        stream = io.BytesIO()
        _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(indices)
        data = stream.getvalue()
        _write(self._fd, data, self._offset)
        _write(self._fd, _ENTRY.pack(self.appended + 1, self._offset, len(data)), _place(self.appended))
        self._offset += len(data)
        self.appended += 1

    def append_end(self) -> None:
        """Tells readers that there are no more batches."""
        self.end = self.appended
        _write(self._fd, _NUMBER.pack(self.end), _END_OFFSET)

    def consume(self, batch: int) -> None:
        """Declares that no batch before `batch` will be read again."""
        self._consumed = batch
        _write(self._fd, _NUMBER.pack(batch), _CONSUMED_OFFSET)
        offset = self._offset if batch >= self.appended else _read_entry(self._fd, batch)[1]
        last = offset // _PAGE * _PAGE
        if last - self._punched >= _PUNCH_BYTES:
            _punch(self._fd, self._punched, last - self._punched)
            self._punched = last

    def digest(self, batch: int) -> bytes:
        """Returns what `IndexLogReader.digest` does. Precondition: the batch is appended and not consumed."""
        _, offset, length = _read_entry(self._fd, batch)
        return _digest(os.pread(self._fd, length, offset))

    def close(self) -> None:
        self._close()


class IndexLogReader:
    """The reading side. Owns its descriptor. Threads: one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False

    def read(self, batch: int) -> Any:
        """Returns a batch's indices, or `END`. Raises Error (INTERNAL) if the batch is not in the log."""
        data = self._data(batch)
        return END if data is None else pickle.loads(data)

    def digest(self, batch: int) -> bytes:
        """Returns a hash of a batch's indices; empty at the end. Raises like `read`."""
        data = self._data(batch)
        return b"" if data is None else _digest(data)

    def _data(self, batch: int) -> Optional[bytes]:
        if batch >= self._number(_END_OFFSET):
            return None
        number, offset, length = _read_entry(self._fd, batch)
        if number != batch + 1:
            raise Error(Code.INTERNAL, f"batch {batch} is not in the index log, whose entry has batch {number - 1}")
        data = os.pread(self._fd, length, offset)
        if len(data) != length:
            raise Error(Code.INTERNAL, f"the index log has {len(data)} of the {length} bytes of batch {batch}")
        return data

    def consumed(self) -> int:
        """Returns the number of the first batch that may still be read."""
        return self._number(_CONSUMED_OFFSET)

    def _number(self, offset: int) -> int:
        (number,) = _NUMBER.unpack(os.pread(self._fd, _NUMBER.size, offset))
        return int(number)

    def close(self) -> None:
        self._close()


class _Pickler(pickle.Pickler):
    """Pickles of a tensor only what is in it. torch pickles all of the memory that a tensor is a part of."""

    def reducer_override(self, obj: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or type(obj) is not torch.Tensor or obj.layout is not torch.strided or obj.requires_grad:
            return NotImplemented
        if obj.dim() == 0 and obj.device.type == "cpu" and not obj.is_quantized:
            return _scalar, (obj.item(), str(obj.dtype)[len("torch.") :])
        return obj.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _scalar(value: Any, dtype: str) -> Any:
    import torch

    return torch.tensor(value, dtype=getattr(torch, dtype))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:8]


def _place(batch: int) -> int:
    return _RING + batch % ENTRIES * _ENTRY.size


def _read_entry(fd: int, batch: int) -> "tuple[int, int, int]":
    data = os.pread(fd, _ENTRY.size, _place(batch))
    if len(data) < _ENTRY.size:
        return 0, 0, 0
    number, offset, length = _ENTRY.unpack(data)
    return number, offset, length


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        with _limits_told():
            written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


_LIMITS = {
    errno.EMFILE: "open files (ulimit -n)",
    errno.ENFILE: "the host's open files (fs.file-max)",
    errno.EFBIG: "the size of files (ulimit -f)",
    errno.ENOMEM: "memory",
    errno.ENOSPC: "memory",
}


@contextlib.contextmanager
def _limits_told() -> Iterator[None]:
    """Says which limit the log is at."""
    try:
        yield
    except OSError as error:
        if error.errno not in _LIMITS:
            raise
        what = f"keep the indices of a DataLoader's batches in shared memory: {error.strerror}"
        raise ResourceExhaustedError(f"{what}; raise the limit of {_LIMITS[error.errno]} of this process") from error


@functools.lru_cache(maxsize=None)
def _fallocate() -> Optional[Callable[[int, int, int, int], int]]:
    function: Any = getattr(ctypes.CDLL(None), "fallocate64", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        function.restype = ctypes.c_int
    return cast("Optional[Callable[[int, int, int, int], int]]", function)


def _punch(fd: int, offset: int, length: int) -> None:
    """Returns the memory of a range to the system. Without that call the log only takes more memory."""
    fallocate = _fallocate()
    if fallocate is not None:
        fallocate(fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, offset, length)
