# SPDX-License-Identifier: Apache-2.0
"""What was written to disk comes out of a feed: arrays of every type, token streams, image folders; each sample once an epoch."""

import itertools
import json
import pathlib

import hypothesis
import numpy
import pytest
from hypothesis import strategies
from PIL import Image

import pinfeed
from conftest import tool
from pinfeed._base.checks import absolute_path

pytestmark = pytest.mark.usefixtures("feeds")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A hundred samples that are their own number."""
    path = tmp_path_factory.mktemp("numbers") / "numbers.npy"
    numpy.save(path, numpy.arange(100))
    return path


# ---- arrays -------------------------------------------------------------------------------------------------------------------------

TYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("endian", ["<", ">"])
def test_arrays_of_every_type_come_back_equal(tmp_path, order, endian):
    written = {}
    for number, kind in enumerate(TYPES):
        content = numpy.random.default_rng(number).integers(0, 255, (7, 3, 2 + number)).astype(kind)
        written[f"field_{kind.replace('?', 'bool')}"] = numpy.asarray(content, dtype=numpy.dtype(kind).newbyteorder(endian), order=order)
    for name, array in written.items():
        numpy.save(tmp_path / f"{name}.npy", array)
    with pinfeed.open(tmp_path, batch_size=3, framework="numpy", epochs=1) as feed:
        batches = [{name: array.copy() for name, array in batch._asdict().items()} for batch in feed]
    assert [len(batch["field_u1"]) for batch in batches] == [3, 3, 1]
    assert set(batches[0]) == set(written)
    for name, array in written.items():
        got = numpy.concatenate([batch[name] for batch in batches])
        assert got.dtype == array.dtype.newbyteorder("="), name
        assert (got == array).all(), name


def test_torch_gives_the_same_as_numpy(tmp_path):
    torch = pytest.importorskip("torch")
    kinds = ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]
    for kind in kinds:
        numpy.save(tmp_path / f"t_{kind.replace('?', 'b')}.npy", numpy.arange(10).reshape(5, 2).astype(kind))
    arrays = pinfeed.open(tmp_path, batch_size=5, framework="numpy")
    tensors = pinfeed.open(tmp_path, batch_size=5, framework="torch")
    with arrays, tensors:
        (one, other) = next(iter(arrays)), next(iter(tensors))
        for array, tensor in zip(one, other):
            assert isinstance(tensor, torch.Tensor) and (tensor.numpy() == array).all() and tensor.numpy().dtype == array.dtype


def test_a_path_leads_where_the_kernel_goes(tmp_path, daemon, monkeypatch):
    for folder, number in ("releases", 2), ("app", 1):
        (tmp_path / folder / "data").mkdir(parents=True)
        numpy.save(tmp_path / folder / "data" / "x.npy", numpy.full(3, number))
    (tmp_path / "releases" / "42").mkdir()
    (tmp_path / "app" / "current").symlink_to("../releases/42")
    monkeypatch.chdir(tmp_path / "app")
    for path in "current/../data", f"{tmp_path}/app/current/../data", pathlib.Path("current", "..", "data"):
        expected = numpy.load(f"{path}/x.npy").tolist()
        with pinfeed.open(path, batch_size=3, framework="numpy") as feed:
            assert next(iter(feed)).x.tolist() == expected == [2, 2, 2]
        _, shown, _ = tool(daemon, "peek", path, "-n", 1)
        assert shown.splitlines()[1].split()[:2] == ["0", "2"]
    # A folder by its own name, also if a link leads to it: it must lie below an allowed root.
    (tmp_path / "link").symlink_to("app")
    for path, expected in ("../link/data", f"{tmp_path}/link/data"), ("../link/./x", f"{tmp_path}/link/x"):
        assert absolute_path(path) == expected


def test_samples_without_dimensions_and_without_elements(tmp_path):
    numpy.save(tmp_path / "scalar.npy", numpy.arange(4.0))
    with pinfeed.open(tmp_path, batch_size=2, framework="numpy") as feed:
        assert next(iter(feed)).scalar.tolist() == [0, 1]
    numpy.save(tmp_path / "nothing.npy", numpy.empty((4, 0, 3), "f4"))
    with pytest.raises(pinfeed.InvalidArgumentError, match="nothing.npy.*empty"):
        pinfeed.open(tmp_path, batch_size=2, framework="numpy")


def test_fields_whose_names_are_taken_or_no_names(tmp_path):
    """Such a field is had by batch[name], and takes the place of nothing that the package or Python needs."""
    names = {"index", "count", "a field", "raw", "epoch", "last_of_epoch", "_slot", "_raw", "_fields", "_make_raw", "__slots__", "__del__", "__bool__", "__class__", "__dict__"}
    for number, name in enumerate(sorted(names)):
        numpy.save(tmp_path / f"{name}.npy", numpy.arange(3) + number)
    for framework in ("numpy", "torch"):
        with pinfeed.open(tmp_path, batch_size=1, framework=framework, slots=3, epochs=2) as feed:
            for _ in range(2):
                for at, batch in enumerate(feed):  # more batches than slots: each is given back
                    assert set(batch._fields) == names == set(batch._asdict()) == set(batch.raw)
                    assert [batch[name].tolist() for name in sorted(names)] == [[at + number] for number in range(len(names))]
                    assert batch.index == at and batch and batch[0].tolist() == [at]
                assert at == 2


# ---- tokens -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uint16", "uint32"])
@pytest.mark.parametrize("stride", [None, 3])
def test_tokens(tmp_path, kind, stride):
    stream = numpy.random.default_rng(1).integers(0, 60000, 101).astype(kind)
    path = tmp_path / "stream.bin"
    stream.tofile(path)
    with pinfeed.open(path, batch_size=4, sequence_length=10, stride=stride, token_dtype=kind, framework="numpy", epochs=1) as feed:
        step = stride or 10
        starts = range(0, 101 - 10, step)
        assert feed.dataset_size == len(starts)
        x, y = (numpy.concatenate(parts) for parts in zip(*((batch.x.copy(), batch.y.copy()) for batch in feed)))
    assert x.dtype == y.dtype == numpy.int64
    assert (x == [stream[start : start + 10] for start in starts]).all()
    assert (y == [stream[start + 1 : start + 11] for start in starts]).all()


# ---- images -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    pixels = numpy.random.default_rng(0).integers(0, 256, (6, 20, 30, 3), dtype=numpy.uint8)
    for number, picture in enumerate(pixels):
        place = folder / ("cat", "dog")[number % 2]
        place.mkdir(exist_ok=True)
        Image.fromarray(picture).save(place / f"{number}.png")
    return folder, pixels[[0, 2, 4, 1, 3, 5]]


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_images_and_labels(images, layout):
    folder, pixels = images
    with pinfeed.open(folder, batch_size=6, layout=layout, transforms=pinfeed.CenterCrop((20, 30)), framework="numpy") as feed:
        batch = next(iter(feed))
        expected = pixels if layout == "HWC" else pixels.transpose(0, 3, 1, 2)
        assert (batch.image == expected).all()
        assert batch.label.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_pointwise_tail_in_torch(images, kind):
    torch = pytest.importorskip("torch")
    folder, pixels = images
    transforms = [pinfeed.CenterCrop((20, 30)), pinfeed.ToDtype("float32", scale=True), pinfeed.Normalize([0.1, 0.2, 0.3], [1, 2, 4]), pinfeed.ToDtype(kind)]
    with pinfeed.open(folder, batch_size=6, transforms=transforms, framework="torch") as feed:
        image = next(iter(feed)).image
        assert image.dtype == getattr(torch, kind)
        wide = torch.from_numpy(pixels.transpose(0, 3, 1, 2) / 255.0)
        expected = (wide - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([1.0, 2, 4])[:, None, None]
        assert (image.double() - expected).abs().max() < {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[kind]


# ---- order --------------------------------------------------------------------------------------------------------------------------


def ids(feed):
    return [batch.sample_id.tolist() for batch in feed]


@hypothesis.settings(max_examples=25, deadline=None, database=None)
@hypothesis.given(
    batch_size=strategies.integers(1, 40),
    world_size=strategies.integers(1, 4),
    drop_last=strategies.booleans(),
    shuffle=strategies.booleans(),
    seed=strategies.integers(0, 2**64 - 1),
)
def test_each_sample_once_an_epoch(numbers, batch_size, world_size, drop_last, shuffle, seed):
    hypothesis.assume(not drop_last or batch_size * world_size <= 100)
    options = dict(batch_size=batch_size, drop_last=drop_last, shuffle=shuffle, seed=seed, sample_ids=True, framework="numpy", world_size=world_size, epochs=2)
    epochs = []
    for rank in range(world_size):
        with pinfeed.open(numbers, rank=rank, **options) as feed:
            epochs.append([])
            for _ in range(2):
                batches = []
                for batch in feed:
                    assert batch.data.tolist() == batch.sample_id.tolist()
                    batches.append(batch.sample_id.tolist())
                assert len(batches) == len(feed)
                epochs[-1].append(batches)
    for epoch in range(2):
        steps = zip(*(rank[epoch] for rank in epochs))
        order = list(itertools.chain.from_iterable(itertools.chain.from_iterable(steps)))
        whole = 100 - 100 % (batch_size * world_size)
        if drop_last:
            assert len(order) == len(set(order)) == whole
        else:
            assert set(order) == set(range(100)) and len(order) < 100 + world_size
        if not shuffle:
            assert order[:whole] == list(range(whole))
        elif epoch == 1 and whole > 20:
            first = list(itertools.chain.from_iterable(itertools.chain.from_iterable(zip(*(rank[0] for rank in epochs)))))
            assert order != first


def test_the_order_is_the_seeds(numbers):
    def run(seed):
        with pinfeed.open(numbers, batch_size=10, shuffle=True, seed=seed, sample_ids=True, framework="numpy", epochs=1) as feed:
            return ids(feed)

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize("consumed", [0, 1, 4, 10, 13])
@pytest.mark.parametrize("worlds", [(1, 1), (1, 2), (4, 2)])
def test_resuming_with_the_same_or_another_world_size(numbers, consumed, worlds):
    """Each rank's state after `consumed` batches goes on without a sample lost or given twice; epochs have 13 batches of 8."""
    old, new = worlds
    options = dict(shuffle=True, seed=5, sample_ids=True, framework="numpy", epochs=2)

    def open_ranks(world):
        return [pinfeed.open(numbers, batch_size=8 // world, rank=rank, world_size=world, **options) for rank in range(world)]

    def step(feeds_iterators):
        return sorted(itertools.chain.from_iterable(next(iterator).sample_id.tolist() for iterator in feeds_iterators))

    with pinfeed.open(numbers, batch_size=8, **options) as feed:
        expected = [sorted(batch) for batch in ids(feed)]
    feeds = open_ranks(old)
    iterators = [iter(feed) for feed in feeds]
    got = [step(iterators) for _ in range(consumed)]
    state = json.loads(json.dumps(feeds[-1].state_dict()))
    for feed in feeds:
        feed.close()
    feeds = open_ranks(new)
    for feed in feeds:
        feed.load_state_dict(state)
    iterators = [iter(feed) for feed in feeds]
    rest = 13 - consumed
    got += [step(iterators) for _ in range(rest)]
    assert got == expected
    for iterator in iterators:
        assert next(iterator, None) is None
    if new == 1:
        assert {sample for batch in feeds[0] for sample in batch.sample_id} == set(range(100))
        with pytest.raises(pinfeed.Error, match="has finished all of epochs=2"):
            ids(feeds[0])
    for feed in feeds:
        feed.close()


def test_breaks_and_set_epoch(numbers):
    options = dict(batch_size=10, shuffle=True, sample_ids=True, framework="numpy")
    with pinfeed.open(numbers, **options) as feed:
        epochs = [ids(feed) for _ in range(3)]
        assert len({json.dumps(epoch) for epoch in epochs}) == 3
        feed.set_epoch(0)
        for number, batch in enumerate(feed):
            if number == 3:
                break
        assert ids(feed) == epochs[1]
        feed.sampler.set_epoch(2)
        assert ids(feed) == epochs[2]
