# SPDX-License-Identifier: Apache-2.0
"""Copies a loader's batches to a GPU.

In: the page-locked memory of batches. Out: batches whose tensors are on the GPU, ready in the order of the caller's stream.
"""

from __future__ import annotations

import collections
from typing import Any, Deque, List, Tuple

from .._base.optional_torch import torch_or_none
from .._worker.batch_memory import read_batch
from .pinning import convert_tensors


class DeviceCopies:
    """Copies batches on a stream of its own, so that they travel while the GPU computes. Owns the stream and the memory
    of the batches that are being copied. Threads: one.

    Invariant: memory of a batch is let go once the GPU has read it.
    """

    def __init__(self, device: Any) -> None:
        torch = torch_or_none()
        self._cuda = torch.cuda
        self._device = torch.device("cuda", device)
        self._stream = torch.cuda.Stream(self._device)
        self._under_way: Deque[Tuple[Any, Any]] = collections.deque()  # the event behind the copies, and the memory

    def read(self, memory: Any, images: Any = None) -> Any:
        """Returns the batch in a slot's memory, with its tensors on the GPU. Raises what `read_batch` raises. `images`: see
        `read_batch`.
        """
        moved: List[Any] = []

        def move(tensor: Any) -> Any:
            moved.append(tensor.to(self._device, non_blocking=True))
            return moved[-1]

        with self._cuda.stream(self._stream):
            try:
                batch = read_batch(memory, move, images)
            finally:
                if moved:
                    self._under_way.append((self._stream.record_event(), (memory, images)))
        caller = self._cuda.current_stream(self._device)
        if moved:
            caller.wait_event(self._under_way[-1][0])
        for tensor in moved:
            tensor.record_stream(caller)
        return batch

    def let_go(self, wait: bool) -> None:
        """Lets go of the memory that the GPU has read. With `wait`, waits until it has read the oldest first."""
        while self._under_way and (wait or self._under_way[0][0].query()):
            self._under_way[0][0].synchronize()
            self._under_way.popleft()
            wait = False

    def close(self) -> None:
        """Waits for all copies."""
        while self._under_way:
            self.let_go(wait=True)


def mover(device: int) -> Any:
    """Returns a function that moves a batch of any structure to a GPU, for batches that this process has loaded."""
    target = torch_or_none().device("cuda", device)
    return lambda batch: convert_tensors(batch, lambda tensor: tensor.to(target), "to", (target,))
