# SPDX-License-Identifier: Apache-2.0
"""PyTorch on a GPU that is the stand-in driver's, as `pinfeed.to_device` uses it: its tensors are torch's of the host, over "device" memory.

The driver is that of this process: import this before anything loads another one.
"""
import contextlib
import ctypes
import weakref

import torch
from conftest import BUILD

# By its path, before libpinfeed asks for the name.
driver = ctypes.CDLL(str(BUILD / "tests" / "stand_in_cuda" / "libcuda.so.1"))


def check(result):
    assert result == 0, f"CUDA error {result}"


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def size(array):
    return ctypes.c_size_t(array.nbytes)


class Event:
    def __init__(self, stream, within):
        self._within = within
        self._handle = ctypes.c_void_p()
        check(driver.cuEventCreate(ctypes.byref(self._handle), 2))
        check(driver.cuEventRecord(self._handle, ctypes.c_void_p(stream)))

    def query(self):
        with self._within():
            result = driver.cuEventQuery(self._handle)
        assert result in (0, 600), f"CUDA error {result}"
        return result == 0

    def synchronize(self):
        with self._within():
            check(driver.cuEventSynchronize(self._handle))


class Streams:
    """What `pinfeed._copies.copier.TorchStreams` is; `log` says what was asked of it."""

    device = torch.device("cpu")

    def __init__(self, ordinal):
        context = ctypes.c_void_p()
        check(driver.cuInit(0))
        check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
        self._context = context
        self.caller, self.side = self._stream(), self._stream()
        self._current = [self.caller]
        self._scratch = ctypes.c_uint64()
        with self.within():
            check(driver.cuMemAlloc_v2(ctypes.byref(self._scratch), ctypes.c_size_t(64 << 20)))
        self.log = []
        self.allocated = []

    def caller_handle(self):
        return ctypes.c_void_p(self.caller)

    def side_handle(self):
        return ctypes.c_void_p(self.side)

    @contextlib.contextmanager
    def within(self):
        check(driver.cuCtxPushCurrent_v2(self._context))
        yield
        check(driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))

    def _stream(self):
        stream = ctypes.c_void_p()
        with self.within():
            check(driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0))
        return stream.value

    def keep_busy(self, copies=20):
        """Gives the caller's stream some 10 ms of work for each copy."""
        half = 32 << 20
        with self.within():
            for _ in range(copies):
                check(driver.cuMemcpyDtoDAsync_v2(self._scratch, ctypes.c_uint64(self._scratch.value + half), ctypes.c_size_t(half), ctypes.c_void_p(self.caller)))

    def await_all(self):
        with self.within():
            for stream in (self.caller, self.side):
                check(driver.cuStreamSynchronize(ctypes.c_void_p(stream)))

    def current(self):
        return self._current[-1]

    def empty(self, shape, dtype):
        size = torch.empty(0, dtype=dtype).element_size()
        for extent in shape:
            size *= extent
        address = ctypes.c_uint64()
        with self.within():
            check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(max(size, 1))))
        memory = (ctypes.c_uint8 * max(size, 1)).from_address(address.value)
        weakref.finalize(memory, self._free, address)
        self.allocated.append(size)
        self.log.append(("empty", self.current()))
        return torch.frombuffer(memory, dtype=torch.uint8)[:size].view(dtype).reshape(shape).detach()

    def _free(self, address):
        self.await_all()
        with self.within():
            check(driver.cuMemFree_v2(address))

    @contextlib.contextmanager
    def on_side(self):
        self._current.append(self.side)
        yield
        self._current.pop()

    def join(self, tensors):
        self.log.append(("join", len(list(tensors))))

    def to(self, tensor, non_blocking):
        self.log.append(("to", non_blocking))
        return tensor.clone()

    def is_capturing(self):
        return False

    def fork(self, tensors):
        self.log.append(("fork", len(list(tensors))))

    def event(self, stream):
        with self.within():
            return Event(stream, self.within)

    def host_empty(self, shape, dtype):
        return torch.empty(shape, dtype=dtype)
