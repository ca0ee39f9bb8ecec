# SPDX-License-Identifier: Apache-2.0
"""Processes of the tests over the stand-in driver: a daemon with a GPU, trainers on it."""
import atexit
import concurrent.futures
import functools
import json
import os
import pathlib
import subprocess
import sys
import threading

import pinfeed
from daemon_process import Daemon
from warm_python import WarmPython
from withstand.hardship import eventually

TRAINER = pathlib.Path(__file__).with_name("device_trainer.py")
BACKENDS = ["vmm-fd", "cuda-ipc"]


def start(folder, data, *flags):
    sizes = ("--pool-bytes", "512MiB", "--pinned-bytes", "192MiB", "--gpu-bytes", "192MiB", "--workers", "2")
    return Daemon(folder, "--allowed-roots", str(data), "--gpus", "on", "--drain-timeout", "1s", *sizes, *flags)


@functools.lru_cache(maxsize=None)
def warm_trainers():
    """Starts trainers. The loader reads LD_LIBRARY_PATH as a process begins: all trainers have that of the first call."""
    imports = "import device_trainer, pinfeed._feed.open, pinfeed.transforms, pinfeed._base.daemon"
    warm = WarmPython(f"import sys; sys.path.insert(0, {str(TRAINER.parent)!r}); {imports}")
    atexit.register(warm.close)
    return warm


def trainer(address, batches, env=None, within=(), **options):
    """`within`: a command that runs the trainer."""
    arguments = [address, str(batches), json.dumps(options)]
    if not within:  # imports take longer than the batches of most
        return warm_trainers().run("import device_trainer; device_trainer.main()", *arguments, stderr=True, env=env)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*within, sys.executable, str(TRAINER), *arguments], **pipes, text=True, env={**os.environ, **(env or {})})


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
