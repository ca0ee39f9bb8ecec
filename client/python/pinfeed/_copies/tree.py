# SPDX-License-Identifier: Apache-2.0
"""Tensors in nested containers: taken out, and others put in their places.

In: dicts, lists, tuples, named tuples, dataclasses, batches and other containers, in any nesting. Out: new containers
of the same types.
"""

from __future__ import annotations

import array
import collections.abc
import copy
import dataclasses
import operator
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from .._base.errors import invalid
from .._feed.batch import Batch

# Sequences that are single values, or hold none but numbers.
_VALUES = (str, collections.UserString, bytes, bytearray, memoryview, range, array.array)
# Views of a dict are of these; nothing but the dict makes them.
_NOT_MADE = (collections.abc.Set, collections.abc.ValuesView)


class Tree:
    """A nesting of containers and the tensors in it. Threads: one."""

    def __init__(self, tree: Any, tensors: Tuple[type, ...]) -> None:
        """`tensors`: the types of what is taken out. Raises InvalidArgumentError for a container that contains itself, and
        for arrays of other libraries.
        """
        self.tensors: Dict[int, Any] = {}  # by id, each once
        self._tree = tree
        self._types = tensors
        self._exact = set(tensors)
        self._within: Set[int] = set()
        # By id of the container. Kept, since some make new members each time that they are asked.
        self._members: Dict[int, Optional[List[Any]]] = {}
        self._collect(tree)

    def _collect(self, node: Any) -> None:
        kind = type(node)
        if (kind is list or kind is tuple) and self._exact.issuperset(map(type, node)):
            self.tensors.update(zip(map(id, node), node))
        elif isinstance(node, self._types):
            self.tensors[id(node)] = node
        elif not moves_itself(node):
            if id(node) in self._within:
                raise invalid(f"a {kind.__name__} in the tree contains itself")
            if id(node) in self._members:
                return
            members = self._members[id(node)] = _members(node)
            if not members:
                return
            self._within.add(id(node))
            for member in members:
                self._collect(member)
            self._within.remove(id(node))

    def rebuilt(self, moved: Mapping[int, Any], move: Callable[[Any], Any]) -> Any:
        """Returns the tree with ``moved[id]`` in the place of each tensor, and `move(object)` in that of each object that
        moves itself. All else is as it was.
        """

        def build(node: Any) -> Any:
            kind = type(node)
            if (kind is list or kind is tuple) and self._exact.issuperset(map(type, node)):
                return kind(map(moved.__getitem__, map(id, node)))
            if isinstance(node, self._types):
                return moved[id(node)]
            if moves_itself(node):
                return move(node)
            members = self._members[id(node)]
            return node if members is None else _assembled(node, members, list(map(build, members)))

        return build(self._tree)


def moves_itself(node: Any) -> bool:
    """Whether the object has a method ``to``, as batches of many libraries do. Raises InvalidArgumentError for a
    torch module, which it would change.
    """
    if isinstance(node, (type, Batch)) or not callable(getattr(node, "to", None)):
        return False
    if hasattr(node, "named_parameters"):
        raise invalid(f"{type(node).__name__} is a module, not data: call its to()")
    return True


def _members(node: Any) -> Optional[List[Any]]:
    """Returns what a container holds; None if it is none. Raises InvalidArgumentError for an array."""
    kind = type(node)
    if hasattr(kind, "__dlpack__") and kind.__module__.partition(".")[0] not in ("numpy", "torch"):
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise invalid(f"a {name} in the tree is an array of another library: give torch.from_dlpack() of it")
    if kind is dict or isinstance(node, collections.abc.Mapping):
        return list(node.values())
    if isinstance(node, (list, tuple)):
        return list(node)
    if _is_record(node):
        return [getattr(node, name) for name in _set_fields(node)]
    if isinstance(node, (collections.abc.Sequence, *_NOT_MADE)) and not isinstance(node, _VALUES):
        return list(node)
    return None


def _is_record(node: Any) -> bool:
    """Whether a container's members are its fields. Those of transformers' outputs are dataclasses, and mappings of the fields that are not None."""
    return dataclasses.is_dataclass(node) and not isinstance(node, (type, list, tuple, collections.abc.Mapping))


def _set_fields(node: Any) -> List[str]:
    return [field.name for field in dataclasses.fields(node) if hasattr(node, field.name)]


def _assembled(node: Any, before: List[Any], members: List[Any]) -> Any:
    """Returns a container like `node`, which holds `before`, that holds `members`."""
    kind = type(node)
    if kind is list:
        return members
    if isinstance(node, Batch):
        return node._with(members)
    if kind is dict:
        return dict(zip(node, members))
    if isinstance(node, (tuple, *_NOT_MADE)) and all(map(operator.is_, before, members)):
        return node  # also where it could not be made anew, as views of a dict
    try:
        return _made_anew(node, members)
    except (TypeError, ValueError, AttributeError, OSError) as error:
        raise invalid(f"a {kind.__name__} in the tree cannot be made anew ({error}): give a dict or a list of what it holds") from error


def _made_anew(node: Any, members: List[Any]) -> Any:
    kind = type(node)
    if isinstance(node, tuple):
        made = kind(*members) if hasattr(node, "_fields") else kind(members)
        if len(made) != len(members) or not all(map(operator.is_, made, members)):
            raise TypeError("its constructor takes other arguments")
        return made
    if isinstance(node, collections.abc.Set) and kind not in (set, frozenset):
        raise TypeError("its constructor may take other arguments")
    if _is_record(node):
        clone = copy.copy(node)
        for name, member in zip(_set_fields(node), members):
            object.__setattr__(clone, name, member)  # frozen ones too
        return clone
    if isinstance(node, collections.abc.Mapping):
        return _filled(node, list(node), members, collections.abc.MutableMapping, lambda: kind(dict(zip(node, members))))
    return _filled(node, range(len(members)), members, collections.abc.MutableSequence, lambda: kind(members))


_COPIED = (dict, list, collections.deque, collections.UserDict, collections.UserList)


def _filled(node: Any, keys: Any, members: List[Any], mutable: type, make: Callable[[], Any]) -> Any:
    """Returns a copy of a mutable container with other members, or what `make` returns. Raises TypeError if it shares its items with its copies."""
    if not isinstance(node, mutable):
        return make()
    clone: Any = copy.copy(node)
    source: Any = node
    if not isinstance(node, _COPIED) and not hasattr(type(node), "__copy__"):
        for name, value in list(getattr(clone, "__dict__", {}).items()):  # where it may keep its items
            if isinstance(value, (collections.abc.MutableMapping, collections.abc.MutableSequence)):
                object.__setattr__(clone, name, copy.copy(value))
    for key, member in zip(keys, members):
        before = source[key]
        clone[key] = member
        if member is not before and source[key] is member:
            source[key] = before
            raise TypeError("it shares its items with its copies")
    return clone
