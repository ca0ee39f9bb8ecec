# SPDX-License-Identifier: Apache-2.0
"""What code in a worker process can learn about that worker, as from ``torch.utils.data.get_worker_info``."""

from __future__ import annotations

import importlib
from typing import Any, List

from .._base.optional_torch import torch_or_none


class WorkerInfo:
    """The worker that this process is. id: its number, from 0. num_workers: how many there are. seed: the seed that it
    started with. dataset: its own copy of the dataset.
    """

    def __init__(self, id: int, num_workers: int, seed: int, dataset: Any) -> None:  # noqa: A002 - torch's names
        self.id = id
        self.num_workers = num_workers
        self.seed = seed
        self.dataset = dataset

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, num_workers={self.num_workers}, seed={self.seed}, dataset={self.dataset!r})"


_this: List[Any] = []


def get_worker_info() -> Any:
    """In a worker process of a `DataLoader`, returns its `WorkerInfo`: id, num_workers, seed and dataset. Elsewhere
    returns None. ``torch.utils.data.get_worker_info`` answers the same.
    """
    return _this[0] if _this else None


def set_worker_info(worker: int, num_workers: int, seed: int, dataset: Any) -> None:
    """Makes this process a worker."""
    info: Any = WorkerInfo(worker, num_workers, seed, dataset)
    if torch_or_none() is not None:
        torch_worker: Any = importlib.import_module("torch.utils.data._utils.worker")
        info = torch_worker.WorkerInfo(id=worker, num_workers=num_workers, seed=seed, dataset=dataset)
        torch_worker._worker_info = info
    _this[:] = [info]
