# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` without workers: its arguments and batches beside torch's, its state, and the parts that need no daemon."""

import gc
import os
import pathlib
import pickle
import random
import re
import warnings

import numpy
import pytest

torch = pytest.importorskip("torch")

from loader_datasets import STRUCTURES, Batched, Numbers, Stream, all_same, pair, place_of_worker, randoms, tensor  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed import _index_log, _loader_state, _pinning, _samplers, _seeding  # noqa: E402

TorchLoader = torch.utils.data.DataLoader


def seeded(number=3):
    return torch.Generator().manual_seed(number)


# ---- beside torch's -----------------------------------------------------------------------------------------------------------------

ARGUMENTS = [
    lambda: {},
    lambda: {"batch_size": 4},
    lambda: {"batch_size": 4, "drop_last": True},
    lambda: {"batch_size": None},
    lambda: {"batch_size": 3, "shuffle": True},
    lambda: {"batch_size": 3, "shuffle": True, "generator": seeded()},
    lambda: {"batch_size": 3, "sampler": [5, 1, 1, 9]},
    lambda: {"batch_size": 3, "sampler": torch.utils.data.SubsetRandomSampler(range(4, 12))},
    lambda: {"batch_size": 5, "sampler": torch.utils.data.WeightedRandomSampler([1.0] * 14, 20)},
    lambda: {"batch_sampler": [[3], [1, 2], []][:2]},
    lambda: {"batch_size": 2, "collate_fn": list},
    lambda: {"batch_size": None, "collate_fn": repr},
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_batches_are_torchs(structure, arguments):
    dataset = Numbers(14, STRUCTURES[structure])
    loaders = [kind(dataset, **arguments()) for kind in (TorchLoader, pinfeed.DataLoader)]
    epochs = []
    for loader in loaders:
        torch.manual_seed(11)
        epochs.append([list(loader) for _ in range(2)])
    assert all_same(*epochs)
    assert len(loaders[0]) == len(loaders[1]) == len(epochs[1][0])


def test_random_transforms_use_the_callers_generators_as_in_torch():
    results = []
    for kind in (TorchLoader, pinfeed.DataLoader):
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)
        results.append(list(kind(Numbers(9, randoms), 2, shuffle=True)))
    assert all_same(*results)


def test_a_dataset_with_getitems_is_asked_for_whole_batches():
    assert [batch.tolist() for batch in pinfeed.DataLoader(Batched(5), 2)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("arguments", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}])
def test_iterable_datasets_are_as_in_torch(arguments):
    loaders = [kind(Stream(10), **arguments) for kind in (TorchLoader, pinfeed.DataLoader)]
    assert all_same(*loaders) and len(loaders[0]) == len(loaders[1])


def test_a_wrong_length_of_an_iterable_dataset_is_told():
    loader = pinfeed.DataLoader(Stream(5, said=2), batch_size=1)
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="was reported to be 2"):
        assert len(list(loader)) == 5


def test_an_exception_of_the_dataset_costs_its_batch_only():
    def fails_once(index):
        if index == 3:
            raise KeyError("three")
        return index

    iterator = iter(pinfeed.DataLoader(Numbers(8, fails_once), 2))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(KeyError, match="three"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[4, 5], [6, 7]]


def test_there_is_no_worker_here():
    assert pinfeed.get_worker_info() is None
    assert next(iter(pinfeed.DataLoader(Numbers(1, place_of_worker))))[2].tolist() == [-1]


# ---- arguments and attributes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"persistent_workers": True},
        {"prefetch_factor": 3},
        {"shuffle": True, "sampler": [0]},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_sampler": [[0]], "shuffle": True},
        {"batch_sampler": [[0]], "sampler": [0]},
        {"batch_sampler": [[0]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "spoon"},
        {"num_workers": 1, "multiprocessing_context": 3},
    ],
)
def test_what_torch_refuses_is_refused_in_its_words(arguments):
    with pytest.raises((ValueError, TypeError)) as theirs:
        TorchLoader(Numbers(4), **arguments)
    with pytest.raises(theirs.type) as ours:
        pinfeed.DataLoader(Numbers(4), **arguments)
    assert str(ours.value).split()[:2] == str(theirs.value).split()[:2]


@pytest.mark.parametrize("name, value", [("shuffle", True), ("sampler", [0]), ("batch_sampler", [[0]])])
def test_an_iterable_dataset_has_no_order(name, value):
    with pytest.raises(ValueError, match=f"DataLoader with IterableDataset: expected unspecified {name} option"):
        pinfeed.DataLoader(Stream(3), **{name: value})


@pytest.mark.parametrize("path", ["/data/pets", pathlib.Path("/data/pets"), ""])
def test_a_path_in_place_of_a_dataset_is_refused_with_advice(path):
    with pytest.raises(pinfeed.InvalidArgumentError) as refused:
        pinfeed.DataLoader(path)
    said = str(refused.value)
    assert said.startswith(f"dataset: {path!r} is a path: pinfeed.open(path, batch_size=...)") and "a Dataset class" in said


def test_bytes_and_a_dataset_that_has_a_path_are_datasets():
    class InAFile(Numbers):
        def __fspath__(self):
            return "/data/numbers"

    assert values(pinfeed.DataLoader(InAFile(3), 2)) == [[0, 1], [2]]
    assert values(pinfeed.DataLoader(b"abc", 2)) == [[97, 98], [99]]


def test_datapipes_are_refused_with_advice():
    for pipe in (torch.utils.data.datapipes.iter.IterableWrapper(range(4)), torch.utils.data.datapipes.map.SequenceWrapper(range(4))):
        with pytest.raises(ValueError, match="DataPipe.*use that class, or give"):
            pinfeed.DataLoader(pipe)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"num_workers": "two"}, "num_workers option should be non-negative.*'two'"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor option should be at least 1"),
        ({"timeout": 3}, "timeout option needs num_workers > 0"),
        ({"max_batch_bytes": 0}, "max_batch_bytes: 0 is not a whole number"),
        ({"seeding": "none"}, 'seeding: \'none\' is not "sample"'),
        ({"address": 7}, "address: 7 is not the path"),
    ],
)
def test_other_faults_name_the_argument(arguments, text):
    with pytest.raises(pinfeed.InvalidArgumentError, match=text):
        pinfeed.DataLoader(Numbers(4), **arguments)


def test_the_attributes_are_torchs():
    dataset = Numbers(4)
    arguments = {"batch_size": 2, "drop_last": True, "generator": seeded(), "num_workers": 1, "timeout": 3, "worker_init_fn": print, "multiprocessing_context": "fork"}
    arguments.update(persistent_workers=True, pin_memory=True)
    ours, theirs = pinfeed.DataLoader(dataset, **arguments), TorchLoader(dataset, **arguments)
    for name in ["dataset", "collate_fn", "prefetch_factor", *arguments]:
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("sampler", "batch_sampler"):
        assert type(getattr(ours, name)) is type(getattr(theirs, name))
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(ours, name, 1)
    ours.collate_fn = list
    assert pinfeed.DataLoader[int] is not None


def test_too_many_workers_are_told():
    with pytest.warns(UserWarning, match="This DataLoader will create 5000 worker processes in total"):
        pinfeed.DataLoader(Numbers(4), num_workers=5000)


# ---- page-locked memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_gpu_that_cannot_be_used_is_told_before_anything_begins(monkeypatch, workers):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    loader = pinfeed.DataLoader(Numbers(4), shuffle=True, num_workers=workers, device="cuda:1")
    monkeypatch.setattr("pinfeed._loader.WorkerPool", None)  # none may begin
    before = torch.get_rng_state()
    cases = [
        (None, None, 0, "UnavailableError: DataLoader: device=\"cuda:1\": PyTorch .* is built without CUDA; install a build with it"),
        ("12.4", False, 0, "UnavailableError: DataLoader: device=\"cuda:1\": PyTorch .* finds no usable GPU .*; nvidia-smi shows whether the driver works"),
        ("12.4", True, 1, "InvalidArgumentError: DataLoader: device=\"cuda:1\": there is no GPU 1; this process sees 1 "),
    ]
    for version, available, count, text in cases:
        monkeypatch.setattr(torch.version, "cuda", version)
        if version is not None:
            monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
            monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        with pytest.raises(pinfeed.Error) as failed:
            iter(loader)
        said = f"{type(failed.value).__name__}: {failed.value}"
        assert re.match(text, said) and said.endswith(". Without device, batches stay in the host's memory"), said
    assert torch.equal(torch.get_rng_state(), before)


class Pinnable:
    def __init__(self, pinned=False):
        self.pinned = pinned

    def pin_memory(self):
        return Pinnable(True)


def test_without_an_accelerator_nothing_is_pinned():
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert [batch.tolist() for batch in pinfeed.DataLoader(Numbers(2), pin_memory=True)] == [[0], [1]]


def test_everything_in_a_batch_is_pinned():
    pinned = _pinning.pin({"a": [Pinnable(), "text"], "b": (Pinnable(), 3), "c": collections_pair(Pinnable(), b"x")}, None, torch.Tensor)
    assert pinned["a"][0].pinned and pinned["a"][1] == "text"
    assert type(pinned["b"]) is list and pinned["b"][0].pinned and pinned["b"][1] == 3
    assert type(pinned["c"]).__name__ == "Point" and pinned["c"].x.pinned


def collections_pair(x, y):
    from loader_datasets import Point

    return Point(x, y)


# ---- without torch ------------------------------------------------------------------------------------------------------------------


def test_the_samplers_without_torch_yield_what_torchs_do():
    for count, size, drop_last in [(10, 3, False), (10, 3, True), (9, 3, True), (0, 3, False), (2, 3, True)]:
        ours = _samplers.BatchSampler(_samplers.SequentialSampler(range(count)), size, drop_last)
        theirs = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(count)), size, drop_last)
        assert list(ours) == list(theirs) and len(ours) == len(theirs)
    generator = numpy.random.default_rng(1)
    shuffled = _samplers.RandomSampler(range(50), generator)
    first, second = list(shuffled), list(shuffled)
    assert sorted(first) == sorted(second) == list(range(50)) and first != second and len(shuffled) == 50
    for wrong in (lambda: _samplers.RandomSampler([]), lambda: _samplers.BatchSampler([], 0, False)):
        with pytest.raises(ValueError, match="should be a positive integer value"):
            wrong()


# ---- the index log ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log():
    made = []

    def make(first=0):
        writer = _index_log.IndexLog(first)
        reader = _index_log.IndexLogReader(os.dup(writer.fileno()))
        made.extend([writer, reader])
        return writer, reader

    yield make
    for each in made:
        each.close()


def test_what_is_appended_can_be_read(log):
    writer, reader = log()
    lists = [[1, 2, 3], [], 7, [("a", 1)], torch.arange(3)]
    for indices in lists:
        writer.append(indices)
    writer.append_end()
    assert all_same([reader.read(batch) for batch in range(5)], lists)
    assert reader.read(5) is reader.read(500) is _index_log.END
    assert (writer.appended, writer.end) == (5, 5)


def test_a_batch_that_is_not_in_the_log_is_an_error(log):
    writer, reader = log(first=10)
    writer.append([1])
    assert reader.read(10) == [1]
    for absent in (9, 11, 10 + _index_log.ENTRIES):
        with pytest.raises(pinfeed.Error, match=f"batch {absent} is not in the index log"):
            reader.read(absent)


def test_indices_that_cannot_be_pickled_leave_the_log_as_it_was(log):
    writer, reader = log()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        writer.append([lambda: 0])
    writer.append([1])
    assert reader.read(0) == [1]


def test_tensors_in_the_log_are_as_large_as_they_are(log):
    indices = torch.arange(100000)
    writer, reader = log(0)
    for batch in ([indices[3], indices[99999]], [indices[5:7]], indices[9], torch.tensor(True)):
        writer.append(batch)
        assert all_same([reader.read(writer.appended - 1)], [batch])
    assert os.fstat(writer.fileno()).st_size < 1 << 18


def test_the_ring_wraps_around(log):
    writer, reader = log()
    for batch in range(3 * _index_log.ENTRIES):
        writer.append([batch])
        assert reader.read(batch) == [batch]
        writer.consume(batch)
    with pytest.raises(pinfeed.Error, match="is not in the index log"):
        reader.read(0)


def test_the_ring_is_never_overfilled(log):
    writer, reader = log()
    for batch in range(_index_log.ENTRIES):
        writer.append(batch)
    with pytest.raises(pinfeed.Error, match="not consumed"):
        writer.append(0)
    writer.consume(1)
    writer.append("last")
    assert reader.read(_index_log.ENTRIES) == "last"


def test_the_memory_of_consumed_batches_is_returned(log):
    writer, reader = log()
    indices = list(range(10000, 60000))
    used = []
    for batch in range(200):
        writer.append(indices)
        writer.consume(batch)
        used.append(os.fstat(writer.fileno()).st_blocks * 512)
        assert reader.read(batch) == indices
    assert os.fstat(writer.fileno()).st_size > 20e6 and max(used) < 4e6


# ---- seeds --------------------------------------------------------------------------------------------------------------------------


def drawn():
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_a_samples_seed_depends_on_epoch_batch_place_and_index():
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    seeder = _seeding.Seeder()
    results = []
    for values in [(1, 2, 3, 4), (2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5), (1, 2, 3, "x"), (1, 2, 3, 4), (1, 2, 3, numpy.int64(4))]:
        seeder.seed_sample(*values)
        results.append(drawn())
    assert results[0] == results[6] == results[7]
    for column in range(3):
        assert len({result[column] for result in results[:6]}) == 6
    random.setstate(before[0])
    numpy.random.set_state(before[1])
    torch.set_rng_state(before[2])


def test_the_mixer_is_splitmix64():
    assert _seeding.mix(0) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 from 0
    assert _seeding.mix(-1) == _seeding.mix(2**64 - 1)
    assert len({_seeding.mix(1, place) & 0xFFFFFFFF for place in range(10000)}) > 9990


# ---- state --------------------------------------------------------------------------------------------------------------------------


def values(loader):
    return [batch.tolist() for batch in loader]


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


def test_a_state_of_other_arguments_is_refused_and_one_that_does_not_tell_them_is_not():
    loader = pinfeed.DataLoader(Numbers(12), 2)
    iterator = advanced(loader, 2)
    state = loader.state_dict()
    for other, text in (
        (pinfeed.DataLoader(Numbers(12), 3), "with batch_size=2, and this loader has batch_size=3"),
        (pinfeed.DataLoader(Numbers(12), 2, shuffle=True), "with shuffle=False, and this loader has shuffle=True"),
    ):
        with pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
    old = pinfeed.DataLoader(Numbers(12), 2)
    old.load_state_dict({**state, "start": {name: value for name, value in state["start"].items() if name != "arguments"}})
    assert values(old) == values(iterator)


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


@pytest.mark.parametrize("rows", [{"ragged": True}, {"pad": 0}])
def test_rows_may_have_the_other_byte_order(rows):
    batch = next(iter(pinfeed.DataLoader([numpy.arange(length, dtype=">f4") for length in (1, 2)], 2, **rows)))
    assert (batch.values.tolist() if "ragged" in rows else batch.tolist()) == ([0, 0, 1] if "ragged" in rows else [[0, 0], [0, 1]])


def test_numpys_generators_have_a_state_too():
    generator = numpy.random.default_rng(4)
    sampler = _samplers.RandomSampler(range(9), generator)
    order = _loader_state.Order(sampler, None, None)
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
