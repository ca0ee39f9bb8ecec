# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. Each also is the built-in exception that a caller would expect."""

from __future__ import annotations

import enum
from typing import Dict, Type


class Code(enum.IntEnum):
    """Result codes; the values are those of ``pf_result`` and of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Error(RuntimeError):
    """Base of every error of pinfeed. ``code`` says what kind it is, ``str(error)`` what was tried, on what, and what to do."""

    code: Code

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __str__(self) -> str:
        # OSError's own __str__, which some subclasses would inherit, formats numbers.
        return str(self.args[0]) if self.args else self.code.name

    def __reduce__(self) -> "tuple[type[Error], tuple[Code, str]]":
        return type(self), (self.code, str(self))


class InvalidArgumentError(Error, ValueError):
    """The dataset, the transforms or another argument cannot be; the message lists every fault, one a line, led by its field."""


class UnexpectedArgumentError(InvalidArgumentError, TypeError):
    """`open` has no argument of that name; the message says what takes its place, or which name may have been meant."""


class NotFoundError(Error, FileNotFoundError):
    """No such dataset, file, library or daemon program."""


class PermissionDeniedError(Error, PermissionError):
    """The path is outside the daemon's roots, or this user is not on its list."""


class ResourceExhaustedError(Error):
    """The feed does not fit the daemon's memory; the message has the numbers."""


class DeadlineExceededError(Error, TimeoutError):
    """Nothing came within the time given. The call may be repeated."""


class UnavailableError(Error, ConnectionError):
    """No daemon can be reached, or it vanished and did not come back in time."""


class DataLossError(Error):
    """A bad sample under ``on_bad_sample="fail"``, or a file that changed while it was in use; the message names it."""


class SlotsHeldWarning(UserWarning):
    """The trainer holds all but one of the feed's slots, so this batch and later ones are copies until it
    releases some: drop or copy batches, or raise ``slots``. Issued once per feed; `Feed.copied` and ``pinfeed status`` keep counting."""


_CLASSES: Dict[Code, Type[Error]] = {
    Code.INVALID_ARGUMENT: InvalidArgumentError,
    Code.NOT_FOUND: NotFoundError,
    Code.PERMISSION_DENIED: PermissionDeniedError,
    Code.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    Code.DEADLINE_EXCEEDED: DeadlineExceededError,
    Code.UNAVAILABLE: UnavailableError,
    Code.DATA_LOSS: DataLossError,
}


def make_error(result: int, message: str) -> Error:
    """The exception for a result code that is not OK."""
    try:
        code = Code(result)
    except ValueError:
        code = Code.UNKNOWN
    return _CLASSES.get(code, Error)(code, message or f"the library failed with {code.name} and no message")
