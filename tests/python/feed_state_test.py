# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a feed's position, over a library that needs no daemon."""

import json
import pickle

import pytest
from fake_library import consume, epoch, labels

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
