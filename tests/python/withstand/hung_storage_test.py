# SPDX-License-Identifier: Apache-2.0
"""A mount that does not answer: who wants a dataset there is told so, and all others are served, the same user's included."""

import os
import pathlib
import subprocess
import threading
import time

import numpy
import pinfeed
import pytest
from daemon_process import Daemon
from hardship import eventually
from raw_client import SYS_FUTEX
from silent_mount import SilentMount

TRAINERS = 40  # more than the daemon has threads for calls


@pytest.fixture
def hung(tmp_path):
    folder = tmp_path / "hung"
    folder.mkdir()
    try:
        mount = SilentMount(folder)
    except OSError as error:
        pytest.skip(f"a file system that does not answer needs the right to mount one: {error}")
    yield mount
    mount.end()


@pytest.fixture
def daemon(tmp_path, hung):
    config = tmp_path / "config.toml"
    config.write_text(f'[datasets.away]\npath = "{hung.path}/x.npy"\n[datasets.here]\npath = "{tmp_path}/x.npy"\n')
    numpy.save(tmp_path / "x.npy", numpy.arange(64))
    started = Daemon(tmp_path / "run", "--config", str(config), "--allowed-roots", "/", "--workers", "1", "--pool-bytes", "64MiB")
    yield started
    hung.end()
    started.stop()


def at_the_mount(daemon):
    """How many of the daemon's threads for datasets are in a system call other than the one in which they wait for work."""
    tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir()
    calls = [(task / "syscall").read_text() for task in tasks if (task / "comm").read_text() == "dataset\n"]
    assert calls
    return sum(not call.startswith((f"{SYS_FUTEX} ", "running")) for call in calls)


def test_trainers_that_try_again_hold_one_thread_and_leave_the_others_to_all(daemon, hung, tmp_path):
    over = threading.Event()
    errors = []

    def trainer():
        while not over.is_set():
            with pytest.raises(pinfeed.Error) as refused:
                pinfeed.open(f"{hung.path}/x.npy", batch_size=4, framework="numpy", address=daemon.address, open_timeout=1)
            errors.append(refused.value)

    trainers = [threading.Thread(target=trainer) for _ in range(TRAINERS)]
    for one in trainers:
        one.start()
    try:
        eventually("all have tried twice", lambda: len(errors) >= 2 * TRAINERS)
        assert at_the_mount(daemon) == 1
        before = time.monotonic()
        with pinfeed.open(tmp_path / "x.npy", batch_size=4, framework="numpy", address=daemon.address, epochs=1, open_timeout=30) as feed:
            assert len(list(feed)) == 16
        print(f"opened and read beside {TRAINERS} trainers in {time.monotonic() - before:.2f} s")
        told = [error for error in errors if f"open dataset '{hung.path}/x.npy': not done after" in str(error)]
        assert told and all(isinstance(error, pinfeed.DeadlineExceededError) for error in told), set(map(str, errors))
    finally:
        over.set()
        for one in trainers:
            one.join()
    assert at_the_mount(daemon) == 1
    # Once it answers, be it with an error, that is what the next one hears.
    hung.end()
    eventually("nobody waits there", lambda: at_the_mount(daemon) == 0)
    with pytest.raises(pinfeed.Error, match="x.npy") as refused:
        pinfeed.open(f"{hung.path}/x.npy", batch_size=4, framework="numpy", address=daemon.address)
    assert not isinstance(refused.value, pinfeed.DeadlineExceededError)


def test_datasets_are_listed_without_the_one_that_hangs(daemon, hung):
    listed = subprocess.run([pathlib.Path(os.environ["PINFEED_BUILD_DIR"]) / "client" / "cli" / "pinfeed", "--address", daemon.address, "datasets"], capture_output=True, text=True, timeout=60)
    assert "here" in listed.stdout and "64" in listed.stdout
    assert "its storage has been asked for" in listed.stdout + listed.stderr
    assert at_the_mount(daemon) == 1
