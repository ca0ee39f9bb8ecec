# SPDX-License-Identifier: Apache-2.0
"""Lanes: batches of which each depends on those before it, as those of an iterable dataset, or with one stream of random
numbers per worker. Worker w of n has the batches w, w + n, w + 2n and so on, as in torch.

In: a worker's batches, in order. Out: in the worker, their samples and the state behind each; in the trainer, where each
worker can continue.
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple, cast

from .._base.errors import Code, Error, InvalidArgumentError, invalid
from .epoch_state import Epoch
from .fetch import Kind, Recipe, load
from .iterable import IterableFetcher, StreamState, begin_again, has_state, same_state
from .seeding import global_states, set_global_states

MAX_LANES = 256  # as kMaxLanes of the daemon's common/spec/feed_spec_check.cc
LaneState = Optional[Tuple[int, bytes]]  # a batch's number, and the state behind it; None: that of a worker that has just started
_BEFORE_EPOCH = "epoch"  # in the place of "dataset": its next iterator begins an epoch
_UNKNOWN = b"!"  # no pickle begins so
_MAX_REASON = 1000
_ADVICE = "Take a state where it can tell one"
_ADVICE_BETWEEN = f"{_ADVICE}, or use persistent_workers=False"


class LaneOptions(NamedTuple):
    """What the lanes of a loader have in common."""

    kind: Kind
    places: int  # samples of a batch of an iterable dataset
    drop_last: bool


def _unknown(error: Exception) -> bytes:
    reason = type(error).__name__
    with contextlib.suppress(Exception):  # of the error's own __str__
        reason = f"{reason}: {error}"
    return _UNKNOWN + reason[:_MAX_REASON].encode("utf-8", "replace")


def why_unknown(state: bytes) -> str:
    """Returns what `_unknown` was given, in words. Empty: the state is another one."""
    return state[len(_UNKNOWN) :].decode("utf-8", "replace") if state.startswith(_UNKNOWN) else ""


def _not_known(worker: int, behind: str, why: str, advice: str) -> Error:
    return Error(Code.FAILED_PRECONDITION, f"the state of worker {worker}'s dataset is not known behind {behind}: its state_dict raised {why}. {advice}")


def is_known(state: bytes) -> bool:
    """Returns whether a worker can begin or continue with what `Lane.state` or `Lane.leave` returned."""
    return bool(state) and not state.startswith(_UNKNOWN)


class Lane:
    """The batches of one worker in one epoch. Threads: one.

    Invariant: `next` is the number of the batch that `load` gives next. It advances even if `load` raises.
    """

    def __init__(self, recipe: Recipe, options: LaneOptions, number: int, lanes: int, state: LaneState) -> None:
        """`state`: where to continue; None: at the start of the epoch. Raises what the dataset raises."""
        self._recipe = recipe
        self._options = options
        self._lanes = lanes
        self._stream: Optional[IterableFetcher] = None
        self._drew_from: Tuple[Any, ...] = ()  # the generators before `iter(dataset)`, if that has drawn, as an order that the state may lack
        self.next = number if state is None else state[0] + lanes
        generators, stream, *drew_from = (None, None) if state is None else pickle.loads(state[1])
        stream = _begun(recipe.dataset, stream)
        if generators is not None:
            set_global_states(drew_from[0] if drew_from else generators)
        if options.kind is Kind.ITERABLE:
            before = global_states()
            self._stream = IterableFetcher(recipe.dataset, recipe.batched, options.drop_last, stream)
            if not same_state(before, global_states()):
                self._drew_from = (before,)
        if stream is not None:  # the generators are those behind a batch, not behind `iter(dataset)`
            set_global_states(generators)

    def load(self, indices: Any) -> Any:
        """Returns the samples of the next batch, not collated. Raises StopIteration if there is none. An iterable
        dataset needs no indices.
        """
        self.next += self._lanes
        if self._stream is not None:
            return self._stream.fetch(self._options.places)
        return load(self._recipe, indices)

    def state(self) -> bytes:
        """Returns the state behind the last batch. Empty if the dataset has none, and nothing could continue there. Begins with `_UNKNOWN` if
        the dataset raises, and goes on with why.
        """
        try:
            stream = None if self._stream is None else self._stream.state()
            if self._stream is not None and stream is None:
                return b""
            return pickle.dumps((global_states(), stream, *self._drew_from), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # nobody may ever ask for it
            return _unknown(error)

    def leave(self) -> bytes:
        """Ends the epoch. Returns the state in which the worker's next one begins. Empty if that is not known: an iterable dataset with a state
        may begin anew behind an epoch that was left early, or go on. Begins with `_UNKNOWN` as in `state`.
        """
        try:
            stream = None
            left = None if self._stream is None else self._stream.leave()
            if self._stream is not None and left is not None:
                if not self._stream.ended:
                    return b""
                stream = (_BEFORE_EPOCH, *left)
            return pickle.dumps((global_states(), stream), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # the dataset's, or its generator's, which ends here
            return b"" if self._stream is not None and not self._stream.ended else _unknown(error)


class Lanes:
    """What the trainer knows of its workers' lanes in one epoch. Threads: one takes batches; `place` and `check` from any.

    A worker goes on with its random numbers from epoch to epoch, and with what it has of its dataset.
    """

    def __init__(self, options: LaneOptions, dataset: Any, workers: int, starts: Optional[List[bytes]], epoch: Epoch) -> None:
        """`starts`: the state in which each worker begins the epoch, as `Lane.leave` returns it; None: they have just started."""
        self.position = 0  # the number of the next batch: those of lanes that have ended are counted, too
        self.lost = False  # a worker's place: these workers can make no further epoch either
        self.states: List[LaneState] = [None] * workers  # behind the latest batch; None: there was none in this epoch
        self._starts: List[Optional[bytes]] = [None] * workers if starts is None else [*starts]
        self._ended: Set[int] = set()
        self._options = options
        self._has_states = options.kind is Kind.MAP or has_state(dataset)
        saved = epoch.lanes
        if saved is None and not epoch.first:
            return
        if saved is None or saved["workers"] != workers:
            raise workers_differ(workers, 0 if saved is None else saved["workers"], options.kind)
        self.position = saved["position"]
        self._ended.update(saved["ended"])
        for worker, state in enumerate(saved["states"]):
            if state is not None and state[0] < 0:
                self._starts[worker] = state[1]
            else:
                self.states[worker] = state

    def end(self) -> bool:
        """The last batch that was taken says that its lane has ended. Returns whether all have."""
        self._ended.add((self.position - 1) % len(self.states))
        return len(self._ended) == len(self.states)

    def place(self, worker: int) -> LaneState:
        """Returns where a process in the place of a worker continues."""
        state = self.states[worker]
        return self._start(worker) if state is None else state

    def _start(self, worker: int) -> LaneState:
        start = self._starts[worker]
        return None if start is None else (worker - len(self.states), start)

    def is_known(self, worker: int, first_batch: bool = False) -> bool:
        """Returns whether another process can take the place of a worker. `first_batch`: nobody has asked for another batch yet."""
        place = self.place(worker)
        if place is not None and not is_known(place[1]):
            return False
        return self._has_states or self.states[worker] is not None or (first_batch and place is None)

    def check(self, worker: int, death: str, first_batch: bool = False) -> None:
        """Raises RuntimeError if no other process can take the place of a worker, whose `death` is told. `first_batch` as for `is_known`."""
        if self.is_known(worker, first_batch):
            return
        place = self.place(worker)
        self.lost = True
        why = "" if place is None else why_unknown(place[1])
        advice = (
            f"Its dataset's state_dict raised {why}"
            if why
            else "Nothing tells where it stood before its first batch of the epoch: use persistent_workers=False"
            if self._has_states
            else "Give the dataset state_dict() and load_state_dict(), and another worker takes its place"
        )
        raise RuntimeError(f"{death}, and its place in the data is lost with it. {advice}")

    def saved(self, before: Optional[Tuple[LaneState]] = None) -> Dict[str, Any]:
        """Returns what a state of the loader keeps. `before`: of the worker of the latest batch, which does not count then."""
        states, position = list(self.states), self.position
        if before is not None:
            position -= 1
            states[position % len(states)] = before[0]
        for worker, state in enumerate(states):
            if state is None or not state[1]:  # a dataset without a state is read again from there
                state = states[worker] = self._start(worker)
            if state is not None and (why := why_unknown(state[1])):
                behind, advice = ("the epoch before", _ADVICE_BETWEEN) if state[0] < 0 else (f"batch {state[0]}", _ADVICE)
                raise _not_known(worker, behind, why, advice)
        saved = {"workers": len(states), "position": position, "states": states, "ended": sorted(self._ended)}
        if not self._has_states and any(state is not None and state[0] < 0 for state in states):
            saved["reread"] = True
        return saved


def saved_between(starts: List[bytes]) -> Dict[str, Any]:
    """Returns what a state of the loader keeps between two epochs of its workers, of which each begins the next one with a state."""
    for worker, start in enumerate(starts):
        if why := why_unknown(start):
            raise _not_known(worker, "the epoch", why, _ADVICE_BETWEEN)
    states = [(worker - len(starts), start) for worker, start in enumerate(starts)]
    return {"workers": len(starts), "position": 0, "states": states, "ended": []}


def saved_stream(stream: Any) -> Dict[str, Any]:
    """Returns what a state of a loader without workers keeps: the state of its stream."""
    return {"workers": 0, "stream": pickle.dumps(stream, pickle.HIGHEST_PROTOCOL)}


def saved_stream_between(*states: Any) -> Dict[str, Any]:
    """Returns what a state of a loader without workers keeps between two epochs of a dataset: what `begin_again` needs."""
    return saved_stream((_BEFORE_EPOCH, *states))


def saved_unknown_stream() -> Dict[str, Any]:
    """Returns what a state of a loader without workers keeps if nothing tells where its dataset is to begin."""
    return {"workers": 0, "stream": b""}


def open_stream(dataset: Any, batched: bool, drop_last: bool, saved: Optional[Dict[str, Any]], begun_with: Any = None) -> Tuple[IterableFetcher, Any]:
    """Returns the samples of an iterable dataset in a loader without workers: `saved` as of `saved_stream`, or None at the start. Then what
    `begin_again` got for the epoch that begins; None: it was not needed. `begun_with`: as of `IterableFetcher`.
    """
    if saved is not None and saved["workers"]:
        raise workers_differ(0, saved["workers"], Kind.ITERABLE)
    state = None if saved is None else pickle.loads(saved["stream"])
    begun = state[1:] if state is not None and state[0] == _BEFORE_EPOCH else None
    stream = IterableFetcher(dataset, batched, drop_last, _begun(dataset, state, begun_with is not None), begun_with)
    return stream, stream.leave() if stream.ended else begun


def _begun(dataset: Any, stream: Any, goes_on: bool = False) -> StreamState:
    """Prepares a dataset for the epoch that a stream is to begin or continue. Returns where; None: at its start."""
    if stream is None or stream[0] != _BEFORE_EPOCH:
        return cast(StreamState, stream)
    begin_again(dataset, *stream[1:], goes_on=goes_on)
    return None


def check_saved(saved: Optional[Dict[str, Any]]) -> None:
    """Raises InvalidArgumentError if nothing tells where a worker had begun its epoch, and none of its batches had been taken. Warns if a dataset
    without a state is read again that persistent workers had read before: what it has kept from then is not known.
    """
    if saved is None:
        return
    if saved.get("stream") == b"":
        raise invalid(
            "the state was taken before the first batch of an epoch, and nothing tells where the dataset had begun it, because the epoch before was left "
            "early: samples could be missing or come twice. Take a state behind a batch",
        )
    for state in saved.get("states", []):
        if state is not None and (why := why_unknown(state[1])):
            raise invalid(
                f"the state was taken where nothing tells where the dataset of one of the persistent workers stood: its state_dict raised {why}. Take a state after "
                "num_workers batches, or use persistent_workers=False",
            )
    if any(state is not None and not state[1] for state in saved.get("states", [])):
        raise invalid(
            "the state was taken when some of the persistent workers had not given a batch of the epoch yet, and nothing tells where their dataset "
            "had begun it, because they had not finished the epoch before: samples could be missing or come twice. Take a state after num_workers batches, or use "
            "persistent_workers=False",
        )
    if saved.get("reread"):
        warnings.warn(
            "the state is from a later epoch of persistent workers and an iterable dataset without a state, which is read again from its start: if its "
            "order is random, samples are lost or repeated. Give the dataset state_dict() and load_state_dict(), or use persistent_workers=False",
            stacklevel=3,
        )


def workers_differ(workers: int, saved: int, kind: Kind) -> InvalidArgumentError:
    """Returns the error of a state that this number of workers cannot continue."""
    without = "one whose batches do not depend on those before it (num_workers=0, or another seeding)"
    cost = ", which" if saved else "; a state of num_workers=0"
    other = f', or seeding="sample"{cost} continues with other random numbers'
    return invalid(
        f"num_workers: {workers} with these arguments cannot continue an epoch of {f'{saved} workers' if saved else without}: a batch depends on "
        "those that its worker made before. Use the arguments of the loader that the state is from"
        + (other if kind is Kind.MAP else ""),
    )
