# SPDX-License-Identifier: Apache-2.0
"""What the Python package does on its own, over a library that needs no daemon (fake_libpinfeed.c)."""

import ctypes
import gc
import json
import logging
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import warnings

import numpy
import pytest

import pinfeed
from pinfeed import _abi

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def fake_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("fake") / "libpinfeed.so"
    include = HERE.parents[1] / "client" / "include"
    subprocess.run(
        ["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-I{include}", HERE / "fake_libpinfeed.c", "-o", path],
        check=True,
    )
    return str(path)


@pytest.fixture
def fake(fake_path, monkeypatch):
    """The package over the fake library. Calling it sets FAKE_* variables and opens a feed."""
    monkeypatch.setenv("PINFEED_LIBRARY", fake_path)
    monkeypatch.setattr(_abi, "_loaded", [])

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
    open_feed.spec = lambda: json.loads(open_feed.c.fake_spec())
    open_feed.seeks = lambda feed: open_feed.c.fake_seeks(feed._handle)
    return open_feed


def labels(feed):
    return [batch.label.tolist() for batch in feed]


EPOCH = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def epoch(number):
    return [[100 * number + label for label in batch] for batch in EPOCH]


# ---- epochs -------------------------------------------------------------------------------------------------------------------------


def test_each_for_is_the_next_epoch_without_a_seek(fake):
    feed = fake()
    assert [labels(feed) for _ in range(3)] == [epoch(0), epoch(1), epoch(2)]
    assert fake.seeks(feed) == 0
    assert len(feed) == 3 and feed.dataset_size == 10


def test_break_starts_the_next_epoch_afresh(fake):
    feed = fake()
    for batch in feed:
        assert batch.label.tolist() == EPOCH[0]
        break
    assert labels(feed) == epoch(1)


def test_break_at_the_last_batch_needs_no_seek(fake):
    feed = fake()
    for batch in feed:
        if batch.last_of_epoch:
            break
    assert labels(feed) == epoch(1)
    assert fake.seeks(feed) == 0


def test_an_iterator_that_gave_nothing_costs_no_epoch(fake):
    feed = fake()
    iter(feed)
    iter(feed)
    assert labels(feed) == epoch(0)


def test_set_epoch_chooses_the_epoch_of_the_next_for(fake):
    feed = fake()
    feed.set_epoch(7)
    assert feed.epoch == 7
    assert labels(feed) == epoch(7)
    assert labels(feed) == epoch(8)
    feed.sampler.set_epoch(2)
    assert labels(feed) == epoch(2)
    with pytest.raises(pinfeed.InvalidArgumentError):
        feed.set_epoch(-1)


def test_set_epoch_before_each_for_costs_no_seek(fake):
    feed = fake()
    for number in range(3):
        feed.set_epoch(number)
        assert labels(feed) == epoch(number)
    assert fake.seeks(feed) == 0


def test_set_epoch_does_not_disturb_a_loop(fake):
    feed = fake()
    got = []
    for batch in feed:
        feed.set_epoch(5)
        got.append(batch.label.tolist())
    assert got == epoch(0)
    assert labels(feed) == epoch(5)


def test_set_epoch_can_repeat_an_epoch(fake):
    feed = fake()
    assert labels(feed) == epoch(0)
    feed.set_epoch(0)
    assert labels(feed) == epoch(0)


def test_after_the_last_epoch_there_is_nothing(fake):
    feed = fake(settings={"EPOCHS": 2}, epochs=2)
    assert [labels(feed) for _ in range(4)] == [epoch(0), epoch(1), [], []]
    iterator = iter(feed)
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    feed.set_epoch(9)
    assert labels(feed) == []
    feed.set_epoch(1)
    assert labels(feed) == epoch(1)


def test_an_epoch_whose_end_was_not_announced_ends_all_the_same(fake):
    feed = fake(settings={"SILENT_END": 1})
    assert [labels(feed) for _ in range(3)] == [epoch(0), epoch(1), epoch(2)]
    # The first batch of epoch 3 is already here. It is given in epoch 3 and only there.
    feed.set_epoch(3)
    assert labels(feed) == epoch(3)
    feed.set_epoch(1)
    assert labels(feed) == epoch(1)


def test_state_between_epochs_whose_end_was_not_announced(fake):
    feed = fake(settings={"SILENT_END": 1})
    labels(feed)
    state = feed.state_dict()
    other = fake()
    other.load_state_dict(state)
    assert labels(other) == epoch(1)


def test_a_second_iterator_ends_the_first(fake):
    feed = fake()
    first = iter(feed)
    next(first)
    second = iter(feed)
    assert next(second).epoch == 1
    with pytest.raises(RuntimeError, match="one at a time"):
        next(first)
    assert next(second).index == 1


def test_a_shared_feed_skips_what_is_left_of_an_epoch(fake):
    feed = fake(share="broadcast", group="g", group_size=2)
    assert consume(feed, 1) == epoch(0)[:1]
    assert labels(feed) == epoch(1)
    assert fake.seeks(feed) == 0
    assert feed.held == 0


def test_a_shared_feed_joins_in_the_epoch_that_runs(fake):
    feed = fake(share="broadcast", group="g")
    fake.c.pf_seek_epoch(feed._handle, ctypes.c_uint64(5))
    assert labels(feed) == epoch(5)
    assert labels(feed) == epoch(6)


# ---- position -----------------------------------------------------------------------------------------------------------------------


def consume(feed, batches):
    got = []
    for batch in feed:
        got.append(batch.label.tolist())
        if len(got) == batches:
            break
    return got


@pytest.mark.parametrize("batches", [1, 2])
def test_resume_goes_on_in_the_epoch(fake, batches):
    feed = fake()
    labels(feed)
    got = consume(feed, batches)
    state = json.loads(json.dumps(feed.state_dict()))
    other = fake()
    other.load_state_dict(state)
    assert got + labels(other) == epoch(1)
    assert labels(other) == epoch(2)


def test_resume_goes_on_although_set_epoch_names_that_epoch(fake):
    feed = fake()
    labels(feed)
    consume(feed, 1)
    other = fake()
    other.load_state_dict(feed.state_dict())
    other.set_epoch(1)
    assert other.state_dict() == feed.state_dict()
    assert labels(other) == epoch(1)[1:]


def test_resume_with_another_epoch_chosen(fake):
    feed = fake()
    consume(feed, 1)
    feed.load_state_dict(feed.state_dict())
    feed.set_epoch(4)
    assert labels(feed) == epoch(4)


def test_state_within_the_last_step_resumes_with_an_empty_rest(fake):
    feed = fake()
    consume(feed, 3)
    state = feed.state_dict()
    other = fake()
    other.load_state_dict(state)
    assert [labels(other) for _ in range(2)] == [[], epoch(1)]
    other.load_state_dict(state)
    other.set_epoch(3)
    assert labels(other) == epoch(3)


def test_state_after_an_epoch_resumes_with_the_next(fake):
    feed = fake()
    labels(feed)
    other = fake()
    other.load_state_dict(feed.state_dict())
    assert labels(other) == epoch(1)


def test_state_after_set_epoch_is_that_epochs_start(fake):
    feed = fake()
    consume(feed, 2)
    feed.set_epoch(6)
    other = fake()
    other.load_state_dict(feed.state_dict())
    assert labels(other) == epoch(6)


def test_load_state_ends_a_running_iterator(fake):
    feed = fake()
    iterator = iter(feed)
    next(iterator)
    feed.load_state_dict(feed.state_dict())
    with pytest.raises(RuntimeError):
        next(iterator)


@pytest.mark.parametrize("state", [{}, None, 3, {"version": 2, "epoch": 0, "epoch_ended": False, "cursor": {}}, {"version": 1, "epoch": 0, "epoch_ended": False, "cursor": {}}])
def test_what_is_no_state_is_refused(fake, state):
    feed = fake()
    with pytest.raises(pinfeed.InvalidArgumentError):
        feed.load_state_dict(state)
    assert labels(feed) == epoch(0)


# ---- batches ------------------------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_named_tuple(fake):
    batch = next(iter(fake()))
    image, label = batch
    assert image is batch.image is batch[0] and label is batch.label
    assert batch._fields == ("image", "label")
    assert list(batch._asdict()) == ["image", "label"]
    assert (batch.epoch, batch.index, batch.skipped, batch.last_of_epoch) == (0, 0, 0, False)
    moved = type(batch)(*(value.copy() for value in batch))
    assert moved.label.tolist() == label.tolist() and moved._fields == batch._fields and moved.raw == {}
    assert pickle.loads(pickle.dumps(batch))[1].tolist() == label.tolist()
    assert repr(batch).startswith("Batch(image=array(")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_slot_returns_with_the_last_view(fake, framework):
    feed = fake(framework=framework)
    before = fake.c.fake_released()
    images, target = next(iter(feed))
    part = images[1:, 0]
    del images
    gc.collect()
    assert feed.held == 1
    del target
    gc.collect()
    assert feed.held == 1
    assert part[0, 0] == 1
    del part
    assert feed.held == 0
    assert fake.c.fake_released() == before + 1


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_views_outlive_the_feed(fake, framework):
    feed = fake(framework=framework)
    before = fake.c.fake_released()
    with feed:
        images, _ = next(iter(feed))
    with pytest.raises(pinfeed.Error, match="closed"):
        next(iter(feed))
    feed.close()
    del feed
    assert images[3, 1, 2] == 3
    del images, _
    assert fake.c.fake_released() == before + 1


def test_the_last_view_may_die_on_another_thread(fake):
    feed = fake(framework="torch")
    box = [next(iter(feed))]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert feed.held == 0


def test_a_feed_whose_construction_fails_is_closed_once(fake, monkeypatch):
    def fail(*_):
        raise MemoryError

    before = fake.c.fake_closed()
    monkeypatch.setattr("pinfeed.feed.BatchMaker", fail)
    with pytest.raises(MemoryError):
        fake()
    gc.collect()
    assert fake.c.fake_closed() == before + 1


def test_without_numpy_open_says_what_to_install(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(pinfeed.Error, match="needs NumPy") as caught:
        fake(framework="auto")
    assert caught.value.code == pinfeed.Code.FAILED_PRECONDITION


def test_a_feed_nobody_refers_to_is_closed(fake):
    before = fake.c.fake_closed()
    feed = fake()
    next(iter(feed))
    del feed
    gc.collect()
    assert fake.c.fake_closed() == before + 1


def test_read_only_slots(fake):
    feed = fake(settings={"READ_ONLY": 1})
    images, _ = next(iter(feed))
    assert not images.flags.writeable
    with pytest.raises(ValueError):
        images[0] = 1
    with pytest.raises(ValueError):
        images.flags.writeable = True
    assert feed.held == 1


def test_read_only_slots_are_copied_for_torch(fake):
    feed = fake(settings={"READ_ONLY": 1}, framework="torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(iter(feed))
    assert feed.held == 0 and batch.raw == {}
    batch.image[0] = 7
    view = fake(settings={"READ_ONLY": 1}, framework="torch", zero_copy=True)
    kept = next(iter(view))
    assert view.held == 1 and kept.label.tolist() == EPOCH[0]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_copies_on_request(fake, framework):
    feed = fake(framework=framework, zero_copy=False)
    kept = list(feed)
    assert feed.held == 0
    assert [batch.label.tolist() for batch in kept] == EPOCH


def test_bfloat16(fake):
    torch = pytest.importorskip("torch")

    feed = fake(settings={"DTYPE": 11}, framework="torch")
    assert next(iter(feed)).image.dtype == torch.bfloat16
    assert next(iter(fake(framework="torch", zero_copy=False))).image.dtype == torch.bfloat16
    array = next(iter(fake())).image
    assert array.dtype.name in ("bfloat16", "uint16") and array.itemsize == 2


def test_a_type_that_torch_lacks(fake):
    torch = pytest.importorskip("torch")

    feed = fake(settings={"DTYPE": 4}, framework="torch")
    if hasattr(torch, "uint16"):
        assert next(iter(feed)).image.dtype == torch.uint16
    else:
        with pytest.raises(pinfeed.InvalidArgumentError, match='uint16.*framework="numpy"'):
            next(iter(feed))


def test_all_slots_held_warns_and_waits(fake):
    feed = fake(settings={"SLOTS": 3}, timeout=0.5)
    kept = []
    with pytest.warns(pinfeed.SlotsHeldWarning, match="all 3 slots"):
        with pytest.raises(pinfeed.DeadlineExceededError):
            for batch in fake_endless(feed):
                kept.append(batch)
    assert [batch.label.tolist() for batch in kept] == EPOCH
    assert feed.wait_seconds >= 0.4
    del kept[1:], batch
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        assert next(iter(feed)).epoch == 1


def fake_endless(feed):
    while True:
        yield from feed


def test_close_ends_another_threads_wait(fake):
    feed = fake(settings={"SLOTS": 1})
    kept = next(iter(feed))
    failures = []
    waiting = threading.Event()

    def wait():
        waiting.set()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                next(iter(feed))
        except pinfeed.Error as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    feed.close()
    thread.join(30)
    assert len(failures) == 1 and failures[0].code in (pinfeed.Code.CANCELLED, pinfeed.Code.FAILED_PRECONDITION)
    assert kept.label.tolist() == EPOCH[0]


def test_interrupting_a_wait(fake, fake_path):
    code = """
import pinfeed, signal, warnings, _thread, threading
warnings.simplefilter("ignore")
feed = pinfeed.open("/x", batch_size=4, address="/nowhere", framework="numpy")
kept = next(iter(feed))
timer = threading.Timer(0.3, _thread.interrupt_main)
timer.start()
try:
    next(iter(feed))
except KeyboardInterrupt:
    del kept
    print("interrupted", next(iter(feed)).label.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FAKE_SLOTS": "1"}, capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted [100, 101, 102, 103]\n", done.stderr


def test_a_bad_sample_is_an_error(fake):
    feed = fake(settings={"FAILS_AT": 1})
    with pytest.raises(pinfeed.DataLossError, match="cat.jpg"):
        labels(feed)


def test_library_messages_go_to_logging(fake, caplog):
    feed = fake()
    with caplog.at_level(logging.INFO, "pinfeed"):
        fake.c.fake_log(2, b"reconnected\xff")
        fake.c.fake_log(1, b"hello")
        next(iter(feed))
    records = [(record.levelname, record.message) for record in caplog.records]
    assert ("WARNING", "reconnected\ufffd") in records and ("INFO", "hello") in records


# ---- opening ------------------------------------------------------------------------------------------------------------------------


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
    fake("pets", share="queue", group="g", group_size=2)
    assert fake.spec()["dataset"] == {"name": "pets"}
    assert (fake.spec()["sharing"], fake.spec()["group"], fake.spec()["group_size"]) == ("QUEUE", "g", 2)
    fake(pathlib.Path("lib"), format="tokens", sequence_length=128, stride=64, token_dtype=numpy.uint32, seed=numpy.int64(3))
    assert fake.spec()["dataset"] == {"path": "/usr/lib", "format": "tokens", "sequence_length": 128, "stride": 64, "token_dtype": "uint32"}


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "CWH"},
        {"on_bad_sample": "retry"},
        {"share": "all"},
        {"group": "g"},
        {"framework": "jax"},
        {"rank": 1},
        {"world_size": 0, "rank": 0},
        {"epochs": 0},
        {"transforms": [object()]},
    ],
)
def test_arguments_that_cannot_be(fake, options):
    with pytest.raises(pinfeed.InvalidArgumentError) as caught:
        fake(**options)
    assert caught.value.code == pinfeed.Code.INVALID_ARGUMENT
    assert isinstance(caught.value, ValueError)
    assert next(iter(options)) in str(caught.value)


def test_a_device_that_is_not_there(fake):
    with pytest.raises(pinfeed.Error, match="cuda:0"):
        fake(device="cuda:0")
    fake(device="cpu").close()


@pytest.mark.parametrize("value", [1.5, "4", None])
def test_numbers_must_be_numbers(fake, value):
    with pytest.raises(TypeError):
        fake(batch_size=value)


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
    monkeypatch.setenv("PINFEED_LIBRARY", "libc.so.6")
    with pytest.raises(pinfeed.Error, match="pf_version"):
        fake()


def test_a_library_of_another_abi(fake):
    with pytest.raises(pinfeed.Error, match="7.2.1"):
        fake(settings={"VERSION": (7 << 16) | (2 << 8) | 1})


def test_status_classes_and_names(fake):
    assert pinfeed.status("/nowhere") == {"state": "ready"}
    assert pinfeed.datasets("/nowhere")["datasets"][0]["name"] == "pets"
    assert fake("pets").classes == ["cat", "dog"]
    assert fake("/pets").classes == []


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
