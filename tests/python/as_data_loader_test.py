# SPDX-License-Identifier: Apache-2.0
"""What training code written for a DataLoader finds on a feed and its batches, over a library that needs no daemon."""

import collections.abc
import gc
import types

import numpy
import pytest
from fake_library import EPOCH

import pinfeed
from pinfeed._feed import device


def test_the_attributes_of_a_data_loader(fake):
    feed = fake(drop_last=False)
    assert (feed.batch_size, feed.drop_last, len(feed)) == (4, False, 3)
    assert len(feed.dataset) == feed.dataset_size == 10 and len(feed.sampler) == feed.sampler.num_samples == 10
    assert feed.dataset.classes == ["cat", "dog"] and feed.dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert feed.dataset is feed.dataset
    with pytest.raises(TypeError, match="samples come in batches only"):
        feed.dataset[0]
    with pytest.raises(TypeError, match="the order of samples is the daemon's"):
        list(feed.sampler)
    assert len(fake(rank=2, world_size=4).sampler) == 3  # as DistributedSampler: some samples twice
    short = fake(drop_last=True, settings={"BATCHES": 2})
    assert short.drop_last is True and len(short.sampler) == len(short) * 4


def test_the_sampler_sets_the_epoch(fake):
    feed = fake()
    feed.sampler.set_epoch(7)
    assert feed.epoch == feed.sampler.epoch == 7
    with pytest.raises(pinfeed.InvalidArgumentError, match="epoch: -1"):
        feed.sampler.set_epoch(-1)


def test_what_is_kept_of_a_feed_does_not_keep_it_open(fake):
    before = fake.c.fake_closed()
    feed = fake()
    dataset = feed.dataset
    del feed
    gc.collect()
    assert fake.c.fake_closed() == before + 1
    assert len(dataset) == 10 and dataset.classes == ["cat", "dog"]


# ---- batches ------------------------------------------------------------------------------------------------------------------------


def test_a_batch_is_used_as_a_mapping(fake):
    batch = next(iter(fake()))
    assert list(batch.keys()) == ["image", "label"] and [list(pair) for pair in batch.items()] == [["image", batch.image], ["label", batch.label]]
    assert [value is tensor for value, tensor in zip(batch.values(), batch)] == [True, True]

    def model(image, label):
        return image, label

    assert model(**batch)[1] is batch.label
    assert list(dict(batch)) == ["image", "label"] and dict(batch)["label"] is batch.label
    assert "image" in batch and "images" not in batch and batch.label in batch and batch.label.copy() not in batch
    assert not isinstance(batch, collections.abc.Mapping)  # its elements are tensors, as a tuple's


def test_a_field_with_a_methods_name_is_still_a_field(fake):
    from pinfeed._feed.batch import batch_class

    batch = batch_class(["items", "to"])(1, 2)
    assert dict(batch) == {"items": 1, "to": 2} and batch["items"] == 1 and callable(batch.items)


def test_a_name_that_is_nearly_a_field(fake):
    batch = next(iter(fake()))
    for name, words in (("images", "no tensor 'images', only 'image', 'label'; did you mean 'image'?"), ("labels", "did you mean 'label'?"), ("mask", "only 'image', 'label'")):
        with pytest.raises(AttributeError) as attribute:
            getattr(batch, name)
        with pytest.raises(KeyError) as key:
            batch[name]
        assert words in str(attribute.value) and words in key.value.args[0]
    assert not hasattr(batch, "mask") and getattr(batch, "mask", 5) == 5


def test_moving_a_batch(fake):
    torch = pytest.importorskip("torch")
    feed = fake(framework="torch")
    batch = next(iter(feed))
    assert batch.to("cpu") is batch and batch.to(torch.device("cpu"), non_blocking=True) is batch
    moved = batch.to("meta", non_blocking=True)
    assert type(moved) is type(batch) and all(tensor.device.type == "meta" for tensor in moved)
    assert (moved.epoch, moved.index, moved.skipped, moved.last_of_epoch) == (0, 0, 0, False) and moved.raw == {}
    del batch
    gc.collect()
    assert feed.held == 0, "a batch that was moved elsewhere keeps its slot"
    with pytest.raises(TypeError, match="a batch is moved to a device; cast its tensors"):
        moved.to(torch.float16)


def test_moving_a_batch_of_arrays(fake):
    batch = next(iter(fake()))
    assert batch.to("cpu") is batch
    with pytest.raises(TypeError, match="ndarray has no to\\(\\); open the feed with framework=\"torch\""):
        batch.to("cuda")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("output, kind", [("dict", dict), ("tuple", tuple), ("TUPLE", tuple)])
def test_plain_outputs(fake, framework, output, kind):
    feed = fake(framework=framework, output=output)
    before = fake.c.fake_released()
    got = []
    for batch in feed:
        assert type(batch) is kind and feed.held == 1
        image, label = batch.values() if kind is dict else batch
        assert list(batch) == (["image", "label"] if kind is dict else [image, label])
        got.append(label.tolist())
        part = image[:1]
        del batch, image, label
        gc.collect()
        assert feed.held == 1, "the slot went back while a tensor lies in it"
        del part
        assert feed.held == 0
    assert got == EPOCH and fake.c.fake_released() == before + 3


def test_plain_outputs_of_slots_on_a_gpu(fake, monkeypatch):
    # The labels of a batch are small, so they are copied.
    memory = device.Memory(dtype=str, empty=None, address=lambda array: 1, stream=lambda: 0, lend=lambda raw: raw, copy=lambda raw: numpy.empty(raw.shape), is_capturing=lambda: False)
    monkeypatch.setattr(device, "torch_memory", lambda ordinal: memory)
    feed = fake(settings={"DEVICE": 0}, device=0, framework="torch", zero_copy=True, output="dict")
    batch = next(iter(feed))
    assert type(batch) is dict
    image = batch["image"]
    del batch
    gc.collect()
    assert feed.held == 1
    del image
    assert feed.held == 0


def test_an_output_that_is_none(fake):
    with pytest.raises(pinfeed.InvalidArgumentError, match="output: 'list' is none of 'batch', 'dict', 'tuple'"):
        fake(output="list")


# ---- arguments of others ------------------------------------------------------------------------------------------------------------

REPLACED = {
    "num_workers": "PINFEED_WORKERS=8",
    "persistent_workers": "there are no worker processes",
    "multiprocessing_context": "there are no worker processes",
    "worker_init_fn": "all randomness comes from seed",
    "prefetch_factor": "give slots",
    "pin_memory": 'device="cuda:0"',
    "pin_memory_device": 'device="cuda:0"',
    "collate_fn": "in the loop",
    "sampler": "shuffle=True with a seed",
    "batch_sampler": "shuffle=True with a seed",
    "generator": "give seed",
    "in_order": "batches always come in order",
    "transform": "give transforms=[...]",
    "root": "as the first argument",
    "num_replicas": "give world_size",
    "block_size": "give sequence_length",
    "batchsize": "did you mean 'batch_size'?",
    "BatchSize": "did you mean 'batch_size'?",
    "shufle": "did you mean 'shuffle'?",
    "devices": "did you mean 'device'?",
    "on_bad_samples": "did you mean 'on_bad_sample'?",
    "quux": "only dataset, batch_size, shuffle",
}


@pytest.mark.parametrize("name", REPLACED)
def test_arguments_that_open_does_not_have(fake, name):
    with pytest.raises(TypeError) as caught:
        fake(**{name: 1})
    assert isinstance(caught.value, pinfeed.InvalidArgumentError) and caught.value.code == pinfeed.Code.INVALID_ARGUMENT
    assert str(caught.value).startswith(f"{name}: pinfeed.open has no such argument; ") or name == "quux"
    assert REPLACED[name] in str(caught.value)
    assert fake.spec_text() == "", "it was sent all the same"


def test_a_typo_is_told_of_even_where_an_argument_is_missing_for_it(fake):
    with pytest.raises(TypeError, match="batchsize: .*did you mean 'batch_size'") as caught:
        pinfeed.open("/data/x", batchsize=4, num_workers=8)
    assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'batch_size'"):
        pinfeed.open("/data/x")
    with pytest.raises(TypeError, match="only dataset may be positional; .*such as batch_size=32"):
        pinfeed.open("/data/x", 32)


# ---- what is no path ----------------------------------------------------------------------------------------------------------------


class Samples:
    """As torch.utils.data.Dataset."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index


NO_PATHS = [
    (Samples(), "use pinfeed.DataLoader(dataset, ...), whose workers run it, or give the path of the files that it reads"),
    (types.SimpleNamespace(dataset=Samples(), batch_size=4), "open takes the place of the DataLoader"),
    ([1, 2, 3], "a dataset is one path"),
    ({"image": 1}, "a dataset is one path"),
    (["/data/a", "/data/b"], "a dataset is one path"),
    (numpy.zeros((3, 2)), "save the array, numpy.save("),
    (iter([]), "the daemon runs no Python code"),
]


@pytest.mark.parametrize("value, words", NO_PATHS, ids=[type(value).__name__ for value, _ in NO_PATHS])
def test_objects_in_place_of_a_path(fake, value, words):
    with pytest.raises(pinfeed.InvalidArgumentError) as caught:
        fake(value)
    assert str(caught.value).startswith("dataset: ") and "is not the path of a dataset or the name of one" in str(caught.value)
    assert words in str(caught.value)


def test_a_dataset_of_torchvisions_is_replaced_by_its_folder(fake):
    folder = Samples()
    folder.root = "/data/train"
    with pytest.raises(pinfeed.InvalidArgumentError, match="give the folder, as '/data/train', and transforms="):
        fake(folder)


@pytest.mark.parametrize("name", ["train-{000..009}.tar", "train.csv", "data*"])
def test_a_file_name_in_place_of_a_dataset_name(fake, name):
    with pytest.raises(pinfeed.NotFoundError) as caught:
        fake(name, settings={"OPEN_ERROR": 5})
    assert f'for the file or folder of that name write "./{name}"' in str(caught.value)


# ---- attributes of others -----------------------------------------------------------------------------------------------------------


def test_what_a_feed_lacks_says_what_to_write_instead(fake):
    feed = fake()
    with pytest.raises(AttributeError, match="has no attribute 'num_workers'.*PINFEED_WORKERS=8"):
        feed.num_workers
    assert not hasattr(feed, "imaginary")
    with pytest.raises(TypeError, match="iterate over it"):
        feed[0]
    batch = next(iter(feed))
    for name, words in {"cuda": "batch.to", "get": 'output="dict"', "shape": "batch\\[0\\]"}.items():
        with pytest.raises(AttributeError, match=words):
            getattr(batch, name)


def test_transforms_by_name_are_refused_with_an_object(fake):
    for by_name in ("random_resized_crop", {"resize": {"size": [8]}}):
        with pytest.raises(pinfeed.InvalidArgumentError, match="give objects, such as pinfeed.RandomResizedCrop"):
            fake(transforms=[by_name])
