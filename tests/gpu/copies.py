# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.to_device` and `pinfeed.to_host` on a GPU: right bytes whatever the streams do, and the times beside torch's own copies.

  copies.py [OUT.json]

What comes in: the library, by PINFEED_LIBRARY. What goes out: a line for each promise and each time; exit status 1 when a promise is broken.
"""
import gc
import io
import json
import os
import statistics
import sys
import threading
import time

import numpy as np
import torch

import pinfeed
from pinfeed._copies import block

DEVICE = torch.device(os.environ.get("DEVICE", "cuda:0"))
CYCLES = 200_000_000  # some 0.1 s
MANY = 1000
LARGE, SMALL, INPUT = 4_000_000, 4096, 562_000
DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn uint16 uint32 uint64".split()
broken = 0
times = {}


def check(what, right):
    global broken
    broken += not right
    print(f"{'ok' if right else 'BROKEN'}  {what}", flush=True)


def noise(*shape, dtype=torch.uint8):
    size = int(np.prod(shape, dtype=int)) * torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).cpu()


def equal(results, sources):
    return all(r.shape == s.shape and r.dtype == s.dtype and r.device == DEVICE and torch.equal(bits(r), bits(s)) for r, s in zip(results, sources))


def bytes_arrive():
    dtypes = [getattr(torch, name) for name in DTYPES if hasattr(torch, name)]
    shapes = [(), (0,), (3,), (3, 0, 2), (17, 5), (3, 9001), (700, 333)]
    sources = [noise(*shape, dtype=dtype) for dtype in dtypes for shape in shapes]
    check("every dtype and shape, packed", equal(pinfeed.to_device(sources, DEVICE), sources))
    check("every dtype and shape, each for itself", equal(pinfeed.to_device(sources, DEVICE, pack=False), sources))
    arrays = [np.arange(24).reshape(2, 3, 4)[::-1, :, ::-2], np.array(7.5), np.arange(9, dtype=">i4"), np.arange(300_000)[::-3]]
    check("arrays of any order", [one.tolist() for one in pinfeed.to_device(arrays)] == [one.tolist() for one in arrays])
    odd = [noise(30, 40, 5, dtype=torch.int32).transpose(0, 2), torch.zeros(2, 3, 50, 50).contiguous(memory_format=torch.channels_last), torch.randn(5, dtype=torch.complex64).conj()]
    moved = pinfeed.to_device(odd, DEVICE)
    check("views of any order", all(torch.equal(m.cpu(), o) and m.stride() == o.to(DEVICE).stride() for m, o in zip(moved, odd)))
    weight = torch.ones(3, requires_grad=True)
    pinfeed.to_device({"w": weight}, DEVICE)["w"].sum().backward()
    check("gradients flow to a source that needs one", weight.grad.tolist() == [1, 1, 1])
    huge = noise(1_500_000_001)
    check("1.5 GB in one tensor", equal([pinfeed.to_device(huge, DEVICE)], [huge]))


def sources_may_change():
    right = True
    for busy in (False, True):
        for size in (1000, 200_000, 30_000_000):
            for pin in (False, True):
                source = noise(size)
                source = source.pin_memory() if pin else source
                was = source.clone()
                if busy:
                    torch.cuda._sleep(CYCLES)
                moved = pinfeed.to_device([source], DEVICE)[0]
                source.zero_()
                right &= equal([moved], [was])
    check("sources change once the call has returned", right)
    torch.cuda._sleep(CYCLES)
    pinned = pinfeed.pinned_empty(8_000_000, "uint8").copy_(noise(8_000_000))
    was = pinned.clone()
    moved = pinfeed.to_device([pinned], DEVICE, non_blocking=True)[0]
    del pinned
    others = [pinfeed.pinned_empty(8_000_000, "uint8").zero_() for _ in range(4)]  # would be its memory if it were not kept
    check("a page-locked source that is dropped is kept", equal([moved], [was]) and len(others) == 4)


def streams_are_ordered():
    right, late = True, torch.cuda.Stream()
    with torch.cuda.stream(late):
        sums = []
        for number in range(60):
            if number % 5 == 0:
                torch.cuda._sleep(CYCLES // 5)
            batch = pinfeed.to_device({"image": torch.full((300_000,), number), "label": torch.full((10,), number)}, DEVICE)
            sums.append((batch["image"].sum(), batch["label"].sum()))
            del batch
    late.synchronize()
    right = all(int(a) == 300_000 * number and int(b) == 10 * number for number, (a, b) in enumerate(sums))
    check("results that are dropped before a late stream has used them", right)
    begin = time.perf_counter()
    torch.cuda._sleep(10 * CYCLES)
    moved = pinfeed.to_device([noise(20_000_000)], DEVICE)
    returned = time.perf_counter() - begin
    torch.cuda.synchronize()
    check(f"the call does not wait for a busy stream ({returned * 1e3:.1f} ms of {(time.perf_counter() - begin) * 1e3:.0f})", returned < 0.2 and moved[0].numel() == 20_000_000)

    faults = []

    def run(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(20):
                sources = [noise(size) for size in (100, 70_000, 3_000_000)]
                if turn % 4 == 0:
                    torch.cuda._sleep(CYCLES // 50)
                if not equal(pinfeed.to_device(sources, DEVICE), sources):
                    faults.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("six threads, each with a stream", not faults)


def graphs():
    static = torch.zeros(1000, device=DEVICE)
    graph, refused = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        static.add_(1)
        for call in (lambda: pinfeed.to_device(torch.ones(5), DEVICE), lambda: pinfeed.to_host(static)):
            try:
                call()
            except pinfeed.Error as error:
                refused.append(error.code.name)
    graph.replay()
    check("a capture is refused, and unharmed", refused == ["FAILED_PRECONDITION"] * 2 and int(static[0]) == 1)

    # Another thread copies meanwhile, in the mode that forbids much to all threads.
    stop, faults, turns = threading.Event(), [], [0]

    def copy():
        with torch.cuda.stream(torch.cuda.Stream()):
            source = noise(2_000_000)
            while not stop.is_set():
                try:
                    if not equal(pinfeed.to_device([source], DEVICE), [source]):
                        faults.append("bytes")
                    turns[0] += 1
                except Exception as error:  # noqa: BLE001 - shown
                    faults.append(repr(error))
                    return

    thread = threading.Thread(target=copy)
    pinfeed.to_device([noise(2_000_000)], DEVICE)
    thread.start()
    captured, late = 0, time.monotonic() + 20
    try:
        while (captured < 20 or turns[0] < 20) and not faults and time.monotonic() < late:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                static.add_(1)
            graph.replay()
            captured += 1
    finally:
        stop.set()
        thread.join()
    check(f"copies while another thread captures ({turns[0]} copies, {captured} captures) {faults[:1]}", min(captured, turns[0]) >= 20 and not faults)


def packed_views():
    sources = [torch.randn(1024) for _ in range(MANY)]
    moved = pinfeed.to_device(sources, DEVICE)
    check("slices of torch's own, without autograd's knowledge", block._slices(torch) is not None)
    weight = torch.ones(1024, device=DEVICE, requires_grad=True)
    loss = (weight * moved[0]).sum()
    moved[1].add_(1)
    moved[2].mul_(weight)
    loss.backward()
    right = torch.equal(weight.grad.cpu(), sources[0]) and moved[3].grad_fn is None and not moved[3]._is_view()
    check("packed tensors do not depend on each other", right and len({one.untyped_storage().data_ptr() for one in moved}) == 1)

    def saved(tensor):
        file = io.BytesIO()
        torch.save(tensor, file)
        return len(file.getvalue())

    whole, alone = saved(moved[5]), saved(moved[5].clone())
    check(f"torch.save of a packed tensor saves the allocation ({whole} bytes), of its clone the tensor ({alone})", MANY * 4096 < whole < 1.01 * MANY * 4096 and alone < 8192)
    kept = moved[7]
    del moved
    gc.collect()
    for _ in range(3):
        pinfeed.to_device([torch.zeros(1024) for _ in range(MANY)], DEVICE)
    check("a packed tensor outlives the others", torch.equal(kept.cpu(), sources[7]))


def to_host():
    right = True
    for non_blocking in (False, True):
        for _ in range(20):
            source = torch.zeros(5_000_000, device=DEVICE)
            torch.cuda._sleep(CYCLES // 20)
            source.add_(7)
            begin = time.perf_counter()
            copy = pinfeed.to_host({"x": [source, source[::2]]}, non_blocking=non_blocking)
            quick = time.perf_counter() - begin
            if not non_blocking:
                source.zero_()
            result = copy.result()["x"]
            right &= result[0].is_pinned() and bool((result[0] == 7).all()) and bool((result[1] == 7).all()) and result[1].numel() == 2_500_000
    check(f"to_host: what the stream had to do before is in it ({quick * 1e6:.0f} us to call)", right)
    copies = [pinfeed.to_host(torch.full((1_000_000,), number, device=DEVICE)) for number in range(50)]  # whose sources are dropped
    check("to_host: sources that are dropped", all(bool((copy.result() == number).all()) for number, copy in enumerate(copies)))
    for number in range(50):
        torch.cuda._sleep(CYCLES // 50)
        pinfeed.to_host(torch.full((1_000_000,), number, device=DEVICE), non_blocking=True)  # dropped under way
        right &= bool((pinfeed.pinned_empty(1_000_000).fill_(number) == number).all())
    torch.cuda.synchronize()
    check("to_host: results that are dropped under way", right)


def timed(name, call, turns):
    """Adds the times of calls, until they return and until all has arrived, in ms."""
    for _ in range(turns):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        arrived = time.perf_counter()
        del result
        times.setdefault(name, []).append(((returned - begin) * 1e3, (arrived - begin) * 1e3))


def median(name):
    return statistics.median(arrived for _, arrived in times[name])


def compare(title, ways, rounds, turns, warm=2):
    for _ in range(warm):
        for name, call in ways.items():
            timed(name, call, turns)
    for name in ways:
        times[name] = []
    for _ in range(rounds):
        for name, call in ways.items():
            timed(name, call, turns)
    print(f"== {title}: median (best) ms until all has arrived; until the call returns")
    for name in ways:
        returned, arrived = zip(*times[name])
        print(f"{name:58} {statistics.median(arrived):9.3f} ({min(arrived):.3f})   {statistics.median(returned):9.3f}", flush=True)


def rates():
    base = noise(LARGE)
    sources = [base + (number % 251) for number in range(MANY)]
    pinned = [source.pin_memory() for source in sources]
    ways = {
        "4 MB: to_device": lambda: pinfeed.to_device(sources, DEVICE),
        "4 MB: .to(), pageable": lambda: [one.to(DEVICE) for one in sources],
        "4 MB: .to(non_blocking), page-locked": lambda: [one.to(DEVICE, non_blocking=True) for one in pinned],
        "4 MB: to_device, page-locked": lambda: pinfeed.to_device(pinned, DEVICE),
    }
    compare(f"{MANY} tensors of {LARGE} bytes", ways, 3, 1, 1)
    check("4 MB: the bytes are right", equal(pinfeed.to_device(sources[::50], DEVICE), sources[::50]))
    ratio = median("4 MB: to_device") / median("4 MB: .to(non_blocking), page-locked")
    check(f"4 MB: pageable takes {ratio:.2f} of torch's page-locked (at most 1.3), {median('4 MB: to_device'):.1f} ms (100 on an H200)", ratio <= 1.3)
    del sources, pinned
    sources = [noise(SMALL) for _ in range(MANY)]
    pinned = [source.pin_memory() for source in sources]
    ways = {
        "4 KB: to_device": lambda: pinfeed.to_device(sources, DEVICE),
        "4 KB: .to(), pageable": lambda: [one.to(DEVICE) for one in sources],
        "4 KB: .to(non_blocking), pageable": lambda: [one.to(DEVICE, non_blocking=True) for one in sources],
        "4 KB: .to(non_blocking), page-locked": lambda: [one.to(DEVICE, non_blocking=True) for one in pinned],
        "4 KB: to_device(pack=False)": lambda: pinfeed.to_device(sources, DEVICE, pack=False),
    }
    compare(f"{MANY} tensors of {SMALL} bytes", ways, 20, 1)
    ratio = median("4 KB: to_device") / min(median(name) for name in ways if ".to(" in name)
    check(f"4 KB: takes {ratio:.2f} of torch's best (at most 0.7), {median('4 KB: to_device'):.2f} ms (1.5 on an H200)", ratio <= 0.7)
    source = noise(INPUT)
    pinned = pinfeed.pinned_empty(INPUT, "uint8").copy_(source)
    ways = {
        "input: .to(), pageable": lambda: source.to(DEVICE),
        "input: to_device, pageable": lambda: pinfeed.to_device(source, DEVICE),
        "input: .to(), page-locked": lambda: pinned.to(DEVICE),
        "input: to_device, pinned_empty": lambda: pinfeed.to_device(pinned, DEVICE),
        "input: to_device(non_blocking), pinned_empty": lambda: pinfeed.to_device(pinned, DEVICE, non_blocking=True),
        "input: .to(non_blocking), page-locked": lambda: pinned.to(DEVICE, non_blocking=True),
    }
    compare(f"one input of {INPUT} bytes", ways, 40, 50)
    pageable = median("input: to_device, pageable") / median("input: .to(), pageable")
    locked = median("input: to_device(non_blocking), pinned_empty") / median("input: .to(), page-locked")
    check(f"an input from pageable memory takes {pageable:.2f} of .to() (at most 1.05)", pageable <= 1.05)
    check(f"an input from pinned_empty takes {locked:.2f} of .to() from page-locked memory (at most 1.1)", locked <= 1.1)
    # Both have waited when they return.
    of = {name: statistics.median(returned for returned, _ in times[name]) for name in ways}
    print(f"    without non_blocking {of['input: to_device, pinned_empty'] / of['input: .to(), page-locked']:.2f}")
    free = of["input: to_device(non_blocking), pinned_empty"] / of["input: .to(), page-locked"]
    check(f"with non_blocking the thread is free after {free:.2f} of that (at most 0.7)", free <= 0.7)


def main():
    parts = os.environ.get("COPIES_PARTS", "bytes_arrive sources_may_change streams_are_ordered graphs packed_views to_host rates").split()
    torch.cuda.set_device(DEVICE)
    print(torch.__version__, torch.cuda.get_device_name(DEVICE), f"{os.cpu_count()} CPUs")
    for part in parts:
        globals()[part]()
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(times, file)
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
