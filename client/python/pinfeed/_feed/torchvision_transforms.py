# SPDX-License-Identifier: Apache-2.0
"""What users give as transforms, as this package's own.

What comes in: objects of `pinfeed.transforms` or torchvision's (v1 and v2), one or several, also in a Compose.
What goes out: a flat tuple of `pinfeed.transforms` objects.
"""

from __future__ import annotations

from typing import Any, Iterable, List, Tuple, Type

from .._base.checks import shown
from .._base.errors import invalid
from ..transforms import Transform, refusal


def normalize_transforms(transforms: Any) -> Tuple[Transform, ...]:
    """Transforms of this module or of torchvision, one or a sequence or a Compose of them, as a flat tuple of this module's.

    Raises InvalidArgumentError for what the daemon has no counterpart of.
    """
    if transforms is None:
        return ()
    if isinstance(transforms, (str, bytes, dict, set, frozenset)):
        raise invalid(f"transforms: {shown(transforms)} is not a transform or a sequence of them, such as [pinfeed.Resize(256)]")
    if isinstance(transforms, (Transform, type)) or callable(transforms) or not isinstance(transforms, Iterable):
        transforms = (transforms,)
    flat: List[Transform] = []
    for transform in transforms:
        if isinstance(transform, (str, bytes, dict)):
            raise invalid(f"transforms: {shown(transform)} is not a transform: give objects, such as pinfeed.RandomResizedCrop(224)")
        if isinstance(transform, Transform):
            flat.append(transform)
        elif isinstance(transform, type):
            name = transform.__name__
            raise invalid(f"transforms: {name} is a class, not a transform: give an object of it, {name}(...)")
        elif type(transform).__name__ in ("Compose", "Sequential", "ModuleList"):
            _check_origin(transform)
            flat.extend(normalize_transforms(list(getattr(transform, "transforms", transform))))
        else:
            flat.extend(_from_torchvision(transform))
    return tuple(flat)


def _from_torchvision(transform: Any) -> Tuple[Transform, ...]:
    name = type(transform).__name__
    for cls in _classes():
        if name == cls.__name__ or name in cls.torchvision_names:
            _check_origin(transform)
            return (cls.from_torchvision(transform),)
    if name in ("PILToTensor", "ToImage", "ToPureTensor", "Identity"):
        _check_origin(transform)
        return ()  # images leave the decoder as uint8 tensors
    known = [cls.__name__ for cls in _classes()]
    raise refusal(
        transform,
        f"the daemon has no such transform ({shown(transform)}). It has {', '.join(known[:-1])} and {known[-1]}; "
        "apply others to the batches, random ones sample by sample (torchvision draws once a call), or in a dataset of your own with pinfeed.DataLoader",
    )


def _check_origin(transform: Any) -> None:
    """Raises unless the class is the library's own. Another one of the same name may do anything, and so may a subclass."""
    name, module = type(transform).__name__, type(transform).__module__
    if module.partition(".")[0] not in (("timm",) if name == "RandomResizedCropAndInterpolation" else ("torchvision", "torch")):
        raise refusal(
            transform,
            f"this class is {module}'s, and only torchvision's own are known by their names: what it does would not be done. Give torchvision's, or one of "
            "pinfeed's transforms; or use a dataset of your own with pinfeed.DataLoader",
        )


def _classes() -> List[Type[Transform]]:
    return [cls for cls in Transform.__subclasses__() if cls.__module__ == Transform.__module__]
