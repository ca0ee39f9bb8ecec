# SPDX-License-Identifier: Apache-2.0
"""Refuses a machine that the binaries in a wheel were not built for.

In: the file ``built-for`` that `make wheel` puts into the package, "MACHINE GLIBC". Other installations have none: their
library belongs to the machine. Out: nothing, or an ImportError that says what is needed. pip checks the same by the
wheel's tag; this is for wheels that were unpacked or copied.
"""

from __future__ import annotations

import os
import sys
from typing import Optional, Tuple

_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "built-for")


def check() -> None:
    """Raises ImportError if the package holds binaries that this machine cannot load."""
    try:
        with open(_FILE, encoding="ascii") as file:
            machine, glibc = file.read().split()
    except FileNotFoundError:
        return
    fault = _fault(machine, glibc)
    if fault:
        raise ImportError(f"this pinfeed is built for Linux on {machine} with glibc {glibc} or later, and {fault}; install one that is built for this system")


def _fault(machine: str, glibc: str) -> Optional[str]:
    if sys.platform != "linux":
        return f"this system is {sys.platform}"
    if os.uname().machine != machine:
        return f"this machine is {os.uname().machine}"
    if sys.maxsize < 2**32:
        return "this Python is a 32-bit program"
    here = _glibc()
    if here is None:
        return "this Python runs on another C library"
    return f"this system has glibc {here}" if _numbers(here) < _numbers(glibc) else None


def _glibc() -> Optional[str]:
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()  # "glibc 2.36"
    except (ValueError, OSError):  # the name is unknown to other C libraries
        return None
    return version if name == "glibc" else None


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
