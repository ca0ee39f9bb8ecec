# SPDX-License-Identifier: Apache-2.0
"""Opening a feed.

In: the user's arguments. Out: a `Feed` with a session at the daemon, or an error that lists every fault.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import warnings
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .._base import abi, daemon
from .._base.abi import logger
from .._base.checks import Checks
from .._base.client_name import default_name
from .._base.errors import Code, ColumnsLeftOutWarning, Error, InvalidArgumentError, NotFoundError, invalid, make_error
from .._base.rank import Rank, find_rank
from .arguments import explains_arguments
from .batch import OUTPUTS
from .connection import Opened, Resumed
from .dataset_argument import looks_like_file
from .decode import add_decode, check_decoder
from .device import ordinal_of
from .feed import Feed, read_state
from .gpu_queues import warn_of_few
from .spec import Spec, add_dataset, add_fields, add_order, add_output, add_rows, add_sharing, describe

_MIN_OPEN_TIMEOUT_S = 0.001
_OPEN_TIMEOUT_S, RECONNECT_TIMEOUT_S = 10.0, 300.0
# The number of columns that a warning names.
_SHOWN_COLUMNS = 20


@explains_arguments
def open(  # noqa: A001 - pinfeed.open is the package's name for it
    dataset: Union[str, os.PathLike[str]],
    *,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    device: Any = None,
    backend: str = "auto",
    transforms: Any = (),
    drop_last: bool = False,
    epochs: Optional[int] = None,
    state: Optional[Dict[str, Any]] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    format: Optional[str] = None,  # noqa: A002
    image: Optional[str] = None,
    label: Optional[str] = None,
    sequence_length: Optional[int] = None,
    stride: Optional[int] = None,
    token_dtype: Any = None,
    layout: str = "CHW",
    on_bad_sample: str = "fail",
    slots: Optional[int] = None,
    sample_ids: bool = False,
    sample_path: bool = False,
    valid: bool = False,
    fields: Optional[Union[str, Sequence[str]]] = None,
    pad: Optional[Mapping[str, int]] = None,
    masks: Union[str, Sequence[str]] = (),
    fields_unchanged: Union[str, Sequence[str]] = (),
    exif_orientation: bool = True,
    decode: Optional[str] = None,
    any_decoder: bool = False,
    resident: Union[bool, str] = False,
    share: Optional[str] = None,
    group: Optional[str] = None,
    group_size: Optional[int] = None,
    framework: str = "auto",
    output: str = "batch",
    zero_copy: Optional[bool] = None,
    address: Optional[str] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
    open_timeout: float = _OPEN_TIMEOUT_S,
    reconnect_timeout: Optional[float] = RECONNECT_TIMEOUT_S,
) -> Feed:
    """Opens a feed: an ordered stream of batches from a dataset.

    What to read:
      dataset: a path (a string with a "/", or a `pathlib.Path`; made absolute), or the name of a dataset in the
        daemon's configuration.
      format: "image_folder", "manifest", "npy", "tokens" or "webdataset". Default: detected.
      image, label: for a manifest, a table (.jsonl, .csv, .tsv) with one row per sample. The column with the images'
        paths, relative to the table's folder (default: "file_name"); and the column that becomes "label" (default:
        "label"), where texts become numbers and `feed.dataset.classes`. Other columns of numbers become tensors.
      The fields of a batch: ``image``, uint8 [samples, channels, height, width] unless `transforms` or `layout` say
        otherwise, and ``label``, int64 [samples]; ``x`` and ``y`` of token streams, int64 [samples, sequence_length];
        arrays and columns under their names, with their dtype, [samples, ...].
      sequence_length, stride, token_dtype: for token streams. The tokens in a sample's x and y; the tokens from one
        sample's start to the next (default: sequence_length); and "uint16" or "uint32" for files without a header.

    Order:
      batch_size: samples per batch, for this rank. drop_last: leave out an epoch's incomplete last batch.
      shuffle, seed: each epoch has another permutation of the whole dataset, which depends only on the seed and the
        epoch.
      epochs: number of epochs; None: unlimited. After the last one a ``for`` raises Error (OUT_OF_RANGE). With
        epochs=1, not shared, it repeats that epoch, for validation.
      state: a result of `Feed.state_dict`: the feed continues there, as after `Feed.load_state_dict`. To resume a
        group, each member passes its own state, or all the same one: in a queue the earliest, since the batches before
        it do not come again.
      rank, world_size: this process's share of the samples. All ranks get equally many; an epoch's last batches may
        therefore repeat up to world_size - 1 samples. Default: from torch.distributed, torchrun, Slurm or Lightning,
        or else 0 of 1; `Feed.rank_source` says which. A feed opened before torch.distributed is initialised takes its
        rank with the first ``for`` (see `Feed.rank`).

    Transforms and fields:
      transforms: objects of `pinfeed.transforms`, or torchvision's equivalents.
      layout: "CHW" or "HWC", for images that are decoded or transformed. Other arrays keep their stored layout.
      on_bad_sample: "fail" (the error names the file), "skip" (the batch is shorter; if all its samples are bad it
        is empty, and a mean over it is NaN) or "zero" (all fields of the sample are zeros, even its label; open with
        valid=True to leave it out of the loss). An epoch without a good sample is an error.
      sample_ids: adds the tensor ``sample_id`` (int64): the index of each sample in the dataset, also of bad
        samples.
      sample_path: adds the field ``sample_path``, a `Ragged` of bytes: the path of each sample's file, relative to the
        dataset's folder. ``batch.sample_path.decode()`` returns a list of str. For image_folder, manifests with
        images, and tar shards, where it is the shard's name and the sample's.
      valid: adds the tensor ``valid`` (bool): False for samples that are zeros because they are bad.
      fields: names of the fields to read, in the order wanted. None: all. Columns of a table that cannot be fields,
        such as one of numbers with missing values, are left out with a `ColumnsLeftOutWarning`.
      pad: by name of a field whose samples have different numbers of rows (texts, lists): the number of rows to pad
        them to. The field is then a tensor of shape [samples, rows, ...] with zeros at the end, and the tensor
        ``<field>_length`` (int64) is added. A sample with more rows is a bad sample. Fields that are not named here
        come as `Ragged`.
      masks: names of fields aligned with the image pixel by pixel (segmentation masks, depth, flow). They get the
        image's crops, resizes and flips with the same random numbers, by nearest resampling (like
        ``tv_tensors.Mask`` in torchvision v2), and keep their dtype. Boxes and points are not moved.
      fields_unchanged: names of fields that have the image's height and width but stay unchanged. With a transform
        that moves pixels, each such field must be in one of the two lists.
      exif_orientation: images are rotated as their EXIF orientation says, like PIL.ImageOps.exif_transpose. False:
        as stored, like torchvision's ImageFolder.
      decode: where JPEG images are decoded. "cpu": by the daemon's workers. "gpu": by the engines of the GPU of
        `device`; the workers decode only what those cannot, such as progressive JPEG, PNG and WebP. "auto": some by each, so
        that both finish together; the workers alone, with a warning, if the GPU cannot. `Feed.decode` says what was
        decided, such as "auto:787": 787 of 1,000 samples by the GPU. Give that of rank 0 to all ranks. Pixels of a
        GPU differ a little from those of the CPU. Not with on_bad_sample="skip". None: as the state, or else "cpu".
      any_decoder: a state may be resumed with another `decode`, or another kind of GPU, than it was taken with.
      resident: True: all samples are kept in the memory of the GPU of `device`, once for all feeds of the user that
        need the same, and a batch is made there by one kernel. They are as they were when they were loaded. Possible
        for samples of one shape, images after ``Resize([h, w])`` or ``CenterCrop``, with random flips and one random
        crop behind. "auto": only where that is possible and takes at most half of the memory that the user's feeds may
        have, otherwise like False, with a warning. The tensors are the same either way.

    Delivery:
      device: None or "cpu": tensors on the host. "cuda", "cuda:0", a torch.device or a number: tensors on that GPU,
        in the framework's own memory, written on the stream that is current when the batch is taken. Taking a batch
        does not wait for the GPU, with two exceptions: it decodes the images (`decode`), or it is 64 batches behind
        with `resident` samples.
      backend: how batches reach a GPU. "vmm-fd": device memory shared by a file descriptor. "cuda-ipc": device
        memory shared by a handle; not for groups, and only with the daemon's own user and PID namespace. "host":
        through host memory. "auto": the first of these that works, with a warning if that is not the first. A
        backend named explicitly is required.
      framework: "torch", "cupy" (on a GPU), "numpy" (on the host), or "auto": torch if it is installed. JAX and
        others can import these tensors by DLPack, on the host `Batch.raw`. In NumPy, bfloat16 is ml_dtypes' type if
        that is installed, or else the bits as uint16.
      zero_copy: True: tensors are views of the slot. False: copies. None: on the host views, except in a shared
        feed, where batches held by one member would stop the others; on a GPU copies, which cost it next to nothing.
        With views, three kinds of tensors are copies all the same: tensors below 64 KiB (in a full batch), batches
        that would take the last free slot (`Batch`), and in a group, batches beyond this member's share of the slots
        (the slots but one, over group_size, which True needs there). A group's slots can only be read: torch does not
        know that, and ends the process with SIGSEGV where a view is written to. The slot of a view on a GPU is returned in the
        order of the stream that was current when the batch was taken (see `Batch` for the last view).
      output: "batch": a `Batch`, which is a named tuple with ``items`` and ``to``. "dict": a plain dict of tensors
        by field. "tuple": a plain tuple. The tensors are the same and hold the same slots.
      slots: number of batches prefetched or held at once, 3 to 64. On a GPU a batch is held until the GPU has
        finished the step that uses it, so give more slots than the steps that the trainer queues ahead. Default: the
        daemon's `default_slots` (4). It is doubled on a GPU, and on the host where that takes little memory. Small
        batches get up to four times as many.
      share, group, group_size: "broadcast": every feed of the group gets every batch, made once. "queue": each batch
        goes to one of them. The group starts when group_size feeds have joined. Give group_size, or a restart of the
        daemon may split the group.

    Daemon:
      address: the daemon's socket. Default: $PINFEED_ADDRESS, or else the system's daemon. If that does not answer,
        a private daemon is started that ends with this process: if a system daemon is installed, after open_timeout
        and with a warning; never with share.
      name: shown by ``pinfeed status``. Default: the script's name, or the module's with ``python3 -m``.
      timeout: seconds that one batch may take before DeadlineExceededError. None: no limit. 0: the batch must be
        ready.
      open_timeout: seconds for the daemon to answer, or for the next one if it is stopping. Starting the GPU's
        driver takes additional time.
      reconnect_timeout: seconds to reconnect to a vanished daemon before UnavailableError. The next batch tries for
        as long again. None: no limit.

    Raises InvalidArgumentError with all faults that are found at once, NotFoundError, PermissionDeniedError, ResourceExhaustedError
    or UnavailableError; all are `pinfeed.Error`.
    """
    checks = Checks()
    place = find_rank(rank, world_size, share is not None)
    spec: Spec = {}
    add_dataset(spec, checks, dataset, format, image, label, sequence_length, stride, token_dtype)
    add_order(spec, checks, batch_size, shuffle, seed, drop_last, epochs, place)
    add_output(spec, checks, transforms, layout, on_bad_sample, sample_ids, slots)
    add_fields(spec, checks, valid, fields, masks, fields_unchanged)
    add_rows(spec, checks, sample_path, pad)
    if not checks.flag("exif_orientation", exif_orientation):
        spec["ignore_exif_orientation"] = True
    add_sharing(spec, checks, share, group, group_size)
    ordinal = ordinal_of(checks, device)
    backend = checks.choice("backend", backend, ("auto", "vmm-fd", "cuda-ipc", "host"))
    if ordinal < 0 and backend in ("vmm-fd", "cuda-ipc"):
        checks.add("backend", f"{backend!r} is for tensors on a GPU: give device, such as \"cuda\"")
    spec["backend"] = "HOST" if ordinal < 0 else backend.upper().replace("-", "_")
    framework = checks.choice("framework", framework, ("auto", "torch", "cupy", "numpy"))
    output = checks.choice("output", output, tuple(OUTPUTS))
    if zero_copy is not None:
        zero_copy = checks.flag("zero_copy", zero_copy)
        if zero_copy and share is not None and group_size is None:
            checks.add(
                "zero_copy",
                "True needs group_size in a group: each member may hold its share of the slots, and if all together held all of them, no batch "
                "would come. Give the number of members there will be, or use None",
            )
    if timeout is not None:
        timeout = checks.seconds("timeout", timeout, 0, ", or None for no limit")
    open_timeout = checks.seconds("open_timeout", open_timeout, _MIN_OPEN_TIMEOUT_S)
    if reconnect_timeout is not None:
        reconnect_timeout = checks.seconds("reconnect_timeout", reconnect_timeout, 0, ", or None for no limit")
    if name is not None:
        name = checks.title("name", name)
    checks.address(address)
    add_decode(spec, checks, decode, state, any_decoder, ordinal, zero_copy)
    _add_resident(spec, checks, resident, ordinal, zero_copy)
    resumed, cursor = _read_state(checks, state, spec)
    checks.raise_faults()
    framework = choose_framework(framework, ordinal)

    opened = open_spec(
        spec, place, cursor, resumed, framework=framework, zero_copy=zero_copy, timeout=timeout, address=address,
        common=daemon.Common.group(share), device=device, ordinal=ordinal, output=output, name=name, open_timeout=open_timeout, reconnect_timeout=reconnect_timeout,
    )  # fmt: skip
    feed = Feed(opened)
    try:
        if state is not None and not any_decoder:
            check_decoder(state, feed.decode, feed.decoder)
        if feed.decode != "cpu":
            warn_of_few()
        if feed._left_out:
            _warn_of_left_out(feed._left_out, spec)
    except BaseException:
        feed.close()
        raise
    return feed


def _add_resident(spec: Spec, checks: Checks, resident: Any, ordinal: int, zero_copy: Optional[bool]) -> None:
    """Adds whether the samples are kept on the GPU."""
    if resident == "auto":
        if ordinal >= 0 and not zero_copy:
            spec["resident"] = "RESIDENT_AUTO"
        else:
            why = "zero_copy=True asks for slots that hold samples" if ordinal >= 0 else 'the feed has no device; pass device="cuda"'
            logger.warning("samples are not kept on the GPU: %s", why)
    elif isinstance(resident, str):
        checks.refuse("resident", resident, '"auto", True or False')
    elif checks.flag("resident", resident):
        spec["resident"] = "RESIDENT_ON"
        if ordinal < 0:
            checks.add("resident", 'True needs a device whose memory keeps the samples, such as device="cuda"')
        if zero_copy:
            checks.add("zero_copy", "True is not possible with resident=True: the slots have lists of samples; use None")


def open_spec(
    spec: Spec,
    place: Rank,
    cursor: Optional[str] = None,
    resumed: Optional[Resumed] = None,
    *,
    framework: str,
    zero_copy: Optional[bool] = None,
    timeout: Optional[float] = None,
    address: Optional[str] = None,
    common: Optional[daemon.Common] = None,
    device: Any = None,
    ordinal: int = -1,
    output: str = "batch",
    name: Optional[str] = None,
    open_timeout: float = _OPEN_TIMEOUT_S,
    reconnect_timeout: Optional[float] = RECONNECT_TIMEOUT_S,
    page_locked_for: int = -1,
) -> Opened:
    """Opens a feed of a spec, whose arguments were checked, for a rank. The arguments are those of `open`; `framework`
    is not "auto". common: see `private_address`. page_locked_for: the GPU that will copy from batches in host memory; -1: none.
    """
    library = abi.load()
    options = abi.OpenOptions()
    library.pf_open_options_init(options, ctypes.sizeof(options))
    options.address = os.fsencode(daemon.address_for(address, open_timeout, common))
    name = name if name is not None else default_name()
    if name:
        options.client_name = name.encode("utf-8")
    options.device = max(ordinal, page_locked_for)
    options.open_timeout_ms = round(open_timeout * 1000)
    options.reconnect_timeout_ms = -1 if reconnect_timeout is None else round(reconnect_timeout * 1000)

    def opened(place: Rank, cursor: Optional[str], resumed: Optional[Resumed] = None) -> Opened:
        spec_of_rank = {**spec, "rank": place.rank, "world_size": place.world_size}
        options.spec_json = json.dumps(spec_of_rank).encode("utf-8")
        options.cursor_json = None if cursor is None else cursor.encode("utf-8")
        handle = abi.FeedHandle(library)
        try:
            _open_handle(handle, library, options, spec_of_rank, address, common, device)
            used = os.fsdecode(options.address)
            return Opened(library, handle, spec_of_rank, place, framework, zero_copy, timeout, used, ordinal, output, opened, resumed)
        except BaseException:  # a traceback may keep the handle
            handle.close()
            raise

    return opened(place, cursor, resumed)


def _warn_of_left_out(columns: List[str], spec: Spec) -> None:
    """Warns the caller of `open` about columns that are no fields."""
    shown = "; ".join(columns[:_SHOWN_COLUMNS]) + (f"; and {len(columns) - _SHOWN_COLUMNS} more" if len(columns) > _SHOWN_COLUMNS else "")
    warnings.warn(
        f"of {describe(spec)}, {len(columns)} column{'s are' if len(columns) > 1 else ' is'} not in the batches: {shown}. "
        "Mend the data, or name the fields to read in fields=[...], which also ends this warning",
        ColumnsLeftOutWarning,
        stacklevel=4,
    )


def _open_handle(
    handle: abi.FeedHandle, library: abi.Library, options: abi.OpenOptions, spec: Spec, address: Any, common: Optional[daemon.Common], device: Any
) -> None:
    """Calls pf_open, with a private daemon if the system's does not serve this user."""
    result = library.pf_open(options, handle)
    if result == Code.UNAVAILABLE and os.fsdecode(options.address) == daemon.SYSTEM_SOCKET and not daemon.named_address(address):
        reason = str(library.error(result))
        if not reason.startswith("options.device"):  # the system's daemon is stopping or refuses this user
            library.drain_log()
            options.address = os.fsencode(daemon.private_address(reason, common))
            result = library.pf_open(options, handle)
    error = library.error(result) if result else None
    library.drain_log()
    if error is not None:
        if device is not None and options.device >= 0 and error.code == Code.UNAVAILABLE and "libcuda" in str(error):
            raise make_error(result, f"device: {device!r} is not available ({error}); omit device for tensors on the host")
        named = spec["dataset"].get("name")
        if isinstance(error, NotFoundError) and named and (os.path.exists(named) or looks_like_file(named)):
            error = make_error(result, f'{error} (for the file or folder of that name write "./{named}")')
        elif isinstance(error, NotFoundError) and named and daemon.is_private(used := os.fsdecode(options.address)):
            error = make_error(
                result, f"{error} (this process uses a private daemon; pinfeed.datasets({used!r}) lists its datasets; or give a path)"
            )
        try:
            raise error
        finally:
            del error  # a cycle with its traceback, which would keep the callers' frames, and the feeds of these


def _read_state(checks: Checks, state: Any, spec: Spec) -> Tuple[Optional[Resumed], Optional[str]]:
    """Splits `state` into the part for the `Feed` and the cursor for the daemon."""
    if state is None:
        return None, None
    try:
        return read_state(state, spec.get("epochs", 0), spec.get("sharing") == "QUEUE")
    except InvalidArgumentError as error:
        checks.add("state", str(error))
        return None, None


def choose_framework(framework: str, ordinal: int) -> str:
    """Returns the framework of the tensors. Raises if it is not installed, or cannot use the device."""
    _require("numpy", "python3-numpy, or numpy from PyPI,")
    if framework == "auto":
        try:
            import torch  # noqa: F401
        except ImportError:
            return "numpy" if ordinal < 0 else choose_framework("cupy", ordinal)
        framework = "torch"
    if (framework == "numpy" and ordinal >= 0) or (framework == "cupy" and ordinal < 0):
        where = "on a GPU" if ordinal >= 0 else "on the host"
        raise invalid(f"framework: {framework!r} has no tensors {where}; change it or the device")
    if framework != "numpy":
        _require(framework, f"{framework}, or choose another framework,")
    return framework


def _require(module: str, what: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise Error(Code.FAILED_PRECONDITION, f"pinfeed needs {module} for this ({error}): install {what} for {sys.executable}") from error
