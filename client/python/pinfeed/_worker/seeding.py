# SPDX-License-Identifier: Apache-2.0
"""Seeds of the random number generators that datasets use: ``random``, NumPy's and torch's global ones.

In: a number that the trainer drew for the epoch, and which worker, batch and sample it is. Out: the generators,
seeded. A sample's seed does not depend on the worker, so neither do its random transforms.
"""

from __future__ import annotations

import array
import random
from typing import Any, List, Optional, Tuple

import numpy

from .._base.checks import to_integer
from .._base.optional_torch import torch_or_none

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_ARRAY = "array"  # stands before the dtype and the bytes of one


def mix(*numbers: int, state: int = 0) -> int:
    """Returns a hash of some whole numbers, of 64 bits: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) over
    each of them. `state`: the hash of those before.
    """
    for number in numbers:
        state = (state + (number & _MASK) + _GAMMA) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def draw_base_seed(generator: Any) -> int:
    """Draws an epoch's number from the trainer's generator, as torch's DataLoader does. Without torch it is NumPy's."""
    torch = torch_or_none()
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    if generator is not None:
        return int(generator.integers(0, 2**63 - 1))
    return int(numpy.random.randint(0, 2**63 - 1, dtype=numpy.int64))


def global_states() -> List[Tuple[str, Any]]:
    """Returns the states of the global generators, for `set_global_states`. Quick to make and to pickle, since it is
    done for each batch.
    """
    version, words, gauss = random.getstate()
    states: List[Tuple[str, Any]] = [
        ("random", (version, array.array("I", words).tobytes(), gauss)),
        ("numpy", without_arrays(numpy.random.get_state())),
    ]
    torch = torch_or_none()
    return states if torch is None else [*states, ("torch", torch.get_rng_state().numpy().tobytes())]


def without_arrays(state: Any) -> Any:
    """Returns the state of a NumPy generator with bytes in place of its arrays, which torch.load refuses by default."""
    if isinstance(state, numpy.ndarray):
        return (_ARRAY, state.dtype.str, state.tobytes())
    if isinstance(state, dict):
        return {name: without_arrays(value) for name, value in state.items()}
    return tuple(map(without_arrays, state)) if isinstance(state, tuple) else state


def with_arrays(state: Any) -> Any:
    """Returns the state that `without_arrays` was given, or `state` if that was written without it."""
    if isinstance(state, tuple) and state[:1] == (_ARRAY,):
        return numpy.frombuffer(state[2], state[1])
    if isinstance(state, dict):
        return {name: with_arrays(value) for name, value in state.items()}
    return tuple(map(with_arrays, state)) if isinstance(state, tuple) else state


def set_global_states(states: List[Tuple[str, Any]]) -> None:
    torch = torch_or_none()
    for name, state in states:
        if name == "random":
            version, words, gauss = state
            random.setstate((version, tuple(array.array("I", words)), gauss))
        elif name == "numpy":
            numpy.random.set_state(with_arrays(state))
        elif torch is not None:
            torch.set_rng_state(torch.from_numpy(numpy.frombuffer(state, numpy.uint8).copy()))


class Seeder:
    """Seeds the generators of a worker. Threads: one."""

    def __init__(self) -> None:
        torch = torch_or_none()
        self._seed_torch = None if torch is None else torch.default_generator.manual_seed
        self._seed_numpy = numpy.random.seed
        self._batch = -1, -1  # the latest epoch's seed and batch, and their hash
        self._batch_hash = 0

    def seed_worker(self, base_seed: int, worker: int) -> int:
        """Seeds for a worker's start exactly as torch's workers are seeded. Returns the seed."""
        seed = base_seed + worker
        random.seed(seed)
        # torch's seed of NumPy is what NumPy's own SeedSequence makes of these words.
        words = [worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
        self._seed_numpy(numpy.random.SeedSequence(words).generate_state(4))
        if self._seed_torch is not None:
            self._seed_torch(seed & 0x7FFFFFFFFFFFFFFF)
        return seed

    def seed_sample(self, epoch_seed: int, batch: int, place: int, index: Any) -> None:
        """Seeds for a sample: the place `place` of a batch, with this index. The same index at two places, as from a
        sampler with replacement, gets two seeds.
        """
        number: Optional[int] = index if type(index) is int else to_integer(index)
        if self._batch != (epoch_seed, batch):
            self._batch, self._batch_hash = (epoch_seed, batch), mix(epoch_seed, batch)
        seed = mix(place, -1 if number is None else number, state=self._batch_hash)
        random.seed(seed)
        self._seed_numpy(seed & 0xFFFFFFFF)
        if self._seed_torch is not None:
            self._seed_torch(seed >> 1)
