# SPDX-License-Identifier: Apache-2.0
"""The structure of a batch, as text that processes compare.

In: any Python object. Out: its containers, types, dtypes and shapes.
"""

from __future__ import annotations

from typing import Any, List

import numpy

from .._base.optional_torch import torch_or_none
from .batch_memory import is_dense


def structure_of(batch: Any) -> str:
    """Describes a batch: its containers, and the type of each value; for tensors and arrays dtype and shape."""
    out: List[str] = []
    _describe(batch, torch_or_none(), out)
    return "".join(out)


def _describe(value: Any, torch: Any, out: List[str]) -> None:
    kind = type(value)
    out.append(kind.__name__)
    if isinstance(value, numpy.ndarray) or (torch is not None and isinstance(value, torch.Tensor) and is_dense(torch, value)):
        out.append(f":{value.dtype}{list(value.shape)}")
    elif isinstance(value, dict):
        for key, item in sorted(value.items(), key=lambda each: repr(each[0])):  # the order may be that of a set, by each process's hashes
            out.append(f"({key!r}=")
            _describe(item, torch, out)
            out.append(")")
    elif isinstance(value, (list, tuple)):
        out.append("(")
        for item in value:
            _describe(item, torch, out)
            out.append(",")
        out.append(")")
