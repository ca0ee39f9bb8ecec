# SPDX-License-Identifier: Apache-2.0
"""The daemon as its operator meets it: metrics, probes, health, reflection, datasets, allowed users, many sessions."""
import contextlib
import functools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import grpc
import numpy
import pytest
from daemon_process import Daemon
from raw_client import Client, call, messages
from withstand.hardship import eventually, metrics

SESSIONS = 256
NOBODY = 65534


@pytest.fixture(scope="module")
def wire():
    return messages()


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers") / "numbers.npy"
    numpy.save(path, numpy.arange(64, dtype=numpy.int64))
    time.sleep(2.1)  # what changed less than 2 s before it is opened is not kept open
    return str(path)


@pytest.fixture
def start(start_daemon):
    """start(flag, ...): a daemon with HTTP on any port."""
    return functools.partial(start_daemon, "--allowed-roots", "/", "--workers", "2", http_listen="127.0.0.1:0")


def status(daemon):
    return call(daemon.address, "GetStatus", messages().GetStatusRequest(), messages().GetStatusResponse)


def health(daemon, service=""):
    """grpc.health.v1's Check: 1 SERVING, 2 NOT_SERVING."""
    with grpc.insecure_channel(f"unix:{daemon.address}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        name = service.encode()
        answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"\x0a" + bytes([len(name)]) + name, timeout=20)
    assert answer[:1] == b"\x08", answer  # field 1, a number
    return answer[1]


def test_metrics_of_open_feeds_are_well_formed_and_end_with_them(wire, start, numbers):
    daemon = start()
    spec = wire.FeedSpec(dataset=wire.DatasetSpec(path=numbers), batch_size=4, slots=3)
    scrapes = [metrics(daemon)]
    assert not any("feed=" in name for name in scrapes[0])
    clients = [Client(daemon.address, spec) for _ in range(2)]
    for client in clients:
        for _ in range(10):
            client.release(client.take())
    series, text = metrics(daemon), daemon.http("/metrics")[1]
    scrapes.append(series)
    subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=True, timeout=60)
    feeds = sorted({match[1] for match in (re.search(r'feed="(\d+)"', name) for name in series) if match})
    assert len(feeds) == 2
    assert series["pinfeed_batches_total"] >= 20 and series['pinfeed_sessions{state="attached"}'] == 2
    for gone, client in enumerate(clients, start=1):
        client.bye()
        eventually("the feed is gone", lambda: metrics(daemon)["pinfeed_sessions_closed_total"] == gone and len(status(daemon).feeds) == 2 - gone)
        series = metrics(daemon)
        scrapes.append(series)
        left = {feed for feed in feeds for name in series if f'feed="{feed}"' in name}
        assert left == set(feeds[gone:]), "the series of a feed end with it"
    for before, after in zip(scrapes, scrapes[1:]):
        falls = {name: (before[name], after.get(name)) for name in before if "_total" in name and not after.get(name, before[name] if "feed=" in name else -1) >= before[name]}
        assert not falls
    eventually("the memory is back", lambda: metrics(daemon)["pinfeed_pool_used_bytes"] == 0)


def test_probes_and_health_tell_a_drain(wire, start, numbers):
    daemon = start()
    assert daemon.http("/readyz")[0] == 200 and daemon.http("/healthz")[0] == 200 and health(daemon) == 1
    client = Client(daemon.address, wire.FeedSpec(dataset=wire.DatasetSpec(path=numbers), batch_size=4))
    daemon.process.send_signal(signal.SIGTERM)
    eventually("it drains", lambda: status(daemon).state == "draining")
    assert daemon.http("/readyz")[0] == 503 and daemon.http("/healthz")[0] == 200
    eventually("it is not healthy", lambda: health(daemon) == 2)
    assert metrics(daemon)["pinfeed_draining"] == 1
    client.bye()
    assert daemon.process.wait(30) == 0


def watch(daemon, service):
    """grpc.health.v1's Watch: yields each status as a number; ends with gRPC's code."""
    with grpc.insecure_channel(f"unix:{daemon.address}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        name = service.encode()
        stream = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a" + bytes([len(name)]) + name, timeout=60)
        try:
            for answer in stream:
                yield answer[1]
        except grpc.RpcError as error:
            yield error.code()


def test_health_knows_the_daemon_and_each_session_and_tells_changes(wire, start, numbers):
    daemon = start("--drain-timeout", "1h")
    with pytest.raises(grpc.RpcError) as unknown:
        health(daemon, "pinfeed.feed.1")
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    early = watch(daemon, "pinfeed.feed.1")
    assert next(early) == 3  # there is none yet
    client = Client(daemon.address, wire.FeedSpec(dataset=wire.DatasetSpec(path=numbers), batch_size=4))
    assert health(daemon, "pinfeed.feed.1") == health(daemon, "pinfeed.v1.Feeder") == 1
    for name in ("pinfeed.feed.", "pinfeed.feed.01", "pinfeed.feed.1 ", "pinfeed.feed.+1", "pinfeed.feed.18446744073709551617"):
        with pytest.raises(grpc.RpcError) as unknown:
            health(daemon, name)
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    assert next(early) == 1
    other = Client(daemon.address, wire.FeedSpec(dataset=wire.DatasetSpec(path=numbers), batch_size=4))
    whole, feed = watch(daemon, ""), watch(daemon, "pinfeed.feed.2")
    assert (next(whole), next(feed)) == (1, 1)
    client.bye()
    assert next(early) == 3
    daemon.process.send_signal(signal.SIGTERM)
    assert (next(whole), next(feed)) == (2, 2)
    other.bye()
    assert {next(whole), next(early)} <= {grpc.StatusCode.UNAVAILABLE}
    assert daemon.process.wait(30) == 0


def test_silent_http_connections_keep_no_probe_waiting(start):
    daemon = start()
    port = int((daemon.folder / "http.port").read_text())

    def answers_beside_silent_ones():
        """Whether the probes were answered before the time of all silent connections was over. On a busy machine that may be sooner."""
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
            for number, one in enumerate(silent):
                with contextlib.suppress(ConnectionError):  # it has made room
                    one.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"[:number])
            for _ in range(3):
                assert daemon.http("/healthz")[0] == 200 and daemon.http("/readyz")[0] == 200
            return any(is_open(one) for one in silent)

    eventually("the probes do not wait for silent connections", answers_beside_silent_ones)


def is_open(connection):
    """Whether the other side has not hung up."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_http_is_for_this_host_only(start):
    daemon = start("--http-hosts", "node7")
    for path in ("/", "/status.json", "/metrics", "/healthz"):
        code, text = daemon.http(path, host="rebound.example")
        assert code == 421 and "http_hosts" in text and "sessions" not in text
        assert daemon.http(path, host="node7:9467")[0] == 200
    assert metrics(daemon)['pinfeed_refusals_total{reason="http"}'] == 4


def test_reflection_lists_the_services(start):
    daemon = start()
    with grpc.insecure_channel(f"unix:{daemon.address}") as channel:
        ask = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        answer = next(iter(ask(iter([b"\x3a\x01*"]), timeout=20)))  # field 7: list_services
    assert b"pinfeed.v1.Feeder" in answer and b"grpc.health.v1.Health" in answer


def test_datasets_are_listed_with_what_is_wrong(wire, start, numbers, tmp_path):
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00")
    config = tmp_path / "pinfeedd.toml"
    config.write_text(f'[datasets.good]\npath = "{numbers}"\n[datasets.broken]\npath = "{tmp_path}/broken.npy"\n[datasets.gone]\npath = "{tmp_path}/gone"\n')
    daemon = start("--config", str(config))
    answer = call(daemon.address, "ListDatasets", wire.ListDatasetsRequest(), wire.ListDatasetsResponse)
    assert list(answer.allowed_roots) == ["/"]
    by_name = {dataset.name: dataset for dataset in answer.datasets}
    assert set(by_name) == {"good", "broken", "gone"}
    good = by_name["good"]
    assert (good.samples, good.format, good.error, len(good.fingerprint), len(good.fields)) == (64, "npy", "", 16, 1)
    assert "broken.npy" in by_name["broken"].error and by_name["broken"].samples == 0
    assert "gone" in by_name["gone"].error


def test_a_directory_that_the_daemon_may_not_write_to_is_the_configurations_fault(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o500)
    unprivileged = ["setpriv", "--bounding-set", "-all"] if os.geteuid() == 0 else []
    command = [*unprivileged, os.environ["PINFEED_DAEMON"], "--socket-dir", str(folder), "--http-listen", "off"]
    for more in ([], ["--check"]):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        assert "Permission denied" in done.stderr and "give it to that user, or choose another with --socket-dir" in done.stderr


def test_a_group_that_the_daemon_is_not_in_is_the_configurations_fault(tmp_path):
    unprivileged = ["setpriv", "--bounding-set", "-all"] if os.geteuid() == 0 else []
    command = [*unprivileged, os.environ["PINFEED_DAEMON"], "--socket-dir", str(tmp_path), "--http-listen", "off", "--pool-bytes", "64MiB"]
    other = max(os.getgroups() + [os.getgid()]) + 1
    for more in ([], ["--check"]):
        done = subprocess.run([*command, "--socket-group", str(other), *more], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        assert f"user {os.geteuid()} is not in group {other}: add it (usermod -aG; " in done.stderr
        assert "lifeline.sock" not in os.listdir(tmp_path)
    done = subprocess.run([*command, "--socket-group", str(os.getgid()), "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_start_with_too_few_descriptors_says_so(tmp_path):
    few = ["prlimit", "--nofile=40:40", os.environ["PINFEED_DAEMON"], "--socket-dir", str(tmp_path), "--pool-bytes", "64MiB"]
    done = subprocess.run(few, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "this process may open 40 descriptors" in done.stderr and "LimitNOFILE" in done.stderr


def test_check_names_the_file_that_it_read_or_says_that_it_read_none(tmp_path):
    config = tmp_path / "pinfeed.toml"
    config.write_text("workers = 3\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PINFEED_")}

    def check(*arguments, **variables):
        command = [os.environ["PINFEED_DAEMON"], "--check", "--socket-dir", str(tmp_path), *arguments]
        return subprocess.run(command, env={**clean, **variables}, check=True, capture_output=True, text=True, timeout=60).stdout

    assert check() == "OK: no file was read, since neither --config nor PINFEED_CONFIG names one\n"
    assert check("--config", str(config)) == f"OK: {config}\n"
    assert check(PINFEED_CONFIG=str(config), PINFEED_WORKERS="2", PINFEED_POOL_BYTES="64MiB") == (
        f"OK: {config} (PINFEED_CONFIG); variables that apply: PINFEED_POOL_BYTES PINFEED_WORKERS\n"
    )


def test_what_a_check_logs_is_on_stderr_as_a_daemons_log(tmp_path):
    (tmp_path / "images" / "cats").mkdir(parents=True)
    (tmp_path / "images" / "cats" / "1.jpg").touch()
    config = tmp_path / "pinfeed.toml"
    config.write_text(f'[datasets.here]\npath = "{tmp_path}/images"\n')
    command = [os.environ["PINFEED_DAEMON"], "--check", "--socket-dir", str(tmp_path), "--config", str(config)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"OK: {config}\n"
    config.write_text('log_level = "warning"\n' + config.read_text())
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    for told in (r"checking '.*' \(datasets\.", "indexed "):
        assert re.search(rf"^\d{{4}}-\d\d-\d\d [\d:.]+[+-]\d\d:\d\d info +{told}", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize("begin", ["{", "2"], ids=["json", "text"])
def test_a_journal_gets_the_level_of_each_line(tmp_path, begin):
    command = [os.environ["PINFEED_DAEMON"], "--check", "--socket-dir", tmp_path, "--allowed-roots", tmp_path, "--log-format", "json" if begin == "{" else "text"]
    journal, other = tmp_path / "journal", tmp_path / "other"
    journal.touch()
    node = journal.stat()
    for path, prefix in ((journal, "<6>"), (other, "")):
        with open(path, "w") as stderr:
            environment = {**os.environ, "JOURNAL_STREAM": f"{node.st_dev}:{node.st_ino}"}
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, check=True, timeout=60)
        lines = path.read_text().splitlines()
        assert lines and all(line.startswith(prefix + begin) for line in lines), lines
    with open(journal, "w") as stderr:
        environment = {**os.environ, "JOURNAL_STREAM": f"{node.st_dev}:{node.st_ino}"}
        refused = subprocess.run([command[0], "--socket-dir", tmp_path / "none", *command[4:]], env=environment, stderr=stderr, timeout=60)
    assert refused.returncode == 2 and journal.read_text().startswith("<3>" + begin)


def test_a_start_warns_of_roots_and_datasets_that_are_not_there(tmp_path, numbers):
    config = tmp_path / "pinfeed.toml"
    config.write_text(f'[datasets.here]\npath = "{numbers}"\n[datasets.gone]\npath = "{tmp_path}/gone.npy"\n')
    daemon = Daemon(tmp_path / "run", "--config", str(config), "--allowed-roots", "/not/there")
    try:
        eventually("it warns twice", lambda: daemon.log().count("clients cannot read it until that is fixed") == 2)
        first, second = (line for line in daemon.log().splitlines() if "clients cannot read it" in line)
    finally:
        daemon.stop()
    assert "flag --allowed-roots: allowed_roots: open the directory '/not/there': No such file or directory" in first
    assert f"{config}:3: datasets.gone: read '{tmp_path}/gone.npy': No such file or directory" in second


def test_check_makes_nothing(tmp_path):
    subprocess.run([os.environ["PINFEED_DAEMON"], "--socket-dir", str(tmp_path), "--check"], check=True, capture_output=True, timeout=60)
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("allowed", ["", "*", str(NOBODY)])
def test_users_that_are_not_allowed_are_refused(allowed):
    with tempfile.TemporaryDirectory() as folder:
        for each in (folder, folder + "/run"):
            os.makedirs(each, exist_ok=True)
            os.chmod(each, 0o711)  # pytest's own folders are for their user only
        daemon = Daemon(pathlib.Path(folder) / "run", "--socket-mode", "0666", "--allowed-uids", allowed)
        # An HTTP/2 client's first words, which a server answers with its settings. The lifeline only listens.
        program = f"""
import socket
def answer(name, kind, words):
    peer = socket.socket(socket.AF_UNIX, kind)
    peer.settimeout(20)
    peer.connect("{folder}/run/" + name)
    try:
        peer.send(words)
        return len(peer.recv(64))
    except (BrokenPipeError, ConnectionResetError):
        return 0
print(answer("pinfeed.sock", socket.SOCK_STREAM, b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])) > 0,
      answer("lifeline.sock", socket.SOCK_SEQPACKET, b"garbage") > 0)
"""
        # Not by user=: Python would then fork, and gRPC's fork handlers may wait for ever for the threads of an open call.
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        told = subprocess.run(
            [*as_nobody, shutil.which("python3", path="/usr/bin:/bin") or sys.executable, "-c", program],
            stdout=subprocess.PIPE, text=True, check=True, timeout=60, cwd="/",
        ).stdout.split()
        assert told == (["True", "True"] if allowed else ["False", "False"]), daemon.log()
        assert ("this user is not in allowed_uids" in daemon.log()) == (not allowed)
        refused = status(daemon).refusals
        assert refused == (1 if allowed else 2)  # allowed: the garbage
        daemon.stop()


FULL_HOUSE = """
import sys
from raw_client import Client, messages
wire, (address, data, count) = messages(), sys.argv[1:]
clients = []
for index in range(int(count)):  # three in four in groups: each feed costs descriptors
    group = {"sharing": wire.FeedSpec.BROADCAST, "group": f"g{index % 4}"} if index % 4 else {}
    spec = wire.FeedSpec(dataset=wire.DatasetSpec(path=data), batch_size=4, slots=3, **group)
    clients.append(Client(address, spec))
for client in clients:
    if not client.offer.arena.read_only:
        client.release(client.take())
print("full", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_full_house_attaches_and_leaves_nothing(wire, start, numbers, how):
    daemon = start("--pool-bytes", "1GiB", "--max-sessions", str(SESSIONS))
    Client(daemon.address, wire.FeedSpec(dataset=wire.DatasetSpec(path=numbers), batch_size=4)).bye()  # warm
    eventually("the first feed is gone", lambda: status(daemon).pool_used_bytes == 0)
    empty = status(daemon)
    began = time.monotonic()
    house = subprocess.Popen(
        [sys.executable, "-c", FULL_HOUSE, daemon.address, numbers, str(SESSIONS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)},
    )
    assert house.stdout.readline() == "full\n", daemon.log()
    took = time.monotonic() - began
    full = status(daemon)
    assert sum(session.state == "attached" for feed in full.feeds for session in feed.sessions) == SESSIONS
    assert len(full.feeds) == SESSIONS // 4 + 3
    with pytest.raises(grpc.RpcError) as refused:
        Client(daemon.address, wire.FeedSpec(dataset=wire.DatasetSpec(path=numbers), batch_size=4))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "max_sessions" in refused.value.details()
    grown = full.resident_memory_bytes - empty.resident_memory_bytes - full.pool_used_bytes
    fds = full.open_fds - empty.open_fds
    print(f"{SESSIONS} sessions in {took:.1f} s: {fds} descriptors, {grown / 2**20:.1f} MiB beside {full.pool_used_bytes / 2**20:.0f} MiB of arenas")
    # A session: lifeline, pidfd, two pages, doorbell. A feed: its arena, and the one that clients get. Some of gRPC's may be on their way out.
    assert SESSIONS * 5 <= fds <= SESSIONS * 5 + 2 * len(full.feeds) + 64
    assert grown < SESSIONS * 256 * 1024
    began = time.monotonic()
    house.kill() if how == "kill" else house.stdin.close()
    house.wait(60)
    eventually("all are gone", lambda: status(daemon).sessions_closed == SESSIONS + 1 and not status(daemon).feeds)
    print(f"all gone {time.monotonic() - began:.2f} s after the {how}")
    eventually("the memory is back", lambda: status(daemon).pool_used_bytes == 0)
    eventually("the descriptors are back", lambda: status(daemon).open_fds <= empty.open_fds)
    house.stdout.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a user of its own to limit")
def test_a_start_with_too_few_threads_says_so(tmp_path):
    user = 60000 + os.getpid() % 5000  # whose processes are counted
    os.chown(tmp_path, user, user)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o711)  # pytest's own folders are for their user only
    flags = ["--socket-dir", str(tmp_path), "--http-listen", "off", "--pool-bytes", "64MiB", "--workers", "1", "--gpus", "off"]

    def start(threads):
        """Whether the daemon serves within the limit. If not, its exit status and what it says."""
        read, write = os.pipe()
        limited = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "prlimit", f"--nproc={threads}:{threads}", "--core=0:0"]
        command = [*limited, os.environ["PINFEED_DAEMON"], *flags, "--ready-fd", str(write)]
        with subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.PIPE, text=True) as daemon, open(read) as ready:
            os.close(write)
            serves = ready.read() == "ready\n"
            if serves:
                daemon.terminate()
            return serves, daemon.wait(60), daemon.stderr.read()

    too_few, enough = 1, 512
    assert start(enough)[0], start(enough)[2]
    while enough - too_few > 1:
        between = (too_few + enough) // 2
        too_few, enough = (too_few, between) if start(between)[0] else (between, enough)
    roomy = start(enough + 8)  # how many threads gRPC starts is a matter of time
    assert roomy[:2] == (True, 0), roomy
    for threads in range(too_few, too_few - 16, -1):
        serves, status, told = start(threads)
        assert (serves and status == 0) or (status == 1 and "raise the limit of processes" in told), (threads, status, told)
    assert not serves
