# SPDX-License-Identifier: Apache-2.0
"""Opening a feed, over a library that needs no daemon: the spec, errors, the library itself, rank and world size."""

import importlib.machinery
import pathlib
import pickle
import sys
import types

import numpy
import pytest

import pinfeed
from pinfeed import _abi, _client_name


def test_the_spec(fake, monkeypatch):
    monkeypatch.chdir("/usr")
    fake("./lib", shuffle=True, seed=2**63, drop_last=True, layout="hwc", on_bad_sample="skip", slots=5, sample_ids=True, epochs=3, rank=1, world_size=4)
    assert fake.spec() == {
        "dataset": {"path": "/usr/lib"},
        "batch_size": 4,
        "order": "SHUFFLE",
        "seed": 2**63,
        "drop_last": True,
        "rank": 1,
        "world_size": 4,
        "transforms": [],
        "image_layout": "HWC",
        "on_bad_sample": "SKIP",
        "sample_ids": True,
        "backend": "HOST",
        "epochs": 3,
        "slots": 5,
    }
    fake("./lib", valid=True, masks="mask", fields_unchanged=("depth", "label"))
    assert [fake.spec()[name] for name in ("valid", "masks", "fields_unchanged")] == [True, ["mask"], ["depth", "label"]]
    for same in ("uint16", "u2", "<u2", "=u2", numpy.uint16, numpy.dtype("<u2")):
        fake(pathlib.Path("lib"), format="tokens", sequence_length=128, token_dtype=same)
        assert fake.spec()["dataset"]["token_dtype"] == "uint16"
    fake("./lib", exif_orientation=False)
    assert fake.spec()["ignore_exif_orientation"] is True
    fake("pets", share="queue", group="g", group_size=2)
    assert fake.spec()["dataset"] == {"name": "pets"}
    assert (fake.spec()["sharing"], fake.spec()["group"], fake.spec()["group_size"]) == ("QUEUE", "g", 2)
    fake(pathlib.Path("lib"), format="tokens", sequence_length=128, stride=64, token_dtype=numpy.uint32, seed=numpy.int64(3))
    assert fake.spec()["dataset"] == {"path": "/usr/lib", "format": "tokens", "sequence_length": 128, "stride": 64, "token_dtype": "uint32"}


@pytest.mark.parametrize(
    ("argv", "module", "name"),
    [
        (["/jobs/resnet/train.py", "--lr", "1"], None, "train.py"),
        (["train.py"], None, "train.py"),
        (["/usr/lib/python3/jobs/train/__main__.py"], "jobs.train.__main__", "jobs.train"),
        (["/usr/lib/python3/jobs/train.py"], "jobs.train", "jobs.train"),
        (["/jobs/zipped.pyz"], "__main__", "zipped.pyz"),
        (["/jobs/two\nlines\udcff.py"], None, "two?lines?.py"),
        (["ä" * 65], None, "ä" * 64),
        ([""], None, None),
        (["-c"], None, None),
        ([], None, None),
    ],
)
def test_a_feed_without_a_name_has_that_of_the_program(monkeypatch, argv, module, name):
    main = types.ModuleType("__main__")
    main.__spec__ = None if module is None else importlib.machinery.ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", argv)
    assert _client_name.default_name() == name


def test_devices(fake):
    for host in (None, "cpu"):
        fake(device=host).close()
        assert fake.spec()["backend"] == "HOST"
    for gpu in ("cuda:1", 1, "cuda"):
        fake(device=gpu, framework="torch").close()  # a daemon without a GPU: the tensors would be moved there
        assert fake.spec()["backend"] == "AUTO"
    fake(device="cuda:0", backend="vmm-fd", framework="torch").close()
    assert fake.spec()["backend"] == "VMM_FD"
    for wrong in ("gpu", "cuda:", "cuda:x", "cuda:-1", -1, True, 1.5):
        with pytest.raises(pinfeed.InvalidArgumentError, match="device: "):
            fake(device=wrong)
    with pytest.raises(pinfeed.InvalidArgumentError, match="'numpy' has no tensors on a GPU"):
        fake(device="cuda:0", framework="numpy")
    with pytest.raises(pinfeed.InvalidArgumentError, match="'cupy' has no tensors on the host"):
        fake(framework="cupy")


@pytest.mark.parametrize(
    "code, kind",
    [
        (3, ValueError),
        (4, TimeoutError),
        (5, FileNotFoundError),
        (7, PermissionError),
        (8, pinfeed.ResourceExhaustedError),
        (12, pinfeed.Error),
        (14, ConnectionError),
        (99, pinfeed.Error),
    ],
)
def test_errors_have_a_kind_a_code_and_the_message(fake, code, kind):
    with pytest.raises(kind) as caught:
        fake(settings={"OPEN_ERROR": code})
    assert isinstance(caught.value, pinfeed.Error)
    assert caught.value.code == (code if code < 99 else pinfeed.Code.UNKNOWN)
    assert str(caught.value) == "dataset: open: it was\nrefused"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.code, str(copy)) == (type(caught.value), caught.value.code, str(caught.value))


def test_a_name_that_is_a_file_gets_a_hint(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("train").mkdir()
    with pytest.raises(pinfeed.NotFoundError, match='write "./train"'):
        fake("train", settings={"OPEN_ERROR": 5})


def test_libraries_that_cannot_be_used(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("PINFEED_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(pinfeed.NotFoundError, match="none.so"):
        fake()
    with pytest.raises(pinfeed.NotFoundError, match="PINFEED_LIBRARY names it.*make build"):
        fake()
    monkeypatch.setenv("PINFEED_LIBRARY", "libc.so.6")
    with pytest.raises(pinfeed.Error, match="pf_version"):
        fake()


def test_a_library_that_is_nowhere(fake, monkeypatch, tmp_path):
    monkeypatch.delenv("PINFEED_LIBRARY")
    monkeypatch.setattr(_abi.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(_abi, "__file__", str(tmp_path / "site" / "pinfeed" / "_abi.py"))
    with pytest.raises(pinfeed.NotFoundError) as caught:
        fake()
    for words in ("libpinfeed.so", str(tmp_path / "site" / "pinfeed" / "lib"), "system's library path", "make build", "install", "PINFEED_LIBRARY"):
        assert words in str(caught.value)


def test_a_library_that_is_not_built(fake, monkeypatch, tmp_path):
    monkeypatch.delenv("PINFEED_LIBRARY")
    monkeypatch.setattr(_abi.ctypes.util, "find_library", lambda name: None)
    header = tmp_path / "client" / "include" / "pinfeed" / "pinfeed.h"
    header.parent.mkdir(parents=True)
    header.touch()
    monkeypatch.setattr(_abi, "__file__", str(tmp_path / "client" / "python" / "pinfeed" / "_abi.py"))
    with pytest.raises(pinfeed.NotFoundError, match=f"{tmp_path}/build/release/client.*run `make build` in {tmp_path}"):
        fake()


def test_a_library_of_another_abi(fake):
    with pytest.raises(pinfeed.Error, match="7.2.1"):
        fake(settings={"VERSION": (7 << 16) | (2 << 8) | 1})


def test_status_classes_and_names(fake):
    assert pinfeed.status("/nowhere") == {"state": "ready"}
    assert pinfeed.datasets("/nowhere")["datasets"][0]["name"] == "pets"
    assert fake("pets").classes == ["cat", "dog"]
    assert fake("/pets").classes == ["cat", "dog"]
    assert fake("/pets", settings={"CLASSES": 0}).classes == []


# ---- rank ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment, options, expected",
    [
        ({}, {}, (0, 1, "default")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, {}, (3, 8, "RANK/WORLD_SIZE")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, {"rank": 0, "world_size": 2}, (0, 2, "arguments")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, {"share": "broadcast", "group": "g"}, (0, 1, "share")),
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, {}, (3, 8, "RANK/WORLD_SIZE")),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, {}, (1, 2, "SLURM_PROCID/SLURM_NTASKS")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, {}, (0, 1, "default")),
        ({"RANK": "3"}, {}, (0, 1, "default")),
    ],
)
def test_rank(fake, monkeypatch, environment, options, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    feed = fake(**options)
    assert (feed.rank, feed.world_size, feed.rank_source) == expected
    assert (fake.spec()["rank"], fake.spec()["world_size"]) == expected[:2]


def test_rank_of_an_environment_that_makes_no_sense(fake, monkeypatch):
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(pinfeed.InvalidArgumentError, match="RANK='x'"):
        fake()
