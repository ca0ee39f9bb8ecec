# SPDX-License-Identifier: Apache-2.0
"""A batch's memory in the hands of other frameworks, by DLPack and NumPy's array interface."""

import ctypes
import gc
import os
import subprocess
import sys
import threading

import numpy
import pytest

from pinfeed._feed import dlpack
from pinfeed._feed.dlpack import DTYPES, RawTensor


class Owner:
    """Memory that counts as lent until this object ends."""

    def __init__(self, content):
        self.buffer = ctypes.create_string_buffer(bytes(content), max(len(content), 1))
        self.alive = []

    def lease(self):
        class Lease:
            def __init__(self, alive, buffer):
                self.alive = alive
                self.buffer = buffer
                alive.append(1)

            def __del__(self):
                self.alive.pop()

        return Lease(self.alive, self.buffer)

    def raw(self, shape, dtype, writable=True):
        nbytes = int(numpy.prod(shape)) * DTYPES[dtype].bits // 8
        return RawTensor(self.lease(), ctypes.addressof(self.buffer), nbytes, shape, dtype, writable)


def code_of(name):
    return next(code for code, entry in DTYPES.items() if entry.name == name)


NUMPY_NAMES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_numpy_takes_every_type(name):
    expected = numpy.arange(24).astype(name).reshape(2, 3, 4)
    owner = Owner(expected.tobytes())
    raw = owner.raw((2, 3, 4), code_of(name))
    assert raw.dtype == name and raw.nbytes == expected.nbytes
    taken = numpy.from_dlpack(raw)
    assert taken.dtype == expected.dtype and (taken == expected).all()
    assert numpy.asarray(raw).ctypes.data == raw.address
    assert (numpy.asarray(raw) == expected).all()
    del raw
    gc.collect()
    assert owner.alive == [1]
    del taken
    gc.collect()
    assert owner.alive == []
    assert not dlpack._exported


@pytest.mark.parametrize("name", ["uint8", "int64", "float16", "bfloat16", "float32", "float64"])
def test_torch_shares_the_memory(name):
    torch = pytest.importorskip("torch")
    owner = Owner(bytes(range(96)) * 2)
    raw = owner.raw((3, 4), code_of(name))
    taken = torch.from_dlpack(raw)
    assert taken.dtype == getattr(torch, name) and tuple(taken.shape) == (3, 4) and taken.data_ptr() == raw.address
    part = taken[1]
    del raw, taken
    gc.collect()
    assert owner.alive == [1]
    part.zero_()
    assert owner.buffer.raw[: 4 * part.element_size()] == (bytes(range(96)) * 2)[: 4 * part.element_size()]
    box = [part]
    del part
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert owner.alive == []


def test_and_back():
    torch = pytest.importorskip("torch")
    owner = Owner(numpy.arange(6, dtype="f4").tobytes())
    tensor = torch.from_dlpack(owner.raw((2, 3), code_of("float32")))
    array = numpy.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert owner.alive == [1] and array[1, 2] == 5
    del array
    gc.collect()
    assert owner.alive == []


def test_jax_takes_it():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = pytest.importorskip("jax")
    owner = Owner(numpy.arange(6, dtype="f4").tobytes())
    taken = jax.dlpack.from_dlpack(owner.raw((2, 3), code_of("float32")))
    assert taken.shape == (2, 3) and float(taken.sum()) == 15
    del taken
    gc.collect()
    assert owner.alive == []


def test_a_capsule_nobody_takes():
    owner = Owner(b"1234")
    raw = owner.raw((4,), code_of("uint8"))
    capsule = raw.__dlpack__()
    newer = raw.__dlpack__(max_version=(1, 1))
    assert "dltensor_versioned" in repr(newer) and len(dlpack._exported) == 2
    del capsule, newer, raw
    gc.collect()
    assert owner.alive == [] and not dlpack._exported


def test_tensors_of_one_shape_have_memory_and_ends_of_their_own():
    """What describes a shape is made once."""
    owners = [Owner(bytes([number] * 6)) for number in range(3)]
    arrays = [numpy.from_dlpack(owner.raw((2, 3), code_of("uint8"))) for owner in owners]
    other = numpy.from_dlpack(owners[0].raw((3, 2), code_of("uint8")))
    assert [array.tolist() for array in arrays] == [[[number] * 3] * 2 for number in range(3)] and other.shape == (3, 2)
    del arrays[1]
    gc.collect()
    assert [owner.alive for owner in owners] == [[1, 1], [], [1]]
    dlpack._described.cache_clear()
    assert arrays[0].tolist() == [[0] * 3] * 2 and numpy.from_dlpack(owners[1].raw((2, 3), code_of("uint8"))).tolist() == [[1] * 3] * 2
    del arrays, other
    gc.collect()
    assert [owner.alive for owner in owners] == [[], [], []] and not dlpack._exported


def test_the_versioned_struct():
    raw = Owner(b"123456").raw((2, 3), code_of("uint8"), writable=False)
    capsule = raw.__dlpack__(max_version=(1, 0))
    pointer = dlpack._capsule_pointer(id(capsule), b"dltensor_versioned")
    managed = dlpack._ManagedVersioned.from_address(pointer)
    assert (managed.major, managed.flags) == (1, 1)
    assert managed.tensor.data == raw.address and managed.tensor.ndim == 2
    assert [managed.tensor.shape[0], managed.tensor.shape[1]] == [2, 3]
    assert [managed.tensor.strides[0], managed.tensor.strides[1]] == [3, 1]
    assert (managed.tensor.code, managed.tensor.bits, managed.tensor.lanes) == (1, 8, 1)
    # The layout of dlpack.h 1.0 on 64-bit machines.
    assert dlpack._ManagedVersioned.tensor.offset == 32 and ctypes.sizeof(dlpack._DLTensor) == 48
    # Take it over as a consumer does: rename, later call the deleter.
    rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
    used = b"used_dltensor_versioned"
    assert rename(capsule, used) == 0
    del capsule
    assert pointer in dlpack._exported
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(pointer)
    assert pointer not in dlpack._exported


def test_read_only_memory():
    raw = Owner(b"1234").raw((4,), code_of("uint8"), writable=False)
    with pytest.raises(BufferError, match="read-only"):
        raw.__dlpack__()
    array = numpy.asarray(raw)
    assert not array.flags.writeable and array.tobytes() == b"1234"


@pytest.mark.parametrize("options", [{"stream": 1}, {"dl_device": (2, 0)}, {"copy": True}])
def test_what_cannot_be_had(options):
    raw = Owner(b"1234").raw((4,), code_of("uint8"))
    with pytest.raises(BufferError, match=next(iter(options))):
        raw.__dlpack__(**options)
    assert raw.__dlpack_device__() == (1, 0)
    assert numpy.from_dlpack(raw).tobytes() == b"1234"


@pytest.mark.parametrize("kept", [True, False])
def test_a_consumer_that_fails_tells_its_own_error(kept, capfd):
    owner = Owner(b"1234")
    raws = [owner.raw((2,), code_of("bfloat16"))]
    with pytest.raises((RuntimeError, BufferError, TypeError)) as caught:  # of the consumer's own; NumPy has no such type
        numpy.from_dlpack(raws[0] if kept else raws.pop())
    assert "bfloat16" in str(caught.value) or "nsupported" in str(caught.value)
    del caught
    raws.clear()
    gc.collect()
    assert owner.alive == [] and not dlpack._exported
    assert "ignored" not in capfd.readouterr().err


def test_empty_tensors():
    assert numpy.from_dlpack(Owner(b"").raw((3, 0), code_of("float32"))).shape == (3, 0)


def test_tensors_that_outlive_the_interpreter():
    """They are destroyed by the interpreter's last steps, and by another thread after it."""
    code = """
import atexit, ctypes, numpy, sys
from pinfeed._feed import dlpack
buffer = ctypes.create_string_buffer(64)
raw = dlpack.RawTensor(buffer, ctypes.addressof(buffer), 64, (64,), 2, True)
kept = [numpy.from_dlpack(raw), numpy.from_dlpack(raw)]
sys.kept_until_the_end = numpy.from_dlpack(raw)
unclaimed = raw.__dlpack__()
sys.unclaimed = raw.__dlpack__()
atexit.register(lambda: print("leaving", len(kept)))
try:
    import torch
    kept.append(torch.from_dlpack(raw))
    sys.torch_kept = torch.from_dlpack(raw)
except ImportError:
    pass
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith("leaving")
