# SPDX-License-Identifier: Apache-2.0
"""A feed whose batches are filled by a loader's workers.

In: what the batches of the loader need. Out: the memory of each, as an array of bytes.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Optional, Tuple

from .._base.daemon import Common
from .._base.optional_torch import torch_or_none
from .._base.rank import Rank
from .._feed.open import open_spec
from .._feed.spec import Spec
from .._feed.stream import Stream

_SAMPLES = 2**53  # more than any sampler yields: the sampler knows the end


class ProducedFeed(Stream):
    """The batches, one after the other. Threads: one takes batches; others may interrupt it and invite producers."""

    _interruption: Optional[BaseException] = None

    def interrupt(self, reason: BaseException) -> None:
        """Makes `take` raise `reason` when it would have to wait. Batches that are ready come before."""
        self._interruption = reason

    @property
    def interrupted(self) -> bool:
        return self._interruption is not None

    def _check_wait(self) -> None:
        if self._interruption is not None:
            raise self._interruption

    def take(self, index: int, read: Callable[..., Any]) -> Any:
        """Returns read(memory) for the memory of batch `index`, a flat array of bytes; read(memory, images, error) if the daemon
        decodes images, where `error` has why they cannot be used. `index`: that of the latest call, which then returns the
        same batch again, or the next one.
        """
        self.drop_before(index)
        with self._lock:
            if self._taken is None:
                self._take()
            tensors = self._maker.make(self._taken)
            return read(*(tensor[0] for tensor in tensors[:-1]))  # the last one has the sample's id

    def drop_before(self, index: int) -> None:
        """Lets go of the memory of a batch before `index`. Views keep it."""
        if self._taken is not None and self._taken.info[1] < index:
            self._taken = None

    def position(self) -> int:
        """Returns which batch comes next: of a group that is under way, not the first."""
        return int(json.loads(self._get_cursor()).get("position", 0))

    def _take_snapshot(self) -> Any:
        return self._get_cursor()

    def _next_cursor(self) -> str:
        return self._get_cursor().decode()


def open_produced(
    name: str,
    capacity: int,
    slots: int,
    timeout: Optional[float],
    address: Optional[str],
    ordinal: int = -1,
    lanes: int = 0,
    task_timeout_ms: int = 0,
    group: Optional[Tuple[str, int, str]] = None,
    images: Optional[Spec] = None,
) -> ProducedFeed:
    """Opens a feed with slots of `capacity` bytes, page-locked for GPU `ordinal` unless that is -1. With `lanes`, a batch is
    filled by the lane whose turn it is. task_timeout_ms: after which another producer fills a batch too; 0: never.
    `group`: name, size and fingerprint of the group that shares the feed; each member gets copies of its batches. `images`:
    what the spec says of images that the daemon decodes.
    """
    field = {"name": "batch", "dtype": "UINT8", "shape": [str(capacity)]}
    produced = {"name": name, "samples": str(_SAMPLES), "fields": [field], "lanes": lanes, "task_timeout_ms": task_timeout_ms}
    spec: Spec = {
        "dataset": {"produced": produced},
        "batch_size": 1,
        "epochs": 1,
        "order": "SEQUENTIAL",
        "slots": slots,
        "backend": "HOST",
        **(images or {}),
    }
    common = None
    if group is not None:
        common = Common.group("broadcast")
        produced["fingerprint"] = group[2]
        spec.update(sharing="BROADCAST", group=group[0], group_size=group[1])
    framework = "numpy" if torch_or_none() is None else "torch"
    place = Rank(0, 1, "arguments" if group is None else "share")
    zero_copy = None if group is None else False
    return ProducedFeed(
        open_spec(spec, place, framework=framework, zero_copy=zero_copy, timeout=timeout, address=address, common=common, page_locked_for=ordinal)
    )
