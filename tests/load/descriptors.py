# SPDX-License-Identifier: Apache-2.0
"""A daemon with few descriptors: opens are refused by name, what is open goes on, and there is room again when some of it ends."""

import contextlib
import functools
import os
import socket

import pinfeed
from clients import Feed, Trainers, fill, is_reached, try_open
from hardship import eventually, read_status, sessions_of
from place import nothing_left
from raw_client import connect
from rows import holds


def measure(daemon, place, limit, steady):
    make = functools.partial(Feed, daemon, place.numbers, batch_size=8)
    feeds, error = fill(make)
    named = isinstance(error, pinfeed.ResourceExhaustedError) and "descriptors" in str(error) and "LimitNOFILE" in str(error)
    yield holds(f"RLIMIT_NOFILE {limit}: the feed after {len(feeds) + 1} open ones", f"{error.code.name}, with the numbers and what to do", named and feeds)
    assert named, error
    for feed in feeds:
        feed.take(10)
    assert len(sessions_of(read_status(daemon.address))) == len(feeds) + 1 and daemon.http("/readyz")[0] == 200

    # Silent connections on top, until none is accepted any more.
    with contextlib.ExitStack() as flood:
        for index in range(limit):
            path, kind = ((daemon.folder / "lifeline.sock", socket.SOCK_SEQPACKET), (daemon.address, socket.SOCK_STREAM))[index % 2]
            flood.enter_context(connect(str(path), kind))
        eventually("connections were turned away", lambda: "refused (descriptors)" in daemon.log())
        open_fds = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
        for feed in feeds:
            feed.take(10)
        yield holds("  an open when not one is left", unanswered(make))
    eventually("it is reached again", lambda: is_reached(daemon))
    yield holds("  what is open goes on, also in a flood of connections", f"{20 * len(feeds)} batches checked; {open_fds} of {limit} descriptors open")

    for feed in feeds[:2]:
        feed.feed.close()
    again = eventually("there is room again", lambda: try_open(make))
    again.take(10)
    yield holds("  once two are closed another is let in", "yes")
    for feed in (*feeds, again):
        feed.feed.close()
    assert steady.tell()[0][0] > 0


def unanswered(make):
    """What an honest client hears that the daemon cannot accept."""
    try:
        make(open_timeout=1)
    except (pinfeed.DeadlineExceededError, pinfeed.UnavailableError) as error:
        return f"{error.code.name}: {str(error)[:60]}..."
    raise AssertionError("it was let in")


def run(place):
    for limit in (64, 128):
        with place.daemon("--pool-bytes", "256MiB", under=("prlimit", f"--nofile={limit}:{limit}")) as daemon:
            with Trainers(daemon, place.numbers, step_s=0.005) as steady:
                steady.await_open()
                yield from measure(daemon, place, limit, steady)
            yield nothing_left(daemon, "descriptors ran out")
