# SPDX-License-Identifier: Apache-2.0
"""What the iterators of a loader use of it. They do not refer to the loader itself: one that keeps its own iterator, as yolov5's InfiniteDataLoader
does, is freed with the last reference to it, and its workers end then.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

from .._base.checks import MAX_SLOTS
from .._worker.fetch import Kind
from .images import LoaderImages

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
    excludes_worker: str  # the argument with which seeding="worker" is not possible; empty: none
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
        dataset=loader.dataset,
        kind=loader._kind,
        index_sampler=loader._index_sampler,
        sampler=loader.sampler,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        collate_fn=loader.collate_fn,
        num_workers=loader._workers,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        timeout=loader.timeout,
        address=loader._address,
        ordinal=loader._ordinal,
        max_batch_bytes=loader._max_batch_bytes,
        retry_after=loader._retry_after,
        excludes_worker=loader._excludes_worker,
        encoded=loader._encoded,
        epoch=loader._epochs,
    )


class Carried:
    """What the epochs of a loader leave to later ones."""

    def __init__(self) -> None:
        self.capacity = 0  # of a batch, once known
        self.most_slots = MAX_SLOTS  # for which the daemon had memory
        self.warned_of_generator = False  # of one that no seed of a sample reaches
        self.warned_of_size = False  # a batch did not fit into a slot
        self.structure = ""  # of a batch, once known, if others share it
        self.latest: object = None  # each epoch has an object of its own here: that of the one that began last
        self.left: Union[Dict[str, Any], str, None] = None  # the position of an epoch that was left before its end, or why it has none
        # What `begin_again` needs for the next epoch of an iterable dataset, as long as the dataset tells of a state that follows.
        self.begun_again: Optional[Tuple[Any, Any]] = None
        # An iterable dataset in this process was left before its end: it may begin anew, or go on. None: it was not read.
        self.stream_left: Optional[bool] = None

    def warn_of_kept_generator(self, place: str, excludes: str, stacklevel: int) -> None:
        """Warns, once a loader, of a generator that workers keep. `excludes`: the argument with which they cannot take turns; empty if there is none."""
        if not self.warned_of_generator:
            self.warned_of_generator = True
            advice = f"Omit {excludes}: the workers then take turns" if excludes else 'Give seeding="worker": the workers then take turns'
            warnings.warn(
                f"DataLoader: {place} is a random number generator that the dataset or the collate_fn keeps. A worker that is free makes the next batch, so that its "
                f"numbers differ from run to run. {advice}, and each draws the same numbers. Or draw from the global generators, which are seeded for each sample. "
                'seeding="sample" ends this warning',
                stacklevel=stacklevel,
            )
