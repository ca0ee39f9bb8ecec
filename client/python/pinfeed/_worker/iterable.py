# SPDX-License-Identifier: Apache-2.0
"""Iterable datasets, and the states of whatever is iterated.

In: a dataset, and perhaps a state to continue from. Out: its samples, and where the next one is.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import itertools
import mmap
import pickle
import types
import weakref
from typing import Any, Iterator, Optional, Tuple

import numpy

from .._base.optional_torch import torch_or_none
from .seeding import global_states, set_global_states

# Of an iterable dataset: whose state, "iterator", "dataset", "both" or "own" (the dataset is its own iterator); the state; whether it has ended.
StreamState = Optional[Tuple[str, Any, bool]]


def has_state(source: Any) -> bool:
    """Whether a dataset, or its iterator, can continue where another one stood. Methods with other parameters are of another library."""
    return _takes(source, "state_dict") and _takes(source, "load_state_dict", None)


def _takes(source: Any, name: str, *arguments: Any) -> bool:
    method = getattr(source, name, None)
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # it is not written in Python
        pass
    return True


def only_next(iterator: Any) -> Iterator[Any]:
    """Returns an iterator that calls only `next` of another one, whose `__iter__` may begin anew, or be missing. No signal handler runs between
    the two.
    """
    return map(next, itertools.repeat(iterator))


def state_of(dataset: Any) -> Any:
    """Returns the state of a dataset. None: it has none."""
    if has_state(dataset):
        with contextlib.suppress(NotImplementedError):  # a base class has it, this one does not
            return dataset.state_dict()
    return None


def told(dataset: Any) -> Any:
    """Returns a copy of the state that a dataset tells now. None if it has none, or if that fails, as it may before its first iterator."""
    with contextlib.suppress(Exception):
        return copy.deepcopy(state_of(dataset))
    return None


def same_state(one: Any, other: Any) -> bool:
    """Whether two states are known to be equal, with tensors and arrays anywhere in them."""
    for compare in (_same_values, _same_pickles):
        with contextlib.suppress(Exception):  # whatever their parts raise
            if compare(one, other):
                return True
    return False


def _same_pickles(one: Any, other: Any) -> bool:
    return pickle.dumps(one) == pickle.dumps(other)


def _same_values(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_state, one, other))
    if hasattr(one, "shape") and hasattr(one, "dtype"):  # their pickles may have addresses in them
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    return bool(one == other)


def begin_again(dataset: Any, state: Any, of_iterator: Any = None, *, goes_on: bool = False) -> None:
    """Gives a dataset the state that another one had behind its last sample, so that its next iterator begins an epoch as the other's did. A dataset that
    goes on from a state once has to end there first. `of_iterator`: of the iterator that had ended, if it has a state too. Leaves the global generators as
    they were. With `goes_on`, the epoch had begun, and what loading the state does to them stays: a state may have them.
    """
    generators = global_states()
    try:
        begins_by_itself = _begins_by_itself(dataset, state)
        for _ in range(0 if begins_by_itself else 2):  # an error that passes is not the first sample's
            given, samples = _loaded(dataset, state)
            if of_iterator is not None:
                samples.load_state_dict(copy.deepcopy(of_iterator))
            try:
                begins_by_itself = any(True for _ in only_next(samples))  # takes one sample
                break
            except Exception:  # the epoch's first sample is bad
                begins_by_itself = True
            finally:
                del samples  # a generator ends here, and may change the dataset
                _forget(dataset, given)
        if begins_by_itself:
            set_global_states(generators)
            _load(dataset, state)
            if goes_on:
                generators = global_states()
    finally:
        set_global_states(generators)


def _loaded(dataset: Any, state: Any) -> Tuple[Any, Any]:
    """Loads a state and begins. One that is its own iterator may need what `iter` makes to load it."""
    try:
        given = _load(dataset, state)
    except Exception:
        if not hasattr(type(dataset), "__next__"):
            raise
        samples = iter(dataset)
        return _load(dataset, state), samples
    return given, iter(dataset)


def _begins_by_itself(dataset: Any, state: Any) -> bool:
    """Whether a dataset that is its own iterator is known to begin an epoch with this state. Asks a copy for a sample, since some open their source for
    the first one, and only then.
    """
    if not hasattr(type(dataset), "__next__"):
        return False
    with contextlib.suppress(Exception):  # it cannot be copied, or the copy cannot be read
        spare = _copied(dataset)
        _load(spare, state)
        return any(True for _ in only_next(iter(spare)))
    return False


def _copied(value: Any) -> Any:
    """Returns a copy that shares files that are mapped into memory. Raises for what has no pickle, and for objects with a `__del__`: that of the copy would
    close what the original uses.
    """
    shared = {}
    torch = torch_or_none()
    whole = (type, types.FunctionType, weakref.ref, () if torch is None else torch.Tensor)  # not looked into

    class Walk(pickle.Pickler):
        def persistent_id(self, each: Any) -> Optional[int]:
            if isinstance(each, numpy.ndarray) and _is_mapped(each):
                shared[id(each)] = each
            elif type(each) in (io.BytesIO, io.StringIO):
                return 0
            elif hasattr(type(each), "__del__"):
                raise TypeError(f"{type(each).__name__} has a __del__")
            return 0 if isinstance(each, whole) or (isinstance(each, numpy.ndarray) and not each.dtype.hasobject) else None

    Walk(types.SimpleNamespace(write=len), 5).dump(value)
    return copy.deepcopy(value, shared)


def _is_mapped(array: Any) -> bool:
    """Whether an array's memory is that of a file, perhaps through views."""
    while isinstance(array, (numpy.ndarray, memoryview)):
        array = array.base if isinstance(array, numpy.ndarray) else array.obj
    return isinstance(array, mmap.mmap)


def _load(dataset: Any, state: Any) -> Any:
    """Loads a state. Returns the copy that the dataset has, which it may keep, and change."""
    given = copy.deepcopy(state)
    dataset.load_state_dict(given)
    return given


def _forget(dataset: Any, given: Any) -> None:
    """Call once the dataset has gone on from this state. Hugging Face's would go on from it in each later iteration, too."""
    if given is not None and getattr(dataset, "_starting_state_dict", None) is given:
        dataset._starting_state_dict = None


class IterableFetcher:
    """The samples of an iterable dataset, in this process."""

    def __init__(self, dataset: Any, batched: bool, drop_last: bool, state: StreamState = None, begun_with: Any = None) -> None:
        """`state`: where to continue; None: at the start. `begun_with`: the global generators of an epoch that had begun. Then `iter` draws from these, and
        leaves the generators as they are. What loading the state does to them stays, as a state may have them.
        """
        self._dataset = dataset
        self._begun_with = begun_with
        self._batched = batched
        self._drop_last = drop_last
        whose, saved, self.ended = ("", None, False) if state is None else state
        of_dataset, of_iterator = saved if whose == "both" else (saved, saved)
        self._at_end: Optional[Tuple[Any, Any]] = None  # what begin_again gets
        of_any = whose in ("dataset", "both", "own")
        if of_any and self.ended:
            self._at_end = of_dataset, of_iterator if whose == "both" else None
        generators, fresh = (global_states(), told(dataset)) if whose == "own" else (None, None)
        self._given: Any = None  # until the dataset has gone on from it
        try:
            self._given = self._load_as_begun(of_dataset) if of_any else None
        except Exception:
            if whose != "own":
                raise
            of_any = False  # it may need what `iter` makes, behind which torchdata's loader loads it
            if self._at_end is not None:
                begin_again(dataset, *self._at_end)  # which calls `iter` too. Now: an error is that of this epoch
        before = told(dataset) if whose == "own" else None
        self._iterate(dataset if self._at_end is None else ())
        if self._at_end is None and (whose in ("iterator", "both") or (whose == "own" and (not of_any or self._needs_again(of_iterator, fresh, before, generators)))):
            self._iterator.load_state_dict(copy.deepcopy(of_iterator))
        self._begun_with = None

    def _needs_again(self, state: Any, fresh: Any, before: Any, generators: Any) -> bool:
        """Whether a dataset that is its own iterator needs the state that it got once more, behind `iter`, where torchdata's loader loads it. `fresh`,
        `before`: what it told before it got the state, and before `iter`. Leaves it and the global generators, which were `generators` before `iter`, as if
        the state had been loaded, and `iter` called. Takes no sample, since some open their source for the first one, and only then.
        """
        if self._iterator is not self._dataset or not same_state(told(self._dataset), state):
            return True  # it has begun elsewhere
        if not same_state(before, state) or same_state(fresh, state):
            return False  # `iter` has brought it there, or it stood there
        # It tells the state in any case: it may have opened its source in `iter`, or keep what is loaded for the next one, which then begins there.
        ends = []
        for again in (False, True):
            _load(self._dataset, state)
            self._iterate(self._dataset)
            if again:
                _load(self._dataset, state)
            self._iterate(self._dataset)
            ends.append(told(self._dataset))
        set_global_states(generators)
        self._given = _load(self._dataset, state)
        self._iterate(self._dataset)
        return same_state(*ends)

    def _load_as_begun(self, state: Any) -> Any:
        """Loads a state. If that draws random numbers, as for an order that the state lacks, they are those of `begun_with`."""
        if self._begun_with is None:
            return _load(self._dataset, state)
        before = global_states()
        given = _load(self._dataset, state)
        behind = global_states()
        if same_state(before, behind):
            return given
        set_global_states(self._begun_with)
        try:
            return _load(self._dataset, state)
        finally:
            set_global_states(behind if same_state(behind, global_states()) else before)  # the state has them, or it does not

    def _iterate(self, samples: Any) -> None:
        if self._begun_with is None:
            self._iterator = iter(samples)
        else:
            generators = global_states()
            try:
                set_global_states(self._begun_with)
                self._iterator = iter(samples)
            finally:
                set_global_states(generators)
        self._samples = only_next(self._iterator)
        sources = {"dataset": self._dataset, "iterator": self._iterator}
        if self._iterator is self._dataset:
            del sources["iterator"]
        self._stateful = [(whose, each) for whose, each in sources.items() if has_state(each)]

    def leave(self) -> Optional[Tuple[Any, Any]]:
        """Ends the epoch, so that the dataset's next iterator begins another one. Returns what `begin_again` needs for that; None: the dataset has no
        state.
        """
        of_iterator = None
        if self.ended and len(self._stateful) == 2:
            with contextlib.suppress(NotImplementedError):
                of_iterator = self._iterator.state_dict()
        self._iterate(())  # a generator ends here, and may change the dataset
        if self._at_end is not None:
            begin_again(self._dataset, *self._at_end)
            return self._at_end  # the dataset may tell of its latest iterator, not of the state
        of_dataset = state_of(self._dataset)
        return None if of_dataset is None else (of_dataset, of_iterator)

    def state(self) -> StreamState:
        """Returns where the next sample is. None: neither the iterator nor the dataset can tell."""
        if self.ended and self._at_end is not None:  # the dataset may tell of its latest iterator, not of the state
            return ("dataset", self._at_end[0], True) if self._at_end[1] is None else ("both", self._at_end, True)
        states = []
        for whose, source in self._stateful:
            with contextlib.suppress(NotImplementedError):  # a base class has it, this one does not
                states.append((whose, source.state_dict()))
        if states and self._iterator is self._dataset:  # its __iter__ may begin anew: it gets the state behind that, too
            return "own", states[0][1], self.ended
        if len(states) == 2:
            return "both", (states[0][1], states[1][1]), self.ended
        return (*states[0], self.ended) if states else None

    def fetch(self, places: int) -> Any:
        """Returns up to `places` samples, or one sample if they are not batched; they are not collated. Raises
        StopIteration at the end.
        """
        if self.ended:
            raise StopIteration
        try:
            if not self._batched:
                return next(self._samples)
            samples = list(itertools.islice(self._samples, places))
        except StopIteration:
            self.ended = True
            raise
        finally:
            if self._given is not None:
                _forget(self._dataset, self._given)
                self._given = None
        self.ended = len(samples) < places
        if not samples or (self._drop_last and self.ended):
            raise StopIteration
        return samples
