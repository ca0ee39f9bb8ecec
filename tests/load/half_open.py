# SPDX-License-Identifier: Apache-2.0
"""Hundreds of connections that say nothing, or half of something, on every socket: honest clients are let in."""

import contextlib
import socket

import pinfeed
from clients import Trainers, is_reached
from deaf_caller import PREFACE, h2_frame
from hardship import eventually, metrics
from place import nothing_left
from raw_client import HELLO, connect, frame
from rows import at_most, holds

# What is said on each socket before falling silent; on the lifeline, where a frame comes whole or is refused, nothing.
TO_GRPC = (b"", PREFACE[:10], PREFACE, PREFACE + h2_frame(4, 0, 0), PREFACE + h2_frame(4, 0, 0) + h2_frame(1, 4, 1, bytes(40))[:20])
TO_HTTP = (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
TO_LIFELINE = (b"", frame(HELLO)[:100])
A_SHARE = 512  # of the connections: a user's


def connect_http(daemon):
    return socket.create_connection(("127.0.0.1", int((daemon.folder / "http.port").read_text())), timeout=20)


def open_all(daemon, crowd, of_each):
    lifeline = str(daemon.folder / "lifeline.sock")
    for index in range(of_each):
        for words, dial in (
            (TO_GRPC, lambda: connect(daemon.address, socket.SOCK_STREAM)), (TO_LIFELINE, lambda: connect(lifeline)), (TO_HTTP, lambda: connect_http(daemon)),
        ):
            one = crowd.enter_context(dial())
            with contextlib.suppress(OSError):  # it may be closed by now to make room
                one.sendall(words[index % len(words)])


def measure(daemon, place, of_each, crowd):
    steady = crowd.enter_context(Trainers(daemon, place.numbers, step_s=0.005))
    steady.await_open()
    steady.tell()
    with contextlib.ExitStack() as flood:
        open_all(daemon, flood, of_each)
        waits = [place.take_some(daemon) for _ in range(10)]
        assert daemon.http("/readyz")[0] == 200
        yield at_most(f"an honest open among {3 * of_each} half-open connections, the longest of 10", max(waits) * 1000, 2000, "ms")
        ((batches, longest),) = steady.tell()
        yield at_most(f"  longest wait of a trainer meanwhile ({batches:,} batches)", longest * 1000, 250, "ms")

    # More than one user may have: they are closed and counted, and the user is served again when the others go.
    with contextlib.ExitStack() as flood:
        turned_away = 'pinfeed_refusals_total{reason="descriptors"}'
        before = metrics(daemon)[turned_away]
        for _ in range(A_SHARE + 50):
            flood.enter_context(connect(daemon.address, socket.SOCK_STREAM))
        eventually("the rest was closed", lambda: metrics(daemon)[turned_away] >= before + 50)
        try:
            place.take_some(daemon)
            yield holds("  beyond a user's share of connections", "it was let in", False)
        except pinfeed.Error as error:
            yield holds("  beyond a user's share of connections", f"{error.code.name}: {str(error)[:60]}")
    eventually("the user is served again", lambda: is_reached(daemon))
    ((batches, longest),) = steady.tell()
    yield at_most(f"  longest wait of a trainer meanwhile ({batches:,} batches)", longest * 1000, 250, "ms")


def run(place):
    with place.daemon("--pool-bytes", "256MiB") as daemon:
        with contextlib.ExitStack() as crowd:
            yield from measure(daemon, place, 60 if place.short else 300, crowd)
        yield nothing_left(daemon, "half-open connections")
