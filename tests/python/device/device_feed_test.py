# SPDX-License-Identifier: Apache-2.0
"""Feeds on a GPU, with real processes and the stand-in for the CUDA driver (tests/stand_in_cuda) where the driver would be."""
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pinfeed
import pytest
from conftest import BUILD
from daemon_process import Daemon
from PIL import Image

TRAINER = pathlib.Path(__file__).with_name("device_trainer.py")
NORMAL = [["RandomHorizontalFlip", []], ["Normalize", [[0.5, 0.4, 0.3], [0.2, 0.3, 0.4]]], ["ToDtype", ["bfloat16"]]]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(BUILD / "tests" / "stand_in_cuda"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    (root / "arrays").mkdir()
    np.save(root / "arrays" / "image.npy", random.integers(0, 256, (100, 3, 16, 20), np.uint8))
    np.save(root / "arrays" / "label.npy", np.arange(100))
    for number in range(24):
        folder = root / "photos" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        size = (40 + number, 50 - number, 3)
        Image.fromarray(random.integers(0, 256, size, np.uint8)).save(folder / f"{number}.jpg")
    return root


def start(folder, data, *flags):
    sizes = ("--pool-bytes", "128MiB", "--pinned-bytes", "32MiB", "--gpu-bytes", "32MiB", "--workers", "2")
    return Daemon(folder, "--allowed-roots", str(data), "--gpus", "on", "--drain-timeout", "1s", *sizes, *flags)


@pytest.fixture
def daemon(tmp_path, data):
    running = start(tmp_path / "run", data)
    yield running
    running.stop()


def trainer(address, batches, env=None, **options):
    return subprocess.Popen(
        [sys.executable, str(TRAINER), address, str(batches), json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )


def finish(process):
    """What a trainer printed, batch by batch, and its last line."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in out.splitlines()]
    return lines[:-1], lines[-1], errors


def gpu(daemon):
    return pinfeed.status(daemon.address)["gpus"][0]


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": "arrays", "batch_size": 7, "shuffle": True},
        {"dataset": "arrays", "batch_size": 7, "shuffle": True, "transforms": NORMAL},
        {"dataset": "arrays", "batch_size": 9, "layout": "HWC", "transforms": [["CenterCrop", [11]], *NORMAL]},
        {"dataset": "photos", "batch_size": 5, "shuffle": True, "sample_ids": True, "transforms": [["RandomResizedCrop", [13]], *NORMAL]},
        {"dataset": "photos", "batch_size": 5, "transforms": [["Resize", [[9, 8]]]]},
        {"dataset": "arrays", "batch_size": 7, "shuffle": True, "zero_copy": True},
    ],
)
def test_the_bytes_are_those_of_the_host(daemon, data, options):
    options = {**options, "dataset": str(data / options["dataset"])}
    on_gpu, last, _ = finish(trainer(daemon.address, 40, **options))
    on_host, _, _ = finish(trainer(daemon.address, 40, host=True, **options))
    assert last["backend"] == "vmm-fd"
    assert on_gpu == on_host
    assert gpu(daemon)["arena_used_bytes"] == "0"
    assert int(gpu(daemon)["copies"]) >= 40


def test_bad_samples_that_become_zeros_are_zeros_after_normalising(daemon, data, tmp_path):
    broken = data / "photos" / "class0" / "broken.jpg"
    broken.write_bytes(b"no image")
    try:
        options = {"dataset": str(data / "photos"), "batch_size": 5, "on_bad_sample": "zero", "transforms": [["CenterCrop", [13]], NORMAL[1]]}
        on_gpu, _, _ = finish(trainer(daemon.address, 6, **options))
        on_host, _, _ = finish(trainer(daemon.address, 6, host=True, **options))
        assert on_gpu == on_host
    finally:
        broken.unlink()


def test_killed_trainers_leave_nothing(daemon, data):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True}
    for batches in range(1, 9):
        process = trainer(daemon.address, 10**6, **options)
        for _ in range(batches):
            assert process.stdout.readline()
        process.kill()
        process.communicate()
    # A session opened later finds the memory of all of them free: 32 MiB would not hold nine arenas.
    finish(trainer(daemon.address, 20, slots=64, **{**options, "batch_size": 100}))
    assert gpu(daemon)["arena_used_bytes"] == "0"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_restarted_daemon_costs_no_batch(tmp_path, data, how):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True, "transforms": NORMAL}
    first = start(tmp_path / "run", data)
    expected, _, _ = finish(trainer(first.address, 200, **options))
    process = trainer(first.address, 200, **options)
    seen = [json.loads(process.stdout.readline()) for _ in range(20)]
    first.process.send_signal(how)
    first.process.wait(60)
    second = start(tmp_path / "run", data)
    rest, last, _ = finish(process)
    assert seen + rest == expected
    assert last == {"backend": "vmm-fd", "reconnects": 1}
    second.stop()


def test_a_gpu_that_breaks_ends_the_daemon_and_costs_no_batch(tmp_path, data, monkeypatch):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True}
    monkeypatch.setenv("PINFEED_STAND_IN_FAIL", "cuMemcpyHtoDAsync:60")
    first = start(tmp_path / "run", data)
    monkeypatch.delenv("PINFEED_STAND_IN_FAIL")
    process = trainer(first.address, 200, **options)
    assert first.process.wait(60) == 1, first.log()
    assert "CUDA_ERROR_UNKNOWN" in first.log() and "GPU-" in first.log()
    second = start(tmp_path / "run", data)
    seen, last, _ = finish(process)
    assert last["reconnects"] == 1
    expected, _, _ = finish(trainer(second.address, 200, **options))
    assert seen == expected
    second.stop()


def test_a_mapping_that_fails_falls_back_to_the_host_loudly(daemon, data):
    options = {"dataset": str(data / "arrays"), "batch_size": 7}
    broken = {"PINFEED_STAND_IN_FAIL": "cuMemImportFromShareableHandle:1:101"}
    _, errors = trainer(daemon.address, 5, env=broken, **options, backend="vmm-fd").communicate(timeout=60)
    assert "CUDA_ERROR_INVALID_DEVICE" in errors
    # The tensors would be moved by torch, for which this is no GPU; what matters is what was said before.
    _, errors = trainer(daemon.address, 5, env=broken, **options).communicate(timeout=60)
    assert "batches come in host memory, not on GPU 0" in errors and "CUDA_ERROR_INVALID_DEVICE" in errors
    assert gpu(daemon)["arena_used_bytes"] == "0"


def test_slots_are_not_lent_where_the_kernel_has_to_run(daemon, data):
    _, errors = trainer(daemon.address, 1, dataset=str(data / "arrays"), batch_size=4, transforms=NORMAL, zero_copy=True).communicate(timeout=60)
    assert "zero_copy: tensor 'image' lies in the slot as uint8 [3, 16, 20]" in errors


def test_what_does_not_fit_is_refused_with_the_numbers(daemon, data):
    _, errors = trainer(daemon.address, 1, dataset=str(data / "arrays"), batch_size=1000, slots=64).communicate(timeout=60)
    assert "gpu_bytes" in errors and "ResourceExhaustedError" in errors


def test_without_a_gpu_the_daemon_says_so_in_one_line(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_GPUS", "0")
    daemon = Daemon(tmp_path / "run", "--allowed-roots", str(data))
    assert sum("batches stay in host memory" in line for line in daemon.log().splitlines()) == 1
    assert pinfeed.status(daemon.address)["backend"].startswith("host (")
    daemon.stop()
