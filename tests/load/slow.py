# SPDX-License-Identifier: Apache-2.0
"""Who reads slowly, or not at all, or keeps its batches, holds nobody up: on HTTP, on gRPC, as a trainer."""

import contextlib
import socket
import time

from clients import Trainers
from deaf_caller import many_calls
from hardship import read_status
from place import nothing_left, resident_bytes
from raw_client import Client, connect, messages
from rows import at_least, at_most

def slow_http(daemon):
    """A connection that asked for the metrics, and takes what comes in small buffers."""
    out = socket.socket()
    out.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    out.connect(("127.0.0.1", int((daemon.folder / "http.port").read_text())))
    out.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return out


def measure(daemon, place, seconds, crowd):
    steady = crowd.enter_context(Trainers(daemon, place.numbers, feeds=2, step_s=0.005))
    steady.await_open()
    had = sum(batches for batches, _ in steady.tell())
    time.sleep(seconds)  # undisturbed
    alone = sum(batches for batches, _ in steady.tell()) - had
    before = resident_bytes(daemon.process.pid)

    spec = messages().FeedSpec(dataset=messages().DatasetSpec(path=str(place.numbers)), batch_size=8, slots=4)
    for _ in range(20):
        holder = Client(daemon.address, spec)
        crowd.callback(holder.bye)
        for _ in range(4):
            holder.take()
    for _ in range(50):
        crowd.enter_context(connect(daemon.address, socket.SOCK_STREAM)).sendall(many_calls(64))
    readers = [crowd.enter_context(slow_http(daemon)) for _ in range(40)]

    had = sum(batches for batches, _ in steady.tell())
    began, probes, statuses = time.monotonic(), [], []
    while time.monotonic() - began < seconds:
        for reader in readers:
            with contextlib.suppress(OSError):  # its time is up
                reader.recv(1)
        asked = time.monotonic()
        assert daemon.http("/healthz")[0] == 200
        probes.append(time.monotonic() - asked)
        assert read_status(daemon.address)["state"] == "ready"
        statuses.append(time.monotonic() - asked - probes[-1])
        time.sleep(max(0, 1 - probes[-1] - statuses[-1]))  # a byte a second
    now = steady.tell()
    beside = (sum(batches for batches, _ in now) - had) * seconds / (time.monotonic() - began)
    yield at_least("a trainer's speed beside 40 slow readers of HTTP, 50 deaf callers, 20 holders", beside / alone * 100, 70, "%")
    yield at_most("  its longest wait", max(longest for _, longest in now) * 1000, 500, "ms")
    yield at_most("  longest /healthz", max(probes) * 1000, 1000, "ms")
    yield at_most("  longest GetStatus, behind those of the deaf", max(statuses) * 1000, 3000, "ms")
    yield at_most("  the daemon's memory grew by", (resident_bytes(daemon.process.pid) - before) / 2**20, 64, "MiB", 1)


def run(place):
    with place.daemon("--pool-bytes", "256MiB") as daemon:
        with contextlib.ExitStack() as crowd:
            yield from measure(daemon, place, 4 if place.short else 30, crowd)
        yield nothing_left(daemon, "slow readers")
