# SPDX-License-Identifier: Apache-2.0
"""Images a second and CPU time of feeds that decode on the CPU, on the GPU, and on both: a part of bench.py.

In: a daemon's address, inputs. Out: rows.
"""
import os
import statistics
import time

import pinfeed
import psutil
import torch
from feeding import BATCH, endless, open_feed, takes, tflops, tflops_beside

ROUND_S = 4.0
WARM_BATCHES = 60
PACES = {3200: 0.985, 5000: 0.975}  # images a second that a trainer takes, and the least share of its speed alone
BESIDE = 13_700  # images a second that a thread takes beside the products
TURNS = 7
TURN_STEPS = 1200


def measure(address, inputs, decode):
    """Images a second of a loop that does nothing else, CPU seconds of daemon and trainer for 1,000 images, and what was decided."""
    daemon, own = psutil.Process(pinfeed.status(address)["pid"]), psutil.Process()

    def cpu_seconds():
        return sum(sum(process.cpu_times()[:2]) for process in (daemon, own))

    with open_feed(address, inputs, "jpeg", backend="auto", decode=decode) as feed:
        batches = endless(feed)
        for _ in range(WARM_BATCHES):
            next(batches)
        torch.cuda.synchronize()
        cpu, count, start = cpu_seconds(), 0, time.perf_counter()
        while time.perf_counter() - start < ROUND_S:
            for _ in range(8):
                next(batches)
            # The trainer's steps bound what is queued.
            torch.cuda.synchronize()
            count += 8
        images = count * BATCH
        return images / (time.perf_counter() - start), 1000 * (cpu_seconds() - cpu) / images, feed.decode


def at_pace(batches, images_per_second):
    """Yields a batch when the next one is due, else None."""
    start, taken = time.perf_counter(), 0
    while True:
        if (time.perf_counter() - start) * images_per_second < taken * BATCH:
            yield None
        else:
            taken += 1
            yield next(batches)


def shares(row, address, inputs):
    """What a trainer of back-to-back products keeps of its speed while it is fed, by turns: fed and alone."""
    for pace, least in PACES.items():
        for decode in ("cpu", "gpu"):
            kept = []
            with open_feed(address, inputs, "jpeg", backend="auto", decode=decode) as feed:
                batches = endless(feed)
                tflops(TURN_STEPS, at_pace(batches, pace))
                for _ in range(TURNS):
                    fed = tflops(TURN_STEPS, at_pace(batches, pace))[0]
                    kept.append(fed / tflops(TURN_STEPS, None)[0])
            kept.sort()
            row(
                f"what a trainer keeps of its products at {pace} images/s, decode {decode} ({100 * kept[0]:.1f} to {100 * kept[-1]:.1f})",
                100 * statistics.median(kept), "%", least=100 * least, drawn=False,
            )  # fmt: skip


def share_beside(row, address, inputs):
    """What a trainer keeps while a thread of its process takes the batches, by turns with the products alone."""
    kept, rates = [], []
    with open_feed(address, inputs, "jpeg", backend="auto", decode="gpu") as feed:
        batches = endless(feed)
        for _ in range(TURNS):
            fed, rate = tflops_beside(takes(batches), BESIDE, TURN_STEPS)
            tflops(TURN_STEPS // 4, None)  # until the batches that are made ahead are finished
            kept.append(fed / tflops(TURN_STEPS, None)[0])
            rates.append(rate)
    kept.sort()
    row(
        f"what a trainer keeps of its products while a thread takes {statistics.median(rates):,.0f} images/s, decode gpu ({100 * kept[0]:.1f} to {100 * kept[-1]:.1f})",
        100 * statistics.median(kept), "%", drawn=False,
    )  # fmt: skip


def rates(row, address, inputs):
    """`row`: bench.py's."""
    found = {decode: measure(address, inputs, decode) for decode in ("cpu", "gpu", "auto")}
    work = "JPEG 500x375 to bf16 3x224x224, decode"
    row(f"{work} cpu", found["cpu"][0], "images/s")
    row(f"{work} gpu", found["gpu"][0], "images/s", least=33_000)
    together = 0.9 * (found["gpu"][0] + 14 / 16 * found["cpu"][0])
    row(f"{work} {found['auto'][2]}", found["auto"][0], "images/s", least=round(together))
    for decode, (_, seconds, _) in found.items():
        row(f"CPU time of daemon and trainer for 1,000 images, decode {decode}", seconds, "s", most=0.15 if decode == "gpu" else None, drawn=False)
    shares(row, address, inputs)
    share_beside(row, address, inputs)
    print(f"{os.cpu_count()} CPUs")
