# SPDX-License-Identifier: Apache-2.0
"""Loads the samples of a batch and collates them, in the trainer or in a worker.

In: a dataset and the indices of a batch. Out: the batch, as torch's DataLoader makes it.
"""

from __future__ import annotations

import enum
import os
from typing import Any, Callable, List, NamedTuple, Optional

import numpy

from .._base.checks import shown
from .._base.errors import invalid
from .._base.optional_torch import torch_or_none
from .collate import default_collate
from .encoded import ADVICE, BatchImages, has_encoded
from .rows import Allocate, Rows
from .seeding import Seeder


class Kind(enum.Enum):
    MAP = "map"
    ITERABLE = "iterable"


class Recipe(NamedTuple):
    """How to make a batch of indices."""

    dataset: Any
    batched: bool  # the indices are a list of which each gives a sample; otherwise one index gives the batch
    collate_fn: Optional[Callable[[Any], Any]]  # None: the default for samples in a list
    rows: Optional[Rows] = None  # of values that the default may not stack
    encodes: bool = False  # the samples have images for the daemon to decode


def kind_of_dataset(dataset: Any) -> Kind:
    """Raises InvalidArgumentError for a path and for a DataPipe."""
    if isinstance(dataset, str) or (isinstance(dataset, os.PathLike) and not hasattr(dataset, "__getitem__")):  # the samples of a str would be its characters
        raise invalid(
            f"dataset: {shown(dataset)} is a path: pinfeed.open(path, batch_size=...) gives the batches of a folder or a file, which the daemon reads; here, "
            "give an object of a Dataset class, with __getitem__ and __len__, that reads it",
        )
    torch = torch_or_none()
    if torch is not None:
        if isinstance(dataset, tuple(getattr(torch.utils.data, name, ()) for name in ("IterDataPipe", "MapDataPipe"))):
            raise invalid(
                f"dataset: {type(dataset).__name__} is a DataPipe, whose shards and shuffling only torch.utils.data.DataLoader sets: use that class, or "
                "give a torch.utils.data.IterableDataset that takes its worker's share by get_worker_info(), or a dataset with __getitem__",
            )
        return Kind.ITERABLE if isinstance(dataset, torch.utils.data.IterableDataset) else Kind.MAP
    return Kind.ITERABLE if hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__") else Kind.MAP


def collate(samples: List[Any], rows: Optional[Rows] = None) -> Any:
    """Collates by default, without torch, or with what torch's default lacks."""
    return default_collate(samples, numpy.empty, rows)


def explain(samples: List[Any], error: Exception) -> None:
    """Raises an error of the same type that says which value of which sample torch's default could not collate, if it is one that
    the default here refuses too.
    """
    try:
        collate(samples)
    except type(error) as ours:
        if str(ours) != str(error):
            raise ours from error
    except Exception:
        pass  # torch's error it is


def convert(sample: Any) -> Any:
    """Converts a sample by default, without torch: to itself."""
    return sample


def default_function(batched: bool) -> Callable[[Any], Any]:
    """Returns the collate_fn of a loader without one: torch's, if torch is installed."""
    torch = torch_or_none()
    if torch is None:
        if batched:
            return collate
        return convert
    module = torch.utils.data._utils.collate
    function: Callable[[Any], Any] = module.default_collate if batched else module.default_convert
    return function


def collates_as_delivered() -> bool:
    """Whether torch's default collation has none of the user's functions (``default_collate_fn_map``)."""
    torch = torch_or_none()
    if torch is None:
        return True
    module = torch.utils.data._utils.collate
    functions = getattr(module, "default_collate_fn_map", {}).values()
    return all(getattr(function, "__module__", "") == module.__name__ for function in functions)


def load(recipe: Recipe, indices: Any, seeder: Optional[Seeder] = None, seed: int = 0, batch: int = 0) -> Any:
    """Returns the samples of a batch, not collated. With a seeder, each sample begins with its own seed."""
    dataset = recipe.dataset
    if not recipe.batched:
        if seeder is not None:
            seeder.seed_sample(seed, batch, 0, indices)
        return dataset[indices]
    get_items = getattr(dataset, "__getitems__", None)
    if get_items:
        if seeder is not None:
            seeder.seed_sample(seed, batch, 0, None)
        return get_items(indices)
    if seeder is None:
        return [dataset[index] for index in indices]
    samples = []
    for place, index in enumerate(indices):
        seeder.seed_sample(seed, batch, place, index)
        samples.append(dataset[index])
    return samples


def assemble(recipe: Recipe, samples: Any, allocate: Allocate, images: Optional[BatchImages] = None) -> Any:
    """Returns the batch of some samples. By default its arrays are from `allocate`, and `images` gets those to decode."""
    if recipe.collate_fn is None:
        return default_collate(samples, allocate, recipe.rows, images)
    refuse_encoded(samples, recipe.batched)
    return recipe.collate_fn(samples)


def refuse_encoded(samples: Any, batched: bool) -> None:
    """Raises TypeError if the first sample has an image for the daemon to decode."""
    if has_encoded(samples[:1] if batched and isinstance(samples, list) else samples):
        raise TypeError(f"DataLoader: a sample has a pinfeed.EncodedImage, and nothing decodes it here: {ADVICE}")
