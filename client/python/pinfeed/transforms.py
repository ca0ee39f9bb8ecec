# SPDX-License-Identifier: Apache-2.0
"""The transforms that the daemon can do: torchvision's, by its names, parameters and defaults.

What comes in: their parameters.
What goes out: the ``transforms`` of a feed's spec, their values checked. Whether they fit the dataset is for the daemon to say.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from ._base.checks import Checks, listed, shown, to_integer
from ._base.dtypes import check_byte_order, dtype_name
from ._base.errors import InvalidArgumentError, invalid

Size = Union[int, Sequence[int]]
Json = Dict[str, Any]

_MAX_SIDE = 65500  # JPEG's own limit
_MAX_CHANNELS = 64
_DTYPES = ("uint8", "float32", "float16", "bfloat16")


class Transform:
    """Base of the transforms below. Each is immutable, comparable, hashable, and all that this package knows of its operation."""

    # What `from_torchvision` takes besides objects of torchvision's class of the same name.
    torchvision_names: ClassVar[Tuple[str, ...]] = ()
    _name: ClassVar[str]  # of its field of pinfeed.v1.Transform
    _sequences: ClassVar[Tuple[str, ...]] = ()  # parameters that may be sequences

    def __post_init__(self) -> None:
        """Makes sequences tuples, so that the transform can be compared and hashed."""
        for name in self._sequences:
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, (str, tuple, set, frozenset)):
                object.__setattr__(self, name, tuple(value))

    def to_spec(self) -> Json:
        """The transform as ``pinfeed.v1.Transform`` in JSON. Raises InvalidArgumentError with every fault of its values."""
        checks = Checks(f"{self._name}.")
        values = self._values(checks)
        checks.raise_faults()
        return {self._name: values}

    def _values(self, checks: Checks) -> Json:
        raise NotImplementedError

    @classmethod
    def from_torchvision(cls, transform: Any) -> Transform:
        """Reads torchvision's object by its attributes, so that torchvision need not be imported and every version of it will do.

        Unless a transform says otherwise, they have the names of its parameters.
        """
        return cls(**{field.name: getattr(transform, field.name) for field in dataclasses.fields(cls)})


def _size(checks: Checks, transform: Any, one: str) -> List[int]:
    sides = [to_integer(side) for side in listed(transform.size)]
    good = [side for side in sides if side is not None and 1 <= side <= _MAX_SIDE]
    if len(good) < len(sides) or len(sides) not in (1, 2):
        name = type(transform).__name__
        checks.refuse("size", transform.size, f"what {name} takes: pixels from 1 to {_MAX_SIDE}, as one number ({one}) or (height, width)")
    return good


def _range(checks: Checks, name: str, value: Any, most: float, accepted: str) -> List[float]:
    """(least, greatest)."""
    limits = checks.numbers(name, value, (2,), accepted)
    if limits and not 0 < limits[0] <= limits[1] <= most:
        checks.refuse(name, value, accepted)
    return limits


def _probability(checks: Checks, value: Any) -> Json:
    accepted = "a probability from 0 to 1"
    p = checks.numbers("p", value, (1,), accepted)
    if p and not 0 <= p[0] <= 1:
        checks.refuse("p", value, accepted)
    return {"p": p[0]} if p else {}


def refusal(transform: Any, reason: str) -> InvalidArgumentError:
    """The error for an object of torchvision's that has no counterpart here."""
    return invalid(f"transforms: {type(transform).__name__}: {reason}")


# timm's "random" is bilinear or bicubic.
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
_PILLOW_NUMBERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
Interpolation = Union[str, Sequence[str]]


def _interpolation_to_spec(checks: Checks, value: Any) -> Json:
    """Accepts names and torchvision's InterpolationMode. Without the default, which daemons of every version know."""
    given = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if isinstance(value, (set, frozenset)):  # whose order differs from process to process, and so would the choice
        given = []
    names = [str(getattr(name, "value", name)).lower() for name in given]
    if names == ["random"]:
        names = ["bilinear", "bicubic"]
    if not names or not all(name in _INTERPOLATIONS for name in names):
        checks.refuse("interpolation", value, f"one or several of {', '.join(_INTERPOLATIONS)}, or random (bilinear or bicubic)")
    return {} if names == ["bilinear"] else {"interpolation": names}


def _interpolation_of(transform: Any) -> Any:
    given = getattr(transform, "interpolation", "bilinear")
    name = _PILLOW_NUMBERS.get(given, given) if isinstance(given, int) else getattr(given, "value", given)
    if getattr(transform, "antialias", None) is False and name != "nearest":
        raise refusal(transform, "antialias=False cannot be had: images are resized with antialiasing, as Pillow does")
    return name


@dataclasses.dataclass(frozen=True)
class Resize(Transform):
    """Resizes images as Pillow does, antialiased.

    size: pixels of the shorter side, the aspect ratio being kept, as an int or a sequence of one; or (height, width); or None, with max_size.
    max_size: the most pixels that the longer side may get, the aspect ratio being kept; without a size, what it gets.
    interpolation: "nearest" (not antialiased), "bilinear", "bicubic", "lanczos", or torchvision's InterpolationMode; or several, of which each
        sample gets one by the feed's seed, the epoch and the sample; "random": bilinear or bicubic.
    """

    size: Optional[Size]
    max_size: Optional[int] = None
    interpolation: Interpolation = "bilinear"

    _name = "resize"
    _sequences = ("size", "interpolation")

    def _values(self, checks: Checks) -> Json:
        size = [] if self.size is None else _size(checks, self, "the shorter side")
        spec: Json = {"size": size}
        if self.max_size is not None:
            spec["max_size"] = checks.integer("max_size", self.max_size, 1, _MAX_SIDE, ", or None for no limit")
        elif self.size is None:
            checks.refuse("size", None, "None only with a max_size, what the longer side gets")
        spec.update(_interpolation_to_spec(checks, self.interpolation))
        return spec

    @classmethod
    def from_torchvision(cls, transform: Any) -> Resize:
        return cls(transform.size, getattr(transform, "max_size", None), _interpolation_of(transform))


@dataclasses.dataclass(frozen=True)
class CenterCrop(Transform):
    """Cuts the middle out of images; a smaller image is padded with zeros first.

    size: pixels of a square's side, or (height, width).
    """

    size: Size

    _name = "center_crop"
    _sequences = ("size",)

    def _values(self, checks: Checks) -> Json:
        return {"size": _size(checks, self, "a square")}


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Cuts a random part out of images and resizes it as Pillow does, antialiased.

    size: pixels of a square's side, or (height, width).
    scale: least and greatest share of the source's area that is cut out.
    ratio: least and greatest width / height of the part.
    interpolation: as in Resize.
    The randomness depends on the feed's seed, the epoch and the sample only.
    """

    size: Size
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Interpolation = "bilinear"

    # The second is timm's.
    torchvision_names = ("RandomResizedCropAndInterpolation",)
    _name = "random_resized_crop"
    _sequences = ("size", "scale", "ratio", "interpolation")

    def _values(self, checks: Checks) -> Json:
        size = _size(checks, self, "a square")
        scale = _range(checks, "scale", self.scale, 1, "two shares of the area, 0 < least <= greatest <= 1")
        ratio = _range(checks, "ratio", self.ratio, float("inf"), "two ratios of width to height, 0 < least <= greatest")
        interpolation = _interpolation_to_spec(checks, self.interpolation)
        return {"size": size, "scale": scale, "ratio": ratio, **interpolation}

    @classmethod
    def from_torchvision(cls, transform: Any) -> RandomResizedCrop:
        return cls(transform.size, transform.scale, transform.ratio, _interpolation_of(transform))


_PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


def _padding_to_spec(checks: Checks, transform: Any) -> Json:
    spec: Json = {}
    if transform.padding is not None:
        sides = [to_integer(side) for side in listed(transform.padding)]
        if len(sides) not in (1, 2, 4) or not all(side is not None and 0 <= side <= _MAX_SIDE for side in sides):
            accepted = f"pixels from 0 to {_MAX_SIDE}: one number, or (left/right, top/bottom), or (left, top, right, bottom)"
            checks.refuse("padding", transform.padding, accepted)
        spec["padding"] = sides
    fill = [to_integer(value) for value in listed(0 if transform.fill is None else transform.fill)]
    if len(fill) not in (1, 3) or not all(value is not None and 0 <= value <= 255 for value in fill):
        checks.refuse("fill", transform.fill, "a whole number from 0 to 255, or one a channel")
    spec["fill"] = fill
    spec["padding_mode"] = checks.choice("padding_mode", transform.padding_mode, _PADDING_MODES)
    return spec


def _fill_of(transform: Any) -> Any:
    if isinstance(transform.fill, dict):
        raise refusal(transform, "a dict of fills cannot be had; give the fill of the images (masks get zeros)")
    return transform.fill


@dataclasses.dataclass(frozen=True)
class Pad(Transform):
    """Adds pixels around images.

    padding: how many, as one number, (left/right, top/bottom) or (left, top, right, bottom).
    fill: what they are with the mode "constant", 0 to 255, as one number or one a channel. 0 where the feed has masks.
    padding_mode: "constant", "edge" (the nearest pixel), "reflect" or "symmetric" (the image mirrored, without and with its edge).
    """

    padding: Size
    fill: Union[int, Sequence[int]] = 0
    padding_mode: str = "constant"

    _name = "pad"
    _sequences = ("padding", "fill")

    def _values(self, checks: Checks) -> Json:
        return _padding_to_spec(checks, self)

    @classmethod
    def from_torchvision(cls, transform: Any) -> Pad:
        return cls(transform.padding, _fill_of(transform), transform.padding_mode)


@dataclasses.dataclass(frozen=True)
class RandomCrop(Transform):
    """Cuts a part of the given size out of images, at a random place.

    size: pixels of a square's side, or (height, width).
    padding, fill, padding_mode: as in Pad, done first.
    pad_if_needed: pads images that are then smaller than the crop, on both sides by all that is missing; without it they are bad samples.
    The randomness depends on the feed's seed, the epoch and the sample only.
    """

    size: Size
    padding: Optional[Size] = None
    pad_if_needed: bool = False
    fill: Union[int, Sequence[int]] = 0
    padding_mode: str = "constant"

    _name = "random_crop"
    _sequences = ("size", "padding", "fill")

    def _values(self, checks: Checks) -> Json:
        spec = {"size": _size(checks, self, "a square"), "pad_if_needed": checks.flag("pad_if_needed", self.pad_if_needed)}
        spec.update(_padding_to_spec(checks, self))
        return spec

    @classmethod
    def from_torchvision(cls, transform: Any) -> RandomCrop:
        twice = transform.padding is not None and transform.pad_if_needed and transform.padding_mode in ("reflect", "symmetric")
        if twice and ".v2" not in type(transform).__module__:
            raise refusal(transform, "padding with pad_if_needed mirrors twice in torchvision's v1; use torchvision.transforms.v2 or pinfeed.RandomCrop")
        return cls(transform.size, transform.padding, transform.pad_if_needed, _fill_of(transform), transform.padding_mode)


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """Mirrors images left to right with probability p, by the feed's seed, the epoch and the sample."""

    p: float = 0.5

    _name = "random_horizontal_flip"

    def _values(self, checks: Checks) -> Json:
        return _probability(checks, self.p)


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(Transform):
    """Mirrors images top to bottom with probability p, by the feed's seed, the epoch and the sample."""

    p: float = 0.5

    _name = "random_vertical_flip"

    def _values(self, checks: Checks) -> Json:
        return _probability(checks, self.p)


@dataclasses.dataclass(frozen=True)
class Grayscale(Transform):
    """Replaces colours by their luma (ITU-R BT.601, what Pillow's mode "L" has).

    num_output_channels: 1, or 3 that are alike.
    """

    num_output_channels: int = 1

    _name = "grayscale"

    def _values(self, checks: Checks) -> Json:
        channels = to_integer(self.num_output_channels)
        if channels not in (1, 3):
            checks.refuse("num_output_channels", self.num_output_channels, "1 or 3")
        return {"num_output_channels": channels}


@dataclasses.dataclass(frozen=True)
class Normalize(Transform):
    """(value - mean) / std, with one mean and std a channel, or one for all. The result is floating point.

    Of uint8 images mean and std are those of the values from 0 to 1, as everywhere: they are divided by 255 first, unless a ToDtype to a
    floating type came before, whose `scale` then says whether they were.
    """

    mean: Sequence[float]
    std: Sequence[float]

    _name = "normalize"
    _sequences = ("mean", "std")

    def _values(self, checks: Checks) -> Json:
        counts = range(1, _MAX_CHANNELS + 1)
        mean = checks.numbers("mean", self.mean, counts, f"one number, or one a channel (at most {_MAX_CHANNELS})")
        accepted = f"one number above 0, by which is divided, or one a channel (at most {_MAX_CHANNELS})"
        std = checks.numbers("std", self.std, counts, accepted)
        if std and min(std) <= 0:
            checks.refuse("std", self.std, accepted)
        if len(mean) > 1 and len(std) > 1 and len(mean) != len(std):
            checks.add("std", f"{shown(self.std)} has {len(std)} values where mean has {len(mean)}; both are one a channel")
        return {"mean": mean, "std": std}


@dataclasses.dataclass(frozen=True)
class ToDtype(Transform):
    """Converts to another element type.

    dtype: "uint8", "float32", "float16" or "bfloat16", as a string, a torch dtype or a NumPy dtype.
    scale: divide by the integer type's maximum, so that uint8 becomes 0 to 1. False by default, as in torchvision's v2.
    """

    dtype: Any
    scale: bool = False

    torchvision_names = ("ConvertImageDtype", "ToTensor")
    _name = "to_dtype"

    def _values(self, checks: Checks) -> Json:
        name = dtype_name(self.dtype)
        if name not in _DTYPES:
            checks.refuse("dtype", self.dtype, f"what ToDtype takes: {', '.join(_DTYPES)}, as a string, a torch dtype or a NumPy dtype")
        else:
            check_byte_order(checks, "dtype", self.dtype, f'tensors come in this machine\'s: ToDtype("{name}")')
        return {"dtype": name, "scale": checks.flag("scale", self.scale)}

    @classmethod
    def from_torchvision(cls, transform: Any) -> ToDtype:
        name = type(transform).__name__
        if name == "ToTensor":
            return cls("float32", scale=True)
        if isinstance(transform.dtype, dict):
            raise refusal(transform, "a dict of dtypes cannot be had; give the dtype of the images")
        return cls(transform.dtype, scale=name == "ConvertImageDtype" or transform.scale)
