# SPDX-License-Identifier: Apache-2.0
"""`to_device`: tensors and arrays of this process's memory, copied to a GPU. `pinned_empty`: memory that is copied fastest.

In: any nesting of containers. Out: the same with torch tensors on the GPU, which arrive in the order of the caller's
stream.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .._base.checks import Checks, shown
from .._base.dtypes import all_in_c_order, dtype_name, has_layout_of_tensors, is_masked
from .._base.errors import InvalidArgumentError, UnavailableError, invalid
from .._base.gpu_errors import unusable
from .._base.optional_torch import torch_or_none
from .block import carve, item_bytes
from .._feed.device import ordinal_of
from .copier import IDLE, Copier, Sending, copier
from .tree import Tree

# Tensors of fewer bytes share one allocation and one copy.
PACKED_BYTES = 64 << 10
# Where they begin in it: as tensors of their own would.
ALIGNMENT = 512

# Tensors of so many bytes are allocated at a time, while those before are copied.
_STEP_BYTES = 64 << 20
# So many small tensors of one dtype are gathered by torch, in less time than it takes to look at each. One thread does it: so many bytes.
_GATHERED, _GATHERED_BYTES = 16, 16 << 20
# A single tensor of at most so many bytes takes the shortest way: what matters is when it arrives.
_QUICK_BYTES = 1 << 20

# What tells how a tensor is moved.
_FACTS = operator.attrgetter("dtype", "shape", "is_cpu", "requires_grad")
_EACH_FACT = [_DTYPE, _, _IS_CPU, _] = [operator.attrgetter(name) for name in ("dtype", "shape", "is_cpu", "requires_grad")]


class _Group(NamedTuple):
    """Dense sources of one dtype and shape, in the host's memory."""

    dtype: Any
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]  # None: C order
    size: int  # bytes of each
    ids: List[int]
    addresses: List[int]


def to_device(tree: Any, device: Any = "cuda", *, non_blocking: bool = False, pack: bool = True) -> Any:
    """Returns `tree` with its torch tensors and NumPy arrays as torch tensors on a GPU. Needs no daemon.

    tree: a tensor or an array; or lists, tuples, dicts, named tuples, dataclasses and other containers of them, in any
    nesting. Objects with a method ``to``, such as batches of other libraries, are asked to move themselves. All else
    stays as it is: numbers, strings, arrays of strings or objects. Arrays of other libraries (JAX, CuPy) are refused. A
    tensor that occurs twice is copied once; two tensors over the same memory become two. Tensors that are on the device
    already are returned as they are. Those that need a gradient, are sparse or on another GPU, and subclasses, move by
    their own ``to``.

    device: "cuda", "cuda:1", a torch.device or the number of a GPU. With "cpu", nothing is copied that is there.

    The call returns when the sources have been read, so that they may change. The bytes may then still be on the
    way, but are there for all that the caller's current stream does next. Work that the stream had before delays
    them only if the ring of page-locked memory is full (64 MiB), or a source is page-locked.

    non_blocking: does not wait for sources in page-locked memory (`pinned_empty`). They are kept until the GPU has
    read them. Do not write to them until then; nothing can detect that.

    pack: tensors of less than 64 KiB share one allocation on the GPU, which lives as long as any of them. It also
    is what ``torch.save`` saves of each: save ``tensor.clone()``. ``pack=False`` gives each memory of its own.

    Threads: any. Raises UnavailableError without CUDA or PyTorch; InvalidArgumentError for a GPU that is not there,
    arrays of a dtype that PyTorch lacks, masked arrays, arrays of other libraries, modules, and containers that contain
    themselves or cannot be made anew;
    Error (FAILED_PRECONDITION) while the current stream captures a graph, and in a forked child of a process that
    has used the GPU.
    """
    known = _known.get(device) if type(device) in _known_types else None
    if known is not None and type(tree) is known.tensor:
        quick = _quick(tree, known, non_blocking)
        if quick is not None:
            return quick
    torch = _torch("to_device")
    ordinal = _ordinal(device)
    import numpy

    walked = Tree(tree, (torch.Tensor, torch.nn.Parameter, numpy.ndarray))
    if ordinal < 0:
        home: Any = torch.device("cpu")
        move = _Move(torch, home)
        moved = {key: move.at_home(value) for key, value in walked.tensors.items()}
    else:
        gpu = _copier(ordinal, f"to_device: device={shown(device)}", 'With device="cpu", tensors stay in the host\'s memory')
        home = gpu.streams.device
        _remember(torch, device, gpu)
        moved = _Move(torch, home).to_gpu(walked.tensors, gpu, non_blocking, pack)
    return walked.rebuilt(moved, lambda node: node.to(home))


def pinned_empty(shape: Any, dtype: Any = "float32") -> Any:
    """Returns an uninitialised torch tensor in page-locked memory, which `to_device` copies fastest. Its ``numpy()`` is
    an array over the same memory.

    dtype: a name, or a dtype of torch or NumPy. The memory is of torch's pool, which gets it back when the tensor
    goes and no copy reads it: page-locking takes some 0.3 ms per MiB, so keep the tensors that are used again.
    Raises UnavailableError without CUDA or PyTorch, InvalidArgumentError for a dtype that PyTorch lacks.
    """
    torch = _torch("pinned_empty")
    kind = _torch_dtype(torch, dtype_name(dtype))
    if kind is None:
        raise invalid(f"pinned_empty: dtype={dtype!r}: PyTorch {torch.__version__} has no such dtype")
    gpu = _copier(_ordinal("cuda"), "pinned_empty needs a GPU", "torch.empty gives memory that is not page-locked")
    return gpu.streams.host_empty(shape, kind)


class _Known(NamedTuple):
    """What a single tensor needs on its way to a GPU."""

    tensor: type  # torch.Tensor
    grad_enabled: Callable[[], bool]
    gpu: Copier


_known: Dict[Any, _Known] = {}  # by the device, as users name it: looking it up takes less than reading the name
_known_types: Set[type] = set()
os.register_at_fork(after_in_child=_known.clear)  # the library refuses a forked child


def _remember(torch: Any, device: Any, gpu: Copier) -> None:
    """Remembers a GPU by its name, if that always is its name."""
    if str(device) != "cuda" and not hasattr(device, "item"):
        _known[device] = _Known(torch.Tensor, torch.is_grad_enabled, gpu)
        _known_types.add(type(device))


def _quick(tensor: Any, known: _Known, non_blocking: bool) -> Any:
    """Returns a small tensor of plain memory of the host on the GPU, copied on the current stream. None if it is not such
    a tensor, or if the stream has work.
    """
    size = tensor.numel() * tensor.element_size()
    if not tensor.is_cpu or not 0 < size <= _QUICK_BYTES or (tensor.requires_grad and known.grad_enabled()):
        return None
    gpu = known.gpu
    if tensor.is_pinned():
        # torch waits for its own pool's memory before it uses it again, but knows no other.
        if gpu.streams.is_capturing() or (non_blocking and not _is_of_torchs_pool(tensor)):
            return None
        return gpu.streams.to(tensor, non_blocking)
    # The driver reads pageable memory before it returns, but only once a busy stream is done.
    return gpu.streams.to(tensor, True) if gpu.state() == IDLE else None


def _is_of_torchs_pool(tensor: Any) -> bool:
    """Returns whether page-locked memory is torch's own. False where this torch cannot tell."""
    return bool(hasattr(tensor, "untyped_storage") and tensor.untyped_storage().resizable())


def _torch(name: str) -> Any:
    torch = torch_or_none()
    if torch is None:
        raise UnavailableError(f"{name} needs PyTorch, which is not installed")
    return torch


def _ordinal(device: Any) -> int:
    if device is None:
        raise invalid('to_device: device: None names no device; "cuda", "cuda:0", a torch.device or the number of a GPU does')
    checks = Checks("to_device: ")
    ordinal = ordinal_of(checks, device)
    checks.raise_faults()
    return ordinal


def _copier(ordinal: int, call: str, instead: str) -> Copier:
    """Returns the copier of a GPU. `call` and `instead` are for the error if there is none: see `unusable`."""
    try:
        return copier(ordinal)
    except (InvalidArgumentError, UnavailableError) as error:
        raise unusable(call, error, instead) from error


@functools.lru_cache(maxsize=None)
def _torch_dtype(torch: Any, name: str) -> Any:
    """Returns torch's dtype of that name, or None."""
    kind = getattr(torch, name, None) if name else None
    return kind if isinstance(kind, torch.dtype) else None


class _Move:
    """One call of `to_device`. Borrows the sources. Threads: one."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._groups: Dict[Any, _Group] = {}
        self._kept: List[Any] = []  # copies of sources that were not dense
        self._moved: Dict[int, Any] = {}

    def at_home(self, source: Any) -> Any:
        """Returns a source as a torch tensor in the host's memory."""
        if isinstance(source, self._torch.Tensor):
            return source.to(self._device)
        array, kind = self._array(source)
        if kind is None:
            return array
        if not has_layout_of_tensors(array):
            array = array.copy()
        if array.itemsize > 8:
            return self._torch.from_numpy(array)
        # As bits: of bfloat16 and such, and of some of NumPy's own, as ulonglong, torch knows the values, but not the type.
        return self._torch.from_numpy(array.view(f"i{array.itemsize}")).view(kind)

    def to_gpu(self, sources: Dict[int, Any], gpu: Copier, non_blocking: bool, pack: bool) -> Dict[int, Any]:
        """Returns the tensors on the GPU, by the ids of their sources."""
        if pack and self._gather(list(sources), list(sources.values()), gpu):
            return self._moved
        self._sort(sources)
        if not self._groups:
            return self._moved
        stream = gpu.choose_stream("to_device")
        with gpu.scope(stream), Sending(gpu, stream) as sending:
            fresh = self._allocate(gpu.streams.empty, sending, pack)
            sending.finish(non_blocking, (list(sources.values()), self._kept))
        if stream == gpu.streams.side:
            gpu.streams.join(fresh)
        return self._moved

    def _gather(self, keys: List[int], tensors: List[Any], gpu: Copier) -> bool:
        """Moves many small tensors of one dtype and shape. Returns False, with nothing moved, for others: `torch.stack` takes no
        other shapes, layouts and names, and no tensors that need a gradient.
        """
        torch = self._torch
        if len(tensors) < _GATHERED or not {torch.Tensor, torch.nn.Parameter}.issuperset(map(type, tensors)):
            return False
        first = tensors[0]
        size = 0 if first.is_nested else first.numel() * item_bytes(torch, first.dtype)
        total = size * len(tensors)
        if not 0 < size < PACKED_BYTES or size % ALIGNMENT or total > _GATHERED_BYTES or first.dtype in _quantized(torch):
            return False
        if not all(map(_IS_CPU, tensors)) or list(map(_DTYPE, tensors)).count(first.dtype) != len(tensors):  # which stack would convert
            return False
        try:
            if not all_in_c_order(torch, first.shape, tensors):  # which keep their order
                return False
        except (RuntimeError, NotImplementedError):  # sparse ones have none
            return False
        stream = gpu.choose_stream("to_device")
        shape = tuple(first.shape)
        gathered = gpu.streams.host_empty((total,), torch.uint8)
        try:
            torch.stack(tensors, out=gathered.view(first.dtype).view(len(tensors), *shape))
        except RuntimeError:
            return False
        with gpu.scope(stream), Sending(gpu, stream) as sending:
            block = gpu.streams.empty((total,), torch.uint8)
            sending.add([gathered.data_ptr()], total, [block.data_ptr()], total)
            sending.finish(True, gathered)
            self._moved.update(zip(keys, carve(torch, block, first.dtype, shape, 0, size, len(tensors))))
        if stream == gpu.streams.side:
            gpu.streams.join([block])
        return True

    def _sort(self, sources: Dict[int, Any]) -> None:
        """Puts each source into its group, or moves it at once if it is none of plain memory of the host."""
        torch = self._torch
        plain = {torch.Tensor, torch.nn.Parameter}
        if plain.issuperset(map(type, sources.values())):
            keys, tensors = list(sources), list(sources.values())
        else:
            keys, tensors = [], []
            for key, source in sources.items():
                if type(source) in plain:
                    keys.append(key)
                    tensors.append(source)
                elif isinstance(source, torch.Tensor):
                    self._moved[key] = source.to(self._device)
                else:
                    self._add_array(key, source)
        if not tensors:
            return
        try:
            if _alike(tensors):
                self._add_tensors(keys, tensors)
                return
            facts: List[Any] = list(map(_FACTS, tensors))
        except RuntimeError:  # nested tensors have no shape
            facts = list(range(len(tensors)))
        begin = 0
        for _, run in itertools.groupby(facts):  # quicker than a dict: facts are slow to hash
            end = begin + sum(1 for _ in run)
            self._add_tensors(keys[begin:end], tensors[begin:end])
            begin = end

    def _add_tensors(self, keys: List[int], tensors: List[Any]) -> None:
        """Adds tensors of which `_FACTS` are the same."""
        torch, of, first = self._torch, self._torch.Tensor, tensors[0]
        dtype = first.dtype
        if not first.is_cpu or first.is_nested or dtype in _quantized(torch) or (first.requires_grad and torch.is_grad_enabled()):
            self._moved.update((key, tensor.to(self._device)) for key, tensor in zip(keys, tensors))
            return
        values = dtype.is_floating_point or dtype.is_complex  # whose bytes may be those of others
        try:
            dense = all_in_c_order(torch, first.shape, tensors) and not (values and any(map(of.is_neg, tensors)))
            dense = dense and not (dtype.is_complex and any(map(of.is_conj, tensors))) and not any(map(_has_names(torch), tensors))
            addresses = list(map(of.data_ptr, tensors)) if dense else []
        except (RuntimeError, NotImplementedError):  # a layout of other memory
            dense = False
        size = math.prod(first.shape) * item_bytes(torch, dtype)
        if dense:
            self._add(dtype, tuple(first.shape), None, size, keys, addresses)
            return
        for key, tensor in zip(keys, tensors):
            self._add_odd(key, tensor, size)

    def _add_odd(self, key: int, tensor: Any, size: int) -> None:
        """Adds a tensor that may be a view with gaps, of another order, of another layout, or whose bytes are not its
        values.
        """
        torch = self._torch
        if tensor.layout is not torch.strided or _has_names(torch)(tensor):
            self._moved[key] = tensor.to(self._device)
            return
        with torch.no_grad():
            tensor = tensor.detach().resolve_conj().resolve_neg()
            # The strides that it would have without gaps: those of torch's own `to`.
            if torch.empty_like(tensor, device="meta").stride() != tensor.stride():
                tensor = tensor.clone()
        self._kept.append(tensor)
        strides = None if all_in_c_order(torch, tensor.shape, [tensor]) else tuple(tensor.stride())
        self._add(tensor.dtype, tuple(tensor.shape), strides, size, [key], [tensor.data_ptr()])

    def _add_array(self, key: int, source: Any) -> None:
        array, kind = self._array(source)
        if kind is None:
            self._moved[key] = array
            return
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        self._kept.append(array)
        self._add(kind, array.shape, None, array.nbytes, [key], [array.__array_interface__["data"][0]])

    def _array(self, source: Any) -> Tuple[Any, Any]:
        """Returns an array in this machine's byte order, and its dtype in torch: None for strings and objects."""
        if is_masked(source):
            raise invalid(f"to_device: {_shown(source)} is masked, which a tensor cannot be: give its filled()")
        if source.dtype.kind in "SUOT":  # T: NumPy 2's StringDType
            return source, None
        kind = _torch_dtype(self._torch, source.dtype.name)
        if kind is None:
            raise invalid(f"to_device: {_shown(source)} has a dtype that PyTorch {self._torch.__version__} lacks: convert it with astype(), or leave it out")
        return source if source.dtype.isnative else source.astype(source.dtype.newbyteorder("=")), kind

    def _add(self, dtype: Any, shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], size: int, ids: Sequence[int], addresses: Sequence[int]) -> None:
        group = self._groups.setdefault((dtype, shape, strides), _Group(dtype, shape, strides, size, [], []))
        group.ids.extend(ids)
        group.addresses.extend(addresses)

    def _allocate(self, empty: Callable[[Tuple[int, ...], Any], Any], sending: Sending, pack: bool) -> List[Any]:
        """Makes the tensors, and sends what fills them. Returns what was allocated."""
        groups = list(self._groups.values())
        small = [group for group in groups if pack and group.strides is None and 0 < group.size < PACKED_BYTES]
        fresh = self._allocate_packed(empty, sending, small) if small else []
        alone = set(map(id, groups)).difference(map(id, small))
        for group in (group for group in groups if id(group) in alone):
            step = max(_STEP_BYTES // max(group.size, 1), 1)
            for begin in range(0, len(group.ids), step):
                made = [empty(group.shape, group.dtype) for _ in group.ids[begin : begin + step]]
                fresh += made
                if group.size:
                    sending.add(group.addresses[begin : begin + step], group.size, map(self._torch.Tensor.data_ptr, made), group.size)
                if group.strides is not None:
                    made = [tensor.as_strided(group.shape, group.strides) for tensor in made]
                self._moved.update(zip(group.ids[begin : begin + step], made))
        return fresh

    def _allocate_packed(self, empty: Callable[[Tuple[int, ...], Any], Any], sending: Sending, groups: List[_Group]) -> List[Any]:
        pitches = [-(-group.size // ALIGNMENT) * ALIGNMENT for group in groups]
        block = empty((sum(pitch * len(group.ids) for pitch, group in zip(pitches, groups)),), self._torch.uint8)
        begin, offset = block.data_ptr(), 0
        for pitch, group in zip(pitches, groups):
            count = len(group.ids)
            self._moved.update(zip(group.ids, carve(self._torch, block, group.dtype, group.shape, offset, pitch, count)))
            sending.add(group.addresses, group.size, range(begin + offset, begin + offset + pitch * count, pitch), pitch)
            offset += pitch * count
        return [block]


def _alike(tensors: List[Any]) -> bool:
    """Returns whether `_FACTS` are the same for all. Makes few objects, as these would start garbage collections."""
    for fact in _EACH_FACT:
        values = list(map(fact, tensors))
        if values.count(values[0]) != len(values):
            return False
    return True


@functools.lru_cache(maxsize=None)
def _has_names(torch: Any) -> Callable[[Any], bool]:
    """Returns a function that tells whether a tensor's dimensions have names, which later torches have no more."""
    found: Callable[[Any], bool] = getattr(torch.Tensor, "has_names", lambda tensor: False)
    return found


@functools.lru_cache(maxsize=None)
def _quantized(torch: Any) -> Any:
    names = ("quint8", "qint8", "qint32", "quint4x2", "quint2x4")
    return frozenset(getattr(torch, name) for name in names if hasattr(torch, name))


def _shown(array: Any) -> str:
    return f"an array of {array.dtype} with shape {list(array.shape)}"
