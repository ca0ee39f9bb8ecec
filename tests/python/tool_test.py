# SPDX-License-Identifier: Apache-2.0
"""What the tool `pinfeed` shows of images and of trainers that hold batches, against a real daemon with real files."""

import itertools
import os
import re
import signal
import subprocess
import threading
import time

import numpy
import pytest
from conftest import TOOL, tool
from daemon_process import Daemon
from PIL import Image
from raw_client import Client, messages
from withstand.hardship import eventually

import pinfeed

RED, GREEN, BLUE = (220, 30, 30), (30, 200, 30), (30, 30, 220)
GAP, SIDE = 2, 40


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A wide, a tall and a square picture, each the left (upper) half of one colour and the other half blue."""
    folder = tmp_path_factory.mktemp("images")
    for kind, name, width, height, colour in (("cat", "wide", 160, 80, RED), ("cat", "tall", 60, 120, GREEN), ("dog", "square", 100, 100, RED)):
        picture = Image.new("RGB", (width, height), BLUE)
        half = (width // 2, height) if width >= height else (width, height // 2)
        picture.paste(colour, (0, 0, *half))
        (folder / kind).mkdir(exist_ok=True)
        picture.save(folder / kind / f"{name}.png")
    return folder


def test_peek_shows_whole_images_with_their_aspect_and_their_classes(daemon, images, tmp_path):
    sheet_path = tmp_path / "sheet.png"
    status, out, err = tool(daemon, "peek", images, "-o", sheet_path, "--side", SIDE)
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0] == f"{sheet_path}: 3 images in 2 rows"
    table = [line.split() for line in lines[2:]]
    assert table[0] == ["ROW", "COLUMN", "label", "sample_id", "class"]
    assert [(row[0], row[1], row[-1]) for row in table[1:]] == [("1", "1", "cat"), ("1", "2", "cat"), ("2", "1", "dog")]

    sheet = numpy.asarray(Image.open(sheet_path).convert("RGB")).astype(int)
    assert sheet.shape == (2 * (SIDE + GAP) + GAP, 2 * (SIDE + GAP) + GAP, 3)

    def tile(row, column):
        top, left = (GAP + index * (SIDE + GAP) for index in (row, column))
        return sheet[top : top + SIDE, left : left + SIDE]

    def shows(part, colour):
        return part.size and (abs(part - numpy.array(colour)) < 6).all()

    black, quarter, half = (0, 0, 0), SIDE // 4, SIDE // 2
    tall, wide, square = tile(0, 0), tile(0, 1), tile(1, 0)  # in the order of their names
    assert shows(tall[:, :quarter], black) and shows(tall[:, -quarter:], black)
    assert shows(tall[: half - 2, quarter:-quarter], GREEN) and shows(tall[half + 2 :, quarter:-quarter], BLUE)
    assert shows(wide[:quarter], black) and shows(wide[-quarter:], black)
    assert shows(wide[quarter:-quarter, : half - 2], RED) and shows(wide[quarter:-quarter, half + 2 :], BLUE)
    assert shows(square[:, : half - 2], RED) and shows(square[:, half + 2 :], BLUE)


def test_peek_tells_which_samples_are_bad(daemon, images, tmp_path):
    for source in images.rglob("*.png"):
        (tmp_path / "spoilt" / source.parent.name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "spoilt" / source.parent.name / source.name).write_bytes(source.read_bytes()[: 40 if source.stem == "tall" else None])
    status, out, err = tool(daemon, "peek", tmp_path / "spoilt", cwd=tmp_path)
    assert status == 0, err
    table = [line.split() for line in out.splitlines()[2:6]]
    assert table == [["ROW", "COLUMN", "label", "sample_id", "class"], ["1", "1", "bad", "0", "bad"], ["1", "2", "0", "1", "cat"], ["2", "1", "1", "2", "dog"]]
    empty, reason = out.splitlines()[6:]
    assert not empty and re.match(r"bad: sample 0: /.*/tall\.png: PNG: ", reason)


def test_peek_of_fields_named_as_tensors_of_its_own(daemon, tmp_path):
    (tmp_path / "own").mkdir()
    numpy.save(tmp_path / "own" / "sample_id.npy", numpy.array([5, 6]))
    numpy.save(tmp_path / "own" / "valid.npy", numpy.array([0, 1]))
    status, out, err = tool(daemon, "peek", tmp_path / "own", "-n", 2)
    assert status == 0, err
    assert [line.split() for line in out.splitlines()] == [["SAMPLE", "sample_id", "valid"], ["0", "5", "0"], ["1", "6", "1"]]


def test_peek_of_every_kind_of_number(daemon, tmp_path):
    (tmp_path / "kinds").mkdir()
    values = {
        "float16": numpy.array([1.5, -6e-8, numpy.inf, -65504, numpy.nan], "f2"),
        "float32": numpy.array([1e-7, -2.5, 3e38, 0, 1], "f4"),
        "float64": numpy.array([1e300, 0.1, 1 / 3, -0.0, 7], "f8"),
        "complex64": numpy.array([1 + 2j, -0.5j, 0, 1e-9, 3 - 4j], "c8"),
        "complex128": numpy.array([1 + 2e100j, 0, 0, 0, 0], "c16"),
        "int8": numpy.array([-128, 0, 1, 2, 127], "i1"),
    }
    for name, array in values.items():
        numpy.save(tmp_path / "kinds" / f"{name}.npy", array)
    status, out, err = tool(daemon, "peek", tmp_path / "kinds", "-n", 5)
    assert status == 0, err
    head, *lines = [line.split() for line in out.splitlines()]
    shown = {name: [line[head.index(name)] for line in lines] for name in values}
    assert shown["float16"] == ["1.5", "-5.96046e-08", "inf", "-65504", "nan"]
    for name, array in values.items():
        numpy.testing.assert_allclose(numpy.array([complex(text) for text in shown[name]]), array.astype("c16"), rtol=1e-5)


def test_peek_tells_which_columns_are_left_out(daemon, tmp_path):
    (tmp_path / "gaps.csv").write_text("n,gaps\n1,2\n2,\n")
    status, out, err = tool(daemon, "peek", tmp_path / "gaps.csv", "-n", 2)
    assert status == 0 and out.splitlines()[-1] == "left out: 'gaps': line 3 has no value for it", err


def test_peek_of_one_image(daemon, images, tmp_path):
    status, out, err = tool(daemon, "peek", images, "-n", 1, cwd=tmp_path)
    assert status == 0, err
    assert out.splitlines()[0] == "peek.png: 1 image in 1 row"
    assert Image.open(tmp_path / "peek.png").size == (128 + 2 * GAP, 128 + 2 * GAP)


@pytest.mark.parametrize("through", ["pipe", "file"])
def test_a_sheet_for_stdout_comes_alone(daemon, images, tmp_path, through):
    command = [TOOL, "--address", daemon.address, "peek", images, "-n", "2", "-o", "/dev/stdout"]
    if through == "pipe":
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        sheet = done.stdout
    else:
        with open(tmp_path / "sheet.png", "wb") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, timeout=60, check=True)
        sheet = (tmp_path / "sheet.png").read_bytes()
    assert sheet.startswith(b"\x89PNG") and sheet.endswith(b"IEND\xaeB`\x82")
    assert done.stderr.startswith(b"/dev/stdout: 2 images in 1 row")


def test_bench_ends_in_time_where_no_batch_comes(images, tmp_path):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", str(images))
    command = [TOOL, "--address", daemon.address, "bench", images, "--seconds", "3", "--transforms", '[{"resize": {"size": [8, 8]}}]', "--step-ms", "1"]
    bench = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: f"a batch was taken: {bench.poll()}", lambda: re.search(r'"batches_taken": "[1-9]', tool(daemon, "status", "--json")[1]))
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        out, err = bench.communicate(timeout=60)
        assert bench.returncode == 1 and "DEADLINE_EXCEEDED" in err, out + err
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
        daemon.stop()


def test_datasets_say_what_images_are(images, tmp_path):
    config = tmp_path / "pinfeedd.toml"
    config.write_text(f'[datasets.pets]\npath = "{images}"\n')
    daemon = Daemon(tmp_path / "run", "--config", str(config))
    try:
        status, out, err = tool(daemon, "datasets")
        assert status == 0, err
        assert "image uint8 HxWx3 (varying size), label int64" in out
    finally:
        daemon.stop()


def test_status_names_who_holds_a_group_up_and_for_how_long(daemon, images):
    options = dict(batch_size=1, slots=3, epochs=2, transforms=pinfeed.CenterCrop(8), framework="numpy", address=daemon.address, share="broadcast", group="pair", group_size=2)
    with pinfeed.open(images, name="slowjob", **options) as slow, pinfeed.open(images, name="fastjob", **options) as fast:
        taken = []

        def take_all():
            for _ in range(2):
                for batch in fast:  # while it waits for the next it still has this one
                    taken.append(int(batch.label[0]))

        thread = threading.Thread(target=take_all)
        thread.start()
        held = next(iter(slow))
        rows, deadline = {}, time.monotonic() + 60
        while not (re.search(r"session \d+ \(slowjob\) \d+%$", rows.get("fastjob", "")) and re.search(r"trainer \d+%$", rows["slowjob"]) and "has taken no batch for" in out):
            assert time.monotonic() < deadline, out
            status, out, err = tool(daemon, "status")
            assert status == 0, err
            rows = {line.split()[2]: line for line in out.splitlines() if re.match(r"\d+ +\d+ +(slow|fast)job ", line)}
            time.sleep(0.1)
        number = rows["slowjob"].split()[0]
        assert re.search(rf"session {number} \(slowjob\): batches wait for it \(\d+% of the time lately\)$", out, re.MULTILINE), out
        assert re.search(rf"^session {number} \(slowjob, pid {os.getpid()}\) has taken no batch for (\d+\.\d s|\d+ min \d+ s): is its process stopped", out, re.MULTILINE), out
        assert "(fastjob, pid" not in out
        del held
        slow.close()
        thread.join(60)
        assert len(taken) == 6


def test_names_show_all_that_they_hold(tmp_path):
    """Neither the directions of text nor its line ends are the names' to turn: in tables, in JSON, on the page and in the log."""
    hidden = "\u202e\u2028\u200b\u0085\ue000"
    place = tmp_path / f"numbers{hidden}"
    place.mkdir()
    numpy.save(place / "x.npy", numpy.arange(8))
    daemon = Daemon(tmp_path / "run", "--allowed-roots", str(tmp_path), http_listen="127.0.0.1:0")
    client = Client(daemon.address, messages().FeedSpec(dataset={"path": str(place)}, batch_size=4), client_name=f"train{hidden}.py")
    shown = [tool(daemon, *words)[1] for words in (("status",), ("status", "--json"))]
    shown += [daemon.http("/status.json")[1], daemon.http("/metrics")[1]]
    client.bye()
    daemon.stop()
    for text in [*shown, daemon.log()]:
        assert text and not set(hidden) & set(text)
    assert [r"train\xe2\x80\xae\xe2\x80\xa8" in text for text in shown] == [True, False, False, False]
    assert r"train\\xe2\\x80\\xae\\xe2\\x80\\xa8" in shown[1] and r"train\\xe2\\x80\\xae" in shown[2]


def test_a_call_without_threads_is_an_error(daemon):
    """gRPC would wait for threads that it could not start. Here each takes a quarter of the address space."""
    few = ["prlimit", f"--stack={1 << 30}", f"--as={4 << 30}", TOOL, "--address", daemon.address, "status"]
    done = subprocess.run(few, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and re.search(r"cannot start more than \d \(.*raise the limit of processes \(ulimit -u", done.stderr), done.stderr


def test_evict_says_what_a_session_is(daemon):
    for word in ("abc", "-1", "0", "1x", "99999999999999999999999"):
        status, _, err = tool(daemon, "evict", "--", word)
        assert status != 0 and f"{word} is not a session number; see the column SESSION of `pinfeed status`" in err, err


def test_status_tells_held_batches_from_ready_ones_and_the_drain_from_the_uptime(images, tmp_path):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", str(images))

    def session():
        status, out, err = tool(daemon, "status")
        row = next(line for line in out.splitlines() if "tool_test" in line).split()
        heading = next(line for line in out.splitlines() if line.startswith("SESSION")).split()
        return status, dict(zip(heading, row)), out

    def await_session(**wanted):
        eventually(lambda: session()[2], lambda: wanted.items() <= session()[1].items())

    options = dict(batch_size=1, slots=4, transforms=pinfeed.Resize([160, 160]), framework="numpy", address=daemon.address)
    with pinfeed.open(images, name="tool_test", **options) as feed:
        await_session(BATCHES_TAKEN="0", SLOTS_READY="4", SLOTS_HELD="0")
        iterator = iter(feed)
        held = [next(iterator), next(iterator)]
        await_session(BATCHES_TAKEN="2", SLOTS_READY="2", SLOTS_HELD="2")
        up = time.monotonic()
        while time.monotonic() - up < 1.5:  # so that uptime and drain differ
            assert session()[0] == 0
        daemon.process.terminate()
        while session()[0] == 0:
            pass
        status, _, out = session()
        assert status == 1
        drained, uptime = re.search(r"is draining for (\S+ \S+), up (\S+ \S+) \(pid", out).groups()
        seconds = {"ms": 0.001, "s": 1.0}

        def length(text):
            number, unit = text.split()
            return float(number) * seconds[unit]

        assert length(drained) + 1.4 < length(uptime)
        del held, iterator
    daemon.stop()


def test_status_tells_why_few_workers_load_a_feed(tmp_path):
    """Batches that take microseconds get four of eight."""
    numpy.arange(100_000, dtype=numpy.uint16).tofile(tmp_path / "tokens.bin")
    running = Daemon(tmp_path / "run", "--allowed-roots", str(tmp_path), "--pool-bytes", "64MiB", "--workers", "8")
    try:
        with pinfeed.open(tmp_path / "tokens.bin", sequence_length=16, batch_size=8, address=running.address) as feed:
            batches = itertools.chain.from_iterable(itertools.repeat(feed))
            deadline = time.monotonic() + 60
            while pinfeed.status(running.address)["feeds"][0]["max_workers"] != 4:
                assert time.monotonic() < deadline
                for _ in range(500):
                    next(batches)
            assert "is loaded by at most 4 workers at once: its batches are small" in tool(running, "status")[1]
    finally:
        running.stop()
