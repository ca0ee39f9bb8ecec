# SPDX-License-Identifier: Apache-2.0
"""A trainer on a GPU that is the stand-in driver's: its "device" memory can be read by the processor.

    device_trainer.py ADDRESS BATCHES OPTIONS      (OPTIONS: keyword arguments of pinfeed.open, as JSON; "host": true for tensors on the host, "gpu": which one)

Prints one JSON line a batch, {epoch, index, samples, fields, crc}, as it comes, and {backend, reconnects} last. With "fork_at": n it
holds the n-th batch and forks a child that does nothing but print {child, crc} of that batch's memory: at once, and for each
line on stdin; it needs zero_copy. With "fault_at": n its own work breaks the GPU's context behind the n-th batch, and it
leaves the feed; {left_s} comes last. With "wait_at": n it goes on behind the n-th batch when stdin has a line, or its end. With "refused_at": n
it asks behind the n-th batch for the position behind the first one, which must be refused. With "keep": true it keeps every batch; {kept, copied},
with the crc of all that it kept, comes last but one. With "patient": true it waits on where a batch does not come in time; the last line then
says how often that was, as "late".
"""
import contextlib
import ctypes
import itertools
import json
import os
import sys
import time
import types
import zlib

import numpy as np
import pinfeed
from pinfeed._feed import batch_maker, device

DTYPES = {"bfloat16": "<u2"}


@contextlib.contextmanager
def own_calls(driver):
    """The trainer's own calls heed the captures of other threads (PINFEED_STAND_IN_CAPTURING); the library's have to by themselves."""
    mode = ctypes.c_int(2)  # relaxed
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    yield
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


class LentArray:
    """What a framework's tensor over a slot is."""

    def __init__(self, driver, raw):
        assert raw.__dlpack_device__() == (2, 0)
        self.shape, self.nbytes, self.address = raw.shape, raw.nbytes, raw.address
        self._driver = driver
        self._capsule = raw.__dlpack__(stream=1)  # keeps the slot

    def crc(self):
        return zlib.crc32(ctypes.string_at(self.address, self.nbytes))


class GpuArray:
    """What a framework's tensor is: memory of the GPU that it owns."""

    def __init__(self, driver, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self._driver = driver
        pointer = ctypes.c_uint64()
        with own_calls(driver):
            assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(max(self.nbytes, 1))) == 0
        self.address = pointer.value

    def __del__(self):
        with own_calls(self._driver):
            self._driver.cuStreamSynchronize(None)  # what may still be written to it; a framework keeps the memory until then
            self._driver.cuMemFree_v2(ctypes.c_uint64(self.address))

    def crc(self):
        with own_calls(self._driver):
            assert self._driver.cuStreamSynchronize(None) == 0
        return zlib.crc32(ctypes.string_at(self.address, self.nbytes))


def stand_in_memory(ordinal):
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    return device.Memory(
        dtype=lambda name: DTYPES.get(name, name),
        empty=lambda shape, dtype: GpuArray(driver, shape, dtype),
        address=lambda array: array.address,
        stream=lambda: 0,
        lend=lambda raw: LentArray(driver, raw),
        copy=None,  # nothing is small
        is_capturing=lambda: is_capturing(driver),
    )


def is_capturing(driver):
    status = ctypes.c_int()
    with own_calls(driver):
        assert driver.cuStreamIsCapturing(None, ctypes.byref(status)) == 0
    return status.value != 0


def say(what):
    os.write(1, (json.dumps(what) + "\n").encode())  # one write: a forked child's lines come between ours


def linger(batch):
    """In a forked child: what a data loader's worker does to its parent's GPU."""
    for _ in itertools.chain([None], iter(sys.stdin.readline, "")):
        crc = [zlib.crc32(ctypes.string_at(tensor.address, tensor.nbytes)) for tensor in batch]
        say({"child": os.getpid(), "crc": crc})
    os._exit(0)


def busy(copies, *last):
    """Gives the GPU copies of some 15 ms each, and then `last`: (to, from, bytes)."""
    driver = ctypes.CDLL("libcuda.so.1")
    size = 64 << 20
    memory = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 * size)) == 0
    for to, source, count in [(memory.value, memory.value + size, size)] * copies + list(last):
        assert driver.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(count), None) == 0


def fault():
    """Has the GPU busy for a while, and then do what breaks the context: what is put there next is never done."""
    busy(16, (1, 2, 1))  # longer than the processor may be another's before the feed is left


def run_ahead(feed, batches):
    """Takes them while the GPU is busy, and then more than it lets a trainer be ahead."""
    busy(64)
    iterator = itertools.chain.from_iterable(itertools.repeat(feed))
    held = [next(iterator) for _ in range(batches)]
    try:
        next(iterator)
        refused = ""
    except pinfeed.DeadlineExceededError as error:
        refused = str(error)
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuStreamSynchronize(None) == 0
    held.append(next(iterator))
    say({"refused": refused, "crc": [[tensor.crc() for tensor in batch] for batch in held]})


def crc_of(field, host):
    if isinstance(field, pinfeed.Ragged):
        return [crc_of(field.values, host), field.offsets.tolist()]
    return zlib.crc32(np.ascontiguousarray(field).view(np.uint8)) if host else field.crc()


def patiently(feed, late):
    iterator = iter(feed)
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except pinfeed.DeadlineExceededError:
            late.append(1)


def seek_refused(feed, state):
    try:
        feed.load_state_dict(state)
    except pinfeed.Error:
        return
    raise AssertionError("the group went back")


def main():
    address, batches, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    device.torch_memory = stand_in_memory
    batch_maker.SMALL_BYTES = 0  # what is lent is looked at here
    host = options.pop("host", False)
    if not host:
        sys.modules["torch"] = types.ModuleType("torch")  # whose memory is the stand-in's here: PyTorch proper would take each trainer a second
    fork_at, fault_at, wait_at, refused_at = (options.pop(name, 0) for name in ("fork_at", "fault_at", "wait_at", "refused_at"))
    keep, ahead, patient = options.pop("keep", False), options.pop("run_ahead", 0), options.pop("patient", False)
    late = []
    options["transforms"] = [getattr(pinfeed, name)(*arguments) for name, arguments in options.get("transforms", [])]
    gpu = options.pop("gpu", 0)
    where = {"framework": "numpy"} if host else {"device": f"cuda:{gpu}", "framework": "torch"}
    with pinfeed.open(**{"rank": 0, "world_size": 1, **options}, **where, address=address) as feed:
        taken = 0
        held = []
        if ahead:
            run_ahead(feed, ahead)
        while taken < batches:
            for batch in patiently(feed, late) if patient else feed:
                crc = [crc_of(field, host) for field in batch]
                samples = len(batch[0]) if isinstance(batch[0], pinfeed.Ragged) else batch[0].shape[0]
                say({"epoch": batch.epoch, "index": batch.index, "samples": samples, "fields": batch._fields, "crc": crc})
                taken += 1
                if keep:
                    held.append(batch)
                if taken == 1:
                    passed = feed.state_dict()
                if taken == refused_at:
                    seek_refused(feed, passed)
                if taken == wait_at:
                    sys.stdin.readline()
                if taken == fork_at:
                    held.append(batch)
                    if os.fork() == 0:
                        linger(batch)
                if taken == fault_at:
                    fault()
                    batches = taken
                if taken == batches:
                    break
            batch = None
        if keep:
            say({"kept": [[tensor.crc() for tensor in batch] for batch in held], "copied": feed.copied})
            held.clear()
        say({"backend": feed.backend, "reconnects": feed.reconnects, **({"late": len(late)} if patient else {})})
        began = time.monotonic()
    if fault_at:
        say({"left_s": time.monotonic() - began})


if __name__ == "__main__":
    main()
