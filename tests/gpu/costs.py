# SPDX-License-Identifier: Apache-2.0
"""What giving a slot back, and copying out of it, costs a trainer's matrix products: several ways, by turns. A part of bench.py.

In: a daemon's address, the inputs; PyTorch and CuPy. Out: a table of the microseconds that each way adds to a step of products, while nothing else
goes on, while PyTorch itself copies as much as a batch from pinned memory each step, and while the daemon copies as fast as it can for another
process.
"""
import contextlib
import ctypes
import itertools
import mmap
import time
import typing

import feeding
import grid
import torch

STEPS, ROUNDS, TRY_STEPS = 300, 6, 20
WARM_STEPS = 1000  # a GPU that has rested is faster for some tenths of a second, by 3 to 5%
NOBODY, PYTORCH, DAEMON = "nothing copies", "PyTorch copies from pinned memory", "the daemon copies"
BLOCKS, THREADS = 1056, 256  # 8 blocks for each of the 132 processors of an H200
DEVICE_MAP = 2  # CU_MEMHOSTREGISTER_DEVICEMAP


def check(result, call):
    if result:
        raise RuntimeError(f"{call}: CUDA error {result}")


class Word:
    """A word of host memory that the GPU writes to, as it does to give a slot back. Owns its page."""

    def __init__(self):
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._word = ctypes.c_uint64.from_buffer(self._page)
        self._host = ctypes.c_void_p(ctypes.addressof(self._word))
        self._numbers = itertools.count(1)
        device = ctypes.c_uint64()
        check(self._driver.cuMemHostRegister_v2(self._host, ctypes.c_size_t(mmap.PAGESIZE), DEVICE_MAP), "cuMemHostRegister")
        check(self._driver.cuMemHostGetDevicePointer_v2(ctypes.byref(device), self._host, 0), "cuMemHostGetDevicePointer")
        self.address = device.value

    def next_number(self):
        return next(self._numbers)

    def written(self):
        return self._word.value

    def write(self, stream):
        number = ctypes.c_uint64(self.next_number())
        check(self._driver.cuStreamWriteValue64_v2(ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(self.address), number, 0), "cuStreamWriteValue64")

    def close(self):
        check(self._driver.cuMemHostUnregister(self._host), "cuMemHostUnregister")


class Way(typing.NamedTuple):
    before: typing.Callable  # what a step has before its products; takes the step's number
    releases: bool
    copies: bool


class Steps:
    """Steps of products with something before each. Its streams are the current one while it is made and used, and one of high priority beside it."""

    def __init__(self, main):
        import cupy  # only here: no other part needs it

        self._cupy = cupy
        self._main = main
        self._side = torch.cuda.Stream(priority=-1)
        self._matrix = torch.randn(feeding.MATRIX, feeding.MATRIX, device=feeding.DEVICE, dtype=torch.bfloat16)
        self._product = torch.empty_like(self._matrix)
        self.slot_bytes = feeding.BATCH * feeding.SAMPLE
        self._slot = torch.randint(0, 256, (self.slot_bytes,), device=feeding.DEVICE, dtype=torch.uint8)
        self._mine = [torch.empty_like(self._slot) for _ in range(3)]
        self._pinned = torch.empty(self.slot_bytes, dtype=torch.uint8, pin_memory=True)
        self._landing = torch.empty_like(self._slot)
        self._copies = torch.cuda.Stream(priority=-1)
        self._for_cupy = {stream: cupy.cuda.ExternalStream(stream.cuda_stream) for stream in (main, self._side)}
        self._blocks_done = torch.zeros(1, dtype=torch.int32, device=feeding.DEVICE)
        self._before = [torch.cuda.Event() for _ in range(8)]
        self._copied = [torch.cuda.Event() for _ in range(8)]
        self.word = Word()
        module = cupy.RawModule(code=(feeding.HERE / "costs.cu").read_text())
        self._give_back, self._copy_out = module.get_function("give_back"), module.get_function("copy_out")
        self.ways = {
            "nothing": Way(lambda n: None, False, False),
            "the release, written by the stream": Way(lambda n: self.word.write(self._main), True, False),
            "the release, written by a side stream after an event": Way(self._release_on_side, True, False),
            "the release, written by a kernel of one thread": Way(self._release_by_kernel, True, False),
            "a batch copied within the GPU": Way(lambda n: self._copy_by_kernel(n, self._main), False, True),
            "the same and the release by the stream": Way(self._copy_then_release, True, True),
            "the same, the release by the last block of the copying kernel": Way(lambda n: self._copy_by_kernel(n, self._main, release=True), True, True),
            "the copy of the next batch beside the products, high priority, and its release": Way(
                lambda n: self._copy_beside(n, self._copy_by_engine), True, True
            ),
            "the same, by a kernel instead of `cudaMemcpyAsync`": Way(lambda n: self._copy_beside(n, self._copy_by_kernel), True, True),
        }

    def _launch(self, stream, function, grid_blocks, threads, arguments):
        with self._for_cupy[stream]:
            function((grid_blocks,), (threads,), arguments)

    def _release_on_side(self, n):
        self._before[n % 8].record()
        self._side.wait_event(self._before[n % 8])
        self.word.write(self._side)

    def _release_by_kernel(self, n):
        wide = self._cupy.uint64
        self._launch(self._main, self._give_back, 1, 1, (wide(self.word.address), wide(self.word.next_number())))

    def _copy_by_kernel(self, n, stream, release=False):
        wide = self._cupy.uint64
        arguments = (
            wide(self._slot.data_ptr()), wide(self._mine[n % 3].data_ptr()), self._cupy.uint32(self.slot_bytes // 16),
            wide(self._blocks_done.data_ptr()), wide(self.word.address if release else 0), wide(self.word.next_number() if release else 0),
        )  # fmt: skip
        self._launch(stream, self._copy_out, BLOCKS, THREADS, arguments)

    def _copy_by_engine(self, n, stream):
        with torch.cuda.stream(stream):
            self._mine[n % 3].copy_(self._slot, non_blocking=True)

    def _copy_then_release(self, n):
        self._copy_by_kernel(n, self._main)
        self.word.write(self._main)

    def _copy_beside(self, n, copy):
        """This step's products wait for the copy that went on beside the last one's; the next one's copy goes on beside them."""
        self._main.wait_event(self._copied[(n - 1) % 8])
        self._before[n % 8].record()
        self._side.wait_event(self._before[n % 8])
        copy(n, self._side)
        self.word.write(self._side)
        self._copied[n % 8].record(self._side)

    def run(self, way, copies, steps):
        """Seconds a step."""
        before = self.ways[way].before
        done = [torch.cuda.Event() for _ in range(8)]
        torch.cuda.synchronize()
        start = time.perf_counter()
        for n in range(steps):
            done[n % 8].synchronize()
            if copies == PYTORCH:
                with torch.cuda.stream(self._copies):
                    self._landing.copy_(self._pinned, non_blocking=True)
            before(n)
            for _ in range(feeding.PRODUCTS):
                torch.mm(self._matrix, self._matrix, out=self._product)
            done[n % 8].record()
        self._main.synchronize()
        took = (time.perf_counter() - start) / steps
        torch.cuda.synchronize()
        return took


    def try_out(self, way):
        """A short run, for what is compiled and allocated at first use. The way has to do what it says."""
        for mine in self._mine:
            mine.zero_()
        written = self.word.written()
        self.run(way, PYTORCH, TRY_STEPS)
        if self.ways[way].releases != (self.word.written() != written):
            raise RuntimeError(f"{way}: the word of the releases was {written} and is {self.word.written()}")
        if any(torch.equal(mine, self._slot) != self.ways[way].copies for mine in self._mine):
            raise RuntimeError(f"{way}: the copies of the slot are not as they should be")


def measure(steps, address, inputs):
    """{(copies, way): seconds a step in each round}, and the daemon's GB/s in each."""
    for way in steps.ways:
        steps.try_out(way)
    times = {(copies, way): [] for copies in (NOBODY, PYTORCH, DAEMON) for way in steps.ways}
    rates = []
    began = time.monotonic()
    for number in range(ROUNDS):
        first = number * len(steps.ways) // ROUNDS  # none is always the first, or behind the same one after a rest
        ways = [*steps.ways][first:] + [*steps.ways][:first]
        for copies in (NOBODY, PYTORCH, DAEMON):
            with contextlib.ExitStack() as stack:
                said = stack.enter_context(feeding.neighbour(address, inputs)) if copies == DAEMON else {}
                steps.run("nothing", copies, WARM_STEPS)
                for way in ways:
                    times[copies, way].append(steps.run(way, copies, STEPS))
            if copies == DAEMON:
                rates.append(said["gb_per_s"])
            print(f"costs: round {number + 1} of {ROUNDS}, {copies}; {time.monotonic() - began:.0f} s", flush=True)
    return times, rates


def costs(address, inputs):
    main = torch.cuda.Stream()  # CuPy cannot be told to use PyTorch's default one
    with torch.cuda.stream(main):
        steps = Steps(main)
        try:
            times, rates = measure(steps, address, inputs)
        finally:
            torch.cuda.synchronize()
            steps.word.close()

    table = grid.Grid(
        f"What is added to a step of {feeding.PRODUCTS} bf16 products of {feeding.MATRIX} x {feeding.MATRIX}, and what that costs, {ROUNDS} turns "
        "(`BENCH_PARTS=costs`)",
        ["what a step has besides its products", NOBODY, PYTORCH, DAEMON],
    )
    alone = [feeding.product_tflops(took) for took in times[NOBODY, "nothing"]]
    for way in steps.ways:
        cells = []
        for copies in (NOBODY, PYTORCH, DAEMON):
            if way == "nothing":
                speeds = [feeding.product_tflops(took) for took in times[copies, way]]
                cells.append(grid.cell(speeds, "TFLOP/s", of=None if copies == NOBODY else alone))
            else:
                added = [(took - bare) * 1e6 for took, bare in zip(times[copies, way], times[copies, "nothing"], strict=True)]
                cells.append(grid.cell(added, "us", added=True))
        table.lines.append((way, cells))
    by_torch = [steps.slot_bytes / took / 1e9 for took in times[PYTORCH, "nothing"]]
    table.lines.append(("copied meanwhile", [None, grid.cell(by_torch, "GB/s"), grid.cell(rates, "GB/s")]))
    return [table]
