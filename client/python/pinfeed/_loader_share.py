# SPDX-License-Identifier: Apache-2.0
"""Loaders of several processes that share the batches of one dataset.

In: the arguments of `DataLoader`. Out: the group to open, and a fingerprint that differs if the members' batches would.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, List, NamedTuple, Optional

import numpy

from ._batch_memory import is_dense
from ._checks import MAX_NAME_BYTES, UINT32_MAX, Checks, shown
from ._errors import Code, Error
from ._torch import torch_or_none

_MAX_CLASS_CHARACTERS = 80
_MASK = 2**64 - 1


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
        return (
            f"{f'{kind.__module__}.{kind.__qualname__}'[-_MAX_CLASS_CHARACTERS:]} length={length} structure={_digest(structure)} "
            f"seed={seed & _MASK:016x} first={first} fingerprint={_digest(self.fingerprint)}"
        )


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


def refused(share: Share, error: Error, fingerprint: str) -> Error:
    """Returns the error of a member that does not fit the others."""
    return Error(
        Code.FAILED_PRECONDITION,
        f"{error}. The loaders of group {share.group!r} must have the same dataset, order, seeds and arguments, also num_workers. "
        f"This one: {fingerprint}. If seeds differ, give each loader generator=torch.Generator().manual_seed(n) with the same n; if sizes differ, "
        "give max_batch_bytes",
    )


def structure_of(batch: Any) -> str:
    """Describes a batch: its containers, and the type of each value; for tensors and arrays dtype and shape."""
    out: List[str] = []
    _describe(batch, torch_or_none(), out)
    return "".join(out)


def _describe(value: Any, torch: Any, out: List[str]) -> None:
    kind = type(value)
    out.append(kind.__name__)
    if isinstance(value, numpy.ndarray) or (torch is not None and isinstance(value, torch.Tensor) and is_dense(torch, value)):
        out.append(f":{value.dtype}{list(value.shape)}")
    elif isinstance(value, dict):
        for key, item in value.items():
            out.append(f"({key!r}=")
            _describe(item, torch, out)
            out.append(")")
    elif isinstance(value, (list, tuple)):
        out.append("(")
        for item in value:
            _describe(item, torch, out)
            out.append(",")
        out.append(")")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
