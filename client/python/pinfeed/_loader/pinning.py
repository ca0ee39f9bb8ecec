# SPDX-License-Identifier: Apache-2.0
"""Copies a batch to page-locked memory, as torch's DataLoader does for ``pin_memory=True``."""

from __future__ import annotations

import collections.abc
import contextlib
import copy
import warnings
from typing import Any, Callable, Optional, Tuple

from .._base.optional_torch import torch_or_none


def pinner(pin_memory: bool, device: str) -> Optional[Callable[[Any], Any]]:
    """Returns the function that a loader with these arguments applies to its batches, or None. Warns if page-locked
    memory was asked for and there is no accelerator.
    """
    if not pin_memory:
        if device:
            warnings.warn("pin_memory_device is set but pin_memory is not: the batches are not pinned. Set pin_memory=True", stacklevel=7)
        return None
    torch = torch_or_none()
    if torch is None or not (torch.cuda.is_available() or (device and not device.startswith("cuda"))):
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
            stacklevel=7,
        )
        return None
    return lambda batch: pin(batch, device or None)


def pin(data: Any, device: Optional[str]) -> Any:
    """Returns `data` with its tensors in page-locked memory. Tuples become lists if they do so in this version of torch."""
    keeps_tuples = isinstance(torch_or_none().utils.data._utils.pin_memory.pin_memory(()), tuple)
    return convert_tensors(data, lambda tensor: tensor.pin_memory() if device is None else tensor.pin_memory(device), "pin_memory", (), keeps_tuples)


def convert_tensors(data: Any, convert: Callable[[Any], Any], method: str, arguments: Tuple[Any, ...] = (), keeps_tuples: bool = True) -> Any:
    """Returns `data` with `convert` applied to its tensors. Other objects that have the method are asked for it. Without
    `keeps_tuples`, tuples become lists, but for named ones.
    """
    tensor_type = torch_or_none().Tensor

    def converted(data: Any) -> Any:
        if isinstance(data, tensor_type):
            return convert(data)
        if hasattr(data, method):
            return getattr(data, method)(*arguments)
        if isinstance(data, (str, bytes)):
            return data
        if isinstance(data, collections.abc.Mapping):
            return _rebuilt(data, {key: converted(value) for key, value in data.items()})
        if isinstance(data, tuple) and hasattr(data, "_fields"):
            return type(data)(*map(converted, data))
        if isinstance(data, collections.abc.Sequence):
            members = list(map(converted, data))
            return members if isinstance(data, tuple) and not keeps_tuples else _rebuilt(data, members)
        return data

    return converted(data)


def _rebuilt(data: Any, content: Any) -> Any:
    """Returns the content in a copy of a dict or list, which has its attributes, or else in another container of the type; as it is if none can be made."""
    if isinstance(data, (dict, list)) or hasattr(type(data), "__copy__"):  # a copy of another container may share what it is in
        with contextlib.suppress(Exception):  # whatever their methods raise
            same: Any = copy.copy(data)
            for key, value in content.items() if isinstance(content, dict) else enumerate(content):
                same[key] = value
            if getattr(data, "__dict__", None) is data:  # its items are its attributes, too
                same.__dict__ = same
            return same
    try:
        return type(data)(content)
    except TypeError:
        return content
