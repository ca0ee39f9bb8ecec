# SPDX-License-Identifier: Apache-2.0
"""What the device programs in Python do with feeds: open them, take batches, multiply matrices meanwhile, let another process take batches.

In: a daemon's address, the folder that make_inputs.py filled. Out: feeds, and seconds, rates and microseconds of one measurement each.
"""
import collections
import contextlib
import itertools
import json
import pathlib
import subprocess
import threading
import time

import pinfeed
import torch

HERE = pathlib.Path(__file__).resolve().parent
BATCH = 256
SAMPLE = 3 * 224 * 224  # bytes of one of the arrays
MATRIX = 4096
PRODUCTS = 4  # a step's
STEPS = 4000  # of a measurement of one piece
IN_FLIGHT = 3  # batches that the GPU may be behind, where nothing else bounds it
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEVICE = "cuda:0"


def feed_arguments(inputs, kind):
    """pinfeed.open's for one kind of samples."""
    normal = [pinfeed.Normalize(MEAN, STD), pinfeed.ToDtype("bfloat16")]
    images = dict(batch_size=BATCH, transforms=[pinfeed.RandomResizedCrop(224), pinfeed.RandomHorizontalFlip(), *normal])
    kinds = {
        "arrays": dict(dataset=inputs / "arrays", batch_size=BATCH),
        "tokens": dict(dataset=inputs / "tokens.bin", batch_size=8, sequence_length=2048),
        "jpeg": dict(dataset=inputs / "jpeg", **images),
        "shards": dict(dataset=inputs / "shards", **images),
    }
    return dict(kinds[kind], drop_last=True, device=DEVICE, backend="vmm-fd")


def open_feed(address, inputs, kind, **options):
    return pinfeed.open(**{**feed_arguments(inputs, kind), "shuffle": True, "address": address, "rank": 0, "world_size": 1, **options})


def endless(feed):
    while True:
        yield from feed


def arrays_spec(inputs, **more):
    """The arrays for feed_rate."""
    return {"dataset": {"path": str(inputs / "arrays")}, "order": "SHUFFLE", "batch_size": BATCH, "drop_last": True, "backend": "VMM_FD", **more}


def feed_rate(address, seconds, spec, *calls):
    """What a trainer in C++ says of that feed, see feed_rate.cc."""
    command = [HERE / "bin" / "feed_rate", address, str(seconds), json.dumps(spec), *map(str, calls)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


@contextlib.contextmanager
def neighbour(address, inputs, **more):
    """Another process takes the arrays' batches as fast as they come and puts nothing on the GPU. Yields a dict that has "gb_per_s" afterwards."""
    command = [HERE / "bin" / "feed_rate", address, "600", json.dumps(arrays_spec(inputs, **more)), "drop"]
    said = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout.readline() != "started\n":
            raise RuntimeError("the neighbour did not start")
        yield said
        if process.poll() is not None:
            raise RuntimeError("the neighbour ended before what was measured beside it")
        said.update(json.loads(process.communicate()[0]))


def turns_us(*calls, count=500):
    """Microseconds that calls take by turns (p50, p99 of each) of a trainer that is awake, 2 ms after the one before: by then a batch is ready."""
    taken = [[] for _ in calls]
    for _ in range(count):
        for call, times in zip(calls, taken):
            until = time.perf_counter_ns() + 2_000_000
            while time.perf_counter_ns() < until:
                pass
            before = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - before) / 1000)
            torch.cuda.synchronize()
    return [(times[count // 2], times[count * 99 // 100]) for times in map(sorted, taken)]


def product_tflops(seconds):
    """TFLOP/s of steps that took so long each."""
    return PRODUCTS * 2 * MATRIX**3 / seconds / 1e12


def tflops(steps, batches):
    """bf16 matrix products, and between them, if `batches` is given, batches as they come."""
    a = torch.randn(MATRIX, MATRIX, device=DEVICE, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    taken = 0

    def step():
        nonlocal taken
        if batches is not None:
            batch = next(batches)  # noqa: F841 - held until the step is queued
            taken += 1
        for _ in range(PRODUCTS):
            torch.mm(a, a, out=out)

    def wait():
        """For the products, not for what others have queued on the GPU."""
        end = torch.cuda.Event()
        end.record()
        end.synchronize()

    for _ in range(50):
        step()
    wait()
    done = [torch.cuda.Event() for _ in range(8)]
    taken, start = 0, time.perf_counter()
    for number in range(steps):
        # The GPU always has work ahead, some steps of it, as in training.
        done[number % 8].synchronize()
        step()
        done[number % 8].record()
    wait()
    took = time.perf_counter() - start
    return product_tflops(took / steps), taken * BATCH * SAMPLE / took / 1e9


def takes(batches, stride=1):
    """Takes a batch for each next(), as fast as they come; the GPU stays IN_FLIGHT * stride of them behind. Yields the batch's length."""
    events = collections.deque()
    for number in itertools.count():
        batch = next(batches)
        if number % stride == 0:
            event = torch.cuda.Event(blocking=True)  # waiting for it takes no CPU time
            event.record()
            events.append(event)
            if len(events) > IN_FLIGHT:
                events.popleft().synchronize()
        yield len(batch[0])


def tflops_beside(taken, pace, steps):
    """The products of a loop that takes no batch, while a thread takes them (`takes`) on a stream of its own: `pace` samples a second, or, with None, as
    they come. Returns TFLOP/s, and the samples a second that the thread got."""
    stop, counts, failed = threading.Event(), [0], []

    def run():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                start, due = time.perf_counter(), 0
                while not stop.is_set():
                    if pace is not None:
                        left = start + due / pace - time.perf_counter()
                        if left > 0 and stop.wait(left):
                            break
                    got = next(taken)
                    due += got
                    counts[0] += got
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        tflops(steps // 4, None)
        count, start = counts[0], time.perf_counter()
        fed = tflops(steps, None)[0]
        rate = (counts[0] - count) / (time.perf_counter() - start)
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
    return fed, rate
