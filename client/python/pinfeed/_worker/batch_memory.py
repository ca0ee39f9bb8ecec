# SPDX-License-Identifier: Apache-2.0
"""The memory of one batch that a worker process hands to the trainer.

In: in the worker, a slot's memory and any object. Out: in the trainer, the same object, whose tensors are views of the
slot. The memory holds a header, then the data of the tensors, each aligned to 64 bytes or to pages, then a pickle of the object,
which refers to the tensors by offset, and then the worker's state, if a later one shall continue behind this batch. If
images are to be decoded by the daemon, a table of them and their files or paths are among the tensors' data. The header
is written last and has checksums of itself and of what follows the tensors, so the trainer notices memory that a worker
did not finish.

The slot belongs to processes of one user. Unpickling runs code of that user's choice, as in any DataLoader.

Long because: writer and reader are two sides of one layout, and what one writes is next to the check of the other.
"""

from __future__ import annotations

import bisect
import contextlib
import copyreg
import io
import math
import pickle
import struct
import sys
import traceback
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Type

import numpy

from .._base.dtypes import all_in_c_order
from .._base.errors import Code, Error
from .encoded import ADVICE, EncodedImage, Placed, Row, Totals

HEADER_BYTES = 64
ALIGNMENT = 64  # of tensors, in bytes from the slot's start
# Of tensors of so many bytes. NumPy's large arrays begin 16 bytes behind a page's start, torch's 64. A copy that is ahead of its source by less
# than 64 bytes, modulo 4096, takes a fifth longer: the processor takes its loads for loads of what it has just stored ("4K aliasing").
_LARGE_BYTES, _LARGE_ALIGNMENT = 64 << 10, 4096

_MAGIC = b"pf_batch"
_VERSION = 3
# Magic, version, kind, number, the content's offset and length, the state's length, the offset of the table of images (0: none), and the CRC-32 of
# content and state. The daemon reads the table's offset: see docs/protocol.md.
_FIELDS = struct.Struct("<8sIIQQQQQI")
_CHECKSUM = struct.Struct("<I")  # CRC-32 of the fields
_IMAGE = numpy.dtype([("sample", "<u8"), ("draw", "<u4"), ("kind", "<u4"), ("offset", "<u8"), ("length", "<u8")])  # a row of the table
_BATCH, _EXCEPTION, _END, _ELSEWHERE = 1, 2, 3, 4  # kinds of content

# Array kinds that a reference can describe: numbers, times and texts of fixed length.
_PLAIN_KINDS = "biufcmMSU"
# A trainer's loop would take the first three for its own end, and the others for a request to exit.
_NEVER_RAISED = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit)
_CUT = b"\n[... cut to fit into the slot ...]\n"


class _Sentinel:
    def __init__(self, meaning: str) -> None:
        self._meaning = meaning

    def __repr__(self) -> str:
        return f"<{self._meaning}>"


END = _Sentinel("the end of a worker's data")
"""What `read_batch` returns for `BatchWriter.finish_end`, and `IndexLogReader.read` behind the last batch."""
ELSEWHERE = _Sentinel("a batch in memory of its own")
"""What `read_batch` returns for `BatchWriter.finish_elsewhere`."""


class BatchTooLarge(Exception):
    """The memory of a slot does not suffice for a batch, which needs ``needed`` bytes."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class UnpickleError(Error):
    """What a batch is made of cannot be made in the trainer. `__cause__` says why."""


class BatchWriter:
    """Writes one batch into the memory of a slot.

    Without memory, or where it does not suffice, tensors go to private memory and only count. `finish` then knows what
    the batch needs, and `replay` copies it into memory of that size without running the dataset again.

    Borrows the memory, which must outlive the writer and the arrays from `allocate`. Threads: one at a time.

    Invariants:
    1. The memory's header is invalid from the constructor until all else is written.
    2. Offsets grow. Once an array did not fit, no later one lies in the slot.
    """

    def __init__(self, memory: Optional[memoryview] = None, number: int = 0) -> None:
        """`memory`: contiguous bytes; None: a dry batch, which lies in private memory only. `number`: the batch's."""
        self.state = b""  # the worker's behind this batch; set before finish
        self.images = Totals()  # those that the daemon decodes, for messages
        self._number = number
        self._memory = memory
        self._capacity = 0
        self._base = 0  # the memory's address
        if memory is not None:
            self._capacity = _check_memory(memory)
            memory[:HEADER_BYTES] = bytes(HEADER_BYTES)
            self._base = _address(numpy.frombuffer(memory, numpy.uint8))
        self._start()

    def _start(self) -> None:
        self._used = HEADER_BYTES
        self._private: List[Tuple[int, Any]] = []  # offset and array of what is not in the slot
        self._allocated: List[Tuple[int, int, int]] = []  # of `allocate`, in private memory: address, length, offset; sorted
        self._kind = 0  # set by finish
        self._table = 0  # the offset of the table of images
        self._content = b""
        self._content_offset = 0

    def allocate(self, shape: Tuple[int, ...], dtype: Any) -> Any:
        """Returns an array in the slot, with undefined content; in private memory if the slot is full.

        `finish` does not copy it, nor tensors and arrays that are views of it.
        """
        offset, array = self._take(shape, numpy.dtype(dtype))
        if self._private and self._private[-1][1] is array and array.nbytes:
            bisect.insort(self._allocated, (_address(array), array.nbytes, offset))
        return array

    def place_images(self, rows: Sequence[Row]) -> None:
        """Writes images for the daemon to decode. At most once, before `finish`."""
        if not rows:
            return
        self._table, table = self._take((len(rows) + 1,), _IMAGE)
        offset, files = self._take((sum(len(row.data) for row in rows),), numpy.dtype(numpy.uint8))
        table[0] = (len(rows), 0, 0, 0, 0)
        begin = 0
        for number, row in enumerate(rows, 1):
            end = begin + len(row.data)
            files[begin:end] = numpy.frombuffer(row.data, numpy.uint8)
            table[number] = (row.sample, row.draw, row.kind, offset + begin, end - begin)
            begin = end

    def finish(self, batch: Any) -> None:
        """Writes the batch.

        Raises BatchTooLarge if the slot has fewer. Raises what pickle raises for objects without a pickle. Raises
        TypeError for tensors that are not on the CPU, and RuntimeError for results of a computation that autograd
        records.
        """
        stream = io.BytesIO()
        _BatchPickler(stream, self).dump(batch)
        self._publish(_BATCH, stream.getvalue())

    def finish_error(self, error: BaseException, worker: int) -> None:
        """Writes an exception of worker number `worker` in place of a batch: `read_batch` raises it. A text that is too
        long for the slot loses its middle.
        """
        self._start()
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
        message = "".join(traceback.format_exception_only(kind, error)).strip()
        where = f"{kind.__name__} in pinfeed worker {worker}"
        full = where + message[len(name) :] if message.startswith(name) else f"{where}: {message}"
        if error.__traceback__ is not None:  # otherwise it is the worker's own, and its message says all
            full += "\n\nThe worker's traceback:\n" + "".join(traceback.format_exception(kind, error, error.__traceback__))
        text = full.encode("utf-8", "backslashreplace")
        try:
            kind_pickle = pickle.dumps(kind)
        except Exception:  # a class that is not importable
            kind_pickle = b""
        code = int(error.code) if isinstance(error, Error) else 0
        content = pickle.dumps((kind_pickle, code, text))
        excess = HEADER_BYTES + len(content) + len(self.state) - self._capacity
        if self._memory is not None and excess > 0:
            kept = max(len(text) - excess - len(_CUT), 0)
            text = text[: kept // 2] + _CUT + text[len(text) - kept // 2 :]
            content = pickle.dumps((kind_pickle, code, text))
        self._publish(_EXCEPTION, content)

    @property
    def needed(self) -> int:
        """Bytes of the finished batch."""
        return self._content_offset + len(self._content) + len(self.state)

    @property
    def dry(self) -> bool:
        """Whether it has no memory of a slot."""
        return self._memory is None

    @property
    def has_batch(self) -> bool:
        """Whether it is finished with a batch, and not with what stands for one."""
        return self._kind == _BATCH

    def finish_end(self) -> None:
        """Writes that the worker has no more data: `read_batch` returns `END`."""
        self._start()
        self._publish(_END, b"")

    def finish_elsewhere(self) -> None:
        """Writes that the batch is in memory of its own: `read_batch` returns `ELSEWHERE`."""
        self._start()
        self._publish(_ELSEWHERE, b"")

    def replay(self, memory: memoryview) -> None:
        """Copies the finished batch into other memory. For a dry batch, and after BatchTooLarge while this writer's own
        memory is still unchanged.

        Raises BatchTooLarge if that memory does not suffice either, and ValueError if there is no finished batch.
        """
        if not self._kind:
            raise ValueError("replay: the writer has no finished batch; call finish first")
        capacity = _check_memory(memory)
        memory[:HEADER_BYTES] = bytes(HEADER_BYTES)
        if self.needed > capacity:
            raise BatchTooLarge(self.needed)
        target = numpy.frombuffer(memory, numpy.uint8)
        if self._memory is not None:
            end = min(self._private[0][0] if self._private else self._content_offset, self._capacity)
            target[HEADER_BYTES:end] = numpy.frombuffer(self._memory, numpy.uint8)[HEADER_BYTES:end]
        for offset, array in self._private:
            target[offset : offset + array.nbytes] = array.reshape(-1).view(numpy.uint8)
        self._write(memory)

    def _take(self, shape: Tuple[int, ...], dtype: Any) -> Tuple[int, Any]:
        """Returns the offset of a new array in the slot, and the array."""
        if dtype.hasobject:
            raise TypeError(f"allocate: {dtype} holds references to Python objects, which cannot lie in shared memory")
        size = math.prod(shape) * dtype.itemsize
        alignment = ALIGNMENT if size < _LARGE_BYTES else _LARGE_ALIGNMENT
        offset = (self._used + alignment - 1) & -alignment
        end = offset + size
        self._used = (end + ALIGNMENT - 1) & -ALIGNMENT
        if end <= self._capacity:
            return offset, numpy.ndarray(shape, dtype, self._memory, offset)
        array: Any = numpy.empty(shape, dtype)
        self._private.append((offset, array))
        return offset, array

    def _find(self, address: int, length: int) -> Optional[int]:
        """Returns the offset of memory that `allocate` returned; None for other memory. Memory of the slot beyond what
        this batch uses is other memory, such as a tensor of an earlier batch that the dataset has kept.
        """
        offset = address - self._base
        if HEADER_BYTES <= offset and offset + length <= min(self._used, self._capacity):
            return offset
        number = bisect.bisect_right(self._allocated, (address, sys.maxsize, 0)) - 1
        if number >= 0:
            start, size, offset = self._allocated[number]
            if address + length <= start + size:
                return offset + address - start
        return None

    def _publish(self, kind: int, content: bytes) -> None:
        self._kind, self._content, self._content_offset = kind, content, self._used
        if self._memory is not None:
            if self.needed > self._capacity:
                raise BatchTooLarge(self.needed)
            self._write(self._memory)

    def _write(self, memory: memoryview) -> None:
        """Writes the content and then the header."""
        begin, length, more = self._content_offset, len(self._content), len(self.state)
        memory[begin : begin + length] = self._content
        memory[begin + length : begin + length + more] = self.state
        checksum = zlib.crc32(self.state, zlib.crc32(self._content))
        fields = _FIELDS.pack(_MAGIC, _VERSION, self._kind, self._number, begin, length, more, self._table, checksum)
        memory[:HEADER_BYTES] = fields + _CHECKSUM.pack(zlib.crc32(fields))


class BatchCopy:
    """The finished batch of a slot, in memory of this process."""

    images = Totals()  # not known

    def __init__(self, data: bytes) -> None:
        self._data = data

    def replay(self, memory: memoryview) -> None:
        """Like `BatchWriter.replay`."""
        needed, capacity = len(self._data), _check_memory(memory)
        memory[:HEADER_BYTES] = bytes(HEADER_BYTES)
        if needed > capacity:
            raise BatchTooLarge(needed)
        memory[HEADER_BYTES:needed] = self._data[HEADER_BYTES:]
        memory[:HEADER_BYTES] = self._data[:HEADER_BYTES]


def copy_batch(memory: memoryview, number: int) -> Optional[BatchCopy]:
    """Returns a copy of a slot's batch. None if the slot does not hold batch `number`."""
    try:
        header, _ = _read_content(memory)
    except Error:
        return None
    return BatchCopy(bytes(memory[: header.end])) if header.number == number else None


def read_tag(memory: Any) -> Tuple[int, bytes]:
    """Returns the number of the batch in a slot's memory, and the state of its worker behind it; b"" if it has none.
    Raises Error (INTERNAL) if the header is invalid. The state is valid if `read_batch` then finds a batch.
    """
    buffer = memoryview(_array_of(memory))
    header = _read_header(buffer)
    return header.number, bytes(buffer[header.begin + header.length : header.end])


def used_bytes(memory: Any) -> int:
    """Returns how many bytes of a slot's memory have something of the batch in it: all if its header is invalid."""
    try:
        return _read_header(memoryview(_array_of(memory))).end
    except Error:
        return len(memory)


def read_batch(memory: Any, move: Optional[Callable[[Any], Any]] = None, images: Any = None) -> Any:
    """Returns the batch in a slot's memory: a one-dimensional torch tensor or NumPy array of uint8.

    The tensors of the batch are views of the memory and keep its owner alive: `memory`, or the array or buffer that
    `memory` is a view of. Arrays are writable if the memory is. torch has no read-only tensors, and warns if the memory
    is a read-only array.

    `move` replaces each tensor, as by a copy on a GPU. It may return before the memory has been read. `images`: the tensor
    or array of the images that the daemon has decoded for the batch; None: it decodes none.

    Returns `END` if the worker has no more data, and `ELSEWHERE` if the batch is in memory of its own. Raises the
    worker's exception if it wrote one: of the same type where that can be made of one message, else RuntimeError; the
    message has the worker's traceback. Raises Error (INTERNAL) if there is no valid batch.
    """
    array = _array_of(memory)
    if array.dtype != numpy.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise TypeError(f"read_batch: the memory must be a contiguous array of uint8 with one dimension, not {array.dtype} {list(array.shape)}")
    header, content = _read_content(memoryview(array))
    if header.kind == _END:
        return END
    if header.kind == _ELSEWHERE:
        return ELSEWHERE
    if header.kind == _EXCEPTION:
        _raise(content)
    try:
        return _BatchUnpickler(content, _Reader(array, header.begin, move, images)).load()
    except Error:
        raise
    except Exception as error:
        raise UnpickleError(
            Code.INTERNAL,
            f"a worker's batch cannot be unpickled in the trainer: {type(error).__name__}: {error}; "
            "every class in a batch must be importable here, under the same name as in the worker",
        ) from error


def is_dense(torch: Any, tensor: Any) -> bool:
    """Whether a tensor's elements lie in CPU memory at the places that its strides tell."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not (hasattr(tensor, "has_names") and tensor.has_names())  # newer releases of torch have no named tensors
        and (type(tensor) is torch.Tensor or type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__)
    )


_ARRAY_DTYPES: Dict[Any, Tuple[Any, bool]] = {}
_SHARED_DTYPES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128".split()


def array_dtype(torch: Any, dtype: Any) -> Tuple[Any, bool]:
    """Returns the NumPy dtype for the memory of a torch dtype, and whether it only has the same size, as for bfloat16."""
    known = _ARRAY_DTYPES.get(dtype)
    if known is None:
        name = str(dtype).split(".")[-1]
        shared = name in _SHARED_DTYPES
        known = numpy.dtype(name if shared else f"int{8 * torch.empty(0, dtype=dtype).element_size()}"), not shared
        _ARRAY_DTYPES[dtype] = known
    return known


class _BatchPickler(pickle.Pickler):
    """Pickles a batch with references in place of tensors and arrays, whose data it puts into the slot.

    An object that occurs twice is written once. Two tensors that share memory outside of the slot are written twice.
    """

    def __init__(self, stream: io.BytesIO, writer: BatchWriter) -> None:
        super().__init__(stream, protocol=5)
        self._writer = writer
        # A process that has not imported torch has no tensors.
        self._torch: Any = sys.modules.get("torch")
        self._tensor: Any = getattr(self._torch, "Tensor", ())

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is self._tensor:
            return self._reduce_tensor(obj)
        if kind is numpy.ndarray:
            return self._reduce_array(obj)
        if isinstance(obj, self._tensor):
            return self._reduce_subclass(obj)
        if kind is Placed:
            return _Reader.images, (obj.first, obj.images)
        if kind is EncodedImage:
            raise TypeError(f"the batch has a pinfeed.EncodedImage that nothing decodes: {ADVICE}")
        return NotImplemented

    def _reduce_tensor(self, tensor: Any) -> Any:
        torch = self._torch
        if not is_dense(torch, tensor):
            _check_device(tensor)
            return NotImplemented  # torch reduces it to plain tensors or to bytes
        requires_grad = tensor.requires_grad
        if requires_grad:
            if not tensor.is_leaf:
                raise RuntimeError(
                    "the batch has a tensor that is the result of a computation with gradients, which end at the process: "
                    "call detach() in the dataset or collate_fn, or compute it in the trainer"
                )
            tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        shape = tuple(tensor.shape)
        count, size = tensor.numel(), tensor.element_size()
        strides: Optional[Tuple[int, ...]] = None
        length = count * size
        if not all_in_c_order(torch, shape, [tensor]):
            strides = tensor.stride()
            length = (1 + sum((extent - 1) * step for extent, step in zip(shape, tensor.stride()))) * size
        offset: Optional[int] = HEADER_BYTES
        if count:
            offset = self._writer._find(tensor.data_ptr(), length)
        if offset is None:
            if strides is not None:
                strides = torch.empty_like(tensor, device="meta").stride()  # dense, in the same order of dimensions
            length = count * size
            dtype, only_size = array_dtype(torch, tensor.dtype)
            offset, array = self._writer._take(shape if strides is None else (count,), dtype)
            copy = torch.from_numpy(array)
            # Not all of torch's dtypes can be copied, such as uint4.
            (copy if strides is None else copy.as_strided(shape, strides)).copy_(tensor.view(copy.dtype) if only_size else tensor)
        return _Reader.tensor, (offset, length, str(tensor.dtype)[len("torch.") :], shape, strides, requires_grad)

    def _reduce_subclass(self, tensor: Any) -> Any:
        """Reduces a subclass of Tensor to a plain tensor and its attributes, if it does not define how to pickle it."""
        torch, kind = self._torch, type(tensor)
        _check_device(tensor)
        ordinary = (
            is_dense(torch, tensor)
            and kind.__reduce_ex__ is torch.Tensor.__reduce_ex__
            and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
            and kind.__setstate__ is torch.Tensor.__setstate__
            and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
        )
        if not ordinary:
            return NotImplemented
        with torch._C.DisableTorchFunction():
            plain = tensor.as_subclass(torch.Tensor)
        return _Reader.subclass, (plain, kind, dict(vars(tensor)))

    def _reduce_array(self, array: Any) -> Any:
        dtype = array.dtype
        if dtype.kind not in _PLAIN_KINDS or numpy.dtype(dtype.str) != dtype or not array.nbytes:
            return NotImplemented
        writer = self._writer
        strides: Optional[Tuple[int, ...]] = None
        length = array.nbytes
        positive = True
        if not array.flags.c_contiguous:
            strides = array.strides
            positive = min(array.strides) >= 0
            length = dtype.itemsize + sum((extent - 1) * step for extent, step in zip(array.shape, array.strides))
        offset = writer._find(_address(array), length) if positive else None
        if offset is None:
            length = array.nbytes
            if array.flags.f_contiguous and strides is not None:
                offset, copy = writer._take(array.shape[::-1], dtype)
                copy[...] = array.T
            else:
                strides = None
                offset, copy = writer._take(array.shape, dtype)
                copy[...] = array
        return _Reader.array, (offset, length, dtype.str, array.shape, strides)


class _Reader:
    """Makes the views of one batch. A pickle names its methods; `_BatchUnpickler` binds them to the batch's reader.

    Every view keeps the memory alive.
    """

    def __init__(self, memory: Any, end: int, move: Optional[Callable[[Any], Any]], images: Any) -> None:
        self._memory = memory
        self._end = end  # of the tensors' data
        self._move = move
        self._images = images

    def array(self, offset: int, length: int, dtype: str, shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]]) -> Any:
        self._check(offset, length)
        return numpy.ndarray(shape, dtype, self._memory, offset, strides)

    def tensor(
        self, offset: int, length: int, dtype: str, shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], requires_grad: bool
    ) -> Any:
        import torch

        self._check(offset, length)
        kind = getattr(torch, dtype)
        if not length:
            tensor = torch.empty(shape, dtype=kind, device="cpu")
        else:
            array_kind, only_size = array_dtype(torch, kind)
            # A tensor's own storage ends with the tensor: torch.save writes whole storages.
            array: Any = numpy.ndarray(shape if strides is None else (length // array_kind.itemsize,), array_kind, self._memory, offset)
            tensor = torch.from_numpy(array)
            if only_size:
                tensor = tensor.view(kind)
            if strides is not None:
                tensor = tensor.as_strided(shape, strides)
        if self._move is not None:
            tensor = self._move(tensor)
        return tensor.requires_grad_() if requires_grad else tensor

    def images(self, first: int, count: int) -> Any:
        images = self._images
        if images is None or first < 0 or count < 0 or first + count > len(images):
            raise _damaged(f"images {first} to {first + count} are not among the {0 if images is None else len(images)} of the batch")
        part = images[first : first + count]
        if isinstance(part, numpy.ndarray):
            return part
        import torch

        _, only_size = array_dtype(torch, part.dtype)
        # A storage of its own, as for other tensors.
        tensor = torch.from_numpy(part.view(torch.int16).numpy()).view(part.dtype) if only_size else torch.from_numpy(part.numpy())
        return tensor if self._move is None else self._move(tensor)

    def subclass(self, plain: Any, kind: Any, attributes: Dict[str, Any]) -> Any:
        tensor = plain.as_subclass(kind)
        vars(tensor).update(attributes)
        return tensor

    def _check(self, offset: int, length: int) -> None:
        if offset < HEADER_BYTES or length < 0 or offset + length > self._end:
            raise _damaged(f"a tensor of {length} bytes at {offset} lies outside of the data, which ends at {self._end}")


class _BatchUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes, reader: _Reader) -> None:
        super().__init__(io.BytesIO(content))
        self._reader = reader

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name.startswith("_Reader."):
            return getattr(self._reader, name[len("_Reader.") :])
        return super().find_class(module, name)


class _Text(str):
    """A message that KeyError shows as it is, with its lines. KeyError shows the repr of its argument."""

    def __repr__(self) -> str:
        return str(self)


class _Header(NamedTuple):
    kind: int
    number: int  # of the batch
    begin: int  # of the content, behind which lies the state
    length: int
    state_length: int
    table: int  # of images
    checksum: int  # CRC-32 of content and state

    @property
    def end(self) -> int:
        return self.begin + self.length + self.state_length


def _array_of(memory: Any) -> Any:
    return memory if isinstance(memory, numpy.ndarray) else memory.numpy()


def _read_header(buffer: memoryview) -> _Header:
    """Raises Error (INTERNAL) if anything is invalid."""
    data = bytes(buffer[:HEADER_BYTES])  # a copy, which no process changes after the checks
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        raise _damaged("it has no header: the worker did not finish it")
    _, version, *fields = _FIELDS.unpack_from(data)
    if (zlib.crc32(data[: _FIELDS.size]),) != _CHECKSUM.unpack_from(data, _FIELDS.size):
        raise _damaged("the header's checksum is wrong")
    if version != _VERSION:
        raise _damaged(f"its format has version {version}, and this package reads version {_VERSION}")
    header = _Header(*fields)
    if header.begin < HEADER_BYTES or header.end > len(buffer):
        raise _damaged(f"its {header.end - header.begin} bytes at {header.begin} lie outside of the slot, which has {len(buffer)}")
    if header.kind not in (_BATCH, _EXCEPTION, _END, _ELSEWHERE):
        raise _damaged(f"it has the unknown kind {header.kind}")
    return header


def _read_content(buffer: memoryview) -> Tuple[_Header, bytes]:
    """Returns the header and a copy of the content. Raises Error (INTERNAL) if anything is invalid."""
    header = _read_header(buffer)
    content = bytes(buffer[header.begin : header.end])
    if zlib.crc32(content) != header.checksum:
        raise _damaged("the checksum of its pickle is wrong")
    return header, content[: header.length]


def _damaged(what: str) -> Error:
    return Error(
        Code.INTERNAL,
        f"the slot holds no valid batch: {what}; look for a worker that died or wrote beyond its arrays, "
        "check that workers and trainer run the same version of pinfeed, and start the loader again",
    )


def _raise(content: bytes) -> NoReturn:
    """Raises the exception that `finish_error` wrote."""
    kind_pickle, code, data = pickle.loads(content)
    text = data.decode("utf-8", "replace")
    try:
        kind = pickle.loads(kind_pickle) if kind_pickle else RuntimeError
    except Exception:  # a class that exists only in the worker
        kind = RuntimeError
    raise _rebuild(kind, code, text) from None


def _rebuild(kind: Type[BaseException], code: int, text: str) -> BaseException:
    """Returns an exception of that type with the text as its message; a RuntimeError if the type has other arguments,
    does not show the text, or would not reach the user.
    """
    make: Any = kind
    if not issubclass(kind, _NEVER_RAISED):
        attempts: List[Tuple[Tuple[Any, ...], Dict[str, Any]]] = [((_Text(text),), {}), ((), {"message": text})]
        if issubclass(kind, Error):
            attempts = [((Code(code), text), {})]
        for arguments, named in attempts:
            with contextlib.suppress(Exception):  # whatever a constructor raises for arguments that are not its own
                error = make(*arguments, **named)
                if type(error) is kind and text in str(error):
                    return error
    return RuntimeError(text)


def _check_device(tensor: Any) -> None:
    if tensor.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"the batch has a tensor on {tensor.device}, which a worker cannot hand to the trainer: return tensors on the CPU, "
            f"and call .to({str(tensor.device)!r}) in the trainer"
        )


def _check_memory(memory: memoryview) -> int:
    """Returns the memory's length in bytes."""
    if memory.readonly or memory.ndim != 1 or memory.itemsize != 1 or not memory.c_contiguous or memory.nbytes < HEADER_BYTES:
        raise ValueError(f"the memory of a batch must be writable contiguous bytes, at least {HEADER_BYTES} of them")
    return memory.nbytes


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
