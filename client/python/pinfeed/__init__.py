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

from importlib import import_module
from typing import TYPE_CHECKING, Any, List

from ._base import built_for
from ._feed import gpu_queues

built_for.check()
gpu_queues.ask_for_all()

__version__ = "0.1.0"

# Public names, by the module that each is imported from when it is first used: `import pinfeed` alone takes a few
# milliseconds, and loads neither NumPy nor the client library.
_NAMES_OF_MODULE = {
    "_base.errors": [
        "Code",
        "ColumnsLeftOutWarning",
        "DataLossError",
        "DeadlineExceededError",
        "Error",
        "InvalidArgumentError",
        "LargeBatchWarning",
        "NotFoundError",
        "PermissionDeniedError",
        "ResourceExhaustedError",
        "SlotsHeldWarning",
        "UnavailableError",
        "UnexpectedArgumentError",
    ],
    "_batcher.batcher": [
        "Batcher",
        "RequestBatch",
    ],
    "_batcher.client": [
        "BatcherClient",
        "RequestFuture",
    ],
    "_copies.to_device": [
        "pinned_empty",
        "to_device",
    ],
    "_copies.to_host": [
        "HostCopy",
        "to_host",
    ],
    "_feed.batch": ["Batch"],
    "_feed.dlpack": ["RawTensor"],
    "_feed.feed": ["Feed"],
    "_feed.open": ["open"],
    "_feed.ragged": ["Ragged"],
    "_feed.status": [
        "datasets",
        "status",
    ],
    "_loader.data_loader": ["DataLoader"],
    "_worker.encoded": ["EncodedImage"],
    "_worker.worker_info": [
        "WorkerInfo",
        "get_worker_info",
    ],
    "transforms": [
        "CenterCrop",
        "Grayscale",
        "Normalize",
        "Pad",
        "RandomCrop",
        "RandomHorizontalFlip",
        "RandomResizedCrop",
        "RandomVerticalFlip",
        "Resize",
        "ToDtype",
        "Transform",
    ],
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names}
_SUBMODULES = ["transforms"]

__all__ = sorted(_MODULE_OF_NAME)

if TYPE_CHECKING:
    from ._base.errors import Code as Code
    from ._base.errors import ColumnsLeftOutWarning as ColumnsLeftOutWarning
    from ._base.errors import DataLossError as DataLossError
    from ._base.errors import DeadlineExceededError as DeadlineExceededError
    from ._base.errors import Error as Error
    from ._base.errors import InvalidArgumentError as InvalidArgumentError
    from ._base.errors import LargeBatchWarning as LargeBatchWarning
    from ._base.errors import NotFoundError as NotFoundError
    from ._base.errors import PermissionDeniedError as PermissionDeniedError
    from ._base.errors import ResourceExhaustedError as ResourceExhaustedError
    from ._base.errors import SlotsHeldWarning as SlotsHeldWarning
    from ._base.errors import UnavailableError as UnavailableError
    from ._base.errors import UnexpectedArgumentError as UnexpectedArgumentError
    from ._batcher.batcher import Batcher as Batcher
    from ._batcher.batcher import RequestBatch as RequestBatch
    from ._batcher.client import BatcherClient as BatcherClient
    from ._batcher.client import RequestFuture as RequestFuture
    from ._copies.to_device import pinned_empty as pinned_empty
    from ._copies.to_device import to_device as to_device
    from ._copies.to_host import HostCopy as HostCopy
    from ._copies.to_host import to_host as to_host
    from ._feed.batch import Batch as Batch
    from ._feed.dlpack import RawTensor as RawTensor
    from ._feed.feed import Feed as Feed
    from ._feed.open import open as open
    from ._feed.ragged import Ragged as Ragged
    from ._feed.status import datasets as datasets
    from ._feed.status import status as status
    from ._loader.data_loader import DataLoader as DataLoader
    from ._worker.encoded import EncodedImage as EncodedImage
    from ._worker.worker_info import get_worker_info as get_worker_info
    from ._worker.worker_info import WorkerInfo as WorkerInfo
    from .transforms import CenterCrop as CenterCrop
    from .transforms import Grayscale as Grayscale
    from .transforms import Normalize as Normalize
    from .transforms import Pad as Pad
    from .transforms import RandomCrop as RandomCrop
    from .transforms import RandomHorizontalFlip as RandomHorizontalFlip
    from .transforms import RandomResizedCrop as RandomResizedCrop
    from .transforms import RandomVerticalFlip as RandomVerticalFlip
    from .transforms import Resize as Resize
    from .transforms import ToDtype as ToDtype
    from .transforms import Transform as Transform

else:

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return import_module(f".{name}", __name__)
        if name not in _MODULE_OF_NAME:
            raise AttributeError(f"module 'pinfeed' has no attribute {name!r}")
        value = getattr(import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
        globals()[name] = value  # found without this function from now on
        return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
