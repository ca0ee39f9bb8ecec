# SPDX-License-Identifier: Apache-2.0
"""What code for a DataLoader asks for and does not find: arguments of `open`, attributes of feeds and batches.

What comes in: the arguments of a call, or a name. What goes out: the call, or an error that says what to write instead, also for names that
are nearly right.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, Dict, List, Sequence, TypeVar, cast

from ._errors import Code, UnexpectedArgumentError

_Function = TypeVar("_Function", bound=Callable[..., Any])

_NO_WORKERS = "leave it out: there are no worker processes; the daemon's threads load for all feeds (its setting `workers`, or PINFEED_WORKERS=8 in the \
environment of a private daemon)"
_ORDER = "leave it out: shuffle=True with a seed gives the order, and each rank its share (rank and world_size, found by themselves under torchrun, \
Slurm and torch.distributed); for a subset make a dataset of it"
_NO_PYTHON = "the daemon runs no Python code: apply it to the batches in the training loop"

_REPLACED: Dict[str, str] = {
    "num_workers": _NO_WORKERS,
    "persistent_workers": _NO_WORKERS,
    "worker_init_fn": "leave it out: there are no worker processes, and all randomness comes from seed",
    "multiprocessing_context": _NO_WORKERS,
    "prefetch_factor": "give slots, the batches that are prefetched or held at once (by default the daemon decides)",
    "pin_memory": 'leave it out, and give device="cuda:0" for tensors that are on the GPU already',
    "pin_memory_device": 'give device, such as device="cuda:0", for tensors that are on the GPU already',
    "collate_fn": "the daemon stacks each field's samples to one tensor; output=\"dict\" or \"tuple\" gives plain batches, and whatever else a collate_fn "
    "did is done to the batch, in the loop",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "generator": "give seed, a whole number, which with the epoch decides order and transforms",
    "in_order": "leave it out: batches always come in order",
    "transform": "give transforms=[...], of pinfeed's or torchvision's objects",
    "target_transform": _NO_PYTHON,
    "loader": "leave it out: the daemon reads JPEG, PNG, .npy and token files",
    "is_valid_file": "leave it out: every JPEG and PNG file of an image folder is taken, and a bad one treated as on_bad_sample says",
    "root": "give the path as the first argument: pinfeed.open(path, ...)",
    "path": "give the path as the first argument: pinfeed.open(path, ...)",
    "train": "give the path of the part to be read, such as root/train",
    "split": "give the path of the part to be read, such as root/train",
    "download": "leave it out: a dataset is what is on this host's disk",
    "num_replicas": "give world_size",
    "num_shards": "give world_size",
    "shard_id": "give rank",
    "num_epochs": "give epochs",
    "block_size": "give sequence_length",
    "context_length": "give sequence_length",
    "seq_len": "give sequence_length",
    "dtype": 'give transforms=[..., pinfeed.ToDtype("float32", scale=True)] for images, token_dtype="uint16" for files of tokens',
}

_AS_DICT = 'open the feed with output="dict" for plain dicts'
_OF_TENSORS = "that is a tensor's, such as batch[0]'s"
# What tensors and dicts have, and a batch does not.
_OF_BATCHES: Dict[str, str] = {
    "cuda": 'batch.to("cuda"), or open the feed with device="cuda:0"',
    "pin_memory": 'open the feed with device="cuda:0" for tensors that are on the GPU already',
    **dict.fromkeys(("get", "pop", "update", "setdefault"), _AS_DICT),
    **dict.fromkeys(("shape", "size", "dtype", "device", "float", "half", "numpy", "cpu"), _OF_TENSORS),
}


def explains_arguments(function: _Function) -> _Function:
    """Decorates `function`, which takes one positional argument, with helpful errors for unknown arguments."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*positional: Any, **named: Any) -> Any:
        faults: List[str] = []
        if len(positional) > 1:
            faults.append(f"only {names[0]} may be positional; pass the others by name, such as {names[1]}={positional[1]!r:.40}")
        faults += [f"{name}: {_what_to_write(name, names)}" for name in named if name not in names]
        if faults:
            raise UnexpectedArgumentError(Code.INVALID_ARGUMENT, "\n".join(faults))
        return function(*positional, **named)

    return cast(_Function, checked)


def _what_to_write(name: str, names: List[str]) -> str:
    if name in _REPLACED:
        return f"pinfeed.open has no such argument; {_REPLACED[name]}"
    near = did_you_mean(name, names)
    return f"pinfeed.open has no such argument{near}" if near else f"pinfeed.open has no such argument, only {', '.join(names)}"


def instead_of_attribute(name: str) -> str:
    """Ends a message: what a feed has in place of a DataLoader's attribute, or nothing."""
    return f"; of pinfeed.open: {_REPLACED[name]}" if name in _REPLACED else ""


def instead_in_batch(name: str) -> str:
    """Ends a message: what a batch has in place of a tensor's or a dict's attribute, or nothing."""
    return f"; {_OF_BATCHES[name]}" if name in _OF_BATCHES else ""


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Ends a message: "; did you mean 'image'?", or nothing where no name is near."""
    plain = {known.replace("_", "").lower(): known for known in names}
    near = difflib.get_close_matches(name.replace("_", "").replace("-", "").lower(), plain, 1, 0.7)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""
