# SPDX-License-Identifier: Apache-2.0
"""Hostile HTTP/2 of every kind, at full speed, on the Unix socket and by TLS: the daemon stays small, others are served, feeds go on."""

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import pinfeed
from attack_sender import KINDS
from certificates import Authority
from clients import Trainers
from place import nothing_left
from rows import Row, at_most

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
SENDERS, CONNECTIONS = 2, 8  # processes, and connections of each
MAY_GROW = 64 * MIB
MAY_KEEP = 24 * MIB
STEP_S = 0.005  # of the trainers: what a feed loses is not hidden by how fast it could be


def private_bytes(pid):
    """What a control group would charge for the heap and the stacks; the arenas are the pool's."""
    return next(int(line.split()[1]) << 10 for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))


class Watcher:
    """Calls GetStatus again and again, and looks at the daemon's memory."""

    def __init__(self, daemon):
        self.daemon, self.waits, self.largest, self.error, self.stopped = daemon, [], 0, None, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopped:
            try:
                began = time.monotonic()
                pinfeed.status(self.daemon.address)
                self.waits.append(time.monotonic() - began)
                self.largest = max(self.largest, private_bytes(self.daemon.process.pid))
            except Exception as error:  # told at the end of the phase
                self.error = error
                return
            time.sleep(0.01)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped = True
        self.thread.join()


def p99_ms(waits):
    return sorted(waits)[len(waits) * 99 // 100] * 1000


@contextlib.contextmanager
def helper(*arguments):
    """attack_sender.py in a process of its own."""
    process = subprocess.Popen([sys.executable, str(HERE / "attack_sender.py"), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def sink(**options):
    with helper(json.dumps(options)) as process:
        yield {**options, "address": process.stdout.readline().strip()}


def send(senders, **attack):
    """(bytes sent, connections made) by all senders together."""
    for one in senders:
        one.stdin.write(json.dumps({**attack, "connections": CONNECTIONS}) + "\n")
        one.stdin.flush()
    said = [json.loads(one.stdout.readline()) for one in senders]
    return sum(one["bytes"] for one in said), sum(one["connections"] for one in said)


def rate(steady, act):
    """Batches a second meanwhile."""
    ((before, _),) = steady.tell()
    began = time.monotonic()
    result = act()
    ((after, _),) = steady.tell()
    return (after - before) / (time.monotonic() - began), result


class Phase:
    """One kind of attack on one socket: beside it, and beside the same senders writing into a sink."""

    def __init__(self, daemon, place, steady, senders, kind, target, sink_target):
        seconds = 0.5 if place.short else 5
        self.kind = kind
        self.beside_sink, _ = rate(steady, lambda: send(senders, kind=kind, seconds=seconds / 2, **sink_target))
        with Watcher(daemon) as watcher:
            self.beside_daemon, (sent, made) = rate(steady, lambda: send(senders, kind=kind, seconds=seconds, **target))
        assert daemon.process.poll() is None, f"the daemon ended:\n{daemon.log()}"
        assert watcher.error is None, f"GetStatus beside {kind}: {watcher.error}"
        self.largest, self.waits = watcher.largest, watcher.waits
        place.say(f"{kind}: {sent / MIB / seconds:,.1f} MiB/s over {made:,} connections; daemon {self.largest / MIB:.1f} MiB, p99 {p99_ms(self.waits):.0f} ms "
                  f"of {len(self.waits)} calls, feed {self.beside_daemon:.0f} of {self.beside_sink:.0f} batches/s")


def verdicts(name, phases):
    """p99 of calls, and what feeds lose."""
    waits = [wait for phase in phases for wait in phase.waits]
    daemon, sink = (sum(getattr(phase, side) for phase in phases) for side in ("beside_daemon", "beside_sink"))
    yield at_most(f"  p99 of {len(waits):,} honest GetStatus, {name}", p99_ms(waits), 100, "ms")
    yield at_most(f"  what a feed loses against a sink, {name}", max(0.0, 1 - daemon / sink) * 100, 5, "%", 1)


def measure(daemon, place, steady, senders, name, target, sink_target):
    place.say(name)
    phases = [Phase(daemon, place, steady, senders, kind, target, sink_target) for kind in KINDS]
    grown = max(phase.largest for phase in phases) - daemon.at_rest
    yield Row(f"{name}: memory beside {len(KINDS)} kinds of attacks", f"{grown / MIB:+.1f} MiB", f"<= +{MAY_GROW / MIB:.0f} MiB", grown <= MAY_GROW)
    if place.short:  # half a second of a kind has too few calls for a p99
        yield from verdicts("all kinds", phases)
    else:
        for phase in phases:
            yield from verdicts(phase.kind, [phase])


def run(place):
    certificates = pathlib.Path(tempfile.mkdtemp(dir=place.scratch))
    authority = Authority(certificates, "ca")
    server, operator = authority.sign("server", "IP:127.0.0.1"), authority.sign("x", "DNS:ops.example")
    flags = ["--admin-listen", "127.0.0.1:0", "--admin-cert", str(server.cert), "--admin-key", str(server.key), "--admin-ca", str(authority.cert),
             "--admin-clients", "ops.example"]  # fmt: skip
    tls = {"ca": str(authority.cert), "cert": str(operator.cert), "key": str(operator.key), "server_cert": str(server.cert), "server_key": str(server.key)}
    with place.daemon("--pool-bytes", "256MiB", *flags) as daemon:
        port = int(re.search(r"listens with TLS on \S+, port (\d+)", daemon.log())[1])
        with Trainers(daemon, place.numbers, step_s=STEP_S) as steady:
            steady.await_open()
            daemon.at_rest = private_bytes(daemon.process.pid)
            with contextlib.ExitStack() as stack:
                senders = [stack.enter_context(helper()) for _ in range(SENDERS)]
                plain, secure = stack.enter_context(sink(address=str(certificates / "sink"))), stack.enter_context(sink(tls=tls))
                yield from measure(daemon, place, steady, senders, "Unix socket", {"address": daemon.address}, plain)
                yield from measure(daemon, place, steady, senders, "TLS", {"address": f"127.0.0.1:{port}", "tls": tls}, secure)
        yield nothing_left(daemon, "attacks")
        kept = private_bytes(daemon.process.pid) - daemon.at_rest
        yield Row("  memory kept after all attacks", f"{kept / MIB:+.1f} MiB", f"<= +{MAY_KEEP / MIB:.0f} MiB", kept <= MAY_KEEP)
