# SPDX-License-Identifier: Apache-2.0
"""GPU memory by the driver's own functions, for trainers of tests that need no framework: real driver and stand-in alike.

    pinfeed._feed.device.torch_memory = lambda ordinal: gpu.memory()      # with gpu = Gpu(ordinal); then pinfeed.open(..., framework="torch")
"""
import ctypes

import numpy as np
from pinfeed._feed import device

DTYPES = {"bfloat16": "<u2"}
BUSY_BYTES = 128 << 20


class Gpu:
    """The primary context of a GPU, current on this thread."""

    def __init__(self, ordinal=0):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self._scribble = None  # the kernel, once it is loaded
        context = ctypes.c_void_p()
        self.check(self.driver.cuInit(0))
        self.check(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
        self.check(self.driver.cuCtxPushCurrent_v2(context))

    def check(self, result):
        if result:
            raise RuntimeError(f"the CUDA driver: error {result}")

    def allocate(self, nbytes):
        pointer = ctypes.c_uint64()
        self.check(self.driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(max(nbytes, 1))))
        return pointer.value

    def free(self, address):
        self.driver.cuMemFree_v2(ctypes.c_uint64(address))

    def synchronize(self):
        self.check(self.driver.cuStreamSynchronize(None))

    def read(self, address, nbytes):
        host = np.empty(nbytes, np.uint8)
        self.check(self.driver.cuMemcpyDtoH_v2(ctypes.c_void_p(host.ctypes.data), ctypes.c_uint64(address), ctypes.c_size_t(nbytes)))
        return host

    def copy_async(self, target, source, nbytes):
        self.check(self.driver.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), None))

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value

    def scribble(self, cubin, address, nbytes, seconds):
        """Starts a kernel of tests/gpu/scribble.cu that writes there for so long, and waits until it has begun to."""
        before = int(self.read(address, 4).view(np.uint32)[0])
        self._launch(cubin, address, nbytes, seconds)
        stream, word = ctypes.c_void_p(), ctypes.c_uint32(before)
        self.check(self.driver.cuStreamCreate(ctypes.byref(stream), 1))  # CU_STREAM_NON_BLOCKING: it does not wait for the kernel
        while word.value == before:
            self.check(self.driver.cuMemcpyDtoHAsync_v2(ctypes.byref(word), ctypes.c_uint64(address), ctypes.c_size_t(4), stream))
            self.check(self.driver.cuStreamSynchronize(stream))

    def _launch(self, cubin, address, nbytes, seconds):
        if self._scribble is None:
            module, self._scribble = ctypes.c_void_p(), ctypes.c_void_p()
            image = open(cubin, "rb").read()
            self.check(self.driver.cuModuleLoadData(ctypes.byref(module), image))
            self.check(self.driver.cuModuleGetFunction(ctypes.byref(self._scribble), module, b"Scribble"))
        values = [ctypes.c_uint64(address), ctypes.c_uint64(nbytes // 4), ctypes.c_uint64(int(seconds * 1e9))]
        arguments = (ctypes.c_void_p * 3)(*[ctypes.addressof(value) for value in values])
        self.check(self.driver.cuLaunchKernel(self._scribble, 64, 1, 1, 256, 1, 1, 0, None, arguments, None))

    def fault(self, cubin):
        """Puts on the NULL stream what keeps the GPU busy for a while, and then breaks the context. Without a cubin: by copies, which only the
        stand-in takes at addresses that are none."""
        busy = self.allocate(BUSY_BYTES)
        if not cubin:
            self.copy_async(busy, busy + BUSY_BYTES // 2, BUSY_BYTES // 2)
            return self.copy_async(1, 2, 1)
        self.scribble(cubin, busy, 4096, 0.5)
        return self._launch(cubin, 16, 4096, 0)

    def memory(self):
        return device.Memory(
            dtype=lambda name: DTYPES.get(name, name),
            empty=lambda shape, dtype: Owned(self, shape, dtype),
            address=lambda array: array.address,
            stream=lambda: 0,
            lend=lambda raw: Lent(self, raw),
            copy=self._copy,
            is_capturing=lambda: False,  # these trainers capture no graph
        )

    def _copy(self, lent):
        owned = Owned(self, lent.shape, lent.dtype)
        self.copy_async(owned.address, lent.address, owned.nbytes)
        return owned


class Owned:
    """What a framework's tensor is: memory of the GPU that it owns."""

    def __init__(self, gpu, shape, dtype):
        self._gpu = gpu
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self.address = gpu.allocate(self.nbytes)

    def __del__(self):
        self._gpu.free(self.address)

    def numpy(self):
        self._gpu.synchronize()
        return self._gpu.read(self.address, self.nbytes).view(self.dtype).reshape(self.shape)


class Lent:
    """What a framework's tensor over a slot is."""

    def __init__(self, gpu, raw):
        self._gpu = gpu
        self.shape, self.nbytes, self.address = raw.shape, raw.nbytes, raw.address
        self.dtype = np.dtype(DTYPES.get(raw.dtype, raw.dtype))
        self._capsule = raw.__dlpack__(stream=1)  # keeps the slot

    def numpy(self):
        self._gpu.synchronize()
        return self._gpu.read(self.address, self.nbytes).view(self.dtype).reshape(self.shape)
