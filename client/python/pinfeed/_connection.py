# SPDX-License-Identifier: Apache-2.0
"""A feed's session with the daemon.

What comes in: the handle of an open feed, and what was asked for. What goes out: what the feed is, its position, its end.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Type, TypeVar

from . import _abi
from ._errors import Code, Error, ResourceExhaustedError
from ._rank import Rank, later_rank
from ._spec import Spec, describe

logger = logging.getLogger("pinfeed")

_Self = TypeVar("_Self", bound="Connection")


class Opened(NamedTuple):
    """What `pf_open` gave for what was asked of it, and what else was asked for."""

    library: _abi.Library
    handle: ctypes.c_void_p
    spec: Spec
    rank: Rank
    framework: str
    zero_copy: Optional[bool]
    timeout: Optional[float]  # seconds that one batch may take
    address: str
    ordinal: int  # of the GPU that was asked for; -1: the host
    output: str  # what the trainer gets: a key of `_batch.OUTPUTS`
    # Opens the same feed for another rank, at a cursor; to be called when this one is closed. None: the rank is final.
    reopen: "Optional[Callable[[Rank, str], Opened]]" = None
    resumed: "Optional[Resumed]" = None  # from a state


class Resumed(NamedTuple):
    """The part of a loaded state that the cursor does not hold."""

    epoch: int
    ended: bool  # that epoch's last batch was given
    next_epoch: Optional[int]  # what set_epoch chose to follow it


# How long `close` waits for a thread that is inside the library, and one look of those that do not want to wait for it.
_FAREWELL_S = 2.0
_LOOK_S = 0.005

# Every feed. No WeakSet, whose callbacks are Python code, where an exception of a signal handler would be swallowed.
_connections: "List[weakref.ref[Connection]]" = []


def _after_fork_in_child() -> None:
    """The threads that held locks in the parent are not in this process."""
    for reference in _connections:
        connection = reference()
        if connection is not None:
            connection._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Connection:
    """An open feed. Owns the library's handle. Threads: any, one after the other. Errors: `pinfeed.Error`; FAILED_PRECONDITION once it
    is closed. Invariant: the handle is closed once, whatever fails."""

    def __init__(self, opened: Opened) -> None:
        self._library = opened.library
        self._close = opened.library.pf_close
        self._handle: Optional[ctypes.c_void_p] = opened.handle  # ours from here on, also when what follows fails: __del__ closes it, once
        self._lock = threading.RLock()
        self._closing = False
        # Set while a thread with the lock waits for a batch: what others see of the feed meanwhile.
        self._seen: Any = None
        self._given = False  # a batch was given
        _connections[:] = [reference for reference in _connections if reference() is not None] + [weakref.ref(self)]
        self._attach(opened)

    def _attach(self, opened: Opened) -> None:
        """Uses what was opened, now and again for another rank."""
        self._handle = opened.handle
        self._reopen = opened.reopen
        self._spec = spec = opened.spec
        self._rank = rank = opened.rank
        self._address = opened.address
        info = self._get_info()
        self._tensor_count: int = info.tensor_count
        self._output_count: int = info.output_count
        self._device: int = info.device
        self._samples: int = info.dataset_samples
        self._batches: int = info.batches_per_epoch
        self._slots: int = info.slot_count
        self._backend = (info.backend or b"").decode()
        self._fingerprint = (info.fingerprint or b"").decode()
        self._reconnects: int = info.reconnects
        self._classes = [info.classes[label].decode("utf-8", "surrogateescape") for label in range(info.class_count)]
        self._epochs: int = spec.get("epochs", 0)
        logger.info("feed of %s: rank %d of %d (from %s)", describe(spec), rank.rank, rank.world_size, rank.source)

    # ---- what it is -------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of an epoch, for this rank. With share="queue", of the whole group."""
        self._find_rank()
        return self._batches

    @property
    def dataset_size(self) -> int:
        """Samples of the whole dataset."""
        return self._samples

    @property
    def batch_size(self) -> int:
        """Samples of a full batch."""
        return int(self._spec["batch_size"])

    @property
    def drop_last(self) -> bool:
        """Whether an epoch's incomplete last batch is left out."""
        return bool(self._spec.get("drop_last"))

    @property
    def epochs(self) -> Optional[int]:
        """Epochs until the feed ends, None if it does not."""
        return self._epochs or None

    @property
    def rank(self) -> int:
        """This feed's rank. Unless it came from arguments or an initialised torch.distributed, it is
        looked up again by this property, by ``len`` and at each ``for``. If torch.distributed was
        initialised, or the launcher's variables were set, since `open`, the feed reopens as that rank and logs a warning. If it already gave
        batches before, the ``for`` raises Error (FAILED_PRECONDITION)."""
        self._find_rank()
        return self._rank.rank

    @property
    def world_size(self) -> int:
        """By how many ranks the samples are shared; see `rank`."""
        self._find_rank()
        return self._rank.world_size

    @property
    def rank_source(self) -> str:
        """Where rank and world size come from: "arguments", "torch.distributed", "RANK/WORLD_SIZE", "SLURM_PROCID/SLURM_NTASKS",
        "share" (a shared feed is not split by rank) or "default"."""
        self._find_rank()
        return self._rank.source

    @property
    def slots(self) -> int:
        """Batches that can be prefetched or held at once. While the trainer holds all but one, further ones come as copies."""
        return self._slots

    @property
    def backend(self) -> str:
        """Where batches are delivered: "host" (host memory), "vmm-fd" or "cuda-ipc" (GPU memory)."""
        return self._backend

    @property
    def address(self) -> str:
        """The daemon's socket."""
        return self._address

    @property
    def fingerprint(self) -> str:
        """The dataset's fingerprint: it changes when the samples change."""
        return self._fingerprint

    @property
    def reconnects(self) -> int:
        """How often the feed reconnected after losing the daemon."""
        if self._handle is not None and self._lock.acquire(blocking=False):  # else it is what a waiting thread noted
            try:
                self._reconnects = self._get_info().reconnects
            finally:
                self._lock.release()
        return self._reconnects

    @property
    def classes(self) -> List[str]:
        """Names of the labels 0, 1, ..., as torchvision's `ImageFolder` has them; empty when the dataset has none."""
        return self._classes

    # ---- which share of the samples it gives -------------------------------------------------------------------------------------

    def _find_rank(self, for_batches: bool = False) -> None:
        """Reopens the feed if its rank has become known since it was opened."""
        if later_rank(self._rank) is None or self._handle is None:
            return
        if self._given:
            if for_batches:
                self._refuse_late_rank()
            return
        # Not when another thread has the feed: that one looked, too.
        if self._lock.acquire(blocking=False):
            try:
                place = later_rank(self._rank)
                if place is not None and not self._given:
                    self._become(place)
            finally:
                self._lock.release()

    def _refuse_late_rank(self) -> None:
        place = later_rank(self._rank)
        if place is not None:
            known = self._rank
            raise Error(
                Code.FAILED_PRECONDITION,
                f"the feed of {describe(self._spec)} gave batches as rank {known.rank} of {known.world_size} (from {known.source}), and this "
                f"process is now rank {place.rank} of {place.world_size} (from {place.source}): open the feed after the rank is known (after "
                f"init_process_group), or pass rank={known.rank}, world_size={known.world_size} to keep the old one",
            )

    def _become(self, place: Rank) -> None:
        known, handle, cursor = self._rank, self._handle, self._next_cursor()
        logger.warning(
            "feed of %s: opened as rank %d of %d (from %s); this process is now rank %d of %d (from %s), so the feed is reopened with that rank. "
            "To keep the old rank, open with rank=%d, world_size=%d",
            describe(self._spec), known.rank, known.world_size, known.source,
            place.rank, place.world_size, place.source, known.rank, known.world_size,
        )  # fmt: skip
        assert self._reopen is not None  # `later_rank` knows of none behind arguments
        opened: Optional[Opened] = None
        try:
            opened = self._reopen(place, cursor)  # a refusal leaves the feed as it is
        except ResourceExhaustedError:
            pass  # there may be room for one of the two only
        self._handle = None
        self._forget()
        self._close(handle)
        self._attach(opened if opened is not None else self._reopen(place, cursor))

    def _next_cursor(self) -> str:
        """Where the next batch is."""
        raise NotImplementedError

    # ---- its position -----------------------------------------------------------------------------------------------------------

    def _get_cursor(self) -> bytes:
        needed = ctypes.c_size_t()
        capacity = 512
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            result = self._library.pf_cursor(self._handle, buffer, capacity, needed)
            if result == Code.OUT_OF_RANGE and needed.value > capacity:
                capacity = needed.value
                continue
            self._library.check(result)
            return buffer.value

    # ---- its end ----------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the session with the daemon. Tensors in use stay valid. May be called twice, and from another thread: a thread that
        waits for a batch then raises Error (CANCELLED).

        Waits until the daemon has taken the memory back, at most 2 s; on a GPU first until the streams that batches were taken on have got
        so far, at most 10 s, after which the memory stays with this process, with a warning. While another thread waits for a daemon that
        is lost, it leaves the end to that one after 2 s.
        """
        self._closing = True
        begin = time.monotonic()
        while not self._lock.acquire(timeout=_LOOK_S):
            if self._seen is not None and time.monotonic() - begin > _FAREWELL_S:
                return  # that thread does it when the library returns
        try:
            self._end()
        finally:
            self._lock.release()

    def _end(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            self._forget()
        finally:
            self._close(handle)
        self._library.drain_log()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, exc_type: Optional[Type[BaseException]], exc: Optional[BaseException], traceback: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # The constructor may have failed before there was a handle, and at the interpreter's end modules may be gone.
        handle = self.__dict__.pop("_handle", None)
        if handle is not None:
            self._close(handle)

    def _forget(self) -> None:
        """Releases what a closed feed must not keep. Overridden by subclasses."""

    def _check_open(self) -> None:
        if self._handle is None:
            raise Error(Code.FAILED_PRECONDITION, f"the feed of {describe(self._spec)} is closed")

    def _get_info(self) -> _abi.FeedInfo:
        self._check_open()
        info = _abi.FeedInfo()
        self._library.pf_feed_info_init(info, ctypes.sizeof(info))
        self._library.check(self._library.pf_get_feed_info(self._handle, info))
        return info
