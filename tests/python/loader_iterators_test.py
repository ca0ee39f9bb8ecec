# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` with iterators and states of one's own: what it asks of them is what torch's asks."""

import itertools
import multiprocessing
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from loader_datasets import Numbers  # noqa: E402

import pinfeed  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_is_left", "feeds")


class Cursor:
    """Its own iterator, which begins anew when it is asked for one."""

    def __init__(self, steps):
        self.steps = steps

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        self.at += 1
        if self.at > len(self.steps):
            raise StopIteration
        return self.steps[self.at - 1]


class CursorStream(Cursor, torch.utils.data.IterableDataset):
    pass


class OnlyNext:
    """Its iterator has no `__iter__`."""

    def __init__(self, steps):
        self.steps = steps

    def __iter__(self):
        cursor = iter(Cursor(self.steps))
        return type("Bare", (), {"__next__": lambda _self: next(cursor)})()


class OnlyNextStream(OnlyNext, torch.utils.data.IterableDataset):
    pass


@pytest.mark.parametrize("workers", [0, 1])
def test_iterators_are_asked_for_once(workers):
    for stream in (CursorStream, OnlyNextStream):
        loader = pinfeed.DataLoader(stream(list(range(6))), 2, num_workers=workers)
        assert [batch.tolist() for _ in range(2) for batch in loader] == 2 * [[0, 1], [2, 3], [4, 5]]
    for sampler in (Cursor, OnlyNext):
        loader = pinfeed.DataLoader(Numbers(6), batch_sampler=sampler([[3, 1], [0], [5, 4, 2]]), num_workers=workers)
        assert [batch.tolist() for _ in range(2) for batch in loader] == 2 * [[3, 1], [0], [5, 4, 2]]


class Foreign(torch.utils.data.IterableDataset):
    """Has the state of another library."""

    def __iter__(self):
        return iter(range(4))

    def state_dict(self, num_samples, from_beginning):
        raise AssertionError("with arguments of its own")

    def load_state_dict(self, state):
        raise AssertionError("not ours")


class Abstract(Foreign):
    def state_dict(self):
        raise NotImplementedError


@pytest.mark.parametrize("dataset", [Foreign, Abstract])
@pytest.mark.parametrize("workers", [0, 1])
def test_states_of_other_libraries_are_left_alone(dataset, workers):
    loader = pinfeed.DataLoader(dataset(), 2, num_workers=workers)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    resumed = pinfeed.DataLoader(dataset(), 2, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in iterator] == [[2, 3]]
    resumed.load_state_dict(loader.state_dict())  # from between two epochs
    assert [batch.tolist() for batch in resumed] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_with_other_parameters_is_told(workers):
    loader = pinfeed.DataLoader(Foreign(), 2, num_workers=workers)
    with pytest.warns(UserWarning, match="of Foreign take other parameters, so that its state is not part of this one"):
        loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()
        pinfeed.DataLoader(Abstract(), 2, num_workers=workers).state_dict()


class WaitsFor:
    """8 samples, of which the first waits for an event."""

    def __init__(self, asked, event):
        self.asked = asked
        self.event = event

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 0:
            self.asked.set()
            assert self.event.wait(30)
        return index


def say_next(iterator, pipe):
    """In a forked child."""
    with pytest.raises(pinfeed.Error) as refusal:
        next(iterator)
    pipe.send(str(refusal.value))


@pytest.mark.parametrize("taken", [0, 1])
def test_a_forked_child_is_told_to_begin_an_iterator_of_its_own(taken):
    iterator = iter(pinfeed.DataLoader(Numbers(10), num_workers=1))
    list(itertools.islice(iterator, taken))
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=say_next, args=(iterator, theirs))
    child.start()
    theirs.close()
    assert ours.poll(60) and "this iterator belongs to the parent process; a forked child must begin its own: iter(loader)" in ours.recv()
    child.join()
    assert sum(1 for _ in iterator) == 10 - taken


def test_two_threads_in_next_are_told():
    asked, event = threading.Event(), threading.Event()
    batches = iter(pinfeed.DataLoader(WaitsFor(asked, event), batch_size=2))  # loaded inside of next
    first = []
    thread = threading.Thread(target=lambda: first.append(next(batches)))
    thread.start()
    assert asked.wait(30)
    with pytest.raises(RuntimeError, match="another thread is in next"):
        next(batches)
    event.set()
    thread.join()
    assert [batch.tolist() for batch in [*first, *batches]] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("workers", [0, 2])
def test_subclasses_may_replace_what_makes_the_iterator(workers):
    def of(base):
        class Filtering(base):
            def _get_iterator(self):
                return map(lambda batch: batch + 100, super()._get_iterator())

        class Repeating(base):
            def __iter__(self):
                for _ in range(2):
                    yield from super().__iter__()

        return [[batch.tolist() for batch in kind(range(6), batch_size=3, num_workers=workers)] for kind in (Filtering, Repeating)]

    assert of(pinfeed.DataLoader) == of(torch.utils.data.DataLoader)


def test_an_index_sampler_of_a_subclass_is_refused():
    class Own(pinfeed.DataLoader):
        @property
        def _index_sampler(self):
            return [[0, 1]]

    with pytest.raises(pinfeed.InvalidArgumentError, match="Own has an _index_sampler of its own, which is not used here: give it as sampler or batch_sampler"):
        Own(range(6))


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_profiler_sees_the_loader(workers):
    loader = pinfeed.DataLoader(range(6), batch_size=3, num_workers=workers)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert len(list(loader)) == 2
    (count,) = [each.count for each in profile.key_averages() if each.key.startswith("enumerate(DataLoader)#")]
    assert count == 3
