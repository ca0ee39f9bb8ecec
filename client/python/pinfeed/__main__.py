# SPDX-License-Identifier: Apache-2.0
"""The commands ``pinfeed`` (also ``python -m pinfeed``) and ``pinfeedd``: each becomes the program of that name.

The program replaces this process, so signals, sockets of systemd and the exit status are its own.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from ._base import places


def tool() -> NoReturn:
    """Becomes the tool."""
    _become("pinfeed")


def daemon() -> NoReturn:
    """Becomes the daemon."""
    _become("pinfeedd")


def _become(name: str) -> NoReturn:
    program = places.program(name)
    if program is None:
        sys.exit(f"{name}: the program is not in {places.PACKAGE}, which is no complete installation; install the wheel or the Debian package of pinfeed")
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; a program that is executed would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: running {program} failed: {error.strerror}")


if __name__ == "__main__":
    tool()
