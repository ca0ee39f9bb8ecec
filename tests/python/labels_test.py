# SPDX-License-Identifier: Apache-2.0
"""`feed.dataset` over real files, beside what torchvision's ImageFolder says of the same."""

import numpy
import pytest
from daemon_process import Daemon
from PIL import Image

import pinfeed
from pinfeed._feed import batch_maker

pytestmark = pytest.mark.usefixtures("feeds")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number, kind in enumerate(["dog", "cat", "cat", "Zebra", "dog", "cat"]):
        (folder / kind).mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / kind / f"{number}.png")
    return folder


def test_the_dataset_is_as_image_folder_has_it(images):
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.datasets.ImageFolder(images)
    with pinfeed.open(images, batch_size=4, shuffle=True, rank=1, world_size=2, transforms=pinfeed.CenterCrop(8)) as feed:
        ours = feed.dataset
        assert (len(ours), ours.classes, ours.class_to_idx, ours.targets) == (len(theirs), theirs.classes, theirs.class_to_idx, theirs.targets)
        assert ours.targets is ours.targets
        assert sum(len(batch.label) for batch in feed) == len(feed.sampler) == 3  # which the look at the labels has not disturbed


def test_labels_read_no_image(images, tmp_path):
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "1.jpg").write_bytes(b"no image at all")
    with pinfeed.open(tmp_path, batch_size=1, transforms=pinfeed.CenterCrop(8)) as feed:
        assert feed.dataset.targets == [0, 1]


def test_labels_of_arrays_in_the_order_of_the_dataset(tmp_path):
    labels = numpy.random.default_rng(0).integers(0, 50, 10000).astype("u1")  # more than one batch of labels
    numpy.save(tmp_path / "image.npy", numpy.zeros((10000, 4), "u1"))
    numpy.save(tmp_path / "label.npy", labels)
    with pinfeed.open(tmp_path, batch_size=100, shuffle=True, drop_last=True) as feed:
        assert feed.dataset.targets == labels.tolist()


def test_a_dataset_without_labels_has_no_targets(tmp_path):
    numpy.save(tmp_path / "image.npy", numpy.zeros((3, 4)))
    with pinfeed.open(tmp_path, batch_size=1) as feed:
        assert not hasattr(feed.dataset, "targets")
        with pytest.raises(AttributeError, match="has no field 'label', only image"):
            feed.dataset.targets


def test_labels_of_another_dataset_are_not_given(tmp_path):
    numpy.save(tmp_path / "label.npy", numpy.zeros(3, "u1"))
    with pinfeed.open(tmp_path, batch_size=1) as feed:
        dataset = feed.dataset
        numpy.save(tmp_path / "label.npy", numpy.zeros(4, "u1"))
        with pytest.raises(pinfeed.Error, match="has changed since the feed was opened") as caught:
            dataset.targets
        assert caught.value.code == pinfeed.Code.FAILED_PRECONDITION


def test_labels_of_a_dataset_that_has_a_name(images, tmp_path):
    config = tmp_path / "pinfeedd.toml"
    config.write_text(f'[datasets.pets]\npath = "{images}"\n')
    daemon = Daemon(tmp_path / "run", "--config", str(config))
    try:
        with pinfeed.open("pets", batch_size=4, transforms=pinfeed.CenterCrop(8), address=daemon.address) as feed:
            assert feed.dataset.targets == [0, 1, 1, 1, 2, 2]
    finally:
        daemon.stop()


@pytest.mark.parametrize("output", ["dict", "tuple"])
def test_plain_batches_lie_in_their_slots(images, output, monkeypatch):
    monkeypatch.setattr(batch_maker, "SMALL_BYTES", 0)  # else these would be copies
    transforms = pinfeed.CenterCrop(8)
    with pinfeed.open(images, batch_size=3, epochs=1, framework="numpy", transforms=transforms, output=output, zero_copy=True) as feed:
        seen = []
        for batch in feed:
            image, label = batch.values() if output == "dict" else batch
            assert type(batch).__name__ == output and feed.held == 1
            seen += [(int(a), int(b)) for a, b in zip(image[:, 0, 0, 0], label)]
        assert seen == [(3, 0), (1, 1), (2, 1), (5, 1), (0, 2), (4, 2)]
