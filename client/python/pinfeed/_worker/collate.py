# SPDX-License-Identifier: Apache-2.0
"""Makes a batch of samples, as torch.utils.data.default_collate does.

In: the samples of a batch, and a function that allocates arrays. Out: an object with the structure of one sample, whose
tensors have the batch as first dimension. Data is copied once, into the allocated arrays.

Long because: it is one class with a function for each type that a sample may have, and their errors.
"""

from __future__ import annotations

import collections
import collections.abc
import copy
import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy

from .._base.optional_torch import torch_or_none
from .batch_memory import is_dense
from .encoded import ADVICE, BatchImages, EncodedImage
from .rows import Allocate, Rows, concatenate, has_rows, lengths, new_like, stack_padded

_NUMBERS = "biufc"  # kinds of NumPy dtypes that can be stacked
_ADVICE = "give the loader a collate_fn"
_ROWS_ADVICE = "name them in ragged= or pad=, or give the loader a collate_fn that pads them"


def default_collate(samples: Sequence[Any], allocate: Allocate, rows: Optional[Rows] = None, images: Optional[BatchImages] = None) -> Any:
    """Returns the batch of the samples. ``allocate(shape, numpy_dtype)`` returns memory for a tensor of it.

    The rules are those of torch.utils.data.default_collate: tensors of equal shape are stacked, NumPy arrays and
    numbers become tensors, strings and bytes become a list of them, and mappings, named tuples and sequences keep
    their structure. Without torch, tensors are NumPy arrays.

    Differences from torch:

    - Dataclasses become one dataclass of batches, made without a call of its constructor. None in all samples is None.
      Bytearrays become a list.
    - A key that the first sample lacks is an error. torch leaves its values out.
    - Arrays may have negative strides or the other byte order.
    - Tensors whose dtypes cannot be cast to the first sample's are promoted to a common one. torch's workers refuse them.
    - Errors name the place in the sample, and the samples by their position in the batch.
    - `rows` names values that become a `Ragged` or are padded. A padded value of a dict gets one more beside it,
      ``<key>_length``: the number of rows of each sample.
    - `images` gets each `EncodedImage`, and the batch what stands for them. None: they are refused.

    Raises RuntimeError for samples of different shapes, lengths or keys, and for tensors that require gradients, as
    torch's workers do. Raises TypeError for other types, and for samples of different types.
    """
    if len(samples) == 0:
        raise ValueError("default_collate: the batch has no samples")
    if not isinstance(samples, list):  # an array, from `__getitems__`
        samples = list(samples)
    if rows is not None:
        rows.check(samples[0])
    return _Collator(allocate, rows, images).collate(samples, "sample")


_DICTS = (dict, collections.OrderedDict, collections.defaultdict)  # which take any key


class _Collator:
    """Collates one batch. `place` is how the user's code would refer to the values, such as ``sample['image'][0]``."""

    def __init__(self, allocate: Allocate, rows: Optional[Rows], images: Optional[BatchImages]) -> None:
        self._allocate = allocate
        self._rows = rows
        self._images = images
        torch = self._torch = torch_or_none()
        self._tensor: Any = () if torch is None else torch.Tensor

    def collate(self, samples: Sequence[Any], place: str) -> Any:
        first = samples[0]
        if self._rows is not None and has_rows(self._torch, first):
            if self._rows.is_ragged(place):
                return concatenate(self._torch, samples, self._allocate, place)
            fill = self._rows.pad_of(place)
            if fill is not None:
                return stack_padded(self._torch, samples, fill, self._allocate, place)
        if self._images is not None and type(first) is not EncodedImage:
            kinds = list(map(type, samples))
            if EncodedImage in kinds:
                raise TypeError(_different(samples, kinds.index(EncodedImage), place))
        method = self._method_for(first)
        if method is None:
            raise _refused(first, place)
        return method(samples, place)

    def _method_for(self, first: Any) -> Any:
        """Returns the method for values of this one's type; None if there is none."""
        if first is None:
            return self._nones
        if isinstance(first, EncodedImage):
            return self._encoded
        if isinstance(first, self._tensor):
            return self._tensors
        if isinstance(first, numpy.ndarray):
            return self._arrays
        if isinstance(first, (str, bytes, bytearray)):
            return _unchanged
        if isinstance(first, (numpy.bool_, numpy.number)) and not isinstance(first, numpy.timedelta64):
            return self._numpy_scalars
        if isinstance(first, float):
            return self._floats
        if isinstance(first, int):
            return self._integers
        if isinstance(first, collections.abc.Mapping):
            return self._mappings
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            return self._dataclasses
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return self._namedtuples
        return self._sequences if isinstance(first, collections.abc.Sequence) else None

    # Leaves.

    def _tensors(self, samples: Sequence[Any], place: str) -> Any:
        torch = self._torch
        first = samples[0]
        kinds = set(map(type, samples))
        if kinds != {torch.Tensor}:
            _check_kinds(samples, torch.Tensor, place)
        if first.device.type not in ("cpu", "meta"):
            raise TypeError(
                f"default_collate: sample 0 of the batch has a tensor on {first.device} at {place}: return tensors on the CPU, "
                "and move the batch in the trainer"
            )
        if first.device.type == "cpu" and any(sample.is_meta for sample in samples):
            raise TypeError(f"default_collate: some tensors of the batch are on the meta device at {place}, where they have no values")
        out = None
        try:
            # As in torch's workers, the first one's dtype is the batch's. Where those fail, it is a common one.
            if is_dense(torch, first) and all(torch.can_cast(kind, first.dtype) for kind in {sample.dtype for sample in samples}):
                out = new_like(torch, first, (len(samples), *first.shape), self._allocate)
            return torch.stack(samples) if out is None else torch.stack(samples, out=out)
        except Exception as error:
            if all(is_dense(torch, sample) for sample in samples):
                _check_shapes(samples, place)
            if torch.is_grad_enabled() and any(sample.requires_grad for sample in samples):
                raise RuntimeError(
                    f"default_collate: the tensors at {place} require gradients, which end at the worker process: "
                    "call detach() on them in the dataset"
                ) from None
            kind = TypeError if isinstance(error, TypeError) else RuntimeError
            raise kind(f"default_collate: torch.stack failed for the tensors at {place}: {error}; {_ADVICE}") from error

    def _arrays(self, samples: Sequence[Any], place: str) -> Any:
        kinds = set(map(type, samples))
        arrays = samples
        if kinds != {numpy.ndarray}:
            if not all(isinstance(sample, numpy.ndarray) for sample in samples):
                return self._mixed(samples, place)
            arrays = [numpy.asarray(sample) for sample in samples]
        dtypes = {array.dtype for array in arrays}
        for position, array in enumerate(arrays) if len(dtypes) > 1 else ((0, arrays[0]),):
            if array.dtype.kind not in _NUMBERS:
                raise TypeError(
                    f"default_collate: sample {position} of the batch has an array of dtype {array.dtype} at {place}, which is no number: "
                    f"return a list of strings or numbers, or {_ADVICE}"
                )
        if len(dtypes) > 1:
            return self._mixed(arrays, place)
        shape = arrays[0].shape
        if len({array.shape for array in arrays}) > 1:
            _check_shapes(arrays, place)
        out, batch = self._new((len(arrays), *shape), arrays[0].dtype.newbyteorder("="), place)
        if shape:
            numpy.concatenate(arrays, out=out.reshape((len(arrays) * shape[0], *shape[1:])))
        else:
            numpy.stack(arrays, out=out)
        return batch

    def _mixed(self, samples: Sequence[Any], place: str) -> Any:
        """Stacks arrays of different dtypes, and values of which only the first is an array."""
        torch = self._torch
        try:
            values = [numpy.asarray(sample) if torch is None else torch.as_tensor(_plain(sample)) for sample in samples]
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"default_collate: the values at {place} cannot be one tensor: {error}; {_ADVICE}") from error
        if torch is not None:
            return self._tensors(values, place)
        for position, array in enumerate(values):
            if array.dtype.kind not in _NUMBERS:
                raise TypeError(_different(samples, position, place))
        _check_shapes(values, place)
        batch = numpy.stack(values)
        integers = batch.dtype.kind == "f" and all(array.dtype.kind in "iu" for array in values)
        if integers and any([int(number) for number in row.ravel().tolist()] != array.ravel().tolist() for row, array in zip(batch, values)):
            raise TypeError(f"default_collate: the values at {place} are integers, which float64 would change: convert them in the dataset")
        return batch

    def _numpy_scalars(self, samples: Sequence[Any], place: str) -> Any:
        if set(map(type, samples)) != {type(samples[0])}:
            return self._infer(samples, place)
        out, batch = self._new((len(samples),), samples[0].dtype, place)
        out[:] = samples
        return batch

    def _floats(self, samples: Sequence[Any], place: str) -> Any:
        if not set(map(type, samples)) <= {float, int, bool}:
            return self._infer(samples, place, "float64")
        out, batch = self._new((len(samples),), numpy.float64, place)
        try:
            out[:] = samples
        except OverflowError:
            return self._infer(samples, place, "float64")
        return batch

    def _integers(self, samples: Sequence[Any], place: str) -> Any:
        kinds = set(map(type, samples))
        if not kinds <= {int, bool}:
            return self._infer(samples, place)
        out, batch = self._new((len(samples),), numpy.bool_ if kinds == {bool} else numpy.int64, place)
        try:
            out[:] = samples
        except OverflowError:
            return self._infer(samples, place)
        return batch

    def _infer(self, samples: Sequence[Any], place: str, dtype: str = "") -> Any:
        """Makes a tensor of numbers of different types, with the dtype that torch infers for them."""
        try:
            if self._torch is not None:
                return self._torch.tensor(samples, dtype=getattr(self._torch, dtype) if dtype else None)
            batch = numpy.array(samples)
            integers = batch.dtype.kind == "f" and all(isinstance(sample, (int, numpy.integer)) for sample in samples)
            if integers and [int(number) for number in batch.tolist()] != [int(sample) for sample in samples]:
                raise OverflowError("as float64 the integers would change")
            if batch.dtype.kind not in _NUMBERS or batch.shape != (len(samples),):
                raise TypeError(f"NumPy takes them for {batch.dtype} {list(batch.shape)}")
            return batch.astype(dtype) if dtype else batch
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            kinds = sorted({type(sample).__name__ for sample in samples})
            kind = TypeError if isinstance(error, TypeError) else RuntimeError
            raise kind(f"default_collate: the values at {place} ({', '.join(kinds)}) cannot be one tensor: {error}; {_ADVICE}") from error

    def _nones(self, samples: Sequence[Any], place: str) -> None:
        _check_kinds(samples, type(None), place)

    def _encoded(self, samples: Sequence[Any], place: str) -> Any:
        if self._images is None:
            raise TypeError(f"default_collate: {place} is a pinfeed.EncodedImage, and nothing decodes it here: {ADVICE}")
        _check_kinds(samples, EncodedImage, place)
        return self._images.add(samples)

    def _new(self, shape: Tuple[int, ...], dtype: Any, place: str) -> Tuple[Any, Any]:
        """Returns an allocated array, and the tensor or array that shares its memory for the batch."""
        array = self._allocate(shape, dtype)
        if self._torch is None:
            return array, array
        try:
            return array, self._torch.from_numpy(array)
        except TypeError:
            raise TypeError(
                f"default_collate: the values at {place} are {numpy.dtype(dtype)}, which torch {self._torch.__version__} does not have: "
                f"convert them in the dataset, or {_ADVICE}"
            ) from None

    # Structures.

    def _mappings(self, samples: Sequence[Any], place: str) -> Any:
        first = samples[0]
        plain = set(map(type, samples)) == {dict}
        if not plain:
            _check_kinds(samples, collections.abc.Mapping, place)
        # A dict of the same length that has the first one's keys has no others. Other mappings may invent values.
        for position, sample in enumerate(samples):
            if len(sample) != len(first) or (not plain and sample.keys() != first.keys()):
                raise _different_keys(samples, position, place)
        batch = {}
        for key in first:
            try:
                column = [sample[key] for sample in samples]
            except KeyError:
                for position, sample in enumerate(samples):
                    if key not in sample:
                        raise _different_keys(samples, position, place) from None
                raise
            at = f"{place}[{key!r}]"
            batch[key] = self.collate(column, at)
            padded = self._rows is not None and not self._rows.is_ragged(at) and self._rows.pad_of(at) is not None
            if padded and type(first) in _DICTS and has_rows(self._torch, column[0]) and f"{key}_length" not in first:
                batch[f"{key}_length"] = lengths(self._torch, column, self._allocate)
        if type(first) is dict:
            return batch
        try:
            if not isinstance(first, (dict, collections.UserDict)):
                return type(first)(batch)
            same = copy.copy(first)  # has the attributes, such as a default_factory
            for key, value in batch.items():
                same[key] = value
                if key in first and getattr(same, "__dict__", {}).get(key, self) is first[key]:  # an attribute that stands for the item
                    same.__dict__[key] = value
            return same
        except TypeError:  # a type with other arguments, or that accepts only some values
            return batch

    def _dataclasses(self, samples: Sequence[Any], place: str) -> Any:
        first = samples[0]
        _check_kinds(samples, type(first), place)
        batch = copy.copy(first)
        for field in dataclasses.fields(first):
            name = field.name
            # Not setattr, which a frozen dataclass refuses.
            object.__setattr__(batch, name, self.collate([getattr(sample, name) for sample in samples], f"{place}.{name}"))
        return batch

    def _namedtuples(self, samples: Sequence[Any], place: str) -> Any:
        if self._torch is not None and isinstance(samples[0], self._torch.nn.utils.rnn.PackedSequence):
            raise TypeError(
                f"default_collate: samples have a PackedSequence at {place}, and packed sequences do not make one of a batch: return the sequences, "
                "and pack those of a batch in a collate_fn, or give pad= or ragged="
            )
        columns = self._columns(samples, place)
        names = samples[0]._fields
        return type(samples[0])(*(self.collate(column, f"{place}.{name}") for name, column in zip(names, columns)))

    def _sequences(self, samples: Sequence[Any], place: str) -> Any:
        first = samples[0]
        batch = [self.collate(column, f"{place}[{number}]") for number, column in enumerate(self._columns(samples, place))]
        if isinstance(first, tuple) or type(first) is list:
            return batch
        try:
            if not isinstance(first, (list, collections.UserList)):
                return type(first)(batch)
            same = copy.copy(first)  # has the attributes
            for number, value in enumerate(batch):
                same[number] = value
            return same
        except TypeError:  # as for range
            return batch

    def _columns(self, samples: Sequence[Any], place: str) -> List[Any]:
        """Returns the first items of all samples, the second ones, and so on."""
        length = len(samples[0])
        if not set(map(type, samples)) <= {tuple, list}:
            for position, sample in enumerate(samples):
                unordered = isinstance(sample, (str, bytes, bytearray, collections.abc.Mapping, collections.abc.Set))
                if unordered or not hasattr(sample, "__len__"):
                    raise TypeError(_different(samples, position, place))
        for position, other in enumerate(map(len, samples)):
            if other != length:
                rows = place != "sample" and all(has_rows(self._torch, sample) for sample in samples)  # as token ids
                raise RuntimeError(
                    f"default_collate: {place} has {length} items in sample 0 of the batch, and {other} in sample {position}: "
                    f"make them equally long in the dataset, {_ROWS_ADVICE if rows else f'or {_ADVICE}'}"
                )
        return list(zip(*samples))


def _unchanged(samples: Sequence[Any], _place: str) -> Any:
    return samples


def _plain(sample: Any) -> Any:
    """Returns an array that torch accepts: without negative strides, in this machine's byte order."""
    if isinstance(sample, numpy.ndarray):
        return sample.astype(sample.dtype.newbyteorder("="), order="C")
    return sample


def _check_kinds(samples: Sequence[Any], kind: Any, place: str) -> None:
    for position, sample in enumerate(samples):
        if not isinstance(sample, kind):
            raise TypeError(_different(samples, position, place))


def _check_shapes(samples: Sequence[Any], place: str) -> None:
    """Raises RuntimeError if tensors or arrays have different shapes."""
    positions: Dict[Tuple[int, ...], List[int]] = {}
    for position, sample in enumerate(samples):
        positions.setdefault(tuple(sample.shape), []).append(position)
    if len(positions) < 2:
        return
    groups = [f"{list(shape)} in {_numbered(members)}" for shape, members in list(positions.items())[:4]]
    if len(positions) > len(groups):
        groups.append(f"{len(positions) - len(groups)} others")
    raise RuntimeError(
        f"default_collate: the tensors at {place} have different shapes, so they cannot be stacked: {'; '.join(groups)} of the batch. "
        f"Make the shapes equal in the dataset, {_ROWS_ADVICE}"
    )


def _numbered(positions: List[int]) -> str:
    if len(positions) == 1:
        return f"sample {positions[0]}"
    shown = ", ".join(map(str, positions[:4]))
    return f"samples {shown}" + (f" and {len(positions) - 4} more" if len(positions) > 4 else "")


def _different_keys(samples: Sequence[Any], position: int, place: str) -> RuntimeError:
    first, other = samples[0], samples[position]
    missing = [key for key in first if key not in other]
    extra = [key for key in other if key not in first]
    faults = [f"lacks the keys {_keys(missing)} of sample 0"] * bool(missing) + [f"has the keys {_keys(extra)}, which sample 0 lacks"] * bool(extra)
    return RuntimeError(
        f"default_collate: {place} has different keys in the samples of the batch: sample {position} {' and '.join(faults)}. "
        f"Return the same keys for every sample, or {_ADVICE}"
    )


def _keys(keys: List[Any]) -> str:
    return ", ".join(map(repr, keys[:6])) + (f" and {len(keys) - 6} more" if len(keys) > 6 else "")


def _different(samples: Sequence[Any], position: int, place: str) -> str:
    encoded = EncodedImage in (type(samples[0]), type(samples[position]))  # the daemon decodes them for the default collation only
    return (
        f"default_collate: {place} is {_type_name(samples[0])} in sample 0 of the batch, and {_type_name(samples[position])} in sample {position}: "
        "return the same type for every sample" + ("" if encoded else f", or {_ADVICE}")
    )


def _refused(first: Any, place: str) -> TypeError:
    name = _type_name(first)
    if name.startswith("PIL."):
        advice = (
            "convert the image to a tensor in the dataset, as by numpy.asarray or torchvision's pil_to_tensor, or return pinfeed.EncodedImage(path), which "
            "the daemon decodes (transforms=, num_workers > 0)"
        )
    else:
        advice = "return tensors, arrays, numbers, strings, and mappings, sequences or dataclasses of them"
    return TypeError(f"default_collate: sample 0 of the batch has {name} at {place}, which cannot be stacked: {advice}, or {_ADVICE}")


def _type_name(value: Any) -> str:
    kind = type(value)
    module = "pinfeed" if kind.__module__.startswith("pinfeed.") else kind.__module__
    return kind.__name__ if module == "builtins" else f"{module}.{kind.__qualname__}"
