# SPDX-License-Identifier: Apache-2.0
"""Arrays that cross the connection of a batcher, as requests and as answers.

In: what a client or a model gives. Out: a tensor or an array of it, and its bytes.
"""

from __future__ import annotations

import sys
from typing import Any

from .._base.errors import invalid


def as_array(call: str, data: Any) -> Any:
    """Returns a tensor as it is, and anything else as a NumPy array. `call`: for errors."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return data
    import numpy

    if isinstance(data, numpy.ma.MaskedArray):
        raise invalid(f"{call}: an array is masked: give its filled()")
    return numpy.asarray(data)


def bytes_of(array: Any) -> bytes:
    """Returns the elements of a tensor, on any device, or of an array, in the order of its dimensions and the machine's byte order."""
    if hasattr(array, "__array_interface__"):  # an array
        return bytes(array.astype(array.dtype.newbyteorder("="), copy=False).tobytes())
    import torch

    dense = (array.to_dense() if array.layout != torch.strided else array).detach().cpu().resolve_conj().resolve_neg()
    row = dense.reshape(-1)
    if row.stride(0) != 1:  # of one element it may be anything
        row = row.clone(memory_format=torch.contiguous_format)
    return bytes(row.view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
