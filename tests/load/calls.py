# SPDX-License-Identifier: Apache-2.0
"""As many calls on the gRPC socket as h2load can make, while a trainer reads on: none fails, the trainer does not stand still."""

import re
import subprocess

from clients import Trainers
from hardship import refusals
from place import nothing_left
from rows import Row, at_least, at_most

# A message of no bytes, as gRPC frames it: not compressed, length 0. It asks for the health of the daemon, or for the status of everything.
EMPTY = bytes(5)
CONNECTIONS, STREAMS = 8, 8


def h2load(daemon, place, method, calls):
    """{requests_s, p50_ms, p99_ms, good, data_bytes} of so many calls, all answered with status 200 of HTTP."""
    body, log = place.scratch / "body", place.scratch / "h2load.log"
    body.write_bytes(EMPTY)
    log.unlink(missing_ok=True)
    said = subprocess.run(
        ["h2load", "-n", str(calls), "-c", str(CONNECTIONS), "-m", str(STREAMS), "-d", str(body), "--log-file", str(log), "-B", f"unix:{daemon.address}",
         "-H", "content-type: application/grpc", "-H", "te: trailers", f"http://localhost/{method}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True, timeout=300,
    ).stdout
    took = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    good = re.search(r"(\d+) succeeded, 0 failed, 0 errored, 0 timeout", said)
    only_2xx = re.search(f"status codes: {calls} 2xx, 0 3xx, 0 4xx, 0 5xx", said)
    assert good and only_2xx and int(good[1]) == calls == len(took), said
    return {
        "requests_s": float(re.search(r"([\d.]+) req/s", said)[1]),
        "p50_ms": took[len(took) // 2] / 1000,
        "p99_ms": took[len(took) * 99 // 100] / 1000,
        "data_bytes": int(re.search(r"\((\d+)\) data", said)[1]),
    }


def measure(daemon, place, steady):
    health, status = (5_000, 2_000) if place.short else (200_000, 50_000)
    for name, method, calls in (("Health/Check", "grpc.health.v1.Health/Check", health), ("GetStatus", "pinfeed.v1.Feeder/GetStatus", status)):
        before = refusals(daemon)
        steady.tell()
        seen = h2load(daemon, place, method, calls)
        ((_, longest),) = steady.tell()
        failed = refusals(daemon) - before  # with an error of gRPC's, which HTTP does not show
        if name == "Health/Check":  # one that says SERVING is a message of two bytes
            failed += calls - seen["data_bytes"] / 7
        yield at_least(f"{name}, {CONNECTIONS} connections x {STREAMS} streams", seen["requests_s"], 1000, "calls/s")
        yield at_most("  p99 (p50 %.1f ms)" % seen["p50_ms"], seen["p99_ms"], 100, "ms", 1)
        yield Row(f"  of {calls:,} calls failed", f"{failed:.0f}", "0", failed == 0)
        yield at_most("  longest wait of a trainer meanwhile", longest * 1000, 250, "ms")


def run(place):
    with place.daemon("--pool-bytes", "256MiB") as daemon:
        with Trainers(daemon, place.numbers, step_s=0.005) as steady:
            steady.await_open()
            yield from measure(daemon, place, steady)
        yield nothing_left(daemon, "calls")
