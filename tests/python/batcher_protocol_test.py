# SPDX-License-Identifier: Apache-2.0
"""Clients and consumers of a batcher that do not keep to docs/protocol.md, with raw sockets and a real daemon. Another client is served meanwhile.

Long because: each rule of the protocol that a process can break is a case.
"""

import functools
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

import grpc
import numpy as np
import PIL.Image
import pytest
from batchers import ARRAY, TIMEOUT, Model, array, serving
from raw_client import MAGIC, SERVICE, call, connect, frame, map_memfd, messages
from withstand import hardship

import pinfeed
from pinfeed._batcher import batcher as _batcher, client as _batcher_client

JOIN, REQUEST, CANCEL, ANSWERED, TAKE, ANSWER = 9, 10, 11, 12, 13, 14
INVALID, EXHAUSTED, UNAUTHENTICATED = 3, 8, 16
HOST_FLAGS = ("--pool-bytes", "128MiB", "--pending-timeout", "2s")
pytestmark = pytest.mark.filterwarnings("ignore:.* max_delay is in seconds")  # long ones tell what closes a batch
NAME = "raw"
eventually = functools.partial(hardship.eventually, deadline_s=20)


@pytest.fixture
def serve(host, memory_is_free):
    """Opens the batcher, whose model answers each request with its input. At the end all memory comes back."""
    with serving(np.array, address=host.address, max_delay=0.001) as make:
        yield functools.partial(make, NAME)


def invite(host, consumer=False, slots=3, max_request_bytes=4096, name=NAME):
    """The daemon's BatcherInvitation. Raises grpc.RpcError."""
    wire = messages()
    request = wire.JoinBatcherRequest(name=name, consumer=consumer, slots=slots, max_request_bytes=max_request_bytes)
    return call(host.address, "JoinBatcher", request, wire.BatcherInvitation)


def refused(host, **options):
    with pytest.raises(grpc.RpcError) as refusal:
        invite(host, **options)
    return refusal.value.code().value[0], refusal.value.details()


class Raw:
    """Section 14 of the page: a client or a consumer that does whatever it is told."""

    def __init__(self, place):
        self.place = place
        self.socket = connect(place.lifeline_path)
        self.socket.send(frame(JOIN, place.token))
        answer, fds, _, _ = socket.recv_fds(self.socket, 4096, 4)
        self.code = struct.unpack_from("=I", answer, 12)[0]
        if self.code:
            assert not fds and self.hung_up()
            return
        self.memory = map_memfd(fds[0], place.memory_bytes, 3)
        for fd in fds:
            os.close(fd)

    def send(self, kind, *, epoch=0, batch_index=0, timeout_us=0, slot=0, size=0):
        self.socket.send(packed(kind, epoch, batch_index, timeout_us, slot, size))

    def receive(self):
        """(code, slot, bytes, text) of an answer."""
        data = self.socket.recv(4096)
        assert len(data) == 256 and struct.unpack_from("=QI", data) == (MAGIC["Lifeline frame"], ANSWERED)
        return (*struct.unpack_from("=I", data, 12), *struct.unpack_from("=II", data, 40), data[48:].rstrip(b"\0").decode())

    def hung_up(self):
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionError:
            pass
        return True

    def write(self, slot, content):
        at = slot * self.place.slot_stride
        self.memory[at : at + len(content)] = np.frombuffer(content, np.uint8)

    def answer_of(self, slot, size):
        at = slot * self.place.slot_stride + self.place.answer_offset
        return self.memory[at : at + size].tobytes()

    def set_length(self, row, length):
        at = self.place.length_offset + 8 * row
        self.memory[at : at + 8] = np.frombuffer(struct.pack("=q", length), np.uint8)

    def close(self):
        self.memory = None
        self.socket.close()


def packed(kind, epoch=0, batch_index=0, timeout_us=0, slot=0, size=0, magic=None):
    out = bytearray(frame(kind))
    struct.pack_into("=QQQII", out, 16, epoch, batch_index, timeout_us, slot, size)
    if magic is not None:
        struct.pack_into("=Q", out, 0, magic)
    return bytes(out)


def is_served(host, *values):
    with pinfeed.BatcherClient(NAME, address=host.address) as client:
        futures = [client.submit(array(value)) for value in values or (1, 2, 3)]
        assert [future.result(TIMEOUT) for future in futures] == [array(value).tobytes() for value in values or (1, 2, 3)]


WRONG = {
    "too short": [packed(REQUEST, size=12)[:-1]],
    "a byte": [b"x"],
    "too long": [packed(REQUEST, size=12) + b"\0"],
    "long": [bytes(60000)],
    "another magic": [packed(REQUEST, size=12, magic=0)],
    "no kind": [packed(0)],
    "the daemon's kind": [packed(ANSWERED)],
    "an unknown kind": [packed(2**32 - 1)],
    "another join": [packed(JOIN)],
    "a slot behind the last": [packed(REQUEST, slot=3, size=12)],
    "slot 2^32 - 1": [packed(REQUEST, slot=2**32 - 1, size=12)],
    "a cancel of such a slot": [packed(CANCEL, slot=2**32 - 1)],
    "more bytes than the slot has": [packed(REQUEST, size=13)],
    "2^32 - 1 bytes": [packed(REQUEST, size=2**32 - 1)],
    "a slot twice": [packed(REQUEST, size=12), packed(REQUEST, size=12)],
    "a take": [packed(TAKE)],
    "an answer": [packed(ANSWER)],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_client_s_wrong_frame_ends_its_connection_alone(serve, host, what):
    serve(max_delay=0.2)
    raw = Raw(invite(host))
    for wrong in WRONG[what]:
        raw.socket.send(wrong)
    assert raw.hung_up()
    raw.close()
    is_served(host)


WRONG_OF_A_CONSUMER = {
    "a request": packed(REQUEST),
    "a cancel": packed(CANCEL),
    "too short": packed(TAKE)[:-1],
    "too long": packed(ANSWER) + b"\0",
    "another magic": packed(TAKE, magic=1),
    "another join": packed(JOIN),
}


@pytest.mark.parametrize("what", WRONG_OF_A_CONSUMER)
def test_a_consumer_s_wrong_frame_ends_its_connection_alone(serve, host, what):
    serve()
    raw = Raw(invite(host, consumer=True))
    raw.socket.send(WRONG_OF_A_CONSUMER[what])
    assert raw.hung_up()
    raw.close()
    is_served(host)


def test_descriptors_in_a_frame_end_the_connection(serve, host):
    serve()
    raw = Raw(invite(host))
    try:
        socket.send_fds(raw.socket, [packed(REQUEST, size=12)], [0, 0, 0])
        assert raw.hung_up()
    except PermissionError:  # the kernel refuses them: Linux 6.16 and later
        pass
    raw.close()
    is_served(host)


def test_requests_of_wrong_sizes_are_answered_and_times_are_clamped(serve, host):
    serve()
    raw = Raw(invite(host))
    for size in (0, 1, 11):
        raw.send(REQUEST, slot=1, size=size)
        code, slot, _, text = raw.receive()
        assert (code, slot) == (INVALID, 1) and f"{size} bytes" in text
    for value, timeout_us in enumerate((0, 2**63, 2**64 - 1)):
        raw.write(2, array(value).tobytes())
        raw.send(REQUEST, slot=2, size=12, timeout_us=timeout_us)
        assert raw.receive() == (0, 2, 12, "") and raw.answer_of(2, 12) == array(value).tobytes()
    raw.send(CANCEL, slot=0)  # has no request
    raw.send(REQUEST, slot=0, size=12)
    assert raw.receive()[:2] == (0, 0)
    raw.close()


def test_a_refused_request_takes_no_memory(serve, host):
    serve(model=False, max_answer_bytes=16 << 20, max_batch=1)
    client = Raw(invite(host, slots=3))

    def shared():
        with open(f"/proc/{host.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssShmem"))

    before = shared()
    for slot in range(3):
        client.send(REQUEST, slot=slot, size=11)
        assert client.receive()[:2] == (INVALID, slot)
    assert shared() - before < 1024
    client.close()


def test_a_client_that_never_reads_is_hung_up_on(serve, host):
    serve()
    raw = Raw(invite(host))
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(100_000):
            raw.send(REQUEST, size=1)  # refused at once, and so its slot is free
    raw.close()
    is_served(host)


def test_a_request_that_changes_while_it_is_read_harms_nobody(serve, host):
    out = io.BytesIO()
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)).save(out, "JPEG")
    image = out.getvalue()
    serve(input="image", transforms=[pinfeed.Resize((8, 8))], max_batch=2)
    raw, over = Raw(invite(host, max_request_bytes=65536)), threading.Event()
    wrong = np.random.default_rng(1).integers(0, 255, len(image), np.uint8).tobytes()

    def scribble():
        while not over.is_set():
            raw.write(0, image)
            raw.write(0, wrong)

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    try:
        with pinfeed.BatcherClient(NAME, address=host.address) as client:
            expected = client.submit(image).result(TIMEOUT)
            for _ in range(200):
                raw.send(REQUEST, slot=0, size=len(image))
                assert client.submit(image).result(TIMEOUT) == expected
                assert raw.receive()[1] == 0
    finally:
        over.set()
        scribbler.join()
    raw.close()


LENGTHS = {"more than fits": 201, "the largest": 2**63 - 1, "the least": -(2**63), "a long error": -202, "an error without a text": -1}  # texts have 200 bytes


@pytest.mark.parametrize("what", LENGTHS)
def test_an_answer_s_wrong_length_fails_its_request_alone(serve, host, what):
    batcher = serve(model=False, max_batch=2, max_delay=60, max_answer_bytes=16)
    raw = Raw(invite(host, consumer=True))
    with pinfeed.BatcherClient(NAME, address=host.address) as client:
        futures = [client.submit(array(value)) for value in (1, 2)]
        batch = next(iter(batcher))
        position = {"epoch": batch.tensors.epoch, "batch_index": batch.tensors.index}
        raw.send(ANSWER, size=2, **position)
        assert raw.receive() == (0, 0, 0, "")  # another consumer's
        raw.send(TAKE, **position)
        assert raw.receive() == (0, 0, 2, "")
        assert batch.answer([b"x", b"y"]) == 0  # not this one's any more
        raw.set_length(1, LENGTHS[what])
        for count in (0, 1, 3, 2**32 - 1):
            raw.send(ANSWER, size=count, **position)
            assert raw.receive()[0] == INVALID
        raw.send(ANSWER, size=2, **position)
        assert raw.receive() == (0, 0, 2, "")
        assert futures[0].result(TIMEOUT) == b""
        with pytest.raises(pinfeed.Error, match="max_answer_bytes" if LENGTHS[what] > 0 else "answered with an error"):
            futures[1].result(TIMEOUT)
    for position in ({"epoch": 2**64 - 1}, {"batch_index": 2**64 - 1}, {}):
        for kind in (TAKE, ANSWER):
            raw.send(kind, **position)
            assert raw.receive() == (0, 0, 0, "")
    raw.close()


def test_an_invitation_works_once_and_for_its_process_alone(serve, host):
    serve()
    place = invite(host)
    script = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.send(bytes.fromhex(sys.argv[2])); print(s.recv(256)[12])"
    other = subprocess.run([sys.executable, "-c", script, place.lifeline_path, frame(JOIN, place.token).hex()], check=True, capture_output=True, text=True)
    assert other.stdout.strip() == str(UNAUTHENTICATED)
    raw = Raw(place)  # the other process has not used it up
    assert raw.code == 0
    for token in (place.token, bytes(32), os.urandom(32)):
        place.token = token
        assert Raw(place).code == UNAUTHENTICATED
    raw.close()


def test_nonsensical_joins_are_refused(serve, host):
    serve(input="image", transforms=[pinfeed.Resize((8, 8))])
    for slots in (0, 2, 65, 2**32 - 1):
        assert refused(host, slots=slots)[0] == INVALID
    assert refused(host, max_request_bytes=0)[0] == INVALID
    assert refused(host, name="nobody")[0] == grpc.StatusCode.NOT_FOUND.value[0]
    place = invite(host, max_request_bytes=2**32 - 1)
    assert place.max_request_bytes == 4 << 20
    Raw(place).close()


def test_invitations_that_nobody_uses_are_limited_and_expire(serve, host):
    serve()
    wire = messages()
    request = wire.JoinBatcherRequest(name=NAME, slots=3)
    with grpc.insecure_channel(f"unix:{host.address}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(SERVICE + "JoinBatcher", wire.JoinBatcherRequest.SerializeToString, wire.BatcherInvitation.FromString)
        asked = [call.future(request, timeout=20) for _ in range(400)]
        codes = [one.code() for one in asked]
    assert codes.count(grpc.StatusCode.OK) >= 256 and grpc.StatusCode.RESOURCE_EXHAUSTED in codes
    assert next(one.details() for one in asked if one.code() != grpc.StatusCode.OK).startswith("join a batcher: this user")

    def served():
        try:
            is_served(host)
        except pinfeed.ResourceExhaustedError:
            return False
        return True

    eventually("invitations expire", served)


def test_two_living_consumers_share_the_batches(serve, host):
    slow = serve(model=False, max_batch=1)
    with pinfeed.BatcherClient(NAME, address=host.address, in_flight=64) as client:
        futures = [client.submit(array(0))]
        held = next(iter(slow))
        serve(max_batch=1)
        futures += [client.submit(array(value)) for value in range(1, 61)]
        eventually("the other one answers, but for what is dealt to this one", lambda: sum(future.done() for future in futures) >= 50)
        assert not futures[0].done()
        assert held.answer(np.array(held.inputs)) == 1
        rest = Model(slow, np.array)
        assert [future.result(TIMEOUT) for future in futures] == [array(value).tobytes() for value in range(61)]
        slow.close()
        rest.join(TIMEOUT)
        is_served(host)


def test_consumers_that_come_and_go_mix_nothing_up(serve, host):
    serve(max_batch=4, redeal=True)
    with pinfeed.BatcherClient(NAME, address=host.address, in_flight=64) as client:
        futures = []
        for _ in range(5):
            other = pinfeed.Batcher(NAME, input=ARRAY, framework="numpy", address=host.address, max_delay=0.001, max_batch=4, redeal=True)
            taker = threading.Thread(target=lambda batcher=other: next(iter(batcher)))
            taker.start()
            while taker.is_alive():
                futures.append((len(futures), client.submit(array(len(futures)))))
            other.close()  # with a batch in hand
        for value, future in futures:
            assert future.result(TIMEOUT) == array(value).tobytes()


def test_a_daemon_that_hangs_is_waited_for_no_longer_than_said(serve, host, monkeypatch):
    for module in (_batcher, _batcher_client):
        monkeypatch.setattr(module, "HANGS_S", 0.1)
    batcher = serve(model=False)
    with pinfeed.BatcherClient(NAME, address=host.address) as client:
        client.submit(array(1))
        batch = next(iter(batcher))
        os.kill(host.process.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(host.process.pid, os.WUNTRACED)[1])  # all threads, by now
        try:
            future = client.submit(array(2), deadline=0.01)
            with pytest.raises(pinfeed.UnavailableError, match="hangs"):
                batch.answer([b"x"])
            with pytest.raises(pinfeed.UnavailableError, match="hangs"):
                future.result(TIMEOUT)
        finally:
            os.kill(host.process.pid, signal.SIGCONT)


def test_a_consumer_that_is_interrupted_takes_no_reply_for_another_s(serve, host, monkeypatch):
    batcher = serve(model=False)
    with pinfeed.BatcherClient(NAME, address=host.address) as client:
        client.submit(array(1))
        batch = next(iter(batcher))

        def interrupt():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(batcher._link, "receive", interrupt)
            batch.answer([b"x"])
        with pytest.raises(pinfeed.UnavailableError):
            batch.answer([b"x"])
