# SPDX-License-Identifier: Apache-2.0
"""Hostile HTTP/2 of every kind, at full speed, on the Unix socket and by TLS: the daemon stays small, others are served, feeds go on."""

import contextlib
import json
import pathlib
import subprocess
import sys
import threading
import time

import pinfeed
from attack_sender import KINDS
from certificates import Authority
from clients import Trainers
from hardship import eventually
from place import nothing_left
from rows import Row, at_most

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
SENDERS, CONNECTIONS = 2, 8  # processes, and connections of each
MAY_GROW = 64 * MIB
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

    def p99_ms(self):
        return sorted(self.waits)[len(self.waits) * 99 // 100] * 1000


@contextlib.contextmanager
def sender(**options):
    process = subprocess.Popen([sys.executable, str(HERE / "attack_sender.py"), json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def send(kind, seconds, **target):
    """(bytes sent, connections made) by all senders together."""
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(sender(kind=kind, seconds=seconds, connections=CONNECTIONS, **target)) for _ in range(SENDERS)]
        said = [json.loads(one.stdout.readline()) for one in crowd]
    return sum(one["bytes"] for one in said), sum(one["connections"] for one in said)


def rate(steady, act):
    """Batches a second meanwhile."""
    ((before, _),) = steady.tell()
    began = time.monotonic()
    result = act()
    ((after, _),) = steady.tell()
    return (after - before) / (time.monotonic() - began), result


def measure(daemon, place, steady, name, target, sink_target):
    seconds = 1 if place.short else 5
    start = private_bytes(daemon.process.pid)
    worst_loss, worst_ms, largest = 0.0, 0.0, 0
    for kind in KINDS:
        beside_sink, _ = rate(steady, lambda: send(kind, seconds, **sink_target))
        with Watcher(daemon) as watcher:
            beside_daemon, (sent, made) = rate(steady, lambda: send(kind, seconds, **target))
        assert daemon.process.poll() is None, f"the daemon ended:\n{daemon.log()}"
        assert watcher.error is None, f"GetStatus beside {kind}: {watcher.error}"
        grown = watcher.largest - start
        loss = max(0.0, 1 - beside_daemon / beside_sink)
        place.say(f"{name}, {kind}: {sent / MIB / seconds:,.1f} MiB/s over {made:,} connections; daemon {grown / MIB:+.1f} MiB, p99 {watcher.p99_ms():.0f} ms "
                  f"of {len(watcher.waits)} calls, feed {beside_daemon:.0f} of {beside_sink:.0f} batches/s")
        worst_loss, worst_ms, largest = max(worst_loss, loss), max(worst_ms, watcher.p99_ms()), max(largest, grown)
    yield Row(f"{name}: the daemon's memory beside {len(KINDS)} kinds of attacks", f"{largest / MIB:+.1f} MiB", f"<= +{MAY_GROW / MIB:.0f} MiB", largest <= MAY_GROW)
    yield at_most("  p99 of an honest GetStatus, the worst kind", worst_ms, 100, "ms")
    yield at_most("  what a feed loses against a sink, the worst kind", worst_loss * 100, 5, "%", 1)


def run(place):
    authority = Authority(place.scratch, "ca")
    server, operator = authority.sign("server", "IP:127.0.0.1"), authority.sign("x", "DNS:ops.example")
    flags = ["--admin-listen", "127.0.0.1:0", "--admin-cert", str(server.cert), "--admin-key", str(server.key), "--admin-ca", str(authority.cert), "--admin-clients", "ops.example"]
    tls = {"ca": str(authority.cert), "cert": str(operator.cert), "key": str(operator.key), "server_cert": str(server.cert), "server_key": str(server.key)}
    with place.daemon("--pool-bytes", "256MiB", *flags) as daemon:
        at_start = private_bytes(daemon.process.pid)
        port = int(daemon.log().split("served over TLS on ")[1].split(", port ")[1].split()[0].rstrip(";,"))
        with Trainers(daemon, place.numbers, step_s=STEP_S) as steady:
            steady.await_open()
            with sender(kind="sink", address=str(place.scratch / "sink")) as sink:
                yield from measure(daemon, place, steady, "Unix socket", {"address": daemon.address}, {"address": sink.stdout.readline().strip()})
            with sender(kind="sink", tls=tls) as sink:
                yield from measure(daemon, place, steady, "TLS", {"address": f"127.0.0.1:{port}", "tls": tls}, {"address": sink.stdout.readline().strip(), "tls": tls})
        yield nothing_left(daemon, "attacks")
        eventually(lambda: f"the memory is given back: {(private_bytes(daemon.process.pid) - at_start) / MIB:+.1f} MiB", lambda: private_bytes(daemon.process.pid) - at_start <= MAY_GROW)
