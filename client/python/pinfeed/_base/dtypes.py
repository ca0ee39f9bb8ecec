# SPDX-License-Identifier: Apache-2.0
"""Names of element types, what torch asks of arrays, and strides.

What comes in: strings, torch dtypes, NumPy dtypes and scalar types. What goes out: names as the spec has them.
"""

from __future__ import annotations

import sys
from typing import Any, List, Optional, Tuple

from .checks import Checks, shown


def dtype_name(dtype: Any) -> str:
    """"float32" and so on, of a string, a torch dtype, a NumPy dtype or a NumPy scalar type; "" for what is none."""
    text = str(dtype)
    if not isinstance(dtype, str) and text.startswith("torch."):
        return text[len("torch.") :]
    known = _numpy_dtype(dtype)
    return str(known.name) if known is not None else text if isinstance(dtype, str) else ""


def check_byte_order(checks: Checks, field: str, dtype: Any, advice: str) -> None:
    """A fault for the dtype of the other byte order, whose name does not tell it."""
    known = _numpy_dtype(dtype)
    if known is not None and not known.isnative:
        checks.add(field, f"{shown(dtype)} is {known.name} in the other byte order than this machine's; {advice}")


def has_layout_of_tensors(array: Any) -> bool:
    """Whether torch.from_numpy takes an array of numbers without a copy, whatever its dtype: it can be written, and its strides are whole elements."""
    return bool(array.flags.writeable) and all(step >= 0 and step % array.itemsize == 0 for step in array.strides)


def is_masked(array: Any) -> bool:
    """Whether this is a masked array. Does not import numpy.ma, which takes 15 ms with NumPy 2: before somebody does, there is no such array."""
    return isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def _numpy_dtype(dtype: Any) -> Optional[Any]:
    """NumPy's dtype of that name or type; None for what is none, as NumPy takes None for float64."""
    import numpy

    try:
        return None if dtype is None else numpy.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return None


def dense_strides(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """Returns the strides of a tensor in C order, as torch counts them: a dimension of no elements counts as one."""
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= max(extent, 1)
    return tuple(reversed(strides))


def all_in_c_order(torch: Any, shape: Tuple[int, ...], tensors: List[Any]) -> bool:
    """Returns whether tensors of a shape have no gaps, and the strides of C order. torch says "contiguous" whatever the stride of a dimension of 1 is, which
    tells convolutions of images of one channel that these are in channels_last.
    """
    if not all(map(torch.Tensor.is_contiguous, tensors)):
        return False
    return 1 not in shape or 0 in shape or list(map(torch.Tensor.stride, tensors)).count(dense_strides(shape)) == len(tensors)
