# SPDX-License-Identifier: Apache-2.0
"""`pinfeed trace` against a real daemon with a real trainer: the file, who may, and that a tracer that goes away leaves nothing on."""

import collections
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

import grpc
import numpy
import pinfeed
import pytest
from conftest import BUILD, TOOL
from daemon_process import Daemon
from member_process import Printer
from withstand.hardship import eventually, read_status, sessions_of

NOBODY = 65534
BATCH = 50


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    numpy.save(folder / "x.npy", numpy.arange(5000 * 1000, dtype=numpy.int64).reshape(5000, 1000))
    return folder


class Trainer:
    """Takes batches on a thread, one every few milliseconds, until it is left."""

    def __init__(self, address, data, step=0.004, **options):
        self.feed = pinfeed.open(data, batch_size=BATCH, slots=4, framework="numpy", address=address, name="trainer \"A\"", **options)
        self.step, self.stop, self.batches, self.more = step, threading.Event(), 0, threading.Condition()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        with self.feed:
            while True:
                for _ in self.feed:
                    with self.more:
                        self.batches += 1
                        self.more.notify_all()
                    if self.stop.wait(self.step):
                        return

    def await_batches(self, count):
        with self.more:
            assert self.more.wait_for(lambda: self.batches >= count, timeout=60)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def trace(address, path, *words):
    command = [TOOL, "--address", address, "trace", "-o", path, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_daemon_that_does_not_answer_is_told_before_the_recording(tmp_path, start_daemon):
    daemon = start_daemon()
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        status, _, err = trace(daemon.address, tmp_path / "t.json", "--seconds", 200)
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    assert status == 1 and "did not answer in time" in err
    daemon.stop()
    assert trace(daemon.address, tmp_path / "t.json")[0] == 1
    assert not (tmp_path / "t.json").exists()


def long_trace(daemon, path):
    """A tracer that the daemon has begun to serve."""
    began = daemon.log().count("for 200 s")
    command = [TOOL, "--address", daemon.address, "trace", "-o", path, "--seconds", "200"]
    tracer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: f"the daemon serves it: {tracer.poll()}", lambda: daemon.log().count("for 200 s") > began)
    return tracer


def events_of(path, phase=None):
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == phase] if phase else events


def rows_of(events):
    rows = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    return rows


def assert_spans_lie_beside_or_within_each_other(events):
    """Else a viewer draws them wrongly. Times in the file are exact to the nanosecond, as floats to less."""
    for row, spans in rows_of(events).items():
        open_ends = []
        for begin, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= begin + 0.01:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.01, (row, name)
            open_ends.append(end)


def test_trace_shows_each_batch_on_its_way(daemon, data, tmp_path):
    path = tmp_path / "trace.json"
    began = time.clock_gettime(time.CLOCK_MONOTONIC)
    with Trainer(daemon.address, data):
        status, out, err = trace(daemon.address, path, "--seconds", 50, "--max-spans", 1500)  # of some 250 batches
    ended = time.clock_gettime(time.CLOCK_MONOTONIC)
    assert status == 0, err
    assert "ui.perfetto.dev" in out and "lent" in out
    events = events_of(path)
    drawn = [event for event in events if event["ph"] in "Xi"]
    times = [event["ts"] for event in drawn]
    assert times == sorted(times)
    assert min(times) >= began * 1e6 and max(event["ts"] + event.get("dur", 0) for event in drawn) <= ended * 1e6
    assert_spans_lie_beside_or_within_each_other(events)

    ways = collections.defaultdict(lambda: collections.defaultdict(list))
    for event in drawn:
        if "batch" in event["args"]:
            ways[event["args"]["epoch"], event["args"]["batch"]][event["cat"]].append(event)
    whole = {batch: way for batch, way in ways.items() if {"fill", "read", "publish", "lent", "step"} <= way.keys()}
    assert len(whole) >= 20, {batch: sorted(way) for batch, way in ways.items()}
    for way in whole.values():
        fill, publish, lent, step = (way[kind][0] for kind in ("fill", "publish", "lent", "step"))
        for read in way["read"]:
            assert fill["ts"] <= read["ts"] and read["ts"] + read["dur"] <= fill["ts"] + fill["dur"] + 0.01
        assert fill["ts"] + fill["dur"] <= publish["ts"] + 0.01
        assert publish["ts"] <= lent["ts"] <= step["ts"] + 0.01
        assert fill["tid"] == lent["tid"] and fill["args"]["samples"] == BATCH
    assert len([event for event in drawn if event["cat"] == "step"]) > 50

    names = [event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")]
    assert any(name.startswith("session ") and 'trainer "A" (pid ' in name for name in names), names
    assert f"pinfeedd (pid {daemon.process.pid})" in names
    assert {"slot 0", "slot 3"} <= set(names) and any(name.startswith("worker") for name in names), names


def test_trace_shows_who_waits(daemon, data, tmp_path):
    """A trainer that takes no time at all waits; one that is slow does not, and its slots are lent meanwhile."""
    shares = {}
    for step in (0, 0.05):
        path = tmp_path / f"{step}.json"
        with Trainer(daemon.address, data, step=step) as trainer:
            trainer.await_batches(5)
            status, _, err = trace(daemon.address, path, "--seconds", 1)
        assert status == 0, err
        spent = collections.Counter()
        for event in events_of(path, "X"):
            spent[event["cat"]] += event["dur"]
        shares[step] = spent["wait"] / (spent["wait"] + spent["step"])
    assert shares[0.05] < 0.3, shares  # of a machine that may be busy
    assert shares[0] > shares[0.05]


def test_trace_of_an_idle_daemon_is_an_empty_file(daemon, tmp_path):
    path = tmp_path / "trace.json"
    status, out, err = trace(daemon.address, path, "--seconds", 0.2)
    assert status == 0, err
    assert "recorded nothing" in out
    assert [event["ph"] for event in events_of(path)] == ["M"]


def test_max_spans_end_it_early(daemon, data, tmp_path):
    path = tmp_path / "trace.json"
    with Trainer(daemon.address, data, step=0.001):
        began = time.monotonic()
        status, out, err = trace(daemon.address, path, "--seconds", 50, "--max-spans", 40)
    assert status == 0, err
    assert time.monotonic() - began < 40
    assert "--max-spans was reached" in out
    assert out.splitlines()[0].startswith(f"{path}: 40 spans")


def test_one_tracer_at_a_time_and_one_that_is_killed_makes_room(daemon, tmp_path):
    first = long_trace(daemon, tmp_path / "first.json")
    second = daemon.address, tmp_path / "second.json", "--seconds", 0.1
    status, _, err = trace(*second)
    assert status == 1 and "another trace of this daemon is running" in err
    first.kill()
    first.communicate()
    eventually("the daemon has seen that", lambda: trace(*second)[0] == 0)


def test_tracer_that_does_not_read_is_given_up(daemon, data):
    """It has what its connection holds, and ten seconds; then others may."""
    request = struct.pack("<Bd", 0x09, 300.0) + b"\x10\x80\xad\xe2\x04"  # seconds = 300, max_spans = 10,000,000
    with grpc.insecure_channel(f"unix:{daemon.address}", options=[("grpc.http2.bdp_probe", 0)]) as channel:
        with Trainer(daemon.address, data, step=0.002):
            call = channel.unary_stream("/pinfeed.v1.Admin/Trace")(request)
            next(call)
            assert trace(daemon.address, "/dev/null", "--seconds", 0.1)[0] == 1
            eventually("another may trace", lambda: trace(daemon.address, "/dev/null", "--seconds", 0.1)[0] == 0, 90)


@pytest.mark.parametrize("request_words", [("--seconds", "0"), ("--seconds", "301"), ("--max-spans", "0")])
def test_requests_out_of_bounds_are_wrong_usage(daemon, request_words):
    status, _, err = trace(daemon.address, "/dev/null", *request_words)
    assert status == 2 and "is not a number from" in err


def test_the_daemon_refuses_them_too(daemon):
    with grpc.insecure_channel(f"unix:{daemon.address}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            next(channel.unary_stream("/pinfeed.v1.Admin/Trace")(struct.pack("<Bd", 0x09, float("nan"))))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "seconds: must be" in refused.value.details() and "max_spans: must be" in refused.value.details()


def test_interrupted_trace_is_written(daemon, data, tmp_path):
    path = tmp_path / "trace.json"
    with Trainer(daemon.address, data) as trainer:
        tracer = long_trace(daemon, path)
        trainer.await_batches(trainer.batches + 100)  # several messages
        tracer.send_signal(signal.SIGINT)
        out, err = tracer.communicate(timeout=30)
    assert tracer.returncode == 130, err
    assert events_of(path, "X"), out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_others_see_their_own_feeds_only(data):
    """Root's trainer and nobody's, on a daemon of root's: nobody sees one of them, root both."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are for their user only
        place = pathlib.Path(folder)
        place.chmod(0o755)
        shutil.copytree(data, place / "data")
        shutil.copy(TOOL, place / "pinfeed")
        shutil.copy(BUILD / "client" / "libpinfeed.so", place / "libpinfeed.so.0")
        daemon = Daemon(place / "run", "--allowed-roots", folder, "--allowed-uids", "*", "--socket-mode", "0666", "--workers", "2")
        daemon.folder.chmod(0o755)
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": (), "env": environment, "cwd": "/"}
        tool = [place / "pinfeed", "--address", daemon.address]
        bench = [*tool, "bench", place / "data", "--batch-size", "20", "--seconds", "60", "--step-ms", "2"]
        other = subprocess.Popen(bench, **as_nobody, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        seen = {}
        with Trainer(daemon.address, place / "data") as trainer:
            trainer.await_batches(5)
            eventually("both read", lambda: sum(int(session.get("batches_taken", 0)) >= 5 for session in sessions_of(read_status(daemon.address))) == 2)
            for who, options in (("nobody", as_nobody), ("root", {"env": environment})):
                output = place / who
                output.mkdir()
                output.chmod(0o777)
                command = [*tool, "trace", "-o", output / "t.json", "--seconds", "1"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
                assert done.returncode == 0, done.stderr
                events = events_of(output / "t.json")
                names = " ".join(event["args"]["name"] for event in events if event["name"] == "thread_name")
                feeds = {event["args"]["feed"] for event in events if event["ph"] == "X"}
                seen[who] = ("pinfeed bench" in names, "trainer" in names, len(feeds))
        other.send_signal(signal.SIGINT)
        other.communicate(timeout=30)
        daemon.stop()
        assert seen == {"nobody": (True, False, 1), "root": (True, True, 2)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_other_users_cannot_occupy_the_tracer():
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        place.chmod(0o755)
        for one in (TOOL, BUILD / "client" / "libpinfeed.so.0"):
            shutil.copy(one, place)
        daemon = Daemon(place / "run", "--allowed-uids", "*", "--socket-mode", "0666", "--workers", "1")
        daemon.folder.chmod(0o755)
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": (), "cwd": "/"}
        output = place / "out"
        output.mkdir()
        output.chmod(0o777)

        def trace(name, seconds, **options):
            command = [place / "pinfeed", "--address", daemon.address, "trace", "-o", output / name, "--seconds", str(seconds)]
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

        def has_traced(process):
            _, error = process.communicate(timeout=60)
            assert process.returncode == 0 or "this user has just traced" in error, error
            return process.returncode == 0

        def end(process, status):
            _, error = process.communicate(timeout=60)
            assert process.returncode == status, error
            return error

        assert "seconds exceed the limit of 60 for users other than root and the daemon's" in end(trace("long", 61, **as_nobody), 1)
        hog = trace("hog", 60, **as_nobody)
        while "traces its own feeds for 60 s" not in daemon.log():
            assert hog.poll() is None
        assert "another trace of this daemon is running" in end(trace("same", 1, **as_nobody), 1)
        end(trace("root", 1), 0)
        assert "an operator has started a trace" in end(hog, 1)
        eventually("its pause is over", lambda: has_traced(trace("own", 5, **as_nobody)))  # as long as its first trace was
        assert "this user has just traced" in end(trace("again", 1, **as_nobody), 1)
        daemon.stop()


def test_daemon_that_stops_ends_the_trace(data, tmp_path):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", str(data), "--workers", "2", "--drain-timeout", "1s")
    tracer = long_trace(daemon, tmp_path / "t.json")
    daemon.stop()
    _, err = tracer.communicate(timeout=30)
    assert tracer.returncode == 1 and "daemon" in err


def test_copies_are_drawn_on_the_gpus_engine_and_in_the_slot(data, tmp_path, monkeypatch):
    library = BUILD / "tests" / "stand_in_cuda"
    if not (library / "libcuda.so.1").exists():
        pytest.skip("built without CUDA")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    sizes = ("--pool-bytes", "128MiB", "--pinned-bytes", "32MiB", "--gpu-bytes", "32MiB", "--workers", "2")
    daemon = Daemon(tmp_path / "run", "--allowed-roots", str(data), "--gpus", "on", "--drain-timeout", "1s", *sizes)
    try:
        script = pathlib.Path(__file__).with_name("device") / "device_trainer.py"
        options = json.dumps({"dataset": str(data), "batch_size": BATCH, "slots": 4})
        trainer = Printer(script, daemon.address, "1000000", options)
        try:
            assert trainer.readline()
            status, _, err = trace(daemon.address, tmp_path / "t.json", "--seconds", 1, "--max-spans", 20000)
        finally:
            trainer.kill()
        assert status == 0, err
        events = events_of(tmp_path / "t.json")
        assert_spans_lie_beside_or_within_each_other(events)
        rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
        copies = [event for event in events if event["ph"] == "X" and event["cat"] == "copy"]
        kinds = collections.Counter(rows[event["pid"], event["tid"]].split()[0] for event in copies)
        assert kinds["copy-0"] == kinds["slot"] > 10, kinds
        published = {(e["args"]["epoch"], e["args"]["batch"]): e["ts"] for e in events if e["ph"] == "i"}
        behind = [published[batch] for event in copies if (batch := (event["args"]["epoch"], event["args"]["batch"])) in published and published[batch] < event["ts"] + event["dur"] - 0.01]
        assert not behind
    finally:
        daemon.stop()
