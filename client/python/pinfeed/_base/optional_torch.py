# SPDX-License-Identifier: Apache-2.0
"""PyTorch, if it is installed: the loader works with it and without it."""

from __future__ import annotations

import functools
from typing import Any, Callable


@functools.lru_cache(maxsize=None)
def torch_or_none() -> Any:
    """Returns the module torch, with torch.utils.data. None if it is not installed."""
    try:
        import torch
        import torch.utils.data
    except ImportError:
        return None
    return torch


def capture_query(torch: Any) -> Callable[[], bool]:
    """Returns the function that tells whether work for the current stream becomes part of a graph."""
    query: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
    return query


def stream_query(torch: Any, device: Any) -> Callable[[], int]:
    """Returns the function that tells the current stream of a GPU, as a CUstream."""
    # Creates no Python objects, which cost some microseconds. torch's compiled code calls it too.
    raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw_stream is not None:
        return functools.partial(raw_stream, device.index)
    return lambda: int(torch.cuda.current_stream(device).cuda_stream)
