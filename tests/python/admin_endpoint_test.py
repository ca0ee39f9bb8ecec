# SPDX-License-Identifier: Apache-2.0
"""The TCP endpoint for operators of other hosts, with real certificates: whom it serves with what, whom it turns away, and that it goes on."""
import ast
import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

import grpc
import pinfeed
import pytest
from certificates import Authority, Pair, self_signed
from conftest import BUILD, ROOT
from daemon_process import Daemon
from operate_test import OnATerminal, eventually, metric
from raw_client import messages, request_for

TOOL = BUILD / "client" / "cli" / "pinfeed"
SPIFFE = "spiffe://cluster/ops"
HANDSHAKE_S = 5  # of server/session/rpc_server.cc
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # how a client begins: with empty settings


class Papers:
    """An authority, and what of it and of others a test may want."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = Authority(folder, "own")
        self.other = Authority(folder, "other")
        self.server = self.ca.sign("server", "DNS:node.example,IP:127.0.0.1")
        self.ops = self.ca.sign("some operator", "DNS:ops.example")

    def flags(self, *clients, cert=None, key=None, ca=None, listen="127.0.0.1:0"):
        return ["--admin-listen", listen, "--admin-cert", str(cert or self.server.cert), "--admin-key", str(key or self.server.key), "--admin-ca",
                str(ca or self.ca.cert), "--admin-clients", ",".join(clients or ("ops.example", "plain-name", SPIFFE))]


class Endpoint:
    def __init__(self, folder, papers, *flags, **options):
        self.papers = papers
        self.daemon = Daemon(folder, "--allowed-roots", "/", "--pool-bytes", "64MiB", "--workers", "1", *flags, http_listen="127.0.0.1:0", **options)
        self.port = int(re.search(r"served over TLS on \S+, port (\d+)", self.daemon.log()).group(1))
        self.address = f"127.0.0.1:{self.port}"

    def tool(self, *words, pair=None, ca=None, address=None, name=None, **options):
        pair = pair or self.papers.ops
        command = [TOOL, "--address", address or self.address, "--tls-ca", ca or self.papers.ca.cert, "--tls-cert", pair.cert, "--tls-key", pair.key]
        done = subprocess.run([*map(str, [*command, *(["--tls-name", name] if name else []), *words])], capture_output=True, text=True, timeout=60, check=False, **options)
        return done.returncode, done.stdout, done.stderr

    def serves(self, **options):
        status, out, err = self.tool("status", **options)
        assert status == 0 and " is ready" in out, err

    def channel(self, pair=None):
        pair = pair or self.papers.ops
        credentials = grpc.ssl_channel_credentials(self.papers.ca.cert.read_bytes(), pair.key.read_bytes(), pair.cert.read_bytes())
        return grpc.secure_channel(self.address, credentials, options=[("grpc.use_local_subchannel_pool", 1)])

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def endpoint(papers, tmp_path_factory):
    one = Endpoint(tmp_path_factory.mktemp("endpoint") / "run", papers, *papers.flags())
    yield one
    one.daemon.stop()


@pytest.fixture(scope="module")
def idle(endpoint):
    """A connection, by the right certificate, on which nothing is called from when the tests begin."""
    context = ssl.create_default_context(cafile=endpoint.papers.ca.cert)
    context.load_cert_chain(*endpoint.papers.ops)
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(endpoint.connect(), server_hostname="node.example") as connection:
        connection.sendall(HTTP2)
        yield connection


def call(channel, method, request=b""):
    return channel.unary_unary(method, bytes, bytes)(request, timeout=30)


def listeners_of(pid):
    """The sockets of TCP on which the process listens, as the kernel says."""
    own = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.update(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    rows = [row.split() for table in ("tcp", "tcp6") for row in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in own]


def test_it_listens_when_it_is_told_to_only(endpoint, tmp_path, idle):
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
    assert status == 2 and out == "" and "on its own host only" in err
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


@pytest.mark.parametrize("cn, san", [
    ("mallory", None),
    ("plain-name", "DNS:mallory.example"),  # the subject counts only where there is no other name
    ("ops.example\n", "DNS:sub.ops.example,DNS:*.example"),
    ("x", "DNS:OPS.EXAMPLE.,URI:spiffe://cluster/ops/"),
])  # fmt: skip
def test_a_name_that_is_not_listed_may_nothing(endpoint, cn, san):
    pair = endpoint.papers.ca.sign(cn.strip(), san)
    before = metric(endpoint.daemon, r'pinfeed_refusals_total\{reason="certificate"\}')
    status, out, err = endpoint.tool("status", pair=pair)
    assert status == 1 and out == "" and "is not in this daemon's admin_clients" in err
    with endpoint.channel(pair) as channel:
        for method in ("pinfeed.v1.Feeder/GetStatus", "pinfeed.v1.Feeder/ListDatasets", "pinfeed.v1.Feeder/OpenFeed", "pinfeed.v1.Admin/Drain", "pinfeed.v1.Admin/Trace",
                       "grpc.health.v1.Health/Check", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"):  # fmt: skip
            with pytest.raises(grpc.RpcError) as refused:
                call(channel, "/" + method)
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED, method
    eventually("it is counted", lambda: metric(endpoint.daemon, r'pinfeed_refusals_total\{reason="certificate"\}') >= before + 8)
    assert "refused (certificate" in endpoint.daemon.log()
    endpoint.serves()


def refused_pair(papers, which):
    if which == "self-signed":
        return self_signed(papers.folder, f"self{time.monotonic_ns()}", "DNS:ops.example")
    if which == "another CA's":
        return papers.other.sign("x", "DNS:ops.example")
    return papers.ca.sign("x", "DNS:ops.example", days={"expired": (-9, -1), "not yet valid": (2, 9)}[which])


REFUSED = ["self-signed", "another CA's", "expired", "not yet valid"]


@pytest.mark.parametrize("which", [*REFUSED, "none"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_handshakes_without_a_good_certificate_end(endpoint, which, version):
    """As a client that does not look at its own certificate first."""
    context = ssl.create_default_context(cafile=endpoint.papers.ca.cert)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    if which != "none":
        pair = refused_pair(endpoint.papers, which)
        context.load_cert_chain(pair.cert, pair.key)
    lines = endpoint.daemon.log().count("gRPC: ")
    with endpoint.connect() as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        with context.wrap_socket(plain, server_hostname="node.example") as connection:
            connection.sendall(HTTP2)
            while connection.recv(4096):  # TLS 1.3 tells the client after its own part is done
                pass
            raise ConnectionError("hung up without a word")
    eventually("the log tells of it, or paces its telling", lambda: "gRPC: " in endpoint.daemon.log() and endpoint.daemon.log().count("gRPC: ") >= lines)
    endpoint.serves()


@pytest.mark.parametrize("which", REFUSED)
def test_the_tool_says_that_it_is_refused(endpoint, which):
    pair = refused_pair(endpoint.papers, which)
    for words in (["status"], ["reload"]):
        status, out, err = endpoint.tool(*words, pair=pair)
        assert status == 1 and out == "" and len(err.splitlines()) == 1, err
        expected = {"expired": "expired on .*; daemons refuse it: get one that is valid now", "not yet valid": "is not valid before .*: get one that is valid now"}
        assert re.search(expected.get(which, f"call the daemon at {endpoint.address} by TLS: .*; it hung up in the handshake, .* not of its admin_ca"), err), err
    endpoint.serves()


def test_the_tool_refuses_a_daemon_that_is_another(endpoint):
    for options, hint in (({"name": "elsewhere.example"}, "is for another name"), ({"ca": endpoint.papers.other.cert}, "is not of the CA in --tls-ca")):
        status, out, err = endpoint.tool("drain", **options)
        assert status == 1 and out == "" and hint in err and len(err.splitlines()) == 1, err
    assert pinfeed.status(endpoint.daemon.address)["state"] == "ready"
    endpoint.serves(name="node.example")
    status, _, err = endpoint.tool("status", address=f"localhost:{endpoint.port}")
    assert status == 1 and "--tls-name" in err  # `localhost` is not in its certificate
    endpoint.serves(address=f"localhost:{endpoint.port}", name="node.example")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
def test_old_tls_is_not_spoken(endpoint):
    context = ssl.create_default_context(cafile=endpoint.papers.ca.cert)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.load_cert_chain(*endpoint.papers.ops)
    with endpoint.connect() as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(plain, server_hostname="node.example")


def closed_after(connection):
    """Seconds until the other side hangs up."""
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return time.monotonic() - began


def test_what_is_no_tls_is_closed(endpoint):
    with grpc.insecure_channel(endpoint.address) as channel, pytest.raises(grpc.RpcError) as refused:
        call(channel, "/pinfeed.v1.Feeder/GetStatus")
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    for garbage in (b"GET / HTTP/1.1\r\nHost: node\r\n\r\n", bytes(range(256)) * 64, b"\x16\x03\x01\xff\xff" + b"\xff" * 4096):
        with endpoint.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(garbage)
            assert closed_after(connection) < HANDSHAKE_S + 20
    endpoint.serves()


def test_a_handshake_that_stalls_is_ended_and_holds_nobody_up(endpoint):
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="node.example").do_handshake()
    begun = hello.read()
    with endpoint.connect() as silent, endpoint.connect() as half:
        half.sendall(begun[: len(begun) // 2])
        endpoint.serves()
        assert closed_after(silent) < HANDSHAKE_S + 20 and closed_after(half) < HANDSHAKE_S + 20
    endpoint.serves()


def test_connections_are_bounded(endpoint):
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(endpoint.connect()) for _ in range(80)]
        eventually("the surplus is counted", lambda: re.search(r"refused \(descriptors.*a connection from the network: 64 of", endpoint.daemon.log()))
        assert pinfeed.status(endpoint.daemon.address)["state"] == "ready"
        surplus = flood[-1]
        assert closed_after(surplus) < HANDSHAKE_S  # at once, not when a handshake's time is over
    eventually("it serves again", lambda: endpoint.tool("status")[0] == 0)


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
import os, sys
import pinfeed
counts = []
for _ in range(4):
    assert pinfeed.status(sys.argv[1])["state"] == "ready"
    counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
assert os.fork() or os._exit(0) is None
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(counts)
"""


def test_a_call_by_tls_leaves_no_thread_and_no_descriptor(endpoint):
    papers = endpoint.papers
    environment = {**os.environ, "PINFEED_TLS_CA": str(papers.ca.cert), "PINFEED_TLS_CERT": str(papers.ops.cert), "PINFEED_TLS_KEY": str(papers.ops.key)}
    done = subprocess.run([sys.executable, "-c", LEAVES_NOTHING, endpoint.address], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, *others = ast.literal_eval(done.stdout)
    assert others == [first] * 3


def test_certificates_and_names_change_by_a_reload(papers, tmp_path):
    cert, key, ca, file = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem", "pinfeed.toml"))

    def install(pair, authority):
        shutil.copy(pair.cert, cert)
        shutil.copy(pair.key, key)
        shutil.copy(authority.cert, ca)

    def configure(*clients):
        file.write_text(f'admin_listen = "127.0.0.1:0"\nadmin_cert = "{cert}"\nadmin_key = "{key}"\nadmin_ca = "{ca}"\nadmin_clients = {list(clients)}\n')

    install(papers.server, papers.ca)
    configure("ops.example", "next.example")
    one = Endpoint(tmp_path / "run", papers, "--config", str(file))
    successor = papers.other.sign("x", "DNS:next.example")
    with one.channel() as channel:
        assert call(channel, "/pinfeed.v1.Feeder/GetStatus")
        shutil.copy(papers.ops.key, key)
        status, _, err = one.tool("reload")
        assert status == 1 and f"admin_key: '{key}' is not the key of admin_cert '{cert}'" in err
        one.serves()  # what was in force is
        install(papers.other.sign("server", "IP:127.0.0.1"), papers.other)
        status, out, err = one.tool("reload")
        assert status == 0 and "admin endpoint: the certificates were read anew; its own is valid until " in out, err
        one.serves(pair=successor, ca=papers.other.cert)
        assert one.tool("status")[0] == 1
        assert one.tool("status", ca=papers.other.cert)[0] == 1
        assert call(channel, "/pinfeed.v1.Feeder/GetStatus")  # a connection that there was goes on
        configure("next.example")
        one.daemon.process.send_signal(signal.SIGHUP)
        eventually("it is loaded", lambda: 'loaded: admin_clients = ["next.example"]' in one.daemon.log())
        with pytest.raises(grpc.RpcError) as refused:  # and ends with the name's place on the list
            call(channel, "/pinfeed.v1.Feeder/GetStatus")
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert one.port in listeners_of(one.daemon.process.pid)
    file.write_text("")
    status, out, err = one.tool("reload", pair=successor, ca=papers.other.cert)
    assert status == 0 and "admin_clients = []" in out and 'admin_listen = "off"' in out.split("waits for a restart:")[1], err
    assert "is not in this daemon's admin_clients" in one.tool("status", pair=successor, ca=papers.other.cert)[2]
    one.daemon.stop()


def broken(papers, folder, what):
    """Flags with one fault, and what is said of it."""
    folder = pathlib.Path(folder)
    path = folder / "file.pem"
    if what == "open to others":
        shutil.copy(papers.server.key, path)
        path.chmod(0o644)
        return papers.flags(key=path), rf"admin_key: '{path}' may be read or written by every user; take that from them: chmod o= "
    if what == "passphrase":
        subprocess.run(["openssl", "pkey", "-in", papers.server.key, "-aes128", "-passout", "pass:secret", "-out", path], check=True)
        path.chmod(0o600)
        return papers.flags(key=path), rf"admin_key: '{path}' has a passphrase; give a key without one"
    if what == "broken":
        text = papers.server.cert.read_text().splitlines()
        path.write_text("\n".join([*text[:3], *text[4:]]) + "\n")
        return papers.flags(cert=path), rf"admin_cert: '{path}' holds a broken certificate \(.+\); make it anew"
    path.write_text("no PEM\n")
    path.chmod(0o600)
    return {
        "missing": (papers.flags(cert=folder / "none"), r"admin_cert: open '.*/none': No such file or directory .*; it must be a PEM file"),
        "folder": (papers.flags(ca=folder), r"admin_ca: '.*' is no file of at most 1 MiB"),
        "no certificate": (papers.flags(ca=path), rf"admin_ca: '{path}' holds no certificate; it must be PEM"),
        "no key": (papers.flags(key=path), rf"admin_key: '{path}' holds no private key"),
        "another's key": (papers.flags(key=papers.ops.key), r"admin_key: '.*' is not the key of admin_cert '.*'; give the two that were made together"),
        "relative": (papers.flags(cert="cert.pem"), r"flag --admin-cert: admin_cert: expected an absolute path, found 'cert.pem'"),
        "wildcard": (papers.flags("*.example"), r"admin_clients: expected names as they stand in the clients' certificates, each in full, found '\*.example'"),
        "name of a host": (papers.flags(listen="localhost:1"), r"admin_listen: expected ADDRESS:PORT with a numeric address, such as 10.0.0.7:9468"),
        "no clients": (papers.flags()[:-2], r"flag --admin-listen: admin_listen: is of use only with admin_clients, which must be given as well"),
        "address alone": (papers.flags()[:2], r"admin_listen: is of use only with admin_cert, admin_key, admin_ca, admin_clients"),
        "no address": (papers.flags()[2:], r"admin_cert: is of use only with admin_listen"),
    }[what]


@pytest.mark.parametrize("what", ["open to others", "passphrase", "broken", "missing", "folder", "no certificate", "no key", "another's key", "relative", "wildcard", "name of a host",
                                  "no clients", "address alone", "no address"])  # fmt: skip
def test_what_is_wrong_ends_the_start_with_one_line(papers, tmp_path, what):
    flags, expected = broken(papers, tmp_path, what)
    command = [os.environ["PINFEED_DAEMON"], "--socket-dir", str(tmp_path), "--pool-bytes", "64MiB", "--http-listen", "off", *flags]
    for more in ([], ["--check"]):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        assert len([line for line in done.stderr.splitlines() if re.search(expected, line)]) == 1 and "secret" not in done.stderr, done.stderr


def test_an_address_in_use_is_told(papers, endpoint, tmp_path):
    flags = papers.flags(listen=endpoint.address)
    done = subprocess.run([os.environ["PINFEED_DAEMON"], "--socket-dir", str(tmp_path), "--pool-bytes", "64MiB", "--http-listen", "off", *flags],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 1 and f"listen for admins on {endpoint.address}: bind: Address already in use" in done.stderr
    endpoint.serves()


def test_an_expired_certificate_of_the_daemons_is_told_and_ends_no_start(papers, tmp_path):
    old = papers.ca.sign("server", "IP:127.0.0.1", days=(-9, -1))
    one = Endpoint(tmp_path / "run", papers, *papers.flags(cert=old.cert, key=old.key))
    assert re.search(r"admin_cert: '.*' expired on \d{4}-.* UTC: its clients will refuse this daemon; renew it, then reload", one.daemon.log())
    status, _, err = one.tool("status")
    assert status == 1 and "or not valid now" in err
    assert pinfeed.status(one.daemon.address)["state"] == "ready"
    one.daemon.stop()


def test_the_certificates_of_the_operations_page_do(tmp_path):
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    (lines,) = re.findall(r"^Certificates, with nothing but openssl.*?^```sh\n(.*?)^```", page, re.M | re.S)
    subprocess.run(["sh", "-e", "-c", lines], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    made = Pair(tmp_path / "ops.example.pem", tmp_path / "ops.example.key")
    flags = ["--admin-listen", "127.0.0.1:0", "--admin-cert", f"{tmp_path}/node7.pem", "--admin-key", f"{tmp_path}/node7.key", "--admin-ca", f"{tmp_path}/ca.pem"]
    one = Endpoint(tmp_path / "run", None, *flags, "--admin-clients", "ops.example")
    one.serves(pair=made, ca=tmp_path / "ca.pem", name="node7")
    one.daemon.stop()


def test_no_private_key_is_logged(papers, endpoint):
    secret = "".join(papers.server.key.read_text().splitlines()[1:-1])
    assert "PRIVATE KEY" not in endpoint.daemon.log() and secret[:40] not in endpoint.daemon.log()


def test_idle_connections_are_closed(idle):
    """The last: its connection has had nothing to do since the first."""
    said = b""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        while more := idle.recv(4096):
            said += more
    assert b"enter idle" in said  # the farewell's reason
