# SPDX-License-Identifier: Apache-2.0
"""What SECURITY.md claims and only a real daemon can show: shares of users, memory that is kept, logs without secrets."""
import base64
import concurrent.futures
import contextlib
import fcntl
import functools
import json
import resource
import socket
import struct
import subprocess
import termios

import grpc
import numpy
import pinfeed
import pytest
from conftest import BUILD
from deaf_caller import PREFACE, h2_frame, many_calls
from raw_client import SERVICE, Client, connect, messages, open_feed, request_for
from withstand.hardship import eventually, read_status

ROW = 64 << 10


@pytest.fixture
def spec(tmp_path):
    """spec(option=...): batches of 64 KiB in three slots."""
    numpy.save(tmp_path / "x.npy", numpy.zeros((64, ROW), numpy.uint8))
    return lambda **options: messages().FeedSpec(dataset={"path": str(tmp_path / "x.npy")}, batch_size=1, slots=3, **options)


@pytest.fixture
def start(start_daemon):
    return functools.partial(start_daemon, "--allowed-roots", "/", "--workers", "1", "--pool-bytes", "64MiB", http_listen="127.0.0.1:0")


def user_of(daemon):
    status = read_status(daemon.address)
    (user,) = status["users"]
    return {name: int(value) for name, value in user.items()}, {name: int(value) for name, value in status["user_limits"].items()}


def test_a_user_has_its_share(start, spec):
    daemon = start("--user-sessions", "3", "--user-pool-bytes", "512KiB")
    clients = [Client(daemon.address, spec()) for _ in range(2)]
    with pytest.raises(grpc.RpcError) as refused:
        Client(daemon.address, spec())
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for word in ("user_pool_bytes: user ", "has 384 KiB (393216 bytes)", "192 KiB (196608 bytes) more", "512 KiB (524288 bytes)", "close a feed"):
        assert word in refused.value.details()
    group = {"sharing": "BROADCAST", "group": "g"}
    tiny = spec(**group)
    tiny.dataset.path = tiny.dataset.path.replace("x.npy", "y.npy")
    numpy.save(tiny.dataset.path, numpy.zeros((64, 8)))
    clients.append(Client(daemon.address, tiny))
    with pytest.raises(grpc.RpcError) as refused:
        Client(daemon.address, tiny)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "user_sessions: user " in refused.value.details() and "a user may have 3" in refused.value.details()
    user, limits = user_of(daemon)
    assert user["sessions"] == limits["sessions_limit"] == 3 and limits["pool_limit_bytes"] == 512 << 10
    assert 6 * ROW <= user["pool_bytes"] <= 512 << 10
    _, page = daemon.http("/metrics")
    assert f'pinfeed_user_sessions{{uid="{user.get("uid", 0)}"}} 3' in page and "pinfeed_user_pool_limit_bytes 524288" in page
    shown = subprocess.run([BUILD / "client" / "cli" / "pinfeed", "--address", daemon.address, "status"], check=True, capture_output=True, text=True).stdout
    assert "USER" in shown and "3 of 3" in shown
    for client in clients:
        client.bye()
    eventually("nobody has anything", lambda: not read_status(daemon.address).get("users"))


def test_shared_memory_kept_after_the_farewell_stays_charged(start, spec):
    daemon = start("--user-pool-bytes", "384KiB")
    kept = []
    for name in ("a", "b"):
        client = Client(daemon.address, spec(sharing="BROADCAST", group=name))
        kept.append(client.arena)  # as a client that lies does
        client.bye()
    eventually("it is known as kept", lambda: int(read_status(daemon.address).get("pool_kept_bytes", 0)) == 6 * ROW)
    user, _ = user_of(daemon)
    assert user.get("sessions", 0) == 0 and user["pool_bytes"] == 6 * ROW
    with pytest.raises(grpc.RpcError) as refused:
        Client(daemon.address, spec())
    assert "user_pool_bytes" in refused.value.details()
    del client
    kept.clear()
    eventually("the charge is back", lambda: int(read_status(daemon.address)["pool_used_bytes"]) == 0)
    Client(daemon.address, spec()).bye()


def test_connections_of_a_user_are_bounded(start):
    daemon = start()
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (400, 400))  # of which a user may have a quarter
    calls = [socket.socket(socket.AF_UNIX) for _ in range(150)]
    for call in calls:
        call.connect(daemon.address)  # waits where a connection with a deadline would fail: the queue is shorter
    eventually("the rest was closed", lambda: 'pinfeed_refusals_total{reason="descriptors"} 50\n' in daemon.http("/metrics")[1])
    for call in calls:
        call.close()

    def is_reached():
        try:
            return read_status(daemon.address)
        except pinfeed.Error:  # until the daemon has seen that they are gone
            return None

    eventually("the user is served again", is_reached)


def test_a_connection_whose_calls_nobody_reads_is_closed(start):
    daemon = start()
    with connect(daemon.address, socket.SOCK_STREAM) as deaf:
        with contextlib.suppress(BrokenPipeError):  # closed while it still talks
            deaf.sendall(many_calls(2000))  # without confirming the settings, which allow 8 at a time
        eventually("it was closed and counted", lambda: 'pinfeed_refused_requests_total{code="RESOURCE_EXHAUSTED"} 1\n' in daemon.http("/metrics")[1])
        eventually("it was told", lambda: "32 calls are open on one connection" in daemon.log())
        with contextlib.suppress(ConnectionResetError):
            while deaf.recv(1 << 20):
                pass
        assert read_status(daemon.address)["state"] == "ready"


def test_open_calls_of_a_user_are_bounded(start):
    daemon = start()
    with contextlib.ExitStack() as stack:
        for _ in range(40):  # of 31 calls each that never end
            deaf = stack.enter_context(connect(daemon.address, socket.SOCK_STREAM))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                deaf.sendall(many_calls(31, "/grpc.health.v1.Health/Watch"))
        eventually("it was told", lambda: "1024 calls of one user are open" in daemon.log())
    eventually("the user is served again", lambda: is_served(daemon))


def test_requests_of_open_calls_are_bounded(start):
    daemon = start()
    begin = many_calls(1, "/grpc.health.v1.Health/Watch")[:-14]  # without its message
    message = b"\0" + struct.pack(">I", 256 << 10) + bytes(59_995)  # the rest never comes
    frames = b"".join(h2_frame(0, 0, 1, message[at : at + 15_000]) for at in range(0, len(message), 15_000))
    with contextlib.ExitStack() as stack:
        for _ in range(100):  # 6 MB
            held = stack.enter_context(connect(daemon.address, socket.SOCK_STREAM))
            held.sendall(begin + frames)
        eventually("it was told", lambda: "the open calls of one user have requests of more than 4194304 bytes" in daemon.log())
    eventually("the user is served again", lambda: is_served(daemon))


def test_answers_that_nobody_reads_are_bounded(start, tmp_path):
    (tmp_path / "long.jsonl").write_text("".join(f'{{"x": {row}, "label": "{row:04}{"c" * 4000}"}}\n' for row in range(1000)))  # 4 MB of class names
    (tmp_path / "c.toml").write_text(f'[datasets.long]\npath = "{tmp_path}/long.jsonl"\n')
    daemon = start("--config", str(tmp_path / "c.toml"))
    refused = 'pinfeed_refused_requests_total{code="RESOURCE_EXHAUSTED"} '
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            deaf = stack.enter_context(connect(daemon.address, socket.SOCK_STREAM))
            deaf.sendall(many_calls(1, SERVICE + "ListDatasets"))
        eventually("the others of the 20 were refused", lambda: refused + "15\n" in daemon.http("/metrics")[1])
        assert "list the datasets: 19.1 MiB of answers to calls of this user have not been read, and no more are made beyond 16 MiB" in daemon.log()
        assert is_served(daemon), "small answers count for nothing"


def test_a_client_that_does_not_read_does_not_delay_the_end(start, tmp_path):
    (tmp_path / "long.jsonl").write_text("".join(f'{{"x": {row}, "label": "{row:04}{"c" * 4000}"}}\n' for row in range(1000)))
    (tmp_path / "c.toml").write_text(f'[datasets.long]\npath = "{tmp_path}/long.jsonl"\n')
    daemon = start("--config", str(tmp_path / "c.toml"))
    with connect(daemon.address, socket.SOCK_STREAM) as deaf:
        deaf.sendall(many_calls(1, SERVICE + "ListDatasets"))
        eventually("its answer fills the socket", lambda: struct.unpack("i", fcntl.ioctl(deaf, termios.FIONREAD, bytes(4)))[0] > 64 << 10)
        daemon.stop()  # with status 0
        assert "has not answered" not in daemon.log()


def test_many_that_read_may_open_at_once_whatever_the_answers_have(start, tmp_path):
    (tmp_path / "long.jsonl").write_text("".join(f'{{"x": {row}, "label": "{row:04}{"c" * 3000}"}}\n' for row in range(1000)))  # 3 MB of class names
    daemon = start()
    request = request_for(messages().FeedSpec(dataset={"path": str(tmp_path / "long.jsonl")}, batch_size=1, slots=3))
    with concurrent.futures.ThreadPoolExecutor(24) as threads:  # 72 MB
        offers = list(threads.map(lambda _: open_feed(daemon.address, request, 60), range(24)))
    assert {len(offer.classes) for offer in offers} == {1000}


def is_served(daemon):
    try:
        return read_status(daemon.address)["state"] == "ready"
    except pinfeed.Error:  # until the daemon has seen that the others are gone
        return False


@pytest.mark.parametrize("bad, why", [
    (b"GET / HTTP/1.1\r\n\r\n", "bytes that are not an HTTP/2 preface"),
    (PREFACE + h2_frame(6, 0, 0, bytes(8)), "first frame that is not SETTINGS"),
    (many_calls(0) + h2_frame(1, 0, 1, b"\x83") + 8 * h2_frame(9, 0, 1), "a header block of more than 8 frames"),
    (many_calls(0) + h2_frame(0xEE, 0, 0, bytes(16385)), "with 16385 bytes on stream 0: the limit is 16384"),
])  # fmt: skip
def test_http2_that_breaks_the_rules_is_closed_and_counted(start, bad, why):
    daemon = start()
    with connect(daemon.address, socket.SOCK_STREAM) as hostile:
        hostile.sendall(bad)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while more := hostile.recv(1 << 16):
                said += more
    assert why.encode() in said  # GOAWAY's reason
    assert 'pinfeed_refusals_total{reason="http2"} 1\n' in daemon.http("/metrics")[1]
    assert "refused (http2): a connection of pid " in daemon.log() and why in daemon.log()
    assert is_served(daemon)


def test_large_requests_pass_whole(start, spec):
    daemon = start()
    for _ in range(50):  # more than is saved up: the later ones wait for their turns
        with pytest.raises(grpc.RpcError) as refused:
            open_feed(daemon.address, request_for(spec(), client_name="x" * 100_000))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "client_name" in refused.value.details()


def test_streams_of_a_connection_are_bounded(start):
    daemon = start()
    with grpc.insecure_channel(f"unix:{daemon.address}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        watches = [watch(b"", timeout=60) for _ in range(8)]
        assert all(next(one) == b"\x08\x01" for one in watches)
        with pytest.raises(grpc.RpcError) as refused:
            next(watch(b"", timeout=2))
        assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        watches.pop().cancel()
        assert next(watch(b"", timeout=20)) == b"\x08\x01"
        for one in watches:
            one.cancel()


def test_no_token_is_logged(start, spec):
    daemon = start("--log-level", "trace", "--log-format", "json")
    client = Client(daemon.address, spec())
    tokens = [client.offer.token]
    client.bye()
    tokens.append(open_feed(daemon.address, request_for(spec())).token)  # whose lifeline never comes
    eventually("it is over", lambda: "lifeline never came" in daemon.log())
    log = daemon.log_path.read_bytes()
    for token in tokens:
        assert len(token) == 32
        for form in (token, token.hex().encode(), token.hex().upper().encode(), base64.b64encode(token), str(list(token))[1:-1].encode()):
            assert form not in log


def test_json_lines_carry_session_feed_and_trace(start, spec):
    daemon = start("--log-format", "json")
    trace = "0af7651916cd43dd8448eb211c80319c"
    for header in (f"00-{trace}-b7ad6b7169203331-01", f"00-{trace}-b7ad6b7169203331", "\"}{", "00-" + "0" * 32 + "-b7ad6b7169203331-01"):
        with grpc.insecure_channel(f"unix:{daemon.address}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary("/pinfeed.v1.Feeder/OpenFeed", messages().OpenFeedRequest.SerializeToString, messages().OpenFeedResponse.FromString)
            call(request_for(spec(), client_name="two \"quotes\""), timeout=20, metadata=(("traceparent", header),))
    eventually("their lifelines never came", lambda: daemon.log().count("lifeline never came") == 4)
    eventually("their feeds have ended", lambda: daemon.log().count(": ended after ") == 4)
    lines = [json.loads(line) for line in daemon.log().splitlines()]
    opened = [line for line in lines if "opened on feed" in line["message"]]
    assert [line.get("trace_id") for line in opened].count(trace) == 1
    (first,) = [line for line in opened if line.get("trace_id") == trace]
    ended = [line for line in lines if line.get("session") == first["session"] and "ended: its lifeline" in line["message"]]
    assert first["feed"] >= 1 and ended and ended[0]["trace_id"] == trace and ended[0]["feed"] == first["feed"]
    feed = [line for line in lines if line.get("feed") == first["feed"] and line["message"].startswith(f"feed {first['feed']}: ")]
    assert len(feed) >= 2, "its beginning and its end"
