# SPDX-License-Identifier: Apache-2.0
"""Which epoch each ``for`` runs over, over a library that needs no daemon."""

import ctypes

import pytest
from fake_library import EPOCH, consume, epoch, labels

import pinfeed


def test_each_for_is_the_next_epoch_without_a_seek(fake):
    feed = fake()
    assert [labels(feed) for _ in range(3)] == [epoch(0), epoch(1), epoch(2)]
    assert fake.seeks(feed) == 0
    assert len(feed) == 3 and feed.dataset_size == 10


def test_break_starts_the_next_epoch_afresh(fake):
    feed = fake()
    for batch in feed:
        assert batch.label.tolist() == EPOCH[0]
        break
    assert labels(feed) == epoch(1)


def test_break_at_the_last_batch_needs_no_seek(fake):
    feed = fake()
    for batch in feed:
        if batch.last_of_epoch:
            break
    assert labels(feed) == epoch(1)
    assert fake.seeks(feed) == 0


def test_an_iterator_that_gave_nothing_costs_no_epoch(fake):
    feed = fake()
    iter(feed)
    iter(feed)
    assert labels(feed) == epoch(0)


def test_set_epoch_chooses_the_epoch_of_the_next_for(fake):
    feed = fake()
    feed.set_epoch(7)
    assert feed.epoch == 7
    assert labels(feed) == epoch(7)
    assert labels(feed) == epoch(8)
    feed.sampler.set_epoch(2)
    assert labels(feed) == epoch(2)
    with pytest.raises(pinfeed.InvalidArgumentError):
        feed.set_epoch(-1)


def test_what_has_a_sampler_has_a_batch_sampler(fake):
    """Lightning asks a loader for evaluation for the second if it has the first."""
    assert fake().batch_sampler is None


def test_set_epoch_before_each_for_costs_no_seek(fake):
    feed = fake()
    for number in range(3):
        feed.set_epoch(number)
        assert labels(feed) == epoch(number)
    assert fake.seeks(feed) == 0


def test_set_epoch_does_not_disturb_a_loop(fake):
    feed = fake()
    got = []
    for batch in feed:
        feed.set_epoch(5)
        got.append(batch.label.tolist())
    assert got == epoch(0)
    assert labels(feed) == epoch(5)


def test_set_epoch_can_repeat_an_epoch(fake):
    feed = fake()
    assert labels(feed) == epoch(0)
    feed.set_epoch(0)
    assert labels(feed) == epoch(0)


def test_a_for_after_the_last_of_several_epochs_is_an_error(fake):
    feed = fake(settings={"EPOCHS": 2}, epochs=2)
    assert [labels(feed) for _ in range(2)] == [epoch(0), epoch(1)]
    assert feed.epoch == 2  # for loops that count on from there
    for choose in (lambda: None, lambda: feed.set_epoch(9)):
        choose()
        with pytest.raises(pinfeed.Error, match="feed of /data/x has finished all of epochs=2: call set_epoch") as caught:
            labels(feed)
        assert caught.value.code == pinfeed.Code.OUT_OF_RANGE
    feed.set_epoch(1)
    assert labels(feed) == epoch(1)


def test_a_feed_of_one_epoch_runs_over_it_again_and_again(fake, caplog):
    feed = fake(settings={"EPOCHS": 1}, epochs=1)
    assert [labels(feed) for _ in range(3)] == [epoch(0)] * 3
    for number in range(3):  # what Lightning does with the loader of a validation
        iterator = iter(feed)
        feed.sampler.set_epoch(number)
        assert [batch.label.tolist() for batch in iterator] == epoch(0)
    assert not caplog.records


def test_a_shuffled_feed_of_one_epoch_says_that_its_order_repeats(fake, caplog):
    feed = fake(settings={"EPOCHS": 1}, epochs=1, shuffle=True)
    assert [labels(feed) for _ in range(3)] == [epoch(0)] * 3
    assert [record.message for record in caplog.records if "in the same order" in record.message] != []


def test_a_finished_run_that_is_resumed_has_nothing_left(fake):
    """Also with one epoch: a job that is started again is not to train on."""
    feed = fake(settings={"EPOCHS": 1}, epochs=1)
    labels(feed)
    other = fake(epochs=1, state=feed.state_dict())
    assert (other.epoch, labels(other), labels(other)) == (1, [], epoch(0))


def test_a_shared_feed_of_one_epoch_cannot_begin_again(fake):
    feed = fake(settings={"EPOCHS": 1}, epochs=1, share="broadcast", group="g")
    assert labels(feed) == epoch(0)
    with pytest.raises(pinfeed.Error, match="has finished all.*open a group with another name"):
        labels(feed)


def test_an_epoch_whose_end_was_not_announced_ends_all_the_same(fake):
    feed = fake(settings={"SILENT_END": 1})
    assert [labels(feed) for _ in range(3)] == [epoch(0), epoch(1), epoch(2)]
    # The first batch of epoch 3 is already here. It is given in epoch 3 and only there.
    feed.set_epoch(3)
    assert labels(feed) == epoch(3)
    feed.set_epoch(1)
    assert labels(feed) == epoch(1)


def test_state_between_epochs_whose_end_was_not_announced(fake):
    feed = fake(settings={"SILENT_END": 1})
    labels(feed)
    state = feed.state_dict()
    other = fake()
    other.load_state_dict(state)
    assert labels(other) == epoch(1)


def test_a_second_iterator_ends_the_first(fake):
    feed = fake()
    first = iter(feed)
    next(first)
    second = iter(feed)
    assert next(second).epoch == 1
    with pytest.raises(RuntimeError, match="one iterator at a time"):
        next(first)
    assert next(second).index == 1


def test_a_shared_feed_skips_what_is_left_of_an_epoch(fake):
    feed = fake(share="broadcast", group="g", group_size=2)
    assert consume(feed, 1) == epoch(0)[:1]
    assert labels(feed) == epoch(1)
    assert fake.seeks(feed) == 0
    assert feed.held == 0


def test_a_shared_feed_joins_in_the_epoch_that_runs(fake):
    feed = fake(settings={"START": 5}, share="broadcast", group="g")
    assert feed.epoch == 5  # known before the first batch
    assert feed.state_dict()["epoch"] == 5
    assert labels(feed) == epoch(5)
    assert labels(feed) == epoch(6)


def test_an_epoch_of_a_group_that_was_named_and_went_by_is_empty(fake):
    feed = fake(settings={"START": 4}, share="broadcast", group="g")
    feed.set_epoch(5)
    fake.c.pf_seek_epoch(feed._handle, ctypes.c_uint64(6))
    assert [(feed.epoch, labels(feed)) for _ in range(2)] == [(5, []), (6, epoch(6))]


@pytest.mark.parametrize("share", ["broadcast", "queue"])
def test_epochs_that_went_by_before_the_first_batch_are_empty(fake, share):
    feed = fake(share=share, group="g", epochs=3)
    fake.c.pf_seek_epoch(feed._handle, ctypes.c_uint64(1))
    assert [labels(feed) for _ in range(feed.epoch, 3)] == [[], epoch(1), epoch(2)]
    with pytest.raises(pinfeed.Error, match="has finished all of epochs=3"):
        labels(feed)


@pytest.mark.parametrize("share", ["broadcast", "queue"])
def test_a_shared_feed_refuses_to_go_back(fake, share):
    feed = fake(settings={"START": 5}, share=share, group="g")
    feed.set_epoch(5)
    with pytest.raises(pinfeed.Error, match="epoch: 4 is over; the earliest possible is 5: a shared feed cannot go back") as caught:
        feed.set_epoch(4)
    assert caught.value.code == pinfeed.Code.FAILED_PRECONDITION
    iterator = iter(feed)
    assert next(iterator).epoch == 5
    with pytest.raises(pinfeed.Error, match="the earliest possible is 6"):
        feed.set_epoch(5)
    assert [batch.epoch for batch in iterator] == [5, 5]
