# SPDX-License-Identifier: Apache-2.0
"""The attributes that training code looks up on a DataLoader: ``loader.dataset`` and ``loader.sampler``.

In: an open feed. Out: its dataset's size and labels, and its sampler's size and epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

if TYPE_CHECKING:
    from .feed import Feed


class DatasetView:
    """A feed's dataset: ``len(feed.dataset)``, and the attributes of ImageFolder. Samples come only in batches, from
    the feed.

    Holds no reference to the feed, so that the feed's lifetime does not depend on it.
    """

    def __init__(self, samples: int, classes: List[str], read_labels: Callable[[], List[Any]]) -> None:
        self._samples = samples
        self._classes = classes
        self._read_labels = read_labels
        self._targets: Optional[List[Any]] = None

    def __len__(self) -> int:
        """Samples in the whole dataset, of all ranks."""
        return self._samples

    @property
    def classes(self) -> List[str]:
        """Names of the labels 0, 1, ...; empty if the dataset names no classes."""
        return self._classes

    @property
    def class_to_idx(self) -> Dict[str, int]:
        """The label of each class name."""
        return {name: label for label, name in enumerate(self._classes)}

    @property
    def targets(self) -> List[Any]:
        """The field "label" of every sample, by index in the dataset. The first access reads all labels with a feed of
        only that field.

        Raises AttributeError if the dataset has no field "label", Error (FAILED_PRECONDITION) if it changed since
        the feed was opened, and the errors of `open`.
        """
        if self._targets is None:
            self._targets = self._read_labels()
        return self._targets

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("samples come in batches only: iterate over the feed; sample_ids=True tells which sample of the dataset each one is")

    def __repr__(self) -> str:
        return f"<the dataset of a pinfeed.Feed: {self._samples} samples, {len(self._classes)} classes>"


class SamplerView:
    """A feed's sampler: like DistributedSampler, but without the indices."""

    def __init__(self, feed: "Feed") -> None:
        self._feed = feed

    def __len__(self) -> int:
        """Samples per epoch for this rank."""
        feed = self._feed
        if feed.drop_last:
            return len(feed) * feed.batch_size
        return -(-feed.dataset_size // feed.world_size)

    @property
    def num_samples(self) -> int:
        """The same as ``len``."""
        return len(self)

    @property
    def epoch(self) -> int:
        """The same as `Feed.epoch`."""
        return self._feed.epoch

    def set_epoch(self, epoch: int) -> None:
        """The same as `Feed.set_epoch`."""
        self._feed.set_epoch(epoch)

    def __iter__(self) -> Any:
        raise TypeError("the order of samples is the daemon's: open with sample_ids=True, and each batch tells the indices of its samples")

