# SPDX-License-Identifier: Apache-2.0
"""Arrays that cross the connection of a batcher, as requests and as answers.

In: what a client or a model gives. Out: a tensor or an array of it, and its bytes.
"""

from __future__ import annotations

import sys
from typing import Any, List

from .._base.dtypes import is_masked
from .._base.errors import invalid


def as_array(call: str, data: Any) -> Any:
    """Returns a tensor as it is, and anything else as a NumPy array. `call`: for errors."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return data
    if is_masked(data):
        raise invalid(f"{call}: an array is masked: give its filled()")
    import numpy

    return numpy.asarray(data)


def bytes_of(array: Any) -> memoryview:
    """Returns the elements of a tensor, on any device, or of an array, in the order of its dimensions and the machine's byte order. Without a copy if they
    lie so.
    """
    if hasattr(array, "__array_interface__"):  # an array
        import numpy

        elements: Any = numpy.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
        return memoryview(elements.reshape(-1).view(numpy.uint8))
    import torch

    dense = (array.to_dense() if array.layout != torch.strided else array).detach().cpu().resolve_conj().resolve_neg()
    if hasattr(dense, "has_names") and dense.has_names():  # newer releases of torch have no named tensors
        dense = dense.rename(None)
    row = dense.reshape(-1)
    if row.stride(0) != 1:  # of one element it may be anything
        row = row.clone(memory_format=torch.contiguous_format)
    return memoryview(row.view(torch.uint8).numpy())  # NumPy has no bfloat16


def holds_numbers(array: Any) -> bool:
    """Whether this is plain memory of numbers: no subclass, whose rows may be something else, nor strings or objects."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(array) is torch.Tensor:
        return bool(array.layout is torch.strided and not array.is_quantized and not array.is_nested)
    return numpy is not None and type(array) is numpy.ndarray and array.dtype.kind in "biufc"


def bytes_of_rows(array: Any) -> List[memoryview]:
    """Returns the bytes of each row of a tensor or an array that has rows: as `bytes_of`, but with one copy for all of them."""
    content = bytes_of(array)
    size = len(content) // len(array)
    return [content[number * size : (number + 1) * size] for number in range(len(array))]
