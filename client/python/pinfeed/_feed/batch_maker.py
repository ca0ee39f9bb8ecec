# SPDX-License-Identifier: Apache-2.0
"""Makes tensors of the library's batches.

In: a ``pf_batch*`` that this module releases. Out: a `Batch` of tensors. They are copies, or views of the slot that
share one object, whose end returns the slot.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type

from .._base import abi
from .._base.checks import UINT32_MAX
from .._base.errors import Code, Error, invalid
from .batch import Batch, batch_class
from .dlpack import DTYPES, ElementType, RawTensor
from .lease import LEASES, Lease
from .ragged import Ragged, gather

_BFLOAT16 = 11
# The layout of abi.BatchInfo after its size field, unpacked in one call.
_INFO_FORMAT = "@8xQQIIIIQ"
# Tensors that are smaller than this in a full batch are always copied, so that kept labels do not hold slots.
SMALL_BYTES = 64 * 1024
# The extension makes batches of so many fields at most.
MAX_PLAIN_FIELDS = 64
# What makes a tensor of an array: each function gets what the one before gave. None is written in Python, so that no signal
# handler runs while the extension makes a batch.
_Steps = Tuple[Callable[[Any], Any], ...]
# How to make a tensor: the shape, dtype and offset for numpy.ndarray, and the steps behind it.
_View = Tuple[Tuple[int, ...], Any, int, _Steps]


class Place(NamedTuple):
    """The place of a tensor in every slot of the feed."""

    name: str
    dtype: int
    sample_shape: Tuple[int, ...]
    offset: int
    sample_bytes: int
    writable: bool
    small: bool  # always copied
    array_dtype: Any = None  # for numpy.ndarray
    view: _Steps = ()  # to the user's view of the array
    copy: _Steps = ()  # to a copy
    rows: int = -1  # of a packed tensor: for which there is memory; the field is a `Ragged`
    extents: int = -1  # the offset of its extents


class Maker:
    """Base of the batch makers: the description of the next batch, the leases, the last step to a `Batch`.

    Owns the feed's `Batch` class. Borrows the library. Threads: one at a time, like the feed.
    """

    def __init__(self, library: abi.Library, batch_size: int, max_held: int) -> None:
        self._library = library
        self._batch_size = batch_size
        self.max_held = max_held  # a batch beyond this number is copied; UINT32_MAX if batches hold no slot
        self._release = library.pf_batch_release_quick
        self.live: Dict[int, Lease] = {}  # this feed's, by handle; also dead ones, until they are counted
        self.closing = False  # a signal handler has called the feed's `close` within `make`
        self._batch_type: Type[Batch] = Batch
        # Filled by pf_next_info, read by `make`.
        self._info = abi.BatchInfo()
        library.pf_batch_info_init(self._info, ctypes.sizeof(self._info))
        self.info_ref = ctypes.byref(self._info)
        self._unpack_info = struct.Struct(_INFO_FORMAT).unpack_from

    @property
    def held(self) -> int:
        """The number of batches whose slots are in use."""
        for handle, lease in list(self.live.items()):
            if lease() is None:
                self.live.pop(handle, None)
        return len(self.live)

    def give_back(self, taken: Any) -> None:
        """Gives what `take` returned back to the daemon for another member of the group, if it is the latest batch."""
        handle = next((handle for handle, lease in self.live.items() if lease() is taken), None)
        if handle is not None and self._library.pf_batch_give_back(handle) == Code.OK:
            del LEASES[handle], self.live[handle]  # which then release nothing

    def next_info(self) -> Tuple[int, ...]:
        """Returns what was written to `info_ref`: epoch, index, samples, skipped, last_of_epoch, held, data."""
        return self._unpack_info(self._info)

    def plain(self) -> Optional[Dict[str, Any]]:
        """Returns what the extension needs to make full batches as `make` does; None if it cannot. Once the layout is known."""
        return None

    def is_small(self, sample_bytes: int) -> bool:
        """Whether tensors with samples of this size are always copied."""
        return sample_bytes * self._batch_size < SMALL_BYTES

    def _build(self, info: Tuple[int, ...], tensors: List[Any]) -> Batch:
        batch: Batch = tuple.__new__(self._batch_type, tensors)
        batch.epoch, batch.index, _, batch.skipped, last_of_epoch, _, _ = info
        batch.last_of_epoch = last_of_epoch != 0
        return batch


class BatchMaker(Maker):
    """Makes tensors of one feed's batches in host memory. This is the hot path.

    Owns also the slot type. A batch takes two steps. `take` makes an object of its slot, whose end releases the
    batch exactly once, whatever happens. `make` makes views or copies of the slot; it may be called again if an
    exception interrupted it.
    """

    def __init__(
        self,
        library: abi.Library,
        tensor_count: int,
        batch_size: int,
        max_held: int,
        framework: str,
        zero_copy: Optional[bool],
        gpu: int = -1,
    ) -> None:
        """`gpu`: the GPU to copy torch tensors to if the daemon could not deliver there; -1: none."""
        import numpy

        super().__init__(library, batch_size, max_held)
        self._numpy = numpy
        self._framework = framework
        self._zero_copy = zero_copy
        self._gpu = gpu
        self._tensor_count = tensor_count
        self._places: List[Place] = []
        self._packed: List[int] = []  # the numbers of packed fields
        self._views: Dict[Tuple[int, bool], List[_View]] = {}  # by number of samples, and whether all are copies
        self._slot_type: Any = None  # from _slot_class
        self._copies = False
        self._read_only = False

    def take(self, out: ctypes.c_void_p) -> Any:
        """Takes ownership of the batch in `out`, described by `info_ref`, and returns its slot. Sets `out` to NULL.
        Returns None if a signal handler closed the feed or took the batch meanwhile.
        """
        handle = out.value
        info = self._unpack_info(self._info)
        if handle is None:
            return None
        if not self._places:
            self._read_layout(handle, info[6])
        slot: Any = self._slot_type.from_address(info[6])
        lease = Lease(slot, self._release)
        # Python runs signal handlers only at calls and backward jumps. There are none from here on.
        if out.value != handle:
            return None
        slot.info = info
        lease._as_parameter_ = handle
        LEASES[handle] = lease
        out.value = None  # the lease's now, also if the next line lacks memory
        self.live[handle] = lease
        return slot

    def make(self, slot: Any) -> Batch:
        """Returns the batch of a slot."""
        info = slot.info
        copied = self._copies or info[5] > self.max_held
        views = self._views.get((info[2], copied)) or self._make_views(info[2], copied)
        # An array over a read-only buffer stays read-only. Over a plain buffer, the user could make it writable.
        buffer = self._numpy.frombuffer(memoryview(slot).toreadonly(), "u1") if self._read_only else slot
        ndarray = self._numpy.ndarray
        tensors = [_apply(steps, ndarray(shape, dtype, buffer, offset)) for shape, dtype, offset, steps in views]
        for number in self._packed:
            place = self._places[number]
            tensors[number] = self._gather(place, tensors[number], ndarray((info[2], 2), "<i8", buffer, place.extents))
        batch = self._build(info, tensors)
        batch._slot = None if copied else slot
        return batch

    def plain(self) -> Optional[Dict[str, Any]]:
        if self._packed or not self._places or len(self._places) > MAX_PLAIN_FIELDS:
            return None
        return {
            "info": self._info,
            "batch_type": self._batch_type,
            "array": self._numpy.ndarray,
            "samples": self._batch_size,
            "max_held": self.max_held,
            "copies": self._copies,
            "read_only": self._read_only,
            "slot_bytes": ctypes.sizeof(self._slot_type),
            "fields": list(self._views.get((self._batch_size, self._copies)) or self._make_views(self._batch_size, self._copies)),
        }

    def _make_views(self, samples: int, copied: bool) -> List[_View]:
        """Returns how to make the tensors of a batch with that many samples. The library guarantees that a feed's
        layout never changes.
        """
        views: List[_View] = [
            ((samples,) + place.sample_shape, place.array_dtype, place.offset, place.copy if copied or place.small else place.view)
            if place.rows < 0
            else ((place.rows,) + place.sample_shape, place.array_dtype, place.offset, ())
            for place in self._places
        ]
        self._views[samples, copied] = views
        return views

    def _gather(self, place: Place, values: Any, extents: Any) -> Ragged:
        ragged = gather(values, extents, place.name)
        return Ragged(_apply(place.copy if self._gpu >= 0 else place.view, ragged.values), ragged.offsets)

    def _read_layout(self, handle: Optional[int], data: int) -> None:
        """Reads the layout from the first batch."""
        library = self._library
        tensors = [library.tensor(library.pf_get_tensor_quick, handle, number) for number in range(self._tensor_count)]
        self._read_only = not all(tensor.writable for tensor in tensors)
        places = []
        hidden = {tensor.extents - 1 for tensor in tensors if tensor.extents}
        for number, tensor in enumerate(tensors):
            if number in hidden:
                continue
            name = tensor.name.decode("utf-8", "replace")
            length = sample_bytes(tensor)
            small = self.is_small(length) or tensor.extents != 0
            array_dtype, view, copy = (self._torch if self._framework == "torch" else self._array)(name, tensor.dtype, small)
            places.append(
                Place(
                    name,
                    tensor.dtype,
                    tuple(tensor.shape[1 : tensor.dims]),
                    tensor.data - data,
                    length,
                    bool(tensor.writable),
                    small,
                    array_dtype,
                    view,
                    copy,
                    tensor.shape[0] if tensor.extents else -1,
                    tensors[tensor.extents - 1].data - data if tensor.extents else -1,
                )
            )
        self._copies = (
            self._gpu >= 0
            or self._zero_copy is False
            or (self._zero_copy is None and self._read_only)
            or all(place.small for place in places)
        )
        if self._copies:
            self.max_held = UINT32_MAX
        if self._framework == "torch":
            self._read_only = False  # torch has no read-only tensors and would warn about each
        self._batch_type = slot_batch_class(places, self._address, self._gpu)
        length = max(
            tensor.data - data + (tensor.bytes if tensor.extents else sample_bytes(tensor) * self._batch_size) for tensor in tensors
        )
        self._slot_type = _slot_class(max(length, 1))
        self._packed = [number for number, place in enumerate(places) if place.rows >= 0]
        self._places = places

    def _address(self, tensor: Any) -> int:
        return int(tensor.data_ptr() if self._framework == "torch" else tensor.ctypes.data)

    def _array(self, name: str, dtype: int, _small: bool) -> Tuple[Any, _Steps, _Steps]:
        array_dtype = self._numpy.dtype(kind_of(name, dtype).numpy)
        if dtype == _BFLOAT16:
            with contextlib.suppress(ImportError):  # without ml_dtypes: the bits as uint16
                import ml_dtypes

                array_dtype = self._numpy.dtype(ml_dtypes.bfloat16)
        return array_dtype, (), (self._numpy.ndarray.copy,)

    def _torch(self, name: str, dtype: int, small: bool) -> Tuple[Any, _Steps, _Steps]:
        import torch

        from_numpy = torch.from_numpy
        view: _Steps = (from_numpy,)
        array_dtype = self._numpy.dtype("<i2")
        if dtype == _BFLOAT16:
            view = (from_numpy, operator.methodcaller("view", torch.bfloat16))
        else:
            kind = kind_of(name, dtype)
            array_dtype = self._numpy.dtype(kind.numpy)
            try:
                from_numpy(self._numpy.empty(0, array_dtype))
            except TypeError:
                raise invalid(
                    f"tensor {name!r} is {kind.name}, which torch {torch.__version__} does not have: open with framework=\"numpy\", or a file of tokens "
                    "with sequence_length",
                ) from None
        if self._gpu >= 0:
            return array_dtype, view, (*view, operator.methodcaller("to", torch.device("cuda", self._gpu)))
        if small:
            return array_dtype, view, (self._numpy.ndarray.copy, *view)  # faster than clone for small tensors
        return array_dtype, view, (*view, torch.Tensor.clone)


def _apply(steps: _Steps, value: Any) -> Any:
    for step in steps:
        value = step(value)
    return value


def kind_of(name: str, dtype: int) -> ElementType:
    if dtype not in DTYPES:
        raise Error(Code.UNIMPLEMENTED, f"tensor {name!r} has element type {dtype}, which this package does not know: update it")
    return DTYPES[dtype]


def sample_bytes(tensor: Any) -> int:
    """Returns the bytes per sample of an `abi.TensorInfo`. The batch it describes may be empty."""
    shape: List[int] = tensor.shape[1 : tensor.dims]
    return math.prod(shape) * kind_of("", tensor.dtype).bits // 8


def _slot_class(length: int) -> Any:
    """Returns the type of a feed's slots in use: memory that Python does not own."""

    class Slot(ctypes.c_char * length):  # type: ignore[misc]
        info: Tuple[int, ...]
        leaving = False  # being returned to the trainer: see Feed
        address = property(ctypes.addressof)

    return Slot


def slot_batch_class(places: List[Place], address: Callable[[Any], int], gpu: int) -> Type[Batch]:
    """Like batch_class, for batches whose `_slot` is that of their views, or None. `address` returns the address of a tensor's first byte. `gpu`: the GPU
    that the tensors are on; -1: host.
    """

    def make_raw(batch: Any) -> Dict[str, RawTensor]:
        if "_slot" not in batch.__dict__:
            return {}  # derived from another batch
        slot, raw = batch._slot, {}
        for place, tensor in zip(places, batch):
            values = tensor.values if isinstance(tensor, Ragged) else tensor
            shape = tuple(values.shape)
            copied = slot is None or place.small
            owner, begin = (values, address(values)) if copied else (slot, slot.address + place.offset)
            raw[place.name] = RawTensor(owner, begin, shape[0] * place.sample_bytes, shape, place.dtype, copied or place.writable, gpu)
        return raw

    return type("Batch", (batch_class([place.name for place in places]),), {"_make_raw": make_raw, "__module__": Batch.__module__})
