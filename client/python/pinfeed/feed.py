# SPDX-License-Identifier: Apache-2.0
"""Feeds: opening one, running over its epochs, its position.

What comes in: what the user asks for. What goes out: the spec for the daemon, and batches, epoch by epoch.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import operator
import os
import sys
import threading
import time
import warnings
from typing import Any, Dict, Iterator, List, Optional, Type, Union

from . import _abi, _daemon
from ._batch import Batch, BatchMaker
from ._errors import Code, Error, InvalidArgumentError, NotFoundError, SlotsHeldWarning, make_error
from ._rank import Rank, find_rank
from .transforms import dtype_name, normalize_transforms

logger = logging.getLogger("pinfeed")

_STATE_VERSION = 1
# One wait inside the library. Between two, Python handles signals and this module looks whether the trainer starves itself.
_SLICE_MS = 200


def open(  # noqa: A001 - pinfeed.open is the package's name for it
    dataset: "Union[str, os.PathLike[str]]",
    *,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    device: Any = None,
    transforms: Any = (),
    drop_last: bool = False,
    epochs: Optional[int] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    format: Optional[str] = None,  # noqa: A002
    sequence_length: Optional[int] = None,
    stride: Optional[int] = None,
    token_dtype: Any = None,
    layout: str = "CHW",
    on_bad_sample: str = "fail",
    slots: Optional[int] = None,
    sample_ids: bool = False,
    share: Optional[str] = None,
    group: Optional[str] = None,
    group_size: Optional[int] = None,
    framework: str = "auto",
    zero_copy: Optional[bool] = None,
    address: Optional[str] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
    open_timeout: float = 10.0,
    reconnect_timeout: Optional[float] = 300.0,
) -> Feed:
    """Opens a feed: an ordered stream of batches from a dataset.

    What to read:
      dataset: a path (with a "/" in it, or a `pathlib.Path`; made absolute), or the name of a dataset in the daemon's configuration.
      format: "image_folder", "npy" or "tokens"; found out by default.
      sequence_length, stride, token_dtype: for token streams: tokens in a sample's x and y, tokens from one sample's start to the
        next's (default: sequence_length), and "uint16" or "uint32" for headerless files.

    In which order:
      batch_size: samples of this rank in a batch. drop_last: leave an epoch's incomplete last batch out.
      shuffle, seed: another permutation of the whole dataset each epoch, which depends on the seed and the epoch only.
      epochs: how many there are; None: no end.
      rank, world_size: which share of the samples is this process's. By default those of torch.distributed, torchrun or Slurm, else
        0 of 1; `Feed.rank_source` says which.

    What to make of it:
      transforms: of `pinfeed.transforms`, or torchvision's objects for the same.
      layout: "CHW" or "HWC", for images.
      on_bad_sample: "fail" (the error names the file), "skip" (the batch is shorter) or "zero".
      sample_ids: adds the tensor ``sample_id``, the index of each sample in the dataset (int64).

    Where it goes:
      device: None or "cpu": tensors on the host.
      framework: "torch", "numpy", or "auto": torch if it is installed. For JAX and others take "numpy", or `Batch.raw` by DLPack.
        bfloat16 in NumPy is ml_dtypes' if that is installed, else the bits as uint16.
      zero_copy: True: tensors are always views of the slot; False: always copies, which the trainer may keep. None: views, but
        copies of torch tensors whose slots are shared, since torch knows no read-only memory.
      slots: batches that are prefetched or held at once, 3 to 64.
      share, group, group_size: "broadcast": every feed of the group sees every batch, made once; "queue": each batch goes to one of
        them. The group starts when group_size feeds are there.

    Whom to ask:
      address: the daemon's socket. Default: $PINFEED_ADDRESS, else the system's, else a private daemon is started that ends with
        this process. name: shown by ``pinfeed status``.
      timeout: seconds that one batch may take before DeadlineExceededError; None: as long as the daemon lives.
      open_timeout: seconds for the daemon to answer. reconnect_timeout: seconds to get a vanished daemon back; None: no limit.

    Raises InvalidArgumentError with every fault at once, NotFoundError, PermissionDeniedError, ResourceExhaustedError,
    UnavailableError; all are `pinfeed.Error`.
    """
    if device is not None and str(device) != "cpu":
        raise Error(Code.UNIMPLEMENTED, f'device={str(device)!r}: this version hands out host tensors only; leave device at None or "cpu"')
    framework = _choose_framework(framework)
    place = find_rank(rank, world_size, share is not None)
    spec: Dict[str, Any] = {
        "dataset": _dataset_spec(dataset, format, sequence_length, stride, token_dtype),
        "batch_size": operator.index(batch_size),
        "order": "SHUFFLE" if shuffle else "SEQUENTIAL",
        "seed": operator.index(seed),
        "drop_last": bool(drop_last),
        "rank": operator.index(place.rank),
        "world_size": operator.index(place.world_size),
        "transforms": [transform.to_spec() for transform in normalize_transforms(transforms)],
        "image_layout": _choice("layout", layout.upper(), ("CHW", "HWC")),
        "on_bad_sample": _choice("on_bad_sample", on_bad_sample.upper(), ("FAIL", "SKIP", "ZERO")),
        "sample_ids": bool(sample_ids),
        "backend": "HOST",
    }
    if world_size is not None and spec["world_size"] < 1:
        # 0 would mean "not given" on the wire.
        raise InvalidArgumentError(Code.INVALID_ARGUMENT, f"world_size: {world_size} is not at least 1")
    if epochs is not None:
        spec["epochs"] = operator.index(epochs)
        if spec["epochs"] < 1:
            raise InvalidArgumentError(Code.INVALID_ARGUMENT, f"epochs: {epochs} is not at least 1; None is without end")
    if slots is not None:
        spec["slots"] = operator.index(slots)
    if share is not None:
        spec["sharing"] = _choice("share", share.upper(), ("BROADCAST", "QUEUE"))
        spec["group"] = group or ""
        spec["group_size"] = 1 if group_size is None else operator.index(group_size)
    elif group is not None or group_size is not None:
        raise InvalidArgumentError(Code.INVALID_ARGUMENT, 'group, group_size: only with share="broadcast" or share="queue"')

    library = _abi.load()
    options = _abi.OpenOptions()
    library.pf_open_options_init(options, ctypes.sizeof(options))
    options.address = os.fsencode(_daemon.address_for(address, open_timeout))
    options.spec_json = _to_json(spec).encode("utf-8")
    if name is not None:
        options.client_name = name.encode("utf-8")
    options.open_timeout_ms = round(open_timeout * 1000)
    options.reconnect_timeout_ms = -1 if reconnect_timeout is None else round(reconnect_timeout * 1000)
    handle = ctypes.c_void_p()
    result = library.pf_open(options, handle)
    library.drain_log()
    if result:
        error = library.error(result)
        named = spec["dataset"].get("name")
        if isinstance(error, NotFoundError) and named and os.path.exists(named):
            error = make_error(result, f'{error} (for the file or folder of that name write "./{named}")')
        raise error
    return Feed(library, handle, spec, place, framework, zero_copy, timeout, options.address.decode("utf-8", "replace"))


class Feed:
    """A stream of batches, as `open` makes it. Iterating over it yields one epoch; `len` is that epoch's number of batches.

    Each ``for`` runs over the next epoch: 0, 1, 2, ..., without a gap in the prefetching. After a ``break`` the next ``for`` begins the
    next epoch. `set_epoch` chooses another. After `load_state_dict` the next ``for`` goes on where the state was taken. When all
    `epochs` are over, a ``for`` yields nothing.

    One iterator at a time: a second one ends the first. Threads: any, one after the other (calls wait for each other). A forked child must
    not use its parent's feed. Closed by `close`, by ``with``, or when it is no longer referred to; tensors that are still held stay valid.
    """

    def __init__(
        self,
        library: _abi.Library,
        handle: ctypes.c_void_p,
        spec: Dict[str, Any],
        rank: Rank,
        framework: str,
        zero_copy: Optional[bool],
        timeout: Optional[float],
        address: str,
    ) -> None:
        self._library = library
        self._close = library.pf_close
        self._handle: Optional[ctypes.c_void_p] = handle  # ours from here on, also when what follows fails: __del__ closes it, once
        self._lock = threading.RLock()
        self._spec = spec
        self._rank = rank
        self._timeout = timeout
        self._address = address
        info = self._get_info()
        self._samples: int = info.dataset_samples
        self._batches: int = info.batches_per_epoch
        self._slots: int = info.slot_count
        self._backend = (info.backend or b"").decode()
        self._epochs: int = spec.get("epochs", 0)
        self._maker = BatchMaker(library, info.tensor_count, info.batch_size, framework, zero_copy)
        self._framework = framework
        # The pointer that pf_next gave and that no Batch owns yet. An exception (Ctrl-C) between the two loses no batch.
        self._out = ctypes.c_void_p()
        self._out_ref = ctypes.byref(self._out)
        self._closing = False
        self._warned = False
        self._wait_seconds = 0.0
        self._classes: Optional[List[str]] = None

        # Where the trainer is.
        self._iteration: Optional[object] = None  # the one iterator that may go on knows it
        self._epoch = 0  # of the iteration that runs, or of the one that comes
        self._started = False  # a batch of it was given
        self._ended = False  # its last batch was given
        self._resumed = False  # load_state_dict set the position, no iteration began since
        self._requested: Optional[int] = None  # by set_epoch, for the next iteration
        self._pending: Optional[Batch] = None  # the next epoch's first batch, when an epoch's last batch did not say that it was
        self._joined = "sharing" not in spec  # a shared feed may be in any epoch when this process joins it
        logger.info("feed of %s: rank %d of %d (from %s)", _describe(spec), rank.rank, rank.world_size, rank.source)

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
    def epochs(self) -> Optional[int]:
        """Epochs until the feed ends, None if it does not."""
        return self._epochs or None

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated over, or that the next ``for`` will, from 0."""
        return self._epoch if self._requested is None else self._requested

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
    def framework(self) -> str:
        """Whose tensors it yields: "torch" or "numpy"."""
        return self._framework

    @property
    def slots(self) -> int:
        """Batches that can be prefetched or held at once. When the trainer holds all of them, no further batch comes."""
        return self._slots

    @property
    def held(self) -> int:
        """Batches of this feed that are referred to now."""
        return len(self._maker.live)

    @property
    def backend(self) -> str:
        """How batches come: "host"."""
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
    def wait_seconds(self) -> float:
        """Seconds that iterating had to wait for batches, in all: what a faster feed would save."""
        return self._wait_seconds

    @property
    def classes(self) -> List[str]:
        """Names of the labels 0, 1, ..., for datasets of the daemon's configuration that have some; else empty."""
        if self._classes is None:
            self._classes = []
            named = self._spec["dataset"].get("name")
            for dataset in datasets(self._address)["datasets"] if named else ():
                if dataset.get("name") == named:
                    self._classes = list(dataset.get("classes", ()))
        return self._classes

    @property
    def sampler(self) -> "Feed":
        """The feed itself: ``feed.sampler.set_epoch(e)`` is what training loops call on a loader."""
        return self

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"epoch {self.epoch}"
        return f"<pinfeed.Feed {_describe(self._spec)}, {self._batches} batches of {self.batch_size}, {state}>"

    # ---- iterating --------------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        with self._lock:
            self._check_open()
            natural = self._epoch + 1 if self._started else self._epoch
            epoch = natural if self._requested is None else self._requested
            # The library stands at the start of the natural epoch unless the last one was left early.
            in_place = epoch == natural and (self._resumed or self._ended or not self._started)
            over = 0 < self._epochs <= epoch
            if not in_place and not over:
                self._go_to(epoch)
            self._epoch = epoch
            self._requested = None
            self._ended = over or (in_place and self._resumed and self._ended)
            self._started = self._resumed = False
            self._iteration = object()
            return _EpochIterator(self, self._iteration)

    def _go_to(self, epoch: int) -> None:
        """Makes the first batch of an epoch the next one."""
        if self._pending is not None and self._pending.epoch == epoch and self._pending.index == 0:
            return
        self._pending = None
        self._drop_unclaimed()
        if "sharing" in self._spec:
            return  # others read along: _next skips what is left of the epoch instead
        self._library.check(self._library.pf_seek_epoch(self._handle, epoch))
        self._library.drain_log()

    def _next(self, iterator: _EpochIterator) -> Batch:
        with self._lock:
            self._check_open()
            if iterator.over:  # ended by another thread while this one waited for the lock
                raise StopIteration
            if iterator.iteration is not self._iteration:
                raise RuntimeError("this iterator ended when another one of the same feed was begun: a feed has one at a time")
            while not self._ended:
                batch = self._pending
                self._pending = None
                if batch is None:
                    batch = self._take()
                    if batch is None:  # after the last epoch
                        self._ended = True
                        break
                if batch.epoch != self._epoch:
                    if not self._joined:
                        self._epoch = batch.epoch
                    elif batch.epoch < self._epoch:
                        continue  # of an epoch that was left early; its slot goes back
                    else:
                        self._pending = batch
                        self._ended = True
                        break
                self._joined = True
                self._started = True
                self._ended = batch.last_of_epoch
                return batch
            # The epoch is over. The next iteration takes the next one.
            self._iteration = None
            iterator.over = True
            if not 0 < self._epochs <= self._epoch:
                self._epoch += 1
            self._started = self._ended = False
            raise StopIteration

    def _take(self) -> Optional[Batch]:
        """The next batch of the library, or None after the last epoch."""
        out = self._out
        if out.value is None:
            library = self._library
            result = library.pf_next_quick(self._handle, 0, self._out_ref)
            if result == Code.DEADLINE_EXCEEDED:
                result = self._wait()
            if library._messages:
                library.drain_log()
            if result:
                if result == Code.OUT_OF_RANGE:
                    return None
                raise library.error(result)
        return self._maker.make(out)

    def _wait(self) -> int:
        """pf_next for as long as it takes, in slices."""
        begin = time.perf_counter()
        try:
            while True:
                slice_ms = _SLICE_MS
                if self._timeout is not None:
                    left = self._timeout - (time.perf_counter() - begin)
                    slice_ms = max(0, min(slice_ms, math.ceil(left * 1000)))
                result: int = self._library.pf_next(self._handle, slice_ms, self._out_ref)
                if result != Code.DEADLINE_EXCEEDED or slice_ms == 0:
                    return result
                self._library.drain_log()
                if self._closing:
                    raise Error(Code.CANCELLED, "the feed was closed by another thread while this one waited for a batch")
                held = self.held
                if held >= self._slots and not self._warned:
                    self._warned = True
                    warnings.warn(
                        f"all {self._slots} slots of the feed are held by batches that are still referred to, so no further one can come: "
                        "drop them, keep copies, or open the feed with more slots",
                        SlotsHeldWarning,
                        stacklevel=5,
                    )
        finally:
            self._wait_seconds += time.perf_counter() - begin

    def _drop_unclaimed(self) -> None:
        if self._out.value is not None:
            handle, self._out.value = self._out.value, None
            self._library.pf_batch_release(handle)

    # ---- position ---------------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next ``for`` runs over this epoch (from 0). A loop that runs is not disturbed, and an epoch that `load_state_dict` led
        into is still gone on with."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise InvalidArgumentError(Code.INVALID_ARGUMENT, f"epoch: {epoch} is negative")
        with self._lock:
            self._check_open()
            self._requested = epoch

    def state_dict(self) -> Dict[str, Any]:
        """What was consumed so far, to be saved with the model: everything up to the last batch that was yielded.

        A dict of strings, numbers and dicts, which JSON keeps as it is. It does not depend on prefetching, slots or the world
        size: with the same global batch size it may be loaded by another number of ranks.
        """
        with self._lock:
            self._check_open()
            cursor = json.loads(self._get_cursor())
            epoch, ended = self._epoch, self._ended
            if self._requested is not None and not (self._resumed and self._requested == epoch):
                epoch, ended = self._requested, False
                cursor.update(epoch=str(epoch), position="0")
            elif self._pending is not None:
                cursor.update(epoch=str(self._pending.epoch), position="0")
            return {"version": _STATE_VERSION, "epoch": epoch, "epoch_ended": ended, "cursor": cursor}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on where `state_dict` was called. The next ``for`` yields what was left of that epoch, which may be nothing.

        Raises InvalidArgumentError for the state of another seed or global batch size and for what is no state, Error
        (FAILED_PRECONDITION) when the dataset has changed since.
        """
        try:
            version, epoch, ended, cursor = state["version"], int(state["epoch"]), bool(state["epoch_ended"]), json.dumps(state["cursor"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(Code.INVALID_ARGUMENT, f"this is not the state of a feed ({type(error).__name__}: {error})") from error
        if version != _STATE_VERSION:
            raise InvalidArgumentError(
                Code.INVALID_ARGUMENT, f"the state of the feed has version {version!r}, this package reads {_STATE_VERSION}: update pinfeed"
            )
        with self._lock:
            self._check_open()
            self._library.check(self._library.pf_seek(self._handle, cursor.encode("utf-8")))
            self._library.drain_log()
            self._drop_unclaimed()
            self._pending = None
            self._iteration = None
            self._requested = None
            self._epoch = epoch
            self._ended = ended
            self._started = False
            self._resumed = True
            self._joined = True

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

    # ---- the end ----------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the session with the daemon. Tensors that are held stay valid. May be called twice, and from another thread."""
        self._closing = True
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is None:
                return
            self._pending = None
            self._iteration = None
            self._drop_unclaimed()
            self._close(handle)
            self._library.drain_log()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, exc_type: Optional[Type[BaseException]], exc: Optional[BaseException], traceback: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # The constructor may have failed before there was a handle, and at the interpreter's end modules may be gone.
        handle = self.__dict__.pop("_handle", None)
        if handle is not None:
            self._close(handle)

    def _check_open(self) -> None:
        if self._handle is None:
            raise Error(Code.FAILED_PRECONDITION, f"the feed of {_describe(self._spec)} is closed")

    def _get_info(self) -> _abi.FeedInfo:
        self._check_open()
        info = _abi.FeedInfo()
        self._library.pf_feed_info_init(info, ctypes.sizeof(info))
        self._library.check(self._library.pf_get_feed_info(self._handle, info))
        return info


class _EpochIterator(Iterator[Batch]):
    """One epoch of a feed."""

    __slots__ = ("_feed", "iteration", "over")

    def __init__(self, feed: Feed, iteration: object) -> None:
        self._feed = feed
        self.iteration = iteration
        self.over = False

    def __next__(self) -> Batch:
        return self._feed._next(self)

    def __length_hint__(self) -> int:
        return 0 if self.over else len(self._feed)


# ---- the daemon ---------------------------------------------------------------------------------------------------------------------


def status(address: Optional[str] = None, *, timeout: float = 10.0) -> Dict[str, Any]:
    """What the daemon is doing, as `pinfeed.v1.GetStatusResponse` in JSON. `address` as in `open`."""
    return _ask("pf_status_json", address, timeout)


def datasets(address: Optional[str] = None, *, timeout: float = 10.0) -> Dict[str, Any]:
    """The datasets of the daemon's configuration, as `pinfeed.v1.ListDatasetsResponse` in JSON. `address` as in `open`."""
    answer = _ask("pf_datasets_json", address, timeout)
    answer.setdefault("datasets", [])
    return answer


def _ask(function: str, address: Optional[str], timeout: float) -> Dict[str, Any]:
    library = _abi.load()
    text = ctypes.c_void_p()
    result = getattr(library, function)(os.fsencode(_daemon.address_for(address, timeout)), text)
    library.drain_log()
    library.check(result)
    answer: Dict[str, Any] = json.loads(library.take_string(text))
    return answer


# ---- the spec -----------------------------------------------------------------------------------------------------------------------


def _dataset_spec(
    dataset: Any, format_name: Optional[str], sequence_length: Optional[int], stride: Optional[int], token_dtype: Any
) -> Dict[str, Any]:
    text = os.fspath(dataset)
    if not isinstance(text, str):
        raise InvalidArgumentError(Code.INVALID_ARGUMENT, f"dataset: {dataset!r} is neither a name nor a path in text")
    # No look at the file system: whether a word means a path must not depend on the working directory.
    is_path = not isinstance(dataset, str) or "/" in text or text in (".", "..")
    spec: Dict[str, Any] = {"path": os.path.abspath(text)} if is_path else {"name": text}
    if format_name is not None:
        spec["format"] = format_name
    if sequence_length is not None:
        spec["sequence_length"] = operator.index(sequence_length)
    if stride is not None:
        spec["stride"] = operator.index(stride)
    if token_dtype is not None:
        spec["token_dtype"] = dtype_name(token_dtype)
    return spec


def _describe(spec: Dict[str, Any]) -> str:
    dataset = spec["dataset"]
    return str(dataset.get("path") or dataset.get("name"))


def _choice(field: str, value: str, allowed: "tuple[str, ...]") -> str:
    if value not in allowed:
        raise InvalidArgumentError(Code.INVALID_ARGUMENT, f"{field}: {value.lower()!r} is none of {', '.join(a.lower() for a in allowed)}")
    return value


def _choose_framework(framework: str) -> str:
    if framework not in ("auto", "torch", "numpy"):
        raise InvalidArgumentError(Code.INVALID_ARGUMENT, f"framework: {framework!r} is none of auto, torch, numpy")
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        raise Error(Code.FAILED_PRECONDITION, f"pinfeed needs NumPy ({error}): install python3-numpy, or numpy from PyPI, for {sys.executable}") from error
    if framework == "auto":
        try:
            import torch  # noqa: F401
        except ImportError:
            return "numpy"
        return "torch"
    if framework == "torch":
        import torch  # noqa: F401, F811
    return framework


def _to_json(value: Any) -> str:
    """JSON after protobuf's rules: numbers that are none are strings ("NaN", "Infinity")."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(key))}:{_to_json(member)}" for key, member in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_to_json(member) for member in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    if hasattr(value, "item") and not isinstance(value, (str, int, float)):
        return _to_json(value.item())  # a NumPy or torch scalar
    return json.dumps(value)
