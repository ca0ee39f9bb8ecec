# SPDX-License-Identifier: Apache-2.0
"""Clients that misuse a session of theirs, each in a process that ends afterwards: hostile.py <what> <address> <dataset>.

What comes out, as JSON: what the test that started it is to compare.
"""
import contextlib
import json
import os
import pathlib
import random
import select
import socket
import struct
import subprocess
import sys
import threading

import grpc
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from raw_client import BYE, HELLO, LEAVE, WELCOME, Client, connect, frame, messages, open_feed, request_for  # noqa: E402

LOUD_BYTES = 64 << 10
SLOTS = 4


def spec_of(dataset, **options):
    return messages().FeedSpec(dataset=messages().DatasetSpec(path=dataset), batch_size=16, slots=SLOTS, **options)


def scribble(client, seed, stop, counts):
    draw = numpy.random.default_rng(seed)
    while not stop.is_set():
        client.release_page[:] = draw.integers(0, 256, client.release_page.size, numpy.uint8)
        client.release_page.view("u8")[:] = draw.integers(0, 8)  # old generations, and some that are lent
        client.release_page.view("u8")[:] = client.next + 100
        counts[seed] += 3


def hammer(address, dataset):
    """Two threads overwrite the release page; this one rings the doorbell, filled and made blocking first, until stdin ends and each has had its time."""
    client = Client(address, spec_of(dataset), client_name="scribbler")
    os.write(client.doorbell, struct.pack("=Q", (1 << 64) - 10))  # nearly as full as it gets
    os.set_blocking(client.doorbell, True)  # its flags are shared with the daemon, which must not care
    stop, counts, rings = threading.Event(), {1: 0, 2: 0}, 0
    threads = [threading.Thread(target=scribble, args=(client, seed, stop, counts)) for seed in counts]
    for thread in threads:
        thread.start()
    print("hammering", flush=True)
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    bell = struct.pack("=Q", 1)
    while not poll.poll(0) or rings <= 100 or sum(counts.values()) <= 100:
        os.write(client.doorbell, bell)
        rings += 1
        if rings % 8 == 0:
            os.read(client.doorbell, 8)  # lest the next write blocks
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts.values()), rings


def garbage(token):
    """Frames that are wrong in size, magic or kind, or whose contents are noise."""
    draw, good = random.Random(7), frame(HELLO, token)
    sizes = [1, 2, 7, 8, 16, 48, 255, 257, 512, 4095, 4096, 8192, LOUD_BYTES, *(draw.randrange(1, LOUD_BYTES) for _ in range(10))]
    out = [draw.randbytes(size) for size in sizes] + [draw.randbytes(256) for _ in range(10)]
    out += [bytes(8) + good[8:], good[:8] + bytes(4) + good[12:], good[:-1], good + b"\0"]
    return out + [frame(kind, token) for kind in (WELCOME, 6, 7, 8, 0xFFFFFFFF)]


def is_refused(lifeline, code=grpc.StatusCode.INVALID_ARGUMENT):
    answer = lifeline.recv(1024)
    assert len(answer) == 256 and answer[12] == code.value[0] and answer[48:].rstrip(b"\0"), answer
    assert lifeline.recv(1) == b""
    lifeline.close()


def frames(address, dataset):
    """Garbage as the first frame: the session stays open to its token. Then as the second one: that session is over."""
    offer = open_feed(address, request_for(spec_of(dataset)))
    lifelines = [connect(offer.lifeline_path) for _ in garbage(offer.token)]
    wrong = [*garbage(offer.token), frame(BYE, offer.token), frame(LEAVE, offer.token)]
    for bad in wrong:
        lifeline = connect(offer.lifeline_path)
        lifeline.send(bad)
        is_refused(lifeline)
    lifeline = connect(offer.lifeline_path)
    lifeline.send(b"")
    assert lifeline.recv(1) == b""
    for lifeline, bad in zip(lifelines, garbage(offer.token)):
        client = Client(address, spec_of(dataset), client_name="garbage")
        client.take()
        client.lifeline.send(bad)
        is_refused(client.lifeline)
        client.drop()
    return len(wrong) + len(lifelines)


def gifts_among(folder):
    """How many of a process's descriptors are /dev/null. It goes on meanwhile, and may close what was just listed."""
    count = 0
    for fd in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += os.stat(fd).st_rdev == os.stat("/dev/null").st_rdev
    return count


def descriptors(address, dataset):
    """Frames, right and wrong ones, that carry descriptors: the daemon must not keep one. Ends with a count of what it holds."""
    offer = open_feed(address, request_for(spec_of(dataset)))
    folder = pathlib.Path(f"/proc/{int(sys.stdin.readline())}/fd")
    before = gifts_among(folder)
    gifts, refused = [os.open("/dev/null", os.O_RDONLY) for _ in range(253)], 0
    for count in (1, 2, 4, 253):
        for bad in (frame(HELLO, offer.token), frame(BYE), b"x", b"", bytes(LOUD_BYTES)):
            lifeline = connect(offer.lifeline_path)
            refused += gives(lifeline, bad, gifts[:count])
    client = Client(address, spec_of(dataset), client_name="giver")
    refused += gives(client.lifeline, frame(BYE), gifts)
    client.drop()
    after = gifts_among(folder)
    return refused, before, after


def gives(lifeline, message, gifts):
    """Whether the daemon had to refuse it: from Linux 6.16 on, the kernel does."""
    try:
        socket.send_fds(lifeline, [message], gifts)
    except PermissionError:
        return False
    is_refused(lifeline)
    return True


def lingering():
    """A TCP socket whose close() waits for a peer that never reads, and what is to be kept open meanwhile."""
    listener = socket.create_server(("127.0.0.1", 0))
    fd = socket.create_connection(listener.getsockname())
    peer, _ = listener.accept()
    fd.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 300))
    fd.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            fd.send(bytes(1 << 20))
    return fd.detach(), peer


def unclosable(address, dataset):
    """Descriptors that take minutes to close, to both sockets, in messages that are read and in ones that are not."""
    kept = []
    for path in (address, open_feed(address, request_for(spec_of(dataset))).lifeline_path):
        for message in (b"x", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            fd, peer = lingering()
            kept.append(peer)
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if path == address else socket.SOCK_SEQPACKET)
            one.connect(path)
            kept.append(one)
            try:
                socket.send_fds(one, [message], [fd])
            except PermissionError:  # the kernel refuses it: Linux 6.16 and later; closing it here would take as long
                continue
            with contextlib.suppress(BrokenPipeError):
                socket.send_fds(one, [message], [fd])
            os.close(fd)  # the daemon's is the last one
    print("sent", flush=True)
    sys.stdin.readline()
    return len(kept)


def tokens(address, dataset):
    """Tokens that open nothing here: noise, another process's, one used before, one of a session that has ended."""
    refused = 0

    def refuse(token):
        nonlocal refused
        lifeline = connect(offer.lifeline_path)
        lifeline.send(frame(HELLO, token))
        is_refused(lifeline, grpc.StatusCode.UNAUTHENTICATED)
        refused += 1

    # It takes its time to start, and a session waits for its lifeline for a few seconds.
    thief = f"import sys; sys.path[:0] = {sys.path!r}; import hostile; print(flush=True); hostile.is_refused(hostile.greet(*input().split()), hostile.grpc.StatusCode.UNAUTHENTICATED)"
    other = subprocess.Popen([sys.executable, "-c", thief], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "\n"
    offer = open_feed(address, request_for(spec_of(dataset)))
    draw = random.Random(8)
    for token in (bytes(32), b"\xff" * 32, offer.token[:-1] + bytes([offer.token[-1] ^ 1]), bytes([offer.token[0] ^ 1]) + offer.token[1:]):
        refuse(token)
    for _ in range(50):
        refuse(draw.randbytes(32))
    other.communicate(f"{offer.lifeline_path} {offer.token.hex()}\n")
    assert other.returncode == 0
    refused += 1
    lifeline = connect(offer.lifeline_path)  # all that did not spoil it for its owner
    lifeline.send(frame(HELLO, offer.token))
    welcome, fds, _, _ = socket.recv_fds(lifeline, 1024, 8)
    assert welcome[12] == 0 and len(fds) == 4
    refuse(offer.token)
    lifeline.send(frame(BYE))
    assert lifeline.recv(1) == b""
    refuse(offer.token)
    return refused


def greet(path, token):
    lifeline = connect(path)
    lifeline.send(frame(HELLO, bytes.fromhex(token)))
    return lifeline


def generations(address, dataset):
    """Holds every slot and writes every generation but the lent ones. Ends when stdin does, then releases properly and reads on."""
    client = Client(address, spec_of(dataset), client_name="stale")
    batches = [client.take() for _ in range(SLOTS)]
    lent = {batch["slot"]: batch["generation"] for batch in batches}
    for wrong in (1 << 64, -1, 1, 2, 1 << 32, 1 << 63):  # 0, which is no release at all, not last: the daemon may look only then
        for slot, generation in lent.items():
            client.release_page[64 * slot :][:8].view("u8")[0] = (generation + wrong) % (1 << 64) if wrong != 1 << 64 else 0
            os.write(client.doorbell, struct.pack("=Q", 1))
    print("all wrong", flush=True)
    sys.stdin.read()
    assert client.next == SLOTS
    for batch in batches:
        client.release(batch)
    for number in range(SLOTS, 40):
        batch = client.take()
        assert batch["sequence"] == number
        client.release(batch)
    client.bye()
    return client.next


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
