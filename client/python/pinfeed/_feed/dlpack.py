# SPDX-License-Identifier: Apache-2.0
"""A batch's memory as an object that other frameworks import by DLPack or NumPy's array interface, without a copy.

In: an address, a shape, an element type, and the object that keeps the memory alive. Out: `RawTensor`, which needs
neither NumPy nor PyTorch. The structs have the layout of DLPack's dlpack.h.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
from typing import Any, Dict, NamedTuple, Optional, Tuple

from .._base.dtypes import dense_strides

_CPU = (1, 0)  # kDLCPU, device 0
_CUDA = 2  # kDLCUDA


class ElementType(NamedTuple):
    dlpack_code: int
    bits: int
    name: str
    numpy: str  # type string. NumPy has none for bfloat16: its bits are shown as uint16


# By pf_dtype.
DTYPES: Dict[int, ElementType] = {
    1: ElementType(6, 8, "bool", "|b1"),
    2: ElementType(1, 8, "uint8", "|u1"),
    3: ElementType(0, 8, "int8", "|i1"),
    4: ElementType(1, 16, "uint16", "<u2"),
    5: ElementType(0, 16, "int16", "<i2"),
    6: ElementType(1, 32, "uint32", "<u4"),
    7: ElementType(0, 32, "int32", "<i4"),
    8: ElementType(1, 64, "uint64", "<u8"),
    9: ElementType(0, 64, "int64", "<i8"),
    10: ElementType(2, 16, "float16", "<f2"),
    11: ElementType(4, 16, "bfloat16", "<u2"),
    12: ElementType(2, 32, "float32", "<f4"),
    13: ElementType(2, 64, "float64", "<f8"),
    14: ElementType(5, 64, "complex64", "<c8"),
    15: ElementType(5, 128, "complex128", "<c16"),
}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_FLAG_READ_ONLY = 1

# Address of each exported struct -> what must live until its deleter is called.
_exported: Dict[int, Tuple[Any, ...]] = {}


_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


# The consumer calls this with a struct's address, on any thread; ctypes takes the GIL first. It is not a Python
# function, in which Ctrl-C could interrupt.
_delete = _exported.pop


# May run while the interpreter clears this module, so what it needs is bound as defaults.
def _drop_capsule(
    capsule: int,
    exported: Dict[int, Tuple[Any, ...]] = _exported,
    is_valid: Any = _capsule_is_valid,
    pointer: Any = _capsule_pointer,
) -> None:
    """Runs when a capsule dies. A capsule that was never consumed still has its first name; its struct is then dropped."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if is_valid(capsule, name):
            exported.pop(pointer(capsule, name), None)


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_deleter = _Deleter(_delete)
_destructor = _Destructor(_drop_capsule)

_deleter_address = ctypes.cast(_deleter, ctypes.c_void_p).value
_destructor_address = ctypes.cast(_destructor, ctypes.c_void_p).value
# Capsules borrow their names, and the C entry points may be called until the process ends: none of these is ever freed.
_names = (b"dltensor", b"dltensor_versioned")
for _immortal in (_deleter, _destructor, _delete, _drop_capsule, _names):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))


@atexit.register
def _at_exit() -> None:
    """Keeps tensors that outlive the interpreter from calling into it. Their deleter becomes a C function that does
    nothing, and their memory stays until the process ends.
    """
    if not _exported:
        return
    # Not NULL: DLPack allows NULL, but not every consumer checks for it. The function takes no argument, which C
    # calling conventions allow, and may be called without an interpreter.
    nothing = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    for kept in list(_exported.values()):
        kept[0].deleter = nothing
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


@functools.lru_cache(maxsize=256)  # a feed's tensors have few shapes
def _described(shape: Tuple[int, ...], dtype: int, device: Tuple[int, int], writable: bool, versioned: bool) -> Tuple[Any, bytes, Any]:
    """Returns the type of the struct for such a tensor, its content but for the address, and what that refers to."""
    managed: Any = _ManagedVersioned() if versioned else _Managed()
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = 0 if writable else _FLAG_READ_ONLY
    ndim = len(shape)
    shape_array = (ctypes.c_int64 * max(ndim, 1))(*shape)
    strides = (ctypes.c_int64 * max(ndim, 1))(*dense_strides(shape))
    tensor = managed.tensor
    tensor.device_type, tensor.device_id = device
    tensor.ndim = ndim
    tensor.code, tensor.bits, tensor.lanes = DTYPES[dtype].dlpack_code, DTYPES[dtype].bits, 1
    tensor.shape, tensor.strides = shape_array, strides
    managed.deleter = _deleter_address
    return type(managed), bytes(managed), (shape_array, strides)


class RawTensor:
    """A tensor in a slot, for any framework that supports DLPack: ``jax.dlpack.from_dlpack(raw)``,
    ``torch.from_dlpack(raw)``, ``numpy.from_dlpack(raw)``, ``numpy.asarray(raw)``. These calls do not copy unless
    the framework must.

    The tensor, and everything made from it, keeps its batch's slot: on any thread, also after the feed was closed.

    shape: the dimensions, starting with the batch's number of samples. dtype: the name, such as "uint8" or
    "bfloat16". writable: False for slots of shared feeds, which only consumers of DLPack 1.0 accept. nbytes: the
    length in bytes. address: of the first byte.
    """

    __slots__ = ("_capsule", "_device", "_dtype", "_owner", "address", "nbytes", "shape", "writable")

    def __init__(
        self, owner: Any, address: int, nbytes: int, shape: Tuple[int, ...], dtype: int, writable: bool, gpu: int = -1
    ) -> None:
        """`gpu`: the CUDA ordinal of the GPU with the memory; -1: host."""
        self._device = _CPU if gpu < 0 else (_CUDA, gpu)
        self._owner = owner
        # The newest capsule. A failing consumer drops it while its own exception is set, when no Python code can run.
        self._capsule: Any = None
        self._dtype = dtype
        self.address = address
        self.nbytes = nbytes
        self.shape = shape
        self.writable = writable

    def __del__(self) -> None:
        self._capsule = None  # here, where the interpreter has saved the current exception

    @property
    def dtype(self) -> str:
        return DTYPES[self._dtype].name

    def __repr__(self) -> str:
        return f"RawTensor(shape={self.shape}, dtype={self.dtype!r}, writable={self.writable})"

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self._device != _CPU:
            raise AttributeError("__array_interface__: this tensor is on a GPU")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": DTYPES[self._dtype].numpy,
            # An empty tensor may have address 0, which NumPy rejects. Nothing is read there.
            "data": (self.address or 1, not self.writable),
        }

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """Returns a capsule as defined by the array API standard. Raises BufferError for requests that would need a
        copy.
        """
        # A batch on a GPU was complete before it was published, so no consumer's stream has to wait.
        if self._device == _CPU and stream is not None and stream != -1:
            raise BufferError(f"stream={stream!r}: tensors on the host have no stream")
        if dl_device is not None and tuple(map(int, dl_device)) != self._device:
            raise BufferError(f"dl_device={dl_device}: this tensor is on device {self._device} and is not copied")
        if copy:
            raise BufferError("copy=True: copy the array that was made from this tensor")
        versioned = max_version is not None and max_version[0] >= 1
        if not versioned and not self.writable:
            raise BufferError(
                "this tensor is read-only (its slot is shared), which DLPack before 1.0 cannot express: use a newer consumer, "
                "or numpy.asarray(), or the tensors of the batch itself"
            )
        struct, content, arrays = _described(self.shape, self._dtype, self._device, self.writable, versioned)
        managed = struct.from_buffer_copy(content)
        managed.tensor.data = self.address
        address = ctypes.addressof(managed)
        _exported[address] = (managed, arrays, self._owner)
        try:
            capsule = self._capsule = _capsule_new(address, _names[versioned], _destructor_address)
            return capsule
        except BaseException:
            _exported.pop(address, None)
            raise
