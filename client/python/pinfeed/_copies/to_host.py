# SPDX-License-Identifier: Apache-2.0
"""`to_host`: tensors of GPUs, copied to this process's memory.

In: any nesting of containers. Out: a `HostCopy`, which gives the same with tensors in page-locked memory once all
have arrived.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

from .._base.errors import DeadlineExceededError, UnavailableError
from .._base.optional_torch import torch_or_none
from .copier import copier
from .tree import Tree

_FIRST_PAUSE, _LAST_PAUSE = 20e-6, 1e-3


class HostCopy:
    """Tensors on their way from GPUs. Their values can be had only after the wait for them. Threads: any."""

    def __init__(self, tree: Any, events: List[Any], sources: List[Any]) -> None:
        self._tree = tree
        self._events = events
        self._sources: Optional[List[Any]] = sources  # kept until they have been read

    def done(self) -> bool:
        """Returns whether all has arrived. Never waits. Raises torch's error if a GPU has failed."""
        if not all(event.query() for event in self._events):
            return False
        self._sources = None
        return True

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until all has arrived. Other threads run meanwhile. Raises DeadlineExceededError after `timeout` seconds,
        and torch's error if a GPU has failed.
        """
        if timeout is None:
            for event in self._events:
                event.synchronize()
        deadline = time.monotonic() + (timeout or 0)
        pause = _FIRST_PAUSE
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceededError(f"to_host: the tensors did not arrive within {timeout} s")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_PAUSE)

    def result(self, timeout: Optional[float] = None) -> Any:
        """Waits, and returns the tree with its tensors in the host's memory: the same at each call. Raises as `wait`."""
        self.wait(timeout)
        return self._tree

    def __repr__(self) -> str:
        return f"<pinfeed.HostCopy: {'arrived' if self.done() else 'under way'}>"


def to_host(tree: Any, *, non_blocking: bool = False) -> HostCopy:
    """Begins to copy the torch tensors of `tree` from their GPUs, and returns a `HostCopy`, whose ``result()`` is the tree
    with tensors in page-locked memory. Never waits for a GPU. Needs no daemon.

    tree: as in `to_device`. Tensors that are not on a GPU, NumPy arrays and all else stay as they are. Sparse tensors,
    subclasses and objects with a method ``to`` are moved by it, which waits. The results need no gradient, and are
    dense in C order.

    The copies follow what the current stream had to do before. What it does next follows the copies, so it may
    change the tensors. With `non_blocking`, it does not wait for them: do not write to the tensors until
    `HostCopy.done`. Either way they are kept until they have been read.

    Threads: any. Raises Error (FAILED_PRECONDITION) while the current stream captures a graph, and in a forked child;
    UnavailableError without PyTorch; InvalidArgumentError for modules and containers that contain themselves.
    """
    torch = torch_or_none()
    if torch is None:
        raise UnavailableError("to_host needs PyTorch, which is not installed")
    walked = Tree(tree, (torch.Tensor, torch.nn.Parameter))
    moved: Dict[int, Any] = {}
    by_gpu: Dict[int, List[int]] = {}
    for key, tensor in walked.tensors.items():
        ordinal = gpu_of(tensor)
        if ordinal < 0:
            moved[key] = tensor
        elif type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_quantized:
            by_gpu.setdefault(ordinal, []).append(key)
        else:
            moved[key] = tensor.detach().to("cpu")
    events: List[Any] = []
    sources: List[Any] = []
    with torch.no_grad():
        for ordinal, keys in by_gpu.items():
            gpu = copier(ordinal)
            streams = gpu.streams
            gpu.choose_stream("to_host")  # refuses a capture. Its choice is not used: `non_blocking` decides
            stream = streams.current()
            # On the caller's stream even if these become copies.
            tensors = [walked.tensors[key].detach().resolve_conj().resolve_neg().contiguous() for key in keys]
            sources += tensors
            if non_blocking:
                stream = streams.side
                streams.fork(tensors)
            with gpu.scope(stream):
                for key, tensor in zip(keys, tensors):
                    moved[key] = streams.host_empty(tuple(tensor.shape), tensor.dtype).copy_(tensor, non_blocking=True)
            events.append(streams.event(stream))
    result = walked.rebuilt(moved, lambda node: node.to("cpu"))
    return HostCopy(result, events, sources)


def gpu_of(tensor: Any) -> int:
    """Returns the number of the GPU that a tensor is on, -1 if on none."""
    return int(tensor.get_device()) if tensor.is_cuda else -1
