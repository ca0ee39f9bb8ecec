# SPDX-License-Identifier: Apache-2.0
"""Samplers with states of their own, and states from before an epoch's first batch: what follows is what would have followed, or it is refused."""

import itertools
import pickle

import pytest

torch = pytest.importorskip("torch")

from loader_datasets import values  # noqa: E402
from loader_rollback_test import Once  # noqa: E402

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
        super().__init__(None)

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


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True, "seeding": "worker"}], ids=str)
@pytest.mark.parametrize("inside", [False, True], ids=["sampler", "batch_sampler"])
@pytest.mark.parametrize("batches", [None, 0, 3, 24])
@pytest.mark.parametrize("left_early", [False, True], ids=["whole", "left early"])
def test_the_position_of_a_sampler_costs_no_sample(options, inside, batches, left_early):
    """A state from an epoch's start is that of a sampler at the end of the epoch before, or in the middle of it."""
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
