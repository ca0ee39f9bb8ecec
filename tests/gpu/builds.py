# SPDX-License-Identifier: Apache-2.0
"""Builds of the daemon in turns on all GPUs of one host: what a change of it, or of one of its constants, does to trainers on several GPUs.

    builds.py INPUTS OUT NAME=PINFEEDD... [--rows shards,broadcast,cache] [--turns N] [--seconds S] [--within S]      (INPUTS: of make_inputs.py)

PINFEEDD may be a script that starts one with other settings.

The memory of one host gives a third more in one minute than in the next, so the daemons run side by side, and each is measured in each turn. Rows:
disjoint shards, all GPUs together; one broadcast from the page cache; one from the processor's cache. Prints each turn, and writes OUT/builds.json,
which tests/bench/publish_gpu.py can put into docs/benchmarks.md.
"""
import argparse
import collections
import contextlib
import json
import pathlib
import tempfile
import time

import grid
import pinfeed
import several_gpus
import torch
from resident_feeds import Daemon


def daemon(stack, program, inputs):
    """The running daemon of a program. Several fit on one host, so it has a small part of the memory."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    running = Daemon(program, folder, inputs, "--gpu-bytes", "6GiB", "--pinned-bytes", "3GiB")
    stack.callback(running.stop)
    return running


def waited(daemon):
    """Seconds that its feeds waited, by cause, that it computed, and how often the scheduler stopped one of its threads, all since it started."""
    stopped = 0
    for entry in pathlib.Path(f"/proc/{daemon.process.pid}/task").glob("*/status"):
        stopped += int(entry.read_text().rsplit("nonvoluntary_ctxt_switches:", 1)[1])
    status = pinfeed.status(daemon.address)
    gpus = {key: sum(float(gpu[key]) for gpu in status["gpus"]) / (1e9 if "bytes" in key else 1) for key in ("copied_bytes", "copy_seconds", "queue_seconds")}
    gpus["chunks"] = int(status["worker_chunks"])
    return {**status["stall_seconds"], **gpus, "cpu": daemon.cpu_seconds(), "preempted": stopped}


def measured(address, inputs, what, turn, seconds):
    """GB/s: of shards the sum, of a broadcast what the slowest member gets."""
    count = torch.cuda.device_count()
    if what == "shards":
        return several_gpus.shards_gbs(address, inputs, count, seconds)
    source = several_gpus.few_arrays(inputs, 1024) if what == "cache" else inputs / "arrays"
    return several_gpus.broadcast_gbs(address, inputs, source, count, f"{what}{turn}", seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("builds", nargs="+", metavar="NAME=PINFEEDD")
    parser.add_argument("--rows", default="shards,broadcast,cache")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--within", type=float, default=400, metavar="S", help="begin no turn that would end later; a row of one build takes some 10 s more than --seconds")
    arguments = parser.parse_args()
    programs = {name: pathlib.Path(program) for name, _, program in (build.partition("=") for build in arguments.builds)}
    rows = arguments.rows.split(",")
    if unknown := set(rows) - {"shards", "broadcast", "cache"}:
        parser.error(f"--rows: {', '.join(sorted(unknown))}: expected shards, broadcast, cache")
    seen = collections.defaultdict(list)
    with contextlib.ExitStack() as stack:
        daemons = {name: daemon(stack, program, arguments.inputs) for name, program in programs.items()}
        begin, longest = time.monotonic(), 0.0
        for turn in range(arguments.turns):
            start = time.monotonic()
            if start - begin + longest > arguments.within:
                print(f"{turn} of {arguments.turns} turns, since another one would take too long")
                break
            for what in rows:
                for name, running in daemons.items():
                    before = waited(running)
                    seen[name, what].append(measured(running.address, arguments.inputs, what, turn, arguments.seconds))
                    after = waited(running)
                    print(f"  {what}, {name}: {seen[name, what][-1]:.1f} GB/s,", ", ".join(f"{key} {after[key] - before[key]:.2f}" for key in after), flush=True)
                print(f"turn {turn + 1} of {arguments.turns}, {what}: {', '.join(f'{name} {seen[name, what][-1]:.1f}' for name in daemons)}", flush=True)
            longest = max(longest, time.monotonic() - start)
    first = next(iter(programs))
    table = grid.Grid(f"builds of the daemon in turns, {torch.cuda.device_count()} GPUs, medians of shares of {first}", ["build", *rows])
    for name in programs:
        table.lines.append((name, [grid.cell(seen[name, what], "GB/s", of=None if name == first else seen[first, what]) for what in rows]))
    print(table.markdown())
    (arguments.out / "builds.json").write_text(json.dumps([table.as_json()]))


if __name__ == "__main__":
    main()
