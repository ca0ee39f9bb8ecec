# SPDX-License-Identifier: Apache-2.0
"""Fixtures: data, and a daemon with a GPU that is the stand-in driver's (tests/support/stand_in_cuda)."""
import json

import numpy as np
import pytest
from conftest import BUILD
from device_process import finish, start, trainer
from PIL import Image


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(BUILD / "tests" / "stand_in_cuda"))


@pytest.fixture(autouse=True)
def nvjpeg(monkeypatch, stand_in):
    monkeypatch.setenv("PINFEED_NVJPEG", str(BUILD / "tests" / "stand_in_cuda" / "libnvjpeg.so.12"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    (root / "arrays").mkdir()
    np.save(root / "arrays" / "image.npy", random.integers(0, 256, (100, 3, 16, 20), np.uint8))
    np.save(root / "arrays" / "label.npy", np.arange(100))
    # Batches of 20 are several pieces of pinned memory, with tensors of few bytes before, between and after the others.
    (root / "large").mkdir()
    np.save(root / "large" / "age.npy", np.arange(60, dtype=np.int16))
    np.save(root / "large" / "image.npy", random.integers(0, 256, (60, 3, 500, 600), np.uint8))
    np.save(root / "large" / "label.npy", np.arange(60))
    np.save(root / "large" / "mask.npy", random.integers(0, 256, (60, 500, 600), np.uint8))
    for number in range(24):
        folder = root / "photos" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        size = (40 + number, 50 - number, 3)
        Image.fromarray(random.integers(0, 256, size, np.uint8)).save(folder / f"{number}.jpg")
    # One text makes batches of 20 several pieces; lists and words are small tensors beside it.
    with open(root / "ragged.jsonl", "w") as file:
        for number in range(60):
            row = {"number": number, "text": "x" * (900_000 if number == 17 else 50 * number), "list": list(range(number % 7)), "word": "w" * (number % 11)}
            file.write(json.dumps(row) + "\n")
    return root


@pytest.fixture
def daemon(tmp_path, data):
    running = start(tmp_path / "run", data)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def host_bytes():
    """What a trainer on the host prints: one run for each spec."""
    seen = {}

    def run(daemon, batches, options):
        key = json.dumps([batches, options], sort_keys=True)
        if key not in seen:
            seen[key] = finish(trainer(daemon.address, batches, host=True, **options))[0]
        return seen[key]

    return run
