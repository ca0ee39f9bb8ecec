# SPDX-License-Identifier: Apache-2.0
"""The TCP endpoint for operators, with real certificates: whom it turns away, and that it goes on."""
import contextlib
import re
import ssl
import time

import grpc
import pinfeed
import pytest
from admin_fixtures import call, closed_after, endpoint, papers  # noqa: F401
from certificates import self_signed
from withstand.hardship import eventually, metrics

HANDSHAKE_S = 5  # of server/rpc/admin_endpoint.cc
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # how a client begins: with empty settings


@pytest.fixture(scope="module", autouse=True)
def idle(endpoint):
    """A connection, by the right certificate, on which nothing is called from when the tests begin."""
    context = ssl.create_default_context(cafile=endpoint.papers.ca.cert)
    context.load_cert_chain(*endpoint.papers.ops)
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(endpoint.connect(), server_hostname="node.example") as connection:
        connection.sendall(HTTP2)
        yield connection


@pytest.mark.parametrize("cn, san", [
    ("mallory", None),
    ("plain-name", "DNS:mallory.example"),  # the subject counts only where there is no other name
    ("ops.example\n", "DNS:sub.ops.example,DNS:*.example"),
    ("x", "DNS:OPS.EXAMPLE.,URI:spiffe://cluster/ops/"),
])  # fmt: skip
def test_a_name_that_is_not_listed_may_nothing(endpoint, cn, san):
    pair = endpoint.papers.ca.sign(cn.strip(), san)
    before = metrics(endpoint.daemon)['pinfeed_refusals_total{reason="certificate"}']
    status, out, err = endpoint.tool("status", pair=pair)
    assert status == 1 and out == "" and "is not in this daemon's admin_clients" in err
    with endpoint.channel(pair) as channel:
        for method in ("pinfeed.v1.Feeder/GetStatus", "pinfeed.v1.Feeder/ListDatasets", "pinfeed.v1.Feeder/OpenFeed", "pinfeed.v1.Admin/Drain", "pinfeed.v1.Admin/Trace",
                       "grpc.health.v1.Health/Check", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"):  # fmt: skip
            with pytest.raises(grpc.RpcError) as refused:
                call(channel, "/" + method)
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED, method
    eventually("it is counted", lambda: metrics(endpoint.daemon)['pinfeed_refusals_total{reason="certificate"}'] >= before + 8)
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
    before = metrics(endpoint.daemon)['pinfeed_refusals_total{reason="certificate"}']
    with endpoint.connect() as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        with context.wrap_socket(plain, server_hostname="node.example") as connection:
            connection.sendall(HTTP2)
            while connection.recv(4096):  # TLS 1.3 tells the client after its own part is done
                pass
            raise ConnectionError("hung up without a word")
    eventually("it is counted", lambda: metrics(endpoint.daemon)['pinfeed_refusals_total{reason="certificate"}'] > before)
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


def test_a_certificate_that_expires_on_an_open_connection_may_nothing_more(endpoint):
    pair = endpoint.papers.ca.sign("x", "DNS:ops.example", days=(-1, 15 / 86400))
    expires = time.time() + 15
    with endpoint.channel(pair) as channel:
        assert call(channel, "/pinfeed.v1.Feeder/GetStatus")
        time.sleep(max(0, expires - time.time()))  # it expires no later

        def is_refused():
            try:
                return not call(channel, "/pinfeed.v1.Feeder/GetStatus")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.PERMISSION_DENIED and " expired on " in error.details()
                return True

        eventually("its calls are refused", is_refused)


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


def test_idle_connections_are_closed(idle):
    """The last: its connection has had nothing to do since the first."""
    said = b""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        while more := idle.recv(4096):
            said += more
    assert b"enter idle" in said  # the farewell's reason
