# SPDX-License-Identifier: Apache-2.0
"""The state of a `pinfeed.DataLoader`: where it continues, with which samples and random numbers, and what is refused.

Long because: each kind of sampler, and each way to stop, is a test of the one promise that no sample is lost or repeated.
"""

import gc
import io
import pickle
import random
import re
import warnings

import numpy
import pytest

torch = pytest.importorskip("torch")

from loader_datasets import Numbers, Point, Stream, pair, seeded, tensor, values  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._worker import epoch_state  # noqa: E402
from pinfeed._loader import samplers  # noqa: E402


def shuffled(**arguments):
    return pinfeed.DataLoader(Numbers(20), 3, shuffle=True, **arguments)


def advanced(loader, batches):
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return iterator


@pytest.mark.parametrize("batches", [0, 1, 4, 7])
def test_a_state_continues_the_epoch_and_then_the_next(batches):
    whole = shuffled(generator=seeded())
    first, second = values(whole), values(whole)
    loader = shuffled(generator=seeded())
    iterator = advanced(loader, batches)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    other = shuffled(generator=seeded(99))
    other.load_state_dict(state)
    assert values(other) == first[batches:] == values(iterator)
    assert values(other) == second


GENERATORS = {
    "global": lambda: None,
    "torch's": seeded,
    "PCG64": lambda: numpy.random.default_rng(4),
    "MT19937": lambda: numpy.random.Generator(numpy.random.MT19937(4)),
    "RandomState": lambda: numpy.random.RandomState(4),
}


@pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "seeding": "worker"}])
def test_a_state_is_what_torch_loads_by_default(options, generator):
    """torch.load takes bytes and tensors, but no arrays, since 2.6 (weights_only=True)."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            assert module.split(".")[0] == "torch" or (module, name) in [("_codecs", "encode"), ("collections", "OrderedDict")], f"{module}.{name}"
            return super().find_class(module, name)

    def made():
        numpy.random.seed(2)
        drawn = generator()
        order = {"shuffle": True, "generator": drawn} if drawn is None or isinstance(drawn, torch.Generator) else {"sampler": samplers.RandomSampler(range(20), drawn)}
        return pinfeed.DataLoader(Numbers(20), 3, **order, **options)

    torch.manual_seed(3)
    loader = made()
    rest = advanced(loader, 2)
    saved = pickle.dumps(loader.state_dict(), protocol=2)  # as torch.save does
    other = made()
    other.load_state_dict(Unpickler(io.BytesIO(saved)).load())
    assert values(other) == values(rest)


def test_a_state_with_an_array_still_continues():
    """As versions wrote it that kept NumPy's state as it is."""
    loader = shuffled(generator=seeded())
    rest = advanced(loader, 2)
    state = loader.state_dict()
    state["start"]["global"] = [(name, numpy.random.get_state() if name == "numpy" else value) for name, value in state["start"]["global"]]
    other = shuffled(generator=seeded(99))
    other.load_state_dict(state)
    assert values(other) == values(rest)


@pytest.mark.parametrize("how", ["break", "an exception", "closed by the next"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 2, "seeding": "worker"}])
def test_a_state_of_an_epoch_that_was_left_continues_it(how, options):
    if how != "break" and options.get("seeding"):
        return
    expected = values(shuffled(generator=seeded(), **options))
    loader = shuffled(generator=seeded(), **options)
    seen = []
    try:
        for batch in loader:
            seen.append(batch.tolist())
            if len(seen) == 3:
                if how == "an exception":
                    raise KeyboardInterrupt
                break
    except KeyboardInterrupt:
        pass
    del batch
    gc.collect()
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    assert state["running"] and state["batches"] == 3
    other = shuffled(generator=seeded(99), **options)
    other.load_state_dict(state)
    assert seen + values(other) == expected
    if how == "closed by the next":
        iterator = iter(loader)
        assert loader.state_dict()["batches"] == 0, "of the epoch that has begun"
        del iterator
    values(loader)
    assert not loader.state_dict()["running"]


def test_a_state_from_between_epochs_begins_the_next():
    loader = shuffled(generator=seeded())
    values(loader)
    state = loader.state_dict()
    other = shuffled(generator=seeded(99))
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert values(other) == values(loader)


def test_the_order_of_the_global_generator_is_resumed_and_the_generator_kept():
    torch.manual_seed(5)
    loader = shuffled()
    iterator = advanced(loader, 2)
    state, rest = loader.state_dict(), values(iterator)
    other = shuffled()
    other.load_state_dict(state)
    torch.manual_seed(6)
    before = torch.get_rng_state()
    assert values(other) == rest
    assert torch.equal(torch.get_rng_state(), before)


class CountingSampler:
    """Begins anew at `start`, which is its state."""

    start = 0

    def __iter__(self):
        return iter(range(self.start, self.start + 6))

    def __len__(self):
        return 6

    def state_dict(self):
        return {"start": self.start}

    def load_state_dict(self, state):
        self.start = state["start"]


def test_a_samplers_state_is_part_of_the_loaders():
    sampler = CountingSampler()
    sampler.start = 10
    loader = pinfeed.DataLoader(Numbers(99), 2, sampler=sampler)
    iterator = advanced(loader, 1)
    other = pinfeed.DataLoader(Numbers(99), 2, sampler=CountingSampler())
    other.load_state_dict(loader.state_dict())
    assert values(other) == values(iterator) == [[12, 13], [14, 15]]


class LiveSampler(CountingSampler):
    """Its state is an object that it goes on using."""

    def __init__(self):
        self.state = {"epochs": 0}

    def __iter__(self):
        self.state["epochs"] += 1
        return iter(range(10 * self.state["epochs"], 10 * self.state["epochs"] + 6))

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_samplers_state_that_changes_later_is_kept_as_it_was():
    loader = pinfeed.DataLoader(Numbers(99), 2, sampler=LiveSampler())
    iterator = advanced(loader, 1)
    state = loader.state_dict()
    rest = values(iterator)
    assert rest == [[12, 13], [14, 15]]
    for _ in range(2):
        other = pinfeed.DataLoader(Numbers(99), 2, sampler=LiveSampler())
        other.load_state_dict(state)
        assert values(other) == rest


def test_skipped_batches_are_not_loaded():
    loaded = []
    loader = pinfeed.DataLoader(Numbers(9, lambda index: loaded.append(index) or index), 3)
    iterator = advanced(loader, 2)
    state = loader.state_dict()
    del iterator, loaded[:]
    loader.load_state_dict(state)
    assert values(loader) == [[6, 7, 8]] and loaded == [6, 7, 8]


def test_an_iterable_dataset_is_resumed_by_reading_on():
    loader = pinfeed.DataLoader(Stream(7), 2)
    iterator = advanced(loader, 2)
    other = pinfeed.DataLoader(Stream(7), 2)
    other.load_state_dict(loader.state_dict())
    assert values(other) == values(iterator) == [[4, 5], [6]]


@pytest.mark.parametrize("state", [None, {}, {"version": 2, "running": True, "batches": 0, "start": {}}, {"version": 1, "running": True, "batches": -1, "start": {}}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(pinfeed.InvalidArgumentError, match="this is not the state of a loader"):
        shuffled().load_state_dict(state)


def test_a_state_without_what_it_needs_is_refused_when_it_is_loaded():
    loader = shuffled()
    iterator = advanced(loader, 1)
    state = loader.state_dict()
    assert iterator is not None  # otherwise the epoch is over
    for name in ("global", "generators"):
        start = {key: value for key, value in state["start"].items() if key != name}
        with pytest.raises(ValueError, match=f"it lacks '{name}'"):
            loader.load_state_dict({**state, "start": start})
    with pytest.raises(ValueError, match="it lacks 'base_seed'"):
        loader.load_state_dict({key: value for key, value in state.items() if key != "base_seed"})


def test_a_state_of_other_arguments_is_refused():
    loader = pinfeed.DataLoader(Numbers(12), 2)
    iterator = advanced(loader, 2)
    state = loader.state_dict()
    for other, text in (
        (pinfeed.DataLoader(Numbers(12), 3), "with batch_size=2, and this loader has batch_size=3"),
        (pinfeed.DataLoader(Numbers(12), 2, shuffle=True), "with shuffle=False, and this loader has shuffle=True"),
    ):
        with pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="it lacks 'arguments'"):
        loader.load_state_dict({**state, "start": {name: value for name, value in state["start"].items() if name != "arguments"}})
    iterator.close()


class Backwards:
    """Batches in an order of its own."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter([[index] for index in reversed(range(self.samples))])

    def __len__(self):
        return self.samples


RANDOM, SERIAL, DISTRIBUTED = torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler, torch.utils.data.DistributedSampler
SHUFFLED = {
    "shuffle": lambda data: {"shuffle": True},
    "some of them": lambda data: {"sampler": RANDOM(data, replacement=True, num_samples=8)},
    "weights": lambda data: {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * len(data), 8)},
    "ranks": lambda data: {"sampler": DISTRIBUTED(data, num_replicas=2, rank=0, seed=1)},
    "batches": lambda data: {"batch_size": 1, "batch_sampler": torch.utils.data.BatchSampler(RANDOM(data), 2, False)},
    "own batches": lambda data: {"batch_size": 1, "batch_sampler": Backwards(len(data))},
}
IN_ORDER = {
    "default": lambda data: {},
    "batches": lambda data: {"batch_size": 1, "batch_sampler": torch.utils.data.BatchSampler(SERIAL(data), 2, False)},
    "ranks": lambda data: {"sampler": DISTRIBUTED(data, num_replicas=2, rank=0, shuffle=False)},
}


def loader_of(samples, arguments):
    data = Numbers(samples)
    return pinfeed.DataLoader(data, **{"batch_size": 2, **arguments(data)})


@pytest.mark.parametrize("order", SHUFFLED)
def test_a_shuffled_epoch_of_another_length_is_not_continued(order):
    first = loader_of(11, SHUFFLED[order])
    iterator = advanced(first, 2)
    state = first.state_dict()
    rest = values(iterator)
    with pytest.raises(ValueError, match=r"with len\(dataset\)=11, and this loader has len\(dataset\)=12: .*some samples come twice and others never"):
        loader_of(12, SHUFFLED[order]).load_state_dict(state)
    same = loader_of(11, SHUFFLED[order])
    same.load_state_dict(state)
    assert values(same) == rest
    loader_of(12, SHUFFLED[order]).load_state_dict(first.state_dict())  # between two epochs


class ByEpoch:
    """Counts its epochs itself, and tells nobody."""

    def __init__(self, samples):
        self.samples, self.number = samples, 0

    def __iter__(self):
        self.number += 1
        return iter(torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.number)).tolist())

    def __len__(self):
        return self.samples


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("known", [False, True])
def test_an_order_that_the_sampler_no_longer_gives_is_not_continued(workers, known):
    def loader():
        data = Numbers(24)
        return pinfeed.DataLoader(data, 4, sampler=DISTRIBUTED(data, 1, 0, seed=1) if known else ByEpoch(24), num_workers=workers)

    first = loader()
    values(first)
    if known:
        first.sampler.set_epoch(3)
    iterator = advanced(first, 2)
    state = pickle.loads(pickle.dumps(first.state_dict()))
    rest = values(iterator)
    other = loader()
    other.load_state_dict(state)
    if known:  # DistributedSampler's epoch is part of the state
        assert values(other) == rest
        return
    with pytest.raises(ValueError, match="the first 2 batches had other samples than the sampler gives now.*set_epoch"):
        iter(other)
    assert other.sampler.number == 1
    assert values(other) == rest, "its second order is that of the state, which was not forgotten"


class FromAPlace:
    """Its state is a place in its epoch; a new epoch begins at the start."""

    def __init__(self):
        self.epoch, self.place = 0, 0

    def set_epoch(self, epoch):
        self.epoch, self.place = epoch, 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]

    def __iter__(self):
        return iter(range(self.place, 24))

    def __len__(self):
        return 24 - self.place


def test_a_samplers_own_state_goes_before_its_epoch():
    def loader():
        return pinfeed.DataLoader(Numbers(24), 4, sampler=FromAPlace())

    first = loader()
    first.sampler.place = 8
    iterator = advanced(first, 1)
    other = loader()
    other.load_state_dict(first.state_dict())
    assert values(other) == values(iterator) == [[12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23]]


def test_random_orders_that_begin_together_are_continued():
    """Each draws its order for its first batch, from one generator."""
    together = zip(shuffled(), shuffled())
    first, second = [shuffled(), shuffled()], [shuffled(), shuffled()]
    iterators = [iter(loader) for loader in first]
    seen = [[next(each).tolist() for _ in range(3)] for each in iterators]
    states = [loader.state_dict() for loader in first]
    for loader, state in zip(second, states):
        loader.load_state_dict(state)
    rest = [values(loader) for loader in second]
    assert rest == [values(each) for each in iterators]
    assert all(sorted(sum(before + behind, [])) == list(range(20)) for before, behind in zip(seen, rest))
    assert len(list(together)) == 7


def test_a_state_counts_a_batch_that_raised():
    def loader():
        return pinfeed.DataLoader(Numbers(20, lambda number: 1 // (number - 5)), 2)

    first = loader()
    iterator = iter(first)
    seen = []
    while len(seen) < 4:
        try:
            seen.append(next(iterator))
        except ZeroDivisionError:
            pass
    other = loader()
    other.load_state_dict(first.state_dict())
    assert first.state_dict()["batches"] == 5
    assert len(list(other)) == len(list(iterator)) == 5


def test_an_order_of_keys_that_are_no_numbers_is_continued_as_it_is():
    class Names:
        def __iter__(self):
            return iter("abcdef")

        def __len__(self):
            return 6

    loader = pinfeed.DataLoader({name: ord(name) for name in "abcdef"}, 2, sampler=Names())
    iterator = advanced(loader, 1)
    other = pinfeed.DataLoader(loader.dataset, 2, sampler=Names())
    other.load_state_dict(loader.state_dict())
    assert values(other) == values(iterator)


@pytest.mark.parametrize("order", IN_ORDER)
def test_an_epoch_in_order_goes_on_with_more_samples(order):
    first = loader_of(12, IN_ORDER[order])
    iterator = advanced(first, 2)
    longer = loader_of(16, IN_ORDER[order])
    longer.load_state_dict(first.state_dict())
    rest, more = values(iterator), values(longer)
    assert more[: len(rest)] == rest or order == "ranks"
    assert len(more) > len(rest)


@pytest.mark.parametrize("before, after, told", [(2, 1, None), (2, 0, "> 0, seeding=.sample"), (0, 2, "num_workers=0"), ("worker", 1, "worker"), (0, 0, None)])
def test_a_state_is_continued_and_random_numbers_of_another_origin_are_told(before, after, told):
    def loader(workers):
        return shuffled(num_workers=2, seeding="worker") if workers == "worker" else shuffled(num_workers=workers)

    first = loader(before)
    iterator = advanced(first, 1)
    other = loader(after)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.load_state_dict(first.state_dict())
    assert [bool(re.search(f"with .*{told}.*random transforms draw other numbers", str(each.message))) for each in caught] == [True] * bool(told)
    assert all(each.filename == __file__ for each in caught)
    assert values(other) == values(iterator)


def test_a_stream_that_became_shorter_than_its_state_is_an_error():
    loader = pinfeed.DataLoader(Stream(9))
    advanced_iterator = advanced(loader, 7)
    other = pinfeed.DataLoader(Stream(3))
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="the dataset ends before batch 7"):
        iter(other)
    assert len(list(advanced_iterator)) == 2


@pytest.mark.parametrize("rows", [{"ragged": "tokns"}, {"pad": {"tokns": 0}}, {"ragged": ["tokens", 3]}])
def test_a_name_that_no_sample_has_is_an_error(rows):
    loader = pinfeed.DataLoader([{"tokens": [1] * length} for length in (1, 2)], 2, **rows)
    with pytest.raises(ValueError, match="the samples have no .*, only .*'tokens'.*: correct the name"):
        next(iter(loader))


def test_fields_of_named_tuples_have_no_position():
    with pytest.raises(ValueError, match=r"the samples have no 0, only \['x', 'y'\]: correct the name"):
        next(iter(pinfeed.DataLoader([Point([1, 2], 3)], ragged=[0])))


@pytest.mark.parametrize("rows", [{"ragged": True}, {"pad": 0}])
def test_rows_may_have_the_other_byte_order(rows):
    batch = next(iter(pinfeed.DataLoader([numpy.arange(length, dtype=">f4") for length in (1, 2)], 2, **rows)))
    assert (batch.values.tolist() if "ragged" in rows else batch.tolist()) == ([0, 0, 1] if "ragged" in rows else [[0, 0], [0, 1]])


def test_numpys_generators_have_a_state_too():
    generator = numpy.random.default_rng(4)
    sampler = samplers.RandomSampler(range(9), generator)
    order = epoch_state.Order(sampler, None, None)
    state = order.begin(0, 0).state(3)
    expected = list(sampler)
    generator.random()
    assert list(order.resume(state).indices) == expected[3:]


def test_iterators_are_not_pickled():
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(iter(pinfeed.DataLoader(Numbers(3))))


def test_nothing_warns_without_cause():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(pinfeed.DataLoader(Numbers(6, pair), 2, shuffle=True))) == 3
        assert len(list(pinfeed.DataLoader(Numbers(6, tensor), 4))) == 2


class Drawn(torch.utils.data.Sampler):
    """Draws from a generator of Python's."""

    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        order = list(range(8))
        random.Random(self.generator.random() if hasattr(self.generator, "random") else 0).shuffle(order)
        return iter(order)

    def __len__(self):
        return 8


class Moody(Drawn):
    @property
    def generator(self):
        raise RuntimeError("not now")

    @generator.setter
    def generator(self, _value):
        pass

    def __iter__(self):
        return iter(range(8))


def test_samplers_may_have_generators_of_any_kind():
    loader = pinfeed.DataLoader(Numbers(8), 2, sampler=Drawn(random.Random(1)))
    iterator = iter(loader)
    next(iterator)
    resumed = pinfeed.DataLoader(Numbers(8), 2, sampler=Drawn(random.Random(2)))
    resumed.load_state_dict(loader.state_dict())
    assert values(resumed) == values(iterator)
    assert values(resumed) == values(loader)
    for sampler in (Drawn(x for x in ()), Drawn(print), Moody(None)):
        assert len(values(pinfeed.DataLoader(Numbers(8), 2, sampler=sampler))) == 4
