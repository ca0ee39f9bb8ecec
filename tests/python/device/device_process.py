# SPDX-License-Identifier: Apache-2.0
"""Processes of the tests over the stand-in driver: a daemon with a GPU, trainers on it."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading

import pinfeed
from daemon_process import Daemon
from withstand.hardship import eventually

TRAINER = pathlib.Path(__file__).with_name("device_trainer.py")
BACKENDS = ["vmm-fd", "cuda-ipc"]


def start(folder, data, *flags):
    sizes = ("--pool-bytes", "512MiB", "--pinned-bytes", "192MiB", "--gpu-bytes", "192MiB", "--workers", "2")
    return Daemon(folder, "--allowed-roots", str(data), "--gpus", "on", "--drain-timeout", "1s", *sizes, *flags)


def trainer(address, batches, env=None, within=(), **options):
    """`within`: a command that runs the trainer."""
    return subprocess.Popen(
        [*within, sys.executable, str(TRAINER), address, str(batches), json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )


def finish(process):
    """What a trainer printed, batch by batch, and its last line."""
    # Not communicate(), which loses what an earlier readline() has in its buffer.
    process.stdin.close()
    late = threading.Timer(120, process.kill)
    late.start()
    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        said = reader.submit(process.stderr.read)
        out = process.stdout.read()
        errors = said.result()
    process.wait()
    late.cancel()
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in out.splitlines()]
    return lines[:-1], lines[-1], errors


def gpu(daemon):
    return pinfeed.status(daemon.address)["gpus"][0]


def used(daemon):
    return int(gpu(daemon)["arena_used_bytes"])


def await_unused(daemon):
    """Until the memory of all GPUs is back: the daemon frees it on a thread of its own."""
    used = lambda: [int(one["arena_used_bytes"]) for one in pinfeed.status(daemon.address)["gpus"]]  # noqa: E731
    eventually(used, lambda: not any(used()))
