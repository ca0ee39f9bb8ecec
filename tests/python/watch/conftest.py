# SPDX-License-Identifier: Apache-2.0
"""Daemons with HTTP, and data for them."""
import functools

import numpy
import pytest
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
def start(start_daemon):
    """start(flag, ...): a daemon with HTTP on any port."""
    return functools.partial(start_daemon, "--allowed-roots", "/", "--pool-bytes", "256MiB", "--workers", "2", "--drain-timeout", "1s", http_listen="127.0.0.1:0")
