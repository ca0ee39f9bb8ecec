# SPDX-License-Identifier: Apache-2.0
"""Processes of the tests over the stand-in driver: a daemon with a GPU, trainers on it."""
import concurrent.futures
import json
import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import signal
import subprocess
import sys
import threading

import device_trainer
import pinfeed
from daemon_process import Daemon
from withstand.hardship import eventually

TRAINER = pathlib.Path(device_trainer.__file__)
BACKENDS = ["vmm-fd", "cuda-ipc"]
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["device_trainer", "pinfeed._feed.open", "pinfeed.transforms", "pinfeed._base.daemon"])


def start(folder, data, *flags):
    sizes = ("--pool-bytes", "512MiB", "--pinned-bytes", "192MiB", "--gpu-bytes", "192MiB", "--workers", "2")
    return Daemon(folder, "--allowed-roots", str(data), "--gpus", "on", "--drain-timeout", "1s", *sizes, *flags)


def fork_server():
    """Starts it at the first call. The loader reads LD_LIBRARY_PATH as a process begins: all trainers have this one's."""
    before = os.environ["PYTHONPATH"]
    os.environ["PYTHONPATH"] = f"{TRAINER.parent}:{before}"
    multiprocessing.forkserver.ensure_running()
    os.environ["PYTHONPATH"] = before


class Trainer:
    """device_trainer.py in a process, to be used as a subprocess.Popen. It is forked from one that has imported all it needs: that takes longer than
    the batches of most."""

    def __init__(self, arguments, env):
        fork_server()
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = (os.pipe() for _ in range(3))
        self.stdin, self.stdout, self.stderr = os.fdopen(ours_in, "w"), os.fdopen(ours_out), os.fdopen(ours_err)
        theirs = (theirs_in, theirs_out, theirs_err)
        self._process = FORKED.Process(target=device_trainer.forked, args=(device_trainer.Passed(theirs), arguments, env), daemon=True)
        self._process.start()
        for fd in theirs:
            os.close(fd)
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    poll = returncode.fget

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("device_trainer.py", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=120):
        """What it has printed, and what it has said, until its end."""
        return read_out(self, timeout)


def trainer(address, batches, env=None, within=(), **options):
    """`within`: a command that runs the trainer."""
    arguments = [address, str(batches), json.dumps(options)]
    env = {**os.environ, **(env or {})}
    if not within:
        return Trainer(arguments, env)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*within, sys.executable, str(TRAINER), *arguments], **pipes, text=True, env=env)


def read_out(process, timeout=120):
    """Popen.communicate() loses what an earlier readline() has in its buffer."""
    process.stdin.close()
    late = threading.Timer(timeout, process.kill)
    late.start()
    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        said = reader.submit(process.stderr.read)
        out = process.stdout.read()
        errors = said.result()
    process.wait()
    late.cancel()
    return out, errors


def finish(process):
    """What a trainer printed, batch by batch, and its last line."""
    out, errors = read_out(process)
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
