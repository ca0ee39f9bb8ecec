# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a feed's position, over a library that needs no daemon."""

import itertools
import json
import pickle

import pytest
from fake_library import EPOCH, consume, epoch, labels

import pinfeed


@pytest.fixture(params=["open", "load_state_dict"])
def resume(fake, request):
    """A feed of a state, by either way."""

    def opened(state, **options):
        if request.param == "open":
            feed = fake(state=state, **options)
            assert fake.seeks(feed) == 0
            return feed
        feed = fake(**options)
        feed.load_state_dict(state)
        return feed

    return opened


def fresh(feed):
    return None


def running(feed):
    iterator = iter(feed)
    next(iterator), next(iterator)
    return iterator


def all_given(feed):
    iterator = iter(feed)
    for _ in EPOCH:
        next(iterator)
    return iterator


def ended(feed):
    labels(feed)


def left(feed):
    consume(feed, 2)


def left_at_the_end(feed):
    consume(feed, 3)


def placed_in_epoch_3(feed):
    other_state = {**feed.state_dict(), "epoch": 3}
    other_state["cursor"].update(epoch="3", position="4")
    feed.load_state_dict(other_state)


def placed_at_the_end_of_epoch_3(feed):
    placed_in_epoch_3(feed)
    state = {**feed.state_dict(), "epoch_ended": True}
    state["cursor"].update(position="10")
    feed.load_state_dict(state)


SITUATIONS = [fresh, running, all_given, ended, left, left_at_the_end, placed_in_epoch_3, placed_at_the_end_of_epoch_3]


@pytest.mark.parametrize("silent", [False, True], ids=["", "ends not announced"])
@pytest.mark.parametrize(
    "steps, offset",
    [((), 0), (("iter",), 0), *itertools.product([("set",), ("iter", "set"), ("set", "iter"), ("set", "iter", "set")], [0, 1, 2, -1])],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_a_state_is_what_the_feed_yields_next(fake, situation, steps, offset, silent):
    """Wherever the feed is, whether an iterator was made and not used, and whatever epoch was chosen before and after that."""
    feed = fake(settings={"SILENT_END": int(silent)})
    iterator = situation(feed)
    broken_off = situation in (left, left_at_the_end) and not steps
    for step in steps:
        if step == "iter":
            iterator = iter(feed)
        else:
            feed.set_epoch(max(0, feed.epoch + offset))
    state = json.loads(json.dumps(feed.state_dict()))
    with fake(state=state) as other:
        came = [labels(other) for _ in range(4)]
        assert state == feed.state_dict()
    expected = [] if iterator is None else [[batch.label.tolist() for batch in iterator]]
    if broken_off:
        assert came[0] == epoch(0)[2 if situation is left else 3 :]
        came = came[1:]
    assert came[: len(expected) + 2] == expected + [labels(feed) for _ in range(2)]


def test_a_loader_of_lightning_saves_where_it_is(fake, resume):
    """Lightning makes the iterator, then names the epoch, then reads; it saves in between, and does the same when it goes on."""
    feed = fake()
    got, state = [], None
    for number, stop in ((0, None), (1, 2)):
        iterator = iter(feed)
        feed.sampler.set_epoch(number)
        for batch in iterator:
            got.append(batch.label.tolist())
            state = feed.state_dict()
            if batch.index + 1 == stop:
                break
    other = resume(state)
    iterator = iter(other)
    other.sampler.set_epoch(1)
    got += [batch.label.tolist() for batch in iterator]
    other.sampler.set_epoch(2)
    assert got + labels(other) == epoch(0) + epoch(1) + epoch(2)


def test_an_iterator_begins_with_its_first_batch(fake):
    """So an epoch that is named behind `iter` is the one that comes, as with a sampler of torch's."""
    feed = fake()
    iterator = iter(feed)
    feed.set_epoch(3)
    assert [batch.label.tolist() for batch in iterator] == epoch(3)


def test_an_epoch_that_gave_nothing_yet_is_not_over(fake, monkeypatch):
    feed = fake(settings={"FAILS_AT": 0})
    for _ in range(2):
        with pytest.raises(pinfeed.DataLossError):
            labels(feed)
        assert (feed.epoch, feed.state_dict()["cursor"]["position"]) == (0, "0")


@pytest.mark.parametrize("batches", [1, 2])
def test_resume_goes_on_in_the_epoch(fake, resume, batches):
    feed = fake()
    labels(feed)
    got = consume(feed, batches)
    state = json.loads(json.dumps(feed.state_dict()))
    other = resume(state)
    assert (other.epoch, other.state_dict()) == (1, state)
    assert got + labels(other) == epoch(1)
    assert labels(other) == epoch(2)


def test_resume_goes_on_although_set_epoch_names_that_epoch(fake, resume):
    feed = fake()
    labels(feed)
    consume(feed, 1)
    other = resume(feed.state_dict())
    other.set_epoch(1)
    assert other.state_dict() == feed.state_dict()
    assert labels(other) == epoch(1)[1:]


def test_resume_with_another_epoch_chosen(fake):
    feed = fake()
    consume(feed, 1)
    feed.load_state_dict(feed.state_dict())
    feed.set_epoch(4)
    assert labels(feed) == epoch(4)


def test_state_within_the_last_step_resumes_with_an_empty_rest(fake, resume):
    feed = fake()
    consume(feed, 3)
    state = feed.state_dict()
    other = resume(state)
    assert [labels(other) for _ in range(2)] == [[], epoch(1)]
    other.load_state_dict(state)
    other.set_epoch(3)
    assert labels(other) == epoch(3)


def test_state_after_an_epoch_resumes_with_the_next(fake, resume):
    feed = fake()
    labels(feed)
    other = resume(feed.state_dict())
    assert labels(other) == epoch(1)


def test_state_after_set_epoch_is_that_epochs_start(fake, resume):
    feed = fake()
    consume(feed, 2)
    feed.set_epoch(6)
    other = resume(feed.state_dict())
    assert labels(other) == epoch(6)


def test_load_state_ends_a_running_iterator(fake):
    feed = fake()
    iterator = iter(feed)
    next(iterator)
    feed.load_state_dict(feed.state_dict())
    with pytest.raises(RuntimeError):
        next(iterator)


@pytest.mark.parametrize("state", [{}, None, 3, {"version": 2, "epoch": 0, "epoch_ended": False, "cursor": {}}, {"version": 1, "epoch": 0, "epoch_ended": False, "cursor": {}}])
def test_what_is_no_state_is_refused(fake, state):
    feed = fake()
    with pytest.raises(pinfeed.InvalidArgumentError):
        feed.load_state_dict(state)
    assert labels(feed) == epoch(0)


@pytest.mark.parametrize("state", [{}, 3, "saved.pt", {"version": 2, "epoch": 0, "epoch_ended": False, "cursor": {}}])
def test_nothing_is_opened_with_what_is_no_state(fake, state):
    fake.c.fake_forget_spec()
    with pytest.raises(pinfeed.InvalidArgumentError, match="(?s)batch_size: .*state: (this is not the state of a feed|the state of the feed has version 2)"):
        fake(state=state, batch_size=0)
    assert fake.spec_text() == ""


@pytest.mark.parametrize(
    "change, words",
    [
        ({"epoch": -1}, "epoch: -1 is not a whole number from 0"),
        ({"epoch": 2**70}, "is not a whole number from 0"),
        ({"epoch": None}, "epoch: None is not"),
        ({"epoch": 5}, "epoch: 5 does not fit its cursor, which is in epoch 0"),
        ({"epoch_ended": None}, "epoch_ended: None is not True or False"),
        ({"epoch_ended": "no"}, "epoch_ended: 'no' is not True or False"),
        ({"cursor": None}, "cursor: None is not a position"),
        ({"cursor": {"epoch": "x"}}, "is not a position"),
        ({"cursor": {"epoch": "0"}}, "cursor: it lacks position"),
        ({"next_epoch": -1}, "next_epoch: -1 is not a whole number from 0"),
        ({"next_epoch": "1"}, "next_epoch: '1' is not"),
    ],
)
def test_a_state_that_does_not_fit_itself(fake, change, words):
    feed = fake()
    state = {**feed.state_dict(), **change}
    with pytest.raises(pinfeed.InvalidArgumentError, match=f"this is not the state of a feed: .*{words}"):
        feed.load_state_dict(state)
    assert labels(feed) == epoch(0)


def test_a_feed_cannot_be_pickled(fake):
    with pytest.raises(TypeError, match="a feed cannot be pickled: open it in the process that uses it"):
        pickle.dumps(fake())
