# SPDX-License-Identifier: Apache-2.0
"""Clients that lie, flood, scribble and send garbage: each is turned away or ignored, counted, and a neighbour notices nothing."""

import contextlib
import io
import json
import math
import os
import random
import resource
import socket
import subprocess
import sys
import tarfile
import time

import grpc
import numpy
import pinfeed
import pytest
from daemon_process import Daemon
from hardship import HERE, await_census, check_order, eventually, feed_of, metrics, read_status, refusals, start_daemon
from raw_client import connect, messages, open_feed, request_for


@pytest.fixture
def neighbour(host, numbers, reader):
    """Reads on while the test does its worst; then its data and order must be right, and the daemon hold what it held at the start."""
    one = reader(host.address, numbers, batch_size=8, shuffle=True, seed=5, name="neighbour", step_s=0.003)
    one.advance(1)
    yield one
    one.advance(20)
    check_order(one.finish(), 5, 8, numbers, host.address)
    await_census(host, host.at_start)
    assert host.process.poll() is None


def start_hostile(what, host, dataset):
    return subprocess.Popen([sys.executable, str(HERE / "hostile.py"), what, host.address, str(dataset)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process, last_words=None):
    out, _ = process.communicate(last_words, timeout=240)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def counted(host, reason):
    """Yields a list; as many refusals as its number says must have been counted for the reason, in the metrics and in the status."""
    name, expected = f'pinfeed_refusals_total{{reason="{reason}"}}', []
    before = metrics(host)[name]
    yield expected
    eventually(lambda: f"{metrics(host)[name]} of {before} + {expected} refusals", lambda: metrics(host)[name] >= before + expected[0])
    eventually("both count the same", lambda: refusals(host) == int(read_status(host.address)["refusals"]))


def test_scribbling_over_the_release_page_and_ringing_without_end(host, numbers, neighbour):
    scribblers = [start_hostile("hammer", host, numbers) for _ in range(2)]
    for scribbler in scribblers:
        assert scribbler.stdout.readline() == "hammering\n"
    neighbour.advance(200)
    ignored = eventually("ignored releases", lambda: metrics(host)["pinfeed_ignored_releases_total"])
    for scribbler in scribblers:
        writes, rings = end(scribbler)
        print(f"{writes} times over the whole page, {rings} rings; {ignored:.0f} releases ignored")
        assert writes > 100 and rings > 100


def test_wrong_generations_release_nothing(host, numbers, neighbour):
    stale = start_hostile("generations", host, numbers)
    assert stale.stdout.readline() == "all wrong\n"
    eventually("ignored releases", lambda: int(feed_of(read_status(host.address), "stale")["sessions"][0].get("ignored_releases", 0)) >= 1)
    feed = feed_of(read_status(host.address), "stale")
    assert feed["slots_lent"] == 4 and int(feed["sessions"][0]["batches"]) == 4
    assert end(stale) == 40


def test_garbage_frames(host, numbers, neighbour):
    with counted(host, "frame") as expected:
        expected.append(end(start_hostile("frames", host, numbers)))
    print(f"{expected[0]} frames refused")
    assert expected[0] > 70


def test_frames_with_descriptors(host, numbers, neighbour):
    with counted(host, "frame") as expected:
        refused, before, left = end(start_hostile("descriptors", host, numbers), f"{host.process.pid}\n")
        expected.append(refused)
    assert refused in (0, 21) and left == before


def test_descriptors_that_cannot_be_closed_hold_up_nobody(host, numbers, neighbour):
    giver = start_hostile("unclosable", host, numbers)
    assert giver.stdout.readline() == "sent\n"
    begin = time.monotonic()
    with pinfeed.open(numbers, batch_size=16, address=host.address, framework="numpy", open_timeout=30) as feed:
        next(iter(feed))
    neighbour.advance(20)
    assert time.monotonic() - begin < 20
    assert end(giver, "\n") == 8


def test_tokens_that_open_nothing(host, numbers, neighbour):
    with counted(host, "token") as expected:
        expected.append(end(start_hostile("tokens", host, numbers)))
    assert expected[0] == 57


def test_silent_connections(host, numbers, neighbour):
    lifeline_path = open_feed(host.address, request_for(messages().FeedSpec(dataset={"path": str(numbers)}, batch_size=1))).lifeline_path
    with counted(host, "expired") as late, counted(host, "frame") as silent:
        late.append(1)  # whose answer was read above
        silent.append(100)
        lifelines = [connect(lifeline_path) for _ in range(100)]
        calls = [connect(host.address, socket.SOCK_STREAM) for _ in range(100)]
        neighbour.advance(100)
        with pinfeed.open(numbers, batch_size=16, address=host.address, framework="numpy") as feed:
            assert next(iter(feed)).x[3, 0] == 3 * 64
    for one in (*lifelines, *calls):
        one.close()


def test_a_flood_of_silent_lifelines_is_bounded_and_lets_others_in(host, numbers, neighbour):
    lifeline_path = str(host.folder / "lifeline.sock")
    before = len(os.listdir(f"/proc/{host.process.pid}/fd"))
    with counted(host, "frame") as silent:
        silent.append(300)
        lifelines = [connect(lifeline_path) for _ in range(300)]
        with pinfeed.open(numbers, batch_size=16, address=host.address, framework="numpy") as feed:  # of the same user
            assert next(iter(feed)).x[3, 0] == 3 * 64
            assert len(os.listdir(f"/proc/{host.process.pid}/fd")) < before + 128 + 40
        assert sum(is_told_that_it_made_room(one) for one in lifelines) >= 172
    for one in lifelines:
        one.close()


def is_told_that_it_made_room(lifeline):
    answer = lifeline.recv(1024)
    return b"other connections took its place" in answer


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def test_garbage_on_the_grpc_socket(host, neighbour):
    draw = random.Random(9)
    noise = [draw.randbytes(draw.randrange(1, 1 << 16)) for _ in range(20)]
    noise += [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0", PREFACE, PREFACE[:10], b"\0" * 70000]
    noise += [PREFACE + SETTINGS + draw.randbytes(4096) for _ in range(20)]
    noise += [PREFACE + SETTINGS + b"\xff\xff\xff\x01\x05\0\0\0\1" + bytes(70000), PREFACE + SETTINGS * 5000]
    for bad in noise:
        with contextlib.suppress(OSError):  # it may hang up while we talk
            with connect(host.address, socket.SOCK_STREAM) as call:
                call.sendall(bad)
                call.shutdown(socket.SHUT_WR)
                while call.recv(1 << 16):
                    pass
    request = b"\x0a\x04" + b"\xff" * 100
    with pytest.raises(grpc.RpcError):
        open_feed(host.address, request)
    with pytest.raises(grpc.RpcError) as caught:
        open_feed(host.address, bytes(1 << 20))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert read_status(host.address)["state"] == "ready"


def transform(**op):
    return messages().Transform(**op)


M = (1 << 32) - 1
# What is done to a good request, and what the one error must name. bytes: what replaces the client's name on the wire.
LIES = [
    ("batches of 4294967295", lambda r: setattr(r.spec, "batch_size", M)),
    ("slots", lambda r: setattr(r.spec, "slots", M)),
    ("group_size", lambda r: r.spec.MergeFrom(messages().FeedSpec(sharing="BROADCAST", group="huge", group_size=M))),
    ("rank", lambda r: setattr(r.spec, "rank", M)),
    ("rank", lambda r: r.spec.MergeFrom(messages().FeedSpec(rank=M, world_size=M))),
    ("order", lambda r: setattr(r.spec, "order", 77)),
    ("sharing", lambda r: setattr(r.spec, "sharing", -1)),
    ("client_name", lambda r: setattr(r, "client_name", "x" * 100_000)),
    ("client_name", lambda r: setattr(r, "client_name", "two\nlines")),
    ("client_name", lambda r: setattr(r, "client_name", "nul\0")),
    ("group", lambda r: r.spec.MergeFrom(messages().FeedSpec(sharing="QUEUE", group="g" * 100_000))),
    ("dataset.path", lambda r: setattr(r.spec.dataset, "path", "/" + "p" * 100_000)),
    ("dataset.path", lambda r: setattr(r.spec.dataset, "path", "/nul\0/etc")),
    ("no\\nsuch", lambda r: setattr(r.spec.dataset, "path", "/no\nsuch")),
    ("dataset.path", lambda r: setattr(r.spec.dataset, "path", "relative")),
    ("dataset", lambda r: setattr(r.spec.dataset, "name", "both")),
    ("dataset.format", lambda r: setattr(r.spec.dataset, "format", "\x1b[31m")),
    ("transforms", lambda r: r.spec.transforms.extend([transform(resize={"size": [8]})] * 10_000)),
    ("transforms", lambda r: r.spec.transforms.extend([transform()] * 10_000)),
    ("transforms[0]", lambda r: r.spec.transforms.append(transform(resize={"size": [8] * 10_000}))),
    ("transforms[0]", lambda r: r.spec.transforms.append(transform(center_crop={"size": [M, M]}))),
    ("transforms[0]", lambda r: r.spec.transforms.append(transform(random_horizontal_flip={"p": math.nan}))),
    ("transforms[0]", lambda r: r.spec.transforms.append(transform(random_resized_crop={"size": [8], "scale": [math.inf, -math.inf]}))),
    ("transforms[0]", lambda r: r.spec.transforms.append(transform(random_resized_crop={"size": [8], "ratio": [0.0, math.nan]}))),
    ("transforms[0]", lambda r: r.spec.transforms.append(transform(normalize={"mean": [math.nan], "std": [math.inf]}))),
    ("transforms[0]", lambda r: r.spec.transforms.append(transform(normalize={"mean": [0.0] * 5_000, "std": [1.0] * 5_000}))),
    ("transforms[0]", lambda r: r.spec.transforms.append(transform(to_dtype={"dtype": "\n" * 10_000}))),
    ("cursor", lambda r: r.cursor.MergeFrom(messages().Cursor(version=2, epoch=(1 << 64) - 1, position=(1 << 64) - 1))),
    ("cursor", lambda r: r.cursor.MergeFrom(messages().Cursor(version=M))),
    ("cursor", lambda r: r.cursor.MergeFrom(messages().Cursor(version=2, fingerprint="f" * 100_000))),
    ("protocol_version", lambda r: setattr(r, "protocol_version", M)),
    ("boot_id", lambda r: setattr(r, "boot_id", "b" * 100_000)),
    ("backend", lambda r: setattr(r.spec, "backend", messages().FeedSpec.CUDA_IPC)),
]


def test_requests_that_ask_for_the_impossible(host, numbers, neighbour):
    with counted(host, "request") as expected:
        expected.append(len(LIES))
        for name, lie in LIES:
            request = request_for(messages().FeedSpec(dataset={"path": str(numbers)}, batch_size=4))
            lie(request)
            with pytest.raises(grpc.RpcError) as caught:
                open_feed(host.address, request)
            text = caught.value.details()
            assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND), text
            assert name in text and len(text) < 8192, (name, text)
            assert not any(ord(character) < 32 and character != "\n" for character in text), text
    request = request_for(messages().FeedSpec(dataset={"path": str(numbers)}, batch_size=4), client_name="REPLACED")
    with pytest.raises(grpc.RpcError):
        open_feed(host.address, request.SerializeToString().replace(b"REPLACED", b"\xff\xfe\x80\xc0AAAA"))


def test_running_out_of_descriptors(numbers, tmp_path):
    """A flood of connections takes all that connections may have: who is attached reads on, and when the flood ends all is as before."""
    daemon = start_daemon(tmp_path / "run", http_listen="127.0.0.1:0")
    with pinfeed.open(numbers, batch_size=16, address=daemon.address, framework="numpy") as feed:
        iterator = iter(feed)
        next(iterator)
        before = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
        old = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (before + 20, before + 20))
        assert old[0] > 200
        flood = [connect(str(daemon.folder / "lifeline.sock")) for _ in range(60)]
        eventually(daemon.log, lambda: "refused (descriptors)" in daemon.log())
        for number in range(1, 100):
            batch = next(iterator, None) or next(iterator := iter(feed))
            assert (batch.x[:, 0] // 64 == (numpy.arange(16) + 16 * number) % 512).all()
            del batch
        for one in flood:
            one.close()
        eventually(lambda: "descriptors", lambda: len(os.listdir(f"/proc/{daemon.process.pid}/fd")) <= before)
        assert metrics(daemon)['pinfeed_refusals_total{reason="descriptors"}'] > 0
    daemon.stop()


def test_a_connection_that_fits_is_not_refused(tmp_path):
    """Nobody waits behind it."""
    daemon = Daemon(tmp_path / "run", "--allowed-roots", "/", "--pool-bytes", "64MiB", http_listen="127.0.0.1:0", under=("prlimit", "--nofile=64:64"))
    port = int((daemon.folder / "http.port").read_text())
    left = 64 - 64 // 8 // 2  # the next descriptor is then one of those for files

    def descriptors():
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    with contextlib.ExitStack() as held:
        for _ in range(left - min(descriptors() for _ in range(20))):  # some are there for a moment only
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        eventually(descriptors, lambda: descriptors() >= left)
        assert "refused (descriptors)" not in daemon.log()
        held.enter_context(socket.create_connection(("127.0.0.1", port)))
        eventually("the next one waits", lambda: "refused (descriptors)" in daemon.log())
    daemon.stop()


def test_in_a_flood_of_connections_the_files_of_samples_have_descriptors(tmp_path):
    """A file of a shard is opened for each sample."""
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        for index in range(64):
            data = io.BytesIO()
            numpy.save(data, numpy.full(1000, index))
            member = tarfile.TarInfo(f"{index:02}.npy")
            member.size = data.tell()
            data.seek(0)
            shard.addfile(member, data)
    flags = ("--allowed-roots", str(tmp_path), "--workers", "2", "--pool-bytes", "64MiB")
    daemon = Daemon(tmp_path / "run", *flags, http_listen="127.0.0.1:0", under=("prlimit", "--nofile=64:64"))
    port = int((daemon.folder / "http.port").read_text())
    feeds = []
    with contextlib.ExitStack() as flood:
        with pytest.raises(pinfeed.ResourceExhaustedError, match="descriptors"):
            while True:
                feeds.append(pinfeed.open(tmp_path / "0.tar", batch_size=8, slots=3, framework="numpy", address=daemon.address))
                flood.enter_context(feeds[-1])
        for index in range(64):
            path, kind = ((daemon.folder / "lifeline.sock", socket.SOCK_SEQPACKET), (daemon.address, socket.SOCK_STREAM))[index % 2]
            flood.enter_context(connect(str(path), kind))
        for _ in range(16):
            flood.enter_context(socket.create_connection(("127.0.0.1", port)))
        eventually("connections were turned away", lambda: "refused (descriptors)" in daemon.log())
        eventually("of HTTP too", lambda: "accept an HTTP connection: the last descriptors" in daemon.log())
        for feed in feeds:
            for _ in range(3):
                assert numpy.concatenate([batch.npy[:, 0] for batch in feed]).tolist() == list(range(64))
    daemon.stop()
