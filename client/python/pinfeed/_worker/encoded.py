# SPDX-License-Identifier: Apache-2.0
"""Images that a dataset hands over as files, for the daemon to decode.

In: in a worker, the samples of a batch that have them. Out: rows of the batch's table of images, and what stands for their
tensors until the trainer has them.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

from .._base.checks import absolute_path, to_integer

FILE, PATH = 1, 2  # kinds of rows
_NO_INDEX = 1 << 63
MAX_PATH_BYTES = 4095
_MAX_FILE_BYTES = 1 << 30
ADVICE = "pinfeed.EncodedImage is for samples that pinfeed.DataLoader collates by default: omit collate_fn, and give a batch_size and transforms="


class EncodedImage:
    """An image file that the daemon decodes and transforms, in a sample of a dataset for `DataLoader`.

    `__getitem__` may return it in place of a tensor, in any field. The batch then has there what the loader's `transforms`
    make of the images: a tensor of shape [batch, channels, height, width] and of the transforms' dtype, as
    ``pinfeed.open(..., transforms=...)`` gives it. It lives as long as the other tensors of the batch.

    `path_or_bytes`: the path of a JPEG, PNG or WebP file below the daemon's allowed roots, which the daemon opens; or the
    file's bytes, as any object with a buffer, of which only a reference is kept. A relative path is below the working
    directory at this call.

    Raises TypeError for other objects, and ValueError for empty ones. What is wrong with the file is told by the loader
    in place of its batch. Picklable. Threads: immutable.
    """

    __slots__ = ("_source",)

    def __init__(self, path_or_bytes: Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, Any]) -> None:
        self._source: Union[str, bytes, memoryview]
        buffer: Any = path_or_bytes
        try:
            path = os.fspath(path_or_bytes)
        except TypeError:
            path = None
        if isinstance(path, str):
            self._source = absolute_path(path) if path else path
        elif isinstance(buffer, bytes):
            self._source = buffer
        else:
            try:
                self._source = memoryview(buffer).cast("B")
            except TypeError:
                raise TypeError(
                    f"EncodedImage: {type(path_or_bytes).__name__} is neither a path nor the contiguous bytes of a file: give a str, a "
                    "pathlib.Path, bytes or a NumPy array of uint8"
                ) from None
        if not len(self._source):
            raise ValueError("EncodedImage: the path or the bytes of the file are empty")

    def __repr__(self) -> str:
        return f"EncodedImage({self._source!r})" if isinstance(self._source, str) else f"EncodedImage(<{len(self._source)} bytes>)"

    def __reduce__(self) -> Any:
        source = self._source
        return EncodedImage, (source if isinstance(source, str) else bytes(source),)


class Placed(NamedTuple):
    """Stands for the tensor of some images of a batch, from number `first` on."""

    first: int
    images: int


class Row(NamedTuple):
    """One image of a batch, as the daemon gets it."""

    sample: int
    draw: int
    kind: int
    data: Union[bytes, memoryview]


class Totals(NamedTuple):
    """What the images of a batch need."""

    images: int = 0
    samples: int = 0
    bytes: int = 0
    largest: int = 0  # the bytes of the largest one, and whose it is
    largest_sample: Any = None


class BatchImages:
    """Collects the images of one batch while it is collated. Threads: one."""

    def __init__(self, batch: int, indices: Any, samples: int) -> None:
        """`indices`: of the samples; None, or of another number: the samples have none."""
        self._batch = batch
        self._samples = samples
        self._indices: Optional[Sequence[Any]] = None
        if indices is not None and hasattr(indices, "__len__") and len(indices) == samples:
            self._indices = indices
        self._fields: List[Sequence[EncodedImage]] = []

    def add(self, images: Sequence[EncodedImage]) -> Placed:
        """Adds the images of one field, one for each sample."""
        placed = Placed(sum(map(len, self._fields)), len(images))
        self._fields.append(images)
        return placed

    def rows(self) -> List[Row]:
        """Returns the images in the order of their numbers. Raises ValueError for a file or path that is too long."""
        keys = [self._key(place) for place in range(self._samples)]
        repeats: Dict[int, int] = {}
        draws = []
        for key in keys:  # the same index twice in a batch gets other random numbers the second time
            draws.append(repeats.get(key, 0) * len(self._fields))
            repeats[key] = repeats.get(key, 0) + 1
        return [
            self._row(keys[place], draws[place] + number, image)
            for number, images in enumerate(self._fields)
            for place, image in enumerate(images)
        ]

    def totals(self, rows: Sequence[Row]) -> Totals:
        if not rows:
            return Totals(0, self._samples)
        lengths = [len(row.data) for row in rows]
        largest = max(lengths)
        place = lengths.index(largest) % self._samples
        return Totals(len(rows), self._samples, sum(lengths), largest, place if self._indices is None else self._indices[place])

    def _key(self, place: int) -> int:
        """Returns what a sample's random numbers depend on: its index, if that is a number."""
        index = None if self._indices is None else to_integer(self._indices[place])
        if index is not None and 0 <= index < _NO_INDEX:
            return index
        return _NO_INDEX | (self._batch << 20) + place & _NO_INDEX - 1

    @staticmethod
    def _row(sample: int, draw: int, image: EncodedImage) -> Row:
        source = image._source
        if isinstance(source, str):
            path = os.fsencode(source)
            if len(path) > MAX_PATH_BYTES:
                raise ValueError(f"EncodedImage: a path of {len(path)} bytes, where at most {MAX_PATH_BYTES} are possible: {source[:200]} ...")
            return Row(sample, draw, PATH, path)
        if len(source) > _MAX_FILE_BYTES:
            raise ValueError(f"EncodedImage: a file of {len(source)} bytes, where at most {_MAX_FILE_BYTES} are possible")
        return Row(sample, draw, FILE, source)


def has_encoded(sample: Any) -> bool:
    """Whether there is an `EncodedImage` in a sample's mappings and sequences."""
    if isinstance(sample, EncodedImage):
        return True
    if isinstance(sample, dict):
        return any(map(has_encoded, sample.values()))
    return isinstance(sample, (list, tuple)) and any(map(has_encoded, sample))
