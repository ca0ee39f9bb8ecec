# SPDX-License-Identifier: Apache-2.0
"""Feeds for Hugging Face Accelerate.

In: an open feed. Out: a loader that ``Accelerator.prepare`` accepts. Requires the package accelerate, 0.34 or later,
which is not installed with pinfeed.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

from accelerate.data_loader import DataLoaderShard
from accelerate.state import PartialState
from accelerate.utils import send_to_device

from ._base.errors import invalid
from ._feed.batch import Batch
from ._feed.feed import Feed


class Loader(DataLoaderShard):  # type: ignore[misc]  # accelerate has no types
    """A feed as a loader for Accelerate::

        accelerator = Accelerator()
        feed = pinfeed.open("/data/train", batch_size=64, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, pinfeed.accelerate.Loader(feed))

    ``prepare`` leaves the loader unchanged, because a feed is already split over the ranks. ``batch_size`` is that
    of one rank; ``split_batches``, ``dispatch_batches`` and Accelerate's samplers do not apply. Batches arrive on
    Accelerate's device. All ranks have equally many batches, as with ``even_batches=True``; False is refused. These
    features of Accelerate work:

    - the last step of gradient accumulation (``end_of_dataloader``)
    - ``gather_for_metrics`` without the samples repeated at the end of an epoch (``remainder``)
    - ``skip_first_batches``, which reads what it skips, unlike `pinfeed.open` with ``state=``
    - ``set_epoch``
    - the feed's position in ``save_state`` and ``load_state``

    Does not own the feed: close the feed yourself. Threads: as for the feed. Raises InvalidArgumentError for a feed
    whose tensors are not torch's, and for share="queue", which gives ranks different numbers of batches.
    """

    _is_accelerate_prepared = True  # makes `prepare` leave it unchanged

    def __init__(self, feed: Feed) -> None:
        if feed.framework != "torch":
            raise invalid(f'framework: Accelerate needs torch\'s tensors, and the feed has {feed.framework}\'s: open it with framework="torch"')
        if feed._output != "batch":
            raise invalid('output: the loader needs to know which batch is the last one: open the feed with output="batch", which is a mapping, too')
        if feed._queue:
            raise invalid(
                'share: "queue" gives ranks different numbers of batches, which makes Accelerate hang: omit share, or use "broadcast"'
            )
        feed._accelerate_checked = True
        self.feed = feed
        source = _Source(feed)
        state = PartialState() if PartialState._shared_state else None
        super().__init__(
            _Batches(feed), device=None if state is None else state.device, batch_sampler=source, collate_fn=_single_batch, _drop_last=feed._spec["drop_last"]
        )
        self.use_stateful_dataloader = True  # makes save_state call state_dict

    def __iter__(self) -> Iterator[Batch]:
        self.begin()
        try:
            for batch in self.feed:
                self.end_of_dataloader = batch.last_of_epoch
                yield batch if self.device is None or batch[0].device == self.device else send_to_device(batch, self.device, non_blocking=True)
        finally:
            self.end()

    def __len__(self) -> int:
        return len(self.feed)

    @property
    def batch_size(self) -> int:
        return self.feed.batch_size

    @property
    def total_batch_size(self) -> int:
        return self.feed.batch_size * self.feed.world_size

    @property
    def iteration(self) -> int:
        """The feed's epoch."""
        return self.feed.epoch

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        pass

    def set_epoch(self, epoch: int) -> None:
        self.feed.set_epoch(epoch)

    def state_dict(self) -> Dict[str, Any]:
        return self.feed.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.feed.load_state_dict(state_dict)

    def __reduce__(self) -> Any:
        return self.feed.__reduce_ex__(2)  # raises: feeds cannot be pickled


class _Batches:
    """Stands for the dataset: has its length, and indexing with a batch returns that batch."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __len__(self) -> int:
        return self._feed.dataset_size

    def __getitem__(self, batch: Batch) -> Batch:
        return batch


class _Source:
    """Stands for the batch sampler: yields the feed's batches, so that samplers that wrap it, such as
    `skip_first_batches`, work.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.batch_size = feed.batch_size
        self.drop_last = bool(feed._spec["drop_last"])
        self.sampler = feed.sampler

    def __iter__(self) -> Iterator[List[Batch]]:
        for batch in self._feed:
            yield [batch]

    def __len__(self) -> int:
        return len(self._feed)

    @property
    def num_processes(self) -> int:
        return self._feed.world_size

    @property
    def even_batches(self) -> bool:
        return True

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        if not value:
            raise invalid("even_batches: False is not possible: the ranks of a feed always have equally many batches")


def _single_batch(batches: List[Batch]) -> Batch:
    return batches[0]
