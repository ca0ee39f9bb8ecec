# SPDX-License-Identifier: Apache-2.0
"""Loaders of several processes that share the batches of one dataset.

In: the arguments of `DataLoader`. Out: the group to open, and a fingerprint that differs if the members' batches would.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .._base.checks import MAX_NAME_BYTES, UINT32_MAX, Checks, shown
from .._base.errors import Code, Error

# Of values that are told as they are; of longer ones, a digest is. Together they have to fit into the daemon's 256 bytes.
_MAX_CLASS, _MAX_STRUCTURE, _MAX_FINGERPRINT = 56, 48, 24
_MASK = 2**64 - 1
_SEPARATOR = "; "
# What the daemon says of a field that differs; the values only if they are short.
_DIFFERENCES = "it differs in "
_DIFFERENCE = re.compile(r"(.+?)(?: \((.*?) there, (.*?) here\))?(?:, |$)")

_SAME = "give all members the same"
_SAME_ORDER = (
    "give each loader generator=torch.Generator().manual_seed(n) with the same n. If a member has left an epoch early, its generator has drawn less than those "
    "of the others: call manual_seed of each before every epoch"
)
# By the part of the fingerprint, or by the spec's field: the argument that it comes from, and what to do.
_REASONS = {
    "dataset": ("the dataset's class", f"{_SAME} dataset"),
    "length": ("len(dataset)", f"{_SAME} dataset"),
    "batch": ("the structure of a batch (batch_size, collate_fn)", f"{_SAME} dataset, batch_size and collate_fn"),
    "seed": ("the epoch's seed (generator)", _SAME_ORDER),
    "first": ("the first batch (load_state_dict)", "continue all members from states of the same position"),
    "fingerprint": ("fingerprint", f"{_SAME} fingerprint"),
    "bytes of dataset.produced.fields": ("the bytes of a batch's place (max_batch_bytes)", f"{_SAME} max_batch_bytes"),
    "dataset.produced.task_timeout_ms": ("retry_after, in ms", f"{_SAME} retry_after"),
    "dataset.produced.fields": ("the kinds of fields (transforms, pad, ragged)", f"{_SAME} dataset, transforms, pad and ragged"),
    "encoded_images": ("the images that a batch has room for (EncodedImage, max_encoded_bytes)", f"{_SAME} dataset and max_encoded_bytes"),
    "slots": ("num_workers or prefetch_factor (slots of the feed)", f"{_SAME} num_workers and prefetch_factor"),
}
# Fields that differ because of others, which say more.
_FOLLOWS = {
    "dataset.produced.name": {"dataset"},
    "bytes of dataset.produced.fields": {"batch"},
    "slots": {"group_size", "dataset.produced.task_timeout_ms"},
}


class MembersDiffer(Error):
    """Another member of the group has another order."""


class Share(NamedTuple):
    """The group of a loader. Each epoch is a group of its own at the daemon."""

    group: str
    size: int
    fingerprint: str  # the user's

    def name(self, epoch: int) -> str:
        return f"{self.group}#{epoch}"

    def fingerprint_of(self, dataset: Any, structure: str, seed: int, first: int) -> str:
        """Returns what must be equal in all members: the dataset's class and length, the structure of a batch, the
        epoch's seed, the first batch, and what the user gives.
        """
        kind = type(dataset)
        length = "unknown"
        with contextlib.suppress(Exception):  # whatever a length raises
            length = str(len(dataset))
        parts = {
            "dataset": _short(f"{kind.__module__}.{kind.__qualname__}", _MAX_CLASS, keep=_MAX_CLASS - 18),
            "length": length,
            "batch": _short(structure, _MAX_STRUCTURE),
            "seed": f"{seed & _MASK:016x}",
            "first": str(first),
            "fingerprint": _short(self.fingerprint, _MAX_FINGERPRINT),
        }
        return _SEPARATOR.join(f"{name}={value}" for name, value in parts.items())


def share_of(checks: Checks, share: Any, group: Any, group_size: Any, fingerprint: Any) -> Optional[Share]:
    """Checks the arguments. None: the loader's batches are its own."""
    if share is None:
        for name, value in (("group", group), ("group_size", group_size), ("fingerprint", fingerprint)):
            if value is not None:
                checks.add(name, f'{shown(value)} applies only with share="broadcast"')
        return None
    if share != "broadcast":
        checks.refuse("share", share, '"broadcast", or None for a loader of its own')
    if group is None:
        checks.add("group", f"share={shown(share)} needs the group's name, the same in every process that shares the loader")
    if group_size is None:
        checks.add("group_size", f"share={shown(share)} needs the number of processes that share the loader")
    if checks.faults:
        return None
    name = checks.text("group", group, MAX_NAME_BYTES - 21)  # and the epoch
    size = checks.integer("group_size", group_size, 1, UINT32_MAX)
    return Share(name, size, "" if fingerprint is None else checks.text("fingerprint", fingerprint, 2**16))


def refused(share: Share, error: Error) -> Error:
    """Returns the error of a member that the daemon refuses. If it does not fit the others, it names the arguments."""
    begin, found, differences = str(error).partition(_DIFFERENCES)
    if not found:
        return Error(Code.FAILED_PRECONDITION, f"{begin}. The loaders of group {share.group!r} must have the same dataset, order, seeds and arguments")
    values: Dict[str, Tuple[str, str]] = {}
    for field, theirs, own in _DIFFERENCE.findall(differences):
        if field == "dataset.produced.fingerprint":
            others, parts = _parts(theirs), _parts(own)
            values.update({name: (others.get(name, ""), parts[name]) for name in parts if parts[name] != others.get(name)})
        else:
            values.setdefault(field, (theirs, own))
    told: List[str] = []
    advice: Dict[str, None] = {}
    for name, (theirs, own) in values.items():
        if not _FOLLOWS.get(name, set()) & set(values):
            what, todo = _REASONS.get(name, (name, f"{_SAME} {name}"))
            told.append(what + (f": {theirs or 'none'} there, {own or 'none'} here" if theirs or own else ""))
            advice[todo] = None
    return Error(
        Code.FAILED_PRECONDITION,
        f"DataLoader: this loader differs from the one that opened group {share.group!r} in {'; '.join(told)}. To share batches, {' and '.join(advice)}",
    )


def too_late(share: Share, epoch: int, batch: int) -> Error:
    """Returns the error of a member that comes to an epoch when the others have gone on to this batch."""
    return Error(
        Code.FAILED_PRECONDITION,
        f"DataLoader: epoch {epoch} of group {share.group!r} is under way, at batch {batch}, and a loader joins before its first batch. Load a state that "
        "another member takes when that epoch has ended, or restart all members from states of the same position",
    )


def _parts(fingerprint: str) -> Dict[str, str]:
    """Returns the parts of a fingerprint, as the daemon quotes it."""
    return dict(part.split("=", 1) for part in fingerprint.strip("'").split(_SEPARATOR) if "=" in part)


def _short(text: str, most: int, keep: int = 0) -> str:
    """Returns the text if it is short and plain, else a digest of it, behind its last `keep` characters if it is only too long."""
    plain = text.isascii() and text.isprintable() and not any(each in text for each in ("'", "\\", ";", " there, ", " here)"))
    if plain and len(text) <= most:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{text[-keep:] if plain and keep else ''}#{digest}"
