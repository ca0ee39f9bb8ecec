# SPDX-License-Identifier: Apache-2.0
"""Transforms: ours, and torchvision's translated."""

import dataclasses

import numpy
import pytest

import pinfeed
from pinfeed._feed.torchvision_transforms import normalize_transforms


def specs(transforms):
    return [transform.to_spec() for transform in normalize_transforms(transforms)]


def test_ours():
    assert specs(
        [
            pinfeed.Resize(256),
            pinfeed.Resize([256]),
            pinfeed.Resize((240, 320)),
            pinfeed.CenterCrop(224),
            pinfeed.RandomResizedCrop((224, 200)),
            pinfeed.RandomResizedCrop(64, scale=[0.5, 1], ratio=(1.0, 2.0)),
            pinfeed.RandomHorizontalFlip(),
            pinfeed.RandomHorizontalFlip(0.25),
            pinfeed.RandomVerticalFlip(1),
            pinfeed.Resize(8, interpolation="random"),
            pinfeed.RandomResizedCrop(8, interpolation=("nearest", "LANCZOS")),
            pinfeed.Grayscale(),
            pinfeed.Pad((1, 2), fill=[3, 4, 5]),
            pinfeed.RandomCrop(32, padding=4, padding_mode="reflect"),
            pinfeed.Normalize([0.5], [0.25]),
            pinfeed.Normalize(0.5, 0.25),
            pinfeed.ToDtype("bfloat16"),
            pinfeed.ToDtype(numpy.float32, scale=True),
        ]
    ) == [
        {"resize": {"size": [256]}},
        {"resize": {"size": [256]}},
        {"resize": {"size": [240, 320]}},
        {"center_crop": {"size": [224]}},
        {"random_resized_crop": {"size": [224, 200], "scale": [0.08, 1.0], "ratio": [0.75, 4 / 3]}},
        {"random_resized_crop": {"size": [64], "scale": [0.5, 1], "ratio": [1.0, 2.0]}},
        {"random_horizontal_flip": {"p": 0.5}},
        {"random_horizontal_flip": {"p": 0.25}},
        {"random_vertical_flip": {"p": 1}},
        {"resize": {"size": [8], "interpolation": ["bilinear", "bicubic"]}},
        {"random_resized_crop": {"size": [8], "scale": [0.08, 1.0], "ratio": [0.75, 4 / 3], "interpolation": ["nearest", "lanczos"]}},
        {"grayscale": {"num_output_channels": 1}},
        {"pad": {"padding": [1, 2], "fill": [3, 4, 5], "padding_mode": "constant"}},
        {"random_crop": {"size": [32], "pad_if_needed": False, "padding": [4], "fill": [0], "padding_mode": "reflect"}},
        {"normalize": {"mean": [0.5], "std": [0.25]}},
        {"normalize": {"mean": [0.5], "std": [0.25]}},
        {"to_dtype": {"dtype": "bfloat16", "scale": False}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
    ]


def test_they_are_values():
    one, other = pinfeed.Normalize([0.5], [0.25]), pinfeed.Normalize((0.5,), (0.25,))
    assert one == other and hash(one) == hash(other)
    assert repr(pinfeed.Resize([1, 2])) == "Resize(size=(1, 2), max_size=None, interpolation='bilinear')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.mean = (1,)


@pytest.mark.parametrize("dtype", ["float16", "torch.float16", numpy.float16, numpy.dtype("float16"), "f2", "<f2", "=f2", numpy.dtype("<f2")])
def test_dtypes(dtype):
    if dtype == "torch.float16":
        dtype = pytest.importorskip("torch").float16
    assert specs(pinfeed.ToDtype(dtype)) == [{"to_dtype": {"dtype": "float16", "scale": False}}]


def test_a_dtype_that_is_none():
    with pytest.raises(pinfeed.InvalidArgumentError, match="to_dtype.dtype.*ToDtype"):
        specs(pinfeed.ToDtype(object()))


def test_none_and_one():
    assert specs(None) == specs(()) == []
    assert specs(pinfeed.CenterCrop(3)) == [{"center_crop": {"size": [3]}}]


@pytest.fixture(scope="module")
def torchvision_transforms():
    return pytest.importorskip("torchvision.transforms")


def test_torchvision(torchvision_transforms):
    T = torchvision_transforms
    import torch

    pipeline = T.Compose(
        [
            T.Resize(256),
            T.CenterCrop(224),
            T.Compose([T.RandomResizedCrop(64, scale=(0.5, 1.0)), T.RandomHorizontalFlip(p=0.1), T.RandomVerticalFlip(p=0.2)]),
            T.Grayscale(3),
            T.Pad(2, fill=7),
            T.RandomCrop((60, 61), pad_if_needed=True),
            T.PILToTensor(),
            T.ConvertImageDtype(torch.float32),
            T.Normalize([0.1, 0.2, 0.3], [1, 2, 3]),
        ]
    )
    assert specs(pipeline) == [
        {"resize": {"size": [256]}},
        {"center_crop": {"size": [224, 224]}},
        {"random_resized_crop": {"size": [64, 64], "scale": [0.5, 1.0], "ratio": [0.75, 4 / 3]}},
        {"random_horizontal_flip": {"p": 0.1}},
        {"random_vertical_flip": {"p": 0.2}},
        {"grayscale": {"num_output_channels": 3}},
        {"pad": {"padding": [2], "fill": [7], "padding_mode": "constant"}},
        {"random_crop": {"size": [60, 61], "pad_if_needed": True, "fill": [0], "padding_mode": "constant"}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3]}},
    ]
    assert specs([T.Resize(256, max_size=300)]) == [{"resize": {"size": [256], "max_size": 300}}]
    assert specs([T.Resize(8, interpolation=T.InterpolationMode.BICUBIC)]) == [{"resize": {"size": [8], "interpolation": ["bicubic"]}}]
    nearest = T.RandomResizedCrop(64, interpolation=T.InterpolationMode.NEAREST)
    assert specs([nearest])[0]["random_resized_crop"]["interpolation"] == ["nearest"]
    assert specs([T.ToTensor()]) == [{"to_dtype": {"dtype": "float32", "scale": True}}]


def test_torchvision_that_cannot_be_had(torchvision_transforms):
    T = torchvision_transforms
    for transform, what in [
        (T.Resize(256, interpolation=T.InterpolationMode.HAMMING), "hamming|HAMMING"),
        (T.Resize(256, antialias=False), "antialias=False"),
        (T.RandomCrop(9, padding=1, pad_if_needed=True, padding_mode="reflect"), "mirrors twice"),
        (T.ColorJitter(), "ColorJitter"),
        (T.RandomPerspective(), "RandomPerspective"),
    ]:
        with pytest.raises(pinfeed.InvalidArgumentError, match=what):
            specs([transform])


def test_torchvision_v2():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    import torch

    pipeline = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(size=(32, 48), antialias=True),
            v2.RandomHorizontalFlip(p=0.3),
            v2.ToDtype(torch.bfloat16, scale=True),
            v2.Normalize(mean=[0.5], std=[0.25]),
        ]
    )
    assert specs(pipeline) == [
        {"random_resized_crop": {"size": [32, 48], "scale": [0.08, 1.0], "ratio": [0.75, 4 / 3]}},
        {"random_horizontal_flip": {"p": 0.3}},
        {"to_dtype": {"dtype": "bfloat16", "scale": True}},
        {"normalize": {"mean": [0.5], "std": [0.25]}},
    ]
    assert specs([v2.Resize(256), v2.CenterCrop(224)]) == [{"resize": {"size": [256]}}, {"center_crop": {"size": [224, 224]}}]
    bicubic = v2.Resize(256, interpolation=v2.InterpolationMode.BICUBIC)
    assert specs(bicubic) == [{"resize": {"size": [256], "interpolation": ["bicubic"]}}]
    with pytest.raises(pinfeed.InvalidArgumentError, match="antialias=False"):
        specs(v2.Resize(256, antialias=False))


def test_torchvision_v2_by_name():
    """Version 2's classes have these names and attributes; Debian 12's torchvision has none of them yet."""

    class ToDtype:
        __module__ = "torchvision.transforms.v2._misc"

        def __init__(self, dtype, scale=False):
            self.dtype, self.scale = dtype, scale

    class ToImage:
        __module__ = "torchvision.transforms.v2._type_conversion"

    assert specs([ToImage(), ToDtype("float32", scale=True)]) == [{"to_dtype": {"dtype": "float32", "scale": True}}]
    with pytest.raises(pinfeed.InvalidArgumentError, match="dict"):
        specs([ToDtype({"image": "float32"})])


def test_classes_of_the_same_names_are_not_taken_for_torchvisions(torchvision_transforms):
    T = torchvision_transforms
    import torch

    class ToTensor:  # timm's, of this name, does not scale
        pass

    class Normalize(T.Normalize):
        def forward(self, image):
            return super().forward(image).clamp(-1, 1)

    class Compose(T.Compose):
        pass

    class PILToTensor:
        pass

    class Negative(torch.nn.Sequential):
        def forward(self, image):
            return 255 - super().forward(image)

    own = (ToTensor(), Normalize([0.5], [0.5]), Compose([T.Resize(8)]), PILToTensor(), T.Compose([ToTensor()]))
    for transform in (*own, *([each] for each in own)):
        with pytest.raises(pinfeed.InvalidArgumentError, match=r"(ToTensor|Normalize|Compose): this class is transforms_test's"):
            specs(transform)
    for transform in (Negative(T.Resize(8)), [Negative(T.Resize(8))]):
        with pytest.raises(pinfeed.InvalidArgumentError, match="Negative: the daemon has no such transform"):
            specs(transform)
    assert specs(torch.nn.Sequential(T.Resize(8))) == specs(torch.nn.ModuleList([T.Resize(8)])) == [{"resize": {"size": [8]}}]


def test_a_choice_without_an_order_is_refused():
    for transform, what in (
        (pinfeed.Resize(8, interpolation={"nearest", "bicubic"}), "resize.interpolation"),
        (pinfeed.Resize({8, 9}), "resize.size"),
        (pinfeed.Normalize({0.1, 0.2, 0.3}, 1), "normalize.mean"),
    ):
        with pytest.raises(pinfeed.InvalidArgumentError, match=what):
            specs(transform)
    with pytest.raises(pinfeed.InvalidArgumentError, match="is not a transform or a sequence"):
        specs({pinfeed.Resize(8), pinfeed.CenterCrop(8)})
