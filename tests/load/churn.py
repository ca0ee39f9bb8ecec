# SPDX-License-Identifier: Apache-2.0
"""Feeds are opened and closed without end, while a trainer reads on: nothing grows."""

import json
import subprocess
import sys
import time

from clients import HERE, Trainers
from hardship import eventually, read_status, sessions_of
from place import nothing_left, resident_bytes
from rows import at_least, at_most, holds

A_MINUTE = 1000
WARM_OPENS = 200
# 10,000 sessions that each left a KiB would leave 10 MiB: less than any of their objects. What is below stays in the C library's heaps, which differ
# from run to run by as much.
MAY_GROW_MIB = 4


def openers(daemon, place, seconds, a_minute):
    """Two processes, one with the package and one with the plain client; together they keep that pace. What each did: {opens, a_minute, longest_s}."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "opener.py"), kind, daemon.address, str(place.numbers), str(seconds), str(a_minute / 2)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for kind in ("package", "plain")
    ]
    began, minutes = time.monotonic(), 0
    while any(process.poll() is None for process in processes):
        time.sleep(0.2)
        if (time.monotonic() - began) // 60 > minutes:
            minutes += 1
            place.say(f"churn: minute {minutes}: {read_status(daemon.address)['sessions_closed']} sessions closed, {resident_bytes(daemon.process.pid) / 2**20:.1f} MiB resident")
    done = [process.communicate() for process in processes]
    assert all(process.returncode == 0 for process in processes), [error for _, error in done]
    return [json.loads(out) for out, _ in done]


def run(place):
    with place.daemon("--pool-bytes", "256MiB") as daemon:
        openers(daemon, place, WARM_OPENS / 40, 40 * 60)  # until heaps have the size that the pace needs
        eventually("no session is left", lambda: not sessions_of(read_status(daemon.address)))
        before = resident_bytes(daemon.process.pid)
        with Trainers(daemon, place.numbers, step_s=0.01) as steady:
            steady.await_open()
            steady.tell()
            done = openers(daemon, place, place.seconds, 1.2 * A_MINUTE)
            (batches, longest), = steady.tell()
        opens = sum(each["opens"] for each in done)
        yield at_least(f"opens and closes, for {place.seconds:.0f} s", sum(each["a_minute"] for each in done), A_MINUTE, "a minute")
        yield holds("  opens, first two batches of each checked", f"{opens:,}; the longest took {max(each['longest_s'] for each in done) * 1000:.0f} ms")
        yield at_most(f"  longest wait of a trainer meanwhile ({batches:,} batches)", longest * 1000, 500, "ms")
        yield nothing_left(daemon, "opens and closes")
        yield at_most("  resident memory grew by", (resident_bytes(daemon.process.pid) - before) / 2**20, MAY_GROW_MIB, "MiB", 1)
