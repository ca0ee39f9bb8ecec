# SPDX-License-Identifier: Apache-2.0
"""Fields that lie beside the image, against a real daemon: they follow its geometry, stay as they are because the user says so, or are refused."""

import json

import numpy
import pytest
from conftest import tool
from PIL import Image

import pinfeed

SAMPLES, HEIGHT, WIDTH = 64, 12, 16


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Images whose channels are all the same, and masks of the same values in other types and layouts."""
    folder = tmp_path_factory.mktemp("masked")
    pixels = numpy.random.default_rng(2).integers(0, 256, (SAMPLES, HEIGHT, WIDTH), numpy.uint8)
    numpy.save(folder / "image.npy", numpy.repeat(pixels[:, None], 3, axis=1))
    numpy.save(folder / "label.npy", numpy.arange(SAMPLES))
    numpy.save(folder / "mask.npy", pixels)
    numpy.save(folder / "flow.npy", numpy.stack([pixels, 255 - pixels], axis=-1).astype(numpy.float32))
    return folder


FLIP, CROP = pinfeed.RandomHorizontalFlip(), pinfeed.CenterCrop((10, 18))
BOTH = ["mask", "flow"]


@pytest.mark.parametrize("transform", [FLIP, CROP, pinfeed.Resize((6, 6)), pinfeed.RandomResizedCrop(6)])
def test_a_field_that_could_be_a_mask_is_refused(feeds, masked, transform):
    with pytest.raises(pinfeed.InvalidArgumentError) as caught:
        pinfeed.open(masked, batch_size=4, transforms=[transform], masks=["mask"], framework="numpy")
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 and "field 'flow' of shape [12, 16, 2]" in lines[0] and "masks" in lines[0] and "fields_unchanged" in lines[0]
    with pytest.raises(pinfeed.InvalidArgumentError, match=r"masks: the dataset has no field 'maks'; its fields are 'flow', 'image', 'label', 'mask'"):
        pinfeed.open(masked, batch_size=4, transforms=[transform], masks=["maks", *BOTH], framework="numpy")
    with pytest.raises(pinfeed.InvalidArgumentError, match=r"fields_unchanged\[0\]: is in masks too"):
        pinfeed.open(masked, batch_size=4, transforms=[transform], masks=BOTH, fields_unchanged="mask", framework="numpy")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_masks_follow_their_image(feeds, masked, framework):
    if framework == "torch":
        pytest.importorskip("torch")
    options = dict(batch_size=9, shuffle=True, seed=7, epochs=2, framework=framework, masks=BOTH)
    plain = numpy.load(masked / "mask.npy")
    with pinfeed.open(masked, transforms=[FLIP], **options) as feed:
        mirrored = []
        for _ in range(2):
            for batch in feed:
                batch = {name: numpy.asarray(tensor) for name, tensor in batch._asdict().items()}
                mirrored += [not (mask == plain[label]).all() for mask, label in zip(batch["mask"], batch["label"])]
                assert (batch["mask"] == batch["image"][:, 0]).all() and (batch["flow"][..., 0] == batch["mask"]).all()
        assert 2 * SAMPLES == len(mirrored) and 30 < sum(mirrored) < 98, "about half of them"
    # The same on every run, however many batches are prefetched: 10 rows of 12, padded from 16 to 18 columns.
    runs = []
    for slots in (3, 7):
        with pinfeed.open(masked, transforms=[FLIP, CROP, pinfeed.RandomResizedCrop((7, 5))], slots=slots, **options) as feed:
            runs.append([[numpy.asarray(tensor).copy() for tensor in batch] for batch in feed])
            assert runs[-1][0][3].shape[1:] == (7, 5) and runs[-1][0][0].shape[1:] == (7, 5, 2)
    assert all((a == b).all() for one, other in zip(*runs) for a, b in zip(one, other))


def test_masks_are_padded_with_zeros_and_keep_their_type(feeds, masked):
    with pinfeed.open(masked, batch_size=SAMPLES, transforms=[CROP, pinfeed.ToDtype("float32", scale=True)], masks=BOTH, epochs=1, framework="numpy") as feed:
        (batch,) = feed
        assert (batch.image.dtype, batch.mask.dtype, batch.flow.dtype) == (numpy.float32, numpy.uint8, numpy.float32)
        padded = numpy.pad(numpy.load(masked / "mask.npy")[:, 1:11], ((0, 0), (0, 0), (1, 1)))
        assert (batch.mask == padded).all() and batch.mask.shape == (SAMPLES, 10, 18)


def test_fields_that_are_meant_to_stay(feeds, masked):
    with pinfeed.open(masked, batch_size=SAMPLES, transforms=[pinfeed.RandomHorizontalFlip(1)], masks="mask", fields_unchanged="flow", epochs=1, framework="numpy") as feed:
        (batch,) = feed
        assert (batch.flow == numpy.load(masked / "flow.npy")).all()
        assert (batch.mask == numpy.load(masked / "mask.npy")[..., ::-1]).all()
    # Without a transform that moves pixels nobody has to say anything, and may.
    for masks in ((), BOTH):
        with pinfeed.open(masked, batch_size=SAMPLES, transforms=[pinfeed.Normalize([0.5], [0.5])], masks=masks, epochs=1, framework="numpy") as feed:
            (batch,) = feed
            assert (batch.flow == numpy.load(masked / "flow.npy")).all()


def test_the_tools_know_masks(daemon, masked, tmp_path):
    bench = ("bench", f"{masked}/", "--batch-size", 8, "--batches", 3, "--json", "--transforms", '[{"center_crop": {"size": [4, 4]}}]')
    status, _, err = tool(daemon, *bench)
    assert status != 0 and "name it in masks" in err
    status, out, err = tool(daemon, *bench, "--masks", "mask", "--fields-unchanged", "flow")
    assert status == 0, err
    assert json.loads(out)["samples"] == 24
    status, out, err = tool(daemon, "peek", f"{masked}/", "-n", 4, "-o", tmp_path / "sheet.png")
    assert status == 0, err
    assert out.splitlines()[2].split() == ["ROW", "COLUMN", "flow", "label", "mask", "sample_id"]
    sheet = numpy.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    assert (sheet[2 : 2 + HEIGHT, 2 : 2 + WIDTH, 1] == numpy.load(masked / "mask.npy")[0]).all()
