# SPDX-License-Identifier: Apache-2.0
"""A client written from docs/protocol.md alone, in Python: it takes its byte offsets from the page's tables.

protocol_doc_test.py proves the page with it; the tests in withstand/ misuse it, since it does whatever it is told.
"""
import atexit
import ctypes
import fcntl
import functools
import mmap
import os
import pathlib
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

import grpc
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
F_GET_SEALS, SIZE_SEALS = 1034, 0x2 | 0x4  # F_SEAL_SHRINK | F_SEAL_GROW
PAGE_BYTES = 8192
HELLO, WELCOME, BYE, LEAVE = 1, 2, 3, 4
RUNNING, DRAINING, ENDED, FAILED, EVICTED = 1, 2, 3, 4, 5
SERVICE = "/pinfeed.v1.Feeder/"


def tables():
    """{heading: {field: (offset, size)}} of the page's tables of bytes, and {heading: magic number}."""
    fields, magic, heading = {}, {}, ""
    for line in (ROOT / "docs" / "protocol.md").read_text("utf-8").splitlines():
        heading = line[4:] if line.startswith("### ") else heading
        row = re.match(r"\| (\d+) \| (\d+) \| `(\w+)` \| (?:`(0x[0-9a-f]+)`)?", line)
        if row:
            fields.setdefault(heading, {})[row[3]] = (int(row[1]), int(row[2]))
            if row[4]:
                magic[heading] = int(row[4], 16)
    return fields, magic


FIELDS, MAGIC = tables()


@functools.lru_cache(maxsize=None)
def messages():
    """The messages of feeder.proto as Python classes."""
    folder = tempfile.mkdtemp(prefix="pinfeed-wire-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}", "pinfeed/v1/feeder.proto"], check=True)
    sys.path.insert(0, folder + "/pinfeed/v1")  # the folder itself: `pinfeed` is the client package's name
    try:
        import feeder_pb2
    finally:
        sys.path.pop(0)
    return feeder_pb2


def field(memory, table, name, base=0):
    """A field's integer, as one load of its size."""
    offset, size = FIELDS[table][name]
    return int(memory[base + offset : base + offset + size].view(f"u{size}")[0])


def frame(kind, token=b"", code=0):
    layout = FIELDS["Lifeline frame"]
    out = bytearray(layout["text"][0] + layout["text"][1])
    struct.pack_into("=QII", out, 0, MAGIC["Lifeline frame"], kind, code)
    out[layout["token"][0] : layout["token"][0] + len(token)] = token
    return bytes(out)


def connect(path, kind=socket.SOCK_SEQPACKET):
    out = socket.socket(socket.AF_UNIX, kind)
    # Python's own time limit would have a full backlog refuse at once.
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 20, 0))
    out.connect(path)
    out.settimeout(20)
    return out


def request_for(spec, cursor=None, client_name="raw client"):
    """An OpenFeedRequest that says the truth about this host."""
    request = messages().OpenFeedRequest(protocol_version=1, spec=spec, cursor=cursor, client_name=client_name)
    request.boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return request


def call(address, method, request, answer, timeout=20):
    """The daemon's answer, of the type `answer`, to a request or to any bytes in its place. Raises grpc.RpcError."""
    serialize = bytes if isinstance(request, bytes) else type(request).SerializeToString
    # A pool of its own: else the connection outlives the channel for others that go to the same address.
    with grpc.insecure_channel(f"unix:{address}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        return channel.unary_unary(SERVICE + method, serialize, answer.FromString)(request, timeout=timeout)


def open_feed(address, request, timeout=20):
    return call(address, "OpenFeed", request, messages().OpenFeedResponse, timeout)


def map_memfd(fd, size, protection):
    assert fcntl.fcntl(fd, F_GET_SEALS) & SIZE_SEALS == SIZE_SEALS and os.fstat(fd).st_size == size
    return numpy.frombuffer(mmap.mmap(fd, size, mmap.MAP_SHARED, protection), numpy.uint8)


class Client:
    """Sections 2 to 9 of the page."""

    def __init__(self, address, spec, cursor=None, client_name="raw client", replaces=0):
        request = request_for(spec, cursor, client_name)
        request.replaces_session = replaces
        self.offer = open_feed(address, request)
        self.lifeline = connect(self.offer.lifeline_path)
        self.lifeline.send(frame(HELLO, self.offer.token))
        welcome, fds, _, _ = socket.recv_fds(self.lifeline, 4096, 16)
        page = numpy.frombuffer(welcome, numpy.uint8)
        assert len(welcome) == 256 and field(page, "Lifeline frame", "magic") == MAGIC["Lifeline frame"]
        assert field(page, "Lifeline frame", "kind") == WELCOME
        assert field(page, "Lifeline frame", "code") == 0
        publish, release, self.doorbell, arena = fds
        self.publish = map_memfd(publish, PAGE_BYTES, mmap.PROT_READ)
        self.release_page = map_memfd(release, PAGE_BYTES, mmap.PROT_READ | mmap.PROT_WRITE)
        rights = mmap.PROT_READ if self.offer.arena.read_only else mmap.PROT_READ | mmap.PROT_WRITE
        self.arena = map_memfd(arena, self.offer.arena.bytes, rights)
        for fd in (publish, release, arena):
            os.close(fd)
        assert field(self.publish, "Publish page", "magic") == MAGIC["Publish page"] and field(self.publish, "Publish page", "version") == 1
        assert field(self.publish, "Publish page", "slot_count") == self.offer.arena.slot_count
        self.next, self.cursor, self.held = 0, self.offer.start, set()

    def take(self, deadline_s=20):
        """The descriptor of the next batch as a dict; None after the last epoch."""
        deadline = time.monotonic() + deadline_s
        while True:
            assert time.monotonic() < deadline, "no batch came"
            wake, state = field(self.publish, "Publish page", "wake"), field(self.publish, "Publish page", "state")
            if field(self.publish, "Publish page", "published") != self.next:
                return self._descriptor()
            if state in (FAILED, EVICTED):
                self._fail()
            if state == ENDED:
                return None
            assert state == RUNNING
            word = self.publish.ctypes.data + FIELDS["Publish page"]["wake"][0]
            timeout = struct.pack("@qq", 0, 50_000_000)
            ctypes.CDLL(None).syscall(SYS_FUTEX, ctypes.c_void_p(word), 0, ctypes.c_uint32(wake), timeout, None, 0)

    def _fail(self):
        length, start = field(self.publish, "Publish page", "error_bytes"), FIELDS["Publish page"]["error_text"][0]
        raise RuntimeError(self.publish[start : start + length].tobytes().decode("utf-8", "replace"))

    def _descriptor(self):
        base = FIELDS["Publish page"]["ring"][0] + self.next % 64 * 64
        copy = self.publish[base : base + 64].copy()
        batch = {name: field(copy, "Batch descriptor", name) for name in FIELDS["Batch descriptor"]}
        assert batch["sequence"] == self.next and batch["slot"] < self.offer.arena.slot_count
        assert batch["samples"] <= self.offer.batch_size and batch["slot"] not in self.held
        taken = FIELDS["Release page"]["taken"][0]
        self.release_page[taken : taken + 8].view("u8")[0] = self.next + 1
        if field(self.publish, "Publish page", "state") == EVICTED:
            deadline = time.monotonic() + 20
            while field(self.publish, "Publish page", "limit") == 2**64 - 1:
                assert time.monotonic() < deadline, "no limit came"
            if self.next >= field(self.publish, "Publish page", "limit"):
                self._fail()
        self.next += 1
        self.held.add(batch["slot"])
        self.cursor.epoch, self.cursor.position = batch["epoch"], batch["position"]
        return batch

    def tensor(self, batch, place, dtype):
        start = batch["slot"] * self.offer.arena.slot_stride + place.offset
        return self.arena[start : start + batch["samples"] * place.sample_bytes].view(dtype).reshape((batch["samples"], *place.shape))

    def release(self, batch):
        self.held.remove(batch["slot"])
        self.release_page[64 * batch["slot"] :][:8].view("u8")[0] = batch["generation"]
        os.write(self.doorbell, struct.pack("=Q", 1))  # Python has no fence: ring each time

    def leave(self):
        self.lifeline.send(frame(LEAVE))
        deadline = time.monotonic() + 20
        while (limit := field(self.publish, "Publish page", "limit")) == 2**64 - 1:
            assert time.monotonic() < deadline, "no limit came"
        assert limit == self.next and field(self.publish, "Publish page", "state") == EVICTED

    def bye(self):
        self.arena = None
        self.lifeline.send(frame(BYE))
        assert self.lifeline.recv(1) == b""
        self.drop()

    def drop(self):
        """Closes what is still open, without a word."""
        self.arena = self.publish = self.release_page = None
        self.lifeline.close()
        if self.doorbell >= 0:
            os.close(self.doorbell)
            self.doorbell = -1
