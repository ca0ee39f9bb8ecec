# SPDX-License-Identifier: Apache-2.0
"""Datasets, iterators and samplers whose states and errors are unusual, and loaders that are interrupted: no sample is lost or comes twice, and no
worker or descriptor stays behind.

Long because: each kind of dataset and iterator is a class.
"""

import gc
import io
import os
import pickle
import random
import signal
import threading

import numpy
import pytest

torch = pytest.importorskip("torch")

from loader_datasets import OnceInBody, values  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._loader import produced_feed, supervisor, worker_pool  # noqa: E402
from pinfeed._worker.iterable import _copied  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_is_left", "feeds")

PLACES = pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)


class Stream(torch.utils.data.IterableDataset):
    """Six numbers by a position that outlives its iterators."""

    at = 0

    def __iter__(self):
        while self.at < 6:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Buffered(Stream):
    """Keeps and changes the list that it was given with its state."""

    def __init__(self):
        self.buffer = []

    def __iter__(self):
        while True:
            while len(self.buffer) < 4 and self.at < 6:
                self.buffer.append(self.at)
                self.at += 1
            if not self.buffer:
                break
            yield self.buffer.pop(0)
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "buffer": list(self.buffer)}

    def load_state_dict(self, state):
        self.at, self.buffer = state["at"], state["buffer"]


class BeginsAnew(Stream):
    """Is its own iterator, and begins at the start whenever it is asked for one."""

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == 6:
            raise StopIteration
        self.at += 1
        return self.at - 1


class FirstBad(BeginsAnew):
    """The first sample of each epoch is an error."""

    def __next__(self):
        number = super().__next__()
        if number == 0:
            raise ValueError("the first one is bad")
        return number


class TellsOfItsLatestIterator(OnceInBody):
    """A loaded state is that of the next iterator, and a state that of the latest one."""

    def __init__(self):
        super().__init__(5)  # so that the last batch says that it is the last


class Order:
    """An iterator with a state."""

    def __init__(self, epoch):
        self.order, self.at = random.Random(epoch).sample(range(6), 6), 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 6:
            raise StopIteration
        self.at += 1
        return self.order[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Ordered(Stream):
    """The dataset's state is its epoch, its iterator's the place in it."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        return Order(self.epoch)

    def state_dict(self):
        return {"epoch": self.epoch - 1}  # begins this epoch again

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


def loader(dataset, **options):
    return pinfeed.DataLoader(dataset, 2, **options)


def resumed(streams, dataset, **options):
    another = loader(dataset(), **options)
    another.load_state_dict(pickle.loads(pickle.dumps(streams.state_dict())))
    return another


def outcome(iterable):
    """Batches, and what was raised in their place."""
    iterator, seen = iter(iterable), []
    while True:
        try:
            seen.append(next(iterator).tolist())
        except ValueError as error:
            seen.append(str(error).split("\n", maxsplit=1)[0].rsplit(":", maxsplit=1)[-1].strip())
        except StopIteration:
            return seen


@PLACES
@pytest.mark.parametrize("dataset", [Stream, Buffered, FirstBad, BeginsAnew, TellsOfItsLatestIterator, Ordered])
def test_a_state_from_between_two_epochs_begins_the_next(dataset, options):
    streams = loader(dataset(), **options)
    outcome(streams)
    again = resumed(streams, dataset, **options)
    assert outcome(again) == outcome(streams)
    assert outcome(again) == outcome(streams)


@PLACES
@pytest.mark.parametrize("dataset", [Stream, Buffered, BeginsAnew])
def test_a_state_from_the_middle_of_an_epoch_goes_on_there(dataset, options):
    streams = loader(dataset(), **options)
    iterator = iter(streams)
    next(iterator)
    again = resumed(streams, dataset, **options)
    assert values(again) == values(iterator) == [[2, 3], [4, 5]]
    assert values(again) == values(streams) == [[0, 1], [2, 3], [4, 5]]


def test_an_error_that_passes_is_not_taken_for_a_bad_first_sample():
    fails = []

    class Passing(TellsOfItsLatestIterator):
        def __iter__(self):
            if fails:
                raise fails.pop()
            yield from super().__iter__()

    streams = loader(Passing())
    values(streams)
    again = resumed(streams, Passing)
    fails.append(OSError("a server was away"))
    assert values(again) == values(streams) and not fails


def test_what_the_program_sets_behind_an_epoch_that_was_resumed_at_its_end_is_in_the_state():
    class Numbered(Stream):
        epoch = 0

        def __iter__(self):
            for number in super().__iter__():
                if number < 5:  # so that the last batch says that it is the last
                    yield number + 1000 * self.epoch

        def state_dict(self):
            return {"at": self.at, "epoch": self.epoch}

        def load_state_dict(self, state):
            self.at, self.epoch = state["at"], state["epoch"]

    streams = loader(Numbered())
    iterator = iter(streams)
    for _ in range(3):
        next(iterator)
    again = resumed(streams, Numbered)
    assert values(again) == []
    again.dataset.epoch = 7
    assert values(resumed(again, Numbered))[0] == values(again)[0] == [7000, 7001]


@PLACES
def test_a_state_before_the_first_batch_of_an_epoch_that_follows_a_state(options):
    streams = loader(TellsOfItsLatestIterator(), **options)
    iterator = iter(streams)
    for _ in range(3):
        next(iterator)
    again = resumed(streams, TellsOfItsLatestIterator, **options)
    begun = iter(again)
    third = resumed(again, TellsOfItsLatestIterator, **options)
    assert values(begun) == values(third) == []
    assert values(third)[0] == [1000, 1001]


@PLACES
def test_a_state_that_was_loaded_and_saved_behind_the_last_batch_begins_the_next_epoch(options):
    streams = loader(TellsOfItsLatestIterator(), **options)
    iterator = iter(streams)
    for _ in range(3):
        next(iterator)
    once = resumed(streams, TellsOfItsLatestIterator, **options)
    assert values(once) == values(iterator) == []
    twice = resumed(once, TellsOfItsLatestIterator, **options)
    assert values(twice) == values(streams) == [[1000, 1001], [1002, 1003], [1004]]


@PLACES
def test_both_a_dataset_and_its_iterator_have_a_state(options):
    streams = loader(Ordered(), **options)
    values(streams)
    iterator = iter(streams)
    next(iterator)
    assert values(resumed(streams, Ordered, **options)) == values(iterator)


def test_a_sampler_that_raises_once_counts_no_batch():
    class Sampler:
        raised, number = False, 0

        def __iter__(self):
            return self

        def __next__(self):
            if self.number == 2 and not self.raised:
                self.raised = True
                raise OSError("once")
            if self.number == 5:
                raise StopIteration
            self.number += 1
            return [2 * self.number - 2, 2 * self.number - 1]

    batches = pinfeed.DataLoader(range(12), batch_sampler=Sampler())
    iterator = iter(batches)
    assert values([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="once"):
        next(iterator)
    assert next(iterator).tolist() == [4, 5]
    assert batches.state_dict()["batches"] == 3


def test_an_epoch_that_cannot_begin_leaves_the_position_of_persistent_workers():
    class Sampler(torch.utils.data.BatchSampler):
        fails = False

        def __iter__(self):
            if self.fails:
                raise OSError("no list")
            return super().__iter__()

    sampler = Sampler(range(12), 2, False)
    batches = pinfeed.DataLoader(range(12), batch_sampler=sampler, num_workers=1, persistent_workers=True)
    iterator = iter(batches)
    next(iterator)
    next(iterator)
    before = batches.state_dict()
    sampler.fails = True
    with pytest.raises(OSError, match="no list"):
        iter(batches)
    assert (batches.state_dict()["running"], batches.state_dict()["batches"]) == (True, 2) == (before["running"], before["batches"])


@pytest.mark.parametrize("persistent", [False, True])
def test_an_interrupt_while_an_epoch_ends_leaves_nothing_behind(persistent, monkeypatch):
    close, calls = produced_feed.ProducedFeed.close, []

    def interrupted(feed):
        calls.append(feed)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return close(feed)

    monkeypatch.setattr(produced_feed.ProducedFeed, "close", interrupted)
    batches = loader(range(8), num_workers=2, persistent_workers=persistent, seeding="worker", timeout=30)
    with pytest.raises(KeyboardInterrupt):
        values(batches)
    assert not batches.state_dict()["running"]
    assert values(batches) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    del batches
    gc.collect()
    assert not any(thread.name == "pinfeed-workers" for thread in threading.enumerate())


def test_an_interrupt_while_the_supervisor_ends_leaves_no_thread(monkeypatch):
    join, run, start = threading.Thread.join, supervisor.Supervisor._run, supervisor.Supervisor.start
    ended, may_end, alive = [], threading.Event(), []

    def interrupted(thread, *arguments):
        if thread.name == "pinfeed-workers":
            ended.append(thread)
            if len(ended) == 1:
                raise KeyboardInterrupt
            may_end.set()
        return join(thread, *arguments)

    def slow_to_end(served):
        run(served)
        may_end.wait(30)

    def recorded(served):
        alive.append([thread.is_alive() for thread in ended])
        start(served)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    monkeypatch.setattr(supervisor.Supervisor, "_run", slow_to_end)
    monkeypatch.setattr(supervisor.Supervisor, "start", recorded)
    batches = loader(range(8), num_workers=2, persistent_workers=True, timeout=30)
    with pytest.raises(KeyboardInterrupt):
        values(batches)
    assert values(batches) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert alive[0] == [] and alive[1] and not any(alive[1])


def test_the_garbage_collector_finalises_no_pipe_before_its_pool():
    batches = loader(range(8), num_workers=2, persistent_workers=True)
    assert len(values(batches)) == 4
    pipes, processes = worker_pool._kept[id(batches._pool)]
    assert pipes is batches._pool.pipes and processes is batches._pool.processes
    key = id(batches._pool)
    del batches
    gc.collect()
    assert key not in worker_pool._kept and all(pipe.closed for pipe in pipes)


class KeepsTheLoadedState(Stream):
    """As Hugging Face's: each iteration of the state's epoch number begins at the loaded state."""

    def __init__(self):
        self._starting_state_dict, self.at = None, 0

    def __iter__(self):
        self.at = self._starting_state_dict["at"] if self._starting_state_dict else 0
        while self.at < 6:
            self.at += 1
            yield self.at - 1

    def load_state_dict(self, state):
        self._starting_state_dict = state


class UsesUpTheLoadedState(BeginsAnew):
    """Is its own iterator; a loaded state is that of the next one."""

    loaded = None

    def __iter__(self):
        self.at, self.loaded = self.loaded or 0, None
        return self

    def load_state_dict(self, state):
        self.loaded = state["at"]


class TellsWhatItWasGiven(UsesUpTheLoadedState):
    """Also before it goes on from there."""

    def state_dict(self):
        return {"at": self.at if self.loaded is None else self.loaded}


class TellsANumber(TellsWhatItWasGiven):
    """The state is no dict, and above the numbers of which Python has one object each."""

    def state_dict(self):
        return 1000 + super().state_dict()["at"]

    def load_state_dict(self, state):
        self.loaded = state - 1000


class MakesItsPlaceInIter(torch.utils.data.IterableDataset):
    """Cannot be given a state before that."""

    def __iter__(self):
        self.place = {"at": 0}
        return self

    def __next__(self):
        if self.place["at"] == 6:
            raise StopIteration
        self.place["at"] += 1
        return self.place["at"] - 1

    def state_dict(self):
        return dict(self.place)

    def load_state_dict(self, state):
        self.place.update(state)


class TellsOfItsFile(BeginsAnew):
    """Its state is that of a file, which is opened for the iterator."""

    begin = 0

    def __iter__(self):
        self.file = io.BytesIO(bytes(range(6)))
        self.file.seek(self.begin)
        self.begin = 0
        return self

    def __next__(self):
        byte = self.file.read(1)
        if not byte:
            raise StopIteration
        return byte[0]

    def state_dict(self):
        return {"at": self.file.tell()}

    def load_state_dict(self, state):
        self.begin = state["at"]


class IsToldToGoOn(BeginsAnew):
    """Begins anew unless a state was loaded since the iterator before."""

    resumed = False

    def __iter__(self):
        self.at, self.resumed = self.at if self.resumed else 0, False
        return self

    def load_state_dict(self, state):
        self.at, self.resumed = state["at"], True


class OpensForTheFirstSample(BeginsAnew):
    """Does so where the state says, and once an epoch."""

    source = None

    def __iter__(self):
        return self

    def __next__(self):
        if self.source is None:
            self.source = iter(range(self.at, 6))
        try:
            number = next(self.source)
        except StopIteration:
            self.source, self.at = None, 0
            raise
        self.at = number + 1
        return number


class OpensItsSource(BeginsAnew):
    """Is its own iterator; counts what it gives, and opens its source when it is asked for one."""

    source = None

    def __iter__(self):
        self.source = iter(range(6))
        self.at = 0 if self.at == 6 else self.at
        return self

    def __next__(self):
        number = next(self.source)
        self.at += 1
        return number

    def load_state_dict(self, state):
        self.at = state["at"]
        if self.source is not None:
            self.source = iter(range(self.at, 6))


class FillsABuffer(OpensForTheFirstSample):
    """Its samples go through an array, and a file in memory, of its own."""

    def __init__(self):
        self.file, self.buffer = io.BytesIO(bytes(range(6))), torch.zeros(1, dtype=torch.int64).numpy()

    def __next__(self):
        self.file.seek(super().__next__())
        self.buffer[0] = self.file.read(1)[0]
        return self.buffer.copy()[0]


class HasALargeState(TellsWhatItWasGiven):
    """More than the pipe to a worker has room for."""

    def state_dict(self):
        return {**super().state_dict(), "ballast": bytes(80_000)}


class OpensASourceOfLabels(OpensItsSource):
    """Its samples do not tell where it is."""

    def __next__(self):
        return super().__next__() % 2


@PLACES
def test_a_dataset_that_makes_its_place_in_iter_begins_behind_a_state_from_before_that(options):
    loader, resumed = (pinfeed.DataLoader(MakesItsPlaceInIter(), 1, **options) for _ in range(2))
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    assert [values(resumed), values(resumed)] == [values(loader), values(loader)]


@PLACES
@pytest.mark.parametrize("taken", [1, 4, 6])
def test_a_dataset_that_makes_its_place_in_iter_gets_its_state_behind_that(options, taken):
    loader, resumed = (pinfeed.DataLoader(MakesItsPlaceInIter(), 1, **options) for _ in range(2))
    iterator = iter(loader)
    if taken == 6:  # and the end
        values(iterator)
    else:
        [next(iterator) for _ in range(taken)]
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    assert [values(resumed), values(resumed)] == [values(loader if taken == 6 else iterator), values(loader)]


@PLACES
def test_a_dataset_that_makes_its_place_in_iter_gets_a_state_from_behind_a_short_batch(options):
    loader, resumed = (pinfeed.DataLoader(MakesItsPlaceInIter(), 4, **options) for _ in range(2))
    iterator = iter(loader)
    for _ in range(2 * max(1, options.get("num_workers", 0))):  # all batches, and not the end
        next(iterator)
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    assert [values(resumed), values(resumed)] == [values(iterator), values(loader)]


class CannotBeLoaded(MakesItsPlaceInIter):
    def load_state_dict(self, state):
        raise OSError("the shard is gone")


@PLACES
def test_an_error_of_a_load_behind_the_last_batch_is_told(options):
    loader, resumed = (pinfeed.DataLoader(CannotBeLoaded(), 4, **options) for _ in range(2))
    iterator = iter(loader)
    for _ in range(2):  # all batches, and not the end
        next(iterator)
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    with pytest.raises((OSError, RuntimeError), match="the shard is gone"):
        values(resumed)


OWN = [UsesUpTheLoadedState, TellsWhatItWasGiven, TellsANumber, TellsOfItsFile, IsToldToGoOn, OpensForTheFirstSample, FillsABuffer, OpensItsSource, HasALargeState, OpensASourceOfLabels]


@PLACES
@pytest.mark.parametrize("kind", [KeepsTheLoadedState, *OWN])
@pytest.mark.parametrize("taken", [0, 2, 6])
def test_later_epochs_do_not_begin_at_the_loaded_state(kind, options, taken):
    loader, resumed = (pinfeed.DataLoader(kind(), 1, **options) for _ in range(2))
    iterator = iter(loader)
    if taken == 6:
        values(iterator)
        iterator = None
    for _ in range(taken if iterator is not None else 0):
        next(iterator)
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    whole = [values(loader if iterator is None else iterator), values(loader), values(loader)]
    assert [values(resumed) for _ in range(3)] == whole and len(whole[2]) == 6


class Descriptor:
    """Closes the file when it goes, as wrappers of C handles do."""

    def __init__(self, path):
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self):
        os.close(self.number)


class ReadsByADescriptor(TellsWhatItWasGiven):
    """Of a copy's end the original would not hear."""

    def __init__(self, path):
        self.file = Descriptor(path)

    def __next__(self):
        return os.pread(self.file.number, 1, super().__next__())[0]


@PLACES
def test_a_dataset_whose_copy_would_close_its_file_is_not_copied(options, tmp_path):
    (tmp_path / "numbers").write_bytes(bytes(range(6)))
    loader, resumed = (pinfeed.DataLoader(ReadsByADescriptor(tmp_path / "numbers"), 1, **options) for _ in range(2))
    assert values(loader) == [[number] for number in range(6)]
    resumed.load_state_dict(loader.state_dict())
    assert [values(resumed) for _ in range(2)] == [values(loader) for _ in range(2)]


def test_a_copied_dataset_shares_files_that_are_mapped_also_through_views(tmp_path):
    numbers = numpy.memmap(tmp_path / "numbers", numpy.uint8, "w+", shape=(6,))
    dataset = Stream()
    dataset.views = [numbers, numpy.asarray(numbers)[1:], numpy.zeros(3)]
    shared = [numpy.shares_memory(ours, theirs) for ours, theirs in zip(dataset.views, _copied(dataset).views)]
    assert shared == [True, True, False]


def test_an_iterator_that_could_not_be_made_leaves_the_position():
    dataset = Stream()
    loader = pinfeed.DataLoader(dataset, 2)
    values(loader)
    before = loader.state_dict()
    assert not before["running"]
    dataset.__class__ = type("Away", (Stream,), {"__iter__": lambda self: iter(None)})
    with pytest.raises(TypeError):
        iter(loader)
    gc.collect()
    assert {**loader.state_dict(), "base_seed": before["base_seed"]} == before


def test_a_state_that_the_program_loads_itself_is_not_forgotten():
    dataset = KeepsTheLoadedState()
    dataset.load_state_dict({"at": 4})
    assert [values(pinfeed.DataLoader(dataset, 1)) for _ in range(2)] == [[[4], [5]], [[4], [5]]]


class DrawsItsOrder(torch.utils.data.IterableDataset):
    """Draws an order when it is asked for an iterator, which has a state."""

    def __iter__(self):
        iterator = Order(0)
        iterator.order = torch.randperm(6).tolist()
        return iterator


class DrawsItsOwnOrder(TellsWhatItWasGiven):
    """The same, and is its own iterator."""

    def __iter__(self):
        self.order = torch.randperm(6).tolist()
        return super().__iter__()

    def __next__(self):
        return self.order[super().__next__()]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize("kind", [DrawsItsOrder, DrawsItsOwnOrder])
@pytest.mark.parametrize("taken", [0, 1])
def test_an_order_that_is_drawn_for_the_iterator_is_that_of_the_state(taken, kind, options):
    torch.manual_seed(1)
    loader, resumed = (pinfeed.DataLoader(kind(), 2, **options) for _ in range(2))
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state, generator = pickle.loads(pickle.dumps(loader.state_dict())), torch.get_rng_state()
    expected = values(iterator), torch.rand(1), values(loader)
    resumed.load_state_dict(state)
    torch.set_rng_state(generator)
    assert (values(resumed), torch.rand(1), values(resumed)) == expected


class DrawsItsOrderLate(Stream):
    """A position is all that the state has of an order."""

    def __iter__(self):
        order = torch.randperm(50).tolist()
        while self.at < 50:
            self.at += 1
            yield order[self.at - 1]


@PLACES
def test_an_order_that_is_drawn_for_the_first_sample_is_not_that_of_the_state(options):
    loader, resumed = (pinfeed.DataLoader(DrawsItsOrderLate(), 1, **options) for _ in range(2))
    iterator = iter(loader)
    for _ in range(10):
        next(iterator)
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    assert len(values(resumed)) == 40 and values(resumed) != values(iterator)


class Draws:
    """Adds a random number to each position. Its state has the generators that they are from."""

    at = 0

    def __next__(self):
        if self.at == 6:
            raise StopIteration
        self.at += 1
        return self.at + (random.random() + numpy.random.random() + torch.rand(()).item()) / 3

    def __iter__(self):
        return self

    def state_dict(self):
        return {"at": self.at, "generators": (random.getstate(), numpy.random.get_state(), torch.get_rng_state())}

    def load_state_dict(self, state):
        self.at, (python, of_numpy, of_torch) = state["at"], state["generators"]
        random.setstate(python)
        numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)


class DrawsInItsIterator(torch.utils.data.IterableDataset):
    def __iter__(self):
        return Draws()


class DrawsItself(Draws, torch.utils.data.IterableDataset):
    pass


class DrawsAsItYields(DrawsItself):
    __next__ = None

    def __iter__(self):
        while self.at < 6:
            yield Draws.__next__(self)
        self.at = 0


@PLACES
@pytest.mark.parametrize("kind", [DrawsInItsIterator, DrawsItself, DrawsAsItYields])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_the_global_generators_that_a_datasets_state_has_are_those_behind_it(taken, kind, options):
    loader, resumed = (pinfeed.DataLoader(kind(), 2, **options) for _ in range(2))
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    expected = values(iterator)
    resumed.load_state_dict(state)
    assert values(resumed) == expected and len(expected) == 3 - taken


class Raises(Stream):
    def state_dict(self):
        raise RuntimeError("call enable_checkpointing() first")


class CannotBeSent(Stream):
    def state_dict(self):
        return {"at": self.at, "lock": threading.Lock()}


@PLACES
@pytest.mark.parametrize("kind, why", [(Raises, "call enable_checkpointing"), (CannotBeSent, "pickle")])
def test_a_dataset_that_cannot_tell_its_state_serves_those_who_do_not_ask(kind, why, options):
    loader = pinfeed.DataLoader(kind(), 2, **options)
    assert values(loader) == values(loader) == [[0, 1], [2, 3], [4, 5]]
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(Exception, match=why):
        loader.state_dict()
    del iterator
    gc.collect()
    if not options.get("persistent_workers"):
        with pytest.raises(Exception, match=why):
            loader.state_dict()


@pytest.mark.parametrize("keeps", [False, True])
def test_an_epoch_ends_whose_last_batch_was_taken(keeps):
    """Also if nobody asked for another one."""
    loader, resumed = (pinfeed.DataLoader(Ordered(), 4) for _ in range(2))
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    if not keeps:
        del iterator
    following = iter(loader)
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    assert values(resumed) == values(following)


class DrawsOrder(torch.utils.data.IterableDataset):
    """Draws its order as an epoch begins, and again as a state is loaded, which has the position only."""

    resumed = False

    def _begin(self):
        self.order, self.at = torch.randperm(8).tolist(), 0

    def __iter__(self):
        if not self.resumed:
            self._begin()
        self.resumed = False
        return self._samples()

    def _samples(self):
        while self.at < 8:
            self.at += 1
            yield self.order[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self._begin()
        self.at, self.resumed = state["at"], True


@pytest.mark.parametrize("workers", [0, 1])
def test_an_order_that_is_drawn_as_a_state_is_loaded_is_that_of_the_state(workers):
    loader = pinfeed.DataLoader(DrawsOrder(), 2, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    resumed = pinfeed.DataLoader(DrawsOrder(), 2, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    torch.manual_seed(99)
    assert values(resumed) == [batch.tolist() for batch in iterator]
