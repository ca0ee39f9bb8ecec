# SPDX-License-Identifier: Apache-2.0
"""pinfeed's exceptions. Each is also the matching built-in exception."""

from __future__ import annotations

import enum
from typing import Dict, Type, Union


class Code(enum.IntEnum):
    """Result codes, with the values of ``pf_result`` and of gRPC."""

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
    """Base class of all pinfeed errors. ``code`` is the kind of error; ``str(error)`` says what was tried, on what
    object, and what to do.
    """

    code: Code

    def __init__(self, code: Union[Code, str], message: str = "") -> None:
        """Takes the message alone as well, as built-in exceptions do: torch and others raise `type(error)(text)` again. The code is then that of the class."""
        if isinstance(code, str):
            message = code
            code = next((each for each, kind in _CLASSES.items() if isinstance(self, kind)), Code.UNKNOWN)
        super().__init__(message)
        self.code = code

    def __str__(self) -> str:
        # Some subclasses would inherit OSError's __str__, which formats numbers.
        return str(self.args[0]) if self.args else self.code.name

    def __reduce__(self) -> "tuple[type[Error], tuple[Code, str]]":
        return type(self), (self.code, str(self))


class InvalidArgumentError(Error, ValueError):
    """The dataset, the transforms or another argument is invalid. The message lists every fault, one per line,
    beginning with the field.
    """


class UnexpectedArgumentError(InvalidArgumentError, TypeError):
    """`open` has no argument of that name. The message says what replaces it, or which name may have been meant."""


class NotFoundError(Error, FileNotFoundError):
    """No such dataset, file, library or daemon program."""


class PermissionDeniedError(Error, PermissionError):
    """The path is outside the daemon's roots, or this user may not connect."""


class ResourceExhaustedError(Error):
    """The daemon's memory does not suffice for the feed. The message has the numbers."""


class DeadlineExceededError(Error, TimeoutError):
    """The time ran out. The call may be repeated."""


class UnavailableError(Error, ConnectionError):
    """No daemon could be reached, or it vanished and did not come back in time."""


class DataLossError(Error):
    """A bad sample with ``on_bad_sample="fail"``, or a file that changed while in use. The message names it."""


class SlotsHeldWarning(UserWarning):
    """The trainer holds all but one of the feed's slots, so this batch and later ones are copies until it releases
    some. Drop or copy batches, or raise ``slots``. Issued once per feed; `Feed.copied` and ``pinfeed status`` keep
    counting.
    """


class LargeBatchWarning(UserWarning):
    """A batch of a `DataLoader` needs more memory than the first ones, and got memory of its own. Give ``max_batch_bytes``.
    Issued once per loader; ``pinfeed status`` keeps counting.
    """


class ColumnsLeftOutWarning(UserWarning):
    """Some columns of the table are no fields of the batches. The message names each with the reason. Mend the table,
    or open the feed with ``fields``. Issued once per feed, by `open`.
    """


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
    """Returns the exception for a result code other than OK."""
    try:
        code = Code(result)
    except ValueError:
        code = Code.UNKNOWN
    return _CLASSES.get(code, Error)(code, message or f"the library failed with {code.name} and no message")


def invalid(message: str) -> InvalidArgumentError:
    """Returns the exception for an argument that cannot be used."""
    return InvalidArgumentError(message)
