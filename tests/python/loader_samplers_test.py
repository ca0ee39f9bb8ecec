# SPDX-License-Identifier: Apache-2.0
"""Samplers with states of their own, and states from before an epoch's first batch: what follows is what would have followed, or it is refused.

Long because: each kind of sampler and dataset that readers thought of is a class.
"""

import itertools
import pickle

import numpy
import pytest

torch = pytest.importorskip("torch")

from loader_datasets import Once, values  # noqa: E402

import pinfeed  # noqa: E402

pytestmark = pytest.mark.usefixtures("feeds")


class PositionSampler(torch.utils.data.DistributedSampler):
    """As torchdata's: its state is how many it has given since its latest `__iter__`, and once behind `load_state_dict` it goes on from there."""

    given = 0
    loaded = None

    def __init__(self):
        super().__init__(range(96), num_replicas=1, rank=0, seed=5)

    def __iter__(self):
        self.given, self.loaded = self.loaded or 0, None
        for index in itertools.islice(super().__iter__(), self.given, None):
            self.given += 1
            yield index

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.loaded = state["given"]


class CountingSampler(torch.utils.data.Sampler):
    """Its state is the number of epochs."""

    epoch = 0

    def __init__(self):
        pass  # torch's does nothing, with an argument or without

    def __len__(self):
        return 12

    def __iter__(self):
        self.epoch += 1
        return iter(torch.randperm(12, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


class LazySampler:
    """Draws each index when it is asked for, from the global generator."""

    def __len__(self):
        return 12

    def __iter__(self):
        for _ in range(12):
            yield int(torch.randint(0, 1000, ()))


class Noisy:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(())])


def loader_of(sampler, inside, **options):
    if inside:
        return pinfeed.DataLoader(range(96), batch_sampler=torch.utils.data.BatchSampler(sampler, 4, True), **options)
    return pinfeed.DataLoader(range(96), 4, sampler=sampler, **options)


def saved(loader):
    return pickle.loads(pickle.dumps(loader.state_dict()))


def numbers(loader, sampler, epoch, batches=None):
    sampler.set_epoch(epoch)
    return [batch.tolist() for batch in itertools.islice(iter(loader), batches)]


LANE = {"num_workers": 1, "persistent_workers": True, "seeding": "worker"}


@pytest.mark.parametrize("inside, options", [(False, {}), (False, {"num_workers": 2}), (True, {}), (True, LANE)], ids=str)
@pytest.mark.parametrize("batches", [None, 0, 3, 24])
@pytest.mark.parametrize("left_early", [False, True], ids=["whole", "left early"])
def test_the_position_of_a_sampler_costs_no_sample(inside, options, batches, left_early):
    """A state from an epoch's start is that of a sampler at the end of the epoch before, or in the middle of it. `inside` a batch sampler, or not."""
    sampler = PositionSampler()
    loader = loader_of(sampler, inside, **options)
    for epoch in range(2):
        numbers(loader, sampler, epoch, 2 if left_early else None)
    sampler.set_epoch(2)
    if batches is None:
        state, rest = saved(loader), numbers(loader, sampler, 2)
    else:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        state, rest = saved(loader), values(iterator)
    other = PositionSampler()
    resumed = loader_of(other, inside, **options)
    if left_early and batches == 0:
        with pytest.raises(pinfeed.InvalidArgumentError, match="samples could be missing. Take a state behind a batch"):
            resumed.load_state_dict(state)
        return
    resumed.load_state_dict(state)
    if batches is None and left_early:  # of the epoch that was left
        assert values(resumed) == numbers(loader_of(made := PositionSampler(), inside), made, 1)[2:]
    else:
        assert (numbers(resumed, other, 2) if batches is None else values(resumed)) == rest
    assert sorted(itertools.chain(*numbers(resumed, other, 3))) == list(range(96))


@pytest.mark.parametrize("inside", [False, True], ids=["sampler", "batch_sampler"])
def test_a_sampler_keeps_its_state_wherever_it_is(inside):
    loader = loader_of(CountingSampler(), inside)
    first = values(loader)
    resumed = loader_of(CountingSampler(), inside)
    resumed.load_state_dict(saved(loader))
    second = values(loader)
    assert second != first and values(resumed) == second


def test_the_state_of_a_dataset_with_getitem_is_not_kept():
    class Counts(Noisy):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise AssertionError

    loader = pinfeed.DataLoader(Counts(), 2)
    with pytest.warns(UserWarning, match="a state_dict of its own, which is not part of this state"):
        state = saved(loader)
    loader.load_state_dict(state)
    assert len(values(loader)) == 3


def test_a_sampler_that_draws_each_index_draws_none_twice():
    torch.manual_seed(3)
    loader = pinfeed.DataLoader(range(1000), 2, sampler=LazySampler())
    iterator = iter(loader)
    next(iterator), next(iterator)
    state, generator, rest = saved(loader), torch.get_rng_state(), values(iterator)
    resumed = pinfeed.DataLoader(range(1000), 2, sampler=LazySampler())
    resumed.load_state_dict(state)
    torch.set_rng_state(generator)
    assert values(resumed) == rest


@pytest.mark.parametrize("between", [0, 1], ids=["at once", "a number later"])
def test_a_state_before_the_first_batch_costs_no_random_number(between):
    loader = pinfeed.DataLoader(Noisy(), 2, shuffle=True)
    iterator = iter(loader)
    torch.rand(between)
    state, generator, rest = saved(loader), torch.get_rng_state(), values(iterator)
    resumed = pinfeed.DataLoader(Noisy(), 2, shuffle=True)
    resumed.load_state_dict(state)
    torch.set_rng_state(generator)
    iterator = iter(resumed)
    assert [next(iterator).tolist()] == rest[:1]
    again = pinfeed.DataLoader(Noisy(), 2, shuffle=True)
    again.load_state_dict(saved(resumed))
    assert [[row[0] for row in batch] for batch in values(again)] == [[row[0] for row in batch] for batch in rest[1:]]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_state_before_the_first_batch_of_a_stream_is_where_it_begins(options):
    loader = pinfeed.DataLoader(Once(), 2, **options)
    values(loader)
    iterator = iter(loader)
    resumed = pinfeed.DataLoader(Once(), 2, **options)
    resumed.load_state_dict(saved(loader))
    assert values(resumed) == values(iterator) != []


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_state_of_a_stream_that_continues_has_its_position_before_the_first_batch(options):
    loader = pinfeed.DataLoader(Once(), 2, **options)
    iterator = iter(loader)
    next(iterator)
    resumed, again = pinfeed.DataLoader(Once(), 2, **options), pinfeed.DataLoader(Once(), 2, **options)
    resumed.load_state_dict(saved(loader))
    continued = iter(resumed)
    again.load_state_dict(saved(resumed))
    assert values(again) == values(continued) == values(iterator) != []


def test_a_state_before_the_first_batch_of_a_stream_that_was_left_early_is_refused():
    loader = pinfeed.DataLoader(Once(), 2)
    next(iter(loader))
    iterator = iter(loader)
    with pytest.raises(pinfeed.InvalidArgumentError, match="nothing tells where the dataset had begun it"):
        loader.load_state_dict(saved(loader))
    next(iterator)
    loader.load_state_dict(saved(loader))


class EndsEarly:
    """A batch sampler of two batches, whose sampler has more."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return 2

    def __iter__(self):
        indices = iter(self.sampler)
        for _ in range(2):
            yield list(itertools.islice(indices, 4))


class RestartsBehind(torch.utils.data.Sampler):
    """Its position is its own, and begins anew when its generator ends, however it does."""

    at = 0

    def __init__(self):
        pass  # torch's does nothing, with an argument or without

    def __len__(self):
        return 12

    def __iter__(self):
        try:
            while self.at < 12:
                self.at += 1
                yield self.at - 1
        finally:
            self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Keys:
    """Twelve samples, by texts."""

    def __len__(self):
        return 12

    def __getitem__(self, key):
        return int(key[1:])


class KeySampler(CountingSampler):
    def __iter__(self):
        return (f"k{index}" for index in super().__iter__())


def test_an_iterator_that_was_not_used_costs_no_epoch():
    """Behind a state from an epoch's end: the sampler's first answer, which is none, is still to come."""
    sampler = PositionSampler()
    loader = loader_of(sampler, False)
    numbers(loader, sampler, 0)
    other = PositionSampler()
    resumed = loader_of(other, False)
    resumed.load_state_dict(saved(loader))
    other.set_epoch(1)
    iter(resumed)
    assert values(resumed) == numbers(loader, sampler, 1)


def test_a_sampler_that_an_epoch_may_leave_in_the_middle_keeps_no_state_and_a_warning_says_so():
    sampler = PositionSampler()
    loader = pinfeed.DataLoader(range(96), batch_sampler=EndsEarly(sampler))
    first = numbers(loader, sampler, 0)
    with pytest.warns(UserWarning, match="the sampler inside the batch_sampler has a state_dict"):
        state = saved(loader)
    resumed = pinfeed.DataLoader(range(96), batch_sampler=EndsEarly(PositionSampler()))
    resumed.load_state_dict(state)
    assert values(resumed) == first == numbers(loader, sampler, 0)


def test_the_end_of_one_try_does_not_move_the_sampler_of_the_next():
    loader = pinfeed.DataLoader(range(12), 2, sampler=RestartsBehind())
    left = iter(loader)
    next(left), next(left)
    iterator = iter(loader)
    seen = next(iterator).tolist()
    state, rest = saved(loader), values(iterator)
    resumed = pinfeed.DataLoader(range(12), 2, sampler=RestartsBehind())
    try:
        resumed.load_state_dict(state)
        assert values(resumed) == rest
    except pinfeed.InvalidArgumentError as error:
        assert "other samples" in str(error)
    assert seen not in rest


@pytest.mark.parametrize("left_early", [False, True])
def test_keys_that_are_texts_are_compared_too(left_early):
    def made():
        return pinfeed.DataLoader(Keys(), 2, sampler=KeySampler())

    loader = made()
    if left_early:
        next(iter(loader))
    iterator = iter(loader)
    next(iterator)
    state, rest = saved(loader), values(iterator)
    resumed = made()
    resumed.load_state_dict(state)
    assert values(resumed) == rest
    assert state["indices"] is not None
    state["indices"] = "0" * 16
    with pytest.raises(pinfeed.InvalidArgumentError, match="other samples"):
        resumed.load_state_dict(state)
        iter(resumed)


def test_a_sampler_without_its_state_is_left_alone():
    class Base(CountingSampler):
        def state_dict(self):
            raise NotImplementedError

    assert len(values(loader_of(Base(), True))) == len(values(loader_of(Base(), False))) == 3


class HasGenerator(Once):
    """Part of its state is a tensor."""

    def state_dict(self):
        return {**super().state_dict(), "generator": torch.Generator().manual_seed(5).get_state()}


def check_state_passes_through_unused_iterators(kind):
    loader, resumed, again = (pinfeed.DataLoader(kind(), 2) for _ in range(3))
    values(loader)
    resumed.load_state_dict(saved(loader))
    iter(resumed)
    iter(resumed)
    again.load_state_dict(saved(resumed))
    assert values(again) == values(loader) != []


def test_a_dataset_may_have_tensors_in_its_state():
    check_state_passes_through_unused_iterators(HasGenerator)


class FailsOnce(Once):
    """Its files cannot be opened at first."""

    fails = True

    def __iter__(self):
        if self.fails:
            self.fails = False
            raise OSError("not yet")
        yield from super().__iter__()


def test_an_error_before_the_first_sample_leaves_the_position():
    whole = values(pinfeed.DataLoader(Once(), 2))
    loader = pinfeed.DataLoader(Once(), 2)
    next(iter(loader))
    failing = FailsOnce()
    resumed = pinfeed.DataLoader(failing, 2)
    resumed.load_state_dict(saved(loader))
    with pytest.raises(OSError, match="not yet"):
        next(iter(resumed))
    again = pinfeed.DataLoader(Once(), 2)
    again.load_state_dict(saved(resumed))
    assert values(again) == whole[1:]


def test_a_dataset_that_was_looked_at_before_begins_where_it_would_have():
    class Eager(Once):
        def __iter__(self):
            self.at = 0
            return map(self.take, range(self.count))

        def take(self, number):
            self.at = number + 1
            return number

        def load_state_dict(self, state):
            assert state["at"] == 0

    dataset = Eager()
    next(iter(dataset))
    loader = pinfeed.DataLoader(dataset, 2)
    iterator = iter(loader)
    resumed = pinfeed.DataLoader(Eager(), 2)
    resumed.load_state_dict(saved(loader))
    assert values(resumed) == values(iterator) != []


class CountsItself(torch.utils.data.DistributedSampler):
    """Another epoch each time that it is asked, without a state of its own."""

    def __init__(self):
        super().__init__(range(96), num_replicas=1, rank=0, seed=5)

    def __iter__(self):
        self.epoch += 1
        return super().__iter__()


class LongestFirst(CountingSampler):
    """The first batch is always the same."""

    def __iter__(self):
        order = list(super().__iter__())
        return iter([10, 11] + [index for index in order if index < 10])


def continued(make, before=None):
    """What follows a state behind the first batch of a second epoch, without and with a stop."""
    loader = make()
    left = iter(loader)
    for _ in range(len(loader) if before is None else before):
        next(left)
    if before is None:
        values(left)
    iterator = iter(loader)
    next(iterator)
    state, rest = saved(loader), values(iterator)
    resumed = make()
    resumed.load_state_dict(state)
    return (rest, values(loader)), (values(resumed), values(resumed))


@pytest.mark.parametrize("before", [None, 1])
def test_samplers_without_a_state_are_asked_once(before):
    whole, resumed = continued(lambda: pinfeed.DataLoader(range(96), 4, sampler=CountsItself()), before)
    assert resumed == whole


def test_epochs_that_begin_alike_are_not_taken_for_each_other():
    def make():
        return pinfeed.DataLoader(range(12), 2, sampler=LongestFirst())

    whole, resumed = continued(make)
    assert resumed == whole
    with pytest.raises(pinfeed.InvalidArgumentError, match="then it gives others. Take a state behind more batches"):
        continued(make, before=1)


def test_an_epoch_whose_end_the_sampler_was_not_asked_for_was_left_early():
    sampler, other = PositionSampler(), PositionSampler()
    loader, resumed = loader_of(sampler, False), loader_of(other, False)
    for _ in zip(range(len(loader)), loader):  # it may count its epochs where one ends
        pass
    iterator = iter(loader)
    with pytest.raises(pinfeed.InvalidArgumentError, match="Take a state behind a batch"):
        resumed.load_state_dict(saved(loader))
    next(iterator)
    resumed.load_state_dict(saved(loader))
    assert values(resumed) == values(iterator)


class CountedByItsLength(list):
    """As samplers do whose length depends on an order."""

    asked = 0

    def __len__(self):
        self.asked += 1
        return super().__len__()


@pytest.mark.parametrize("workers", [0, 1])
def test_nobody_asks_for_the_length_of_a_sampler(workers):
    sampler = CountedByItsLength(range(24))
    loader = pinfeed.DataLoader(range(24), 4, sampler=sampler, num_workers=workers)
    sampler.asked = 0
    next(iter(loader))
    assert len(values(loader)) == 6 and not sampler.asked


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_before_the_first_batch_behind_a_loaded_state(workers):
    """The sampler still tells of its latest iterator then."""
    sampler, other = PositionSampler(), PositionSampler()
    loader, resumed = (loader_of(each, False, num_workers=workers) for each in (sampler, other))
    values(loader)
    between = saved(loader)
    next(iter(loader))
    loader.load_state_dict(between)
    iterator = iter(loader)
    resumed.load_state_dict(saved(loader))
    assert values(resumed) == values(iterator)


def test_an_order_of_one_index_is_compared_to_its_end():
    class Repeats(PositionSampler):
        def __iter__(self):
            self.given, self.loaded = self.loaded or 0, None
            for _ in range(self.given, 200):
                self.given += 1
                yield 0

    loader, resumed = (pinfeed.DataLoader(range(5), 1, sampler=Repeats()) for _ in range(2))
    for _ in zip(range(10), loader):
        pass
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    resumed.load_state_dict(saved(loader))
    with pytest.raises(pinfeed.InvalidArgumentError, match="Take a state behind more batches"):
        values(resumed)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_stays_where_a_state_put_it_is_told(workers):
    class Stays(PositionSampler):
        def __iter__(self):
            position = self.loaded
            yield from super().__iter__()
            self.loaded = position

    loader, resumed = (loader_of(Stays(), False, num_workers=workers) for _ in range(2))
    values(loader)
    resumed.load_state_dict(saved(loader))
    with pytest.raises(pinfeed.Error, match="gave nothing behind a state that was loaded"):
        values(resumed)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_whose_state_dict_raises_can_be_iterated(workers):
    class Late(PositionSampler):
        def state_dict(self):
            raise AttributeError("it has not begun")

    loader = loader_of(Late(), False, num_workers=workers)
    assert len(values(loader)) == 24
    with pytest.raises(AttributeError, match="it has not begun"):
        loader.state_dict()
    iterator = iter(loader)
    with pytest.raises(pinfeed.Error, match="when the epoch began, the sampler's state_dict raised AttributeError: it has not begun"):
        loader.state_dict()
    next(iterator)
    resumed = loader_of(Late(), False, num_workers=workers)
    resumed.load_state_dict(saved(loader))  # whose indices tell that it is the same order
    assert values(resumed) == values(iterator)


@pytest.mark.parametrize("value", [float("nan"), numpy.array([float("nan"), 1]), numpy.float32, numpy.array([[1], [1, 2]], object), torch.ones(3)], ids=repr)
def test_states_with_odd_parts_are_compared_without_an_error(value):
    class Odd(Once):
        def state_dict(self):
            return {**super().state_dict(), "odd": value}

    check_state_passes_through_unused_iterators(Odd)


def test_a_dataset_that_loaders_take_in_turn_begins_each_epoch():
    dataset = Once()
    for _ in range(2):
        loader = pinfeed.DataLoader(dataset, 2)
        iterator = iter(loader)
        resumed = pinfeed.DataLoader(Once(), 2)
        resumed.load_state_dict(saved(loader))
        assert values(resumed) == values(iterator) != []


class Unreadable:
    """An index that can be pickled, and not unpickled."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize("arguments", [{}, {"seeding": "worker"}, {"batch_size": None}], ids=str)
def test_an_index_without_a_pickle_names_its_batch(arguments):
    # torch's loader waits for ever.
    loader = pinfeed.DataLoader(range(8), sampler=[0, lambda: 1], num_workers=2, **arguments)
    with pytest.raises(TypeError, match="what the sampler gives for batch 1 cannot be sent to the workers: .*lambda.*num_workers=0"):
        list(loader)


@pytest.mark.parametrize("seeding", ["sample", "worker"])
def test_an_index_that_a_worker_cannot_unpickle_is_told_and_ends_no_worker(seeding, caplog):
    loader = pinfeed.DataLoader(range(8), sampler=[0, 1, 2, 3, Unreadable(), 5, 6, 7], num_workers=2, seeding=seeding)
    batches = iter(loader)
    assert [next(batches).item() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(pinfeed.Error, match="cannot make batch 4: ValueError: invalid literal.*no number"):
        next(batches)
    assert "takes its place" not in caplog.text
