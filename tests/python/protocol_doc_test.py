# SPDX-License-Identifier: Apache-2.0
"""docs/protocol.md is enough: raw_client.py, which knows only that page, reads a real daemon's batches."""
import socket

import grpc
import numpy
import pytest
from raw_client import HELLO, Client, field, frame, messages


@pytest.fixture(scope="module")
def wire():
    return messages()


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
    client = Client(daemon.address, spec[0])
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
    client = Client(daemon.address, spec[0])
    for _ in range(2):
        client.release(client.take())
    client.bye()
    resumed = Client(daemon.address, spec[0], client.cursor)
    batch = resumed.take()
    assert (batch["sequence"], batch["epoch"], batch["batch_index"], batch["samples"]) == (0, 0, 2, 2)
    resumed.release(batch)
    resumed.bye()


def test_faults_and_refusals_are_told(wire, daemon, spec):
    bad = wire.FeedSpec(dataset=spec[0].dataset, batch_size=0, slots=2)
    with pytest.raises(grpc.RpcError) as refused:
        Client(daemon.address, bad)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    lines = refused.value.details().splitlines()
    assert [line.split(":")[0] for line in lines] == ["batch_size", "slots"], lines
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lifeline.settimeout(10)
    client = Client(daemon.address, spec[0])
    lifeline.connect(client.offer.lifeline_path)
    lifeline.send(frame(HELLO, bytes(32)))
    answer, fds, _, _ = socket.recv_fds(lifeline, 4096, 16)
    assert not fds and field(numpy.frombuffer(answer, numpy.uint8), "Lifeline frame", "code") == grpc.StatusCode.UNAUTHENTICATED.value[0]
    client.bye()


def test_a_group_shares_one_read_only_arena(wire, daemon, spec):
    spec[0].sharing, spec[0].group, spec[0].group_size = wire.FeedSpec.BROADCAST, "protocol", 2
    clients = [Client(daemon.address, spec[0]) for _ in range(2)]
    for number in range(6):
        batches = [client.take() for client in clients]
        assert [(batch["sequence"], batch["batch_index"]) for batch in batches] == [(number, number % 3)] * 2
        for client, batch in zip(clients, batches):
            client.release(batch)
    for client in clients:
        assert client.take() is None and client.offer.arena.read_only
        client.bye()
