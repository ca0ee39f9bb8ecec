# SPDX-License-Identifier: Apache-2.0
"""Lanes: batches of which each depends on those before it, as those of an iterable dataset, or with one stream of random
numbers per worker. Worker w of n has the batches w, w + n, w + 2n and so on, as in torch.

In: a worker's batches, in order. Out: in the worker, their samples and the state behind each; in the trainer, where each
worker can continue.
"""

from __future__ import annotations

import os
import pickle
import warnings
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ._errors import Code, InvalidArgumentError
from ._fetch import IterableFetcher, Kind, Recipe, has_state, load
from ._loader_state import Epoch
from ._seeding import global_states, set_global_states

_MOST_BEFORE = 8  # epochs that were left early whose index logs are kept
LaneState = Optional[Tuple[int, bytes]]  # a batch's number, and the state behind it


class LaneOptions(NamedTuple):
    """What the lanes of a loader have in common."""

    kind: Kind
    places: int  # samples of a batch of an iterable dataset
    drop_last: bool


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
        self.next = number if state is None else state[0] + lanes
        generators, stream = (None, None) if state is None else pickle.loads(state[1])
        if options.kind is Kind.ITERABLE:
            self._stream = IterableFetcher(recipe.dataset, recipe.batched, options.drop_last, stream)
        if state is not None:
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
        """Returns the state behind the last batch. Empty if the dataset has none, and nothing could continue there."""
        stream = None if self._stream is None else self._stream.state()
        if self._stream is not None and stream is None:
            return b""
        return pickle.dumps((global_states(), stream), pickle.HIGHEST_PROTOCOL)


class Lanes:
    """What the trainer knows of its workers' lanes in one epoch. Threads: one takes batches; `path` and `check` from any.

    A worker goes on with its random numbers from epoch to epoch. So the place of one that ends before its first batch of an
    epoch is behind all batches that it was dealt in the epoch before, which the index log of that epoch tells.
    """

    def __init__(self, options: LaneOptions, dataset: Any, workers: int, before: Optional["Lanes"], epoch: Epoch) -> None:
        """`before`: of the epoch that these workers have had before."""
        self.seed = epoch.seed
        self.first = 0  # as the workers were told
        self.log = -1  # the descriptor of a log that `keep` keeps
        self.position = 0  # the number of the next batch: those of lanes that have ended are counted, too
        self.states: List[LaneState] = [None] * workers
        self._ended: Set[int] = set()
        self._options = options
        self.complete = False  # all batches of the epoch have been taken
        self.lost = False  # a worker's place: these workers can make no further epoch either
        self._has_states = options.kind is Kind.MAP or has_state(dataset)
        self._starts = before is None and self._has_states
        following = None if before is None else before.following()
        if before is not None and following is not None:
            self._starts = before._starts
            self.states = following["states"]
        self._fresh = before is None
        self._starts_unknown = before is not None and not self._starts
        self._before: List[Lanes] = []  # earlier epochs of these workers, the oldest first
        if before is not None:
            if options.kind is Kind.MAP and None in self.states:
                self._before = [*before._before, before][-_MOST_BEFORE:]
            before._before = []  # it is over
        saved = epoch.lanes
        if saved is None and not epoch.first:
            return
        if saved is None or saved["workers"] != workers:
            raise workers_differ(workers, 0 if saved is None else saved["workers"])
        self.position = saved["position"]
        self.states[:] = saved["states"]
        self._ended.update(saved["ended"])

    def end(self) -> bool:
        """The last batch that was taken says that its lane has ended. Returns whether all have."""
        self._ended.add((self.position - 1) % len(self.states))
        return len(self._ended) == len(self.states)

    def keep(self, first: int, log: int) -> None:
        """Keeps what the workers were told of the epoch: its first batch, and the descriptor of its index log."""
        self.first, self.log = first, os.dup(log)
        weakref.finalize(self, os.close, self.log).atexit = False

    def path(self, worker: int) -> "Optional[List[Lanes]]":
        """Returns the epochs that a process in the place of a worker has to go through, this one last. None: none can take it."""
        path: List[Lanes] = []
        for each in (self, *reversed(self._before)):
            path.insert(0, each)
            if each.states[worker] is not None or each._starts:
                return path
        return None

    def check(self, worker: int, death: str, first_batch: bool = False) -> None:
        """Raises RuntimeError if no other process can take the place of a worker, whose `death` is told. `first_batch`: nobody has
        asked for another batch yet.
        """
        if self.path(worker) is not None or (first_batch and self._fresh):
            return
        if self._options.kind is Kind.MAP:
            advice = (
                f"The {_MOST_BEFORE} epochs before were left before it had given a batch, so nothing tells its random numbers: begin with another "
                'DataLoader, or use seeding="sample", or persistent_workers=False'
            )
        else:
            advice = (
                "Nothing tells where it stood before its first batch of the epoch: use persistent_workers=False"
                if self._has_states
                else "Give the dataset state_dict() and load_state_dict(), and another worker takes its place"
            )
        self.lost = True
        raise RuntimeError(f"{death}, and its place in the data is lost with it. {advice}")

    def saved(self, before: Optional[Tuple[LaneState]] = None) -> Dict[str, Any]:
        """Returns what a state of the loader keeps. `before`: of the worker of the latest batch, which does not count then."""
        states, position = list(self.states), self.position
        if before is not None:
            position -= 1
            states[position % len(states)] = before[0]
        saved = {"workers": len(states), "position": position, "states": states, "ended": sorted(self._ended)}
        if self._starts_unknown and None in states:
            saved["unknown"] = self._options.kind.value if self._has_states else "reread"
        return saved

    def following(self) -> Optional[Dict[str, Any]]:
        """Returns what `saved` would return at the beginning of these workers' next epoch. None: it does not depend on this one, or that is
        not known.
        """
        if not self.complete or self._options.kind is not Kind.MAP:
            return None
        workers = len(self.states)
        states = [None if state is None else (worker - workers, state[1]) for worker, state in enumerate(self.states)]
        return {"workers": workers, "position": 0, "states": states, "ended": []}


def check_known(saved: Optional[Dict[str, Any]]) -> None:
    """Checks a state that was taken before each persistent worker had given a batch of its epoch, when nothing told where it had begun: the
    epoch before was left early, or it is a later one of an iterable dataset. Raises InvalidArgumentError if samples depend on that. Warns if
    only random numbers do, or if a dataset without a state is read again, whose order may depend on them.
    """
    unknown = None if saved is None else saved.get("unknown")
    if unknown is None:
        return
    if unknown == "reread":
        reason = "the state is from a later epoch of persistent workers and an iterable dataset without a state, which is read again from its start"
        advice = "Give the dataset state_dict() and load_state_dict(), or use persistent_workers=False"
        warnings.warn(f"{reason}: if its order is random, samples are lost or repeated. {advice}", stacklevel=3)
        return
    reason = "the state was taken when some of the persistent workers had not given a batch of the epoch yet, and nothing told where they had begun it"
    advice = "Take a state after num_workers batches, or between two epochs, or use persistent_workers=False"
    if unknown == Kind.ITERABLE.value:
        raise InvalidArgumentError(Code.INVALID_ARGUMENT, f"{reason}: samples could be missing or come twice. {advice}")
    warnings.warn(f"{reason}: the samples are the same, but random transforms draw other numbers. {advice}", stacklevel=3)


def workers_differ(workers: int, saved: int) -> InvalidArgumentError:
    """Returns the error of a state that this number of workers cannot continue."""
    without = "one whose batches do not depend on those before it (num_workers=0, or another seeding)"
    return InvalidArgumentError(
        Code.INVALID_ARGUMENT,
        f"num_workers: {workers} with these arguments cannot continue an epoch of {f'{saved} workers' if saved else without}: a batch depends on "
        "those that its worker made before. Use the arguments of the loader that the state is from",
    )
