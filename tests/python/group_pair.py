# SPDX-License-Identifier: Apache-2.0
"""A feed of this process and a member of its group in another."""

import contextlib
import json

from member_process import Member
from raw_client import messages
from withstand.hardship import eventually

import pinfeed

BATCHES = 16  # an epoch's
SLOTS = 4

MEMBER = """
import itertools, json, sys
import pinfeed
feed = pinfeed.open(sys.argv[1], address=sys.argv[2], framework="numpy", **json.loads(sys.argv[3]))
batches = iter(feed)
print(json.dumps("open"), flush=True)
for line in sys.stdin:
    print(json.dumps([batch.index for batch in itertools.islice(batches, int(line))]), flush=True)
feed.close()
"""

def options_of(group, **more):
    return {"batch_size": 4, "slots": SLOTS, "share": "broadcast", "group": group, "group_size": 2, "name": group, "zero_copy": True, **more}


def member_of(daemon, arrays, options):
    return Member(MEMBER, str(arrays), daemon.address, json.dumps(options))


@contextlib.contextmanager
def pair(daemon, arrays, **options):
    """A feed of this process, and another member."""
    with member_of(daemon, arrays, options) as member, pinfeed.open(arrays, address=daemon.address, framework="numpy", **options) as feed:
        yield feed, member


def state_at(feed, position):
    state = feed.state_dict()
    return {**state, "cursor": {**state["cursor"], "position": str(position)}}


def read(batches, count):
    return [next(batches).index for _ in range(count)]


def sessions_of(daemon, group):
    sessions = [session for feed in pinfeed.status(daemon.address)["feeds"] for session in feed.get("sessions", [])]
    return [session for session in sessions if session["client_name"] == group]


def session_ids(daemon, group):
    return {session["id"] for session in sessions_of(daemon, group)}


def states_of(daemon, group):
    return sorted(session["state"] for session in sessions_of(daemon, group))


def await_sessions(look, daemon, group, expected):
    """Until `look`, one of the two above, sees that: what ended or was refused is gone a moment later."""
    eventually(lambda: f"sessions {look(daemon, group)}, not {expected}", lambda: look(daemon, group) == expected)


def spec_of(arrays, **more):
    return messages().FeedSpec(dataset=messages().DatasetSpec(path=str(arrays)), batch_size=4, slots=4, **more)
