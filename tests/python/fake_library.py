# SPDX-License-Identifier: Apache-2.0
"""The package over a library that needs no daemon (fake_libpinfeed.c): the fixtures `fake` and `fake_path`, and what its feeds give."""

import contextlib
import ctypes
import gc
import json
import pathlib
import subprocess

import pytest

import pinfeed
from pinfeed._base import abi

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def fake_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("fake") / "libpinfeed.so"
    include = HERE.parents[1] / "client" / "include"
    subprocess.run(
        ["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-I{include}", HERE / "fake_libpinfeed.c", "-o", path],
        check=True,
    )
    # What is imported stays. Without this each gc.collect() of the tests looks through PyTorch's objects, for 0.08 s.
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401
    gc.collect()
    gc.freeze()
    return str(path)


@pytest.fixture
def fake(fake_path, monkeypatch):
    """The package over the fake library. Calling it sets FAKE_* variables and opens a feed."""
    monkeypatch.setenv("PINFEED_LIBRARY", fake_path)
    monkeypatch.setattr(abi, "_loaded", [])

    def open_feed(dataset="/data/x", *, settings=None, **options):
        for key, value in (settings or {}).items():
            monkeypatch.setenv(f"FAKE_{key}", str(value))
        options = {"batch_size": 4, "framework": "numpy", "address": "/nowhere", **options}
        if options["framework"] == "torch":
            pytest.importorskip("torch")
        return pinfeed.open(dataset, **options)

    gc.collect()  # earlier tests' feeds are not to be counted in this one
    open_feed.c = ctypes.CDLL(fake_path)
    open_feed.c.fake_spec.restype = ctypes.c_char_p
    open_feed.c.fake_forget_spec()
    open_feed.copied = lambda feed: open_feed.c.fake_copied(feed._handle)
    open_feed.spec_text = lambda: open_feed.c.fake_spec().decode()
    open_feed.spec = lambda: json.loads(open_feed.spec_text())
    open_feed.seeks = lambda feed: open_feed.c.fake_seeks(feed._handle)
    return open_feed


def labels(feed):
    return [batch.label.tolist() for batch in feed]


EPOCH = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def epoch(number):
    return [[100 * number + label for label in batch] for batch in EPOCH]


def consume(feed, batches):
    got = []
    for batch in feed:
        got.append(batch.label.tolist())
        if len(got) == batches:
            break
    return got
