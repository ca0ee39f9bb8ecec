# SPDX-License-Identifier: Apache-2.0
"""Checks of user arguments, before anything is sent.

In: arguments of any type. Out: plain Python values that fit their fields of the spec, or one error that lists every
fault, one per line, each with the argument's name, its value and what is accepted.
"""

from __future__ import annotations

import math
import operator
import os
from typing import Any, List, Optional, Sequence, Tuple

from .errors import invalid

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
MAX_EPOCH = 2**63 - 1  # counting on from here stays within 64 bits
# The daemon's limits, for names and for the slots of a feed.
MAX_NAME_BYTES = 128
MIN_SLOTS, MAX_SLOTS = 3, 64
_SHOWN = 80


def shown(value: Any) -> str:
    """Returns the value's repr on one line, shortened if long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."


class Checks:
    """Collects the faults that its methods find, for `raise_faults`. The return value of a method that found a fault
    must not be used.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.faults: List[str] = []

    def add(self, name: str, reason: str) -> None:
        self.faults.append(f"{self._prefix}{name}: {reason}")

    def refuse(self, name: str, value: Any, accepted: str) -> None:
        self.add(name, f"{shown(value)} is not {accepted}")

    def raise_faults(self) -> None:
        if self.faults:
            raise invalid("\n".join(self.faults))

    def integer(self, name: str, value: Any, minimum: int, maximum: int, unless: str = "") -> int:
        """Accepts any integer type, also NumPy's and torch's. `unless` names other values that the caller accepts."""
        number = to_integer(value)
        if number is None or not minimum <= number <= maximum:
            self.refuse(name, value, f"a whole number from {minimum} to {maximum}{unless}")
            return minimum
        return number

    def seconds(self, name: str, value: Any, minimum: float, unless: str = "") -> float:
        number = to_number(value)
        if number is None or not minimum <= number <= 1e9:  # 30 years, which fits into nanoseconds
            self.refuse(name, value, f"a number of seconds, from {minimum:g} to 1e9{unless}")
            return minimum
        return number

    def flag(self, name: str, value: Any) -> bool:
        """Accepts True, False, 1 and 0, also NumPy's; None is False. Other truthy values are refused: "no" would be
        one.
        """
        number = 0 if value is None else to_integer(value, booleans=True)
        if number not in (0, 1):
            self.refuse(name, value, "True or False")
        return number == 1

    def choice(self, name: str, value: Any, allowed: Sequence[str]) -> str:
        """Accepts one of some words in upper or lower case. Returns it as written in `allowed`."""
        for word in allowed:
            if isinstance(value, str) and value.upper() == word.upper():
                return word
        self.add(name, f"{shown(value)} is none of {', '.join(map(repr, allowed))}")
        return allowed[0]

    def text(self, name: str, value: Any, max_bytes: int) -> str:
        if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "surrogatepass")) <= max_bytes:
            self.refuse(name, value, f"a string of 1 to {max_bytes} bytes")
            return ""
        self.sendable(name, value)
        return value

    def title(self, name: str, value: Any) -> str:
        """Accepts what people name things, as the daemon does."""
        title = self.text(name, value, MAX_NAME_BYTES)
        if any(0 < ord(character) < 32 or ord(character) == 127 for character in title):
            self.refuse(name, value, "possible: it holds a control character")
        return title

    def sendable(self, name: str, value: str) -> bool:
        """Whether the text can be sent as UTF-8. In a path from the system, surrogates stand for bytes that are not
        UTF-8.
        """
        if "\0" in value:
            self.refuse(name, value, "possible: it holds a NUL character")
            return False
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            self.refuse(name, value, "valid UTF-8, as what is sent to the daemon must be: rename it, or reach it by a link")
            return False
        return True

    def address(self, value: Any) -> None:
        """Accepts a daemon's address, or None."""
        if value is None:
            return
        try:
            possible = not isinstance(value, bytes) and b"\0" not in os.fsencode(value)
        except (TypeError, UnicodeEncodeError):
            possible = False
        if not possible:
            self.refuse("address", value, "the path of the daemon's socket, as a string or a pathlib.Path, or None")

    def numbers(self, name: str, value: Any, counts: "range | Tuple[int, ...]", accepted: str) -> List[float]:
        """Accepts a sequence of finite numbers, or a single one, if `counts` contains its length."""
        values = [to_number(member) for member in listed(value)]
        finite = [number for number in values if number is not None]
        if len(finite) < len(values) or len(values) not in counts:
            self.refuse(name, value, accepted)
            return []
        return finite


def listed(value: Any, ordered: bool = True) -> List[Any]:
    """Returns the members of a sequence, an array or a tensor, and of a set unless they are `ordered`. Any other value is the only member."""
    if isinstance(value, (set, frozenset)):
        return [value] if ordered else sorted(value, key=str)  # alike in all processes
    if isinstance(value, (str, bytes, dict)):
        return [value]
    try:
        return list(value)
    except TypeError:
        return [value]


def to_integer(value: Any, booleans: bool = False) -> Optional[int]:
    """Returns an integer, or None for other values. True and False count only if `booleans` is set."""
    try:
        number = value.item() if hasattr(value, "item") else value
        return None if isinstance(number, bool) and not booleans else operator.index(number)
    except (TypeError, ValueError, RuntimeError):  # the last two: arrays and tensors of several elements
        return None


def to_number(value: Any) -> Optional[float]:
    """Returns a finite number, integers as int; None for other values."""
    integer = to_integer(value)
    if integer is not None:
        return integer
    try:
        number = value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if isinstance(number, float) and math.isfinite(number) else None


def absolute_path(path: str) -> str:
    """The path from the root without "..", which the daemon refuses. Behind a symbolic link, ".." is where the kernel goes."""
    plain = os.path.abspath(path)
    if ".." not in path.split("/"):
        return plain
    real = os.path.realpath(path)
    return plain if os.path.realpath(plain) == real else real
