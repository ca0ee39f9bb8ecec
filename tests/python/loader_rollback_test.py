# SPDX-License-Identifier: Apache-2.0
"""States that are loaded into a loader in use, or into one with other workers: nothing is lost, repeated or drawn twice without a word.

Long because: each kind of dataset that goes back, or cannot, is a class.
"""

import os
import pickle
import signal
import warnings
from multiprocessing import reduction

import pytest

torch = pytest.importorskip("torch")

from loader_datasets import Numbers, Once, OnceInBody, Position, seeded, values  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._loader import worker_iterator  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_is_left", "feeds")


class Plain(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(12))


def random_pair(index):
    return torch.tensor([float(index), torch.rand(()).item()], dtype=torch.float64)


def loader(dataset, **options):
    return pinfeed.DataLoader(dataset, 2, **options)


def fail_iter(numbers, monkeypatch):
    """An iter() whose feed the daemon refuses."""

    def refused(*_arguments):
        raise OSError("no feed")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no feed"):
        patched.setattr(worker_iterator, "open_produced", refused)
        iter(numbers)


def take(iterable, count):
    iterator = iter(iterable)
    return iterator, [next(iterator).tolist() for _ in range(count)]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_stream_goes_back_in_the_loader_that_it_is_from(options):
    streams = loader(Position(), **options)
    iterator, _ = take(streams, 2)
    state = streams.state_dict()
    expected = values(iterator)
    again, _ = take(streams, 4)  # on, as if training went wrong
    del again
    streams.load_state_dict(state)
    assert values(streams) == expected
    other = loader(Position(), **options)
    other.load_state_dict(state)
    assert values(other) == expected


def test_a_stream_without_workers_continues_behind_an_epoch_that_was_left():
    whole = loader(Position())
    take(whole, 3)
    expected = values(whole)  # a position that outlives its iterators: the rest
    left = loader(Position())
    take(left, 3)
    iterator, _ = take(left, 1)
    resumed = loader(Position())
    resumed.load_state_dict(left.state_dict())
    assert values(resumed) == values(iterator) == expected[1:]


def test_random_numbers_go_back_with_the_samples():
    numbers = loader(Numbers(16, random_pair), num_workers=2, persistent_workers=True, generator=seeded())
    iterator, _ = take(numbers, 3)
    state = numbers.state_dict()
    expected = values(iterator), values(numbers)
    numbers.load_state_dict(state)
    assert (values(numbers), values(numbers)) == expected


def test_epochs_behind_a_state_of_persistent_workers_draw_anew():
    persistent = loader(Numbers(8, random_pair), num_workers=1, persistent_workers=True)
    take(persistent, 1)
    other = loader(Numbers(8, random_pair), num_workers=1)
    other.load_state_dict(persistent.state_dict())
    values(other)
    assert values(other) != values(other)


@pytest.mark.parametrize("left", [[2, 1], [0, 0, 0], [8, 1]], ids=str)
def test_random_numbers_behind_epochs_that_were_left_are_part_of_a_state(left):
    def numbers():
        return loader(Numbers(16, random_pair), num_workers=2, persistent_workers=True, generator=seeded())

    first, resumed = numbers(), numbers()
    for count in left:
        iterator, _ = take(first, count)
    resumed.load_state_dict(first.state_dict())
    assert values(resumed) == values(iterator)
    assert values(resumed) == values(first)


def test_a_stream_of_which_nothing_tells_where_it_began_is_refused():
    streams = loader(Position(), num_workers=2, persistent_workers=True)
    values(streams)
    iterator, _ = take(streams, 1)
    resumed = loader(Position(), num_workers=2, persistent_workers=True)
    resumed.load_state_dict(streams.state_dict())
    assert values(resumed) == values(iterator)
    take(streams, 2)
    iterator, _ = take(streams, 1)  # either worker goes on with the rest of its epoch, or begins anew: its dataset knows
    with pytest.raises(pinfeed.InvalidArgumentError, match="samples could be missing or come twice. Take a state after num_workers batches"):
        resumed.load_state_dict(streams.state_dict())
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.load_state_dict(streams.state_dict())
    assert values(resumed) == values(iterator)


class CountsItsEnds(Position):
    """Its generator counts the epochs however they end, and its numbers tell which one they are of."""

    epoch = 0

    def __iter__(self):
        try:
            for number in super().__iter__():
                yield number + 1000 * self.epoch
        finally:
            self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


@pytest.mark.parametrize("dataset", [Position, Once, OnceInBody, CountsItsEnds])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_epochs_of_a_stream_follow_a_state_as_without_it(dataset, options):
    for taken in (0, 3, 6 * max(options.get("num_workers", 1), 1)):
        streams, resumed = loader(dataset(), **options), loader(dataset(), **options)
        iterator, _ = take(streams, taken)
        resumed.load_state_dict(streams.state_dict())
        assert values(resumed) == values(iterator)
        for _ in range(2):
            assert values(resumed) == values(streams)
    resumed = loader(dataset(), **options)
    resumed.load_state_dict(streams.state_dict())  # from between two epochs
    for _ in range(2):
        assert values(resumed) == values(streams)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_stream_that_goes_back_is_not_changed_by_the_iterator_before(options):
    streams = loader(CountsItsEnds(6), **options)
    before, _ = take(streams, 1)
    state = streams.state_dict()
    next(before)
    streams.load_state_dict(state)
    after = iter(streams)
    with pytest.raises(RuntimeError, match="ended because another one was to begin"):
        next(before)
    assert values(after) == [[2, 3], [4, 5]]
    assert values(streams) == [[1000, 1001], [1002, 1003], [1004, 1005]]


@pytest.mark.parametrize("closed", [False, True])
def test_a_stream_that_goes_back_is_not_changed_by_older_iterators(closed):
    streams = loader(CountsItsEnds(6))
    oldest, _ = take(streams, 1)
    if closed:
        oldest.close()
    older, _ = take(streams, 1)
    streams.load_state_dict(streams.state_dict())
    after, last = take(streams, 1)
    del oldest, older
    assert last + values(after) == [[4, 5]]
    assert values(streams) == [[1000, 1001], [1002, 1003], [1004, 1005]]


def test_streams_with_positions_of_other_workers_are_told():
    streams = loader(OnceInBody(), num_workers=2, persistent_workers=True)
    values(streams)
    other = loader(OnceInBody(), num_workers=1, persistent_workers=True)
    other.load_state_dict(streams.state_dict())
    with pytest.warns(UserWarning, match="with num_workers=2, and this one has 1: the dataset begins the epoch without the state"):
        iter(other)


class Shuffled(torch.utils.data.IterableDataset):
    """Draws its order from the global generator, at once or with the first sample."""

    def __init__(self, at_once, draws=False):
        self.at_once, self.draws = at_once, draws

    def __iter__(self):
        return iter(torch.randperm(12).tolist()) if self.at_once else self.generate()

    def generate(self):
        for number in torch.randperm(12).tolist():
            if self.draws:
                torch.rand(())
            yield number


@pytest.mark.parametrize("at_once", [True, False])
def test_the_order_of_a_stream_from_the_global_generator_is_continued(at_once):
    streams = loader(Shuffled(at_once))
    for taken in range(1, 6):
        iterator, seen = take(streams, taken)
        state = streams.state_dict()
        rest = values(iterator)
        assert sorted(sum(seen + rest, [])) == list(range(12))
        torch.manual_seed(taken)
        resumed = loader(Shuffled(at_once))
        resumed.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert values(resumed) == rest
        before = torch.get_rng_state()
        resumed.load_state_dict(state)
        iter(resumed)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_stream_that_draws_while_it_is_read_again_is_told():
    streams = loader(Shuffled(False, draws=True))
    take(streams, 3)
    resumed = loader(Shuffled(False, draws=True))
    resumed.load_state_dict(streams.state_dict())
    with pytest.warns(UserWarning, match="if its order depends on them, samples are lost or repeated") as told:
        iter(resumed)
    assert told[0].filename == __file__


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_a_stream_that_raised_is_counted(workers):
    def fragile(samples):
        if samples[0] == 2:
            raise ValueError("bad")
        return torch.tensor(samples)

    streams = loader(Plain(), num_workers=workers, collate_fn=fragile)
    iterator, _ = take(streams, 1)
    with pytest.raises(ValueError, match="bad"):
        next(iterator)
    assert next(iterator).tolist() == [4, 5]
    other = loader(Plain(), num_workers=workers, collate_fn=fragile)
    other.load_state_dict(streams.state_dict())
    assert values(other) == values(iterator) == [[6, 7], [8, 9], [10, 11]]


def test_a_lost_worker_ends_one_epoch_and_no_more():
    streams = loader(Plain(), num_workers=1, persistent_workers=True)
    whole = values(streams)
    os.kill(streams._pool.processes[0].pid, signal.SIGKILL)
    streams._pool.processes[0].join()
    with pytest.raises(RuntimeError, match="its place in the data is lost"):
        values(streams)
    assert values(streams) == values(streams) == whole


def test_a_state_that_could_not_be_continued_stays():
    streams = loader(Position(), num_workers=2)
    take(streams, 3)
    state = streams.state_dict()
    other = loader(Position(), num_workers=1)
    other.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(pinfeed.InvalidArgumentError, match="cannot continue an epoch of 2 workers"):
            iter(other)
    assert other.state_dict() == state


def test_a_state_is_not_changed_by_who_continues_it():
    numbers = loader(Numbers(12), shuffle=True)
    iter(numbers)
    state = numbers.state_dict()
    before = pickle.dumps(state)
    for _ in range(2):
        numbers.load_state_dict(state)
        values(numbers)
    assert pickle.dumps(state) == before


def test_a_signal_costs_no_first_batch(monkeypatch):
    numbers = loader(Numbers(6), num_workers=1)
    iterator = iter(numbers)
    receive = iterator._pool.receive

    def interrupted(worker):
        receive(worker)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(iterator._pool, "receive", interrupted)
        next(iterator)
    assert values(iterator) == [[0, 1], [2, 3], [4, 5]]


def test_a_stream_that_is_read_again_with_other_random_numbers_is_told():
    streams = loader(Plain(), num_workers=1, persistent_workers=True)
    values(streams)
    take(streams, 2)
    with pytest.warns(UserWarning, match="read again from its start: if its order is random"):
        loader(Plain(), num_workers=1, persistent_workers=True).load_state_dict(streams.state_dict())


@pytest.mark.parametrize("dataset", [Plain(), Numbers(12)])
def test_an_epoch_whose_beginning_was_interrupted_costs_the_next_nothing(dataset, monkeypatch, capfd):
    batches = loader(dataset, num_workers=2, persistent_workers=True, **({} if isinstance(dataset, Plain) else {"seeding": "worker"}))
    whole = values(batches)

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(reduction, "send_handle", interrupted)
        iter(batches)
    assert values(batches) == values(batches) == whole
    assert "Traceback" not in capfd.readouterr().err


class CountsEpochs(torch.utils.data.IterableDataset):
    epoch = 0

    def __iter__(self):
        yield from range(100 * self.epoch, 100 * self.epoch + 4)
        self.epoch += 1

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


class CannotTell(Position):
    def state_dict(self):
        raise RuntimeError("call enable_checkpointing() first")


def test_a_stream_that_cannot_tell_its_state_goes_on_behind_an_iter_that_failed(monkeypatch):
    streams = loader(CannotTell(), num_workers=2, persistent_workers=True)
    expected = values(streams)
    fail_iter(streams, monkeypatch)
    with pytest.warns(UserWarning, match=r"its state_dict raised RuntimeError: call enable_checkpointing\(\) first. Others begin at the dataset's first state"):
        assert values(streams) == expected
    assert values(streams) == expected
    with pytest.raises(pinfeed.Error, match=r"behind the epoch: its state_dict raised RuntimeError: call enable_checkpointing\(\) first"):
        streams.state_dict()
    iterator, _ = take(streams, 2)  # the next epoch goes on behind them
    iterator.close()
    fail_iter(streams, monkeypatch)
    with pytest.raises(pinfeed.Error, match="had not finished the epoch before"):
        iter(streams)


def test_an_error_without_words_is_no_other_error():
    class Wordless(Exception):
        def __str__(self):
            raise ValueError("no words")

    class CannotTellWhy(Position):
        def state_dict(self):
            raise Wordless

    streams = loader(CannotTellWhy(), num_workers=2, persistent_workers=True)
    assert values(streams) == values(streams)
    with pytest.raises(pinfeed.Error, match=r"its state_dict raised Wordless\. Take a state where"):
        streams.state_dict()


def test_a_state_of_a_stream_that_could_not_tell_its_own_is_refused():
    streams = loader(Position(), num_workers=2)
    iterator, _ = take(streams, 4)
    state = streams.state_dict()
    iterator.close()
    state["lanes"]["states"][1] = (3, b"!RuntimeError: call enable_checkpointing() first")  # as by earlier versions
    with pytest.raises(pinfeed.Error, match=r"its state_dict raised RuntimeError: call enable_checkpointing\(\) first. Take a state after num_workers batches"):
        streams.load_state_dict(state)


def test_an_iter_that_failed_counts_no_epoch(monkeypatch):
    streams = loader(Position(), num_workers=2, persistent_workers=True)
    values(streams)
    before = streams.state_dict()
    fail_iter(streams, monkeypatch)
    assert streams.state_dict() == before


def test_a_stream_whose_state_was_not_told_once_begins_anew_with_a_warning(monkeypatch):
    class FailsOnce(CountsEpochs):
        def state_dict(self):
            if self.epoch == 1:
                raise OSError("Stale file handle")
            return super().state_dict()

    streams = loader(FailsOnce(), num_workers=1, persistent_workers=True)
    first = values(streams)
    fail_iter(streams, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="its state_dict raised OSError: Stale file handle. Others begin at the dataset's first state"):
            iter(streams)
        assert values(streams) == first  # told once
    assert values(streams) != first


def test_a_stream_that_begins_anew_is_told_where_the_program_begins_it(monkeypatch):
    for begin in (iter, pinfeed.DataLoader.state_dict):
        streams = loader(CannotTell(), num_workers=1, persistent_workers=True)
        list(streams)
        fail_iter(streams, monkeypatch)
        with pytest.warns(UserWarning, match="Others begin at the dataset's first state") as told:
            begin(streams)
        assert [warning.filename for warning in told] == [__file__]


class TellsWithinAnEpoch(Position):
    def __iter__(self):
        self.within = True
        yield from super().__iter__()
        self.within = False

    def state_dict(self):
        if not self.within:
            raise RuntimeError("iterate first")
        return super().state_dict()


def test_no_state_is_given_of_a_dataset_that_has_not_told_its_own():
    streams = loader(TellsWithinAnEpoch(), num_workers=2, persistent_workers=True)
    expected = values(streams)
    with pytest.raises(pinfeed.Error, match="behind the epoch: its state_dict raised RuntimeError: iterate first. Take a state where it can tell one"):
        streams.state_dict()
    iterator = iter(streams)
    for _ in range(2):
        with pytest.raises(pinfeed.Error, match="behind the epoch before: its state_dict raised"):
            streams.state_dict()
        next(iterator)
    continued = loader(TellsWithinAnEpoch(), num_workers=2, persistent_workers=True)
    continued.load_state_dict(streams.state_dict())
    assert values(continued) == expected[2:]
    others = loader(CannotTell(), num_workers=1)
    iterator = iter(others)
    next(iterator)
    with pytest.raises(pinfeed.Error, match="behind batch 0: .* Take a state where it can tell one$"):
        others.state_dict()


def test_batches_that_are_kept_take_what_they_have():
    numbers = loader(Numbers(60), num_workers=1, max_batch_bytes=16 << 20)
    kept = list(numbers)
    sizes = sorted(batch.untyped_storage().nbytes() if hasattr(batch, "untyped_storage") else batch.storage().nbytes() for batch in kept)
    assert sum(sizes[:-4]) < 1 << 20, sizes
