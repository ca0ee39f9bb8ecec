# SPDX-License-Identifier: Apache-2.0
"""Hints for users of a DataLoader: what replaces its arguments in `open`, and its attributes in feeds and batches.

In: a call's arguments, or a name. Out: the call, or an error that says what to write instead, including likely
misspellings.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, Dict, List, Sequence, TypeVar, cast

from .._base.errors import UnexpectedArgumentError

_Function = TypeVar("_Function", bound=Callable[..., Any])

_NO_WORKERS = "leave it out: there are no worker processes; the daemon's threads load for all feeds (its setting `workers`, or PINFEED_WORKERS=8 in the \
environment of a private daemon)"
_ORDER = "leave it out: shuffle=True with a seed determines the order and each rank's share (rank and world_size, detected under torchrun, \
Slurm and torch.distributed). For weights or an order of your own, use pinfeed.DataLoader with a Dataset of yours, which takes any sampler"
_NO_PYTHON = "the daemon runs no Python code: apply it to the batches in the training loop"

_REPLACED: Dict[str, str] = {
    "num_workers": _NO_WORKERS,
    "persistent_workers": _NO_WORKERS,
    "worker_init_fn": "leave it out: there are no worker processes, and all randomness comes from seed",
    "multiprocessing_context": _NO_WORKERS,
    "prefetch_factor": "give slots, the number of batches prefetched or held at once (default: the daemon's)",
    "pin_memory": 'leave it out, and give device="cuda:0" for tensors that arrive on the GPU',
    "pin_memory_device": 'give device, such as device="cuda:0", for tensors that arrive on the GPU',
    "collate_fn": "the daemon stacks each field's samples into one tensor; output=\"dict\" or \"tuple\" gives plain batches; apply anything else that "
    "collate_fn did to the batch, in the loop",
    "sampler": _ORDER,
    "weights": _ORDER,
    "batch_sampler": _ORDER,
    "generator": "give seed, a whole number, which together with the epoch determines order and random transforms",
    "in_order": "leave it out: batches always come in order",
    "transform": "give transforms=[...], with pinfeed's or torchvision's objects",
    "target_transform": _NO_PYTHON,
    "loader": "leave it out: the daemon reads JPEG, PNG, WebP, .npy and token files",
    "is_valid_file": "leave it out: every JPEG, PNG and WebP file of an image folder is a sample; on_bad_sample decides about bad ones",
    "root": "give the path as the first argument: pinfeed.open(path, ...)",
    "path": "give the path as the first argument: pinfeed.open(path, ...)",
    "train": "give the path of that part, such as root/train",
    "split": "give the path of that part, such as root/train",
    "download": "leave it out: datasets are files on this host",
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
_OF_TENSORS = "that is an attribute of tensors, such as batch[0]"
# Attributes of tensors and dicts that a batch does not have.
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
            raise UnexpectedArgumentError("\n".join(faults))
        return function(*positional, **named)

    return cast(_Function, checked)


def _what_to_write(name: str, names: List[str]) -> str:
    if name in _REPLACED:
        return f"pinfeed.open has no such argument; {_REPLACED[name]}"
    near = did_you_mean(name, names)
    return f"pinfeed.open has no such argument{near}" if near else f"pinfeed.open has no such argument, only {', '.join(names)}"


def instead_of_attribute(name: str) -> str:
    """Returns the end of a message: what a feed has instead of a DataLoader's attribute. Empty if nothing replaces it."""
    return f"; of pinfeed.open: {_REPLACED[name]}" if name in _REPLACED else ""


def instead_in_batch(name: str) -> str:
    """Returns the end of a message: what a batch has instead of a tensor's or a dict's attribute. Empty if nothing
    replaces it.
    """
    return f"; {_OF_BATCHES[name]}" if name in _OF_BATCHES else ""


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Returns the end of a message: "; did you mean 'image'?". Empty if no name is similar."""
    plain = {known.replace("_", "").lower(): known for known in names}
    near = difflib.get_close_matches(name.replace("_", "").replace("-", "").lower(), plain, 1, 0.7)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""
