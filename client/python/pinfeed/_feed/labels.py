# SPDX-License-Identifier: Apache-2.0
"""The labels of a whole dataset.

In: the dataset of an open feed. Out: the field "label" of each sample, in the dataset's order. A feed of only that
field reads them: in no format are images read, and the memory is that of a few small batches.
"""

from __future__ import annotations

from typing import Any, List

from .._base.errors import Code, Error, InvalidArgumentError
from .._base.rank import Rank
from .spec import Spec, describe

_BATCH = 4096


def read_labels(dataset: Spec, fingerprint: str, address: str) -> List[Any]:
    """Reads all labels. `dataset` is from a feed's spec, `fingerprint` the dataset's when that feed was opened."""
    from .feed import Feed  # which imports this module, as the next one does
    from .open import open_spec

    spec: Spec = {"dataset": dataset, "fields": ["label"], "batch_size": _BATCH, "epochs": 1, "slots": 3, "backend": "HOST"}
    try:
        opened = open_spec(spec, Rank(0, 1, "arguments"), framework="numpy", address=address, name="dataset.targets")
    except InvalidArgumentError as error:
        raise AttributeError(f"targets: {error}") from error
    labels: List[Any] = []
    with Feed(opened) as feed:
        feed._accelerate_checked = True  # it is not used by a training loop
        if feed.fingerprint != fingerprint:
            raise Error(Code.FAILED_PRECONDITION, f"dataset.targets: {describe(spec)} has changed since the feed was opened; open it again")
        for batch in feed:
            labels += batch[0].tolist()
        if len(labels) != feed.dataset_size:
            raise Error(Code.INTERNAL, f"dataset.targets: {len(labels)} labels came for the {feed.dataset_size} samples of {describe(spec)}")
    return labels
