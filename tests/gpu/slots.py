# SPDX-License-Identifier: Apache-2.0
"""What the number of a feed's slots does to a trainer's matrix products, and to how soon it has a batch. A part of bench.py.

In: a daemon's address, the inputs. Out: two tables. Alone, beside another process that is fed, on slots that are lent, on tensors of its own;
all numbers of slots in each turn, since the GPU's clock wanders.
"""
import collections
import time

import grid
import pinfeed
import torch
from feeding import arrays_spec, endless, feed_rate, neighbour, open_feed, tflops, turns_us

COUNTS, TURNS = (4, 6, 8, 12, 16), 3
STEPS, CALLS = 700, 150


def used_bytes(address):
    return sum(int(gpu["arena_used_bytes"]) for gpu in pinfeed.status(address)["gpus"])


def wait_until_idle(address, idle_bytes):
    """Until the daemon has back all memory of feeds that ended: freeing it would slow down the next one's first batch."""
    until = time.monotonic() + 20
    while used_bytes(address) > idle_bytes:
        if time.monotonic() > until:
            raise RuntimeError(f"feeds that ended still have memory of the GPU after 20 s: {used_bytes(address)} bytes are in use, {idle_bytes} were")
        time.sleep(0.01)


def turn(address, inputs, count, idle_bytes):
    """{what: figure} of one turn with that many slots. `idle_bytes`: what others have of the GPUs' memory all the time."""
    wait_until_idle(address, idle_bytes)
    seen = {"alone": tflops(STEPS, None)[0]}
    with neighbour(address, inputs, slots=count) as said:
        seen["beside"] = tflops(STEPS, None)[0]
    seen["beside GB/s"] = said["gb_per_s"]
    for way in ("lent", "own"):
        wait_until_idle(address, idle_bytes)
        start = time.perf_counter()
        with open_feed(address, inputs, "arrays", slots=count, zero_copy=way == "lent") as feed:
            batches = endless(feed)
            next(batches)
            torch.cuda.synchronize()
            seen[f"{way} first ms"] = (time.perf_counter() - start) * 1000
            seen[way], seen[f"{way} GB/s"] = tflops(STEPS, batches)
            seen[f"{way} ready us"] = turns_us(lambda: next(batches), count=CALLS)[0][0]
    wait_until_idle(address, idle_bytes)
    native = feed_rate(address, 0.1, arrays_spec(inputs, slots=count), CALLS)
    return {**seen, "C++ first ms": native["first_batch_ms"], "C++ ready us": native["p50_us"]}


def slots(address, inputs):
    idle_bytes = used_bytes(address)
    turns = {count: collections.defaultdict(list) for count in COUNTS}
    began = time.monotonic()
    for number in range(TURNS):
        for count in COUNTS:
            seen = turn(address, inputs, count, idle_bytes)
            for what, figure in seen.items():
                turns[count][what].append(figure)
            speeds = " ".join(f"{way} {seen[way]:.4g}" for way in ("alone", "beside", "lent", "own"))
            print(f"slots: turn {number + 1} of {TURNS}, {count} slots: {speeds} TFLOP/s; {time.monotonic() - began:.0f} s", flush=True)

    products = grid.Grid(
        f"A trainer's bf16 products by the number of a feed's slots, {TURNS} turns (`BENCH_PARTS=slots`)",
        ["slots", "alone", "another process is fed", "its feed", "fed, slots lent", "its feed", "fed, tensors of its own", "its feed"],
    )
    latency = grid.Grid(
        f"First batch after open and ready batch (p50), arrays, by the number of a feed's slots, {TURNS} turns (`BENCH_PARTS=slots`)",
        ["slots", "first, C++", "first, Python, lent", "first, Python, own", "ready, C++", "ready, Python, lent", "ready, Python, own"],
    )
    for count, seen in turns.items():
        cells = [grid.cell(seen["alone"], "TFLOP/s")]
        for way in ("beside", "lent", "own"):
            cells += [grid.cell(seen[way], "TFLOP/s", of=seen["alone"]), grid.cell(seen[f"{way} GB/s"], "GB/s")]
        products.lines.append((str(count), cells))
        cells = [grid.cell(seen[f"{who} {what} {unit}"], unit) for what, unit in (("first", "ms"), ("ready", "us")) for who in ("C++", "lent", "own")]
        latency.lines.append((str(count), cells))
    return [products, latency]
