# SPDX-License-Identifier: Apache-2.0
"""Clients that are killed: forks one after the other and kills each at a random point of its life. Reads how many from stdin, line by
line, and answers each line with what was killed where, as JSON. Asked for "20 spared", it forks as many and lets each leave in order.

The forking process itself never opens a channel: gRPC does not survive a fork.
"""
import collections
import json
import os
import pathlib
import random
import select
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from raw_client import HELLO, Client, connect, frame, messages, open_feed, request_for  # noqa: E402

SLOTS = 4
PHASES = ["open", "offered", "hello", "holding", "waiting", "running", "ended by bye"]


def live(phase, holds, spec, address, tell):
    """A client's life up to a phase; `tell` says that it has come to it."""
    if phase == "open":
        tell()
    if phase in ("offered", "hello"):
        offer = open_feed(address, request_for(spec, client_name="victim"))
        if phase == "hello":
            lifeline = connect(offer.lifeline_path)
            tell()
            lifeline.send(frame(HELLO, offer.token))
        tell()
        signal.pause()
    client = Client(address, spec, client_name="victim")
    if phase == "running":
        tell()
        while True:
            client.release(client.take())
    if phase == "ended by bye":
        client.take()
        tell()
        client.bye()
        os._exit(0)
    for _ in range(SLOTS if phase == "waiting" else holds):
        client.take()
    tell()
    if phase == "waiting":
        client.take(3600)
    signal.pause()


def kill_one(draw, phase, spec, address, spared):
    reader, writer = os.pipe()
    holds, delay = draw.randrange(SLOTS + 1), draw.random() * 0.03
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            live(phase, holds, spec, address, lambda: os.write(writer, b"."))
        except BaseException as error:  # told, not raised: this is a copy of the parent
            os.write(2, f"a victim failed in phase {phase}: {error!r}\n".encode())
        os._exit(1)
    os.close(writer)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    assert poll.poll(60000) and os.read(reader, 1) == b".", f"a victim ended before phase {phase}"
    if phase in ("open", "hello", "running", "ended by bye"):
        time.sleep(delay)  # how far it comes is left to chance
    os.close(reader)
    if not spared:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or (phase == "ended by bye" and status == 0), f"phase {phase}: {status}"


def main():
    address, dataset, seed = sys.argv[1:]
    draw = random.Random(int(seed))
    wire = messages()
    spec = wire.FeedSpec(dataset=wire.DatasetSpec(path=dataset), batch_size=16, slots=SLOTS)
    for line in sys.stdin:
        killed = collections.Counter()
        count, *spared = line.split()
        for _ in range(int(count)):
            phase = PHASES[-1] if spared else draw.choice(PHASES)
            kill_one(draw, phase, spec, address, spared)
            killed[phase] += 1
        print(json.dumps(killed), flush=True)


main()
