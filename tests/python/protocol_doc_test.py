# SPDX-License-Identifier: Apache-2.0
"""docs/protocol.md is enough: a client that knows only that page, and takes its byte offsets from the page's tables, reads a real daemon's batches."""
import ctypes
import fcntl
import mmap
import os
import pathlib
import platform
import re
import socket
import struct
import subprocess
import sys
import time

import grpc
import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
F_GET_SEALS, SIZE_SEALS = 1034, 0x2 | 0x4  # F_SEAL_SHRINK | F_SEAL_GROW
PAGE_BYTES = 8192
HELLO, WELCOME, BYE = 1, 2, 3
RUNNING, ENDED, FAILED = 1, 3, 4


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


def field(memory, table, name, base=0):
    """A field's integer, as one load of its size."""
    offset, size = FIELDS[table][name]
    return int(memory[base + offset : base + offset + size].view(f"u{size}")[0])


def frame(kind, token=b""):
    layout = FIELDS["Lifeline frame"]
    out = bytearray(layout["text"][0] + layout["text"][1])
    struct.pack_into("=QI", out, 0, MAGIC["Lifeline frame"], kind)
    out[layout["token"][0] : layout["token"][0] + len(token)] = token
    return bytes(out)


def map_memfd(fd, size, protection):
    assert fcntl.fcntl(fd, F_GET_SEALS) & SIZE_SEALS == SIZE_SEALS and os.fstat(fd).st_size == size
    return numpy.frombuffer(mmap.mmap(fd, size, mmap.MAP_SHARED, protection), numpy.uint8)


class Client:
    """Sections 2 to 9 of the page."""

    def __init__(self, wire, address, spec, cursor=None):
        request = wire.OpenFeedRequest(protocol_version=1, spec=spec, cursor=cursor, client_name="protocol_doc_test")
        request.boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        with grpc.insecure_channel(f"unix:{address}") as channel:
            call = channel.unary_unary("/pinfeed.v1.Feeder/OpenFeed", wire.OpenFeedRequest.SerializeToString, wire.OpenFeedResponse.FromString)
            self.offer = call(request, timeout=10)
        self.lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lifeline.settimeout(10)
        self.lifeline.connect(self.offer.lifeline_path)
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
            if state == FAILED:
                length, start = field(self.publish, "Publish page", "error_bytes"), FIELDS["Publish page"]["error_text"][0]
                raise RuntimeError(self.publish[start : start + length].tobytes().decode("utf-8", "replace"))
            if state == ENDED:
                return None
            assert state == RUNNING
            word = self.publish.ctypes.data + FIELDS["Publish page"]["wake"][0]
            timeout = struct.pack("@qq", 0, 50_000_000)
            ctypes.CDLL(None).syscall(SYS_FUTEX, ctypes.c_void_p(word), 0, ctypes.c_uint32(wake), timeout, None, 0)

    def _descriptor(self):
        base = FIELDS["Publish page"]["ring"][0] + self.next % 64 * 64
        copy = self.publish[base : base + 64].copy()
        batch = {name: field(copy, "Batch descriptor", name) for name in FIELDS["Batch descriptor"]}
        assert batch["sequence"] == self.next and batch["slot"] < self.offer.arena.slot_count
        assert batch["samples"] <= self.offer.batch_size and batch["slot"] not in self.held
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

    def bye(self):
        self.arena = None
        self.lifeline.send(frame(BYE))
        assert self.lifeline.recv(1) == b""


@pytest.fixture(scope="module")
def wire(tmp_path_factory):
    """The messages of feeder.proto as Python classes."""
    folder = tmp_path_factory.mktemp("wire")
    subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}", "pinfeed/v1/feeder.proto"], check=True)
    sys.path.insert(0, str(folder / "pinfeed" / "v1"))  # the folder itself: `pinfeed` is the client package's name
    try:
        import feeder_pb2
    finally:
        sys.path.pop(0)
    return feeder_pb2


@pytest.fixture
def spec(wire, tmp_path):
    """A feed of 10 samples in batches of 4, and the two arrays that it is made of."""
    (tmp_path / "data").mkdir()
    x, y = numpy.arange(30, dtype=numpy.float32).reshape(10, 3), numpy.arange(100, 110, dtype=numpy.int64)
    numpy.save(tmp_path / "data" / "x.npy", x)
    numpy.save(tmp_path / "data" / "y.npy", y)
    out = wire.FeedSpec(dataset=wire.DatasetSpec(path=str(tmp_path / "data")), batch_size=4, epochs=2, slots=3)
    return out, {"x": x, "y": y}


def test_batches_hold_the_samples_in_order(wire, daemon, spec):
    client = Client(wire, daemon.address, spec[0])
    places = {place.name: place for place in client.offer.tensors}
    assert set(places) == {"x", "y"} and client.offer.dataset_samples == 10 and client.offer.batches_per_epoch == 3
    seen = []
    while (batch := client.take()) is not None:
        first = 4 * batch["batch_index"]
        for name, array in spec[1].items():
            numpy.testing.assert_array_equal(client.tensor(batch, places[name], array.dtype), array[first : first + 4])
        seen.append((batch["epoch"], batch["batch_index"], batch["position"], batch["flags"] & 1))
        client.release(batch)
    assert seen == [(e, i, p, last) for e in (0, 1) for i, p, last in ((0, 4, 0), (1, 8, 0), (2, 10, 1))]
    client.bye()


def test_a_cursor_goes_on_behind_what_was_taken(wire, daemon, spec):
    client = Client(wire, daemon.address, spec[0])
    for _ in range(2):
        client.release(client.take())
    client.bye()
    resumed = Client(wire, daemon.address, spec[0], client.cursor)
    batch = resumed.take()
    assert (batch["sequence"], batch["epoch"], batch["batch_index"], batch["samples"]) == (0, 0, 2, 2)
    resumed.release(batch)
    resumed.bye()


def test_faults_and_refusals_are_told(wire, daemon, spec):
    bad = wire.FeedSpec(dataset=spec[0].dataset, batch_size=0, slots=2)
    with pytest.raises(grpc.RpcError) as refused:
        Client(wire, daemon.address, bad)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    lines = refused.value.details().splitlines()
    assert [line.split(":")[0] for line in lines] == ["batch_size", "slots"], lines
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lifeline.settimeout(10)
    client = Client(wire, daemon.address, spec[0])
    lifeline.connect(client.offer.lifeline_path)
    lifeline.send(frame(HELLO, bytes(32)))
    answer, fds, _, _ = socket.recv_fds(lifeline, 4096, 16)
    assert not fds and field(numpy.frombuffer(answer, numpy.uint8), "Lifeline frame", "code") == grpc.StatusCode.UNAUTHENTICATED.value[0]
    client.bye()


def test_a_group_shares_one_read_only_arena(wire, daemon, spec):
    spec[0].sharing, spec[0].group, spec[0].group_size = wire.FeedSpec.BROADCAST, "protocol", 2
    clients = [Client(wire, daemon.address, spec[0]) for _ in range(2)]
    for number in range(6):
        batches = [client.take() for client in clients]
        assert [(batch["sequence"], batch["batch_index"]) for batch in batches] == [(number, number % 3)] * 2
        for client, batch in zip(clients, batches):
            client.release(batch)
    for client in clients:
        assert client.take() is None and client.offer.arena.read_only
        client.bye()
