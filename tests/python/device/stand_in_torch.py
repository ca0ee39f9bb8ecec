# SPDX-License-Identifier: Apache-2.0
"""PyTorch and CuPy for the GPU benchmark's Python, on a GPU that is the stand-in driver's: an import of this changes `torch` and makes a `cupy`.

Tensors are of PyTorch proper and lie in host memory; streams and events are the stand-in driver's; kernels do in Python what their names say, once
their arguments agree with the source. The benchmark's sizes become the least that still goes every way.
"""
import contextlib
import ctypes
import functools
import re
import sys
import types

import costs
import feeding
import numpy as np
import slots
import torch
from device_trainer import stand_in_memory
from pinfeed._feed import batch_maker, device as _device

driver = ctypes.CDLL("libcuda.so.1")


def check(result):
    assert result == 0, f"CUDA error {result}"


class Stream:
    def __init__(self, priority=0):
        handle = ctypes.c_void_p()
        check(driver.cuStreamCreateWithPriority(ctypes.byref(handle), 1, priority))
        self.cuda_stream = handle.value

    def wait_event(self, event):
        event.synchronize()

    def synchronize(self):
        check(driver.cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream)))


class Event:
    def __init__(self):
        self._handle = ctypes.c_void_p()
        check(driver.cuEventCreate(ctypes.byref(self._handle), 0))

    def record(self, stream=None):
        check(driver.cuEventRecord(self._handle, ctypes.c_void_p((stream or current[-1]).cuda_stream)))

    def synchronize(self):
        check(driver.cuEventSynchronize(self._handle))


@contextlib.contextmanager
def within(stream):
    current.append(stream)
    yield
    current.pop()


class ExternalStream:
    def __init__(self, pointer):
        assert pointer
        self.cuda_stream = pointer

    def __enter__(self):
        current.append(self)

    def __exit__(self, *error):
        current.pop()


def give_back(word, number):
    ctypes.c_uint64.from_address(word).value = number


def copy_out(source, target, count, done, word, number):
    assert ctypes.c_int32.from_address(done).value == 0
    ctypes.memmove(target, source, count * 16)
    if word:
        give_back(word, number)


class RawModule:
    """Functions of device code that can be launched with arguments of its types."""

    def __init__(self, code):
        self._code = code

    def get_function(self, name):
        (parameters,) = re.findall(rf'extern "C" __global__ void {name}\(([^)]*)\)', self._code)
        types_of = [np.uint64 if "*" in one or "long long" in one else np.uint32 for one in parameters.split(",")]

        def launch(grid, block, arguments):
            assert [type(one) for one in arguments] == types_of, name
            assert len(grid) == len(block) == 1 and block[0] <= 1024
            {"give_back": give_back, "copy_out": copy_out}[name](*map(int, arguments))

        return launch


def on_the_host(make):
    @functools.wraps(make)
    def made(*arguments, device=None, pin_memory=False, **options):
        assert device in (None, feeding.DEVICE)
        return make(*arguments, **options)

    return made


check(driver.cuInit(0))
context = ctypes.c_void_p()
check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(driver.cuCtxPushCurrent_v2(context))
current = [types.SimpleNamespace(cuda_stream=None)]
for name in ("empty", "empty_like", "randint", "randn", "zeros"):
    setattr(torch, name, on_the_host(getattr(torch, name)))
torch.cuda = types.SimpleNamespace(
    Stream=Stream, Event=Event, stream=within, synchronize=lambda: check(driver.cuCtxSynchronize()), get_device_name=lambda ordinal: "stand-in"
)
_device.torch_memory = stand_in_memory
batch_maker.SMALL_BYTES = 0  # of the small sizes below all tensors would be copies
sys.modules["cupy"] = types.SimpleNamespace(
    RawModule=RawModule, uint32=np.uint32, uint64=np.uint64, cuda=types.SimpleNamespace(ExternalStream=ExternalStream)
)

feeding.BATCH, feeding.MATRIX, feeding.STEPS = 4, 16, 4
slots.TURNS, slots.STEPS, slots.CALLS = 2, 4, 3
costs.ROUNDS, costs.STEPS, costs.TRY_STEPS = 2, 4, 4
