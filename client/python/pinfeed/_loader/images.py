# SPDX-License-Identifier: Apache-2.0
"""The images of a loader's batches that the daemon decodes.

In: arguments of `DataLoader`, and what the first batch has. Out: what the feed's spec says of them, the memory that they
need, and the errors of images that cannot be used.
"""

from __future__ import annotations

import warnings
from typing import Any, Optional

from .._base.abi import logger
from .._base.checks import Checks, shown
from .._base.errors import Code, invalid, make_error
from .._feed.spec import Spec, add_output
from .._worker.encoded import Totals

_PAGE = 4096
_MAX_IMAGES = 65536
_SPARE = 4  # one place more for every so many images, where the batches of a sampler may differ
_MARGIN = 2  # files of a batch may have so many times the bytes of those of the first


class LoaderImages:
    """Of one loader. Threads: one."""

    def __init__(self, checks: Checks, transforms: Any, max_encoded_bytes: Any, on_bad_sample: Any) -> None:
        self._output: Spec = {}
        add_output(self._output, checks, transforms, "CHW", "fail", None, None)
        self._most = 0 if max_encoded_bytes is None else checks.integer("max_encoded_bytes", max_encoded_bytes, 1, 2**62, ", or None")
        if on_bad_sample == "skip":
            checks.add("on_bad_sample", "'skip' is not possible in a DataLoader: the other fields of the sample are in the batch already; use 'zero'")
        elif on_bad_sample not in ("fail", "zero"):
            checks.refuse("on_bad_sample", on_bad_sample, '"fail" or "zero"')
        self._zero = on_bad_sample == "zero"
        self.images = 0  # of a batch, once known
        self.reserved = 0  # bytes of a slot, once known
        self._warned = False

    def measure(self, first: Totals, whole: int) -> int:
        """Reads what the first batch has, and returns the bytes to reserve for the files and paths of each batch. Raises
        InvalidArgumentError if it has no images, or more than a batch can have. `whole`: the most samples of a batch; 0: not
        known.
        """
        if not first.images:
            raise invalid("transforms: they apply to pinfeed.EncodedImage, and no sample of the first batch has one; omit them")
        if first.images > first.samples and not self._warned and any(name.startswith("random_") for step in self._output["transforms"] for name in step):
            self._warned = True
            warnings.warn(
                f"DataLoader: each of a sample's {first.images // first.samples} images draws a crop and flip of its own. If one is the other's mask, "
                "decode and transform both in the dataset, or store the masks as arrays and give masks= to pinfeed.open",
                stacklevel=2,
            )
        samples = first.samples + first.samples // _SPARE if not whole else max(whole, first.samples)
        self.images = first.images // first.samples * samples
        if self.images > _MAX_IMAGES:
            raise invalid(f"batch_size: {samples} samples with {first.images // first.samples} images each are more than {_MAX_IMAGES} images")
        most = self._most or _MARGIN * (first.bytes // first.samples + 1) * samples
        self.reserved = (most + _PAGE - 1) // _PAGE * _PAGE
        return self.reserved

    def spec(self, seed: int) -> Spec:
        """Returns the part of a feed's spec, for an epoch of this seed."""
        return {
            "transforms": self._output["transforms"],
            "image_layout": self._output["image_layout"],
            "encoded_images": self.images,
            "seed": seed,
        }

    def on_error(self, batch: int, error: bytes) -> None:
        """Raises what the daemon says of the images of a batch, or logs it if they may be zeros."""
        code, text = error[0], error[1:].rstrip(b"\0").decode("utf-8", "replace")
        if code == Code.OUT_OF_RANGE:
            code = Code.RESOURCE_EXHAUSTED
            text += "; the first batch says how many there are: give the loader a batch_size, or let the sampler's largest batch come first"
        elif self._zero and code != Code.INTERNAL:
            logger.warning("DataLoader: batch %d has zeros for an image that cannot be used: %s", batch, text)
            return
        elif code != Code.INTERNAL:
            text += ' (on_bad_sample="zero" would go on)'
        raise make_error(code, f"DataLoader: batch {batch}: {text}")


def images_of(checks: Checks, transforms: Any, max_encoded_bytes: Any, on_bad_sample: Any, collates: bool, workers: int) -> Optional[LoaderImages]:
    """Checks the arguments. None: the daemon decodes nothing. `collates`: the loader collates batches by default."""
    if transforms is None:
        for name, value in (("max_encoded_bytes", max_encoded_bytes), ("on_bad_sample", on_bad_sample)):
            if value is not None:
                checks.add(name, f"{shown(value)} is about pinfeed.EncodedImage, which needs transforms=")
        return None
    if not workers:
        checks.add("transforms", "they are for pinfeed.EncodedImage, which needs num_workers > 0: the daemon decodes what worker processes hand over")
    if not collates:
        checks.add("transforms", "they are for pinfeed.EncodedImage, which needs batches that are collated by default: omit collate_fn, and give a batch_size")
    return LoaderImages(checks, transforms, max_encoded_bytes, "fail" if on_bad_sample is None else on_bad_sample)
