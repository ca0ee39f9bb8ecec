# SPDX-License-Identifier: Apache-2.0
"""Feeds on a GPU, with real processes and the stand-in for the CUDA driver (tests/support/stand_in_cuda) where the driver would be."""
import json
import signal
import time

import pinfeed
import pytest
from daemon_process import Daemon
from device_fixtures import daemon, data, host_bytes, stand_in  # noqa: F401
from device_process import BACKENDS, await_unused, finish, gpu, start, trainer
from withstand.hardship import metrics

NORMAL = [["RandomHorizontalFlip", []], ["Normalize", [[0.5, 0.4, 0.3], [0.2, 0.3, 0.4]]], ["ToDtype", ["bfloat16"]]]


@pytest.mark.parametrize("options", [{}, {"zero_copy": True}, {"sample_path": True, "transforms": [["CenterCrop", [13]]]}])
def test_a_capture_in_another_thread_is_left_alone(daemon, data, host_bytes, options):
    options = {"dataset": str(data / ("photos" if "sample_path" in options else "arrays")), "batch_size": 4, **options}
    seen, last, errors = finish(trainer(daemon.address, 6, env={"PINFEED_STAND_IN_CAPTURING": "elsewhere"}, **options))
    assert seen == host_bytes(daemon, 6, options) and last["backend"] == "vmm-fd" and not errors


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "vmm-fd"},
        {"backend": "cuda-ipc"},
        {"zero_copy": True},
        {"decode": "gpu", "dataset": "photos", "transforms": [["CenterCrop", [13]]]},
        {"resident": True},
    ],
)
def test_a_capture_of_the_trainers_stream_gets_no_batch(daemon, data, options):
    """Each launch of its graph would read memory that has another batch by then."""
    options = {"batch_size": 4, **options, "dataset": str(data / options.get("dataset", "arrays"))}
    with pytest.raises(AssertionError, match="the stream is being captured|the current stream is being captured"):
        finish(trainer(daemon.address, 1, env={"PINFEED_STAND_IN_CAPTURING": "here"}, **options))
    await_unused(daemon)


@pytest.mark.parametrize("backend", ["host", *BACKENDS])
@pytest.mark.parametrize(
    "options",
    [
        {"dataset": "arrays", "batch_size": 7, "shuffle": True},
        {"dataset": "arrays", "batch_size": 7, "shuffle": True, "transforms": NORMAL},
        {"dataset": "arrays", "batch_size": 9, "layout": "HWC", "transforms": [["CenterCrop", [11]], *NORMAL]},
        {"dataset": "photos", "batch_size": 5, "shuffle": True, "sample_ids": True, "transforms": [["RandomResizedCrop", [13]], *NORMAL]},
        {"dataset": "photos", "batch_size": 5, "transforms": [["Resize", [[9, 8]]]]},
        {"dataset": "arrays", "batch_size": 7, "shuffle": True, "zero_copy": True},
        {"dataset": "large", "batch_size": 20, "shuffle": True, "drop_last": False, "sample_ids": True},
        {"dataset": "large", "batch_size": 20, "shuffle": True, "transforms": NORMAL, "zero_copy": False, "masks": ["mask"]},
        {"dataset": "large", "batch_size": 20, "transforms": [["Resize", [[90, 80]]], *NORMAL], "masks": ["mask"], "valid": True},
        {"dataset": "photos", "batch_size": 5, "shuffle": True, "sample_path": True, "sample_ids": True, "transforms": [["CenterCrop", [13]]]},
        {"dataset": "photos", "batch_size": 5, "sample_path": True, "pad": {"sample_path": 40}, "transforms": [["CenterCrop", [13]], *NORMAL]},
        {"dataset": "photos", "batch_size": 20, "shuffle": True, "sample_path": True, "transforms": [["CenterCrop", [600]]]},
        {"dataset": "ragged.jsonl", "batch_size": 7, "shuffle": True, "drop_last": False, "fields": ["number", "list", "word"]},
        {"dataset": "ragged.jsonl", "batch_size": 20, "shuffle": True},
        {"dataset": "ragged.jsonl", "batch_size": 20, "on_bad_sample": "skip", "valid": True, "pad": {"list": 5}},
        {"dataset": "ragged.jsonl", "batch_size": 20, "on_bad_sample": "zero", "pad": {"word": 9}},
    ],
)
def test_the_bytes_are_the_same_on_every_backend(daemon, data, host_bytes, backend, options):
    """The conformance suite: one list of specs, all backends against the bytes of a first run on the host."""
    batches = 6 if options["dataset"] == "large" or ["CenterCrop", [600]] in options.get("transforms", []) else 40  # of megabytes or of kilobytes
    options = {**options, "dataset": str(data / options["dataset"])}
    expected = host_bytes(daemon, batches, options)
    where = {"host": True} if backend == "host" else {"backend": backend}
    seen, last, _ = finish(trainer(daemon.address, batches, **options, **where))
    assert last["backend"] == backend
    assert seen == expected
    await_unused(daemon)
    assert int(gpu(daemon)["copies"]) >= (0 if backend == "host" else batches)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lent_slots_are_never_all_held(daemon, data, backend):
    """A trainer that keeps every batch has copies, of the same bytes, from the last free slot on."""
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True, "zero_copy": True, "slots": 3, "backend": backend}
    expected, _, _ = finish(trainer(daemon.address, 12, **options))
    seen, _, errors = finish(trainer(daemon.address, 12, keep=True, timeout=60, **options))
    said = seen.pop()
    assert seen == expected and said == {"kept": [batch["crc"] for batch in expected], "copied": 10}
    assert "SlotsHeldWarning: 2 of the 3 slots" in errors
    await_unused(daemon)


def test_bad_samples_that_become_zeros_are_zeros_after_normalising(daemon, data, tmp_path):
    broken = data / "photos" / "class0" / "broken.jpg"
    broken.write_bytes(b"no image")
    try:
        options = {"dataset": str(data / "photos"), "batch_size": 5, "on_bad_sample": "zero", "transforms": [["CenterCrop", [13]], *NORMAL], "sample_ids": True, "valid": True}
        on_gpu, _, _ = finish(trainer(daemon.address, 6, **options))
        on_host, _, _ = finish(trainer(daemon.address, 6, host=True, **options))
        assert on_gpu == on_host
    finally:
        broken.unlink()


def test_skipped_samples_leave_no_gap_in_batches_of_several_pieces(daemon, data, tmp_path):
    broken = [data / "photos" / "class0" / f"broken{n}.jpg" for n in range(5)]
    for path in broken:
        path.write_bytes(b"no image")
    try:
        # 20 samples of 900 kB: three pieces.
        options = {"dataset": str(data / "photos"), "batch_size": 20, "on_bad_sample": "skip", "shuffle": True, "transforms": [["Resize", [[550, 550]]], *NORMAL], "sample_ids": True, "valid": True}
        on_gpu, _, _ = finish(trainer(daemon.address, 10, **options))
        on_host, _, _ = finish(trainer(daemon.address, 10, host=True, **options))
        assert on_gpu == on_host
        assert int(gpu(daemon)["copies"]) >= 30, "each batch is several copies"
    finally:
        for path in broken:
            path.unlink()


@pytest.mark.parametrize("zero_copy", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_batches_come_to_a_gpu_like_others(daemon, data, backend, zero_copy):
    """The first one, and one in the midst."""
    broken = [data / "photos" / "class0" / name for name in ("!0.jpg", "!1.jpg", "!2.jpg", "!6.jpg", "!7.jpg", "!8.jpg")]
    for path in broken:
        path.write_bytes(b"no image")
    for number in (3, 4, 5):
        (data / "photos" / "class0" / f"!{number}.jpg").write_bytes((data / "photos" / "class0" / "0.jpg").read_bytes())
    try:
        options = {"dataset": str(data / "photos"), "batch_size": 3, "on_bad_sample": "skip", "valid": True, "transforms": [["Resize", [[9, 9]]]], "layout": "HWC"}
        if not zero_copy:
            options["transforms"] += NORMAL
        on_gpu, _, errors = finish(trainer(daemon.address, 22, backend=backend, zero_copy=zero_copy, **options))
        on_host, _, _ = finish(trainer(daemon.address, 22, host=True, **options))
        assert on_gpu == on_host
        assert [batch["samples"] for batch in on_gpu[:4]] == [0, 3, 0, 3] and {batch["epoch"] for batch in on_gpu} == {0, 1}
        assert errors.count("is empty") == 1
        await_unused(daemon)
    finally:
        for path in (data / "photos" / "class0").glob("!*.jpg"):
            path.unlink()


@pytest.mark.parametrize("where, slots", [({}, 8), ({"batch_size": 40}, 4), ({"host": True}, 4), ({"slots": 5}, 5)])
def test_a_gpu_has_slots_for_the_steps_that_a_trainer_puts_ahead(daemon, data, where, slots):
    """As long as there is room: eight batches of 48 MB are too many."""
    process = trainer(daemon.address, 10**6, **{"dataset": str(data / "large"), "batch_size": 20, **where})
    assert process.stdout.readline()
    assert [feed["slots"] for feed in pinfeed.status(daemon.address)["feeds"]] == [slots]
    process.kill()
    process.communicate()


@pytest.mark.parametrize("where, limit", [({}, 48), ({"host": True}, 64), ({"transforms": [["Resize", [[9, 8]]]], "masks": ["mask"]}, 64)])
def test_of_many_workers_some_leave_the_memory_to_the_copies(tmp_path, data, where, limit):
    """Where they only read what is copied to a GPU."""
    many = start(tmp_path / "many", data, "--workers", "64")
    process = trainer(many.address, 3, wait_at=2, **{"dataset": str(data / "large"), "batch_size": 20, **where})
    try:
        for _ in range(2):
            process.stdout.readline()
        assert [feed["max_workers"] for feed in pinfeed.status(many.address)["feeds"]] == [limit]
    finally:
        finish(process)
        many.stop()


@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_trainers_leave_nothing(daemon, data, backend):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True, "backend": backend}
    for batches in range(1, 9):
        process = trainer(daemon.address, 10**6, **options)
        for _ in range(batches):
            assert process.stdout.readline()
        process.kill()
        process.communicate()
    # A session opened later finds the memory of all of them free: 32 MiB would not hold nine arenas.
    finish(trainer(daemon.address, 20, slots=64, **{**options, "batch_size": 100}))
    await_unused(daemon)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_restarted_daemon_costs_no_batch(tmp_path, data, how, backend):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True, "transforms": NORMAL, "backend": backend}
    first = start(tmp_path / "run", data)
    expected, _, _ = finish(trainer(first.address, 200, **options))
    process = trainer(first.address, 200, wait_at=100, **options)
    seen = [json.loads(process.stdout.readline()) for _ in range(20)]
    first.process.send_signal(how)
    first.process.wait(60)
    second = start(tmp_path / "run", data)
    rest, last, _ = finish(process)
    assert seen + rest == expected
    assert last == {"backend": backend, "reconnects": 1}
    second.stop()


@pytest.mark.parametrize(
    "how",
    [
        {"FAIL": "cuMemcpyHtoDAsync:60"},
        # The context is sound, and the copy before the one that fails never ends.
        {"FAIL": "cuMemcpyHtoDAsync:60:719", "STALL": "59"},
        # A driver that is lost does not even give memory back.
        {"FAIL": "cuMemcpyHtoDAsync:60,cuMemUnmap:1:hang"},
    ],
)
def test_a_gpu_that_breaks_ends_the_daemon_and_costs_no_batch(tmp_path, data, monkeypatch, how):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True}
    with monkeypatch.context() as broken:
        for name, value in how.items():
            broken.setenv(f"PINFEED_STAND_IN_{name}", value)
        first = start(tmp_path / "run", data)
    process = trainer(first.address, 200, **options)
    assert first.process.wait(60) == 1, first.log()
    assert "CUDA_ERROR_" in first.log() and "GPU-" in first.log()
    second = start(tmp_path / "run", data)
    seen, last, _ = finish(process)
    assert last["reconnects"] == 1
    expected, _, _ = finish(trainer(second.address, 200, **options))
    assert seen == expected
    second.stop()


def test_a_gpu_that_broke_while_nothing_was_copied_ends_the_daemon_at_the_next_open(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_FAIL", "cuMemCreate:2")
    first = start(tmp_path / "run", data)
    monkeypatch.delenv("PINFEED_STAND_IN_FAIL")
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "backend": "vmm-fd"}
    process = trainer(first.address, 10**6, **options)
    assert process.stdout.readline()
    late = trainer(first.address, 20, **options)
    assert first.process.wait(60) == 1, first.log()
    assert "use GPU GPU-" in first.log() and "it drains and ends" in first.log()
    late.communicate()
    second = start(tmp_path / "run", data)
    assert process.stdout.readline()
    process.kill()
    process.communicate()
    finish(trainer(second.address, 20, **options))
    second.stop()


def test_what_the_driver_has_too_little_of_at_the_start_is_no_fault_of_the_configuration(tmp_path, data, monkeypatch):
    """Another try may find it: its status is not the one after which systemd tries no more."""
    monkeypatch.setenv("PINFEED_STAND_IN_FAIL", "cuMemHostRegister:1:2")
    with pytest.raises(AssertionError, match="cannot start: RESOURCE_EXHAUSTED: gpus: register .*CUDA_ERROR_OUT_OF_MEMORY"):
        start(tmp_path / "run", data)


def test_a_gpu_that_breaks_is_seen_by_a_scrape_before_the_daemon_ends(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_FAIL", "cuMemcpyHtoDAsync:60")
    first = start(tmp_path / "run", data, "--http-listen", "127.0.0.1:0")
    monkeypatch.delenv("PINFEED_STAND_IN_FAIL")
    process = trainer(first.address, 200, dataset=str(data / "arrays"), batch_size=7)
    deadline = time.monotonic() + 60
    while "it drains and ends" not in first.log():  # only one scrape, of all the time there is
        assert time.monotonic() < deadline and first.process.poll() is None
    series = metrics(first)
    (broken,) = [name for name, value in series.items() if name.startswith("pinfeed_gpu_copy_errors_total{") and value == 1]
    assert "GPU-" in broken and series["pinfeed_ready"] == 0 and series["pinfeed_draining"] == 1
    seen_at = time.monotonic()
    assert first.process.wait(60) == 1, first.log()
    assert time.monotonic() - seen_at < 15  # it does not wait for another
    second = start(tmp_path / "run", data)
    assert finish(process)[1]["reconnects"] == 1
    second.stop()


def test_nobody_needs_to_scrape_for_the_daemon_to_end(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_FAIL", "cuMemcpyHtoDAsync:3")
    daemon = start(tmp_path / "run", data, "--http-listen", "127.0.0.1:0")
    monkeypatch.delenv("PINFEED_STAND_IN_FAIL")
    process = trainer(daemon.address, 200, dataset=str(data / "arrays"), batch_size=7)
    assert daemon.process.wait(60) == 1, daemon.log()
    process.kill()
    process.communicate()


def test_a_gpu_that_breaks_before_the_daemon_is_ready_fails_the_start(tmp_path, data, monkeypatch):
    """The start enters the GPU's context three times; the fourth is the copy thread's, which tells of it from there."""
    monkeypatch.setenv("PINFEED_STAND_IN_FAIL", "cuCtxPushCurrent:4")
    with pytest.raises(AssertionError, match="it drains and ends(.|\n)*cannot start: UNAVAILABLE: enter the context of GPU"):
        start(tmp_path / "run", data)


@pytest.mark.parametrize("how, told", [("", True), (":4", False)])
def test_a_slot_that_cannot_be_given_back_is_told_of(daemon, data, how, told):
    """Unless the driver has shut down with the process (error 4)."""
    fault = {"PINFEED_STAND_IN_FAIL": f"cuStreamWriteValue64:2{how}"}
    process = trainer(daemon.address, 30, env=fault, dataset=str(data / "arrays"), batch_size=7, zero_copy=True, slots=3, timeout=5)
    _, errors = process.communicate(timeout=60)
    assert ("a slot cannot be returned: " in errors and "it is lost to this feed" in errors) == told, errors


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trainer_that_broke_its_context_leaves_at_once(daemon, data, backend):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "backend": backend}
    process = trainer(daemon.address, 10**6, zero_copy=True, fault_at=5, **options)
    _, last, errors = finish(process)
    assert last["left_s"] < 5, "10 s are for a GPU that has much to do"
    assert "the slots of a closed feed cannot be returned: use GPU GPU-" in errors and "CUDA_ERROR_ILLEGAL_ADDRESS" in errors, errors
    # Its memory is kept until it has ended, then it is back.
    finish(trainer(daemon.address, 20, slots=64, **{**options, "batch_size": 100}))
    await_unused(daemon)


def test_memory_that_is_not_given_back_is_told_of(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_FAIL", "cuMemUnmap:1:hang")
    running = start(tmp_path / "run", data)
    monkeypatch.delenv("PINFEED_STAND_IN_FAIL")
    finish(trainer(running.address, 5, dataset=str(data / "arrays"), batch_size=7))
    deadline = time.monotonic() + 60
    while "has taken 1" not in running.log():
        assert time.monotonic() < deadline, running.log()
        time.sleep(0.1)
    (line,) = [line for line in running.log().splitlines() if "has taken" in line]
    assert "freeing 2 MiB of feed 1 (vmm-fd, " in line and "error" in line
    running.process.kill()  # it could not end by itself
    running.process.wait(60)


def test_a_gpu_that_the_daemon_does_not_feed_gets_batches_through_the_host(daemon, data):
    options = {"dataset": str(data / "arrays"), "batch_size": 7}
    elsewhere = {"env": {"PINFEED_STAND_IN_GPUS": "2"}, "gpu": 1}
    errors = trainer(daemon.address, 5, **elsewhere, **options).communicate(timeout=60)[1]
    assert "batches come in host memory, not on GPU 1: gpu_uuid: this daemon feeds no GPU" in errors
    process = trainer(daemon.address, 5, backend="vmm-fd", **elsewhere, **options)
    assert "this daemon feeds no GPU" in process.communicate(timeout=60)[1]
    assert process.returncode != 0


def test_slots_are_not_lent_where_the_kernel_has_to_run(daemon, data):
    _, errors = trainer(daemon.address, 1, dataset=str(data / "arrays"), batch_size=4, transforms=NORMAL, zero_copy=True).communicate(timeout=60)
    assert "zero_copy: tensor 'image' lies in the slot as uint8 [3, 16, 20]" in errors


def test_what_does_not_fit_is_refused_with_the_numbers(daemon, data):
    _, errors = trainer(daemon.address, 1, dataset=str(data / "arrays"), batch_size=4000, slots=64).communicate(timeout=60)
    assert "gpu_bytes" in errors and "ResourceExhaustedError" in errors


def test_without_a_gpu_the_daemon_says_so_in_one_line(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_GPUS", "0")
    daemon = Daemon(tmp_path / "run", "--allowed-roots", str(data))
    assert sum("batches stay in host memory" in line for line in daemon.log().splitlines()) == 1
    assert pinfeed.status(daemon.address)["backend"].startswith("host (")
    daemon.stop()
