# SPDX-License-Identifier: Apache-2.0
"""pinfeedd as a service: what it tells the service manager and when, what stops its watchdog, sockets that it is passed."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import numpy as np
import pinfeed
import pytest
from conftest import BUILD, TOOL
from member_process import Printer
from service_manager import WAIT_S, Service, stopped_thread
from withstand.hardship import eventually, read_status, sessions_of

WATCHDOG_MS = 600
PATIENT_WATCHDOG_MS = 10_000  # of a machine that may be busy for a moment
GPU_READER = pathlib.Path(__file__).with_name("device") / "device_trainer.py"
READER = """
import sys, pinfeed
feed = pinfeed.open(sys.argv[1], batch_size=64, address=sys.argv[2], framework="numpy", shuffle=True)
while True:
    for batch in feed:
        print(batch.index, flush=True)
"""


@pytest.fixture
def rows(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(1 << 20, dtype=np.int64).reshape(-1, 64))
    return folder


def reader(rows, service):
    """A trainer that reads until it is killed."""
    return Printer("-c", READER, rows, service.address)


def await_log(service, text):
    """Until the text is in the log. Messages from before it are dropped."""
    end = time.monotonic() + WAIT_S
    while text not in service.log():
        service.receive(0.05)
        assert time.monotonic() < end, service.log()
    while service.receive(0.001) is not None:
        pass


def printed_status(service):
    done = subprocess.run([TOOL, "--address", service.address, "status"], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def http(service, path):
    port = (service.folder / "http.port").read_text().strip()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return answer.status, answer.read().decode()


def connects(path, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as probe:
        return probe.connect_ex(str(path)) == 0


def test_ready_is_said_when_clients_are_served(tmp_path):
    service = Service(tmp_path / "run", "--http-listen", "127.0.0.1:0")
    before = service.receive_until("READY")
    assert pinfeed.status(service.address)["state"] == "ready"
    assert connects(service.folder / "lifeline.sock", socket.SOCK_SEQPACKET)
    assert before[-1]["STATUS"].startswith("serves ") and "pool of 128 MiB" in before[-1]["STATUS"]
    assert int(before[0]["EXTEND_TIMEOUT_USEC"]) > 0  # the start took its time, and said so
    service.stop()


def test_a_start_that_fails_says_why_and_never_ready(tmp_path):
    taken = Service(tmp_path / "run")
    taken.receive_until("READY")
    service = Service(tmp_path / "run")
    assert service.process.wait(WAIT_S) == 1
    messages = []
    while (message := service.receive(0.1)) is not None:
        messages.append(message)
    assert f"pid {taken.process.pid} serves it already" in messages[-1]["STATUS"]
    assert not any("READY" in message for message in messages)
    taken.stop()


def test_the_end_is_told_with_the_time_it_may_take(tmp_path):
    service = Service(tmp_path / "run", "--drain-timeout", "200s")
    service.receive_until("READY")
    service.process.terminate()
    stopping = service.receive_until("STOPPING")[-1]
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= 200_000_000
    assert service.process.wait(WAIT_S) == 0


def test_a_manager_that_does_not_read_holds_nothing_up(tmp_path):
    service = Service(tmp_path / "run")
    service.receive_until("READY")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                others.sendto(b"STATUS=x", service.notify_address)
    for _ in range(3):
        service.process.send_signal(signal.SIGHUP)
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(WAIT_S) == 0
    assert service.log_path.read_text().count("it does not read") == 1


def test_a_reload_is_told_with_its_time(tmp_path):
    service = Service(tmp_path / "run")
    service.receive_until("READY")
    before = time.monotonic_ns() // 1000
    service.process.send_signal(1)
    reloading = service.receive_until("RELOADING")[-1]
    assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert "READY" in service.receive()
    assert "the configuration was loaded: nothing changed" in service.log()
    service.stop()


def test_a_private_daemon_is_not_its_users_service(tmp_path):
    lifetime, held = os.pipe()
    service = Service(tmp_path / "run", "--private", "--lifetime-fd", str(lifetime), watchdog_ms=WATCHDOG_MS, pass_fds=(lifetime,))
    os.close(lifetime)
    while not connects(service.address):
        assert service.process.poll() is None, service.log()
    os.close(held)
    assert service.process.wait(WAIT_S) == 0
    assert service.receive(0.1) is None


def test_an_idle_daemon_feeds_its_watchdog(tmp_path):
    service = Service(tmp_path / "run", "--stuck-timeout", "300ms", watchdog_ms=PATIENT_WATCHDOG_MS)
    service.receive_until("READY")
    end = time.monotonic() + 1.5 * PATIENT_WATCHDOG_MS / 1000  # many times the stuck_timeout
    while (began := time.monotonic()) < end:
        service.receive_until("WATCHDOG")
        assert time.monotonic() - began < PATIENT_WATCHDOG_MS / 1000
    service.stop()


def test_a_worker_whose_read_does_not_return_stops_the_watchdog(tmp_path, rows):
    service = Service(tmp_path / "run", "--allowed-roots", str(rows), "--workers", "2", "--stuck-timeout", "1s", watchdog_ms=WATCHDOG_MS)
    service.receive_until("READY")
    trainer = reader(rows, service)
    assert all(trainer.readline() for _ in range(500))
    with stopped_thread(service.thread(service.busy_worker()), in_read=True):
        await_log(service, "and nothing else was done for")
        assert "the service manager's watchdog is not fed until this changes" in service.log()
        assert service.silent_for("WATCHDOG", 3 * WATCHDOG_MS / 1000)
    service.receive_until("WATCHDOG")  # it reads on
    assert "nothing hangs any more" in service.log()
    trainer.kill()
    service.stop()


def test_a_hang_is_told_without_a_watchdog_and_so_is_its_end(tmp_path, rows):
    service = Service(tmp_path / "run", "--allowed-roots", str(rows), "--workers", "1", "--stuck-timeout", "1s", "--http-listen", "127.0.0.1:0")
    service.receive_until("READY")
    assert not pinfeed.status(service.address)["hung"] and "hangs" not in printed_status(service)
    trainer = reader(rows, service)
    assert trainer.readline()
    with stopped_thread(service.thread("worker0"), in_read=True):
        await_log(service, "no feed makes progress until this changes")
        told = [line for line in service.log().splitlines() if "piece of work" in line and "no feed makes progress" in line]
        assert len(told) == 1, told
        assert re.search(rf"\(stuck_timeout\): sample \d+ of feed \d+, {rows}\[\d+\], and nothing else was done for \d+ s: ", told[0])
        status = pinfeed.status(service.address)
        (hung,) = status["hung"]
        assert status["state"] == "ready" and hung["thread"] == "worker0" and hung["seconds"] > 1
        assert re.fullmatch(rf"{rows}\[\d+\]", hung["sample"]) and int(hung["feed_id"]) == int(status["feeds"][0]["id"])
        line = rf"worker0 hangs: at sample \d+ of feed \d+ \({rows}\[\d+\]\) for [\d.]+ s; does its storage answer\?"
        assert re.fullmatch(line, printed_status(service).splitlines()[1])
        assert http(service, "/readyz") == (200, "ok\n")
    await_log(service, "nothing hangs any more")
    assert not pinfeed.status(service.address)["hung"]
    trainer.kill()
    assert service.silent_for("WATCHDOG", 0.1)
    service.stop()


def test_a_read_that_does_not_return_stops_nothing_while_others_get_on(tmp_path, rows):
    """The one worker that hangs is told of; the other goes on with the feeds of others."""
    service = Service(tmp_path / "run", "--allowed-roots", str(rows), "--workers", "2", "--stuck-timeout", "1s", watchdog_ms=WATCHDOG_MS)
    service.receive_until("READY")
    hung = reader(rows, service)
    assert all(hung.readline() for _ in range(500))
    with stopped_thread(service.thread(service.busy_worker()), in_read=True):
        other = reader(rows, service)
        await_log(service, "the others work, so the daemon continues")
        for _ in range(5):
            service.receive_until("WATCHDOG")  # on a busy machine these may come late
        other.kill()
    hung.kill()
    service.stop()


@pytest.mark.skipif(not (BUILD / "tests" / "stand_in_cuda" / "libcuda.so.1").exists(), reason="built without the GPU path")
class TestWithAGpu:
    ENVIRONMENT = {"LD_LIBRARY_PATH": str(BUILD / "tests" / "stand_in_cuda")}
    FLAGS = ("--gpus", "on", "--pinned-bytes", "64MiB", "--gpu-bytes", "32MiB", "--workers", "2", "--drain-timeout", "1s")

    def test_pinning_memory_asks_for_more_time_before_ready(self, tmp_path):
        service = Service(tmp_path / "run", *self.FLAGS, env=self.ENVIRONMENT)
        pinning = [message for message in service.receive_until("READY") if message["STATUS"].startswith("pinning")]
        assert pinning and all("READY" not in message and int(message["EXTEND_TIMEOUT_USEC"]) > 0 for message in pinning)
        assert pinning[0]["STATUS"].endswith(" of 64 MiB")
        service.stop()

    def test_a_signal_ends_the_pinning_of_memory(self, tmp_path):
        """2 GiB: enough that the signal comes before the end of it, unless this machine has other things to do: then another try."""
        flags = (*self.FLAGS, "--pool-bytes", "3GiB", "--pinned-bytes", "2GiB")
        for attempt in range(5):
            service = Service(tmp_path / f"run{attempt}", *flags, env=self.ENVIRONMENT)
            while not service.receive()["STATUS"].startswith("pinning"):
                pass
            service.process.terminate()
            assert service.process.wait(WAIT_S) == 0
            messages = list(iter(lambda: service.receive(0.1), None))
            if not any("READY" in message for message in messages):
                break
        assert not any("READY" in message for message in messages), messages
        assert "stops before it was ready" in service.log()

    def test_status_names_the_copy_thread_that_hangs_in_the_driver(self, tmp_path, rows, monkeypatch):
        environment = {**self.ENVIRONMENT, "PINFEED_STAND_IN_FAIL": "cuMemcpyHtoDAsync:60:hang"}
        service = Service(tmp_path / "run", *self.FLAGS, "--allowed-roots", str(rows), "--stuck-timeout", "1s", env=environment)
        service.receive_until("READY")
        monkeypatch.setenv("LD_LIBRARY_PATH", self.ENVIRONMENT["LD_LIBRARY_PATH"])
        options = json.dumps({"dataset": str(rows), "batch_size": 64})
        trainer = Printer(GPU_READER, service.address, "1000000", options)
        await_log(service, "no copy of copy-0 to GPU-")
        status = pinfeed.status(service.address)
        (hung,) = status["hung"]
        assert status["state"] == "ready" and hung["thread"] == "copy-0" and hung["gpu"] == status["gpus"][0]["uuid"] and hung["seconds"] > 1
        assert f"copy-0 hangs: none of its copies to {hung['gpu']} has ended for" in printed_status(service).splitlines()[1]
        trainer.kill()
        service.process.kill()  # it cannot end by itself
        service.process.wait()

    def test_copies_that_do_not_end_stop_the_watchdog(self, tmp_path, rows, monkeypatch):
        service = Service(
            tmp_path / "run", *self.FLAGS, "--allowed-roots", str(rows), "--stuck-timeout", "1s", watchdog_ms=WATCHDOG_MS, env=self.ENVIRONMENT
        )
        service.receive_until("READY")
        monkeypatch.setenv("LD_LIBRARY_PATH", self.ENVIRONMENT["LD_LIBRARY_PATH"])
        options = json.dumps({"dataset": str(rows), "batch_size": 64})
        trainer = Printer(GPU_READER, service.address, "1000000", options)
        assert trainer.readline()
        with stopped_thread(service.thread("copy-0"), in_read=False):
            end = time.monotonic() + WAIT_S
            while not service.silent_for("WATCHDOG", 3 * WATCHDOG_MS / 1000):
                assert time.monotonic() < end, "the watchdog is fed on"
        service.receive_until("WATCHDOG")
        trainer.kill()
        service.stop()


def listening(path, kind):
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(path))
    listener.listen(16)
    return listener


@pytest.fixture
def sockets(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    with listening(folder / "pinfeed.sock", socket.SOCK_STREAM) as control:
        with listening(folder / "lifeline.sock", socket.SOCK_SEQPACKET) as lifeline:
            yield {"lifeline": lifeline, "control": control}


def test_sockets_of_the_service_manager_outlive_the_daemon_and_its_clients_wait_in_them(tmp_path, sockets, rows):
    files = [os.stat(tmp_path / "run" / name) for name in ("pinfeed.sock", "lifeline.sock")]
    first = Service(tmp_path / "run", "--allowed-roots", str(rows), sockets=sockets)
    first.receive_until("READY")
    trainer = reader(rows, first)
    assert [int(trainer.readline()) for _ in range(10)] == list(range(10))
    first.process.terminate()
    assert first.process.wait(WAIT_S) == 0, first.log()
    assert connects(first.address)  # nobody serves it now
    second = Service(tmp_path / "run", "--allowed-roots", str(rows), sockets=sockets)
    second.receive_until("READY")
    published = lambda: sum(int(session.get("batches", 0)) for session in sessions_of(read_status(second.address)))
    eventually(published, lambda: published() > 1000)  # the trainer has come over
    assert [os.stat(tmp_path / "run" / name).st_ino for name in ("pinfeed.sock", "lifeline.sock")] == [file.st_ino for file in files]
    trainer.kill()
    read = [int(line) for line in iter(trainer.readline, "")]
    assert len(read) > 1000 and read == [number % 256 for number in range(10, 10 + len(read))]
    second.stop()


@pytest.mark.parametrize("setting, reason", [("900TiB", "pool_bytes: 900 TiB"), ("much", "--pool-bytes: pool_bytes: expected")])
def test_a_wrong_configuration_turns_away_who_waits(tmp_path, sockets, setting, reason):
    """A connection left in the queue would have the service manager start the daemon again and again."""
    waiting = [socket.socket(socket.AF_UNIX, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)]
    for client, name in zip(waiting, ("pinfeed.sock", "lifeline.sock")):
        client.connect(str(tmp_path / "run" / name))
        client.settimeout(WAIT_S)
    service = Service(tmp_path / "run", "--pool-bytes", setting, sockets=sockets)
    for client in waiting:
        with client:
            assert client.recv(1) == b""
    assert service.process.wait(WAIT_S) == 2
    status = [message["STATUS"] for message in iter(lambda: service.receive(0.1), None)]
    assert status[-1].startswith("cannot start: ") and reason in status[-1]
    for listener in sockets.values():
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.setblocking(True)


@pytest.mark.parametrize(
    "names, reason",
    [
        ({"control": "lifeline", "lifeline": "control"}, "its unit needs ListenSequentialPacket=/"),
        ({"control": "control", "lifeline": "pinfeedd-lifeline.socket"}, "'pinfeedd-lifeline.socket'; socket units need FileDescriptorName="),
    ],
)
def test_wrong_sockets_are_refused(tmp_path, sockets, names, reason):
    service = Service(tmp_path / "run", sockets={given: sockets[name] for name, given in names.items()})
    assert service.process.wait(WAIT_S) == 2
    assert reason in service.log()


def test_a_socket_elsewhere_is_refused(tmp_path, sockets):
    service = Service(tmp_path / "other", sockets=sockets)
    assert service.process.wait(WAIT_S) == 2
    assert "let the socket unit and socket_dir name one directory" in service.log()


def test_systemd_socket_activate_starts_the_daemon_at_the_first_connection(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    address = folder / "pinfeed.sock"
    activate = shutil.which("systemd-socket-activate")
    assert activate, "deploy/install-deps test installs it with systemd"
    command = [activate, "--listen", str(address), "--fdname=control", os.environ["PINFEED_DAEMON"], "--socket-dir", str(folder), "--http-listen", "off"]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    while "Listening on" not in (tmp_path / "log").read_text():  # the file is there a moment before it is listened on
        assert process.poll() is None, (tmp_path / "log").read_text()
    assert not (folder / "pinfeedd.lock").exists()  # no daemon yet
    assert pinfeed.status(str(address))["state"] == "ready"
    process.terminate()
    assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
