# SPDX-License-Identifier: Apache-2.0
"""Many tensors in one allocation.

In: a block of bytes, and a layout. Out: tensors over the block, which are no views to autograd: each has a version of
its own, and what is done to one in place says nothing about the others.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Tuple

from .._base.dtypes import dense_strides


@functools.lru_cache(maxsize=None)
def item_bytes(torch: Any, dtype: Any) -> int:
    """Returns the bytes of one element."""
    return int(torch.empty(0, dtype=dtype).element_size())


def carve(torch: Any, block: Any, dtype: Any, shape: Tuple[int, ...], offset: int, pitch: int, count: int) -> List[Any]:
    """Returns `count` dense tensors of a dtype and shape, which begin at `offset`, `offset + pitch`, ... bytes of a block
    of uint8. All three are multiples of the element's size, and all tensors lie in the block.
    """
    size = item_bytes(torch, dtype)
    strides = dense_strides(shape)
    if count > 1:
        slices = _slices(torch)
        if slices is not None:
            rows = _over(torch, block, dtype, offset // size, (count, *shape), (pitch // size, *strides))
            return list(slices(rows))
    return [_over(torch, block, dtype, (offset + pitch * number) // size, shape, strides) for number in range(count)]


def _over(torch: Any, block: Any, dtype: Any, begin: int, shape: Tuple[int, ...], strides: Tuple[int, ...]) -> Any:
    storage = block.untyped_storage() if hasattr(block, "untyped_storage") else block.storage().untyped()
    return torch.empty(0, dtype=dtype, device=block.device).set_(storage, begin, shape, strides)


@functools.lru_cache(maxsize=None)
def _slices(torch: Any) -> Any:
    """Returns a function that makes tensors of the slices along dimension 0 faster than one by one, or None if this torch
    has none that keeps the promise of this file.

    It is torch's unbind below the layers that make views known to autograd.
    """
    try:
        keys = torch._C.DispatchKey
        hidden = torch._C.DispatchKeySet(keys.ADInplaceOrView) | torch._C.DispatchKeySet(keys.AutogradCPU) | torch._C.DispatchKeySet(keys.AutogradCUDA)
        guard: Callable[[Any], Any] = torch._C._ExcludeDispatchKeyGuard

        def slices(rows: Any) -> Any:
            with guard(hidden):
                return rows.unbind(0)

        probe = torch.zeros(2, 3, device="cpu")
        first, second = slices(probe)
        first.add_(1)
        independent = (first._version, second._version, probe._version) == (1, 0, 0) and not first._is_view()
        shared = probe.tolist() == [[1.0] * 3, [0.0] * 3]
        first.unsqueeze_(0)
        return slices if independent and shared and tuple(first.shape) == (1, 3) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
