# SPDX-License-Identifier: Apache-2.0
"""Fields whose samples have different numbers of rows.

In: the rows of a batch, in the order of its samples. Out: them by sample, padded, nested or as texts.
"""

from __future__ import annotations

import importlib
import math
import operator
import re
import sys
from typing import Any, Iterator, List, Optional

from .._base.checks import shown, to_integer
from .._base.errors import Code, Error


class Ragged:
    """A field of one batch whose samples have different numbers of rows, such as texts, boxes or paths.

    ``ragged[i]`` is the tensor of sample i, with shape [rows, ...]; it is a view of `values`. ``len(ragged)`` is the
    number of samples. It is not a `collections.abc.Sequence`, which PyTorch would take apart. The memory belongs to this object, not to the daemon's slot.

    values: the rows of all samples, one sample after the other, with shape [all rows, ...]. On a GPU, a tensor there.
    offsets: the first row of each sample in `values`, then the number of all rows: a NumPy array of int64 with shape
    [samples + 1], always on the host. Threads: any.
    """

    def __init__(self, values: Any, offsets: Any) -> None:
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """Returns the rows of a sample, counted from the end if `index` is negative; for a slice, a list of them. Raises
        TypeError for anything else, such as a list, a mask or a bool.
        """
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = _to_index(index)
        sample = number + len(self) if number < 0 else number
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {number} of a batch of {len(self)}")
        return self.values[int(self.offsets[sample]) : int(self.offsets[sample + 1])]

    def __iter__(self) -> Iterator[Any]:
        return (self[sample] for sample in range(len(self)))

    @property
    def lengths(self) -> Any:
        """The number of rows of each sample: a NumPy array of int64, on the host."""
        return self.offsets[1:] - self.offsets[:-1]

    def tolist(self) -> List[Any]:
        """Returns the rows of each sample as Python lists."""
        return [rows.tolist() for rows in self]

    def to_padded(self, rows: Optional[int] = None, value: Any = 0) -> Any:
        """Returns a tensor of shape [samples, rows, ...] with `value` behind the rows of each sample.

        `rows` defaults to the largest number in this batch. Raises ValueError if a sample has more, or if the field's
        dtype cannot hold `value`: -1.5 or NaN as an integer, 300 as uint8. Floats are rounded to the dtype.
        """
        import numpy

        check_fill(str(self.values.dtype).split(".")[-1], value)
        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        if rows is None:
            rows = longest
        elif to_integer(rows) is None or rows < 0:
            raise ValueError(f"rows={shown(rows)}: it is not a whole number from 0 on")
        if rows < longest:
            raise ValueError(f"rows={rows}: a sample of this batch has {longest} rows; cut them before, or give more")
        samples, total = len(self), int(self.offsets[-1])
        shape = (samples * rows,) + tuple(self.values.shape[1:])
        # Where each row goes. Computed on the host, so that nothing waits for a GPU.
        places = numpy.arange(total) + numpy.repeat(numpy.arange(samples) * rows - self.offsets[:-1], lengths)
        if hasattr(self.values, "new_full"):
            import torch

            padded = self.values.new_full(shape, value)
            padded[torch.from_numpy(places).to(self.values.device, non_blocking=True)] = self.values
        else:
            array_module = importlib.import_module(type(self.values).__module__.split(".")[0])  # NumPy or CuPy
            padded = array_module.full(shape, value, self.values.dtype)
            padded[array_module.asarray(places)] = self.values
        return padded.reshape((samples, rows) + tuple(self.values.shape[1:]))

    def to_nested(self) -> Any:
        """Returns a torch nested tensor of the jagged layout, which shares the memory of `values`. Needs torch 2.4 or newer,
        and a field of torch tensors.
        """
        import torch

        make = getattr(torch.nested, "nested_tensor_from_jagged", None)
        if make is None:
            raise Error(Code.UNIMPLEMENTED, f"to_nested: torch {torch.__version__} has no jagged nested tensors; update it, or use to_padded()")
        values = self.values if isinstance(self.values, torch.Tensor) else torch.from_numpy(self.values)
        return make(values, offsets=torch.from_numpy(self.offsets).to(values.device, non_blocking=True))

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> List[str]:
        """Returns the text of each sample, for a field of bytes. The defaults are those of file names (`os.fsdecode`)."""
        kind = str(self.values.dtype)
        if not kind.endswith("uint8") or len(self.values.shape) != 1:
            raise TypeError(f"decode: this field holds {kind}, not the bytes of texts")
        values = self.values
        if hasattr(values, "cpu"):
            values = values.cpu().numpy()
        elif hasattr(values, "get"):  # CuPy's
            values = values.get()
        data = bytes(memoryview(values))
        bounds = self.offsets.tolist()
        return [data[begin:end].decode(encoding, errors) for begin, end in zip(bounds, bounds[1:])]

    def to(self, device: Any, non_blocking: bool = False) -> "Ragged":
        """Returns the field with its values on a device; itself if they are there already. For torch tensors."""
        if not hasattr(self.values, "to"):
            if str(device) == "cpu" and hasattr(self.values, "__array_interface__"):
                return self
            raise TypeError(f'to({str(device)!r}): {type(self.values).__name__} has no to(); open the feed with framework="torch"')
        values = self.values.to(device, non_blocking=non_blocking)
        return self if values is self.values else Ragged(values, self.offsets)

    def pin_memory(self) -> "Ragged":
        """Returns a copy of the field in pinned memory. For torch tensors."""
        return Ragged(self.values.pin_memory(), self.offsets)

    def __repr__(self) -> str:
        return f"Ragged(samples={len(self)}, values={type(self.values).__module__.split('.')[0]} {self.values.dtype} {list(self.values.shape)})"


def _to_index(index: Any) -> int:
    """Returns an integer of any type: Python's, NumPy's, or that of a tensor without dimensions."""
    is_flag = isinstance(index, bool) or str(getattr(index, "dtype", "")).endswith("bool")
    try:
        if is_flag or getattr(index, "ndim", 0) > 0:  # PyTorch would take a mask or a list of one element for a number
            raise TypeError
        return operator.index(index)
    except TypeError:
        raise TypeError(
            f"a ragged field is indexed by one integer or slice, not by {shown(index)}: select several samples with [ragged[i] for i in indices], "
            "where numpy.flatnonzero(mask) gives the indices of a mask"
        ) from None


# The largest numbers. Float64 has all of Python's.
_FLOAT_MAX = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104}


def check_fill(dtype: str, value: Any, name: str = "value") -> None:
    """Raises ValueError unless the dtype can hold the value, which would be changed without a word."""
    number = value.item() if hasattr(value, "item") else value
    integer = re.fullmatch(r"(u?)int(\d+)", dtype)
    largest = _FLOAT_MAX.get(dtype, sys.float_info.max)
    if integer:
        bits = int(integer[2])
        low, high = (0, 2**bits - 1) if integer[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    else:
        low, high = 0, 1
    whole = bool(integer) or dtype == "bool"
    holds = f"holds whole numbers from {low} to {high}" if whole else f"holds numbers up to {largest:g}"
    try:
        fits = number == int(number) and low <= number <= high if whole else abs(number) <= largest or not math.isfinite(number)
    except (OverflowError, ValueError):  # an infinity or NaN as an integer, or an integer beyond every float
        fits = False
    if not fits:
        raise ValueError(f"{name}={shown(value)}: the field's dtype is {dtype}, which {holds}; give one of them, or convert the field first, as by to(torch.float64)")


def gather(values: Any, extents: Any, name: str) -> Ragged:
    """Makes a field of a packed tensor in a slot, whose rows lie in any order. Copies them. `extents` has each
    sample's first row and number of rows.
    """
    import numpy

    extents = extents.copy()  # a process that writes to the slot must not change them after the check
    first, count = extents[:, 0], extents[:, 1]
    if ((first < 0) | (first > len(values)) | (count < 0) | (count > len(values) - first)).any():
        raise Error(Code.INTERNAL, f"the rows of tensor {name!r} lie outside of it; are pinfeedd and this package of the same version?")
    offsets = numpy.zeros(len(extents) + 1, numpy.int64)
    numpy.cumsum(count, out=offsets[1:])
    rows = [values[begin:behind] for begin, behind in zip(first.tolist(), (first + count).tolist())]
    return Ragged(numpy.concatenate(rows) if rows else values[:0].copy(), offsets)
