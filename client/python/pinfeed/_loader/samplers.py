# SPDX-License-Identifier: Apache-2.0
"""Samplers for a loader without torch: torch's own three, with NumPy. With torch, a loader uses torch's."""

from __future__ import annotations

from typing import Any, Iterator, List

import numpy

from .._base.checks import shown, to_integer
from .._base.errors import invalid
from .._base.optional_torch import torch_or_none


class SequentialSampler:
    """0, 1, 2, ..."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler:
    """A permutation, another one each time. `generator`: a numpy.random.Generator, or None for NumPy's global state."""

    def __init__(self, data_source: Any, generator: Any = None) -> None:
        self.data_source = data_source
        self.generator = generator
        if len(data_source) == 0:
            raise invalid("num_samples should be a positive integer value, but got num_samples=0: the dataset is empty and cannot be shuffled")

    def __iter__(self) -> Iterator[int]:
        permutation: Any = numpy.random.permutation if self.generator is None else self.generator.permutation
        yield from permutation(len(self.data_source)).tolist()

    def __len__(self) -> int:
        return len(self.data_source)


class BatchSampler:
    """Lists of `batch_size` indices of another sampler."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        size = to_integer(batch_size)
        if size is None or size <= 0:
            raise invalid(f"batch_size should be a positive integer value, but got batch_size={shown(batch_size)}")
        self.sampler = sampler
        self.batch_size = size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[List[Any]]:
        batch: List[Any] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        samples = len(self.sampler)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


class InfiniteSampler:
    """None for ever: the indices of a dataset that has none."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def default_sampler(dataset: Any, shuffle: bool, generator: Any) -> Any:
    torch = torch_or_none()
    if shuffle:
        return (RandomSampler if torch is None else torch.utils.data.RandomSampler)(dataset, generator=generator)
    return (SequentialSampler if torch is None else torch.utils.data.SequentialSampler)(dataset)


def default_batch_sampler(sampler: Any, batch_size: int, drop_last: bool) -> Any:
    torch = torch_or_none()
    return (BatchSampler if torch is None else torch.utils.data.BatchSampler)(sampler, batch_size, drop_last)
