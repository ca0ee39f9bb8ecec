# SPDX-License-Identifier: Apache-2.0
"""A member that has let a group go while it still holds a batch: the others go on, and the batch stays its own."""

import concurrent.futures
import json
import pathlib
import subprocess
import sys

import pytest
from group_pair import BATCHES, SLOTS, await_sessions, member_of, options_of, pair, read, session_ids, spec_of, state_at, states_of
from raw_client import Client

import pinfeed

def numbers_of(batch):
    return [int(number) for number in batch.id]


def test_a_closed_member_is_not_waited_for(daemon, arrays):
    with pair(daemon, arrays, **options_of("closed")) as (feed, member):
        held = next(iter(feed))
        before = numbers_of(held)
        feed.close()
        assert member.read(BATCHES) == list(range(BATCHES))
        assert states_of(daemon, "closed") == ["attached", "left"]
        assert numbers_of(held) == before
        del held
        await_sessions(states_of, daemon, "closed", ["attached"])


def test_others_get_the_slots_back_that_it_lets_go_of(daemon, arrays):
    with pair(daemon, arrays, **options_of("all slots")) as (feed, member):
        batches = iter(feed)
        feed._maker.max_held = SLOTS - 1  # as clients may that do not share fairly
        held = [next(batches) for _ in range(SLOTS - 1)]
        assert member.read(SLOTS) == list(range(SLOTS))
        feed.close()
        member.begin_reading(BATCHES)  # through the one slot that is left, until it has the others
        held.clear()
        assert json.loads(member.process.stdout.readline()) == list(range(SLOTS, BATCHES))


def test_a_member_that_seeks_is_there_once(daemon, arrays):
    with pair(daemon, arrays, **options_of("sought")) as (feed, member):
        held = next(iter(feed))
        before = numbers_of(held)
        feed.load_state_dict(state_at(feed, 40))
        await_sessions(states_of, daemon, "sought", ["attached", "attached", "left"])
        member.begin_reading(14)
        assert read(iter(feed), 3) == [10, 11, 12]
        assert json.loads(member.process.stdout.readline()) == list(range(14))
        assert numbers_of(held) == before
        del held
        await_sessions(states_of, daemon, "sought", ["attached", "attached"])


@pytest.mark.parametrize("share", ["broadcast", "queue"])
def test_an_only_member_goes_anywhere(daemon, arrays, share):
    group = f"only {share}"
    options = options_of(group, group_size=1, share=share)
    with pinfeed.open(arrays, address=daemon.address, framework="numpy", **options) as feed:
        start, batches = feed.state_dict(), iter(feed)
        assert read(batches, 2) == [0, 1]
        held = next(batches)
        before = numbers_of(held)
        feed.load_state_dict(start)
        assert read(iter(feed), 5) == [0, 1, 2, 3, 4]
        assert numbers_of(held) == before
        del held
        await_sessions(states_of, daemon, group, ["attached"])


def test_a_queue_has_what_was_not_taken(daemon, arrays):
    with pair(daemon, arrays, **options_of("left queue", share="queue", epochs=1)) as (feed, member):
        held = next(iter(feed))
        feed.close()
        member.begin_reading(BATCHES)
        assert sorted([held.index, *json.loads(member.process.stdout.readline())]) == list(range(BATCHES))


@pytest.mark.parametrize("closes", [True, False])
def test_a_queue_has_what_was_taken_to_see_that_the_epoch_is_over(daemon, arrays, closes):
    epochs, looked_ahead = 3, 0
    for attempt in range(100):  # until this member sees a batch of the next epoch, and not its own last one
        options = {**options_of(f"ahead {closes} {attempt}", share="queue", epochs=epochs, framework="numpy"), "zero_copy": None}
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            feed, member = threads.map(lambda _: pinfeed.open(arrays, address=daemon.address, **options), range(2))
            others = threads.submit(lambda member=member: [batch.index for _ in range(epochs) for batch in member])
            own = [batch.index for batch in feed]
            looked_ahead += feed.state_dict()["cursor"]["epoch"] == "1"
            if closes:
                feed.close()
            del feed
            assert sorted(own + others.result(60)) == sorted(list(range(BATCHES)) * epochs)
            member.close()
        if looked_ahead == 3:
            return
    raise AssertionError("this member always got the epoch's last batch")


def test_a_group_that_all_have_left_is_another_group(daemon, arrays):
    options = options_of("all left")
    with pair(daemon, arrays, **options) as (feed, member):
        held = next(iter(feed))
        member.close()
        feed.close()
        with pinfeed.open(arrays, address=daemon.address, framework="numpy", **options) as again, member_of(daemon, arrays, options) as other:
            assert read(iter(again), 2) == other.read(2) == [0, 1]
        assert held.index == 0


def test_what_was_taken_stays_and_nothing_more_comes(daemon, arrays):
    spec = spec_of(arrays, sharing="BROADCAST", group="raw leave")
    client = Client(daemon.address, spec, client_name="raw leave")
    batch = client.take()
    client.leave()
    with pytest.raises(RuntimeError, match="its client has left the feed"):
        client.take()
    assert states_of(daemon, "raw leave") == ["left"]
    client.release(batch)
    client.bye()
    assert session_ids(daemon, "raw leave") == set()


LEAVES_TWICE = """
import os, sys
sys.path.insert(0, sys.argv[3])
from raw_client import LEAVE, Client, field, frame, messages
import numpy
client = Client(sys.argv[2], messages().FeedSpec.FromString(bytes.fromhex(sys.argv[1])), client_name="twice")
client.take()
client.leave()
client.lifeline.send(frame(LEAVE))
answer = numpy.frombuffer(client.lifeline.recv(4096), numpy.uint8)
print(answer[48:].tobytes().split(b"\\0")[0].decode(), client.lifeline.recv(1) == b"", flush=True)
sys.stdin.read()
"""


def test_leaving_twice_ends_the_connection_and_no_more(daemon, arrays):
    here = str(pathlib.Path(__file__).resolve().parent)
    spec = spec_of(arrays, sharing="BROADCAST", group="twice").SerializeToString().hex()
    process = subprocess.Popen([sys.executable, "-c", LEAVES_TWICE, spec, daemon.address, here], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "lifeline: a frame of kind 4, which is not expected now True\n"
    assert states_of(daemon, "twice") == ["left"]
    process.communicate("")
    assert process.returncode == 0
    await_sessions(states_of, daemon, "twice", [])


def test_a_feed_of_ones_own_can_be_left_too(daemon, arrays):
    client = Client(daemon.address, spec_of(arrays), client_name="own leave")
    batch = client.take()
    client.leave()
    assert states_of(daemon, "own leave") == ["left"]
    client.release(batch)
    client.bye()
    with pinfeed.open(arrays, batch_size=4, address=daemon.address, framework="numpy") as feed:
        assert read(iter(feed), 1) == [0]
