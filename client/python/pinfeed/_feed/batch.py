# SPDX-License-Identifier: Apache-2.0
"""What a trainer gets: a `Batch` of tensors, and the other forms of ``open(output=)``."""

from __future__ import annotations

import functools
import operator
from typing import Any, Callable, ClassVar, Dict, ItemsView, KeysView, Optional, Sequence, Tuple, Type, ValuesView

from .arguments import did_you_mean, instead_in_batch
from .dlpack import RawTensor


class Batch(Tuple[Any, ...]):
    """The tensors of one batch, in the dataset's order: ``images, labels = batch``, ``batch[0]``, ``batch.image`` or
    ``batch["image"]``.

    The first dimension of every tensor is the number of samples in the batch.

    On the host, and on a GPU with zero_copy=True, tensors are views of the daemon's slot. The daemon reuses the slot
    once the last reference to the batch and to its views is gone. This may happen on any thread, also after the feed
    was closed. Tensors that have less than 64 KiB in a full batch are always copies. So are all tensors of a batch
    that would take the last free slot (`SlotsHeldWarning`). Any number of batches may therefore be kept.

    After the feed was closed, the last view's end unmaps the memory. On a GPU this waits at most 10 s for the stream
    that was current when the batch was taken; meanwhile no other Python thread runs.

    A batch behaves like a named tuple (``_fields``, ``_asdict()``) and mostly like a mapping: ``batch.items()``,
    ``dict(batch)``, ``model(**batch)``, ``"image" in batch``. Iterating yields the tensors, so a batch is not a
    `collections.abc.Mapping`; for code that requires one, open the feed with output="dict". ``batch.to(device)``
    moves torch tensors. `copy.copy` shares the tensors; `copy.deepcopy` and `pickle` copy them. Further attributes:

    epoch: the batch's epoch, from 0. index: its number within the epoch for this rank, from 0. skipped: the number
    of bad samples left out. last_of_epoch: whether the next batch belongs to the next epoch.
    """

    _fields: ClassVar[Tuple[str, ...]] = ()
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is useless for tensors
    skipped: int
    last_of_epoch: bool
    _raw: Optional[Dict[str, RawTensor]] = None
    _slot: Any  # keeps the memory of views alive

    def __new__(cls, *values: Any) -> "Batch":
        # One argument per field, like a named tuple: libraries rebuild batches this way after moving the tensors.
        if len(values) != len(cls._fields):
            raise TypeError(
                f"a batch of {', '.join(map(repr, cls._fields))} is made of {len(cls._fields)} tensors, not of {len(values)}: a library takes it for a plain tuple; "
                'open the feed with output="dict" or "tuple"'
            )
        return tuple.__new__(cls, values)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        if key not in self._fields:
            raise KeyError(self._missing_field(key))
        return tuple.__getitem__(self, self._fields.index(key))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._missing_field(name))

    def _missing_field(self, name: str) -> str:
        hint = instead_in_batch(name) or did_you_mean(name, self._fields)
        return f"the batch has no tensor {name!r}, only {', '.join(map(repr, self._fields))}{hint}"

    def __contains__(self, key: Any) -> bool:
        """For a string, whether a field has this name. For a tensor, whether it is one of the batch's."""
        return key in self._fields if isinstance(key, str) else any(tensor is key for tensor in self)

    def _asdict(self) -> Dict[str, Any]:
        return dict(zip(self._fields, self))

    def keys(self) -> KeysView[str]:
        return self._asdict().keys()

    def values(self) -> ValuesView[Any]:
        return self._asdict().values()

    def items(self) -> ItemsView[str, Any]:
        return self._asdict().items()

    def to(self, device: Any, non_blocking: bool = False) -> "Batch":
        """Returns the batch with its torch tensors on a device, or itself if all are there already."""
        if type(device).__name__ == "dtype":
            raise TypeError(f"to({device}): a batch is moved to a device; cast its tensors one by one, or open the feed with pinfeed.ToDtype")
        if all(hasattr(tensor, "to") for tensor in self):
            moved = [tensor.to(device, non_blocking=non_blocking) for tensor in self]
        elif str(device) == "cpu":
            moved = list(self)
        else:
            raise TypeError(f'to({str(device)!r}): {type(self[0]).__name__} has no to(); open the feed with framework="torch"')
        return self if all(new is old for new, old in zip(moved, self)) else self._with(moved)

    def _attributes(self) -> Dict[str, Any]:
        """What a batch has besides tensors and memory: epoch, index and so on."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def _with(self, tensors: Sequence[Any]) -> "Batch":
        """Returns a batch of other tensors with this one's attributes."""
        batch = type(self)(*tensors)
        batch.__dict__.update(self._attributes())
        return batch

    @property
    def raw(self) -> Dict[str, RawTensor]:
        """The batch's memory by field as `RawTensor`, for frameworks that use DLPack. Empty on a GPU without zero_copy,
        where the tensors support DLPack themselves, and for batches derived from this one, as by `to`.
        """
        if self._raw is None:
            self._raw = self._make_raw()
        return self._raw

    def _make_raw(self) -> Dict[str, RawTensor]:
        return {}

    def __reduce__(self) -> Tuple[Any, ...]:
        return _restored, (self._fields, tuple(self), self._attributes())  # the class exists for this feed only

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
        return f"Batch({fields})"


# The values of open's `output`: from a batch to what the trainer gets. Tensors keep the slot themselves, without the
# `Batch`.
OUTPUTS: Dict[str, Callable[[Batch], Any]] = {"batch": lambda batch: batch, "dict": Batch._asdict, "tuple": tuple}


def batch_class(names: Sequence[str]) -> Type[Batch]:
    """Returns a subclass of `Batch` with a feed's fields as attributes."""
    # A field whose name is an attribute of every batch, or special in Python, is accessible only as batch[name].
    taken = set(dir(Batch)) | set(Batch.__annotations__)
    members: Dict[str, Any] = {
        name: property(operator.itemgetter(number)) for number, name in enumerate(names) if name not in taken and not name.startswith("__")
    }
    members.update(_fields=tuple(names), __module__=Batch.__module__)
    return type("Batch", (Batch,), members)


_restored_class = functools.lru_cache(maxsize=64)(batch_class)


def _restored(names: Tuple[str, ...], tensors: Sequence[Any], attributes: Dict[str, Any]) -> Batch:
    """Makes the batch that `Batch.__reduce__` describes."""
    batch = _restored_class(names)(*tensors)
    batch.__dict__.update(attributes)
    return batch
