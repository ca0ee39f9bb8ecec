# SPDX-License-Identifier: Apache-2.0
"""A daemon that cannot stop, with a thread that not even a kill ends: what it had of the host is free for the next one all the same."""

import pathlib
import signal
import socket

import numpy
import pinfeed
import pytest
from daemon_process import Daemon
from hardship import eventually
from member_process import Printer

SAMPLES = 64
READER = """
import sys, pinfeed
feed = pinfeed.open(sys.argv[1], batch_size=4, address=sys.argv[2], framework="numpy", reconnect_timeout=0)
while True:
    for batch in feed:
        print(batch.index, flush=True)
"""


@pytest.fixture
def deaf(deaf_mount):
    return deaf_mount(numpy.arange(SAMPLES))


def states_of(pid):
    """The state of the process, and those of its threads: 'Z' is one that has ended and is waited for, 'D' waits and is not to be killed."""

    def state(path):
        try:
            return path.read_text().rpartition(")")[2].split()[0]
        except OSError:  # it ended meanwhile
            return ""

    folder = pathlib.Path(f"/proc/{pid}")
    return state(folder / "stat"), [state(task / "stat") for task in (folder / "task").iterdir()]


def read_through(daemon, dataset):
    with pinfeed.open(dataset, batch_size=4, framework="numpy", address=daemon.address, epochs=1) as feed:
        return sum(len(batch[0]) for batch in feed)


def ends_but_for_a_thread(pid):
    """Whether a process has ended, but for a thread that cannot be killed."""
    process, threads = states_of(pid)
    return process == "Z" and "D" in threads


def test_the_next_daemon_serves_although_the_last_one_cannot_be_ended(tmp_path, deaf):
    numpy.save(tmp_path / "x.npy", numpy.arange(SAMPLES))
    flags = ("--allowed-roots", "/", "--pool-bytes", "64MiB", "--workers", "1", "--drain-timeout", "100ms")
    first = Daemon(tmp_path / "run", *flags, http_listen="127.0.0.1:0")
    reader = None
    try:
        port = (first.folder / "http.port").read_text().strip()
        assert read_through(first, f"{deaf.path}/x.npy") == SAMPLES
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(first.address)
        connection.settimeout(60)
        reader = Printer("-c", READER, f"{deaf.path}/x.npy", first.address)
        assert reader.readline()
        deaf.go_deaf()
        assert deaf.heard.wait(60), first.log()
        first.process.send_signal(signal.SIGTERM)
        # It has 30 s to stop. Then it is at its end, but for the thread that waits.
        eventually(lambda: f"{states_of(first.process.pid)}\n{first.log()}", lambda: ends_but_for_a_thread(first.process.pid), 120)
        assert first.process.poll() is None and "the daemon exits without a clean shutdown" in first.log()
        while connection.recv(1 << 16):  # who is connected is hung up on
            pass
        connection.close()
        second = Daemon(tmp_path / "run", *flags, http_listen=f"127.0.0.1:{port}")
        assert states_of(first.process.pid)[0] == "Z" and first.process.poll() is None
        assert second.http("/readyz") == (200, "ok\n")
        assert read_through(second, tmp_path / "x.npy") == SAMPLES
        second.stop()
        deaf.end()
        assert first.process.wait(60) == 1
    finally:
        deaf.end()
        if first.process.poll() is None:
            first.process.kill()
        first.process.wait(60)
        if reader is not None:
            reader.kill()
