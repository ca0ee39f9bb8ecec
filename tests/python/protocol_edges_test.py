# SPDX-License-Identifier: Apache-2.0
"""What docs/protocol.md says of limits, refusals and ends, asked of a real daemon by raw_client.py."""
import pathlib
import socket

import grpc
import numpy
import pytest
from PIL import Image
from raw_client import ENDED, FAILED, HELLO, SERVICE, WELCOME, Client, connect, field, frame, messages, open_feed, request_for

import pinfeed

INVALID, DATA_LOSS = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS


@pytest.fixture(scope="module")
def wire():
    return messages()


@pytest.fixture
def numbers(tmp_path):
    """Nine numbers."""
    numpy.save(tmp_path / "numbers.npy", numpy.arange(9, dtype=numpy.int64))
    return tmp_path / "numbers.npy"


def spec_of(wire, path, **fields):
    return wire.FeedSpec(dataset={"path": str(path)}, **{"batch_size": 4, "epochs": 1, "slots": 3, **fields})


def refusal_of(daemon, request):
    with pytest.raises(grpc.RpcError) as refused:
        open_feed(daemon.address, request)
    return refused.value


def numbers_of(client):
    """What a client reads until the end, batch by batch, and the positions."""
    place, out = client.offer.tensors[0], []
    while (batch := client.take()) is not None:
        out.append((client.tensor(batch, place, numpy.int64).tolist(), batch["position"]))
        client.release(batch)
    client.bye()
    return out


def state_of(daemon, name):
    return [session["state"] for feed in pinfeed.status(daemon.address)["feeds"] for session in feed.get("sessions", []) if session["client_name"] == name]


def test_strings_are_utf_8(wire, daemon, numbers):
    request = request_for(spec_of(wire, numbers), client_name="REPLACED").SerializeToString()
    assert refusal_of(daemon, request.replace(b"REPLACED", b"\xff\xfe\x80\xc0AAAA")).code() == grpc.StatusCode.UNIMPLEMENTED
    client = Client(daemon.address, spec_of(wire, numbers), client_name="a\u202eb\u2028c")
    assert state_of(daemon, r"a\xe2\x80\xaeb\xe2\x80\xa8c") == ["attached"]
    client.bye()


def test_a_group_has_no_control_characters(wire, daemon, numbers):
    refused = refusal_of(daemon, request_for(spec_of(wire, numbers, sharing="BROADCAST", group="two\nlines")))
    assert refused.code() == INVALID and refused.details() == "group: holds a control character"


def test_ranks_repeat_samples_at_the_end_of_an_epoch(wire, daemon, numbers):
    ranks = [numbers_of(Client(daemon.address, spec_of(wire, numbers, rank=rank, world_size=2))) for rank in range(2)]
    assert ranks == [[([0, 1, 2, 3], 8), ([8], 9)], [([4, 5, 6, 7], 8), ([0], 9)]]


def test_an_epoch_without_a_batch_is_refused(wire, daemon, numbers):
    refused = refusal_of(daemon, request_for(spec_of(wire, numbers, batch_size=5, world_size=2, drop_last=True)))
    assert refused.code() == INVALID and refused.details().startswith("batch_size: ")
    assert len(numbers_of(Client(daemon.address, spec_of(wire, numbers, batch_size=5, world_size=2)))) == 1


def images(folder, *sizes):
    for number, size in enumerate(sizes):
        (folder / "class").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(folder / "class" / f"{number}.png")
    return folder


def test_resize_with_max_size_alone(wire, daemon, tmp_path):
    numpy.save(tmp_path / "image.npy", numpy.zeros((2, 20, 40, 3), numpy.uint8))
    client = Client(daemon.address, spec_of(wire, tmp_path / "image.npy", batch_size=1, transforms=[{"resize": {"max_size": 10}}]))
    assert [list(place.shape) for place in client.offer.tensors] == [[3, 5, 10]]
    client.bye()


def test_an_image_has_at_most_2_28_pixels(wire, daemon, tmp_path):
    folder = images(tmp_path / "images", (4, 4))
    good = (folder / "class" / "0.png").read_bytes()
    (folder / "class" / "0.png").write_bytes(good[:16] + (16385).to_bytes(4, "big") + (16384).to_bytes(4, "big") + good[24:])
    client = Client(daemon.address, spec_of(wire, folder, batch_size=1, transforms=[{"center_crop": {"size": [4]}}]))
    with pytest.raises(RuntimeError):
        client.take()
    assert field(client.publish, "Publish page", "error_code") == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    client.bye()


def test_a_damaged_dataset_is_data_loss(wire, daemon, tmp_path):
    path = tmp_path / "cut.npy"
    numpy.save(path, numpy.arange(9))
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal_of(daemon, request_for(spec_of(wire, path))).code() == DATA_LOSS


def test_a_failed_feed_has_the_code_of_its_fault(wire, daemon, tmp_path):
    folder = images(tmp_path / "images", (4, 4), (4, 4))
    bad = folder / "class" / "1.png"
    bad.write_bytes(bad.read_bytes()[:-20])
    client = Client(daemon.address, spec_of(wire, folder, batch_size=1, transforms=[{"center_crop": {"size": [4]}}]))
    client.release(client.take())  # what came before the fault is whole
    with pytest.raises(RuntimeError, match="1.png"):
        client.take()
    assert field(client.publish, "Publish page", "state") == FAILED
    assert field(client.publish, "Publish page", "error_code") == DATA_LOSS.value[0]
    client.bye()


def test_a_method_that_is_not_known_is_unimplemented(daemon):
    with grpc.insecure_channel(f"unix:{daemon.address}") as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(SERVICE + "NoSuch")(b"", timeout=20)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_metadata_is_bounded(daemon):
    with grpc.insecure_channel(f"unix:{daemon.address}") as channel:
        call = channel.unary_unary(SERVICE + "GetStatus")
        call(b"", timeout=20, metadata=[("x-more", "x" * 4000)])
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=20, metadata=[("x-more", "x" * 9000)])
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_refusal_comes_before_the_end(wire, daemon, numbers):
    client = Client(daemon.address, spec_of(wire, numbers), client_name="says hello twice")
    client.lifeline.send(frame(HELLO, client.offer.token))
    answer = numpy.frombuffer(client.lifeline.recv(4096), numpy.uint8)
    assert field(answer, "Lifeline frame", "kind") == WELCOME and field(answer, "Lifeline frame", "code") == INVALID.value[0]
    assert client.lifeline.recv(4096) == b""
    client.drop()


@pytest.mark.parametrize("end", ["shutdown", "empty frame"])
def test_half_an_end_is_one(wire, daemon, numbers, end):
    client = Client(daemon.address, spec_of(wire, numbers), client_name=end)
    if end == "shutdown":
        client.lifeline.shutdown(socket.SHUT_WR)
    else:
        client.lifeline.send(b"")
    assert client.lifeline.recv(4096) == b""
    assert state_of(daemon, end) == ["orphaned"]  # this process lives
    client.drop()


def test_an_empty_first_frame_ends_the_connection(daemon):
    lifeline = connect(str(pathlib.Path(daemon.address).parent / "lifeline.sock"))
    lifeline.send(b"")
    assert lifeline.recv(4096) == b""


def test_a_cursor_beyond_the_epochs_is_the_end(wire, daemon, numbers):
    first = Client(daemon.address, spec_of(wire, numbers))
    cursor = first.offer.start
    first.bye()
    for epoch, position in ((0, 9), (1, 0), (7, 4), (2**63 - 1, 9)):
        cursor.epoch, cursor.position = epoch, position
        client = Client(daemon.address, spec_of(wire, numbers), cursor)
        assert client.take() is None and field(client.publish, "Publish page", "state") == ENDED
        client.bye()
    for epoch, position in ((2**63, 0), (2**64 - 1, 9)):
        cursor.epoch, cursor.position = epoch, position
        refused = refusal_of(daemon, request_for(spec_of(wire, numbers, epochs=0), cursor))
        assert refused.code() == INVALID and "cursor.epoch" in refused.details()


def test_headers_that_newer_releases_of_grpc_guard_against(daemon):
    """CVE-2023-1428: an odd header and more than 8 KiB of others end a server of some releases before 1.53."""

    def literal(name, value):
        def text(data):
            rest, out = len(data) - 127, bytes([min(len(data), 127)])
            while rest >= 128:
                out, rest = out + bytes([rest % 128 + 128]), rest // 128
            return (out + bytes([rest]) if len(data) >= 127 else out) + data

        return b"\0" + text(name) + text(value)

    def http2_frame(kind, flags, stream, data=b""):
        return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data

    known = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", (SERVICE + "GetStatus").encode()), (b":authority", b"x")]
    known.append((b"content-type", b"application/grpc"))
    more = [(b"x-%d" % number, b"a" * 3000) for number in range(4)]
    for odd in ((b"te", b"x"), (b":scheme", b"x"), (b"grpclb_client_stats", b"x")):
        connection = connect(daemon.address, socket.SOCK_STREAM)
        headers = b"".join(literal(*header) for header in [*known, odd, *more])
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0) + http2_frame(1, 5, 1, headers))
        assert connection.recv(4096)
        connection.close()
        assert pinfeed.status(daemon.address)["state"] == "ready"
