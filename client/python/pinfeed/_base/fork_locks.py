# SPDX-License-Identifier: Apache-2.0
"""Locks that are free in a forked child, and a time without forks.

In: who has a lock, and its name there. Out: another lock in each child, since a thread of the parent may have held it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Iterator


def add_fork_lock(owner: object, name: str) -> None:
    """Makes ``owner.name`` a lock, and a free one in each forked child. `owner`: a module or a class, which is never freed."""

    def renew() -> None:
        setattr(owner, name, threading.Lock())

    renew()
    os.register_at_fork(after_in_child=renew)


# How long a fork waits at most.
_PATIENCE_S = 5.0
_no_forks = threading.RLock()
_here = threading.local()  # whether a fork of this thread has taken it


@contextlib.contextmanager
def no_forks() -> Iterator[None]:
    """Forks of other threads wait until this ends, at most 5 s. For what opens pipes that a child must not keep open. A program that is started
    by `subprocess` is no fork.
    """
    with _no_forks:
        yield


def _before_fork() -> None:
    _here.taken = _no_forks.acquire(timeout=_PATIENCE_S)


def _after_fork_in_parent() -> None:
    if _here.taken:
        _no_forks.release()


def _after_fork_in_child() -> None:
    global _no_forks
    _no_forks = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
