# SPDX-License-Identifier: Apache-2.0
"""Jobs that open a feed while the daemon is being restarted, as long as a stopped trainer holds its end up."""

import concurrent.futures
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import pytest
from daemon_process import Daemon
from member_process import Member
from withstand.hardship import eventually

import pinfeed

TRAINER = """
import json, sys
import pinfeed
feed = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", address=sys.argv[2])
batch = next(iter(feed))
print(json.dumps("open"), flush=True)
sys.stdin.read()
"""
# Without an address the one of the service is asked, which these tests give a folder of their own.
JOB = """
import json, sys
import pinfeed, pinfeed._base.daemon
pinfeed._base.daemon.SYSTEM_SOCKET = sys.argv[2]
try:
    with pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", **json.loads(sys.argv[3])) as feed:
        print(json.dumps([feed.address, next(iter(feed)).id.tolist()]))
except pinfeed.Error as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
FLAGS = ("--allowed-roots", "/", "--pool-bytes", "64MiB", "--workers", "1", "--drain-timeout", "1h")


def start_job(arrays, system, **options):
    return subprocess.Popen([sys.executable, "-c", JOB, str(arrays), system, json.dumps(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end_of(job):
    out, error = job.communicate(timeout=120)
    assert out, error
    return json.loads(out), error


def await_status(address, done):
    eventually(lambda: pinfeed.status(address), lambda: done(pinfeed.status(address)))


@contextlib.contextmanager
def draining(folder, arrays):
    """A daemon that was told to end, and its trainer, which is stopped."""
    daemon = Daemon(folder, *FLAGS)
    try:
        with Member(TRAINER, str(arrays), daemon.address) as trainer:
            try:
                trainer.process.send_signal(signal.SIGSTOP)
                daemon.process.send_signal(signal.SIGTERM)
                await_status(daemon.address, lambda status: status["state"] == "draining")
                yield daemon, trainer
            finally:
                trainer.process.kill()
                trainer.process.stdin.close()
    finally:
        daemon.process.kill()
        daemon.process.wait()


@contextlib.contextmanager
def refusing(address):
    """What a user meets whom the daemon does not serve: connections that end at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()

        def refuse():
            with contextlib.suppress(OSError):  # shut down below
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


class Cancels(grpc.GenericRpcHandler):
    """As a daemon does that ends before it has answered."""

    def __init__(self):
        self.calls = 0

    def service(self, details):
        def cancel(request, context):
            self.calls += 1
            context.abort(grpc.StatusCode.CANCELLED, "")

        return grpc.unary_unary_rpc_method_handler(cancel)


def test_an_open_that_the_daemon_cancels_is_tried_again(tmp_path, arrays):
    address, handler = str(tmp_path / "pinfeed.sock"), Cancels()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=(handler,))
    server.add_insecure_port(f"unix:{address}")
    server.start()
    try:
        (kind, text), _ = end_of(start_job(arrays, address, address=address, open_timeout=600))
    finally:
        server.stop(None).wait()
    assert kind == "UnavailableError" and "it is stopping" in text and handler.calls > 1


@pytest.mark.parametrize("how", ["by default", "by address", "in a group"])
def test_a_job_waits_for_the_next_daemon(tmp_path, arrays, how):
    with draining(tmp_path / "run", arrays) as (daemon, trainer):
        options = {"by default": {}, "by address": {"address": daemon.address}, "in a group": {"share": "broadcast", "group": "g"}}[how]
        before = int(pinfeed.status(daemon.address)["refusals"])
        job = start_job(arrays, daemon.address, open_timeout=600, **options)
        await_status(daemon.address, lambda status: int(status["refusals"]) >= before + 3)
        trainer.process.kill()
        assert daemon.process.wait(60) == 0
        following = Daemon(tmp_path / "run", *FLAGS)
        assert end_of(job) == ([following.address, [0, 1, 2, 3]], "")
        following.stop()


def test_the_wait_ends(tmp_path, arrays):
    with draining(tmp_path / "run", arrays) as (daemon, _):
        by_address = start_job(arrays, daemon.address, open_timeout=10, address=daemon.address)
        shared = start_job(arrays, daemon.address, open_timeout=10, share="queue", group="g", group_size=2)
        by_default = start_job(arrays, daemon.address, open_timeout=10)
        (kind, text), _ = end_of(by_address)
        assert kind == "UnavailableError" and f"the daemon at {daemon.address} has ended or is stopping, and no other came within 10.0" in text
        (kind, text), _ = end_of(shared)
        assert kind == "UnavailableError" and "share='queue': no system-wide daemon" in text and "is stopping, and no other came" in text
        (address, batch), error = end_of(by_default)
        assert batch == [0, 1, 2, 3] and address != daemon.address
        assert "is stopping, and no other came" in error and "starting a private one" in error


def test_nobody_there_and_a_refusal_are_told_at_once(tmp_path, arrays):
    """With an address; by default a job goes on with a daemon of its own."""
    address = str(tmp_path / "pinfeed.sock")
    began = time.monotonic()
    (kind, text), _ = end_of(start_job(arrays, address, address=address, open_timeout=600))
    assert kind == "UnavailableError" and "is the daemon running" in text
    with refusing(address):
        (kind, text), _ = end_of(start_job(arrays, address, address=address, open_timeout=600))
        assert kind == "UnavailableError" and "refuses this user" in text
        (own, batch), error = end_of(start_job(arrays, address, open_timeout=600))
        assert own != address and batch == [0, 1, 2, 3] and "refuses this user" in error and "starting a private one" in error
    assert time.monotonic() - began < 300
