# SPDX-License-Identifier: Apache-2.0
"""A group that was stopped goes on where its members' states say: each opens with one, in a process of its own."""

import json
import re

import pytest
from member_process import Member

import pinfeed

BATCHES = 16  # an epoch's
ROUNDS = 10

MEMBER = """
import itertools, json, sys
import pinfeed
feed = pinfeed.open(sys.argv[1], address=sys.argv[2], framework="numpy", **json.loads(sys.argv[3]))
batches = itertools.chain.from_iterable(itertools.repeat(feed, feed.epochs or 20))
print(json.dumps(feed.epoch), flush=True)
for line in sys.stdin:
    read = [[batch.epoch, batch.index, batch.id.tolist()] for batch in itertools.islice(batches, int(line))]
    print(json.dumps([read, feed.state_dict()]), flush=True)
feed.close()
"""


def options_of(group, **more):
    return {"batch_size": 4, "slots": 4, "shuffle": True, "seed": 7, "share": "broadcast", "group": group, "group_size": 2, "name": group, **more}


def run_pair(daemon, arrays, options, states, counts):
    """Two members, each from its state; each reads so many batches. What each read, and its state then."""
    with Member(MEMBER, str(arrays), daemon.address, json.dumps({**options, "state": states[0]})) as one:
        with Member(MEMBER, str(arrays), daemon.address, json.dumps({**options, "state": states[1]})) as two:
            for member, state in zip((one, two), states):
                assert state is None or member.first_word == state["epoch"]
            one.begin_reading(counts[0])
            two.begin_reading(counts[1])
            # The one that has what it wants leaves, or the other would wait for it.
            results = [None, None]
            for index in sorted((0, 1), key=lambda index: counts[index]):
                member = (one, two)[index]
                results[index] = json.loads(member.process.stdout.readline())
                member.close()
    return results


@pytest.fixture(scope="module")
def expected(daemon, arrays):
    """Every batch of a feed that nobody interrupts."""
    with pinfeed.open(arrays, address=daemon.address, framework="numpy", batch_size=4, shuffle=True, seed=7, epochs=8) as feed:
        return [[batch.epoch, batch.index, batch.id.tolist()] for _ in range(8) for batch in feed]


def test_both_go_on_from_one_state_ten_times(daemon, arrays, expected):
    at, state = 0, None
    for round_number in range(ROUNDS):
        count = 5 + round_number
        (one, one_state), (two, two_state) = run_pair(daemon, arrays, options_of("one state"), [state, state], [count, count])
        assert one == two == expected[at : at + count]
        assert one_state == two_state
        at, state = at + count, one_state


def test_each_goes_on_from_its_own_state(daemon, arrays, expected):
    at, states = [0, 0], [None, None]
    for counts in ((5, 7), (8, 5), (3, 4), (12, 12)):
        results = run_pair(daemon, arrays, options_of("own states"), states, counts)
        for index, (read, state) in enumerate(results):
            assert read == expected[at[index] : at[index] + counts[index]]
            at[index] += counts[index]
            states[index] = state


def test_a_queue_goes_on_from_one_state(daemon, arrays, expected):
    """Every batch behind it is given to one of the two."""
    with pinfeed.open(arrays, address=daemon.address, framework="numpy", batch_size=4, shuffle=True, seed=7) as feed:
        for _, batch in zip(range(5), feed):
            del batch
        state = feed.state_dict()
    options = options_of("queue of a state", share="queue", epochs=1)
    results = run_pair(daemon, arrays, options, [state, state], [BATCHES, BATCHES])
    assert sorted(batch for read, _ in results for batch in read) == expected[5:BATCHES]


def test_a_state_of_a_queue_that_comes_back_to_earlier_epochs_is_its_own(daemon, arrays):
    """As at a batch that another member had left: the cursor stays behind."""

    def opened(**more):
        return pinfeed.open(arrays, address=daemon.address, framework="numpy", **options_of("queue of epochs", share="queue", group_size=1, **more))

    with opened() as feed:
        for batch in feed:
            del batch
        with pytest.raises(pinfeed.Error, match="3 is not the next one, 1: a queue passes nothing over"):
            feed.set_epoch(3)
        state = {**json.loads(json.dumps(feed.state_dict())), "epoch": 3}
    with opened(state=state) as feed:
        assert feed.epoch == 3 and next(iter(feed)).index == 0
        with pytest.raises(pinfeed.InvalidArgumentError, match="epoch: 3 does not fit its cursor"):
            feed.load_state_dict({**state, "cursor": {**state["cursor"], "epoch": "5"}})


@pytest.mark.parametrize("taken", [5, BATCHES], ids=["in an epoch", "behind its last batch"])
def test_a_queue_that_continues_an_epoch_may_go_on_to_the_next(daemon, arrays, taken):
    """As a program that was stopped within its last step, or left its loop, and counts on."""

    def opened(**more):
        return pinfeed.open(arrays, address=daemon.address, framework="numpy", **options_of(f"goes on {taken}", share="queue", group_size=1, **more))

    with opened() as feed:
        for _, batch in zip(range(taken), feed):
            del batch
        state = json.loads(json.dumps(feed.state_dict()))
    with opened(state=state) as feed:
        with pytest.raises(pinfeed.Error, match="2 is not the next one, 0"):
            feed.set_epoch(2)
        feed.set_epoch(1)
        batch = next(iter(feed))
        assert (batch.epoch, batch.index) == divmod(taken, BATCHES)


def test_who_joins_a_running_broadcast_is_told(daemon, arrays, caplog):
    options = options_of("joined late", group_size=1)

    def opened(**more):
        return pinfeed.open(arrays, address=daemon.address, framework="numpy", **{**options, **more})

    with opened() as feed:
        for _, batch in zip(range(3), feed):
            del batch
        state = feed.state_dict()
        assert "had begun" not in caplog.text
        with opened() as late:
            told = re.search(r"group 'joined late' had begun before this feed joined: it gets what comes from sample (\d+) of epoch 0 on", caplog.text)
            assert int(late.state_dict()["cursor"]["position"]) == int(told[1]) >= 3 * late.batch_size
    caplog.clear()
    with opened(state=state) as feed:
        assert next(iter(feed)).index == 3 and "had begun" not in caplog.text


def test_a_state_that_is_not_this_feeds_is_refused(daemon, arrays, tmp_path):
    """As `load_state_dict` refuses it; nothing of the attempt is left."""

    def opened(**more):
        return pinfeed.open(arrays, address=daemon.address, framework="numpy", **options_of("refused state", group_size=1, **more))

    with opened() as feed:
        for _, batch in zip(range(3), feed):
            del batch
        state = feed.state_dict()
    cases = [
        (dict(seed=8), state, pinfeed.Code.INVALID_ARGUMENT, "cursor.seed: the state is of a feed shuffled with seed 7"),
        (dict(shuffle=False), state, pinfeed.Code.INVALID_ARGUMENT, "cursor.order: the state is of a shuffled feed"),
        (dict(batch_size=5), state, pinfeed.Code.INVALID_ARGUMENT, "position 12 is not a boundary"),
        ({}, {**state, "cursor": {**state["cursor"], "fingerprint": "0123456789abcdef"}}, pinfeed.Code.FAILED_PRECONDITION, "cursor.fingerprint: the files of"),
    ]
    for change, given, code, words in cases:
        with pytest.raises(pinfeed.Error, match=words) as by_open:
            opened(state=given, **change)
        with opened(**change) as feed, pytest.raises(pinfeed.Error, match=words) as by_load:
            feed.load_state_dict(given)
        assert by_open.value.code == by_load.value.code == code
    with opened(state=state) as feed:
        assert next(iter(feed)).index == 3


def test_a_state_behind_the_last_epoch(daemon, arrays):
    with pinfeed.open(arrays, address=daemon.address, framework="numpy", batch_size=4, epochs=1) as feed:
        assert sum(1 for _ in feed) == BATCHES
        state = feed.state_dict()
    with pinfeed.open(arrays, address=daemon.address, framework="numpy", batch_size=4, epochs=1, state=state) as feed:
        assert list(feed) == []
    with pinfeed.open(arrays, address=daemon.address, framework="numpy", batch_size=4, epochs=2, state=state) as feed:
        assert (feed.epoch, [(batch.epoch, batch.index) for batch in feed][:1]) == (1, [(1, 0)])
