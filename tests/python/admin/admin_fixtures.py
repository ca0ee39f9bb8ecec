# SPDX-License-Identifier: Apache-2.0
"""What tests of the TCP endpoint for operators share: certificates, and a daemon that listens there."""
import contextlib
import os
import pathlib
import re
import socket
import subprocess
import time

import grpc
import pytest
from certificates import Authority
from conftest import TOOL
from daemon_process import Daemon

SPIFFE = "spiffe://cluster/ops"


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
        self.port = int(re.search(r"listens with TLS on \S+, port (\d+)", self.daemon.log()).group(1))
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


def closed_after(connection):
    """Seconds until the other side hangs up."""
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return time.monotonic() - began
