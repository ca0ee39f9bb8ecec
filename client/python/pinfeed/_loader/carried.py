# SPDX-License-Identifier: Apache-2.0
"""What the iterators of a loader have of it. None of them refers to the loader: one that keeps its own iterator, as yolov5's InfiniteDataLoader, is
freed, and its workers end, with the last reference to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

from .._worker.fetch import Kind
from .images import LoaderImages
from .share import Share

if TYPE_CHECKING:
    from .data_loader import DataLoader


class LoaderArguments(NamedTuple):
    """The arguments of a loader when an epoch begins, and which epoch that is."""

    dataset: Any
    kind: Kind
    index_sampler: Any
    sampler: Any
    batch_size: Optional[int]
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    num_workers: int  # of this epoch; that of the loader may be another one by now
    prefetch_factor: Optional[int]
    persistent_workers: bool
    timeout: float
    address: Optional[str]
    ordinal: int  # of the GPU that gets the batches; -1: the host
    max_batch_bytes: int  # 0: what the first batch needs
    retry_after: float  # 0: never
    share: Optional[Share]
    encoded: Optional[LoaderImages]
    epoch: int  # from 1

    def length(self) -> int:
        """Batches per epoch: those of the sampler; for an iterable dataset, what its length says."""
        return batches_of_samples(len(self.dataset), self.batch_size, self.drop_last) if self.kind is Kind.ITERABLE else len(self.index_sampler)


def batches_of_samples(samples: int, batch_size: Optional[int], drop_last: bool) -> int:
    """Returns how many batches so many samples of an iterable dataset make."""
    if batch_size is None:
        return samples
    return samples // batch_size if drop_last else -(-samples // batch_size)


def arguments_of(loader: "DataLoader[Any]") -> LoaderArguments:
    return LoaderArguments(
        loader.dataset,
        loader._kind,
        loader._index_sampler,
        loader.sampler,
        loader.batch_size,
        loader.drop_last,
        loader.collate_fn,
        loader._workers,
        loader.prefetch_factor,
        loader.persistent_workers,
        loader.timeout,
        loader._address,
        loader._ordinal,
        loader._max_batch_bytes,
        loader._retry_after,
        loader._share,
        loader._encoded,
        loader._epochs,
    )


class Carried:
    """What the epochs of a loader leave to later ones."""

    def __init__(self, capacity: int, most_slots: int) -> None:
        self.capacity = capacity  # of a batch, once known; else 0
        self.most_slots = most_slots  # for which the daemon had memory
        self.warned_of_size = False  # a batch did not fit into a slot
        self.structure = ""  # of a batch, once known, if others share it
        self.latest: object = None  # stands for the epoch that began last
        self.left: Union[Dict[str, Any], str, None] = None  # the position of an epoch that was left before its end, or why it has none
        # What `begin_again` needs for the next epoch of an iterable dataset, as long as the dataset tells of a state that follows.
        self.begun_again: Optional[Tuple[Any, Any]] = None
        # An iterable dataset in this process was left before its end: it may begin anew, or go on. None: it was not read.
        self.stream_left: Optional[bool] = None
