# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share: what the daemon holds, counted; its metrics; a trainer in a process of its own that checks every number."""

import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy
import pinfeed
from daemon_process import Daemon

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 60
SAMPLES, WIDTH = 512, 64


def eventually(what, is_true, deadline_s=DEADLINE_S):
    """Polls until is_true() is, and returns what it returned; fails with the last answer of what()."""
    deadline = time.monotonic() + deadline_s
    while True:
        answer = is_true()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"did not come within {deadline_s} s: {what() if callable(what) else what}"
        time.sleep(0.005)


def read_status(address):
    return pinfeed.status(address)


def sessions_of(status):
    return [session for feed in status["feeds"] for session in feed.get("sessions", [])]


def feed_of(status, client_name):
    """The feed that has a session of this name."""
    return next(feed for feed in status["feeds"] if any(session["client_name"] == client_name for session in feed.get("sessions", [])))


Census = collections.namedtuple("Census", "fds threads memfd_maps maps sessions pool_used_bytes")


def threads_of(pid):
    """{name: how many} of the threads of a process; the kernel keeps 15 letters of a name."""
    names = collections.Counter()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            names[(task / "comm").read_text().strip()] += 1
    return dict(sorted(names.items()))


def is_stopped(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


READERS = {f"reader{number}" for number in range(32)}  # begun with the first slow read, whenever that is; they stay


def readers(threads):
    return sum(threads.get(name, 0) for name in READERS)


def census(daemon):
    """What the daemon holds right now, without its readers' stacks and the pages that guard them. Its own count of descriptors must be the kernel's:
    both are taken, without our connection.
    """
    status = read_status(daemon.address)
    pid = daemon.process.pid
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    threads = threads_of(pid)
    return Census(
        len(os.listdir(f"/proc/{pid}/fd")),
        threads,
        sum("/memfd:" in line for line in maps),
        len(maps) - 2 * readers(threads),
        len(sessions_of(status)),
        int(status["pool_used_bytes"]),
    )


def census_at_rest(daemon):
    """The least of what it holds, looked at again and again: a connection that has just hung up, that of the look itself included, is still counted."""
    return min((census(daemon) for _ in range(50)), key=lambda one: one.fds)


def await_census(daemon, before):
    """Waits until descriptors, shared memory, sessions and pool are back at what they were."""
    last = []

    def is_back():
        now = census(daemon)
        last[:] = [now]
        # Threads of gRPC's may end later; they are compared at the very end, in census_test.py.
        return all(getattr(now, name) == getattr(before, name) for name in ("fds", "memfd_maps", "sessions", "pool_used_bytes"))

    eventually(lambda: f"{last[0]} is not {before}; open: {[os.readlink(f'/proc/{daemon.process.pid}/fd/{fd}') for fd in os.listdir(f'/proc/{daemon.process.pid}/fd')]}", is_back)
    return last[0]


def metrics(daemon):
    """{name with labels: value} of /metrics."""
    code, text = daemon.http("/metrics")
    assert code == 200
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and line[0] != "#"}


def refusals(daemon):
    return sum(value for name, value in metrics(daemon).items() if name.startswith("pinfeed_refusals_total"))


def start_daemon(folder, *flags, roots="/", pool="512MiB", **options):
    return Daemon(folder, "--allowed-roots", str(roots), "--pool-bytes", pool, "--workers", "2", *flags, **options)


class Reader:
    """reader.py in a process of its own: reads a feed, checks every number of every batch, and counts where all can see it."""

    def __init__(self, folder, address, dataset, **options):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        numpy.zeros(1, numpy.uint64).tofile(self.folder / "progress")
        self._progress = numpy.memmap(self.folder / "progress", numpy.uint64, "r")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "reader.py"), address, str(dataset), str(self.folder / "progress"), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def batches(self):
        return int(self._progress[0])

    def advance(self, batches, deadline_s=DEADLINE_S):
        """Returns when so many more batches were read."""
        goal = self.batches + batches
        eventually(lambda: f"{self.batches} batches read, {goal} expected", lambda: self.batches >= goal or self.process.poll() is not None, deadline_s)
        assert self.process.poll() is None, self.process.communicate()[1]

    def finish(self):
        """Ends it (or waits for the end of its feed when it has one) and returns what it saw: a list of (epoch, index, ids) of batches."""
        out, error = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, error
        return [tuple(batch) for batch in json.loads(out)]

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


def check_order(batches, seed, batch_size, dataset, address):
    """The batches are those of a feed that nobody disturbed, one after the other."""
    assert batches
    expected = []
    with pinfeed.open(dataset, batch_size=batch_size, shuffle=True, seed=seed, sample_ids=True, framework="numpy", address=address) as feed:
        while len(expected) < len(batches):
            for batch in feed:
                expected.append((batch.epoch, batch.index, batch.sample_id.tolist()))
                del batch
    for got, want in zip(batches, expected):
        assert got == want
    for epoch in range(batches[-1][0]):  # the whole ones
        assert sorted(number for batch in batches if batch[0] == epoch for number in batch[2]) == list(range(SAMPLES))
