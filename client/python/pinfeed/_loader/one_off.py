# SPDX-License-Identifier: Apache-2.0
"""Batches that did not fit into their slots, in the trainer.

In: descriptors of memory that the daemon gave to workers. Out: that memory, batch by batch.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Dict, Optional

from .._base.errors import Code, Error


class OneOffBatches:
    """The memory of batches, from its arrival until the trainer takes it. Owns the descriptors. Threads: one takes, another
    one adds and ends.

    Invariant: there is no memory of a batch that the trainer has passed. While there is any, the daemon charges it.
    """

    def __init__(self, first: int) -> None:
        """`first`: the number of the next batch."""
        # Taken by itself: a signal handler that raises while Condition's own `with` begins would leave it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._descriptors: Dict[int, int] = {}  # by the batch's number
        weakref.finalize(self, _close_all, self._descriptors)
        self._next = first
        self._ended = False
        self._error: Optional[BaseException] = None  # why

    def add(self, number: int, descriptor: int) -> None:
        """Takes a batch's memory over. Gives it back at once if the trainer does not need it any more, as that of a worker
        that was late; and what came before of the same batch.
        """
        with self._lock:
            if number < self._next or self._ended:
                unused = descriptor
            else:
                unused, self._descriptors[number] = self._descriptors.get(number, -1), descriptor
                self._changed.notify_all()
        if unused >= 0:
            os.close(unused)

    def advance(self, number: int) -> None:
        """The trainer's next batch is `number`: gives back the memory of those before."""
        with self._lock:
            self._next = number
            passed = {each: self._descriptors.pop(each) for each in list(self._descriptors) if each < number}
        _close_all(passed)

    def take(self, number: int, timeout_s: float) -> Optional[mmap.mmap]:
        """Returns the memory of the next batch, which has arrived or will; None after `timeout_s` seconds, if that is not 0. Once none
        can arrive, raises what `end` was given.
        """
        with self._lock:
            if not self._changed.wait_for(lambda: number in self._descriptors or self._ended, timeout_s or None):
                return None
            if number not in self._descriptors:
                raise self._error or Error(Code.INTERNAL, f"batch {number} is in memory of its own, which its worker did not send")
            descriptor = self._descriptors.pop(number)
        try:
            return mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)

    def end(self, error: Optional[BaseException] = None) -> None:
        """No more will arrive, because of `error`."""
        with self._lock:
            self._ended = True
            self._error = self._error or error
            self._changed.notify_all()

    def close(self) -> None:
        """Gives all memory back that was not taken. Nothing arrives or is taken any more."""
        self.end()
        with self._lock:
            _close_all(self._descriptors)


def _close_all(descriptors: Dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])
