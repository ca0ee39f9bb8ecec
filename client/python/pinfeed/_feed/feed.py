# SPDX-License-Identifier: Apache-2.0
"""Feeds: epochs over a stream of batches, and the position in them.

In: an open feed (`open`). Out: its batches epoch by epoch, and its state for checkpoints.

Long because: a fifth of it describes the class to its users, and positions are checked where they are kept.
"""

from __future__ import annotations

import functools
import json
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, Tuple

from .._base.abi import logger
from .._base.checks import MAX_EPOCH, Checks, shown, to_integer
from .._base.errors import Code, Error, InvalidArgumentError, invalid
from . import plain_next
from .arguments import instead_of_attribute
from .batch import OUTPUTS
from .connection import Opened, Resumed
from .decode import check_decoder, describe_decoder
from .labels import read_labels
from .spec import describe
from .stream import Stream
from .views import DatasetView, SamplerView

_STATE_VERSION = 1

# The phases of a feed; see `Feed`.
_BETWEEN, _PLACED, _RUNNING = range(3)


class Feed(Stream):
    """A stream of batches, returned by `open`. Iterating over it yields one epoch; `len` is that epoch's number of
    batches.

    Each ``for`` runs over the next epoch: 0, 1, 2, ..., and prefetching continues across them. After a ``break`` the
    next ``for`` begins the next epoch. `set_epoch` selects another. If the feed was opened with a state, or after
    `load_state_dict`, the next ``for`` continues where the state was taken. A feed with ``epochs=1`` repeats that
    epoch. With more epochs, or shared, a ``for`` after the last one raises Error (OUT_OF_RANGE). A queue passes nothing
    over: after a ``break``, the next ``for`` also gives what others have not taken of that epoch.

    The table shows what each call does in each state. An iterator starts when its first batch is requested; until
    then it changes nothing.

    =======================  ====================================  ==============================================  =====================
    the feed is              next ``for``                          set_epoch(e)                                    state_dict
    =======================  ====================================  ==============================================  =====================
    placed: just opened, or  continues there                       no change if e is its epoch;                    that position
    a state was loaded                                             else between epochs, before e
    running: has delivered   ends that iteration;                  the next epoch is e; if the running             after the last batch,
    batches, epoch not       begins the following epoch            iterator is gone: between epochs, before e      and the selection
    finished
    between epochs           begins the epoch                      before e                                        that epoch's start
    =======================  ====================================  ==============================================  =====================

    ``open(..., state=feed.state_dict())`` yields what the feed itself would yield next, from its iterator if there
    is one. There are two exceptions: after a ``break`` without a later `set_epoch`, the state continues the epoch that
    was left, but the feed begins the next; and after all of `epochs`, also if that is 1, it is the state of a finished run,
    behind which the first ``for`` has no batch.

    If Ctrl-C or another signal handler raises before ``for`` has delivered a batch, the next iteration delivers that
    batch again. ``batch = next(iterator)`` cannot promise that: Python runs handlers between the return of ``next``
    and the assignment, and a returned batch counts as delivered.

    A feed has one iterator at a time; a second one ends the first. Threads: any. Calls that change the position
    (iterating, `set_epoch`, `load_state_dict`) wait for each other. All others return at once, even while another
    thread waits for a batch. A forked child may close its parent's feed but not use it. A feed is closed by `close`,
    by ``with``, or when the last reference is gone. Held tensors stay valid.
    """

    def __init__(self, opened: Opened) -> None:
        # The newest iterator, the only valid one.
        self._iterator: Callable[[], Optional[_EpochIterator]] = _no_iterator
        self._phase = _PLACED
        self._epoch = 0  # of the current iteration, or else of the next one
        self._dataset: Optional[DatasetView] = None
        self._ended = False  # placed or running: its last batch was delivered
        self._next_epoch: Optional[int] = None  # placed or running: the epoch chosen to follow this one
        self._shared = "sharing" in opened.spec
        self._queue = opened.spec.get("sharing") == "QUEUE"
        self._accelerate_checked = False  # true once wrapped in pinfeed.accelerate.Loader, or after the warning that it is not
        super().__init__(opened)
        if opened.resumed is not None:
            self._set_position(opened.resumed)
        else:
            self._epoch, position = self._place()  # a running group's, if there is one
            if self._shared and not self._queue and (self._epoch or position):
                logger.warning(
                    "group %r had begun before this feed joined: it gets what comes from sample %d of epoch %d on, and nothing from before. Give group_size, "
                    "and a state to members that come back",
                    self._spec["group"],
                    position,
                    self._epoch,
                )

    @property
    def sampler(self) -> SamplerView:
        """Like a DataLoader's: ``feed.sampler.set_epoch(e)``, and ``len(feed.sampler)``, the samples per epoch for this
        rank.
        """
        return SamplerView(self)

    batch_sampler = None  # as a DataLoader's with batch_size=None: Lightning reads it if there is a `sampler`

    @property
    def dataset(self) -> DatasetView:
        """Like a DataLoader's: ``len(feed.dataset)``, and its `classes`, `class_to_idx` and `targets`."""
        if self._dataset is None:
            read = functools.partial(read_labels, self._spec["dataset"], self.fingerprint, self._address)
            self._dataset = DatasetView(self._samples, self.classes, read)
        return self._dataset

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"epoch {self.epoch}"
        return f"<pinfeed.Feed {describe(self._spec)}, {self._batches} batches of {self.batch_size}, {state}>"

    @property
    def epoch(self) -> int:
        """The epoch, from 0, of the current iteration (or of the last one, after a ``break``); otherwise that of the
        next ``for``. For a member that joins a running group, the group's epoch then: an epoch that went by before its
        first batch, or of which others of a queue got all batches, is an empty loop.
        """
        return self._epoch

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a feed has no attribute {name!r}{instead_of_attribute(name)}")

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError("a feed has no samples by number: iterate over it, as over the DataLoader that it replaces")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a feed cannot be pickled: open it in the process that uses it (pinfeed replaces the DataLoader and its workers)")

    # ---- Iterating ----

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator over the next epoch, which starts with its first batch. In a ``for``, an exception from a
        signal handler loses no batch. One raised between the return of ``next(iterator)`` and the use of its result
        loses that batch.
        """
        with self._lock:
            self._check_open()
            self._warn_of_accelerate()
            self._find_rank(for_batches=True)
            if self._phase == _RUNNING:
                self._end_iteration()
            iterator = _EpochIterator(self)
            self._iterator = weakref.ref(iterator)
            return iterator

    def _warn_of_accelerate(self) -> None:
        """Warns once if Accelerate is active and this feed is not wrapped in a `Loader`: `prepare` would silently
        ignore the feed.
        """
        state = sys.modules.get("accelerate.state")  # never imported here
        if self._accelerate_checked or state is None or not state.PartialState._shared_state:
            return
        self._accelerate_checked = True
        logger.warning(
            "feed of %s: this process uses Accelerate, but the feed is not wrapped in a loader: prepare() leaves it unchanged, gradient accumulation "
            "misses the last step, and gather_for_metrics counts repeated samples. Pass pinfeed.accelerate.Loader(feed) to prepare()",
            describe(self._spec),
        )

    def _begin(self) -> None:
        """Starts an iteration: makes its first batch the next one."""
        self._find_rank(for_batches=True)
        if self._phase == _PLACED:
            return
        epoch = self._epoch
        if self._is_over(epoch):
            if self._epochs > 1 or self._shared:
                again = "open a group with another name" if self._shared else "call set_epoch, open with epochs=1 to repeat one epoch"
                raise Error(
                    Code.OUT_OF_RANGE,
                    f"the feed of {describe(self._spec)} has finished all of epochs={self._epochs}: {again}, or omit epochs "
                    "for a feed without end",
                )
            if epoch == 1 and self._spec["order"] == "SHUFFLE":
                logger.warning(
                    "feed of %s: with epochs=1 each for loop repeats the same epoch in the same order; omit epochs to get a new order each epoch",
                    describe(self._spec),
                )
            epoch = 0
        self._seek_epoch(epoch)
        self._epoch = epoch
        self._phase = _PLACED
        self._ended = False

    def _is_over(self, epoch: int) -> bool:
        return 0 < self._epochs <= epoch

    def _end_iteration(self) -> None:
        """Ends the iteration. The next one runs over the following epoch."""
        self._disarm()
        if self._next_epoch is not None:
            self._epoch = self._next_epoch
        elif not self._is_over(self._epoch):
            self._epoch += 1
        self._phase = _BETWEEN
        self._ended = False
        self._next_epoch = None

    def _seek_epoch(self, epoch: int) -> None:
        """Makes the first batch of an epoch the next one. The library does nothing if it is at that position."""
        undelivered = self._undelivered()
        if undelivered is not None and undelivered[:2] == (epoch, 0):
            return
        if self._queue:
            return  # other members would not get the batches that this process took
        self._release_undelivered()
        if self._shared:
            return  # other members read along: _next skips the rest of the epoch instead
        self._library.check(self._library.pf_seek_epoch(self._handle, epoch))
        self._library.drain_log()
        self._follow_session()

    def _next(self, iterator: _EpochIterator) -> Any:
        phase = self._phase
        taken: Any = None
        try:
            with self._lock:
                taken, batch = self._next_of_epoch(iterator)
        except BaseException:
            if taken is not None and self._taken is taken:  # Ctrl-C while the lock was released: the next call returns the batch
                taken.leaving = False
                self._phase = max(phase, _PLACED)
                self._ended = False
            raise
        # Python runs no signal handler between here and the trainer's loop. Until here the batch counts as undelivered.
        if self._taken is taken:
            self._taken = None
        return batch

    def _next_of_epoch(self, iterator: _EpochIterator) -> Tuple[Any, Any]:
        """Returns the object in `_taken` and the next batch of the iterator's epoch."""
        if self._extension_takes():
            raise RuntimeError("a signal handler took a batch while next() was about to return another one: take none in handlers")
        while True:
            self._disarm()
            self._end_if_closed()
            self._check_open()
            if self._delivered and not self._quick_made:
                self._make_quick()
            if iterator.over:  # ended by another thread while this one waited for the lock
                raise StopIteration
            if self._iterator() is not iterator:
                raise RuntimeError("this iterator was ended by a newer one or by load_state_dict: a feed has one iterator at a time")
            if self._phase != _RUNNING:
                self._begin()
            if self._ended:
                break
            taken = self._taken
            if taken is None or taken.leaving:  # another call is returning that one
                taken = self._take()
                if taken is None:  # after the last epoch
                    break
            info = taken.info
            epoch = info[0]
            late = epoch < self._epoch
            if late and not self._queue:
                self._taken = None  # from an epoch that was left early: returns its slot
                continue
            if epoch > self._epoch:
                break  # kept for the next iteration
            made = self._make(taken)
            if made is None:
                continue
            batch = OUTPUTS[self._output](made)
            if info[5] > self._maker.max_held:
                self._count_copied(info[5])
            if self._taken is not taken or self._ended or self._iterator() is not iterator:
                continue  # a signal handler closed the feed, moved it or took the batch
            if not late:
                self._epoch = epoch
                # In a queue's last epoch, batches of members that died may still follow.
                self._ended = info[4] != 0 and not (self._queue and epoch + 1 == self._epochs)
            self._delivered = True
            self._phase = _RUNNING
            taken.leaving = True
            if self._quick is not None and not self._ended:
                iterator.plain = self._quick, epoch
            return taken, batch
        iterator.over = True
        self._end_iteration()
        raise StopIteration

    # ---- Position ----

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``for`` run over this epoch (from 0).

        A running loop is not disturbed. If a state was loaded in the middle of this epoch, the epoch is still
        continued. If the epoch is not the next one anyway, that ``for`` begins like `load_state_dict`. A shared feed
        cannot go back, and a queue cannot go ahead: Error (FAILED_PRECONDITION).
        """
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
            if self._queue and epoch > earliest + self._continues_epoch():
                raise Error(
                    Code.FAILED_PRECONDITION,
                    f"epoch: {epoch} is not the next one, {earliest}: a queue passes nothing over. To begin later, open every member with a state",
                )
            if running and self._iterator() is not None:
                self._next_epoch = epoch
            elif self._phase != _PLACED or epoch != self._epoch:
                self._end_iteration()
                self._epoch = epoch

    def _continues_epoch(self) -> bool:
        """Returns whether the next ``for`` would continue an epoch of which batches were taken, as a state says."""
        epoch, position = self._place()
        return self._phase == _PLACED and (self._ended or (epoch == self._epoch and position > 0))

    def _place(self) -> Tuple[int, int]:
        """Returns the epoch and the position in it, in samples of all ranks, of the session's next batch."""
        cursor = json.loads(self._get_cursor())
        return int(cursor.get("epoch", 0)), int(cursor.get("position", 0))

    def state_dict(self) -> Dict[str, Any]:
        """Returns the position after the last batch that was yielded, to be saved with the model.

        The result is a dict of strings, numbers and dicts, which JSON preserves. It does not depend on prefetching,
        slots or the world size: with the same global batch size, another number of ranks may load it.
        """
        phase, epoch, ended, next_epoch, undelivered, text = self._current_snapshot()
        cursor = json.loads(text)
        if phase == _BETWEEN and not self._queue and not self._is_over(epoch):
            cursor.update(epoch=str(epoch), position="0")
        elif undelivered is not None:  # the library counts it, but the trainer does not have it
            ended = False
            cursor.update(epoch=str(undelivered[0]), position=str(undelivered[1] * self.batch_size * self._rank.world_size))
        state = {"version": _STATE_VERSION, "epoch": epoch, "epoch_ended": ended, "cursor": cursor}
        state.update(describe_decoder(self.decode, self.decoder))
        if next_epoch is not None:
            state["next_epoch"] = next_epoch
        return state

    def _take_snapshot(self) -> Any:
        return self._phase, self._epoch, self._ended, self._next_epoch, self._undelivered(), self._get_cursor()

    def _next_cursor(self) -> str:
        return json.dumps(self.state_dict()["cursor"])

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues where `state_dict` was called. The next ``for`` yields the rest of that epoch, which may be empty.

        A member of a group is resumed by ``open(..., state=state)`` instead: a group that has started cannot go
        back.

        The position counts samples of all ranks. Another number of ranks or another batch_size therefore continues
        after the samples consumed, if the position is a multiple of the new global batch (batch_size times
        world_size) or an epoch's end.

        Ends the session and opens another, unless the feed is at that position already. It takes as long as `close`
        and `open`. After an error the feed keeps its position and its next batch.

        Raises InvalidArgumentError if the position is not such a multiple, if seed or order differ, or if `state` is
        malformed. Raises Error (FAILED_PRECONDITION) if the dataset changed since, if the broadcast group is past the
        position, or if the state's images were decoded in another way, and the errors of `open`.
        """
        resumed, cursor = read_state(state, self._epochs, self._queue)
        check_decoder(state, self.decode, self.decoder)
        with self._lock:
            self._check_open()
            self._disarm()
            self._library.check(self._library.pf_seek(self._handle, cursor.encode("utf-8")))
            self._library.drain_log()
            self._follow_session()
            self._release_undelivered()
            if self._phase == _RUNNING:
                self._iterator = _no_iterator
            self._set_position(resumed)

    def _set_position(self, resumed: Resumed) -> None:
        """Sets the position after the library has moved to a state's cursor: the next iteration is the rest of that
        epoch.
        """
        self._phase = _PLACED
        self._epoch, self._ended, self._next_epoch = resumed


def _no_iterator() -> None:
    """Stands for a dead reference to an iterator."""


def read_state(state: Any, epochs: int, queue: bool) -> Tuple[Resumed, str]:
    """Returns the content of a `state_dict`, and its cursor."""

    def refuse(reason: str) -> InvalidArgumentError:
        return invalid(f"this is not the state of a feed: {reason}")

    try:
        version, epoch, ended, cursor = state["version"], state["epoch"], state["epoch_ended"], state["cursor"]
        next_epoch = state.get("next_epoch")
        text = json.dumps(cursor)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        advice = "give what feed.state_dict() returned, itself, not the file that it was saved in nor the checkpoint around it"
        raise refuse(f"{shown(state)} ({type(error).__name__}: {error}); {advice}") from error
    if to_integer(version) != _STATE_VERSION:
        raise invalid(f"the state of the feed has version {shown(version)}, this package reads {_STATE_VERSION}: update pinfeed")
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
    missing = [name for name in ("epoch", "position") if name not in cursor]
    if missing:  # which the daemon would take for 0
        raise refuse(f"cursor: it lacks {', '.join(missing)}")
    # The cursor points after the last batch: in the epoch, at the end of the previous one, or at the start of the next.
    # After the last epoch, set_epoch may have chosen any. In a queue, what another member left comes in later epochs.
    if abs(at - number) > 1 and not 0 < epochs <= number and not (queue and at < number):
        raise refuse(f"epoch: {number} does not fit its cursor, which is in epoch {at}")
    return Resumed(number, ended, following), text


class _EpochIterator(plain_next.Iterator):  # type: ignore[misc]  # the extension has no types
    """An iterator over one epoch of a feed."""

    __slots__ = ("__weakref__", "_feed", "over")

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.over = False

    def _next_slowly(self) -> Any:
        return self._feed._next(self)

    def _failed(self) -> None:
        """The extension's ``__next__`` is about to raise what a signal handler has raised."""
        if self._feed._closing:
            with self._feed._lock:
                self._feed._end_if_closed()

    def __length_hint__(self) -> int:
        return 0 if self.over else len(self._feed)
