# SPDX-License-Identifier: Apache-2.0
"""Where the tests find the build, and daemons for them."""

import atexit
import gc
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import pytest
from daemon_process import Daemon
from warm_python import WarmPython

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PINFEED_BUILD_DIR") or ROOT / "build" / "release")
TOOL = BUILD / "client" / "cli" / "pinfeed"
PACKAGE = ROOT / "client" / "python"

if str(PACKAGE) not in sys.path:
    sys.path.insert(0, str(PACKAGE))
os.environ["PYTHONPATH"] = str(PACKAGE)
os.environ.setdefault("PINFEED_LIBRARY", str(BUILD / "client" / "libpinfeed.so"))
os.environ.setdefault("PINFEED_DAEMON", str(BUILD / "server" / "pinfeedd"))
multiprocessing.set_forkserver_preload(["torch", "pinfeed"])  # once, not in each of its children; without torch, it has none
# Nothing of the user's or of whoever started the tests.
for name in ("PINFEED_ADDRESS", "PINFEED_CONFIG", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
    os.environ.pop(name, None)
# Daemons keep nothing in the user's cache.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="pinfeed-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], True)


def pytest_collection_finish():
    """What the imports made is no garbage: without it a full collection, which most tests ask for at least once, takes no 90 ms, also in forked workers."""
    gc.collect()
    gc.freeze()


def tool(daemon, *words, **options):
    """(status, stdout, stderr) of the tool, for a daemon."""
    done = subprocess.run([TOOL, "--address", daemon.address, *map(str, words)], capture_output=True, text=True, timeout=60, check=False, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    """One daemon for all tests that only open feeds. Every path may be read; 4 slots and 2 workers."""
    running = Daemon(tmp_path_factory.mktemp("daemon") / "run", "--allowed-roots", "/", "--pool-bytes", "512MiB", "--workers", "2")
    yield running
    running.stop()


@pytest.fixture
def start_daemon(tmp_path):
    """start_daemon(flag, ..., option=...): a `Daemon` in a folder of its own. It ends with the test, with status 0."""
    started = []

    def start(*flags, **options):
        started.append(Daemon(tmp_path / f"run{len(started)}", *flags, **options))
        return started[-1]

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture(scope="module")
def host(request, tmp_path_factory):
    """A daemon with the flags HOST_FLAGS of the module. Its memory is all free between two tests: see `memory_is_free`."""
    running = Daemon(tmp_path_factory.mktemp("host") / "run", "--workers", "2", *request.module.HOST_FLAGS)
    yield running
    running.stop()


@pytest.fixture
def memory_is_free(host):
    """Goes before `nothing_is_left`, which then frees first what is left."""
    yield
    eventually("all memory is free", lambda: int(pinfeed.status(host.address).get("pool_used_bytes", 0)) == 0)


@pytest.fixture
def feeds(daemon, monkeypatch):
    """What is opened without an address is opened with `daemon`."""
    monkeypatch.setenv("PINFEED_ADDRESS", daemon.address)


@pytest.fixture
def nothing_is_left():
    """Every process that a test has started through `multiprocessing` ends with it."""
    yield

    def left():
        gc.collect()  # iterators that an exception's frames hold. Does nothing while another thread collects
        return multiprocessing.active_children()

    eventually(left, lambda: not left())


@pytest.fixture(scope="session")
def warm_torch():
    """Starts programs that have imported torch already: see `WarmPython`."""
    running = WarmPython("import torch, pinfeed, loader_datasets")
    yield running
    running.close()


@pytest.fixture(scope="session")
def arrays(tmp_path_factory):
    """64 samples of 3000 numbers, each of another value (batches of 4 are not small), and their ids. Not to be written to."""
    folder = tmp_path_factory.mktemp("arrays")
    numpy.save(folder / "big.npy", numpy.arange(64 * 3000, dtype=numpy.int64).reshape(64, 3000))
    numpy.save(folder / "id.npy", numpy.arange(64))
    return folder


import pinfeed  # noqa: E402 - found only now, as what follows
from fake_library import fake, fake_path  # noqa: E402, F401 - fixtures
from withstand.hardship import eventually  # noqa: E402
