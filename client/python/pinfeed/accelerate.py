# SPDX-License-Identifier: Apache-2.0
"""Feeds for Hugging Face Accelerate.

What comes in: an open feed. What goes out: a loader that ``Accelerator.prepare`` takes as one of its own.
Needs the package accelerate, 0.34 or later, which this package does not install.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

from accelerate.data_loader import DataLoaderShard
from accelerate.state import PartialState
from accelerate.utils import send_to_device

from ._batch import OUTPUTS, Batch
from ._errors import Code, InvalidArgumentError
from .feed import Feed


class Loader(DataLoaderShard):  # type: ignore[misc]  # accelerate has no types
    """A feed as a loader of Accelerate's::

        accelerator = Accelerator()
        feed = pinfeed.open("/data/train", batch_size=64, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, pinfeed.accelerate.Loader(feed))

    ``prepare`` leaves it as it is, since a feed is split over the ranks already: ``batch_size`` is that of one rank, and
    ``split_batches``, ``dispatch_batches`` and samplers of Accelerate's do not apply. These features of Accelerate work: the last
    step of gradient accumulation (``end_of_dataloader``), ``gather_for_metrics`` without the samples that repeat at the end of an epoch
    (``remainder``), ``skip_first_batches`` (which reads what it skips; `pinfeed.open` with ``state=`` does not), ``set_epoch``, and the
    feed's position in ``save_state`` and ``load_state``. Batches come on Accelerate's device. All ranks have equally many batches, as with
    ``even_batches=True``; False is refused.

    Owns nothing: close the feed. Threads: as the feed. Raises InvalidArgumentError for a feed whose tensors are not torch's, or that is
    shared by share="queue", which gives ranks different numbers of batches.
    """

    _is_accelerate_prepared = True  # what makes `prepare` leave it as it is

    def __init__(self, feed: Feed) -> None:
        if feed.framework != "torch":
            raise _refuse(f'framework: Accelerate needs torch\'s tensors, and the feed has {feed.framework}\'s: open it with framework="torch"')
        if feed._as_output is not OUTPUTS["batch"]:
            raise _refuse('output: the loader needs to know which batch is the last one: open the feed with output="batch", which is a mapping, too')
        if feed._queue:
            raise _refuse(
                'share: "queue" gives ranks different numbers of batches, which makes Accelerate hang: omit share, or use "broadcast"'
            )
        feed._accelerate_checked = True
        self.feed = feed
        source = _Source(feed)
        state = PartialState() if PartialState._shared_state else None
        super().__init__(
            _Batches(feed), device=None if state is None else state.device, batch_sampler=source, collate_fn=_only, _drop_last=feed._spec["drop_last"]
        )
        self.use_stateful_dataloader = True  # so that save_state asks for state_dict

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
        """The epoch, which the feed knows."""
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
        return self.feed.__reduce_ex__(2)  # which says that it cannot be


class _Batches:
    """In place of a dataset: as long as the real one, and what is asked for by a batch is that batch."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __len__(self) -> int:
        return self._feed.dataset_size

    def __getitem__(self, batch: Batch) -> Batch:
        return batch


class _Source:
    """In place of a batch sampler: yields the feed's batches, so that samplers around it, as `skip_first_batches` makes one, work."""

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
            raise _refuse("even_batches: False is not possible: the ranks of a feed always have equally many batches")


def _refuse(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(Code.INVALID_ARGUMENT, reason)


def _only(batches: List[Batch]) -> Batch:
    return batches[0]
