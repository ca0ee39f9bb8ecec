# SPDX-License-Identifier: Apache-2.0
"""A member of a group that wants to be elsewhere gets there, or stays where it was. The others are in processes of their own."""

import json
import pathlib

import grpc
import pytest
from daemon_process import Daemon
from group_pair import BATCHES, await_sessions, member_of, options_of, pair, read, session_ids, spec_of, state_at
from member_process import Member
from raw_client import Client, messages, open_feed, request_for

import pinfeed

RAW_MEMBER = """
import json, sys
sys.path.insert(0, sys.argv[3])
from raw_client import Client, messages
client = Client(sys.argv[2], messages().FeedSpec.FromString(bytes.fromhex(sys.argv[1])))
print(json.dumps(client.offer.session_id), flush=True)
for line in sys.stdin:
    batches = [client.take() for _ in range(int(line))]
    for batch in batches:
        client.release(batch)
    print(json.dumps([batch["batch_index"] for batch in batches]), flush=True)
client.bye()
"""


def test_a_refused_seek_leaves_a_member_where_it_was(daemon, arrays):
    with pair(daemon, arrays, **options_of("refused")) as (feed, member):
        start, batches = feed.state_dict(), iter(feed)
        assert read(batches, 3) == member.read(3) == [0, 1, 2]
        before = session_ids(daemon, "refused")
        for _ in range(3):
            with pytest.raises(pinfeed.Error, match="group 'refused' is already at batch") as caught:
                feed.load_state_dict(start)
            assert caught.value.code == pinfeed.Code.FAILED_PRECONDITION
            assert feed.state_dict() == state_at(feed, 12)
        assert read(batches, 1) == member.read(1) == [3]
        with pytest.raises(pinfeed.InvalidArgumentError, match="position 13 is not a boundary"):
            feed.load_state_dict(state_at(feed, 13))
        with pytest.raises(pinfeed.Error, match="cursor.fingerprint"):
            feed.load_state_dict({**start, "cursor": {**start["cursor"], "fingerprint": "0123456789abcdef"}})
        assert read(batches, 2) == [4, 5]
        member.begin_reading(BATCHES - 4)
        assert [batch.index for batch in batches] == list(range(6, BATCHES))
        assert json.loads(member.process.stdout.readline()) == list(range(4, BATCHES))
        await_sessions(session_ids, daemon, "refused", before)


def test_a_member_gets_ahead_of_the_others(daemon, arrays):
    with pair(daemon, arrays, **options_of("ahead")) as (feed, member):
        assert read(iter(feed), 2) == member.read(2) == [0, 1]
        feed.load_state_dict(state_at(feed, 40))
        assert member.read(9) == list(range(2, 11))
        assert read(iter(feed), 1) == [10]
        assert member.read(1) == [11]


def test_a_member_that_is_left_alone_goes_anywhere(daemon, arrays):
    with pair(daemon, arrays, **options_of("alone")) as (feed, member):
        start, batches = feed.state_dict(), iter(feed)
        assert read(batches, 3) == member.read(3) == [0, 1, 2]
        member.close()
        with pytest.raises(pinfeed.InvalidArgumentError, match="position 13 is not a boundary"):
            feed.load_state_dict(state_at(feed, 13))
        assert read(batches, 1) == [3]
        feed.load_state_dict(start)
        with member_of(daemon, arrays, options_of("alone")) as late:
            assert read(iter(feed), 3) == late.read(3) == [0, 1, 2]


def test_a_seek_before_all_are_there_is_granted(daemon, arrays):
    options = options_of("early")
    with pinfeed.open(arrays, address=daemon.address, framework="numpy", **options) as feed:
        feed.load_state_dict(state_at(feed, 8))
        with member_of(daemon, arrays, options) as member:
            assert read(iter(feed), 2) == [2, 3]
            assert member.read(3) == [0, 1, 2]


def test_a_refused_seek_at_the_end_leaves_the_end(daemon, arrays):
    with pair(daemon, arrays, **options_of("over", epochs=1)) as (feed, member):
        start = feed.state_dict()
        member.begin_reading(BATCHES)
        assert [batch.index for batch in feed] == json.loads(member.process.stdout.readline()) == list(range(BATCHES))
        with pytest.raises(pinfeed.Error, match="last epoch has ended"):
            feed.load_state_dict(start)
        with pytest.raises(pinfeed.Error, match="has finished all"):
            list(feed)


def test_a_refused_seek_loses_nothing_of_a_queue(daemon, arrays):
    with pair(daemon, arrays, **options_of("queue", share="queue", epochs=1)) as (feed, member):
        batches = iter(feed)
        seen = read(batches, 2)
        before = session_ids(daemon, "queue")
        assert len(before) == 2
        with pytest.raises(pinfeed.InvalidArgumentError, match="position 13 is not a boundary"):
            feed.load_state_dict(state_at(feed, 13))
        await_sessions(session_ids, daemon, "queue", before)
        member.begin_reading(BATCHES)
        seen += [batch.index for batch in batches]
        seen += json.loads(member.process.stdout.readline())
        assert sorted(seen) == list(range(BATCHES))


def raw_member_of(daemon, spec):
    return Member(RAW_MEMBER, spec.SerializeToString().hex(), daemon.address, str(pathlib.Path(__file__).resolve().parent))


def test_the_session_of_another_process_or_feed_is_not_replaced(daemon, arrays):
    """A number that one may not name does nothing: the answer is as without it, and who was named reads on."""
    spec = spec_of(arrays, sharing="BROADCAST", group="raw")
    exclusive = Client(daemon.address, spec_of(arrays))
    with raw_member_of(daemon, spec) as other:
        named = [other.first_word, exclusive.offer.session_id, 1 << 40, 2**64 - 1]
        for replaced in named:
            for wanted in (spec, spec_of(arrays), spec_of(arrays, sharing="BROADCAST", group="raw too")):
                client = Client(daemon.address, wanted, replaces=replaced)
                assert not client.offer.end_first and client.offer.replaceable == (wanted.group != "")
                client.bye()
        assert other.read(3) == [0, 1, 2]
    assert [exclusive.take()["batch_index"] for _ in range(2)] == [0, 1]
    exclusive.bye()


def test_naming_ones_own_session_does_nothing_to_it(daemon, arrays):
    spec = spec_of(arrays, sharing="BROADCAST", group="own")
    mine = Client(daemon.address, spec)
    request = request_for(spec)
    request.replaces_session = mine.offer.session_id
    for _ in range(3):
        answer = open_feed(daemon.address, request)
        assert answer == messages().OpenFeedResponse(end_first=True)
        request.cursor.version, request.cursor.position = 2, 13
        with pytest.raises(grpc.RpcError, match="not a boundary"):
            open_feed(daemon.address, request)
        request.ClearField("cursor")
        batch = mine.take()
        mine.release(batch)
    assert batch["batch_index"] == 2
    with raw_member_of(daemon, spec) as other:  # from here on there is one who goes on
        ahead = Client(daemon.address, spec, cursor=messages().Cursor(version=2, position=60), replaces=mine.offer.session_id)
        mine.bye()
        batches = other.read(4)
        assert batches == list(range(batches[0], batches[0] + 4))
        ahead.bye()


@pytest.mark.parametrize("share", ["broadcast", "queue"])
def test_a_seek_succeeds_although_the_daemon_was_killed(tmp_path, arrays, share):
    folder = tmp_path / "daemon"
    first = Daemon(folder, "--allowed-roots", str(arrays))
    with pinfeed.open(arrays, address=first.address, framework="numpy", batch_size=4, share=share, group="killed", group_size=1) as feed:
        assert read(iter(feed), 2) == [0, 1]
        state = state_at(feed, 40)
        first.process.kill()
        first.process.wait()
        feed.load_state_dict(state)
        second = Daemon(folder, "--allowed-roots", str(arrays))
        assert read(iter(feed), 2) == [10, 11]
    second.stop()
