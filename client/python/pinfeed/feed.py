# SPDX-License-Identifier: Apache-2.0
"""Feeds: epochs over a stream of batches, and the position in them.

What comes in: an open feed (`_open`). What goes out: its batches epoch by epoch, and its state for checkpoints.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Dict, Iterator, NoReturn, Optional, Tuple

from ._batch import OUTPUTS
from ._checks import MAX_EPOCH, Checks, shown, to_integer
from ._connection import Opened
from ._errors import Code, InvalidArgumentError
from ._spec import describe
from ._stream import Stream
from ._views import DatasetView, SamplerView

_STATE_VERSION = 1


class Feed(Stream):
    """A stream of batches, as `open` makes it. Iterating over it yields one epoch; `len` is that epoch's number of batches.

    Each ``for`` runs over the next epoch: 0, 1, 2, ..., without a gap in the prefetching. After a ``break`` the next ``for`` begins the
    next epoch. `set_epoch` chooses another. Opened with a state, or after `load_state_dict`, the next ``for`` goes on where the state was
    taken. When all `epochs` are over, a ``for`` yields nothing.

    One iterator at a time: a second one ends the first. Threads: any, one after the other (calls wait for each other). A forked child must
    not use its parent's feed. Closed by `close`, by ``with``, or when it is no longer referred to; tensors that are still held stay valid.
    """

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        self._iteration: Optional[object] = None  # the one iterator that may go on knows it
        self._epoch = 0  # of the iteration that runs, or of the one that comes
        self._started = False  # a batch of it was given
        self._ended = False  # its last batch was given
        self._resumed = False  # load_state_dict set the position, no iteration began since
        self._requested: Optional[int] = None  # by set_epoch, for the next iteration
        self._dataset: Optional[DatasetView] = None
        self._as_output = OUTPUTS[opened.output]
        self._queue = opened.spec.get("sharing") == "QUEUE"
        self._joined = "sharing" not in opened.spec  # a shared feed may be in any epoch when this process joins it
        if opened.resumed is not None:
            self._stand_at(*opened.resumed)

    @property
    def sampler(self) -> SamplerView:
        """As a DataLoader has it: ``feed.sampler.set_epoch(e)``, and ``len(feed.sampler)``, this rank's samples in an epoch."""
        return SamplerView(self)

    @property
    def dataset(self) -> DatasetView:
        """As a DataLoader has it: ``len(feed.dataset)``, and its `classes`, `class_to_idx` and `targets`."""
        if self._dataset is None:
            from ._labels import read_labels  # which needs this module

            read = functools.partial(read_labels, self._spec["dataset"], self.fingerprint, self._address)
            self._dataset = DatasetView(self._samples, self.classes, read)
        return self._dataset

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"epoch {self.epoch}"
        return f"<pinfeed.Feed {describe(self._spec)}, {self._batches} batches of {self.batch_size}, {state}>"

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated over, or that the next ``for`` will, from 0."""
        return self._epoch if self._requested is None else self._requested

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a feed cannot be pickled: open it in the process that uses it (pinfeed replaces the DataLoader and its workers)")

    # ---- iterating --------------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            self._check_open()
            natural = self._epoch + 1 if self._started else self._epoch
            epoch = natural if self._requested is None else self._requested
            # The library stands at the start of the natural epoch unless the last one was left early.
            in_place = epoch == natural and (self._resumed or self._ended or not self._started)
            over = 0 < self._epochs <= epoch
            if not in_place and not over:
                self._go_to(epoch)
            self._epoch = epoch
            self._requested = None
            self._ended = over or (in_place and self._resumed and self._ended)
            self._started = self._resumed = False
            self._iteration = object()
            return _EpochIterator(self, self._iteration)

    def _go_to(self, epoch: int) -> None:
        """Makes the first batch of an epoch the next one."""
        unclaimed = self._unclaimed()
        if unclaimed is not None and unclaimed[:2] == (epoch, 0):
            return
        if self._queue:
            return  # nobody else gets what this process took
        self._drop_unclaimed()
        if "sharing" in self._spec:
            return  # others read along: _next skips what is left of the epoch instead
        self._library.check(self._library.pf_seek_epoch(self._handle, epoch))
        self._library.drain_log()

    def _next(self, iterator: _EpochIterator) -> Any:
        started = self._started
        taken: Any = None
        try:
            with self._lock:
                taken, batch = self._choose(iterator)
        except BaseException:
            if taken is not None and self._taken is taken:  # Ctrl-C as the lock was released: the next call gives the batch
                taken.leaving = False
                self._started = started
                self._ended = False
            raise
        # Python runs no signal handler between here and the trainer's loop. Until here the batch counts as not given.
        if self._taken is taken:
            self._taken = None
        return batch

    def _choose(self, iterator: _EpochIterator) -> Tuple[Any, Any]:
        """The next batch of the iterator's epoch, and what holds it in `_taken`."""
        while True:
            self._check_open()
            if iterator.over:  # ended by another thread while this one waited for the lock
                raise StopIteration
            if iterator.iteration is not self._iteration:
                raise RuntimeError("this iterator ended when another one of the same feed was begun: a feed has one at a time")
            if self._ended:
                break
            taken = self._taken
            if taken is None or taken.leaving:  # another call is just giving that one
                taken = self._take()
                if taken is None:  # after the last epoch
                    self._ended = True
                    break
            epoch, last_of_epoch = taken.info[0], taken.info[4] != 0
            late = self._joined and epoch < self._epoch
            if late and not self._queue:
                self._taken = None  # of an epoch that was left early; its slot goes back
                continue
            if self._joined and epoch > self._epoch:
                self._ended = True  # it stays, for the next iteration
                break
            batch = self._as_output(self._maker.make(taken))
            if self._taken is not taken or self._ended or iterator.iteration is not self._iteration:
                continue  # a signal handler closed the feed, moved it or took the batch itself
            if not late:
                self._epoch = epoch
                # In the last epoch of a queue, batches of members that died may still come.
                self._ended = last_of_epoch and not (self._queue and epoch + 1 == self._epochs)
            self._joined = True
            self._started = True
            taken.leaving = True
            return taken, batch
        # The epoch is over. The next iteration takes the next one.
        self._iteration = None
        iterator.over = True
        if not 0 < self._epochs <= self._epoch:
            self._epoch += 1
        self._started = self._ended = False
        raise StopIteration

    def _forget(self) -> None:
        self._iteration = None
        super()._forget()

    # ---- position ---------------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next ``for`` runs over this epoch (from 0). A loop that runs is not disturbed, and an epoch that `load_state_dict` led
        into is still gone on with. When it is not the next one anyway, that ``for`` begins as `load_state_dict` does."""
        checks = Checks()
        epoch = checks.integer("epoch", epoch, 0, MAX_EPOCH)
        checks.raise_faults()
        with self._lock:
            self._check_open()
            self._requested = epoch

    def state_dict(self) -> Dict[str, Any]:
        """What was consumed so far, to be saved with the model: everything up to the last batch that was yielded.

        A dict of strings, numbers and dicts, which JSON keeps as it is. It does not depend on prefetching, slots or the world
        size: with the same global batch size it may be loaded by another number of ranks.
        """
        with self._lock:
            self._check_open()
            cursor = json.loads(self._get_cursor())
            epoch, ended = self._epoch, self._ended
            if self._requested is not None and not (self._resumed and self._requested == epoch):
                epoch, ended = self._requested, False
                cursor.update(epoch=str(epoch), position="0")
            else:
                unclaimed = self._unclaimed()
                if unclaimed is not None:  # the library counts it, the trainer has not got it
                    ended = False
                    cursor.update(epoch=str(unclaimed[0]), position=str(unclaimed[1] * self.batch_size * self.world_size))
            return {"version": _STATE_VERSION, "epoch": epoch, "epoch_ended": ended, "cursor": cursor}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on where `state_dict` was called. The next ``for`` yields what was left of that epoch, which may be nothing.
        A member of a group is resumed by ``open(..., state=state)`` instead: once a group has started, there is no way back in it.

        The position counts samples of all ranks. So another number of ranks, or another batch_size, goes on behind the samples that were
        consumed, provided that the position is a whole number of its global batches (batch_size times world_size) or an epoch's end.

        Ends the session and opens another, unless the feed stands there already: it takes as long as `close` and `open` do. After an error
        the feed stands where it was, and the next batch is the one that was next before.

        Raises InvalidArgumentError for a position that is not, for the state of another seed or order and for what is no state, Error
        (FAILED_PRECONDITION) when the dataset has changed since or its broadcast group is further already, and what `open` raises of the daemon.
        """
        epoch, ended, cursor = read_state(state, self._epochs)
        with self._lock:
            self._check_open()
            self._library.check(self._library.pf_seek(self._handle, cursor.encode("utf-8")))
            self._library.drain_log()
            self._drop_unclaimed()
            self._stand_at(epoch, ended)

    def _stand_at(self, epoch: int, ended: bool) -> None:
        """The library stands at a state's cursor, the next iteration is what is left of the state's epoch."""
        self._iteration = None
        self._requested = None
        self._epoch = epoch
        self._ended = ended
        self._started = False
        self._resumed = True
        self._joined = True


def read_state(state: Any, epochs: int) -> Tuple[int, bool, str]:
    """Epoch, whether it had ended, and cursor of a `state_dict`."""

    def refuse(reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(Code.INVALID_ARGUMENT, f"this is not the state of a feed: {reason}")

    try:
        version, epoch, ended, cursor = state["version"], state["epoch"], state["epoch_ended"], state["cursor"]
        text = json.dumps(cursor)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise refuse(f"{type(error).__name__}: {error}") from error
    if to_integer(version) != _STATE_VERSION:
        raise InvalidArgumentError(
            Code.INVALID_ARGUMENT, f"the state of the feed has version {shown(version)}, this package reads {_STATE_VERSION}: update pinfeed"
        )
    if not isinstance(ended, bool):
        raise refuse(f"epoch_ended: {shown(ended)} is not True or False")
    number = to_integer(epoch)
    if number is None or not 0 <= number <= MAX_EPOCH:
        raise refuse(f"epoch: {shown(epoch)} is not a whole number from 0 to {MAX_EPOCH}")
    try:
        at = int(cursor.get("epoch", 0))
    except (AttributeError, TypeError, ValueError):
        raise refuse(f"cursor: {shown(cursor)} is not a position") from None
    # The cursor stands behind the last batch: in the epoch, at the end of the one before, or at the start of the one after. Behind the
    # last epoch any may have been asked for.
    if abs(at - number) > 1 and not 0 < epochs <= number:
        raise refuse(f"epoch: {number} does not fit its cursor, which is in epoch {at}")
    return number, ended, text


class _EpochIterator(Iterator[Any]):
    """One epoch of a feed."""

    __slots__ = ("_feed", "iteration", "over")

    def __init__(self, feed: Feed, iteration: object) -> None:
        self._feed = feed
        self.iteration = iteration
        self.over = False

    def __next__(self) -> Any:
        return self._feed._next(self)

    def __length_hint__(self) -> int:
        return 0 if self.over else len(self._feed)
