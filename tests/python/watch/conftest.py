# SPDX-License-Identifier: Apache-2.0
"""Daemons with HTTP, and data for them."""
import numpy
import pytest
from daemon_process import Daemon
from PIL import Image


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """`numbers`: 1000 rows of 4 KiB. `photos`: 60 images of two classes."""
    root = tmp_path_factory.mktemp("data")
    numpy.save(root / "numbers.npy", numpy.zeros((1000, 1024), numpy.float32))
    random = numpy.random.default_rng(0)
    for number in range(60):
        folder = root / "photos" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (200, 300, 3), numpy.uint8)).save(folder / f"{number}.jpg")
    return root


@pytest.fixture
def start(tmp_path):
    """start(flag, ...): a daemon with HTTP on any port. It ends with the test, with status 0."""
    started = []

    def run(*flags):
        sizes = ("--pool-bytes", "256MiB", "--workers", "2", "--drain-timeout", "1s")
        started.append(Daemon(tmp_path / f"run{len(started)}", "--allowed-roots", "/", *sizes, *flags, http_listen="127.0.0.1:0"))
        return started[-1]

    yield run
    for daemon in started:
        daemon.stop()
