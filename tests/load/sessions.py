# SPDX-License-Identifier: Apache-2.0
"""As many sessions at once as max_sessions allows: all are fed right, one more is refused by name."""

import contextlib
import time

import pinfeed
from clients import Trainers
from hardship import census, read_status, sessions_of
from place import nothing_left, resident_bytes
from rows import at_least, holds

PROCESSES = 8


def run(place):
    sessions = 64 if place.short else 256
    each = 50
    with place.daemon("--pool-bytes", "1GiB", "--max-sessions", str(sessions)) as daemon:
        resident = resident_bytes(daemon.process.pid)
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            houses = [stack.enter_context(Trainers(daemon, place.numbers, feeds=sessions // PROCESSES, most=each, step_s=0.01)) for _ in range(PROCESSES)]
            for house in houses:
                house.await_open()
            opened = time.monotonic() - began
            status = read_status(daemon.address)
            attached = sum(session["state"] == "attached" for session in sessions_of(status))
            yield at_least("sessions open at once", attached, sessions, "sessions")
            yield holds("  all opened, by 8 processes that start meanwhile", f"{opened:.1f} s")
            yield refused_by_name(daemon, place)
            deadline = time.monotonic() + 120
            while any(batches < each for house in houses for batches, _ in house.tell()):
                assert time.monotonic() < deadline, [house.tell() for house in houses]
                time.sleep(0.1)
            taken = sum(batches for house in houses for batches, _ in house.tell())
            yield at_least("  batches that they took, every number checked", taken, sessions * each, "batches")
            full = census(daemon)
            private = resident_bytes(daemon.process.pid) - resident - full.pool_used_bytes
            yield holds("  descriptors, memory beside arenas", f"{full.fds} ({(full.fds - daemon.at_start.fds) / sessions:.1f} a session), {private / sessions / 1024:.0f} KiB a session")
        yield nothing_left(daemon, f"{sessions} sessions")


def refused_by_name(daemon, place):
    try:
        place.take_some(daemon)
    except pinfeed.ResourceExhaustedError as error:
        return holds("  one more is refused", "RESOURCE_EXHAUSTED, max_sessions", "max_sessions" in str(error))
    return holds("  one more is refused", "it was let in", False)
