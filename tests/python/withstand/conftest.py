# SPDX-License-Identifier: Apache-2.0
"""One daemon for all that clients do to it, and a neighbour that must notice nothing."""

import io
import re
import time

import numpy
import pinfeed
import pytest
from deaf_mount import DeafMount
from hardship import SAMPLES, WIDTH, Reader, census_at_rest, eventually, read_status, refusals, sessions_of, start_daemon
from silent_mount import SilentMount


def mounted(kind, folder, *arguments, **options):
    folder.mkdir()
    try:
        return kind(folder, *arguments, **options)
    except OSError as error:
        pytest.skip(f"a file system that does not answer needs the right to mount one: {error}")


@pytest.fixture
def hung(tmp_path):
    mount = mounted(SilentMount, tmp_path / "hung")
    yield mount
    mount.end()


@pytest.fixture
def deaf_mount(tmp_path):
    """deaf_mount(rows, ...) is a DeafMount with the array as its x.npy."""
    mounts = []

    def mount(rows, **options):
        file = io.BytesIO()
        numpy.save(file, rows)
        mounts.append(mounted(DeafMount, tmp_path / "deaf", "x.npy", file.getvalue(), **options))
        return mounts[-1]

    yield mount
    for one in mounts:
        one.end()


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    """A dataset whose every value tells which sample it belongs to: x[i] = 64 i, 64 i + 1, ..."""
    folder = tmp_path_factory.mktemp("numbers")
    numpy.save(folder / "x.npy", numpy.arange(SAMPLES * WIDTH, dtype=numpy.int64).reshape(SAMPLES, WIDTH))
    time.sleep(2.1)  # what changed less than 2 s before it is opened is not kept open
    return folder


@pytest.fixture
def reader(tmp_path):
    """reader(address, dataset, option=...) starts one; all are gone after the test."""
    started = []

    def start(address, dataset, **options):
        started.append(Reader(tmp_path / f"reader{len(started)}", address, dataset, **options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="session")
def host(tmp_path_factory, numbers):
    """The daemon that everything is done to. `at_start` is what it held after its first client had come and gone."""
    daemon = start_daemon(tmp_path_factory.mktemp("host") / "run", http_listen="127.0.0.1:0")
    with pinfeed.open(numbers, batch_size=16, address=daemon.address, framework="numpy", timeout=30, reconnect_timeout=10) as feed:
        next(iter(feed))
    eventually("no session is left", lambda: not sessions_of(read_status(daemon.address)) and read_status(daemon.address)["pool_used_bytes"] in (0, "0"))
    assert refusals(daemon) == 0
    daemon.at_start = census_at_rest(daemon)
    yield daemon
    daemon.stop()
    assert not re.search(r"(?i)PF_CHECK|sanitizer", daemon.log())
