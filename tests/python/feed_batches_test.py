# SPDX-License-Identifier: Apache-2.0
"""What a batch is and how long its slot is kept, over a library that needs no daemon."""

import contextlib
import copy
import gc
import importlib
import pickle
import sys
import threading
import types
import warnings

import numpy
import pytest
from fake_library import EPOCH

import pinfeed
from pinfeed._feed import device as _device


def test_a_batch_is_a_named_tuple(fake):
    batch = next(iter(fake()))
    image, label = batch
    assert image is batch.image is batch[0] is batch["image"] and label is batch.label is batch[-1]
    assert batch[:1] == (image,)
    with pytest.raises(KeyError, match="'labels'.*only 'image', 'label'"):
        batch["labels"]
    assert batch._fields == ("image", "label")
    assert list(batch._asdict()) == ["image", "label"]
    assert (batch.epoch, batch.index, batch.skipped, batch.last_of_epoch) == (0, 0, 0, False)
    moved = type(batch)(*(value.copy() for value in batch))
    assert moved.label.tolist() == label.tolist() and moved._fields == batch._fields and moved.raw == {}
    assert repr(batch).startswith("Batch(image=array(")


@pytest.mark.parametrize("clone, shares", [(copy.copy, True), (copy.deepcopy, False), (lambda batch: pickle.loads(pickle.dumps(batch)), False)])
def test_a_copy_of_a_batch_is_a_batch_without_the_slot(fake, clone, shares):
    feed = fake()
    batch = next(iter(feed))
    again = clone(batch)
    assert isinstance(again, pinfeed.Batch) and again._fields == ("image", "label") and again.raw == {}
    assert (again.epoch, again.index, again.skipped, again.last_of_epoch) == (0, 0, 0, False)
    assert again.image.tolist() == batch.image.tolist() and again["label"].tolist() == EPOCH[0]
    assert (again.image is batch.image) == shares
    del batch
    gc.collect()
    assert feed.held == shares
    assert type(clone(again)) is type(again)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_slot_returns_with_the_last_view(fake, framework):
    feed = fake(framework=framework)
    before = fake.c.fake_released()
    images, target = next(iter(feed))
    part = images[1:, 0]
    del images
    gc.collect()
    assert feed.held == 1
    assert part[0, 0] == 1
    del part
    assert feed.held == 0  # labels are small: a copy
    assert fake.c.fake_released() == before + 1
    assert target.tolist() == EPOCH[0]


def test_accelerates_loader_takes_a_feed(fake, monkeypatch, request):
    """Without Accelerate, whose own tests are those of tests/packaging and tests/gpu."""
    for name in ("accelerate", "accelerate.data_loader", "accelerate.state", "accelerate.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    made = []
    sys.modules["accelerate.data_loader"].DataLoaderShard = type("DataLoaderShard", (), {"__init__": lambda loader, *_, **options: made.append(options)})
    sys.modules["accelerate.state"].PartialState = type("PartialState", (), {"_shared_state": {}})
    sys.modules["accelerate.utils"].send_to_device = None
    monkeypatch.delitem(sys.modules, "pinfeed.accelerate", raising=False)
    request.addfinalizer(lambda: sys.modules.pop("pinfeed.accelerate", None))
    loader = importlib.import_module("pinfeed.accelerate").Loader
    feed = fake(framework="torch")
    assert loader(feed).feed is feed and len(made) == 1
    with pytest.raises(pinfeed.InvalidArgumentError, match='output="batch"'):
        loader(fake(framework="torch", output="dict"))


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


def test_a_batch_is_released_once_if_memory_runs_out_while_it_is_taken(fake):
    class Full(dict):
        def __setitem__(self, handle, lease):
            raise MemoryError

    feed = fake()
    before = fake.c.fake_released()
    feed._maker.live = Full()
    with pytest.raises(MemoryError):
        next(iter(feed))
    assert fake.c.fake_released() == before + 1
    feed._maker.live = {}
    assert len(list(feed)) == len(EPOCH) - 1
    assert fake.c.fake_released() == before + len(EPOCH)


def test_a_feed_whose_construction_fails_is_closed_once(fake, monkeypatch):
    def fail(*_):
        raise MemoryError

    before = fake.c.fake_closed()
    monkeypatch.setattr("pinfeed._feed.stream.BatchMaker", fail)
    with pytest.raises(MemoryError):
        fake()
    gc.collect()
    assert fake.c.fake_closed() == before + 1


def test_without_numpy_open_says_what_to_install(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(pinfeed.Error, match="needs numpy") as caught:
        fake(framework="auto")
    assert caught.value.code == pinfeed.Code.FAILED_PRECONDITION


def test_a_batch_is_not_rebuilt_from_one_iterator(fake):
    """As transformers' Trainer does with tuples: the field would be a generator."""
    batch = next(iter(fake()))
    assert type(batch)(*batch).label is batch.label
    with pytest.raises(TypeError, match=r'made of \d tensors, not of 1.*output="dict"'):
        type(batch)(tensor for tensor in batch)


def test_a_feed_nobody_refers_to_is_closed(fake):
    before = fake.c.fake_closed()
    feed = fake()
    next(iter(feed))
    del feed
    gc.collect()
    assert fake.c.fake_closed() == before + 1


def test_read_only_slots(fake):
    feed = fake(settings={"READ_ONLY": 1}, zero_copy=True)
    images, _ = next(iter(feed))
    assert not images.flags.writeable
    with pytest.raises(ValueError):
        images[0] = 1
    with pytest.raises(ValueError):
        images.flags.writeable = True
    assert feed.held == 1


def test_slots_of_a_group_are_copied(fake):
    assert all(batch.image.flags.writeable for batch in list(fake(settings={"READ_ONLY": 1})))
    feed = fake(settings={"READ_ONLY": 1}, framework="torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(iter(feed))
    assert feed.held == 0
    batch.image[0] = 7
    assert numpy.from_dlpack(batch.raw["image"])[0, 1, 5] == 7
    view = fake(settings={"READ_ONLY": 1}, framework="torch", zero_copy=True)
    kept = next(iter(view))
    assert view.held == 1 and kept.label.tolist() == EPOCH[0]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_copies_on_request(fake, framework):
    feed = fake(framework=framework, zero_copy=False)
    kept = list(feed)
    assert (feed.held, feed.copied) == (0, 0)
    assert [batch.label.tolist() for batch in kept] == EPOCH
    assert [numpy.from_dlpack(batch.raw["label"]).tolist() for batch in kept] == EPOCH


def test_batches_that_hold_no_slot_are_not_told_to_hold_too_many(fake, gpu):
    """A group of as many members as slots leaves none to hold for each."""
    group = {"share": "broadcast", "group": "g", "group_size": 4}
    feeds = [fake(settings={"READ_ONLY": 1, "SLOTS": 4}, **group), fake(settings={"SLOTS": 4}, zero_copy=False, **group), gpu(9, zero_copy=None, **group)]
    for feed in feeds:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(feed)) == len(EPOCH)
        assert (feed.held, feed.copied, fake.copied(feed)) == (0, 0, 0)


@pytest.mark.parametrize("framework, zero_copy, settings", [("numpy", None, {}), ("numpy", True, {}), ("numpy", True, {"READ_ONLY": 1}), ("torch", True, {})])
def test_the_last_free_slot_is_never_held(fake, framework, zero_copy, settings):
    """The batch that would take it comes as a copy, in memory of its own that can be written to and taken over."""
    feed = fake(settings={"SLOTS": 3, **settings}, framework=framework, zero_copy=zero_copy, timeout=60)
    with pytest.warns(pinfeed.SlotsHeldWarning, match=r"2 of the 3 slots of the feed of /data/x are held .*clone.*zero_copy=False.*\.cpu\(\).*autograd") as told:
        kept = [batch for _ in range(3) for batch in feed]
    assert len(told) == 1 and told[0].filename == __file__
    assert (feed.held, feed.copied, fake.copied(feed)) == (2, 7, 7)
    assert [batch.label.tolist() for batch in kept] == [[100 * e + label for label in batch] for e in range(3) for batch in EPOCH]
    assert [int(batch.image[1, 1, 8191]) for batch in kept] == [(100 * e + batch[1]) % 256 for e in range(3) for batch in EPOCH]
    kept[-1].image[0, 0, 0] = 77
    assert numpy.from_dlpack(kept[-1].raw["image"])[0, 0, 0] == 77
    del kept
    assert feed.held == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len([batch.label for batch in feed]) == 3  # a loop that keeps nothing large has views
    assert feed.copied == 7


def test_a_plain_loop_copies_nothing(fake):
    feed = fake(settings={"SLOTS": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for images, labels in feed:
                assert feed.held == 1
    assert feed.copied == 0 and images.shape[0] == len(labels) == 2


def test_a_copy_whose_warning_is_an_error_comes_all_the_same(fake):
    feed = fake(settings={"SLOTS": 3})
    iterator = iter(feed)
    kept = [next(iterator), next(iterator)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(pinfeed.SlotsHeldWarning):
            next(iterator)
        kept.append(next(iterator))
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


class Written:
    """A framework's memory on the GPU."""

    address = 0

    def __init__(self, shape, dtype):
        self.shape = shape


class Copied:
    """A framework's copy of a tensor."""

    def __init__(self, tensor):
        self.shape, self.address = tensor.shape, tensor.address


@pytest.fixture
def gpu(fake, monkeypatch):
    """As `fake`, on a GPU whose memory the framework takes as it comes. `label` is to become what `label_output` says."""
    memory = _device.Memory(dtype=str, empty=Written, address=lambda tensor: tensor.address, stream=lambda: 0, lend=lambda raw: raw, copy=Copied, is_capturing=lambda: False)
    monkeypatch.setattr(_device, "torch_memory", lambda ordinal: memory)

    def open_feed(label_output, zero_copy=True, **options):
        return fake(settings={"DEVICE": 0, "LABEL_OUTPUT": label_output}, device=0, framework="torch", zero_copy=zero_copy, **options)

    open_feed.released = fake.c.fake_released
    open_feed.copied = fake.copied
    return open_feed


def test_lent_slots_have_every_tensor(gpu):
    batch = next(iter(gpu(label_output=9)))
    assert [tensor.shape for tensor in batch] == [(4, 2, 8192), (4,)]


def test_of_a_lent_slot_small_tensors_are_copies(gpu):
    feed = gpu(label_output=9)
    batch = next(iter(feed))
    assert isinstance(batch.label, Copied) and not isinstance(batch.image, Copied)
    label, raw = batch.label, batch.raw["label"]
    released = gpu.released()
    del batch
    gc.collect()
    assert gpu.released() == released + 1 and raw.address == label.address


def test_lent_slots_are_never_all_held(gpu):
    feed = gpu(label_output=9)
    with pytest.warns(pinfeed.SlotsHeldWarning, match="3 of the 4 slots"):
        kept = [batch for _ in range(2) for batch in feed]
    assert [isinstance(batch.image, Written) for batch in kept] == [False] * 3 + [True] * 3
    assert (feed.held, feed.copied, gpu.copied(feed)) == (3, 3, 3)
    assert kept[4].raw["image"].__dlpack_device__() == (2, 0)
    del kept
    gc.collect()
    assert feed.held == 0


def test_a_tensor_that_cannot_be_lent_is_refused_each_time_and_the_batch_given_back(gpu):
    """The first tensor can be lent; the second has to become something else."""
    feed = gpu(label_output=12)
    before = gpu.released()
    at_start = feed.state_dict()["cursor"]["position"]
    for _ in range(3):
        with pytest.raises(pinfeed.InvalidArgumentError, match="zero_copy: tensor 'label'"):
            next(iter(feed))
    assert feed.state_dict()["cursor"]["position"] == at_start == "0"  # another feed may go on with that very batch
    feed.close()
    assert gpu.released() == before + 1


def test_a_batch_that_could_not_be_given_goes_back_with_the_feed(gpu):
    feed = gpu(label_output=12)
    before = gpu.released()
    with pytest.raises(pinfeed.InvalidArgumentError):
        next(iter(feed))
    del feed
    gc.collect()
    assert gpu.released() == before + 1


class Made:
    """A torch tensor on a GPU."""

    def __init__(self, shape, strides, dtype, device):
        self.shape, self.strides, self.dtype, self.device = shape, strides, dtype, device

    def stride(self):
        return self.strides


def torch_that(allocates, current_device=lambda: 1):
    """A torch whose compiled code allocates so."""
    guards = types.SimpleNamespace(_empty_strided_cuda=allocates)
    return types.SimpleNamespace(
        int16="int16",
        cuda=types.SimpleNamespace(device=lambda ordinal: contextlib.nullcontext()),
        _C=types.SimpleNamespace(_dynamo=types.SimpleNamespace(guards=guards), _cuda_getDevice=current_device),
    )


def empty(shape, dtype):
    return Made(shape, {(2, 3): (3, 1)}.get(shape, "torch.empty's"), dtype, "cuda:1")


def test_memory_comes_from_what_torchs_compiled_code_uses():
    current = [1]
    quick = _device._quick_empty(torch_that(lambda *tensor: Made(*tensor, f"cuda:{current[0]}"), lambda: current[0]), 1, empty)
    for shape, strides in (((4, 5, 6), (30, 6, 1)), ((7,), (1,)), ((0, 5), (5, 1)), ((3, 0, 2), (2, 2, 1)), ((), ())):
        for _ in range(2):
            made = quick(shape, "float32")
            assert (made.shape, made.strides, made.dtype, made.device) == (shape, strides, "float32", "cuda:1")
    for rows in range(3 * _device._MAX_SHAPES):
        assert quick((rows, 4), "float32").strides == (4, 1)
    current[0] = 0  # the trainer works on another GPU meanwhile
    assert quick((4, 5, 6), "float32").strides == "torch.empty's"


def raises(error):
    def allocate(*_):
        raise error

    return allocate


@pytest.mark.parametrize(
    "allocate",
    [
        lambda shape, strides, dtype: Made(shape, strides, dtype, "cuda:0"),
        lambda shape, strides, dtype: Made(shape, strides, "float32", "cuda:1"),
        lambda shape, strides, dtype: Made(shape, (1, 2), dtype, "cuda:1"),
        raises(TypeError("another signature")),
        raises(RuntimeError("PyTorch compiled without USE_CUDA")),
    ],
)
def test_memory_comes_from_torch_empty_where_that_is_another_function(allocate):
    assert _device._quick_empty(torch_that(allocate), 1, empty) is None
    without = torch_that(allocate)
    del without._C._dynamo
    assert _device._quick_empty(without, 1, empty) is None
