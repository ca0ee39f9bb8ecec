# SPDX-License-Identifier: Apache-2.0
"""A feed's session with the daemon.

What comes in: the handle of an open feed, and what was asked for. What goes out: what the feed is, its position, its end.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import Any, List, NamedTuple, Optional, Tuple, Type, TypeVar

from . import _abi
from ._errors import Code, Error
from ._rank import Rank
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
    resumed: Optional[Tuple[int, bool]] = None  # from a state: its epoch, and whether that had ended
    output: str = "batch"  # what the trainer gets: a key of `_batch.OUTPUTS`


class Connection:
    """An open feed. Owns the library's handle. Threads: any, one after the other. Errors: `pinfeed.Error`; FAILED_PRECONDITION once it
    is closed. Invariant: the handle is closed once, whatever fails."""

    def __init__(self, opened: Opened) -> None:
        self._library = opened.library
        self._close = opened.library.pf_close
        self._handle: Optional[ctypes.c_void_p] = opened.handle  # ours from here on, also when what follows fails: __del__ closes it, once
        self._lock = threading.RLock()
        self._closing = False
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
        self._classes: Optional[List[str]] = None
        self._epochs: int = spec.get("epochs", 0)
        logger.info("feed of %s: rank %d of %d (from %s)", describe(spec), rank.rank, rank.world_size, rank.source)

    # ---- what it is -------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of an epoch, for this rank. With share="queue", of the whole group."""
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
        return self._rank.rank

    @property
    def world_size(self) -> int:
        return self._rank.world_size

    @property
    def rank_source(self) -> str:
        """Where rank and world size come from: "arguments", "torch.distributed", "RANK/WORLD_SIZE", "SLURM_PROCID/SLURM_NTASKS",
        "share" (a shared feed is not split) or "default"."""
        return self._rank.source

    @property
    def slots(self) -> int:
        """Batches that can be prefetched or held at once. When the trainer holds all of them, no further batch comes."""
        return self._slots

    @property
    def backend(self) -> str:
        """How batches come: "host", or "vmm-fd" or "cuda-ipc" in memory of the GPU."""
        return self._backend

    @property
    def address(self) -> str:
        """The daemon's socket."""
        return self._address

    @property
    def fingerprint(self) -> str:
        """Of the dataset: changes when its samples do."""
        with self._lock:
            return (self._get_info().fingerprint or b"").decode()

    @property
    def reconnects(self) -> int:
        """Times that the daemon was lost and found again."""
        with self._lock:
            return int(self._get_info().reconnects)

    @property
    def classes(self) -> List[str]:
        """Names of the labels 0, 1, ..., as torchvision's `ImageFolder` has them; empty when the dataset has none."""
        with self._lock:
            if self._classes is None:
                info = self._get_info()
                self._classes = [info.classes[label].decode("utf-8", "surrogateescape") for label in range(info.class_count)]
            return self._classes

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
        """Ends the session with the daemon. Tensors that are held stay valid. May be called twice, and from another thread.

        Waits until the daemon has taken the memory back, at most 2 s; on a GPU first until the streams that batches were taken on have got
        so far, at most 10 s, after which the memory stays with this process, with a warning.
        """
        self._closing = True  # seen by a thread that waits for a batch with the lock
        with self._lock:
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
        """Lets go of what a closed feed must not keep; for subclasses."""

    def _check_open(self) -> None:
        if self._handle is None:
            raise Error(Code.FAILED_PRECONDITION, f"the feed of {describe(self._spec)} is closed")

    def _get_info(self) -> _abi.FeedInfo:
        self._check_open()
        info = _abi.FeedInfo()
        self._library.pf_feed_info_init(info, ctypes.sizeof(info))
        self._library.check(self._library.pf_get_feed_info(self._handle, info))
        return info
