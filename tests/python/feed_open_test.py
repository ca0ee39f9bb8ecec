# SPDX-License-Identifier: Apache-2.0
"""Opening a feed, over a library that needs no daemon: the spec, errors, the library itself, rank and world size."""

import gc
import importlib.machinery
import pathlib
import pickle
import sys
import types
import weakref

import numpy
import pytest

import pinfeed
from pinfeed._base import abi, client_name, places


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
    fake("./lib", masks={"mask"}, fields_unchanged={"label", "depth"})
    assert [fake.spec()[name] for name in ("masks", "fields_unchanged")] == [["mask"], ["depth", "label"]]
    fake("./lib", fields=map(str, ("label", "image")))
    assert fake.spec()["fields"] == ["label", "image"]
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
    assert client_name.default_name() == name


def test_devices(fake):
    for host in (None, "cpu"):
        fake(device=host).close()
        assert fake.spec()["backend"] == "HOST"
    for gpu in ("cuda:1", 1, numpy.int64(1), numpy.array(1), "cuda"):
        fake(device=gpu, framework="torch").close()  # a daemon without a GPU: the tensors would be moved there
        assert fake.spec()["backend"] == "AUTO"
    fake(device="cuda:0", backend="vmm-fd", framework="torch").close()
    assert fake.spec()["backend"] == "VMM_FD"
    for backend in ("vmm-fd", "cuda-ipc"):
        with pytest.raises(pinfeed.InvalidArgumentError, match=f"backend: '{backend}' is for tensors on a GPU"):
            fake(backend=backend)
    for wrong in ("gpu", "cuda:", "cuda:x", "cuda:-1", -1, True, numpy.bool_(True), numpy.array(True), 1.5):
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


@pytest.mark.parametrize(
    "kind, code",
    [
        (pinfeed.InvalidArgumentError, pinfeed.Code.INVALID_ARGUMENT),
        (pinfeed.UnexpectedArgumentError, pinfeed.Code.INVALID_ARGUMENT),
        (pinfeed.NotFoundError, pinfeed.Code.NOT_FOUND),
        (pinfeed.DeadlineExceededError, pinfeed.Code.DEADLINE_EXCEEDED),
        (pinfeed.Error, pinfeed.Code.UNKNOWN),
    ],
)
def test_errors_that_are_raised_again_with_another_text_stay_what_they_are(kind, code):
    error = kind("epoch 3: it was refused")
    assert (error.code, str(error)) == (code, "epoch 3: it was refused")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, str(copy)) == (kind, code, str(error))


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
    monkeypatch.setattr(abi.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(places, "PACKAGE", tmp_path / "site" / "pinfeed")
    with pytest.raises(pinfeed.NotFoundError) as caught:
        fake()
    for words in ("libpinfeed.so", str(tmp_path / "site" / "pinfeed" / "lib"), "system's library path", "wheel", "install", "PINFEED_LIBRARY"):
        assert words in str(caught.value)


def test_a_library_that_is_not_built(fake, monkeypatch, tmp_path):
    monkeypatch.delenv("PINFEED_LIBRARY")
    monkeypatch.setattr(abi.ctypes.util, "find_library", lambda name: None)
    header = tmp_path / "client" / "include" / "pinfeed" / "pinfeed.h"
    header.parent.mkdir(parents=True)
    header.touch()
    monkeypatch.setattr(places, "PACKAGE", tmp_path / "client" / "python" / "pinfeed")
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
        ({"SLURM_NTASKS": "2"}, {}, (0, 1, "default")),
        ({"WORLD_SIZE": "1"}, {}, (0, 1, "default")),
        ({"WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, {}, (1, 2, "SLURM_PROCID/SLURM_NTASKS")),
        ({"RANK": "3"}, {"rank": 3, "world_size": 4}, (3, 4, "arguments")),
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


@pytest.mark.parametrize("name, missing", [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK"), ("SLURM_PROCID", "SLURM_NTASKS")])
def test_half_a_rank_is_refused(fake, monkeypatch, name, missing):
    monkeypatch.setenv(name, "3")
    with pytest.raises(pinfeed.InvalidArgumentError, match=f"{name}='3' and no {missing}: set both"):
        fake()


def test_rank_of_lightnings_first_node(fake, monkeypatch):
    for name, value in (("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("NODE_RANK", "0")):
        monkeypatch.setenv(name, value)
    fake()
    assert (fake.spec()["rank"], fake.spec()["world_size"]) == (1, 4)
    monkeypatch.setenv("NODE_RANK", "1")  # of two nodes it would be rank 3, of four rank 1
    with pytest.raises(pinfeed.InvalidArgumentError, match="once torch.distributed is initialised"):
        fake()


class ProcessGroup:
    """torch.distributed, as far as `find_rank` looks; initialised once `start` was called."""

    def __init__(self, monkeypatch):
        self.place = None
        monkeypatch.setitem(sys.modules, "torch.distributed", self)

    def start(self, rank, world_size):
        self.place = rank, world_size

    def is_available(self):
        return True

    def is_initialized(self):
        return self.place is not None

    def get_rank(self):
        return self.place[0]

    def get_world_size(self):
        return self.place[1]


@pytest.fixture
def process_group(monkeypatch):
    return ProcessGroup(monkeypatch)


LOOKS = [lambda feed: next(iter(feed)), iter, len, lambda feed: feed.rank, lambda feed: feed.world_size, lambda feed: feed.rank_source]


@pytest.mark.parametrize("look", LOOKS, ids=["next", "iter", "len", "rank", "world_size", "rank_source"])
def test_a_feed_opened_before_the_process_group_becomes_that_ranks(fake, process_group, caplog, look):
    feed = fake(seed=3)
    closed = fake.c.fake_closed()
    assert (fake.spec()["rank"], fake.spec()["world_size"], len(feed)) == (0, 1, 3)
    process_group.start(1, 2)
    look(feed)
    assert (fake.spec()["rank"], fake.spec()["world_size"], fake.spec()["seed"]) == (1, 2, 3)
    assert (feed.rank, feed.world_size, feed.rank_source) == (1, 2, "torch.distributed")
    assert fake.c.fake_closed() == closed + 1
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "opened as rank 0 of 1 (from default); this process is now rank 1 of 2 (from torch.distributed)" in warning
    process_group.start(0, 4)  # what torch.distributed said stays
    assert (next(iter(feed)).index, feed.rank) in ((0, 1), (1, 1))


def test_samples_that_cannot_be_resident_are_told(fake, caplog):
    fake(resident="auto")
    assert "resident" not in fake.spec()
    assert 'samples are not kept on the GPU: the feed has no device; pass device="cuda"' in caplog.text


def test_it_goes_on_at_its_state(fake, process_group):
    feed = fake()
    for _, batch in zip(range(2), feed):
        pass
    for resumed, expected in ((fake(state=feed.state_dict()), [8, 9]), (fake(), [500, 501, 502, 503])):
        if expected[0] == 500:
            resumed.set_epoch(5)
        process_group.start(1, 1)
        assert next(iter(resumed)).label.tolist() == expected and resumed.rank == 1
        process_group.place = None


def test_a_feed_that_gave_batches_refuses_to_become_another_ranks(fake, process_group):
    feed = fake()
    iterator = iter(feed)
    next(iterator)
    process_group.start(1, 2)
    assert [batch.index for batch in iterator] == [1, 2]
    assert (len(feed), feed.rank) == (3, 0)
    with pytest.raises(pinfeed.Error, match="gave batches as rank 0 of 1 .*now rank 1 of 2 .*after init_process_group") as caught:
        iter(feed)
    assert caught.value.code == pinfeed.Code.FAILED_PRECONDITION
    process_group.start(0, 1)
    assert next(iter(feed)).epoch == 1


def test_a_launchers_variables_that_are_set_later_count(fake, monkeypatch):
    feed = fake()
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    next(iter(feed))
    assert (feed.rank, feed.world_size, feed.rank_source) == (3, 8, "RANK/WORLD_SIZE")


@pytest.mark.parametrize("options", [{"rank": 0, "world_size": 1}, {"share": "broadcast", "group": "g"}], ids=["arguments", "shared"])
def test_a_rank_that_was_given_stays(fake, process_group, options):
    feed = fake(**options)
    process_group.start(1, 2)
    next(iter(feed))
    assert (feed.rank, feed.world_size) == (0, 1)


def test_a_refusal_to_open_again_is_told_until_it_is_over(fake, process_group, monkeypatch):
    feed = fake()
    process_group.start(1, 2)
    monkeypatch.setenv("FAKE_OPEN_ERROR", "9")
    with pytest.raises(pinfeed.Error, match="refused"):
        iter(feed)
    with pytest.raises(pinfeed.Error, match="refused"):
        iter(feed)
    monkeypatch.delenv("FAKE_OPEN_ERROR")
    iter(feed)
    assert (feed.rank, feed.world_size) == (1, 2)


def test_an_open_that_fails_keeps_nothing_of_its_callers(fake):
    class Memory:
        pass

    def attempt():
        memory = Memory()
        with pytest.raises(pinfeed.Error):
            fake(settings={"OPEN_ERROR": int(pinfeed.Code.RESOURCE_EXHAUSTED)})
        return weakref.ref(memory)

    gc.disable()
    try:
        assert attempt()() is None
    finally:
        gc.enable()
