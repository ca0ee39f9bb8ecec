# SPDX-License-Identifier: Apache-2.0
"""Random number generators that a dataset or a collate_fn keeps for itself, which no seed of a sample reaches.

In: objects. Out: where one of them has a generator. Nothing of the user's runs: no property, no `__getattr__`, no iterator of a class of its own.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Tuple

import numpy

from .._base.optional_torch import torch_or_none

# Numbers, and no time: the same program finds the same.
_MAX_DEPTH = 12
_MAX_OBJECTS = 3000
_MAX_ITEMS = 100  # of each list, tuple, dict and object
_EARLY_ITEMS = 16  # of each list, tuple and dict: the others come last

_of_types: Any = type.__dict__  # not what a metaclass has in their place
_mro: Callable[[type], Tuple[type, ...]] = _of_types["__mro__"].__get__
_namespace: Callable[[type], Mapping[str, Any]] = _of_types["__dict__"].__get__
_ENTRIES = ("__getitem__", "__getitems__", "__call__", "forward")  # what runs for a sample or a batch
# Types are compared by `is` and `issubclass` only: a metaclass may have an `__eq__` of its own.
_BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_NO_ATTRIBUTES = (types.FunctionType, staticmethod, classmethod, property, types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType)
# What wraps a function in a class, and the descriptor of it.
_WRAPPED: Any = [(kind, kind.__dict__[name]) for kind, name in ((staticmethod, "__func__"), (classmethod, "__func__"), (property, "fget"))]
_CONTAINERS = (dict, list, tuple)
_LEAVES = (type(None), int, float, complex, str, bytes, bytearray, type, types.ModuleType, types.CodeType, numpy.ndarray, numpy.generic)
# Of Python's library. Its locks, queues and temporary files have generators that draw their names.
_LEAF_MODULES = {"asyncio", "concurrent", "logging", "multiprocessing", "tempfile", "threading"}

# Ranks, in which objects are looked at: transforms are few, and records, annotations and the methods of a DataFrame use up the number.
_OBJECT, _CLASS, _ITEM = range(3)  # an object, the class of one, what is plentiful: a container in a container, and a later item of a long one

_Child = Tuple[str, Any]  # what follows its owner's name, and the object


def find_kept_generator(**roots: Any) -> str:
    """Returns where one of the objects has a generator of `random`, NumPy or torch of its own, as ``dataset.transform.rng``. Empty if none was found."""
    kinds = _Kinds()
    seen: Dict[int, Any] = {id(each): each for each in kinds.seeded}  # has the objects, so that no address is used again
    queue: List[Tuple[int, int, str, Any, int]] = [(_OBJECT, 0, "", roots, 0)]  # rank, number, name, object, depth
    left = _MAX_OBJECTS

    def add(rank: int, name: str, value: Any, depth: int) -> None:
        if depth <= _MAX_DEPTH:  # otherwise there may be a shorter way to it
            seen[id(value)] = value
            heapq.heappush(queue, (rank, len(seen), name, value, depth))

    while queue:
        _, _, name, value, depth = heapq.heappop(queue)
        container = depth > 0 and issubclass(type(value), _CONTAINERS)
        for place, (suffix, child) in enumerate(itertools.islice(kinds.children(value) if depth else iter(roots.items()), left)):
            left -= 1
            kind = kinds.of(type(child))
            if not kind.is_leaf and id(child) not in seen:
                if kind.is_generator:
                    return name + suffix
                plentiful = container and (place >= _EARLY_ITEMS or issubclass(type(child), _CONTAINERS))
                add(_ITEM if plentiful else _OBJECT, name + suffix, child, depth + 1)
        if depth and id(type(value)) not in seen:
            add(_CLASS, name, type(value), depth)
    return ""


class _Kind(NamedTuple):
    """What is known of a type."""

    kind: type  # kept, so that no other one gets its address
    is_leaf: bool  # there is nothing within
    is_generator: bool = False
    members: Tuple[Tuple[str, Any], ...] = ()  # descriptors of `__slots__`, and of types of C such as functools.partial
    variables: Tuple[Any, ...] = ()  # that of `__dict__`


class _Kinds:
    """Knows the types that it has met, and the children of their objects."""

    def __init__(self) -> None:
        torch, numpys = torch_or_none(), numpy.random
        self._generators: Tuple[Any, ...] = (random.Random, numpys.Generator, numpys.RandomState)
        self._leaves: Tuple[Any, ...] = (*_LEAVES, random.SystemRandom)
        self.seeded = [random._inst, numpys.mtrand._rand]  # the global ones; tests of users replace random.random
        if torch is not None:
            self._generators += (torch.Generator,)
            self._leaves += (torch.Tensor,)
            self.seeded += [torch.default_generator, *torch.cuda.default_generators]
        self._known: Dict[int, _Kind] = {}  # by address: a metaclass may have an `__eq__` of its own

    def of(self, kind: type) -> _Kind:
        known = self._known.get(id(kind))
        if known is None:
            known = self._known[id(kind)] = self._look_at(kind)
        return known

    def _look_at(self, kind: type) -> _Kind:
        module = _namespace(kind).get("__module__")
        if issubclass(kind, self._leaves) or (type(module) is str and module.partition(".")[0] in _LEAF_MODULES):
            return _Kind(kind, True)
        own = [item for base in _mro(kind) for item in _items(base)]
        variables = tuple(member for name, member in own if name == "__dict__" and type(member) is types.GetSetDescriptorType)
        members = tuple((name, member) for name, member in own if type(member) is types.MemberDescriptorType)
        return _Kind(kind, False, issubclass(kind, self._generators), members, variables[:1])

    def children(self, value: Any) -> Iterator[_Child]:
        """Yields what an object has: what follows its name, and the object."""
        kind = type(value)
        if kind is types.FunctionType:
            yield from _of_function(value)
            return
        if issubclass(kind, type):
            yield from _of_class(value)
            return
        if issubclass(kind, _BOUND):
            yield "", value.__self__
            if kind is types.MethodType:
                yield "", value.__func__
            return
        if issubclass(kind, dict):
            yield from ((f"[{key!r}]" if type(key) is str or type(key) is int else "[...]", item) for key, item in _first(dict.items(value)))
        base: Any
        for base in (list, tuple):
            if issubclass(kind, base):
                yield from ((f"[{place}]", item) for place, item in enumerate(_first(base.__iter__(value))))
        known = self.of(kind)
        for variables in known.variables:
            yield from ((f".{name}", item) for name, item in _first(dict.items(variables.__get__(value))) if type(name) is str)
        for name, member in known.members:
            with contextlib.suppress(AttributeError):  # not set
                yield f".{name}", member.__get__(value)


def _items(kind: type) -> List[Tuple[str, Any]]:
    return [item for item in list(_namespace(kind).items()) if type(item[0]) is str]  # at once: another thread may change it


def _first(items: Iterable[Any]) -> List[Any]:
    for _ in range(3):
        with contextlib.suppress(RuntimeError):  # another thread has changed it
            return list(itertools.islice(items, _MAX_ITEMS))
    return []


def _of_class(kind: type) -> Iterator[_Child]:
    """Yields the objects that are attributes of a class, and the functions that run for a sample or a batch, with those of the class that they name."""
    for base in _mro(kind):
        for name, member in _items(base):
            if not issubclass(type(member), _NO_ATTRIBUTES) and not name.startswith("__"):
                yield f".{name}", member
    todo = list(_ENTRIES)
    names = set(todo)
    for name in todo:
        for base in _mro(kind):  # all of them: one may call that of the next
            member = _namespace(base).get(name)
            for wrapper, function in _WRAPPED:
                if issubclass(type(member), wrapper):
                    member = function.__get__(member)  # not what a subclass has in its place
            if type(member) is types.FunctionType:
                yield f".{name}", member
                new = [each for each in dict.fromkeys(_names(member.__code__)) if each not in names]
                names.update(new)
                todo.extend(new)


def _of_function(function: Any) -> Iterator[_Child]:
    """Yields what a function encloses, its defaults, and the globals that it names. Of other functions only those of its module."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # empty
            yield f".{name}", cell.cell_contents
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield ".__dict__", function.__dict__
    variables = function.__globals__
    for name in _names(function.__code__):
        value = dict.get(variables, name)
        if type(value) is not types.FunctionType or value.__globals__ is variables:
            yield f".{name}", value


def _names(code: Any) -> Iterator[str]:
    """Yields the globals and attributes that a function's code names, also in functions and comprehensions within."""
    yield from code.co_names
    for each in code.co_consts:
        if type(each) is types.CodeType:
            yield from _names(each)
