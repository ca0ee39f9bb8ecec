# SPDX-License-Identifier: Apache-2.0
"""A client that is stopped holds up its own feed and no other, and of a queue nobody."""

import signal

from hardship import SAMPLES, await_census, check_order, eventually, feed_of, read_status


def await_stall(host, name):
    """Returns the number of batches that the feed has published, once all its slots are lent or ready and it can go on no more."""

    def stalled():
        feed = feed_of(read_status(host.address), name)
        return feed if feed.get("slots_free", 0) + feed.get("slots_filling", 0) == 0 and feed["slots_lent"] == feed["slots"] else None

    feed = eventually(lambda: feed_of(read_status(host.address), name), stalled)
    return [int(session["batches"]) for session in feed["sessions"]]


def await_rest(host, name, other):
    """As await_stall, but what the client did just before it was stopped has been seen too: `other` goes on and nothing moves."""

    def settled():
        now = await_stall(host, name)
        other.advance(100)
        return now if await_stall(host, name) == now else None

    return eventually(lambda: f"{name} after {await_stall(host, name)} batches", settled)


def test_a_stopped_client_stalls_only_its_own_feed(host, numbers, reader):
    stopped = reader(host.address, numbers, batch_size=8, shuffle=True, seed=1, slots=4, hold=2, name="stopped")
    other = reader(host.address, numbers, batch_size=8, shuffle=True, seed=2, slots=4, name="other")
    stopped.advance(200)
    other.advance(1)
    for _ in range(3):
        stopped.process.send_signal(signal.SIGSTOP)
        published = await_rest(host, "stopped", other)
        taken = stopped.batches
        other.advance(300)
        assert await_stall(host, "stopped") == published and stopped.batches == taken
        stopped.process.send_signal(signal.SIGCONT)
        stopped.advance(100)
    check_order(stopped.finish(), 1, 8, numbers, host.address)
    check_order(other.finish(), 2, 8, numbers, host.address)
    await_census(host, host.at_start)


def test_a_stopped_member_stalls_its_broadcast_group(host, numbers, reader):
    options = dict(batch_size=8, shuffle=True, seed=1, slots=4, share="broadcast", group="stopping", group_size=2, zero_copy=True)
    members = [reader(host.address, numbers, name=f"member {number}", **options) for number in range(2)]
    other = reader(host.address, numbers, batch_size=8, shuffle=True, seed=2, name="other")
    for one in (*members, other):
        one.advance(50)
    members[0].process.send_signal(signal.SIGSTOP)

    def settled():
        # A member that is only slow holds all slots for a moment, too; the batches of the other feed give it time.
        now = await_stall(host, "member 0")
        other.advance(100)
        return now if await_stall(host, "member 0") == now and members[1].batches == now[1] else None

    # The other member takes what is published, and no more.
    published = eventually(lambda: f"{members[1].batches} batches taken of {await_stall(host, 'member 0')}", settled)
    other.advance(300)
    assert await_stall(host, "member 0") == published and members[1].batches == published[1]
    members[0].process.send_signal(signal.SIGCONT)
    for one in members:
        one.advance(100)
    for one in members:  # the one that stays waits for nobody
        check_order(one.finish(), 1, 8, numbers, host.address)
    check_order(other.finish(), 2, 8, numbers, host.address)
    await_census(host, host.at_start)


def test_a_stopped_member_holds_up_no_other_of_its_queue(host, numbers, reader):
    options = dict(batch_size=8, shuffle=True, seed=1, slots=4, share="queue", group="stopping queue", group_size=1, zero_copy=True)
    first = reader(host.address, numbers, name="first", **options)
    first.advance(50)
    first.process.send_signal(signal.SIGSTOP)  # alone so far, it has been lent whatever one member is lent

    def settled():
        feed = feed_of(read_status(host.address), "first")
        return feed["slots_lent"] == 3 and feed["slots_ready"] == 1

    eventually(lambda: feed_of(read_status(host.address), "first"), settled)
    late = reader(host.address, numbers, name="late", **options)
    late.advance(300)
    first.process.send_signal(signal.SIGCONT)
    first.advance(50)
    late.advance(50)
    # An epoch that both have left behind came whole, and nothing of it twice: nobody died.
    batches = [one.finish() for one in (first, late)]
    last = min(seen[-1][0] for seen in batches)
    for epoch in range(last):
        ids = [number for seen in batches for batch in seen if batch[0] == epoch for number in batch[2]]
        assert sorted(ids) == list(range(SAMPLES)), epoch
    await_census(host, host.at_start)
