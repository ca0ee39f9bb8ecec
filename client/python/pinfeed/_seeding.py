# SPDX-License-Identifier: Apache-2.0
"""Seeds of the random number generators that datasets use: ``random``, NumPy's and torch's global ones.

In: a number that the trainer drew for the epoch, and which worker, batch and sample it is. Out: the generators,
seeded. A sample's seed does not depend on the worker, so neither do its random transforms.
"""

from __future__ import annotations

import array
import ctypes
import functools
import random
import struct
from typing import Any, List, Optional, Tuple

from ._checks import to_integer
from ._torch import torch_or_none

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


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
    import numpy

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
        ("numpy", _numpy_state()),
    ]
    torch = torch_or_none()
    return states if torch is None else [*states, ("torch", torch.get_rng_state().numpy().tobytes())]


def set_global_states(states: List[Tuple[str, Any]]) -> None:
    import numpy

    torch = torch_or_none()
    for name, state in states:
        if name == "random":
            version, words, gauss = state
            random.setstate((version, tuple(array.array("I", words)), gauss))
        elif name == "numpy":
            kind, words, *rest = state
            numpy.random.set_state((kind, numpy.frombuffer(words, numpy.uint32) if isinstance(words, bytes) else words, *rest))  # type: ignore[arg-type]
        elif torch is not None:
            torch.set_rng_state(torch.from_numpy(numpy.frombuffer(state, numpy.uint8).copy()))


def _numpy_state() -> Any:
    """Returns what `numpy.random.get_state` returns, with the words as bytes where that is quicker."""
    import numpy

    memory = _numpy_memory()
    state = None if memory is None else memory.read()
    return numpy.random.get_state() if state is None else state


class _NumpyMemory:
    """The memory of NumPy's global generator. `numpy.random.get_state` makes a Python number of each of its 624 words.

    Borrows the generator, which lives as long as NumPy. Threads: any.
    """

    _WORDS = 4 * 624
    _PLACE = struct.Struct("@i")  # behind the words: how many of them were drawn
    _NORMAL = struct.Struct("@i4xd")  # whether there is a second normal number of a pair, and that number

    def __init__(self) -> None:
        """Raises LookupError if this NumPy's objects are not as they are known here."""
        import numpy

        trial = numpy.random.RandomState(1)
        offset = self._find_normal(trial)
        self._generator: Any = getattr(numpy.random.get_state, "__self__")  # noqa: B009 - which its type does not have
        self._bits = self._generator._bit_generator
        self._words = self._bits.ctypes.state_address
        self._normal = id(self._generator) + offset
        state: Any = numpy.random.get_state()
        name, key, *rest = state
        if type(self._generator) is not type(trial) or self.read() != (name, key.tobytes(), *rest):
            raise LookupError

    def _find_normal(self, trial: Any) -> int:
        """Returns the offset of `_NORMAL` in a generator: where a number appears that is set."""
        name, key, place, _, _ = trial.get_state()
        contents = []
        for has, number in ((1, 0.8437051), (0, -1.3905286)):
            trial.set_state((name, key, place, has, number))
            contents.append(ctypes.string_at(id(trial), type(trial).__basicsize__))
            offset = contents[-1].find(struct.pack("@d", number)) - 8
            if offset < 0 or self._NORMAL.unpack_from(contents[-1], offset) != (has, number):
                raise LookupError
        if self._NORMAL.unpack_from(contents[0], offset) != (1, 0.8437051):
            raise LookupError
        return offset

    def read(self) -> Any:
        """Returns the state; None if the generator has other bits by now (`numpy.random.set_bit_generator`)."""
        bits = self._bits
        if self._generator._bit_generator is not bits:
            return None
        with bits.lock:
            memory = ctypes.string_at(self._words, self._WORDS + self._PLACE.size)
            normal = ctypes.string_at(self._normal, self._NORMAL.size)
        return ("MT19937", memory[: self._WORDS], *self._PLACE.unpack_from(memory, self._WORDS), *self._NORMAL.unpack(normal))


@functools.lru_cache(maxsize=None)
def _numpy_memory() -> Optional[_NumpyMemory]:
    """Returns the memory to read; None if this NumPy's is not known."""
    try:
        return _NumpyMemory()
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


class Seeder:
    """Seeds the generators of a worker. Threads: one."""

    def __init__(self) -> None:
        torch = torch_or_none()
        self._seed_torch = None if torch is None else torch.default_generator.manual_seed
        import numpy.random

        self._seed_numpy = numpy.random.seed
        self._batch = -1, -1  # the latest epoch's seed and batch, and their hash
        self._batch_hash = 0

    def seed_worker(self, base_seed: int, worker: int) -> int:
        """Seeds for a worker's start exactly as torch's workers are seeded. Returns the seed."""
        import numpy.random

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
