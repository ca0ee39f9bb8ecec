# SPDX-License-Identifier: Apache-2.0
"""The TCP endpoint for operators of other hosts: whom it serves with what."""
import ast
import collections
import contextlib
import fcntl
import os
import socket
import ssl
import struct
import subprocess
import sys
import termios

import grpc
import pinfeed
import pytest
from admin_fixtures import SPIFFE, TOOL, Endpoint, call, endpoint, listeners_of, papers  # noqa: F401
from daemon_process import Daemon
from deaf_caller import many_calls
from raw_client import messages, request_for
from terminal import OnATerminal
from withstand.hardship import eventually


def test_it_listens_when_it_is_told_to_only(endpoint, tmp_path):
    assert endpoint.port in listeners_of(endpoint.daemon.process.pid)
    plain = Daemon(tmp_path / "run", "--pool-bytes", "64MiB", "--workers", "1")
    assert listeners_of(plain.process.pid) == [] and "TLS" not in plain.log()
    plain.stop()


def test_the_right_certificate_steers_the_daemon(endpoint, arrays):
    endpoint.serves()
    status, out, err = endpoint.tool("datasets")
    assert status == 0 and "any path below / may be opened" in out, err
    status, out, err = endpoint.tool("logs", "--level", "warning")
    assert status == 0 and out.startswith("log level warning (was info)"), err
    status, out, err = endpoint.tool("reload")
    assert status == 0 and out == "loaded: nothing changed\n", err
    with pinfeed.open(arrays, batch_size=4, framework="numpy", address=endpoint.daemon.address, name="goes") as feed:
        epoch = iter(feed)
        next(epoch)
        session = pinfeed.status(endpoint.daemon.address)["feeds"][0]["sessions"][0]["id"]
        status, out, err = endpoint.tool("evict", session, "--reason", "from afar")
        assert status == 0 and "'goes'" in out, err
        with pytest.raises(pinfeed.Error, match="evicted by an operator .admin 'ops.example'.: from afar"):
            collections.deque(epoch, maxlen=0)
            next(iter(feed))  # the whole epoch was published before
    status, _, err = endpoint.tool("evict", 10**9)
    assert status == 1 and "there is no session 1000000000" in err
    assert "reload by admin 'ops.example': the configuration was loaded" in endpoint.daemon.log()


def test_top_runs_from_afar(endpoint):
    papers = endpoint.papers
    top = OnATerminal("--address", endpoint.address, "--tls-ca", str(papers.ca.cert), "--tls-cert", str(papers.ops.cert), "--tls-key", str(papers.ops.key), "top", "--interval", "0.2")
    top.await_line(rf"is ready, up .*, pid {endpoint.daemon.process.pid}")
    assert top.end(b"q") == 0


def test_drain_from_afar_names_who_asked(papers, tmp_path):
    one = Endpoint(tmp_path / "run", papers, *papers.flags())
    status, out, err = one.tool("drain", "--wait")
    assert status == 2 and out == "" and "on the daemon's host only" in err
    one.serves()
    status, out, err = one.tool("drain")
    assert status == 0 and out.startswith("draining: 0 sessions"), err
    assert one.daemon.process.wait(60) == 0
    assert "drain by admin 'ops.example': draining" in one.daemon.log()


def test_health_is_served(endpoint):
    with endpoint.channel() as channel:
        assert call(channel, "/grpc.health.v1.Health/Check") == b"\x08\x01"  # SERVING


@pytest.mark.parametrize("cn, san, name", [
    ("ignored", "DNS:other.example,DNS:ops.example", "ops.example"),
    ("ignored", f"URI:{SPIFFE}", SPIFFE),
    ("plain-name", None, "plain-name"),
    ("plain-name", "email:someone@example.org", "plain-name"),
])  # fmt: skip
def test_names_are_those_for_machines_else_the_subjects(endpoint, cn, san, name):
    assert endpoint.tool("logs", "--level", "info", pair=endpoint.papers.ca.sign(cn, san))[0] == 0
    assert endpoint.tool("reload", pair=endpoint.papers.ca.sign(cn, san))[0] == 0
    assert f"reload by admin '{name}'" in endpoint.daemon.log()


def test_feeds_and_traces_are_for_the_daemons_host(endpoint, arrays):
    request = request_for(messages().FeedSpec(dataset={"path": str(arrays)}, batch_size=4)).SerializeToString()
    with endpoint.channel() as channel:
        with pytest.raises(grpc.RpcError) as refused:
            call(channel, "/pinfeed.v1.Feeder/OpenFeed", request)
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED and "not over TCP; open it on the daemon's host" in refused.value.details()
        with pytest.raises(grpc.RpcError) as refused:
            list(channel.unary_stream("/pinfeed.v1.Admin/Trace", bytes, bytes)(b"\x09" + b"\0" * 6 + b"\xf0\x3f\x10\x10", timeout=30))
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED and "on the daemon's host" in refused.value.details()
    assert "refused (request): admin 'ops.example'" in endpoint.daemon.log()
    assert not pinfeed.status(endpoint.daemon.address)["feeds"]
    for words in (["peek", str(arrays)], ["trace"], ["bench", str(arrays)]):
        status, _, err = endpoint.tool(*words, cwd="/")
        assert status == 1 and f"not over TCP ('{endpoint.address}')" in err, err
    with pytest.raises(pinfeed.Error, match="open a feed: not over TCP"):
        pinfeed.open(arrays, batch_size=4, framework="numpy", address=endpoint.address)
    with pinfeed.open(arrays, batch_size=4, framework="numpy", address=endpoint.daemon.address) as feed:
        assert len(next(iter(feed)).id) == 4


def test_a_tcp_address_without_certificates_is_one_clear_error(endpoint, monkeypatch):
    papers = endpoint.papers
    done = subprocess.run([TOOL, "--address", endpoint.address, "--tls-ca", papers.ca.cert, "status"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"'{endpoint.address}' is a TCP address" in done.stderr and "(missing: --tls-cert, --tls-key)" in done.stderr
    for variable, path in (("CA", papers.ca.cert), ("CERT", papers.ops.cert), ("KEY", papers.ops.key)):
        monkeypatch.setenv(f"PINFEED_TLS_{variable}", str(path))
    monkeypatch.setenv("PINFEED_ADDRESS", endpoint.address)
    done = subprocess.run([TOOL, "status"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert pinfeed.status(endpoint.address)["state"] == "ready"
    monkeypatch.setenv("PINFEED_TLS_KEY", str(papers.server.key))
    done = subprocess.run([TOOL, "status"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and f"$PINFEED_TLS_KEY: '{papers.server.key}' is not the key of $PINFEED_TLS_CERT" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    status, _, err = endpoint.tool("status", address=f"127.0.0.1:{port}")
    assert status == 1 and "Connection refused; is pinfeedd running there, with admin_listen?" in err


LEAVES_NOTHING = """
import os, sys, time
import pinfeed
counts = []
for _ in range(4):
    assert pinfeed.status(sys.argv[1])["state"] == "ready"
    deadline = time.monotonic() + 30  # the kernel lists a thread for a moment after whoever waited for its end goes on
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        os.sched_yield()
    counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
assert os.fork() or os._exit(0) is None
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(counts)
"""


def test_an_admin_client_that_reads_nothing_does_not_delay_the_shutdown(papers, tmp_path):
    (tmp_path / "long.jsonl").write_text("".join(f'{{"x": {row}, "label": "{row:04}{"c" * 4000}"}}\n' for row in range(1000)))  # 4 MB of class names
    (tmp_path / "c.toml").write_text(f'[datasets.long]\npath = "{tmp_path}/long.jsonl"\n')
    endpoint = Endpoint(tmp_path / "run", papers, "--config", str(tmp_path / "c.toml"), *papers.flags())
    context = ssl.create_default_context(cafile=papers.ca.cert)
    context.load_cert_chain(*papers.ops)
    context.set_alpn_protocols(["h2"])
    with contextlib.closing(socket.socket()) as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        plain.connect(("127.0.0.1", endpoint.port))
        with context.wrap_socket(plain, server_hostname="node.example") as deaf:
            deaf.sendall(many_calls(1, "/pinfeed.v1.Feeder/ListDatasets"))
            eventually("its answer fills the socket", lambda: struct.unpack("i", fcntl.ioctl(deaf, termios.FIONREAD, bytes(4)))[0] > 16 << 10)
            endpoint.daemon.stop()  # with status 0
    assert "has not answered" not in endpoint.daemon.log()


def test_a_call_by_tls_leaves_no_thread_and_no_descriptor(endpoint):
    papers = endpoint.papers
    environment = {**os.environ, "PINFEED_TLS_CA": str(papers.ca.cert), "PINFEED_TLS_CERT": str(papers.ops.cert), "PINFEED_TLS_KEY": str(papers.ops.key)}
    done = subprocess.run([sys.executable, "-c", LEAVES_NOTHING, endpoint.address], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, *others = ast.literal_eval(done.stdout)
    assert first[0] == 1 and others == [first] * 3
