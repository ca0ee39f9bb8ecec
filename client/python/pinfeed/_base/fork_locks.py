# SPDX-License-Identifier: Apache-2.0
"""Locks that are free in a forked child, and a time without forks.

In: who has a lock, and its name there. Out: another lock in each child, since a thread of the parent may have held it.
"""

from __future__ import annotations

import functools
import os
import threading


def add_fork_lock(owner: object, name: str) -> None:
    """Makes ``owner.name`` a lock, and a free one in each forked child. `owner`: a module or a class, which is never freed."""

    def renew() -> None:
        setattr(owner, name, threading.Lock())

    renew()
    os.register_at_fork(after_in_child=renew)


# For what opens pipes that a child must not keep open: while one thread has it, forks of the others wait, at most 5 s. A program that is started by
# `subprocess` is no fork.
no_forks = threading.RLock()
# All in C, where no signal handler runs: what it raises there would leave the lock taken. The latter is since Python 3.9.
os.register_at_fork(
    before=functools.partial(no_forks.acquire, timeout=5.0),
    after_in_parent=no_forks.release,
    after_in_child=getattr(no_forks, "_at_fork_reinit", no_forks.release),
)
