# SPDX-License-Identifier: Apache-2.0
"""Feeds: epochs over a stream of batches, and the position in them.

What comes in: an open feed (`_open`). What goes out: its batches epoch by epoch, and its state for checkpoints.
"""

from __future__ import annotations

import functools
import json
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, Tuple

from ._arguments import instead_of_attribute
from ._batch import OUTPUTS
from ._checks import MAX_EPOCH, Checks, shown, to_integer
from ._connection import Opened, Resumed, logger
from ._errors import Code, Error, InvalidArgumentError
from ._spec import describe
from ._stream import Stream
from ._views import DatasetView, SamplerView

_STATE_VERSION = 1

# What a feed is at; see `Feed`.
_BETWEEN, _PLACED, _RUNNING = range(3)


class Feed(Stream):
    """A stream of batches, as `open` makes it. Iterating over it yields one epoch; `len` is that epoch's number of batches.

    Each ``for`` runs over the next epoch: 0, 1, 2, ..., without a gap in the prefetching. After a ``break`` the next ``for`` begins the
    next epoch. `set_epoch` chooses another. Opened with a state, or after `load_state_dict`, the next ``for`` goes on where the state was
    taken. A feed with ``epochs=1`` runs over that epoch again and again; with more, or shared, a ``for`` after the last one raises Error
    (OUT_OF_RANGE).

    What each call does in each state. An iterator starts when its first batch is requested; until then it changes nothing:

    =======================  ====================================  ==============================================  =====================
    the feed is              next ``for``                          set_epoch(e)                                    state_dict
    =======================  ====================================  ==============================================  =====================
    placed: just opened, or  goes on there                         e is its epoch: nothing; else between epochs,   that place
    a state was loaded                                             before e
    running: gave batches,   ends that iteration; begins the       the epoch after this one is e; if the running   after the last batch
    epoch not finished       epoch after it                        iterator is gone: between epochs, before e      given, and that choice
    between epochs           begins the epoch                      before e                                        that epoch's start
    =======================  ====================================  ==============================================  =====================

    ``open(..., state=feed.state_dict())`` yields what the feed itself would yield next, by its iterator if there is one. Only after a
    ``break``, with no `set_epoch` since, it goes on with the epoch that was left, where the feed itself begins the next.

    If Ctrl-C or another signal handler raises before ``for`` has delivered a batch, the next iteration delivers that batch again.
    ``batch = next(iterator)`` cannot promise that: Python runs handlers between the return of ``next`` and the assignment, and a batch
    that was returned counts as given.

    One iterator at a time: a second one ends the first. Threads: any. Calls that change the position (iterating, `set_epoch`,
    `load_state_dict`) wait for each other; all others return at once even while another thread waits for a batch. A forked child must not
    use its parent's feed, but may close it. Closed by `close`, by ``with``, or when it is no longer referred to; tensors that are still
    held stay valid.
    """

    def __init__(self, opened: Opened) -> None:
        # The newest iterator, which alone may go on.
        self._iterator: Callable[[], Optional[_EpochIterator]] = _nobody
        self._phase = _PLACED
        self._epoch = 0  # of the iteration that runs, or of the one that comes
        self._dataset: Optional[DatasetView] = None
        self._as_output = OUTPUTS[opened.output]
        self._ended = False  # placed or running: its last batch was given
        self._next_epoch: Optional[int] = None  # placed or running: the epoch after this one, if it was chosen
        self._shared = "sharing" in opened.spec
        self._queue = opened.spec.get("sharing") == "QUEUE"
        self._accelerate_checked = False  # it has a loader of pinfeed.accelerate, or the warning that it has none was given
        self._joined = not self._shared  # the group may go on to another epoch before this process has its first batch
        super().__init__(opened)
        if opened.resumed is not None:
            self._stand_at(opened.resumed)
        else:
            self._epoch = int(json.loads(self._get_cursor()).get("epoch", 0))  # of a group that runs already: its epoch

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
        """The epoch that is being iterated over (or was, until a ``break``), else the one that the next ``for`` will, from 0. Of a
        member that joins a group: where the group is."""
        return self._epoch

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a feed has no attribute {name!r}{instead_of_attribute(name)}")

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError("a feed has no samples by number: iterate over it, as over the DataLoader that it replaces")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a feed cannot be pickled: open it in the process that uses it (pinfeed replaces the DataLoader and its workers)")

    # ---- iterating --------------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """An iterator over the next epoch, which begins with its first batch. In a ``for`` an exception of a signal handler loses no
        batch; one that lands between the return of ``next(iterator)`` and what is done with it loses that batch."""
        with self._lock:
            self._check_open()
            self._tell_of_accelerate()
            self._find_rank(for_batches=True)
            if self._phase == _RUNNING:
                self._end_iteration()
            iterator = _EpochIterator(self)
            self._iterator = weakref.ref(iterator)
            return iterator

    def _tell_of_accelerate(self) -> None:
        """Warns once if Accelerate is active and this feed is not wrapped in a `Loader`: `prepare` would silently ignore it."""
        state = sys.modules.get("accelerate.state")  # not imported for this
        if self._accelerate_checked or state is None or not state.PartialState._shared_state:
            return
        self._accelerate_checked = True
        logger.warning(
            "feed of %s: this process uses Accelerate, but the feed is not wrapped in a loader: prepare() leaves it unchanged, gradient accumulation "
            "misses the last step, and gather_for_metrics counts repeated samples. Pass pinfeed.accelerate.Loader(feed) to prepare()",
            describe(self._spec),
        )

    def _begin(self) -> None:
        """Makes the first batch of the iteration the next one."""
        self._find_rank(for_batches=True)
        if self._phase == _PLACED:
            return
        epoch = self._epoch
        if self._is_over(epoch):
            if self._epochs > 1 or self._shared:
                again = "open a group with another name" if self._shared else "call set_epoch, open with epochs=1 to repeat one epoch"
                raise Error(
                    Code.OUT_OF_RANGE,
                    f"the feed of {describe(self._spec)} has no epoch left of epochs={self._epochs}: {again}, or omit epochs "
                    "for a feed without end",
                )
            if epoch == 1 and self._spec["order"] == "SHUFFLE":
                logger.warning(
                    "feed of %s: with epochs=1 each for loop repeats the same epoch in the same order; omit epochs to get a new order each epoch",
                    describe(self._spec),
                )
            epoch = 0
        self._go_to(epoch)
        self._epoch = epoch
        self._phase = _PLACED
        self._ended = False

    def _is_over(self, epoch: int) -> bool:
        return 0 < self._epochs <= epoch

    def _end_iteration(self) -> None:
        """The next one takes the epoch after it."""
        if self._next_epoch is not None:
            self._epoch = self._next_epoch
        elif not self._is_over(self._epoch):
            self._epoch += 1
        self._phase = _BETWEEN
        self._ended = False
        self._next_epoch = None

    def _go_to(self, epoch: int) -> None:
        """Makes the first batch of an epoch the next one. The library does nothing where it is already."""
        unclaimed = self._unclaimed()
        if unclaimed is not None and unclaimed[:2] == (epoch, 0):
            return
        if self._queue:
            return  # nobody else gets what this process took
        self._drop_unclaimed()
        if self._shared:
            return  # others read along: _next skips what is left of the epoch instead
        self._library.check(self._library.pf_seek_epoch(self._handle, epoch))
        self._library.drain_log()

    def _next(self, iterator: _EpochIterator) -> Any:
        phase = self._phase
        taken: Any = None
        try:
            with self._lock:
                taken, batch = self._choose(iterator)
        except BaseException:
            if taken is not None and self._taken is taken:  # Ctrl-C as the lock was released: the next call gives the batch
                taken.leaving = False
                self._phase = max(phase, _PLACED)
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
            if self._iterator() is not iterator:
                raise RuntimeError("this iterator was ended by a newer one or by load_state_dict: a feed has one iterator at a time")
            if self._phase != _RUNNING:
                self._begin()
            if self._ended:
                break
            taken = self._taken
            if taken is None or taken.leaving:  # another call is just giving that one
                taken = self._take()
                if taken is None:  # after the last epoch
                    break
            info = taken.info
            epoch = info[0]
            late = self._joined and epoch < self._epoch
            if late and not self._queue:
                self._taken = None  # of an epoch that was left early; its slot goes back
                continue
            if self._joined and epoch > self._epoch:
                break  # it stays, for the next iteration
            batch = self._as_output(self._maker.make(taken))
            if info[5] > self._maker.most_held:
                self._count_copied(info[5])
            if self._taken is not taken or self._ended or self._iterator() is not iterator:
                continue  # a signal handler closed the feed, moved it or took the batch itself
            if not late:
                self._epoch = epoch
                # In the last epoch of a queue, batches of members that died may still come.
                self._ended = info[4] != 0 and not (self._queue and epoch + 1 == self._epochs)
            self._joined = True
            self._given = True
            self._phase = _RUNNING
            taken.leaving = True
            return taken, batch
        iterator.over = True
        self._end_iteration()
        raise StopIteration

    # ---- position ---------------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next ``for`` runs over this epoch (from 0). A loop that runs is not disturbed, and an epoch that a state led into is still
        gone on with when it is this one. When it is not the next one anyway, that ``for`` begins as `load_state_dict` does.

        A shared feed cannot go back: Error (FAILED_PRECONDITION)."""
        checks = Checks()
        epoch = checks.integer("epoch", epoch, 0, MAX_EPOCH)
        checks.raise_faults()
        with self._lock:
            self._check_open()
            running = self._phase == _RUNNING
            earliest = self._epoch + 1 if running else self._epoch
            if self._shared and epoch < earliest:
                raise Error(
                    Code.FAILED_PRECONDITION,
                    f"epoch: {epoch} is over; the earliest possible is {earliest}: a shared feed cannot go back, since other processes read it",
                )
            if running and self._iterator() is not None:
                self._next_epoch = epoch
            elif self._phase != _PLACED or epoch != self._epoch:
                self._end_iteration()
                self._epoch = epoch
                self._joined = True  # from here on what comes of another epoch is not taken for this one

    def state_dict(self) -> Dict[str, Any]:
        """What was consumed so far, to be saved with the model: everything up to the last batch that was yielded.

        A dict of strings, numbers and dicts, which JSON keeps as it is. It does not depend on prefetching, slots or the world
        size: with the same global batch size it may be loaded by another number of ranks.
        """
        phase, epoch, ended, next_epoch, unclaimed, text = self._look_beside_waits()
        cursor = json.loads(text)
        if phase == _BETWEEN and not self._queue and not self._is_over(epoch):
            cursor.update(epoch=str(epoch), position="0")
        elif unclaimed is not None:  # the library counts it, the trainer has not got it
            ended = False
            cursor.update(epoch=str(unclaimed[0]), position=str(unclaimed[1] * self.batch_size * self._rank.world_size))
        state = {"version": _STATE_VERSION, "epoch": epoch, "epoch_ended": ended, "cursor": cursor}
        if next_epoch is not None:
            state["next_epoch"] = next_epoch
        return state

    def _look(self) -> Any:
        return self._phase, self._epoch, self._ended, self._next_epoch, self._unclaimed(), self._get_cursor()

    def _next_cursor(self) -> str:
        return json.dumps(self.state_dict()["cursor"])

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on where `state_dict` was called. The next ``for`` yields what was left of that epoch, which may be nothing.
        A member of a group is resumed by ``open(..., state=state)`` instead: once a group has started, there is no way back in it.

        The position counts samples of all ranks. So another number of ranks, or another batch_size, goes on behind the samples that were
        consumed, provided that the position is a whole number of its global batches (batch_size times world_size) or an epoch's end.

        Ends the session and opens another, unless the feed stands there already: it takes as long as `close` and `open` do. After an error
        the feed stands where it was, and the next batch is the one that was next before.

        Raises InvalidArgumentError if the position is not such a border, if seed or order differ, or if `state` is malformed; Error
        (FAILED_PRECONDITION) when the dataset has changed since or its broadcast group is further already, and what `open` raises of the daemon.
        """
        resumed, cursor = read_state(state, self._epochs)
        with self._lock:
            self._check_open()
            self._library.check(self._library.pf_seek(self._handle, cursor.encode("utf-8")))
            self._library.drain_log()
            self._drop_unclaimed()
            if self._phase == _RUNNING:
                self._iterator = _nobody
            self._stand_at(resumed)

    def _stand_at(self, resumed: Resumed) -> None:
        """Sets the position after the library has moved to a state's cursor: the next iteration is the rest of that epoch."""
        self._phase = _PLACED
        self._epoch, self._ended, self._next_epoch = resumed
        self._joined = True


def _nobody() -> None:
    """In place of a reference to an iterator."""


def read_state(state: Any, epochs: int) -> Tuple[Resumed, str]:
    """What a `state_dict` says, and its cursor."""

    def refuse(reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(Code.INVALID_ARGUMENT, f"this is not the state of a feed: {reason}")

    try:
        version, epoch, ended, cursor = state["version"], state["epoch"], state["epoch_ended"], state["cursor"]
        next_epoch = state.get("next_epoch")
        text = json.dumps(cursor)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        advice = "give what feed.state_dict() returned, itself, not the file that it was saved in nor the checkpoint around it"
        raise refuse(f"{shown(state)} ({type(error).__name__}: {error}); {advice}") from error
    if to_integer(version) != _STATE_VERSION:
        raise InvalidArgumentError(
            Code.INVALID_ARGUMENT, f"the state of the feed has version {shown(version)}, this package reads {_STATE_VERSION}: update pinfeed"
        )
    if not isinstance(ended, bool):
        raise refuse(f"epoch_ended: {shown(ended)} is not True or False")

    def to_epoch(name: str, value: Any) -> int:
        number = to_integer(value)
        if number is None or not 0 <= number <= MAX_EPOCH:
            raise refuse(f"{name}: {shown(value)} is not a whole number from 0 to {MAX_EPOCH}")
        return number

    number = to_epoch("epoch", epoch)
    following = None if next_epoch is None else to_epoch("next_epoch", next_epoch)
    try:
        at = int(cursor.get("epoch", 0))
    except (AttributeError, TypeError, ValueError):
        raise refuse(f"cursor: {shown(cursor)} is not a position") from None
    # The cursor stands behind the last batch: in the epoch, at the end of the one before, or at the start of the one after. Behind the
    # last epoch any may have been asked for.
    if abs(at - number) > 1 and not 0 < epochs <= number:
        raise refuse(f"epoch: {number} does not fit its cursor, which is in epoch {at}")
    return Resumed(number, ended, following), text


class _EpochIterator(Iterator[Any]):
    """One epoch of a feed."""

    __slots__ = ("__weakref__", "_feed", "over")

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.over = False

    def __next__(self) -> Any:
        return self._feed._next(self)

    def __length_hint__(self) -> int:
        return 0 if self.over else len(self._feed)
