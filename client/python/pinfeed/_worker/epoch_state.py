# SPDX-License-Identifier: Apache-2.0
"""The start of a loader's epoch: its order and seed, kept so that a checkpoint can begin the same epoch again.

In: a loader, and perhaps a loaded state. Out: an iterator over the indices of the epoch's batches.
"""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import hashlib
import itertools
import operator
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Type

from .._base.checks import shown, to_integer
from .._base.errors import Code, Error, InvalidArgumentError, invalid
from .iterable import has_state, only_next
from .seeding import draw_base_seed, global_states, mix, set_global_states, with_arrays, without_arrays

VERSION = 1
_NOTHING = object()
_STATE_METHODS = ("get_state", "getstate", "bit_generator")  # of generators: torch's and NumPy's old ones, Python's, NumPy's
_COMPARED = 8 << 20  # bytes of indices, to tell two orders apart
_OTHER_SAMPLES = "it would skip other samples than those that were yielded"
# What a state from the middle of an epoch must have in common with the loader that continues it: what to call it, and what happens otherwise.
_REFUSED = {
    "batch_size": ("batch_size", _OTHER_SAMPLES),
    "shuffle": ("shuffle", _OTHER_SAMPLES),
    "samples": ("len(dataset)", "a sampler may give another order then, in which some samples come twice and others never"),
}


class Drawn:
    """What an epoch's sampler has given so far, as hashes. Threads: one."""

    _KEPT = 8192  # hashes: more than batches are ever drawn and not yielded

    def __init__(self) -> None:
        self._hashes: "collections.deque[Tuple[int, Optional[str]]]" = collections.deque([(0, "")], self._KEPT)  # after 0, 1, ... batches
        self.all = False  # it has no more

    @property
    def batches(self) -> int:
        return self._hashes[-1][0]

    def add(self, number: int, indices: Any) -> None:
        """Adds a batch's indices, or its single index. Does nothing if they were added. If a signal handler kept it from adding those before,
        the hashes from here on are not known.
        """
        batches, before = self._hashes[-1]
        if number < batches:
            return
        data = _bytes_of(indices) if number == batches else None
        self._hashes.append((number + 1, None if before is None or data is None else hashlib.blake2b(before.encode() + data, digest_size=8).hexdigest()))

    def after(self, batches: int) -> Optional[str]:
        """Returns the hash of the first batches. None: not known, as with keys that are no numbers."""
        place = len(self._hashes) - 1 - (self.batches - batches)
        return self._hashes[place][1] if 0 <= place < len(self._hashes) and self._hashes[place][0] == batches else None


class Epoch(NamedTuple):
    """An epoch that begins, or continues after `first` batches."""

    indices: Iterator[Any]  # of the batches from `first` on
    first: int
    base_seed: int
    repeat: int  # how many epochs began with this base_seed before
    start: Dict[str, Any]  # for the state
    drawn: Drawn  # the iterator's user adds what it takes of `indices`
    lanes: Optional[Dict[str, Any]] = None  # of the state to continue
    unknown: Optional[str] = None  # why the samplers' states are not known

    @property
    def seed(self) -> int:
        """The seed of the epoch's samples."""
        return mix(self.base_seed, self.repeat)

    def state(self, batches: int, lanes: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """Returns the state after that many batches of the epoch, with `lanes` if batches depend on those before. Raises Error if it is not known."""
        if self.unknown is not None and (not batches or self.drawn.after(batches) is None):  # otherwise who loads it compares the indices
            raise Error(Code.FAILED_PRECONDITION, f"the position has no state: when the epoch began, {self.unknown}")
        return {
            "version": VERSION,
            "running": True,
            "batches": batches,
            "base_seed": self.base_seed,
            "repeat": self.repeat,
            "start": dict(self.start),  # iterators add to it
            "indices": self.drawn.after(batches),
            "lanes": lanes,
        }


class _RetryIfEmpty:
    """The indices of a sampler, if none were given so far."""

    def __init__(self, sampler: Any, given: "itertools.count[int]") -> None:
        self._sampler = sampler
        self._given = given

    def __iter__(self) -> Iterator[Any]:
        if next(self._given):
            return iter(())
        indices = only_next(iter(self._sampler))
        first = list(itertools.islice(indices, 1))
        samples = 0
        if not first:
            with contextlib.suppress(Exception):  # whatever a length raises
                samples = len(self._sampler)
        if samples:
            raise invalid(
                f"the sampler, whose length is {samples}, gave nothing behind a state that was loaded, also when it was asked again. Its __iter__ has to begin "
                "anew once the position that load_state_dict gave it was used up",
            )
        return itertools.chain(first, indices)


class Order:
    """What an epoch's order comes from: the samplers and generators of a loader."""

    def __init__(
        self,
        sampler: Any,
        batch_sampler: Any,
        generator: Any,
        batch_size: Optional[int] = None,
        samples: Optional[int] = None,
        random_numbers: Optional[str] = None,
    ) -> None:
        """`samples`: of the dataset; `random_numbers`: the arguments that say where those of samples come from. None: not known, or without
        meaning, as with an iterable dataset.
        """
        self._index_sampler = sampler if batch_sampler is None else batch_sampler
        self._generator = generator
        inner = getattr(batch_sampler, "sampler", None)
        # Of other classes, an epoch may end before that of the sampler inside, whose state would then be that of a part of one.
        kind = type(batch_sampler)
        ends_together = kind.__name__ == "BatchSampler" and kind.__module__.startswith(("torch.", "torchdata.", "pinfeed."))
        named = {"sampler": sampler, "batch_sampler": batch_sampler, "inner_sampler": inner}
        generators = {"loader": generator}
        for name, each in named.items():
            with contextlib.suppress(Exception):  # whatever a property raises
                generators[name] = getattr(each, "generator", None)
        self._generators = _distinct(generators, lambda each: any(hasattr(each, method) for method in _STATE_METHODS) and not isinstance(each, type))
        self._samplers = _distinct(named if ends_together else {**named, "inner_sampler": None}, has_state)
        kept = has_state(batch_sampler) or any(each is inner for each in self._samplers.values())
        self.loses_inner_state = has_state(inner) and not kept
        # As DistributedSampler: the program sets the epoch before each iteration, which one that resumes may not have done.
        self._by_epoch = _distinct(named, lambda each: callable(getattr(each, "set_epoch", None)) and type(getattr(each, "epoch", None)) is int)
        self.arguments = {
            "batch_size": batch_size,
            "shuffle": _shuffles(sampler),
            # In the order of the dataset, the first samples of one that has grown are the same.
            "samples": None if _in_order(sampler if batch_sampler is None else inner) else samples,
            "random_numbers": random_numbers,
        }
        self.restored = False  # samplers got a state, and have not been asked for an index since

    def begin(
        self,
        repeat: int,
        base_seed: int,
        lanes: Optional[Dict[str, Any]] = None,
        lazy: bool = False,
        before: Optional[Drawn] = None,
        restored: Optional[Dict[str, Any]] = None,
    ) -> Epoch:
        """Begins an epoch. `repeat` is 0 if it needs a new `base_seed`. `lazy`: the sampler is asked only when the trainer asks for a batch; the
        iterator sets "first_draw" of the start then. `before`: of the loader's epoch before. `restored`: the start that was just restored.
        """
        unknown = None
        try:
            start = self._capture()
        except Exception as error:  # nobody has asked for a state yet
            start, unknown = self._capture(Exception), f"the sampler's state_dict raised {type(error).__name__}: {error}"
        if restored is not None:  # a sampler may tell of its latest iterator, not of the state
            start["samplers"].update({name: each for name, each in restored["samplers"].items() if name in self._samplers})
            unknown = None if set(self._samplers) <= set(start["samplers"]) else unknown
        start["left_early"] = before is not None and not before.all
        start["global"] = global_states()
        start["epochs"] = {name: sampler.epoch for name, sampler in self._by_epoch.items()}
        if lazy:
            start["first_draw"] = None
        iterator = self._iterate()
        return Epoch(iterator, 0, base_seed if repeat else draw_base_seed(self._generator), repeat, start, Drawn(), lanes, unknown)

    def state_between(self, repeat: int, base_seed: int, lanes: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        """Returns the state between two epochs. The rest is what `begin` gets for the next one."""
        return {"version": VERSION, "running": False, "batches": 0, "repeat": repeat, "base_seed": base_seed, "lanes": lanes, "start": self._capture()}

    def resume(self, state: Dict[str, Any], lazy: bool = False) -> Epoch:
        """Begins the epoch of a state again, without the batches that it had yielded. Global generators are afterwards
        as before. `lazy`: as for `begin`.
        """
        start = dict(state["start"])  # a copy: iterators add to it
        before = global_states()
        try:
            loads = any(name in start["samplers"] for name in self._samplers)
            goes_on = loads and bool(state["batches"]) and self._goes_on(state)
            self.restore(start)
            replayed = self._replay(state, goes_on)
            if replayed is None:
                raise _other_samples(state["batches"])
            rest, drawn = replayed
        finally:
            set_global_states(before)
        if "first_draw" in start and start["first_draw"] is None and not lazy:  # it is asked now
            start["first_draw"] = before
        return Epoch(rest, state["batches"], state["base_seed"], state["repeat"], start, drawn, state.get("lanes"))

    def _goes_on(self, state: Dict[str, Any]) -> bool:
        """Whether the sampler's state is a position, from which it first goes on. Such a sampler gives the batches of the state's epoch the second time
        only, if the epoch before was left early. Raises InvalidArgumentError if both give these batches, and then others.
        """
        first = self._given(state, goes_on=False)
        if first is not None and not state["start"].get("left_early"):
            return False
        second = self._given(state, goes_on=True)
        if first is not None and second is not None and first != second:
            raise invalid(
                f"the state is from an epoch that followed one left early, of which the first {state['batches']} batches are what the sampler gives whether "
                "its state is a position in the epoch before, or not; then it gives others. Take a state behind more batches, or let epochs end",
            )
        return first is None and second is not None

    def _given(self, state: Dict[str, Any], goes_on: bool) -> Optional[List[Optional[bytes]]]:
        """Returns batches that would follow. None: those before were others, or the sampler raised."""
        self.restore(state["start"])
        with contextlib.suppress(Exception):  # the sampler's own is raised again
            replayed = self._replay(state, goes_on)
            if replayed is None:
                return None
            given: List[Optional[bytes]] = []
            left = _COMPARED
            for indices in replayed[0]:
                given.append(_bytes_of(indices))
                left -= max(len(given[-1] or b""), 1024)
                if left < 0:
                    break
            return given
        return None

    def _replay(self, state: Dict[str, Any], goes_on: bool) -> Optional[Tuple[Iterator[Any], Drawn]]:
        """Returns the batches behind those that were yielded, and what the sampler gave for these. None: they were others. `goes_on`: the sampler first
        goes on from its state, and then begins the epoch.
        """
        start, batches, drawn = state["start"], state["batches"], Drawn()
        set_global_states(start["global"])
        if goes_on:
            next(only_next(iter(self._index_sampler)), None)
            self._restore_generators(start)
            set_global_states(start["global"])
        iterator = self._iterate()
        if not state["repeat"]:
            draw_base_seed(self._generator)
        first_draw = start.get("first_draw", _NOTHING)
        if first_draw is None:  # as yet the sampler has not been asked
            return iterator, drawn
        if first_draw is not _NOTHING:
            set_global_states(first_draw)
        if not batches:  # samplers draw their order for the first index: that draw is from the state's generators
            following = list(itertools.islice(iterator, 1))
            return itertools.chain(following, iterator), drawn
        for number, indices in enumerate(itertools.islice(iterator, batches)):
            drawn.add(number, indices)
        return (iterator, drawn) if _gave_the_same(state, drawn) else None

    def _iterate(self) -> Iterator[Any]:
        """Returns the indices of an epoch. A sampler with the state from an epoch's end may end that one first, and give none: it is asked again."""
        indices = only_next(iter(self._index_sampler))
        if not self.restored:
            return indices
        given = itertools.count()  # zip counts none behind the last
        first = map(operator.itemgetter(0), zip(indices, given))
        return itertools.chain.from_iterable([first, _RetryIfEmpty(self._index_sampler, given)])

    def _capture(self, suppressed: Type[BaseException] = NotImplementedError) -> Dict[str, Any]:
        """`suppressed`: what samplers may raise. By default, a base class has the method, and this one does not."""
        samplers = {}
        for name, sampler in self._samplers.items():
            inner = (Exception,) if name == "inner_sampler" else ()  # torch never asked it
            with contextlib.suppress(suppressed, *inner):
                samplers[name] = copy.deepcopy(sampler.state_dict())
        return {
            "arguments": self.arguments,
            "generators": {name: _get_state(generator) for name, generator in self._generators.items()},
            "samplers": samplers,
        }

    def restore(self, start: Dict[str, Any]) -> None:
        """Gives samplers and generators the states that they had at the start of a state's epoch, or of the one behind it. Raises what they raise."""
        for name, epoch in start.get("epochs", {}).items():
            if name in self._by_epoch:
                self._by_epoch[name].set_epoch(epoch)
        for name, sampler in self._samplers.items():
            if name in start["samplers"]:
                self.restored = True
                sampler.load_state_dict(copy.deepcopy(start["samplers"][name]))
        self._restore_generators(start)

    def _restore_generators(self, start: Dict[str, Any]) -> None:
        for name, generator in self._generators.items():
            if name in start["generators"]:
                _set_state(generator, start["generators"][name])


def check_state(state: Any, order: Order) -> Dict[str, Any]:
    """Returns the state of a loader, or raises InvalidArgumentError if it is none, or one of other arguments."""
    fault = ""
    if not isinstance(state, dict) or not {"version", "running", "batches", "start"} <= set(state):
        fault = f"{shown(state)}; give what loader.state_dict() returned"
    elif state["version"] != VERSION:
        fault = f"it has version {shown(state['version'])}, this package reads {VERSION}: update pinfeed"
    elif to_integer(state["batches"]) is None or state["batches"] < 0:
        fault = f"batches: {shown(state['batches'])} is not a number of batches"
    else:
        start = state["start"] if isinstance(state["start"], dict) else {}
        running = bool(state["running"])
        missing = [name for name in ["generators", "samplers"] + ["arguments", "global"] * running if name not in start]
        missing += [name for name in ["base_seed", "repeat"] * running if name not in state]
        if missing:
            fault = f"it lacks {', '.join(map(repr, missing))}; give what loader.state_dict() returned"
    if fault:
        raise invalid(f"this is not the state of a loader: {fault}")
    if state["running"]:
        _compare(state["start"]["arguments"], order.arguments)
        if state["start"].get("left_early") and state["start"]["samplers"] and not state.get("indices"):
            unknown = "whether the sampler's state is where that epoch began, or a position in the one before: samples could be missing"
            if not state["batches"]:
                raise invalid(
                    f"the state is from before the first batch of an epoch that followed one left early. Nothing tells {unknown}. Take a state behind a batch",
                )
            warnings.warn(
                f"the state is from an epoch that followed one left early, and the sampler's indices are neither numbers nor texts. Nothing tells {unknown}. "
                "Let epochs end before a state is taken, or the sampler give numbers",
                stacklevel=3,
            )
    return dict(state)


def _compare(theirs: Dict[str, Any], mine: Dict[str, Any]) -> None:
    """Compares the arguments of a state with a loader's. None: not known, or no batch_size."""
    for name, (called, consequence) in _REFUSED.items():
        value, own = theirs.get(name), mine[name]
        if value != own and (None not in (value, own) or name == "batch_size"):
            raise invalid(
                f"the state is from the middle of an epoch with {called}={shown(value)}, and this loader has {called}={shown(own)}: {consequence}. "
                "Use the arguments and the dataset of the loader that the state is from, or a state from between two epochs",
            )
    value, own = theirs.get("random_numbers"), mine["random_numbers"]
    if value != own and None not in (value, own):
        warnings.warn(
            f"the state is from the middle of an epoch with {value}, and this loader has {own}: the samples of the rest are the same, but random "
            "transforms draw other numbers",
            stacklevel=4,
        )


def _gave_the_same(state: Dict[str, Any], drawn: Drawn) -> bool:
    """Returns whether the batches that were skipped have the samples of those that were yielded, as far as is known."""
    batches, yielded = state["batches"], state.get("indices")
    skipped = drawn.after(batches)
    unknown = yielded is None or (skipped is None and drawn.batches == batches)
    return unknown or yielded == skipped


def _other_samples(batches: int) -> InvalidArgumentError:
    return invalid(
        f"the state is from an epoch in which the first {batches} batches had other samples than the sampler gives now. The rest of this order would "
        "repeat some of them and leave others out. Make the sampler what it was when that epoch began (DistributedSampler: call set_epoch with "
        "that epoch), seed it if it is random, or give it state_dict and load_state_dict. Or load a state from between two epochs in place of this one",
    )


def _bytes_of(indices: Any) -> Optional[bytes]:
    """Returns the indices of a batch as bytes; None: they are neither numbers nor texts."""
    if hasattr(indices, "tolist"):
        indices = indices.tolist()
    try:
        return array.array("q", indices if isinstance(indices, (list, tuple)) else [indices]).tobytes()
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return repr(indices).encode() if _is_plain(indices) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, bytes, int, float))


def _distinct(named: Dict[str, Any], accepts: Callable[[Any], bool]) -> Dict[str, Any]:
    """Returns the objects that are accepted, each under its first name."""
    distinct: Dict[str, Any] = {}
    for name, each in named.items():
        if accepts(each) and not any(each is other for other in distinct.values()):
            distinct[name] = each
    return distinct


def _in_order(sampler: Any) -> bool:
    """Returns whether a sampler is known to give the samples in the order of the dataset."""
    return _shuffles(sampler) is False or getattr(sampler, "shuffle", None) is False


def _shuffles(sampler: Any) -> Optional[bool]:
    return {"RandomSampler": True, "SequentialSampler": False}.get(type(sampler).__name__)


def _get_state(generator: Any) -> Any:
    if hasattr(generator, "bit_generator"):
        return without_arrays(generator.bit_generator.state)
    return without_arrays(generator.getstate() if hasattr(generator, "getstate") else generator.get_state())


def _set_state(generator: Any, state: Any) -> None:
    state = with_arrays(state)
    if hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif hasattr(generator, "setstate"):
        generator.setstate(state)
    else:
        generator.set_state(state)
