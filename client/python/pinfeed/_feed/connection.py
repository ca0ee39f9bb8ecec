# SPDX-License-Identifier: Apache-2.0
"""A feed's session with the daemon.

In: the handle of an open feed, and the arguments of `open`. Out: the feed's properties, its position and its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Type, TypeVar

from .._base import abi
from .._base.abi import logger
from .._base.errors import Code, Error, ResourceExhaustedError
from .._base.rank import Rank, later_rank
from .spec import Spec, describe

_Self = TypeVar("_Self", bound="Connection")


class Opened(NamedTuple):
    """A feed opened by `pf_open`, and the arguments that the C library does not need."""

    library: abi.Library
    handle: abi.FeedHandle
    spec: Spec
    rank: Rank
    framework: str
    zero_copy: Optional[bool]
    timeout: Optional[float]  # seconds that one batch may take
    address: str
    ordinal: int  # of the requested GPU; -1: the host
    output: str  # a key of `batch.OUTPUTS`
    # Opens the same feed for another rank, at a cursor. None: the rank is final.
    reopen: "Optional[Callable[[Rank, str], Opened]]" = None
    resumed: "Optional[Resumed]" = None  # set if opened with a state


class Resumed(NamedTuple):
    """The part of a loaded state that is not in the cursor."""

    epoch: int
    ended: bool  # the epoch's last batch was delivered
    next_epoch: Optional[int]  # chosen by set_epoch


# How long `close` waits for a thread inside the library, and how often other calls check whether such a thread is
# waiting.
_CLOSE_PATIENCE_S = 2.0
POLL_S = 0.005

# All feeds. Not a WeakSet: its callbacks are Python code, which would swallow an exception of a signal handler.
_connections: "List[weakref.ref[Connection]]" = []


def _after_fork_in_child() -> None:
    """Replaces the locks: threads that held them in the parent do not exist in the child."""
    for reference in _connections:
        connection = reference()
        if connection is not None:
            connection._lock = threading.RLock()
            connection._invite_lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Connection:
    """An open feed. Owns the library's handle. Threads: any, one after the other. Errors: `pinfeed.Error`;
    FAILED_PRECONDITION after the feed was closed. Invariant: the handle is closed exactly once, whatever fails.
    """

    def __init__(self, opened: Opened) -> None:
        self._library = opened.library
        self._handle: Optional[abi.FeedHandle] = opened.handle  # owned from here on: __del__ closes it if a later step fails
        self._lock = threading.RLock()
        # Held by a thread that invites a producer, also while another one holds `_lock`. The handle is not closed
        # meanwhile. Taken after `_lock`.
        self._invite_lock = threading.RLock()
        self._closing = False
        # The feed's position for other threads, set while a thread that holds the lock waits for a batch.
        self._snapshot: Any = None
        self._delivered = False  # at least one batch was delivered
        try:
            _connections[:] = [reference for reference in _connections if reference() is not None] + [weakref.ref(self)]
            self._attach(opened)
        except BaseException:  # a traceback may keep the feed
            self._end()
            raise

    def _attach(self, opened: Opened) -> None:
        """Adopts an opened feed, the first or one reopened for another rank."""
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
        self._decode = (info.decode or b"cpu").decode()
        self._decoder = (info.decoder or b"").decode("utf-8", "replace")
        self._resident_bytes: int = info.resident_bytes
        self._classes = [info.classes[label].decode("utf-8", "surrogateescape") for label in range(info.class_count)]
        self._left_out = [info.left_out[column].decode("utf-8", "replace") for column in range(info.left_out_count)]
        self._epochs: int = spec.get("epochs", 0)
        logger.info("feed of %s: rank %d of %d (from %s)", describe(spec), rank.rank, rank.world_size, rank.source)

    # ---- Properties ----

    def __len__(self) -> int:
        """Batches per epoch for this rank. With share="queue", for the whole group."""
        self._find_rank()
        return self._batches

    @property
    def dataset_size(self) -> int:
        """Samples in the whole dataset."""
        return self._samples

    @property
    def batch_size(self) -> int:
        """Samples in a full batch."""
        return int(self._spec["batch_size"])

    @property
    def drop_last(self) -> bool:
        """Whether an epoch's incomplete last batch is left out."""
        return bool(self._spec.get("drop_last"))

    @property
    def epochs(self) -> Optional[int]:
        """The number of epochs until the feed ends. None: unlimited."""
        return self._epochs or None

    @property
    def rank(self) -> int:
        """This feed's rank.

        A rank from arguments or from an initialised torch.distributed is final. Any other rank is looked up again by
        this property, by ``len`` and by each ``for``. If torch.distributed was initialised or the launcher's
        variables were set after `open`, the feed reopens with the new rank and logs a warning. If the feed has
        delivered batches before, the ``for`` raises Error (FAILED_PRECONDITION) instead.
        """
        self._find_rank()
        return self._rank.rank

    @property
    def world_size(self) -> int:
        """The number of ranks that share the samples. See `rank`."""
        self._find_rank()
        return self._rank.world_size

    @property
    def rank_source(self) -> str:
        """Where rank and world size come from: "arguments", "torch.distributed", "RANK/WORLD_SIZE",
        "SLURM_PROCID/SLURM_NTASKS", "LOCAL_RANK/WORLD_SIZE" (Lightning), "share" (a shared feed is not split by rank)
        or "default".
        """
        self._find_rank()
        return self._rank.source

    @property
    def slots(self) -> int:
        """The number of batches prefetched or held at once. While the trainer holds all but one, further batches come
        as copies.
        """
        return self._slots

    @property
    def backend(self) -> str:
        """Where batches are delivered: "host" (host memory, also if the GPU decodes images from there), "vmm-fd" or
        "cuda-ipc" (GPU memory).
        """
        return self._backend

    @property
    def decode(self) -> str:
        """Where images are decoded: "cpu", "gpu", or "auto:" and the GPU's share of the samples per mille. It never
        changes. Give it to `open` to decode the same samples on the GPU in another process.
        """
        return self._decode

    @property
    def resident_bytes(self) -> int:
        """Memory of the GPU that holds all samples, shared by the user's feeds that need the same. 0: the samples are not
        resident.
        """
        return self._resident_bytes

    @property
    def decoder(self) -> str:
        """What decodes images on the GPU, such as "nvJPEG on NVIDIA H100". Empty with `decode` "cpu"."""
        return self._decoder

    @property
    def address(self) -> str:
        """The daemon's socket."""
        return self._address

    @property
    def fingerprint(self) -> str:
        """The dataset's fingerprint, which changes when the samples change."""
        return self._fingerprint

    @property
    def reconnects(self) -> int:
        """How often the feed reconnected after losing the daemon."""
        if self._handle is not None and self._lock.acquire(blocking=False):  # otherwise a waiting thread has recorded it
            try:
                self._reconnects = self._get_info().reconnects
            finally:
                self._lock.release()
        return self._reconnects

    @property
    def classes(self) -> List[str]:
        """Names of the labels 0, 1, ..., like `ImageFolder.classes` of torchvision. Empty if the dataset names no
        classes.
        """
        return self._classes

    # ---- Rank ----

    def _find_rank(self, for_batches: bool = False) -> None:
        """Reopens the feed if its rank became known after it was opened."""
        place = later_rank(self._rank)
        if place is None or self._handle is None:
            return
        if self._delivered:
            if for_batches:
                raise self._late_rank(place)
            return
        # Skipped while another thread uses the feed: that thread checks too.
        if self._lock.acquire(blocking=False):
            try:
                place = later_rank(self._rank)
                if place is not None and not self._delivered:
                    self._reopen_as(place)
            finally:
                self._lock.release()

    def _late_rank(self, place: Rank) -> Error:
        """Returns the error of a feed that has given batches of another rank."""
        known = self._rank
        return Error(
            Code.FAILED_PRECONDITION,
            f"the feed of {describe(self._spec)} gave batches as rank {known.rank} of {known.world_size} (from {known.source}), and this "
            f"process is now rank {place.rank} of {place.world_size} (from {place.source}): open the feed after the rank is known (after "
            f"init_process_group), or pass rank={known.rank}, world_size={known.world_size} to keep the old one",
        )

    def _reopen_as(self, place: Rank) -> None:
        known, handle, cursor = self._rank, self._handle, self._next_cursor()
        logger.warning(
            "feed of %s: opened as rank %d of %d (from %s); this process is now rank %d of %d (from %s), so the feed is reopened with that rank. "
            "To keep the old rank, open with rank=%d, world_size=%d",
            describe(self._spec), known.rank, known.world_size, known.source,
            place.rank, place.world_size, place.source, known.rank, known.world_size,
        )  # fmt: skip
        assert self._reopen is not None  # otherwise `later_rank` returned None
        opened: Optional[Opened] = None
        with contextlib.suppress(ResourceExhaustedError):  # the memory may suffice for one feed only
            opened = self._reopen(place, cursor)  # if refused, the feed is unchanged
        with self._invite_lock:
            self._handle = None
            if handle is not None:
                self._close_handle(handle)
            self._attach(opened if opened is not None else self._reopen(place, cursor))

    def _next_cursor(self) -> str:
        """Returns the position of the next batch."""
        raise NotImplementedError

    # ---- Position ----

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

    # ---- Producers ----

    def invite_producer(self, lane: int = 0) -> bytes:
        """Invites processes to fill batches of this feed: pass the result, a secret, to the `Producer` of each. It is
        void when the feed closes, seeks or loses the daemon. May be called while another thread waits for a batch.
        """
        invitation, size = ctypes.c_void_p(), ctypes.c_size_t()
        with self._invite_lock:
            self._check_open()
            self._library.check(self._library.pf_invite_producer(self._handle, lane, invitation, size))
        return self._library.take_bytes(invitation, size.value)

    # ---- Closing ----

    def close(self) -> None:
        """Ends the session with the daemon. Tensors in use stay valid. May be called twice, and from another thread: a
        thread that waits for a batch then raises Error (CANCELLED).

        Waits at most 2 s until the daemon has reclaimed the memory. On a GPU it waits first, at most 10 s, until the
        streams have executed the queued releases; if they have not, the memory stays mapped until the process ends,
        with a warning. If another thread waits for a lost daemon, this call returns after 2 s and that thread closes
        the feed. If a signal handler calls this while `next` makes a batch, `next` closes the feed.
        """
        self._closing = True
        begin = time.monotonic()
        while not self._lock.acquire(timeout=POLL_S):
            if self._snapshot is not None and time.monotonic() - begin > _CLOSE_PATIENCE_S:
                return  # that thread closes the feed when the library returns
        try:
            if not self._postpone_end():
                self._end()
        finally:
            self._lock.release()

    def _postpone_end(self) -> bool:
        """Leaves closing the feed to a call that uses its memory, if this is a signal handler within one. Returns whether it is."""
        return False

    def _end(self) -> None:
        handle = self._handle
        if handle is None:
            return
        try:
            with self._invite_lock:
                self._handle = None
            self._close_handle(handle)
        except BaseException:  # a signal handler's: the next call closes it
            self._handle = None if handle.value is None else handle
            raise
        self._library.drain_log()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, exc_type: Optional[Type[BaseException]], exc: Optional[BaseException], traceback: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # The constructor may have failed early, and at interpreter exit modules may be gone.
        handle = self.__dict__.get("_handle")
        if handle is not None:
            self._handle = None  # not removed: in a cycle, another object's __del__ may close this one afterwards
            self._close_handle(handle)

    def _close_handle(self, handle: abi.FeedHandle) -> None:
        """Closes the handle, and releases what a closed feed must not keep. Overridden by subclasses."""
        handle.close()

    def _check_open(self) -> None:
        if self._handle is None:
            raise Error(Code.FAILED_PRECONDITION, f"the feed of {describe(self._spec)} is closed")

    def _get_info(self) -> abi.FeedInfo:
        self._check_open()
        info = abi.FeedInfo()
        self._library.pf_feed_info_init(info, ctypes.sizeof(info))
        self._library.check(self._library.pf_get_feed_info(self._handle, info))
        return info
