# SPDX-License-Identifier: Apache-2.0
"""Values of samples that have different numbers of rows, such as texts and boxes, collated by `DataLoader`.

In: one value of each sample of a batch. Out: a `Ragged`, or one padded tensor, in memory that the caller allocates.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

from .._base.checks import Checks, listed, shown, to_number
from .._base.dtypes import has_layout_of_tensors
from .._base.errors import invalid
from .._feed.ragged import Ragged, check_fill
from .batch_memory import array_dtype

Allocate = Callable[[Tuple[int, ...], Any], Any]
Name = Union[str, int]


class Rows(NamedTuple):
    """How the loader's user wants such values. Names are keys, attributes or positions in a sample; what lies below has
    them, too.
    """

    ragged: Tuple[str, ...]  # prefixes of places; "sample": all
    pad: Dict[str, Any]  # by prefix of places
    named: Tuple[Tuple[str, Name], ...] = ()  # argument and name of each

    def is_ragged(self, place: str) -> bool:
        return any(_is_below(place, each) for each in self.ragged)

    def check(self, sample: Any) -> None:
        """Raises InvalidArgumentError if a name is none of the sample's."""
        for argument, name in self.named:
            known = _names_of(sample)
            if name not in known:
                raise invalid(f"DataLoader: {argument}: the samples have no {name!r}, only {shown(known)}: correct the name")

    def pad_of(self, place: str) -> Optional[Any]:
        """What to fill up with; None: nothing."""
        return next((value for each, value in self.pad.items() if _is_below(place, each)), None)


def rows_of(checks: Checks, ragged: Any, pad: Any) -> Optional[Rows]:
    """Checks the arguments. None: values must have equal shapes."""
    names: List[str] = []
    named: List[Tuple[str, Name]] = []
    if ragged is True:
        names = ["sample"]
    elif ragged is not None and ragged is not False:
        given = listed(ragged, ordered=False)
        if not all(isinstance(name, (str, int)) for name in given):
            checks.refuse("ragged", ragged, "True, or a name or position in a sample, or a list of them")
        names = [place for name in given for place in _places(name)]
        named += [("ragged", name) for name in given]
    values: Dict[str, Any] = {}
    if isinstance(pad, dict):
        for name, value in pad.items():
            if to_number(value) is None and not isinstance(value, bool):
                checks.refuse(f"pad[{name!r}]", value, "a number")
            values.update(dict.fromkeys(_places(name), value))
            named.append(("pad", name))
    elif pad is not None:
        if to_number(pad) is None:
            checks.refuse("pad", pad, "a number, or a dict from names or positions in a sample to numbers")
        values["sample"] = pad
    if ragged is True and values:
        checks.add("pad", "ragged=True leaves no field to pad: omit one of the two, or give ragged the names of its fields")
    both = [name for argument, name in named if argument == "pad" and ("ragged", name) in named]
    if both:
        checks.add("pad", f"{shown(both)} in ragged, too: a field is ragged or padded, so omit the name in one of the two")
    return Rows(tuple(names), values, tuple(named)) if names or values else None


def _places(name: Name) -> List[str]:
    return [f"sample[{name!r}]"] + ([f"sample.{name}"] if isinstance(name, str) else [])


def _names_of(sample: Any) -> List[Any]:
    """Returns the keys or attributes of what a sample has, or the positions where its items have no names."""
    if isinstance(sample, collections.abc.Mapping):
        return list(sample)
    if dataclasses.is_dataclass(sample):
        return [field.name for field in dataclasses.fields(sample)]
    names = getattr(sample, "_fields", None)
    if names is None and isinstance(sample, collections.abc.Sequence):
        names = range(len(sample))
    return list(names or ())


def _is_below(place: str, prefix: str) -> bool:
    return place.startswith(prefix) and (len(place) == len(prefix) or place[len(prefix)] in "[.")


def has_rows(torch: Any, value: Any) -> bool:
    """Whether a value of a sample is a tensor, an array or a list of numbers."""
    if torch is not None and isinstance(value, torch.Tensor):
        return bool(value.dim())
    if isinstance(value, numpy.ndarray):
        return value.ndim > 0 and value.dtype.kind in "biufc"
    return isinstance(value, list) and all(type(item) in (int, float, bool) for item in value)


def concatenate(torch: Any, samples: Sequence[Any], allocate: Allocate, place: str) -> Ragged:
    values = _convert(torch, samples, place)
    for position, value in enumerate(values):
        if value.shape[1:] != values[0].shape[1:]:
            raise _different(values, position, place, "beyond the first dimension")
    offsets = [0, *itertools.accumulate(len(value) for value in values)]
    out = new_like(torch, values[0], (offsets[-1], *values[0].shape[1:]), allocate)
    for begin, end, value in zip(offsets, offsets[1:], values):
        out[begin:end] = value
    return Ragged(out, numpy.array(offsets, numpy.int64))


def stack_padded(torch: Any, samples: Sequence[Any], fill: Any, allocate: Allocate, place: str) -> Any:
    values = _convert(torch, samples, place)
    for position, value in enumerate(values):
        if len(value.shape) != len(values[0].shape):
            raise _different(values, position, place, "in the number of dimensions")
    check_fill(str(values[0].dtype).split(".")[-1], fill, f"DataLoader: {place}: pad")
    shape = tuple(max(extents) for extents in zip(*(value.shape for value in values)))
    out = new_like(torch, values[0], (len(values), *shape), allocate)
    for number, value in enumerate(values):
        if tuple(value.shape) != shape:
            out[number] = fill
        out[(number, *(slice(extent) for extent in value.shape))] = value
    return out


def lengths(torch: Any, samples: Sequence[Any], allocate: Allocate) -> Any:
    """Returns the number of rows of each value."""
    out = allocate((len(samples),), numpy.dtype(numpy.int64))
    out[:] = [len(sample) for sample in samples]
    return out if torch is None else torch.from_numpy(out)


def _convert(torch: Any, samples: Sequence[Any], place: str) -> List[Any]:
    """Returns the values as tensors, or as arrays without torch, of one dtype."""
    for position, sample in enumerate(samples):
        if not has_rows(torch, sample):
            raise TypeError(f"DataLoader: {place} is {type(sample).__name__} in sample {position} of the batch: it has no rows")
    samples = list(map(_plain, samples))
    # An empty list has no dtype of its own.
    known = next((sample for sample in samples if not isinstance(sample, list) or sample), samples[0])
    if torch is None:
        dtype = numpy.asarray(known).dtype
        values = [numpy.asarray(sample, dtype if isinstance(sample, list) and not sample else None) for sample in samples]
        for sample, array in zip(samples, values):
            if array.dtype.kind == "f" and isinstance(sample, list) and sample and float not in map(type, sample):
                raise TypeError(f"DataLoader: {place} has integers beyond 64 bits, or from 2^63 on beside others, which float64 would change")
    else:
        kind = _tensor(torch, known).dtype
        tensors = [_tensor(torch, sample, kind if isinstance(sample, list) and not sample else None) for sample in samples]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise RuntimeError(
                f"DataLoader: the tensors at {place} require gradients, which end at the worker process: call detach() on them in the dataset"
            )
        values = [tensor.detach() for tensor in tensors]
    for position, value in enumerate(values):
        if value.dtype != values[0].dtype:
            raise TypeError(
                f"DataLoader: {place} is {values[0].dtype} in sample 0 of the batch, and {value.dtype} in sample {position}: convert it in the dataset"
            )
    return values


def _tensor(torch: Any, sample: Any, dtype: Any = None) -> Any:
    """Floats of a list become float64, as a number that is a sample's own does in torch."""
    if isinstance(sample, list) and float in map(type, sample):
        dtype = torch.float64
    return torch.as_tensor(sample, dtype=dtype)


def _plain(sample: Any) -> Any:
    """Returns an array that torch can use as it is, in this machine's byte order."""
    if isinstance(sample, numpy.ndarray) and not (sample.dtype.isnative and has_layout_of_tensors(sample)):
        return sample.astype(sample.dtype.newbyteorder("="))
    return sample


def new_like(torch: Any, like: Any, shape: Tuple[int, ...], allocate: Allocate) -> Any:
    """Returns allocated memory of `like`'s dtype, as a tensor, or as an array without torch."""
    if torch is None:
        return allocate(shape, like.dtype)
    dtype, only_size = array_dtype(torch, like.dtype)
    out = torch.from_numpy(allocate(shape, dtype))
    return out.view(like.dtype) if only_size else out


def _different(values: List[Any], position: int, place: str, how: str) -> RuntimeError:
    return RuntimeError(
        f"DataLoader: {place} has shape {list(values[0].shape)} in sample 0 of the batch, and {list(values[position].shape)} in sample {position}: they "
        f"differ {how}; give the loader a collate_fn"
    )
