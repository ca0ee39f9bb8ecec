# SPDX-License-Identifier: Apache-2.0
"""What giving a slot back, and copying out of it, costs a trainer's matrix products: several ways, by turns.

    release_cost.py FEED_RATE ADDRESS ARRAYS      (a daemon at ADDRESS, its arrays 3 x 224 x 224 in the folder ARRAYS)

In: one GPU with PyTorch and CuPy. Out: a table of TFLOP/s, and of the microseconds that each way adds to a step of four products of 4096 x 4096,
while nothing else goes on, while PyTorch itself copies as much as a batch from pinned memory each step, and while the daemon copies as fast as it
can for another process.
"""
import ctypes
import itertools
import json
import mmap
import statistics
import subprocess
import sys
import time

import cupy
import torch

STEPS, ROUNDS, SLOT = 800, 4, 256 * 3 * 224 * 224
NOBODY, PYTORCH, DAEMON = "nobody", "PyTorch", "the daemon"
driver = ctypes.CDLL("libcuda.so.1")


def check(result):
    if result:
        raise RuntimeError(f"CUDA error {result}")


torch.cuda.init()
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(a)
slot = torch.randint(0, 256, (SLOT,), device="cuda", dtype=torch.uint8)
mine = [torch.empty_like(slot) for _ in range(3)]
pinned = torch.empty(SLOT, dtype=torch.uint8, pin_memory=True)
landing = torch.empty_like(slot)
dma = torch.cuda.Stream(priority=-5)
counter = torch.zeros(1, dtype=torch.int32, device="cuda")
page = mmap.mmap(-1, 4096)
host = ctypes.addressof(ctypes.c_char.from_buffer(page))
check(driver.cuMemHostRegister_v2(ctypes.c_void_p(host), ctypes.c_size_t(4096), 2))
word = ctypes.c_uint64()
check(driver.cuMemHostGetDevicePointer_v2(ctypes.byref(word), ctypes.c_void_p(host), 0))
main = torch.cuda.Stream()  # named, so that CuPy can be told
torch.cuda.set_stream(main)
cupy_main = cupy.cuda.ExternalStream(main.cuda_stream)
module = cupy.RawModule(code=r"""
extern "C" __global__ void give_back(volatile unsigned long long* word, unsigned long long number) { *word = number; }
extern "C" __global__ void copy_out(const uint4* from, uint4* to, unsigned count, unsigned* done, unsigned long long* word,
                                    unsigned long long number) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] = from[i];
  if (word == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(done, 1) != gridDim.x - 1) return;
  *done = 0;
  *(volatile unsigned long long*)word = number;
}
""")
give_back, copy_out = module.get_function("give_back"), module.get_function("copy_out")
numbers = itertools.count(1)


def write(stream):
    check(driver.cuStreamWriteValue64_v2(ctypes.c_void_p(stream.cuda_stream), word, ctypes.c_uint64(next(numbers)), 0))


side = torch.cuda.Stream()
released = [torch.cuda.Event() for _ in range(8)]


def nothing(n):
    pass


def on_stream(n):
    write(main)


def on_side(n):
    released[n % 8].record()
    side.wait_event(released[n % 8])
    write(side)


def event_only(n):
    released[n % 8].record()


def by_kernel(n):
    with cupy_main:
        give_back((1,), (1,), (cupy.uint64(word.value), cupy.uint64(next(numbers))))


def copy_by_kernel(release):
    def step(n):
        with cupy_main:
            copy_out(
                (1056,), (256,),
                (cupy.uint64(slot.data_ptr()), cupy.uint64(mine[n % 3].data_ptr()), cupy.uint32(SLOT // 16), cupy.uint64(counter.data_ptr()),
                 cupy.uint64(word.value if release == "inside" else 0), cupy.uint64(next(numbers))),
            )  # fmt: skip
        if release == "write":
            write(main)
        elif release == "kernel":
            by_kernel(n)
        elif release == "side":
            on_side(n)

    return step


ways = {
    "alone": nothing,
    "event recorded": event_only,
    "release written by the stream": on_stream,
    "release written by a side stream": on_side,
    "release written by a kernel": by_kernel,
    "copy": copy_by_kernel(None),
    "copy, release by the stream": copy_by_kernel("write"),
    "copy, release by a side stream": copy_by_kernel("side"),
    "copy, release by a kernel": copy_by_kernel("kernel"),
    "copy, release by the same kernel": copy_by_kernel("inside"),
}


def turn(way, copies):
    done = [torch.cuda.Event() for _ in range(8)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    for n in range(STEPS):
        done[n % 8].synchronize()
        if copies == PYTORCH:
            with torch.cuda.stream(dma):
                landing.copy_(pinned, non_blocking=True)
        way(n)
        for _ in range(4):
            torch.mm(a, a, out=out)
        done[n % 8].record()
    main.synchronize()
    return (time.perf_counter() - start) / STEPS * 1e6


feed_rate, address, arrays = sys.argv[1:]
spec = {"dataset": {"path": arrays}, "order": "SHUFFLE", "batch_size": 256, "drop_last": True, "backend": "VMM_FD"}
for copies in (NOBODY, PYTORCH, DAEMON):
    times = {name: [] for name in ways}
    neighbour = None
    if copies == DAEMON:
        command = [feed_rate, address, str(len(ways) * (ROUNDS + 1) * STEPS * 1.1e-3), json.dumps(spec), "drop"]
        neighbour = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if neighbour.stdout.readline() != "started\n":
            raise RuntimeError("the neighbour did not start")
    for way in ways.values():
        turn(way, copies)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            times[name].append(turn(way, copies))
    alone = statistics.median(times["alone"])
    print(f"while {copies} copies")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"  {name:44} {4 * 2 * 4096**3 / median / 1e6:7.1f} TFLOP/s  {median - alone:+7.2f} us a step  {100 * alone / median:6.2f}%", flush=True)
    if neighbour is not None:
        print(f"  {json.loads(neighbour.communicate()[0])['gb_per_s']:.1f} GB/s copied meanwhile")
