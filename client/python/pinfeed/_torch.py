# SPDX-License-Identifier: Apache-2.0
"""PyTorch, if it is installed: the loader works with it and without it."""

from __future__ import annotations

import functools
from typing import Any


@functools.lru_cache(maxsize=None)
def torch_or_none() -> Any:
    """Returns the module torch, with torch.utils.data. None if it is not installed."""
    try:
        import torch
        import torch.utils.data
    except ImportError:
        return None
    return torch
