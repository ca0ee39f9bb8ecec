# SPDX-License-Identifier: Apache-2.0
"""Makes tensors on the trainer's GPU of the library's batches.

In: a ``pf_batch*`` whose slot is on the GPU. Out: a `Batch` of tensors in the framework's own memory. Nothing waits:
one kernel writes all tensors, and the slot's release follows it on the framework's current stream.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .._base import abi
from .._base.checks import UINT32_MAX, Checks, to_integer
from .._base.dtypes import dense_strides
from .._base.errors import Code, Error, invalid
from .._base.optional_torch import capture_query, stream_query
from .batch import Batch, batch_class
from .batch_maker import MAX_PLAIN_FIELDS, Maker, Place, kind_of, sample_bytes, slot_batch_class
from .dlpack import RawTensor
from .lease import LEASES, Lease
from .ragged import Ragged


_MAX_SHAPES = 256  # whose strides are remembered: rows of packed fields come in any number


class Memory(NamedTuple):
    """A framework's memory on one GPU, as `DeviceBatchMaker` uses it."""

    dtype: Callable[[str], Any]  # by pinfeed's name; raises AttributeError or TypeError if the framework lacks it
    empty: Callable[[Tuple[int, ...], Any], Any]  # an uninitialised, dense tensor of a shape and dtype
    address: Callable[[Any], int]  # of a tensor's first byte
    stream: Callable[[], int]  # the current stream, as a CUstream
    lend: Callable[[RawTensor], Any]  # a tensor over memory owned by pinfeed
    copy: Callable[[Any], Any]  # of a tensor, in the order of the current stream
    is_capturing: Callable[[], bool]  # whether work for the current stream becomes part of a graph


def ordinal_of(checks: Checks, device: Any) -> int:
    """Returns the CUDA ordinal of the GPU that a user's `device` names; -1 for the host."""
    text = str(device)
    if device is None or text == "cpu":
        return -1
    number = text[5:] if text.startswith("cuda:") else str(to_integer(device))
    if text == "cuda":
        return _current_device()
    if number.isascii() and number.isdigit() and len(number) < 6:
        return int(number)
    checks.refuse("device", device, 'None, "cpu", "cuda", "cuda:0", a torch.device or the number of a GPU')
    return -1


def _current_device() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.current_device()) if torch.cuda.is_available() else 0


def torch_memory(ordinal: int) -> Memory:
    """Returns PyTorch's caching allocator on GPU `ordinal`."""
    import torch
    from torch.utils.dlpack import from_dlpack

    device = torch.device("cuda", ordinal)

    def empty(shape: Tuple[int, ...], dtype: Any) -> Any:
        return torch.empty(shape, dtype=dtype, device=device)

    def lend(raw: RawTensor) -> Any:
        # Given the tensor itself, torch first makes a Python object of its current stream, for which nothing has to wait.
        return from_dlpack(raw.__dlpack__() if raw.writable else raw)

    return Memory(
        dtype=lambda name: getattr(torch, name),
        empty=_quick_empty(torch, ordinal, empty) or empty,
        address=torch.Tensor.data_ptr,
        stream=stream_query(torch, device),
        lend=lend,
        copy=torch.Tensor.clone,
        is_capturing=capture_query(torch),
    )


def _quick_empty(torch: Any, ordinal: int, empty: Callable[[Tuple[int, ...], Any], Any]) -> Optional[Callable[[Tuple[int, ...], Any], Any]]:
    """Returns the function by which torch's compiled code allocates, in the way of `empty`; None if this torch has none that
    does. It is several times as quick, since it looks up nothing in torch's tables of operators.
    """
    try:
        allocate = torch._C._dynamo.guards._empty_strided_cuda
        current_device = torch._C._cuda_getDevice
        wanted = empty((2, 3), torch.int16)
        with torch.cuda.device(ordinal):
            made = allocate((2, 3), (3, 1), torch.int16)
    except (AttributeError, TypeError, RuntimeError, AssertionError):
        return None
    if (made.dtype, made.shape, made.stride(), made.device) != (wanted.dtype, wanted.shape, wanted.stride(), wanted.device):
        return None
    strides: Dict[Tuple[int, ...], Tuple[int, ...]] = {}  # by shape

    def quick_empty(shape: Tuple[int, ...], dtype: Any) -> Any:
        if current_device() != ordinal:  # it allocates there
            return empty(shape, dtype)
        steps = strides.get(shape)
        if steps is None:
            if len(strides) >= _MAX_SHAPES:
                strides.clear()
            steps = strides[shape] = dense_strides(shape)
        return allocate(shape, steps, dtype)

    return quick_empty


def cupy_memory(ordinal: int) -> Memory:
    """Returns CuPy's memory pool on GPU `ordinal`. CuPy has no bfloat16: use float16 or float32."""
    import cupy

    def empty(shape: Tuple[int, ...], dtype: Any) -> Any:
        with cupy.cuda.Device(ordinal):
            return cupy.empty(shape, dtype)

    def stream() -> int:
        with cupy.cuda.Device(ordinal):
            return int(cupy.cuda.get_current_stream().ptr)

    def copy(array: Any) -> Any:
        with cupy.cuda.Device(ordinal):
            return array.copy()

    def is_capturing() -> bool:
        with cupy.cuda.Device(ordinal):
            return bool(cupy.cuda.get_current_stream().is_capturing())

    return Memory(
        dtype=cupy.dtype, empty=empty, address=lambda array: int(array.data.ptr), stream=stream, lend=cupy.from_dlpack, copy=copy, is_capturing=is_capturing
    )


class _Output(NamedTuple):
    name: str
    kind: int  # a pf_dtype
    dtype: Any
    sample_shape: Tuple[int, ...]  # of a packed output: of a row
    extents: int = 0  # not 0: packed, and 1 + the number of the output of its extents


class DeviceBatchMaker(Maker):
    """Makes tensors on a GPU of one feed's batches. This is the hot path. Has the interface of `BatchMaker`.

    A slot is not held once its batch is written. Invariant: if `make` fails, the object from `take` still owns the
    batch.
    """

    def __init__(
        self, library: abi.Library, handle: Optional[ctypes.c_void_p], output_count: int, batch_size: int, memory: Memory, max_held: int = UINT32_MAX
    ) -> None:
        super().__init__(library, batch_size, max_held)
        self._write = library.pf_batch_write_quick
        self._memory = memory
        self._outputs: List[_Output] = []
        for number in range(output_count):
            tensor = library.tensor(library.pf_get_output, handle, number)
            name = tensor.name.decode("utf-8", "replace")
            self._outputs.append(
                _Output(name, tensor.dtype, self._dtype(name, tensor.dtype), tuple(tensor.shape[1 : tensor.dims]), tensor.extents)
            )
        self._packed = [number for number, output in enumerate(self._outputs) if output.extents]
        hidden = {output.extents - 1 for output in self._outputs}
        self._visible = [number for number in range(output_count) if number not in hidden]
        self._pointers = (ctypes.c_void_p * output_count)()
        self._set_pointers = struct.Struct(f"{output_count}P").pack_into
        self._shapes: Dict[int, List[Tuple[Tuple[int, ...], Any]]] = {}  # and dtypes, by the number of samples
        self._batch_type = batch_class([self._outputs[number].name for number in self._visible])

    def _dtype(self, name: str, dtype: int) -> Any:
        known = kind_of(name, dtype).name
        try:
            return self._memory.dtype(known)
        except (AttributeError, TypeError):
            raise invalid(f"tensor {name!r} is {known}, which the framework does not support: add ToDtype") from None

    def take(self, out: ctypes.c_void_p) -> Any:
        """Takes ownership of the batch in `out`, described by `info_ref`; see `BatchMaker.take`."""
        handle = out.value
        if handle is None:
            return None
        taken = _Taken(self.next_info())
        lease = Lease(taken, self._release)
        # No signal handler runs from here on.
        if out.value != handle:
            return None
        taken.handle = handle
        taken.lease = lease
        lease._as_parameter_ = handle
        LEASES[handle] = lease
        out.value = None
        return taken

    def give_back(self, taken: Any) -> None:
        if not isinstance(taken, _Taken):
            super().give_back(taken)
        elif taken.lease._as_parameter_ is not None and self._library.pf_batch_give_back(taken.handle) == Code.OK:
            taken.lease._as_parameter_ = None

    def make(self, taken: Any) -> Batch:
        """Returns the batch, with its writing and its slot's release queued on the current stream."""
        if taken.batch is None or not taken.results:
            memory = self._memory
            tensors, fields = self._allocate(taken)
            batch = self._build(taken.info, fields)
            pointers = self._pointers
            self._set_pointers(pointers, 0, *map(memory.address, tensors))
            stream = memory.stream()
            taken.batch = batch
            if self.closing:  # nobody gets the batch here: it is given back
                raise Error(Code.CANCELLED, "the feed was closed while a batch was made")
            # Calls the library and stores the result without a point where a signal handler could run, so a batch is
            # written once.
            taken.results.extend(map(self._write, (taken.handle,), (pointers,), (len(tensors),), (stream,)))
        if taken.results[0]:
            raise self._library.error(taken.results.pop())
        taken.lease._as_parameter_ = None  # the library has released it
        made: Batch = taken.batch
        return made

    def plain(self) -> Optional[Dict[str, Any]]:
        if self._packed or not self._outputs or len(self._outputs) > MAX_PLAIN_FIELDS:
            return None
        return {
            "info": self._info,
            "batch_type": self._batch_type,
            "samples": self._batch_size,
            "max_held": self.max_held,
            "write": self._write,
            "empty": self._memory.empty,
            "address": self._memory.address,
            "stream": self._memory.stream,
            "fields": [((self._batch_size,) + output.sample_shape, output.dtype, None, None) for output in self._outputs],
        }

    def _allocate(self, taken: Any) -> Tuple[List[Any], List[Any]]:
        """Returns memory for each output of the batch, and the values of the batch's fields."""
        empty, samples = self._memory.empty, taken.info[2]
        if not self._packed:
            shapes = self._shapes.get(samples)
            if shapes is None:
                shapes = self._shapes[samples] = [((samples,) + output.sample_shape, output.dtype) for output in self._outputs]
            tensors = [empty(shape, dtype) for shape, dtype in shapes]
            return tensors, tensors
        offsets = {number: self._row_offsets(taken.handle, number, samples) for number in self._packed}
        rows = [int(offsets[number][-1]) if number in offsets else samples for number in range(len(self._outputs))]
        tensors = [empty((count,) + output.sample_shape, output.dtype) for count, output in zip(rows, self._outputs)]
        return tensors, [Ragged(tensors[number], offsets[number]) if number in offsets else tensors[number] for number in self._visible]

    def _row_offsets(self, handle: int, number: int, samples: int) -> Any:
        """Returns the first row of each sample in a packed output, and the number of all rows. Waits for the GPU's answer."""
        import numpy

        offsets = numpy.empty(samples + 1, numpy.int64)
        self._library.check(self._library.pf_get_row_offsets(handle, number, offsets.ctypes.data))
        return offsets


class _Taken:
    """A batch that has yet to be written to the trainer's tensors."""

    __slots__ = ("__weakref__", "batch", "handle", "info", "lease", "leaving", "results")

    def __init__(self, info: Tuple[int, ...]) -> None:
        self.leaving = False
        self.info = info
        self.handle: Optional[int] = None
        self.lease: Any = None
        self.batch: Optional[Batch] = None
        self.results: List[int] = []  # of the one call that wrote the batch


class _Lent:
    """A slot in use. Its end returns the slot, in the order of `stream`."""

    info: Tuple[int, ...]
    address: int
    stream: ctypes.c_void_p
    leaving = False


class LentBatchMaker(DeviceBatchMaker):
    """Like DeviceBatchMaker, but tensors are views of the slot unless they are small.

    The slot is returned when the last reference to any view is gone, in the order of the stream that was current
    when the batch was taken. Work on other streams must be joined into that stream before. A batch that would leave
    the daemon too few slots is copied, as by DeviceBatchMaker.
    """

    def __init__(
        self,
        library: abi.Library,
        handle: Optional[ctypes.c_void_p],
        output_count: int,
        batch_size: int,
        memory: Memory,
        max_held: int,
        gpu: int,
    ) -> None:
        super().__init__(library, handle, output_count, batch_size, memory, max_held)
        if self._packed:
            raise invalid(
                f"zero_copy: the rows of field {self._outputs[self._packed[0]].name!r} are put in order by a copy: use zero_copy=None, or pad the field",
            )
        self._gpu = gpu
        self._places: List[Place] = []

    def _read_layout(self, handle: Optional[int], data: int) -> None:
        """Reads the layout from the first batch, completely or not at all."""
        places = []
        for number, output in enumerate(self._outputs):
            tensor = self._library.tensor(self._library.pf_get_tensor_quick, handle, number)
            shape = tuple(tensor.shape[1 : tensor.dims])
            if (tensor.dtype, shape) != (output.kind, output.sample_shape):
                raise invalid(
                    f"zero_copy: tensor {output.name!r} lies in the slot as {kind_of(output.name, tensor.dtype).name} {list(shape)}, but the "
                    "transforms change it, so it cannot be a view of the slot: use zero_copy=None",
                )
            length = sample_bytes(tensor)
            places.append(Place(output.name, output.kind, shape, tensor.data - data, length, bool(tensor.writable), self.is_small(length)))
        self._batch_type = slot_batch_class(places, self._memory.address, self._gpu)
        self._places = places

    def plain(self) -> Optional[Dict[str, Any]]:
        return None

    def take(self, out: ctypes.c_void_p) -> Any:
        handle = out.value
        info = self.next_info()
        if handle is None:
            return None
        if not self._places:
            self._read_layout(handle, info[6])
        if info[5] > self.max_held:
            return super().take(out)
        if self._memory.is_capturing():
            raise Error(
                Code.FAILED_PRECONDITION,
                "zero_copy: the current stream is being captured, and each launch of the graph would read a slot that has another batch by then; "
                "take batches outside of the capture, and copy them to the graph's inputs",
            )
        lent = _Lent()
        # The callback gets the weak reference as a third argument (NULL), which C calling conventions allow.
        owned = ctypes.c_void_p()
        lent.stream = ctypes.c_void_p(self._memory.stream())
        lease = Lease(lent, functools.partial(self._library.pf_batch_release_on_quick, owned, lent.stream))
        # No signal handler runs from here on.
        if out.value != handle:
            return None
        lent.info, lent.address = info, info[6]
        owned.value = handle
        LEASES[handle] = lease
        out.value = None  # the lease's now, also if the next line lacks memory
        self.live[handle] = lease
        return lent

    def make(self, taken: Any) -> Batch:
        if isinstance(taken, _Taken):
            batch = super().make(taken)
            batch._slot = None
            return batch
        samples, memory = taken.info[2], self._memory
        # Small tensors are copied on the stream that is current now. After an exception that may not be the stream at
        # the time of `take`.
        taken.stream.value = memory.stream()
        tensors = []
        for place in self._places:
            size, shape = samples * place.sample_bytes, (samples,) + place.sample_shape
            tensor = memory.lend(RawTensor(taken, taken.address + place.offset, size, shape, place.dtype, place.writable, self._gpu))
            tensors.append(memory.copy(tensor) if place.small else tensor)
        batch = self._build(taken.info, tensors)
        batch._slot = taken
        return batch


def memory_of(framework: str, ordinal: int) -> Memory:
    """Returns the memory of "torch" or "cupy" on a GPU."""
    return {"torch": torch_memory, "cupy": cupy_memory}[framework](ordinal)
