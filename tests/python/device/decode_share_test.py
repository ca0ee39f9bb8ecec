# SPDX-License-Identifier: Apache-2.0
"""Trainers of one broadcast on one GPU, with real processes over the stand-ins: the first one decodes, and the others get its batches.

The first one to attach is started, and attached, before the others.
"""
import contextlib
import json
import os
import signal
import subprocess

import pinfeed
import pytest
from conftest import TOOL
from decode_feed_test import EVERYTHING, photos
from device_fixtures import data, host_bytes, nvjpeg, stand_in  # noqa: F401
from device_process import await_unused, finish, start, trainer
from withstand.hardship import eventually, sessions_of

BATCHES = 30
FALLS_BACK = "this process decodes images itself"


@pytest.fixture(autouse=True)
def decoders(tmp_path, monkeypatch):
    """The ids of the processes that have decoded."""
    folder = tmp_path / "decoders"
    folder.mkdir()
    monkeypatch.setenv("PINFEED_STAND_IN_DECODERS", str(folder))
    return lambda: {int(name) for name in os.listdir(folder)}


def sockets_of(pid):
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return sum(name.startswith("socket:") for name in names)


@pytest.fixture
def daemon(tmp_path, data, monkeypatch):  # noqa: F811
    """Afterwards everything is back."""
    monkeypatch.setenv("PINFEED_STAND_IN_GPUS", "2")
    running = start(tmp_path / "run", data)
    before = sockets_of(running.process.pid)
    yield running
    await_unused(running)
    eventually("the daemon has closed its sockets", lambda: sockets_of(running.process.pid) <= before)
    running.stop()


class Group:
    """Starts members one after the other, so that their order is known."""

    def __init__(self, daemon, size, options):  # noqa: F811
        self.daemon, self.members = daemon, []
        self.options = {"share": "broadcast", "group": "decoders", "group_size": size, "decode": "gpu", **options}

    def join(self, batches=BATCHES, **more):
        member = trainer(self.daemon.address, batches, **{**self.options, **more})
        self.members.append(member)
        attached = lambda: [s["pid"] for s in sessions_of(pinfeed.status(self.daemon.address)) if s["state"] == "attached"]  # noqa: E731
        eventually("it attaches", lambda: member.pid in attached() or member.poll() is not None)
        return member

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for member in self.members:
            if member.poll() is None:
                member.send_signal(signal.SIGCONT)
                member.kill()
            member.wait()


def read(member, batches):
    return [json.loads(member.stdout.readline()) for _ in range(batches)]


def go_on(member):
    member.stdin.write("\n")
    member.stdin.flush()


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("more", [{"decode": "gpu"}, {"decode": "auto:500", **EVERYTHING}])
def test_one_decodes_and_all_get_the_bytes_of_the_workers(daemon, data, host_bytes, decoders, members, more):  # noqa: F811
    plain = {name: value for name, value in more.items() if name != "decode"}
    expected = host_bytes(daemon, BATCHES, photos(data, **plain))
    with Group(daemon, members, photos(data, **more)) as group:
        for _ in range(members):
            group.join(wait_at=BATCHES)  # before it leaves, so that nobody is left behind
        for member in reversed(group.members):
            seen, _, errors = finish(member)
            assert seen == expected and FALLS_BACK not in errors
        assert decoders() == {group.members[0].pid}
    assert "gets its images decoded by session" in daemon.log()


def test_members_on_different_gpus_decode_for_themselves(daemon, data, host_bytes, decoders):  # noqa: F811
    expected = host_bytes(daemon, BATCHES, photos(data))
    with Group(daemon, 3, photos(data)) as group:
        for gpu in (0, 1, 1):
            group.join(gpu=gpu, wait_at=BATCHES)
        for member in reversed(group.members):
            assert finish(member)[0] == expected
        assert decoders() == {member.pid for member in group.members[:2]}


def evict(daemon, pid):  # noqa: F811
    (session,) = (s for s in sessions_of(pinfeed.status(daemon.address)) if s["pid"] == pid)
    subprocess.run([TOOL, "--address", daemon.address, "evict", str(session["id"])], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("how", ["killed", "evicted", "closed"])
def test_readers_go_on_without_the_decoder(daemon, data, host_bytes, decoders, how):  # noqa: F811
    expected = host_bytes(daemon, BATCHES, photos(data))
    with Group(daemon, 3, photos(data)) as group:
        decoder = group.join(5, wait_at=5)
        readers = [group.join(), group.join()]
        assert read(decoder, 5) == expected[:5]  # and it waits before it takes another
        assert decoders() == {decoder.pid}
        if how == "killed":
            decoder.kill()
        elif how == "evicted":
            evict(daemon, decoder.pid)
        else:
            go_on(decoder)
        for reader in readers:
            seen, _, errors = finish(reader)
            assert seen == expected and errors.count(FALLS_BACK) == 1, errors
        assert decoders() == {member.pid for member in group.members}


@pytest.mark.parametrize("how", ["killed", "stopped and killed", "evicted", "closed"])
def test_others_go_on_without_a_reader(daemon, data, host_bytes, decoders, how):  # noqa: F811
    expected = host_bytes(daemon, BATCHES, photos(data))
    with Group(daemon, 3, photos(data)) as group:
        decoder = group.join(wait_at=BATCHES)
        leaves = group.join(5, wait_at=5)
        stays = group.join()
        assert read(leaves, 5) == expected[:5]
        if how == "stopped and killed":
            leaves.send_signal(signal.SIGSTOP)
            seen = read(decoder, 8)  # and no more than the slots and rings hold
            leaves.kill()
        else:
            seen = []
            if how == "killed":
                leaves.kill()
            elif how == "evicted":
                evict(daemon, leaves.pid)
            else:
                go_on(leaves)
        of_stays, _, errors = finish(stays)
        assert of_stays == expected and FALLS_BACK not in errors
        assert seen + finish(decoder)[0] == expected
        assert decoders() == {decoder.pid}


def test_one_that_falls_back_decodes_for_those_that_come_later(daemon, data, host_bytes, decoders):  # noqa: F811
    expected = host_bytes(daemon, 150, photos(data))  # it is not known where the second one begins
    with Group(daemon, 1, photos(data)) as group:
        first = group.join(5, wait_at=5)
        second = group.join(60, wait_at=20)
        assert read(first, 5) == expected[:5]
        first.kill()
        seen = read(second, 20)  # decodes itself, and stops
        third = group.join(10, wait_at=10)
        go_on(second)
        late = read(third, 10)
        go_on(third)
        assert finish(third)[0] == []
        seen += finish(second)[0]
        assert decoders() == {first.pid, second.pid}
    assert_part_of(expected, seen)
    assert_part_of(expected, late)


def assert_part_of(expected, seen):
    begin = expected.index(seen[0])
    assert seen == expected[begin : begin + len(seen)]


def test_a_stopped_decoder_delays_its_readers_and_loses_nothing(daemon, data, host_bytes):  # noqa: F811
    expected = host_bytes(daemon, BATCHES, photos(data))
    with Group(daemon, 2, photos(data)) as group:
        decoder = group.join(wait_at=BATCHES)
        reader = group.join(timeout=0.2, patient=True, wait_at=5)
        seen = read(decoder, 5)
        late = read(reader, 5)
        decoder.send_signal(signal.SIGSTOP)
        go_on(reader)
        waits = lambda: float(next(s for s in sessions_of(pinfeed.status(daemon.address)) if s["pid"] == reader.pid)["wait_seconds"])  # noqa: E731
        before = waits()
        eventually("the reader waits", lambda: waits() > before + 1)
        decoder.send_signal(signal.SIGCONT)
        rest, last, errors = finish(reader)
        assert late + rest == expected and last["late"] and FALLS_BACK not in errors
        assert seen + finish(decoder)[0] == expected


def test_a_killed_daemon_links_them_anew(tmp_path, data, host_bytes, decoders):  # noqa: F811
    first = start(tmp_path / "run", data)
    expected = host_bytes(first, BATCHES, photos(data))
    with Group(first, 2, photos(data, slots=3)) as group:
        decoder, reader = group.join(wait_at=5), group.join(wait_at=5)
        seen = [read(decoder, 5), read(reader, 5)]
        first.process.kill()
        first.process.wait(60)
        second = start(tmp_path / "run", data)
        try:
            for member in (decoder, reader):
                go_on(member)
            for member, before in zip((decoder, reader), seen):
                rest, last, _ = finish(member)
                assert before + rest == expected and last["reconnects"] == 1
            assert "gets its images decoded by session" in second.log()
            await_unused(second)
        finally:
            second.stop()


def test_a_refused_seek_leaves_members_where_they_were(daemon, data, host_bytes):  # noqa: F811
    """The new session of each is attached, and linked, before the old one goes."""
    expected = host_bytes(daemon, BATCHES, photos(data))
    with Group(daemon, 2, photos(data)) as group:
        members = [group.join(refused_at=10), group.join(refused_at=10)]
        for member in members:
            assert finish(member)[0] == expected


def test_memory_that_cannot_be_shared_has_a_member_decode_for_itself(daemon, data, host_bytes, decoders):  # noqa: F811
    expected = host_bytes(daemon, BATCHES, photos(data))
    with Group(daemon, 2, photos(data)) as group:
        group.join()
        group.join(env={"PINFEED_STAND_IN_FAIL": "cuMemCreate:1:801"})
        assert finish(group.members[0])[0] == expected
        seen, _, errors = finish(group.members[1])
        assert seen == expected and "this process decodes images that another member of its broadcast decodes, too" in errors
        assert decoders() == {member.pid for member in group.members}


@pytest.mark.parametrize("fault", ["cuMemImportFromShareableHandle:1:101", "cuMemcpyDtoDAsync:3:700"])
def test_a_decoder_that_cannot_copy_leaves_its_readers_to_themselves(daemon, data, host_bytes, fault):  # noqa: F811
    expected = host_bytes(daemon, BATCHES, photos(data))
    with Group(daemon, 2, photos(data)) as group:
        group.join(env={"PINFEED_STAND_IN_FAIL": fault})
        group.join()
        seen, _, errors = finish(group.members[0])
        assert seen == expected and "decodes no more for another member" in errors
        seen, _, errors = finish(group.members[1])
        assert seen == expected and FALLS_BACK in errors
