# SPDX-License-Identifier: Apache-2.0
"""The files of the TCP endpoint for operators: what is wrong with them, and their change while it serves."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import grpc
import pinfeed
import pytest
from admin_fixtures import TOOL, Endpoint, call, endpoint, listeners_of, papers  # noqa: F401
from certificates import Authority, Pair, openssl, self_signed
from conftest import ROOT
from daemon_process import Daemon
from withstand.hardship import eventually, metrics


def check(folder, flags):
    command = [os.environ["PINFEED_DAEMON"], "--check", "--socket-dir", str(folder), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


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
        assert status == 1 and f"{file}:3: admin_key: '{key}' is not the key of admin_cert '{cert}'" in err
        checked = check(tmp_path, ["--config", str(file)])
        assert checked.returncode == 2 and f"{file}:3: admin_key: '{key}' is not the key" in checked.stderr
        one.serves()  # what was in force is
        install(papers.other.sign("server", "IP:127.0.0.1"), papers.other)
        status, out, err = one.tool("reload")
        assert status == 0 and "admin endpoint: the certificates were reloaded; its own is valid until " in out, err
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


def dsa(folder):
    openssl("dsaparam", "-out", folder / "dsa", 2048)
    return {"new_key": ["-newkey", f"dsa:{folder / 'dsa'}", "-nodes"]}


# What OpenSSL takes, and no handshake ends with.
UNFIT = {
    "DSA": (dsa, r"is rejected by TLS on this host \(.+\); create it again, with a key of"),
    "P-224": (lambda _: {"new_key": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp224r1", "-nodes"]}, r"is rejected by TLS on this host \(.+\); create it again, with a key of"),
    "for clients": (lambda _: {"usage": "extendedKeyUsage=clientAuth"}, "is not for TLS servers, by its key usage: .* the extended key usage serverAuth or with none"),
    "for signing only": (lambda _: {"usage": "keyUsage=critical,keyCertSign"}, "is not for TLS servers, by its key usage"),
}


def broken(papers, folder, what):
    """Flags with one fault, and what is said of it."""
    folder = pathlib.Path(folder)
    path = folder / "file.pem"
    if what == "open to others":
        shutil.copy(papers.server.key, path)
        path.chmod(0o644)
        return papers.flags(key=path), rf"admin_key: '{path}' may be read or written by every user; restrict it with: chmod o= "
    if what == "passphrase":
        subprocess.run(["openssl", "pkey", "-in", papers.server.key, "-aes128", "-passout", "pass:secret", "-out", path], check=True)
        path.chmod(0o600)
        return papers.flags(key=path), rf"admin_key: '{path}' has a passphrase; use a key without one"
    if what == "broken":
        text = papers.server.cert.read_text().splitlines()
        path.write_text("\n".join([*text[:3], *text[4:]]) + "\n")
        return papers.flags(cert=path), rf"admin_cert: '{path}' contains a malformed certificate \(.+\); create it again"
    if what == "short key":
        weak = path.with_suffix(".key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:1024", "-nodes", "-keyout", weak, "-out", path, "-subj", "/CN=x"], check=True, capture_output=True)
        weak.chmod(0o600)
        return papers.flags(cert=path, key=weak), rf"admin_cert: '{path}' is rejected by TLS on this host \(ee key too small\)"
    if what in UNFIT:
        pair = self_signed(folder, "unfit", "DNS:node.example", **UNFIT[what][0](folder))
        pair.key.chmod(0o600)
        return papers.flags(cert=pair.cert, key=pair.key), rf"admin_cert: '{pair.cert}' {UNFIT[what][1]}"
    path.write_text("no PEM\n")
    path.chmod(0o600)
    return {
        "missing": (papers.flags(cert=folder / "none"), r"admin_cert: open '.*/none': No such file or directory .*; it must be a PEM file"),
        "folder": (papers.flags(ca=folder), r"admin_ca: '.*' is not a regular file of at most 1 MiB"),
        "no certificate": (papers.flags(ca=path), rf"admin_ca: '{path}' contains no certificate; it must be PEM"),
        "no key": (papers.flags(key=path), rf"admin_key: '{path}' contains no private key"),
        "another's key": (papers.flags(key=papers.ops.key), r"admin_key: '.*' is not the key of admin_cert '.*'; use a key and a certificate that match"),
        "relative": (papers.flags(cert="cert.pem"), r"flag --admin-cert: admin_cert: expected an absolute path, found 'cert.pem'"),
        "wildcard": (papers.flags("*.example"), r"admin_clients: expected full names as in the clients' certificates, without wildcards, found '\*.example'"),
        "name of a host": (papers.flags(listen="localhost:1"), r"admin_listen: expected ADDRESS:PORT with a numeric address, such as 10.0.0.7:9468"),
        "no clients": (papers.flags()[:-2], r"flag --admin-listen: admin_listen: requires admin_clients as well"),
        "address alone": (papers.flags()[:2], r"admin_listen: requires admin_cert, admin_key, admin_ca, admin_clients as well"),
        "no address": (papers.flags()[2:], r"admin_cert: requires admin_listen"),
    }[what]


@pytest.mark.parametrize("what", ["open to others", "passphrase", "broken", "short key", "missing", "folder", "no certificate", "no key", "another's key", "relative", "wildcard", "name of a host",
                                  "no clients", "address alone", "no address", *UNFIT])  # fmt: skip
def test_what_is_wrong_ends_the_start_with_one_line(papers, tmp_path, what):
    flags, expected = broken(papers, tmp_path, what)
    command = [os.environ["PINFEED_DAEMON"], "--socket-dir", str(tmp_path), "--pool-bytes", "64MiB", "--http-listen", "off", *flags]
    for more in ([], ["--check"]):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        assert len([line for line in done.stderr.splitlines() if re.search(expected, line)]) == 1 and "secret" not in done.stderr, done.stderr


@pytest.mark.parametrize("new_key", [["-newkey", "rsa:2048"], ["-newkey", "rsa-pss"], ["-newkey", "ed25519"], ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1"]],
                         ids=lambda words: words[-1].split(":")[-1])  # fmt: skip
def test_what_handshakes_do_end_with_is_taken(papers, tmp_path, new_key):
    pair = self_signed(tmp_path, "fit", "IP:127.0.0.1", [*new_key, "-nodes"], "extendedKeyUsage=serverAuth,clientAuth")
    pair.key.chmod(0o600)
    one = Endpoint(tmp_path / "run", papers, *papers.flags(cert=pair.cert, key=pair.key))
    one.serves(ca=pair.cert)
    one.daemon.stop()


def test_a_callers_certificate_that_is_for_servers_is_told_before_the_call(papers, endpoint, tmp_path):
    pair = self_signed(tmp_path, "unfit", "DNS:ops.example", usage="extendedKeyUsage=serverAuth")
    status, _, err = endpoint.tool("status", pair=pair)
    assert status == 1 and f"--tls-cert: '{pair.cert}' is not for TLS clients, by its key usage" in err


def test_an_address_in_use_is_told(papers, endpoint, tmp_path):
    flags = papers.flags(listen=endpoint.address)
    done = subprocess.run([os.environ["PINFEED_DAEMON"], "--socket-dir", str(tmp_path), "--pool-bytes", "64MiB", "--http-listen", "off", *flags],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 1 and f"listen for admins on {endpoint.address}: bind: Address already in use" in done.stderr
    endpoint.serves()


def test_an_expired_certificate_of_the_daemons_is_told_and_ends_no_start(papers, tmp_path):
    old = papers.ca.sign("server", "IP:127.0.0.1", days=(-9, -1))
    one = Endpoint(tmp_path / "run", papers, *papers.flags(cert=old.cert, key=old.key))
    told = r"admin_cert: '.*' expired on \d{4}-.* UTC: its clients will refuse this daemon; renew it, then reload"
    assert re.search(told, one.daemon.log())
    reloaded = subprocess.run([TOOL, "--address", one.daemon.address, "reload"], capture_output=True, text=True, timeout=60, check=False)
    assert reloaded.returncode == 0 and re.search(told, reloaded.stdout + reloaded.stderr), reloaded
    checked = check(tmp_path, papers.flags(cert=old.cert, key=old.key))
    assert checked.returncode == 0 and re.search(told, checked.stdout + checked.stderr), checked
    status, _, err = one.tool("status")
    assert status == 1 and "or not valid now" in err
    assert pinfeed.status(one.daemon.address)["state"] == "ready"
    assert abs(metrics(one.daemon)["pinfeed_admin_certificate_expiry_timestamp_seconds"] - (time.time() - 86400)) < 600
    one.daemon.stop()


def test_an_intermediate_ca_is_accepted_and_its_expiry_is_reported(papers, tmp_path):
    intermediate = Authority(tmp_path, "intermediate", of=papers.ca)
    accepting = Endpoint(tmp_path / "accepting", papers, *papers.flags(ca=intermediate.cert))
    accepting.serves(pair=intermediate.sign("x", "DNS:ops.example"))
    assert accepting.tool("status")[0] == 1  # with a certificate of the root
    accepting.daemon.stop()
    expired = Authority(tmp_path, "expired", of=papers.ca, days=(-9, -1))
    refusing = Endpoint(tmp_path / "refusing", papers, *papers.flags(ca=expired.cert))
    warning = r"admin_ca: '.*' expired on \d{4}-.* UTC: nobody is admitted; renew it, then reload"
    assert re.search(warning, refusing.daemon.log())
    assert abs(metrics(refusing.daemon)["pinfeed_admin_certificate_expiry_timestamp_seconds"] - (time.time() - 86400)) < 600
    assert refusing.tool("status", pair=expired.sign("x", "DNS:ops.example"))[0] == 1
    eventually("the log says why", lambda: "its TLS handshake ended: certificate verify failed: certificate has expired" in refusing.daemon.log())
    refusing.daemon.stop()


def test_the_end_of_a_certificate_is_a_metric_that_follows_a_reload(papers, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(papers.server.cert, cert)
    shutil.copy(papers.server.key, key)
    one = Endpoint(tmp_path / "run", papers, *papers.flags(cert=cert, key=key))

    def days_left():
        return (metrics(one.daemon)["pinfeed_admin_certificate_expiry_timestamp_seconds"] - time.time()) / 86400

    assert 29.9 < days_left() < 30.1
    other = papers.ca.sign("server", "IP:127.0.0.1", days=(-1, 20))
    shutil.copy(other.cert, cert)
    shutil.copy(other.key, key)
    assert one.tool("reload")[0] == 0
    eventually("a new page says so", lambda: 19.9 < days_left() < 20.1)
    one.daemon.stop()
    plain = Daemon(tmp_path / "plain", http_listen="127.0.0.1:0")
    assert "pinfeed_admin_certificate" not in plain.http("/metrics")[1]
    plain.stop()


def test_the_certificates_of_the_service_page_do(tmp_path):
    page = (ROOT / "docs" / "service.md").read_text("utf-8")
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
