# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.Batcher` that feeds a GPU: right answers while clients, consumers and daemons are killed or stopped; rates and latency.

    batcher.py PINFEEDD ADDRESS INPUTS OUT

In: the daemon's program, a running daemon, the folder that make_inputs.py filled. Out: a line for each promise, OUT/batcher.json with the rates
(tests/bench/batcher_rates.py); exit status 1 when a promise is broken. A missed budget is only printed.
"""
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import time

import batcher_rates
import numpy as np
import pinfeed
import torch
from resident_feeds import Daemon

DEVICE = os.environ.get("DEVICE", "cuda:0")
TIMEOUT = 60
ARRAY = ("float32", (256,))
SPAWN = multiprocessing.get_context("spawn")
CYCLES = 200_000_000  # some 0.1 s of a kernel that is still running when its process is killed
broken = 0


def check(what, right):
    global broken
    broken += not right
    print(f"{'ok' if right else 'BROKEN'}  {what}", flush=True)


def eventually(is_true):
    """Whether it becomes true in time."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        if is_true():
            return True
        time.sleep(0.005)
    return False


# ---- the processes ---------------------------------------------------------------------------------------------------------------


def consume(address, name, sign, holds, pipe):
    """Answers each request with its first value times `sign`, from the GPU. `holds`: says that it has a batch, and never answers it."""
    batcher = pinfeed.Batcher(name, input=ARRAY, device=DEVICE, framework="torch", max_batch=4, max_delay=0.001, redeal=True, slots=8, address=address)
    pipe.send("ready")
    with contextlib.suppress(pinfeed.UnavailableError):
        for batch in batcher:
            if holds:
                torch.cuda._sleep(CYCLES)
                pipe.send(len(batch))
                signal.pause()
            batch.answer(batch.inputs[:, :1] * sign)
        raise RuntimeError("a batcher has no end")
    pipe.send("the daemon is gone")


def submit(address, name, pipe):
    """A client with requests in flight."""
    client = pinfeed.BatcherClient(name, address=address)
    futures = [client.submit(array(value)) for value in range(16)]
    pipe.send(len(futures))
    signal.pause()


def start(target, *arguments):
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*arguments, there), daemon=True)
    process.start()
    if not here.poll(TIMEOUT):
        raise RuntimeError("a process did not start")
    here.recv()
    return process, here


def kill(process):
    process.kill()
    process.join(TIMEOUT)


def array(value):
    return np.full(ARRAY[1], value, ARRAY[0])


def ask(client, values):
    futures = [client.submit(array(value)) for value in values]
    return [float(np.frombuffer(future.result(TIMEOUT), np.float32)[0]) for future in futures]


def feed_of(address, name):
    return next((feed for feed in pinfeed.status(address)["feeds"] if feed["name"] == name), {})


def start_daemon(program, folder):
    return Daemon(program, folder, folder, "--pool-bytes", "1GiB", "--pinned-bytes", "256MiB", "--gpu-bytes", "1GiB")


# ---- the promises ----------------------------------------------------------------------------------------------------------------


def images(address, inputs):
    """Answers from the GPU are those of the same images and transforms in the host's memory."""
    options = {"transforms": batcher_rates.TRANSFORMS, "max_batch": 16, "max_delay": 0.005, "max_answer_bytes": 64}
    pictures = batcher_rates.expected_answers(address, inputs / "jpeg", None)[:256]
    with pinfeed.Batcher("gpu-images", device=DEVICE, framework="torch", address=address, **options) as batcher:
        with pinfeed.BatcherClient("gpu-images", address=address, in_flight=64) as client:
            got, batches = {}, iter(batcher)
            for begin in range(0, len(pictures), 64):
                some = pictures[begin : begin + 64]
                futures = [client.submit(pathlib.Path(path).read_bytes()) for path, _ in some]
                on_gpu, answered = True, 0
                while answered < len(some):
                    batch = next(batches)
                    on_gpu &= batch.inputs.device == torch.device(DEVICE)
                    answered += batch.answer(batcher_rates.pixels_of(batch.inputs))
                got.update((path, future.result(TIMEOUT)) for (path, _), future in zip(some, futures))
    check("images arrive on the GPU", on_gpu)
    off = max(np.abs(np.frombuffer(got[path], np.float32) - np.frombuffer(expected, np.float32)).max() for path, expected in pictures)
    check(f"answers of {len(pictures)} images are those of the host (largest difference {off:g})", off <= 1e-5)


def deaths(address):
    """Consumers and clients that are killed, and one that is stopped."""
    held, there = start(consume, address, "gpu-deaths", 1, True)
    with pinfeed.BatcherClient("gpu-deaths", address=address, in_flight=32) as client:
        in_hand = [client.submit(array(value)) for value in range(1, 5)]
        assert there.poll(TIMEOUT)
        other, _ = start(consume, address, "gpu-deaths", -1, False)
        listed = {int(one["pid"]): int(one.get("requests_held", 0)) for one in feed_of(address, "gpu-deaths")["consumers"]}
        check("status shows what each consumer holds", listed == {held.pid: 4, other.pid: 0})
        kill(held)  # while its kernel runs
        answers = [float(np.frombuffer(future.result(TIMEOUT), np.float32)[0]) for future in in_hand]
        check("what a killed consumer had in hand is dealt again", answers == [-1, -2, -3, -4])
        killed, _ = start(submit, address, "gpu-deaths")
        kill(killed)
        check("a killed client disturbs nobody", ask(client, range(1, 33)) == [-value for value in range(1, 33)])
        stopped, _ = start(consume, address, "gpu-deaths", 1, False)
        check("a further consumer answers", eventually(lambda: 1.0 in ask(client, [1] * 32)))
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        answers = [value for _ in range(8) for value in ask(client, range(1, 33))]
        check("with one consumer stopped, the other answers all", set(answers) == set(range(-32, 0)) and len(answers) == 256)
        os.kill(stopped.pid, signal.SIGCONT)
        check("the stopped one answers again", eventually(lambda: 1.0 in ask(client, [1] * 32)))
        kill(stopped)
        kill(other)
        check("without a consumer the batcher ends", eventually(lambda: not feed_of(address, "gpu-deaths")))
    used = lambda: sum(int(gpu.get("arena_used_bytes", 0)) for gpu in pinfeed.status(address)["gpus"])  # noqa: E731
    check("the GPU's memory comes back", eventually(lambda: used() == 0))


def daemon_killed(program):
    """Both sides are told."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = start_daemon(program, folder)
        consumer, there = start(consume, daemon.address, "gpu-daemon", 1, True)
        with pinfeed.BatcherClient("gpu-daemon", address=daemon.address) as client:
            future = client.submit(array(1))
            assert there.poll(TIMEOUT)
            daemon.kill()
            check("a killed daemon fails the requests", isinstance(future.exception(TIMEOUT), pinfeed.UnavailableError))
        kill(consumer)
        daemon = start_daemon(program, folder)
        consumer, there = start(consume, daemon.address, "gpu-daemon", 3, False)
        with pinfeed.BatcherClient("gpu-daemon", address=daemon.address) as client:
            check("the next daemon serves", ask(client, [2]) == [6])
            daemon.kill()
            check("a consumer is told that its daemon is gone", there.poll(TIMEOUT) and there.recv() == "the daemon is gone")
        kill(consumer)


def rates(address, inputs, out):
    """The row of the benchmark, on the GPU."""
    found = batcher_rates.measure(address, inputs / "jpeg", DEVICE, rounds=3, seconds=4, processes=4)
    batcher_rates.show(found, DEVICE)
    text = {**dataclasses.asdict(found), "to": DEVICE, "of_feed": found.of_feed, "cores": len(os.sched_getaffinity(0))}
    (out / "batcher.json").write_text(json.dumps(text, indent=1) + "\n")
    check("every answer of the rates is right", True)  # else measure has raised


def main():
    program, address, inputs, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
    images(address, inputs)
    deaths(address)
    daemon_killed(program)
    rates(address, inputs, out)
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
