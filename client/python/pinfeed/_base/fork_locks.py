# SPDX-License-Identifier: Apache-2.0
"""Locks that are free in a forked child.

In: who has a lock, and its name there. Out: another lock in each child, since a thread of the parent may have held it.
"""

from __future__ import annotations

import os
import threading


def add_fork_lock(owner: object, name: str) -> None:
    """Makes ``owner.name`` a lock, and a free one in each forked child. `owner`: a module or a class, which is never freed."""

    def renew() -> None:
        setattr(owner, name, threading.Lock())

    renew()
    os.register_at_fork(after_in_child=renew)
