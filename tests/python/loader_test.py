# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` without workers: its arguments and batches beside torch's, and the parts that need no daemon."""

import collections
import errno
import logging
import multiprocessing.context
import os
import pathlib
import pickle
import random
import re
import sys
import threading
import types
import warnings

import numpy
import pytest

torch = pytest.importorskip("torch")

from loader_datasets import STRUCTURES, Batched, Numbers, Stream, all_same, place_of_worker, randoms, seeded, values  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._worker import index_log, producer, seeding  # noqa: E402
from pinfeed._base import abi, daemon  # noqa: E402
from pinfeed._loader import arguments, pinning, samplers, worker_pool  # noqa: E402

TorchLoader = torch.utils.data.DataLoader


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


def test_threads_as_workers_are_refused_with_advice():
    class Threads(multiprocessing.context.BaseContext):  # as MONAI's ThreadDataLoader has them
        Process = threading.Thread

    with pytest.raises(TypeError, match="Process of Threads is no process.*num_workers=0, or a context of"):
        pinfeed.DataLoader(Numbers(4), num_workers=2, multiprocessing_context=Threads())


@pytest.mark.parametrize("loader", [pinfeed.DataLoader, torch.utils.data.DataLoader])
def test_a_daemonic_process_has_no_workers_as_with_torch(monkeypatch, loader):
    monkeypatch.setattr(abi, "load", lambda: None)
    monkeypatch.setitem(multiprocessing.process.current_process()._config, "daemon", True)  # as in a worker of multiprocessing.Pool
    with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
        iter(loader(Numbers(4), num_workers=1))


@pytest.mark.parametrize("module", ["threading", "select"])
def test_workers_are_refused_where_gevent_has_patched_the_process(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "gevent.monkey", types.SimpleNamespace(is_module_patched=lambda name: name == module))
    with pytest.raises(pinfeed.Error, match=r"num_workers=2: gevent has replaced threads or select.*Give num_workers=0"):
        iter(pinfeed.DataLoader(Numbers(4), num_workers=2))
    assert len(list(pinfeed.DataLoader(Numbers(4)))) == 4


def test_a_library_that_is_missing_is_told_in_the_trainer_before_a_worker_starts(monkeypatch):
    monkeypatch.setenv("PINFEED_LIBRARY", "/missing/libpinfeed.so")
    monkeypatch.setattr(abi, "_loaded", [])
    started = []
    monkeypatch.setattr(worker_pool.WorkerPool, "_start", lambda self, number: started.append(number))
    with pytest.raises(pinfeed.NotFoundError, match="loading libpinfeed from /missing/libpinfeed.so failed.*PINFEED_LIBRARY names it"):
        iter(pinfeed.DataLoader(Numbers(4), num_workers=1))
    assert started == []


def test_a_limit_of_processes_is_told_with_advice(monkeypatch):
    monkeypatch.setattr(abi, "load", lambda: None)
    monkeypatch.setattr(worker_pool.WorkerPool, "_start_process", refused_by_the_system)
    with pytest.raises(pinfeed.ResourceExhaustedError, match=r"start DataLoader worker 0: .*the system refuses another process.*ulimit -u.*fewer workers"):
        iter(pinfeed.DataLoader(Numbers(4), num_workers=1))
    monkeypatch.setattr(daemon.subprocess, "Popen", refused_by_the_system)
    with pytest.raises(pinfeed.ResourceExhaustedError, match=r"starting the daemon .* failed: .*ulimit -u"):
        daemon._PrivateDaemon("no daemon", logging.INFO)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="before Python 3.9 it is a system call")
def test_a_sandbox_without_pidfds_is_told_with_advice(monkeypatch):
    def denied(_pid):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "pidfd_open", denied)
    with pytest.raises(PermissionError, match=r"pidfd_open of process \d+: Operation not permitted: a DataLoader with workers needs.*`pinfeed doctor`.*num_workers=0"):
        producer.pidfd_open(os.getpid())


def refused_by_the_system(*_arguments, **_options):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


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
        ({"num_workers": 1, "retry_after": 1, "generator": torch.Generator()}, 'seeding="worker", the default with generator .give seeding="sample"'),
        ({"num_workers": 1, "retry_after": 1, "worker_init_fn": print}, 'seeding="worker", the default with worker_init_fn .give seeding="sample"'),
        ({"num_workers": 1, "retry_after": 1, "seeding": "worker"}, 'seeding="worker": a batch depends'),
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


def test_ranks_that_a_framework_would_split_torchs_loader_over_are_told_of_equal_samples(monkeypatch):
    monkeypatch.setattr(arguments, "_told_of_ranks", False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    data = torch.utils.data.TensorDataset(torch.arange(8))
    split = torch.utils.data.DistributedSampler(data, 2, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(pinfeed.DataLoader(data, 2, shuffle=True))  # nothing splits torch's either
        state = types.SimpleNamespace(AcceleratorState=types.SimpleNamespace(_shared_state={}))
        monkeypatch.setitem(sys.modules, "accelerate.state", state)  # as Transformers imports it
        list(pinfeed.DataLoader(data, 2, shuffle=True))
        monkeypatch.setitem(sys.modules, "lightning.pytorch", types.ModuleType("lightning.pytorch"))
        list(pinfeed.DataLoader(data, 2, sampler=split))
        list(pinfeed.DataLoader(data, batch_sampler=[[0, 1]]))
    with pytest.warns(UserWarning, match="each of the 2 ranks gets all samples of this DataLoader: lightning.pytorch splits.*sampler=torch.utils.data.DistributedSampler"):
        list(pinfeed.DataLoader(data, 2, shuffle=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(pinfeed.DataLoader(data, 2))  # once
    monkeypatch.setattr(arguments, "_told_of_ranks", False)
    state.AcceleratorState._shared_state["device"] = "cpu"  # by an Accelerator
    with pytest.warns(UserWarning, match="DataLoader: accelerate splits torch's loaders") as told:
        list(pinfeed.DataLoader(data, 2))
    assert told[0].filename == __file__


def test_too_many_workers_are_told():
    with pytest.warns(UserWarning, match="This DataLoader will create 5000 worker processes in total"):
        loader = pinfeed.DataLoader(Numbers(4), num_workers=5000)
    loader.num_workers = 6000
    with pytest.warns(UserWarning, match="This DataLoader will create 6000 worker processes in total"):
        loader.check_worker_number_rationality()


# ---- page-locked memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_gpu_that_cannot_be_used_is_told_before_anything_begins(monkeypatch, workers):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    loader = pinfeed.DataLoader(Numbers(4), shuffle=True, num_workers=workers, device="cuda:1")
    monkeypatch.setattr("pinfeed._loader.data_loader.WorkerPool", None)  # none may begin
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
    for device in ("", "cuda", "cuda:0"):
        with pytest.warns(UserWarning, match="no accelerator is found"):
            assert [batch.tolist() for batch in pinfeed.DataLoader(Numbers(2), pin_memory=True, pin_memory_device=device)] == [[0], [1]]


def test_everything_in_a_batch_is_pinned():
    pinned = pinning.pin({"a": [Pinnable(), "text"], "b": (Pinnable(), 3), "c": collections_pair(Pinnable(), b"x")}, None)
    assert pinned["a"][0].pinned and pinned["a"][1] == "text"
    of_torch = torch.utils.data._utils.pin_memory.pin_memory((3,))  # a tuple, or a list in older versions
    assert type(pinned["b"]) is type(of_torch) and pinned["b"][0].pinned and pinned["b"][1] == 3
    assert type(pinned["c"]).__name__ == "Point" and pinned["c"].x.pinned


def test_containers_are_pinned_with_their_attributes():
    class Items(list):
        note = None

    class Entries(collections.UserDict):
        note = None

    class Attributes(dict):
        def __init__(self, **items):
            super().__init__(**items)
            self.__dict__ = self

    items, entries, wrapped, attributes = Items([Pinnable()]), collections.defaultdict(int, a=Pinnable()), Entries(a=Pinnable()), Attributes(a=Pinnable())
    items.note = wrapped.note = "kept"
    pinned = pinning.pin([items, entries, wrapped, attributes], None)
    assert type(pinned[2]) is Entries and pinned[2].note == "kept" and pinned[2]["a"].pinned and not wrapped["a"].pinned
    assert pinned[3].a is pinned[3]["a"] and pinned[3].a.pinned and not attributes.a.pinned
    assert type(pinned[0]) is Items and pinned[0].note == "kept" and pinned[0][0].pinned
    assert pinned[1].default_factory is int and pinned[1]["a"].pinned
    assert not items[0].pinned and not entries["a"].pinned


def collections_pair(x, y):
    from loader_datasets import Point

    return Point(x, y)


# ---- without torch ------------------------------------------------------------------------------------------------------------------


def test_the_samplers_without_torch_yield_what_torchs_do():
    for count, size, drop_last in [(10, 3, False), (10, 3, True), (9, 3, True), (0, 3, False), (2, 3, True)]:
        ours = samplers.BatchSampler(samplers.SequentialSampler(range(count)), size, drop_last)
        theirs = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(count)), size, drop_last)
        assert list(ours) == list(theirs) and len(ours) == len(theirs)
    generator = numpy.random.default_rng(1)
    shuffled = samplers.RandomSampler(range(50), generator)
    first, second = list(shuffled), list(shuffled)
    assert sorted(first) == sorted(second) == list(range(50)) and first != second and len(shuffled) == 50
    for wrong in (lambda: samplers.RandomSampler([]), lambda: samplers.BatchSampler([], 0, False)):
        with pytest.raises(ValueError, match="should be a positive integer value"):
            wrong()


# ---- the index log ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log():
    made = []

    def make(first=0):
        writer = index_log.IndexLog(first)
        reader = index_log.IndexLogReader(os.dup(writer.fileno()))
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
    assert reader.read(5) is reader.read(500) is index_log.END
    assert (writer.appended, writer.end) == (5, 5)


def test_a_batch_that_is_not_in_the_log_is_an_error(log):
    writer, reader = log(first=10)
    writer.append([1])
    assert reader.read(10) == [1]
    for absent in (9, 11, 10 + index_log.ENTRIES):
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
    for batch in range(3 * index_log.ENTRIES):
        writer.append([batch])
        assert reader.read(batch) == [batch]
        writer.consume(batch)
    with pytest.raises(pinfeed.Error, match="is not in the index log"):
        reader.read(0)


def test_the_ring_is_never_overfilled(log):
    writer, reader = log()
    for batch in range(index_log.ENTRIES):
        writer.append(batch)
    with pytest.raises(pinfeed.Error, match="not consumed"):
        writer.append(0)
    writer.consume(1)
    writer.append("last")
    assert reader.read(index_log.ENTRIES) == "last"


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
    seeder = seeding.Seeder()
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
    assert seeding.mix(0) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 from 0
    assert seeding.mix(-1) == seeding.mix(2**64 - 1)
    assert len({seeding.mix(1, place) & 0xFFFFFFFF for place in range(10000)}) > 9990
