# SPDX-License-Identifier: Apache-2.0
"""A producer written from docs/protocol.md alone, and the misdeeds of some, which get invitations on stdin.

A misdeed runs in a process of its own, since the daemon treats what a producer held by whether its process lives. It
tells what it has come to on stdout, a line each.
"""
import mmap
import os
import pathlib
import select
import signal
import socket
import struct
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from raw_client import FIELDS, MAGIC, WELCOME, connect, field, frame, map_memfd, messages  # noqa: E402

PRODUCE, TASK, DONE, MEMORY = 5, 6, 7, 8
VALUES = 100  # in a sample


class Refused(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)
        self.code, self.text = code, text


def produced_spec(samples=10**6, batch_size=2, slots=4, **options):
    """A feed of samples of `VALUES` numbers."""
    dataset = {"produced": {"name": "raw", "samples": samples, "fields": [{"name": "x", "dtype": "INT64", "shape": [VALUES]}]}}
    return messages().FeedSpec(**{"dataset": dataset, "batch_size": batch_size, "epochs": 1, "slots": slots, "backend": "HOST", **options})


def invitation_to(offer, lane=0):
    """What a producer needs of an OpenFeedResponse."""
    tensors = [place for place in offer.tensors if place.name in ("x", "sample_id")]
    return messages().ProducerInvitation(
        lifeline_path=offer.lifeline_path, token=offer.token, lane=lane, batch_size=offer.batch_size, tensors=tensors,
        arena_bytes=offer.arena.bytes, slot_count=offer.arena.slot_count, slot_stride=offer.arena.slot_stride,
    )  # fmt: skip


def greet(invitation, token=None):
    """A connection that has sent its first frame."""
    lifeline = connect(invitation.lifeline_path)
    lifeline.send(frame(PRODUCE, token or invitation.token, code=invitation.lane))
    return lifeline


def welcomed(lifeline):
    """The arena's descriptor."""
    answer, fds, _, _ = socket.recv_fds(lifeline, 4096, 16)
    page = numpy.frombuffer(answer, numpy.uint8)
    assert len(answer) == 256 and field(page, "Lifeline frame", "magic") == MAGIC["Lifeline frame"] and field(page, "Lifeline frame", "kind") == WELCOME
    code = field(page, "Lifeline frame", "code")
    if code:
        assert not fds and lifeline.recv(1) == b""
        lifeline.close()
        raise Refused(code, answer[48:].rstrip(b"\0").decode())
    assert len(fds) == 1
    return fds[0]


def done_frame(task, code=0, text=b""):
    out = bytearray(frame(DONE))
    struct.pack_into("=I", out, FIELDS["Lifeline frame"]["code"][0], code)
    struct.pack_into("=Q", out, 16, task)
    out[48 : 48 + len(text)] = text
    return bytes(out)


def memory_frame(task, size):
    out = bytearray(frame(MEMORY))
    struct.pack_into("=QQ", out, 16, task, size)
    return bytes(out)


class RawProducer:
    """Section 13 of the page."""

    def __init__(self, invitation):
        self.invitation = invitation
        self.socket = greet(invitation)
        self.early = []  # tasks that came before an answer
        arena = welcomed(self.socket)
        self.arena = map_memfd(arena, invitation.arena_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        os.close(arena)

    def next(self):
        """The next task as (task, epoch, batch_index, slot, samples); None at the hang-up."""
        if self.early:
            return self.early.pop(0)
        data = self.socket.recv(4096)
        if not data:
            return None
        return self.task_in(data)

    def task_in(self, data):
        assert len(data) == 256 and struct.unpack_from("=QII", data) == (MAGIC["Lifeline frame"], TASK, 0)
        task = struct.unpack_from("=QQQII", data, 16)
        assert task[0] and task[3] < self.invitation.slot_count and 0 < task[4] <= self.invitation.batch_size
        return task

    def memory(self, task, size):
        """A descriptor of memory for a large batch. Raises Refused."""
        self.socket.send(memory_frame(task[0], size))
        while True:
            data, fds, _, _ = socket.recv_fds(self.socket, 4096, 4)
            kind, code = struct.unpack_from("=II", data, 8)
            if kind == TASK:
                assert not fds
                self.early.append(self.task_in(data))
                continue
            assert (kind, len(data), *struct.unpack_from("=Q", data, 16)) == (MEMORY, 256, task[0])
            if code:
                assert not fds
                raise Refused(code, data[48:].rstrip(b"\0").decode())
            assert len(fds) == 1 and os.fstat(fds[0]).st_size == size
            return fds[0]

    def tensor(self, task, name):
        place = next(place for place in self.invitation.tensors if place.name == name)
        start = task[3] * self.invitation.slot_stride + place.offset
        return self.arena[start : start + task[4] * place.sample_bytes].view(numpy.int64).reshape((task[4], *place.shape))

    def fill(self, task):
        self.tensor(task, "x")[:] = self.tensor(task, "sample_id")[:, None]

    def done(self, task, code=0, text=b""):
        self.socket.send(done_frame(task[0], code, text))

    def serve(self):
        """Fills batches until the daemon hangs up."""
        try:
            while (task := self.next()) is not None:
                self.fill(task)
                self.done(task)
        except ConnectionError:
            pass
        self.close()

    def close(self):
        self.arena = None
        self.socket.close()


# ---- What hostile ones do -----------------------------------------------------------------------------------------------------------


def tell(*words):
    print(*words, flush=True)


def await_end():
    sys.stdin.read()


def read_invitation():
    return messages().ProducerInvitation.FromString(bytes.fromhex(sys.stdin.readline()))


def good():
    RawProducer(read_invitation()).serve()


def hold():
    """Takes a task and holds it for ever."""
    tell("holds", RawProducer(read_invitation()).next()[2])
    await_end()


def late():
    """Stops inside a write. When it goes on, it overwrites what is there again and again, and then says that it is done."""
    producer = RawProducer(read_invitation())
    task = producer.next()
    memory = producer.tensor(task, "x")
    memory[0] = -1
    tell("holds", task[2], task[3])
    os.kill(os.getpid(), signal.SIGSTOP)
    for value in range(1000):
        memory[:] = -value
    tell("wrote")
    sys.stdin.readline()
    producer.done(task)
    tell("got", producer.next()[2])
    await_end()


def deaf():
    """Never reads its socket."""
    invitation = read_invitation()
    lifeline = greet(invitation)
    tell("sent")
    await_end()
    lifeline.close()


def guess():
    """Never reads its socket, and says that task after task is done. Goes on when the trainer has the batch."""
    invitation = read_invitation()
    lifeline = greet(invitation)
    number = 1  # its feed has no other producer, so the numbers are known
    try:
        while True:
            lifeline.send(done_frame(number))
            tell("done", number)
            sys.stdin.readline()
            number += 1
    except ConnectionError:
        tell("hung up", number)
    await_end()


def hang_up():
    """Hangs up with a task in hand, and lives."""
    producer = RawProducer(read_invitation())
    task = producer.next()
    producer.socket.close()
    tell("holds", task[2])
    await_end()


def forked():
    """Has a child that keeps the socket. The child answers when its parent was killed."""
    producer = RawProducer(read_invitation())
    task = producer.next()
    parent = os.pidfd_open(os.getpid())
    child = os.fork()
    if child:
        tell("holds", task[2], "child", child)
        signal.pause()
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.poll()  # the parent's end, of which the daemon is told before what the child sends now
    try:
        producer.done(task)
        told = "sent"
    except ConnectionError:
        told = "refused"
    try:
        tell(told, "end" if producer.next() is None else "task")
    except ConnectionError:
        tell(told, "end")
    os._exit(0)


def keep():
    """Writes to the memory of its task for ever, whatever becomes of the feed."""
    producer = RawProducer(read_invitation())
    task = producer.next()
    producer.fill(task)
    tell("holds", task[2])
    assert producer.next() is None
    memory = producer.tensor(task, "x")
    for value in range(10**4):
        memory[:] = value  # the daemon may drop what was there: it returns the pages of feeds that have ended
    tell("still writes")
    await_end()


def keep_descriptor():
    """Keeps the descriptor of the memory, which it never maps."""
    invitation = read_invitation()
    lifeline = greet(invitation)
    arena = welcomed(lifeline)
    tell("attached")
    await_end()
    os.close(arena)


def large():
    """Has memory of its own for a batch, which it says is filled."""
    producer = RawProducer(read_invitation())
    task = producer.next()
    fd = producer.memory(task, 1 << 20)
    memory = mmap.mmap(fd, 1 << 20)
    os.close(fd)
    producer.fill(task)
    memory[:] = b"x" * len(memory)
    producer.done(task)
    tell("has memory")
    await_end()
    assert memory[-1:] == b"x"


def misbehave():
    """Fills a batch, and sends one wrong frame with the next task in hand; what comes on stdin says which."""
    producer = RawProducer(read_invitation())
    what = sys.stdin.readline().strip()
    for number in range(2):
        task = producer.next()
        producer.fill(task)
        if not number:
            producer.done(task)
    gift = os.open("/dev/null", os.O_RDONLY)
    right = done_frame(task[0])
    wrong = {
        "short": right[:-1],
        "long": right + b"\0",
        "one byte": b"x",
        "huge": bytes(1 << 16),
        "magic": b"\1" + right[1:],
        "kind": right[:8] + b"\x99" + right[9:],
        "hello": frame(1, producer.invitation.token),
        "welcome": frame(2),
        "bye": frame(3),
        "leave": frame(4),
        "produce": frame(PRODUCE, producer.invitation.token),
        "task": frame(TASK),
        "task 0": done_frame(0),
        "another's task": done_frame(task[0] + 9),
        "an old task": done_frame(task[0] - 1),
        "the greatest task": done_frame(2**64 - 1),
        "empty": b"",
        "memory of an old task": memory_frame(task[0] - 1, 4096),
        "memory of task 0": memory_frame(0, 4096),
        "memory of no bytes": memory_frame(task[0], 0),
    }
    if what == "descriptor":
        try:
            socket.send_fds(producer.socket, [right], [gift])
        except PermissionError:  # the kernel refuses it: Linux 6.16 and later
            producer.socket.send(wrong["empty"])
    elif what == "memory twice":
        os.close(producer.memory(task, 4096))
        producer.socket.send(memory_frame(task[0], 4096))
    elif what == "done twice":
        producer.socket.send(right)
        producer.socket.send(right)
    else:
        producer.socket.send(wrong[what])
    while producer.next() is not None:
        pass  # what it got before the daemon read its frame
    try:
        producer.socket.send(right)
        tell("after the end: sent")
    except ConnectionError:
        tell("after the end: refused")
    await_end()
