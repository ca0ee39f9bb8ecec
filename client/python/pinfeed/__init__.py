# SPDX-License-Identifier: Apache-2.0
"""Training batches from the daemon ``pinfeedd``.

    import pinfeed

    feed = pinfeed.open("/data/train", batch_size=256, shuffle=True,
                        transforms=[pinfeed.RandomResizedCrop(224), pinfeed.RandomHorizontalFlip(), pinfeed.ToDtype("float32", scale=True)])
    for epoch in range(90):
        for images, labels in feed:
            ...

The daemon reads, decodes and collates; this process gets tensors. `open` lists what a feed can do, `Feed` describes
how to iterate, `Batch` what each iteration yields, and `Error` what can go wrong. Warnings and notes go to the
logger ``pinfeed``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._batch import Batch
from ._dlpack import RawTensor
from ._errors import (
    Code,
    ColumnsLeftOutWarning,
    DataLossError,
    DeadlineExceededError,
    Error,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SlotsHeldWarning,
    UnavailableError,
    UnexpectedArgumentError,
)
from ._loader import DataLoader
from ._open import open
from ._ragged import Ragged
from ._status import datasets, status
from ._worker_info import WorkerInfo, get_worker_info
from .feed import Feed
from .transforms import (
    CenterCrop,
    Grayscale,
    Normalize,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    Transform,
)

if TYPE_CHECKING:
    from ._to_device import pinned_empty, to_device
    from ._to_host import HostCopy, to_host

__version__ = "0.1.0"

# What is imported only when it is used: name -> module.
_LATER = {"HostCopy": "_to_host", "pinned_empty": "_to_device", "to_device": "_to_device", "to_host": "_to_host"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    return value



__all__ = [
    "Batch",
    "CenterCrop",
    "Code",
    "ColumnsLeftOutWarning",
    "DataLoader",
    "DataLossError",
    "DeadlineExceededError",
    "Error",
    "Feed",
    "Grayscale",
    "HostCopy",
    "InvalidArgumentError",
    "Normalize",
    "NotFoundError",
    "Pad",
    "PermissionDeniedError",
    "Ragged",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "RawTensor",
    "Resize",
    "ResourceExhaustedError",
    "SlotsHeldWarning",
    "ToDtype",
    "Transform",
    "UnavailableError",
    "UnexpectedArgumentError",
    "WorkerInfo",
    "datasets",
    "get_worker_info",
    "open",
    "pinned_empty",
    "status",
    "to_device",
    "to_host",
]
