# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a feed's position, over a library that needs no daemon."""

import json
import pickle

import pytest
from fake_library import consume, epoch, labels

import pinfeed


@pytest.mark.parametrize("batches", [1, 2])
def test_resume_goes_on_in_the_epoch(fake, batches):
    feed = fake()
    labels(feed)
    got = consume(feed, batches)
    state = json.loads(json.dumps(feed.state_dict()))
    other = fake()
    other.load_state_dict(state)
    assert got + labels(other) == epoch(1)
    assert labels(other) == epoch(2)


def test_resume_goes_on_although_set_epoch_names_that_epoch(fake):
    feed = fake()
    labels(feed)
    consume(feed, 1)
    other = fake()
    other.load_state_dict(feed.state_dict())
    other.set_epoch(1)
    assert other.state_dict() == feed.state_dict()
    assert labels(other) == epoch(1)[1:]


def test_resume_with_another_epoch_chosen(fake):
    feed = fake()
    consume(feed, 1)
    feed.load_state_dict(feed.state_dict())
    feed.set_epoch(4)
    assert labels(feed) == epoch(4)


def test_state_within_the_last_step_resumes_with_an_empty_rest(fake):
    feed = fake()
    consume(feed, 3)
    state = feed.state_dict()
    other = fake()
    other.load_state_dict(state)
    assert [labels(other) for _ in range(2)] == [[], epoch(1)]
    other.load_state_dict(state)
    other.set_epoch(3)
    assert labels(other) == epoch(3)


def test_state_after_an_epoch_resumes_with_the_next(fake):
    feed = fake()
    labels(feed)
    other = fake()
    other.load_state_dict(feed.state_dict())
    assert labels(other) == epoch(1)


def test_state_after_set_epoch_is_that_epochs_start(fake):
    feed = fake()
    consume(feed, 2)
    feed.set_epoch(6)
    other = fake()
    other.load_state_dict(feed.state_dict())
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
