# SPDX-License-Identifier: Apache-2.0
"""A mount that does not answer: who wants a dataset there is told so, and all others are served, the same user's included."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import numpy
import pinfeed
import pytest
from daemon_process import Daemon
from deaf_mount import FLUSH
from hardship import eventually
from raw_client import SYS_FUTEX

TRAINERS = 40  # more than the daemon has threads for calls


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
    calls = []
    for task in pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            if (task / "comm").read_text() == "dataset\n":
                calls.append((task / "syscall").read_text())
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


@pytest.fixture
def sticky(deaf_mount):
    """A file there opens and is read, and its close is not answered."""
    return deaf_mount(numpy.arange(64), deaf_to=(FLUSH,))


def read_all(path, daemon, open_timeout=30):
    with pinfeed.open(path, batch_size=4, framework="numpy", address=daemon.address, epochs=1, open_timeout=open_timeout) as feed:
        assert len(list(feed)) == 16


def test_a_dataset_that_does_not_close_holds_up_nothing_else(tmp_path, sticky):
    flags = ("--allowed-roots", "/", "--workers", "1", "--pool-bytes", "64MiB", "--dataset-cache", "0", "--stuck-timeout", "1s")
    daemon = Daemon(tmp_path / "run", *flags)
    numpy.save(tmp_path / "x.npy", numpy.arange(64))
    read_all(f"{sticky.path}/x.npy", daemon)
    eventually("it is being closed", lambda: sticky.left[FLUSH] == 1)
    eventually("its memory is back", lambda: int(pinfeed.status(daemon.address)["pool_used_bytes"]) == 0)
    read_all(tmp_path / "x.npy", daemon)

    def refusal():
        with pytest.raises(pinfeed.DeadlineExceededError) as refused:
            read_all(f"{sticky.path}/x.npy", daemon, open_timeout=1)
        return str(refused.value)

    # On a busy machine the daemon's words may come after the client's own.
    told = re.compile(f"open dataset '{sticky.path}/x.npy': not done after .*; its storage has been asked for")
    eventually("the daemon says why it does not open", lambda: told.search(refusal()))

    def hung():
        return [(thread["thread"], thread["operation"]) for thread in pinfeed.status(daemon.address).get("hung", [])]

    named = [("dataset", f"closing dataset '{sticky.path}/x.npy'")]
    eventually(hung, lambda: hung() == named)
    eventually(daemon.log, lambda: f"{named[0][1]} has taken" in daemon.log())
    # Nor the end. The kernel keeps the process until the close is answered, which the next daemon does not wait for.
    daemon.process.send_signal(signal.SIGTERM)
    eventually(daemon.log, lambda: "pinfeedd ends" in daemon.log())
    assert f"{named[0][1]} is not done; the daemon exits without waiting for it" in daemon.log()
    following = Daemon(tmp_path / "run", *flags)
    read_all(tmp_path / "x.npy", following)
    following.stop()
    sticky.end()
    assert daemon.process.wait(60) == 0


def test_a_daemon_ends_soon_though_a_dataset_is_being_opened(tmp_path, hung):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", "/", "--workers", "1", "--pool-bytes", "64MiB")
    told = []

    def trainer():
        with pytest.raises(pinfeed.Error) as refused:
            pinfeed.open(f"{hung.path}/x.npy", batch_size=4, framework="numpy", address=daemon.address, open_timeout=5)
        told.append(str(refused.value))

    waiting = threading.Thread(target=trainer)
    waiting.start()
    eventually("a thread is there", lambda: at_the_mount(daemon) == 1)
    daemon.stop()  # with status 0, which a daemon that is ended by its limit has not
    assert f"opening dataset '{hung.path}/x.npy' is not done" in daemon.log()
    hung.end()
    waiting.join()
    assert told
