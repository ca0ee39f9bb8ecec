# SPDX-License-Identifier: Apache-2.0
"""Producers that keep to docs/protocol.md, and others: tokens, frames, ends of processes, memory. All with raw sockets and a real daemon.

Long because: each rule of its section on producers is a test, and all share the raw producers.
"""

import contextlib
import functools
import os
import pathlib
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import grpc
import numpy
import pytest
from conftest import tool
from daemon_process import Daemon
from raw_client import FAILED, Client, connect, field, frame, messages, open_feed, request_for
from raw_producer import VALUES, RawProducer, Refused, done_frame, greet, invitation_to, produced_spec, welcomed
from warm_python import WarmPython
from withstand import hardship

import pinfeed
from pinfeed._worker import producer as _producer
from pinfeed._loader import produced_feed

HOST_FLAGS = ("--pool-bytes", "128MiB", "--stuck-timeout", "300ms")
NOBODY = 65534
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED.value[0]
LIMIT = 256  # producers of a feed
eventually = functools.partial(hardship.eventually, deadline_s=20)


@pytest.fixture
def trainer(host):
    """trainer(samples=..., ...) opens a feed. What is left of them is closed, and all memory comes back."""
    clients = []

    def start(**options):
        client = Client(host.address, produced_spec(**options))
        client.address, client.producers = host.address, []
        clients.append(client)
        return client

    yield start
    for client in clients:
        if client.doorbell >= 0:
            client.bye()
        for producer in client.producers:
            producer.close()
    eventually("all memory is free", lambda: used_bytes(host) == 0)


@pytest.fixture(scope="module")
def nursery():
    running = WarmPython("import raw_producer; raw_producer.messages()")
    yield running
    running.close()


@pytest.fixture
def culprit(nursery):
    """culprit(what, *lines) starts a misdeed of raw_producer.py. `tells()` returns the next line that it says."""
    started = []

    def start(what, *lines):
        process = nursery.run(f"import raw_producer; raw_producer.{what}()")
        started.append(process)
        process.tells = lambda: process.stdout.readline().strip()
        process.hear = lambda *lines: (process.stdin.write("".join(f"{line}\n" for line in lines)), process.stdin.flush())
        process.hear(*lines)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def used_bytes(daemon):
    return int(pinfeed.status(daemon.address).get("pool_used_bytes", 0))


def line_of(client):
    """An invitation as a line for another process."""
    return invitation_to(client.offer).SerializeToString().hex()


def attach(client, invitation=None):
    """A producer in this process, which is closed after the test."""
    client.producers.append(RawProducer(invitation or invitation_to(client.offer)))
    return client.producers[-1]


def is_over(lifeline):
    """Whether the daemon hangs up. Frames that come before are ignored."""
    try:
        while lifeline.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def refused(lifeline):
    with pytest.raises(Refused) as raised:
        welcomed(lifeline)
    return raised.value


def values_of(client, batch):
    """The values of a batch, one for each sample; every number of a sample must be it."""
    places = {place.name: place for place in client.offer.tensors}
    values = client.tensor(batch, places["x"], numpy.int64)
    assert (values == values[:, :1]).all() and values.shape[1] == VALUES
    assert client.tensor(batch, places["sample_id"], numpy.int64).tolist() == [2 * batch["batch_index"] + i for i in range(batch["samples"])]
    return values[:, 0].tolist()


def take_all(client, first=0):
    """Takes batches until the end. All must be there, in order."""
    expected = 2 * first
    while (batch := client.take()) is not None:
        values = values_of(client, batch)
        assert values == list(range(expected, expected + batch["samples"]))
        expected += batch["samples"]
        client.release(batch)
    return expected


def failure_of(client):
    """(code, text) of a feed that failed."""
    with pytest.raises(RuntimeError) as raised:
        client.take()
    assert field(client.publish, "Publish page", "state") == FAILED
    return field(client.publish, "Publish page", "error_code"), str(raised.value)


# ---- Tokens ---------------------------------------------------------------------------------------------------------------------


def test_a_producer_written_from_the_page_alone_fills_a_feed(trainer, culprit):
    client = trainer(samples=101)
    for _ in range(2):
        culprit("good", line_of(client))
    assert take_all(client) == 101


def test_other_tokens_are_refused_and_spoil_nothing(trainer):
    client = trainer(samples=2)
    invitation = invitation_to(client.offer)
    token = invitation.token
    draw = random.Random(5)
    wrong = [bytes(32), b"\xff" * 32, token[:-1] + bytes([token[-1] ^ 1]), bytes([token[0] ^ 128]) + token[1:]]
    for other in [*wrong, *(draw.randbytes(32) for _ in range(20))]:
        answer = refused(greet(invitation, other))
        assert answer.code == UNAUTHENTICATED and answer.text.startswith("attach a producer: the token is that of no session of this user")
        assert token.hex() not in answer.text and other.hex() not in answer.text
    as_hello = connect(invitation.lifeline_path)
    as_hello.send(frame(1, token))
    assert refused(as_hello).code == UNAUTHENTICATED
    attach(client, invitation)


@pytest.mark.parametrize("lanes, lane", [(0, 1), (2, 2), (2, 2**32 - 1)])
def test_a_lane_that_no_batch_has_is_refused(daemon, lanes, lane):
    spec = produced_spec(samples=2)
    spec.dataset.produced.lanes = lanes
    client = Client(daemon.address, spec)
    answer = refused(greet(invitation_to(client.offer, lane)))
    assert answer.code == grpc.StatusCode.INVALID_ARGUMENT.value[0] and f"has no lane {lane}: dataset.produced.lanes allows those below {lanes or 1}" in answer.text
    RawProducer(invitation_to(client.offer, max(lanes, 1) - 1)).close()
    client.bye()


@pytest.mark.parametrize("end", [Client.bye, Client.drop, Client.leave])
def test_a_token_ends_with_its_session(daemon, end):
    client = Client(daemon.address, produced_spec())
    invitation = invitation_to(client.offer)
    end(client)
    eventually("the session has ended", lambda: has_ended(daemon.address, client.offer.session_id))
    before = pinfeed.status(daemon.address)["refusals"]
    for _ in range(2):
        assert refused(greet(invitation)).code == UNAVAILABLE
    assert pinfeed.status(daemon.address)["refusals"] == before  # a process that was being started is no attack
    if client.doorbell >= 0:
        client.bye()


def has_ended(address, session_id):
    feeds = pinfeed.status(address).get("feeds", [])
    return all(int(session["id"]) != session_id or session["state"] != "attached" for feed in feeds for session in feed.get("sessions", []))


def test_a_session_that_is_not_attached_has_no_producers(daemon):
    offer = open_feed(daemon.address, request_for(produced_spec()))
    assert refused(greet(invitation_to(offer))).code == UNAVAILABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_cannot_use_a_token():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # pytest's own folders are for their user only
        daemon = Daemon(pathlib.Path(folder) / "run", "--socket-mode", "0666", "--allowed-uids", "*", "--pool-bytes", "64MiB")
        daemon.folder.chmod(0o711)
        client = Client(daemon.address, produced_spec(samples=2))
        client.address = daemon.address
        invitation = invitation_to(client.offer)
        program = f"""
import socket
thief = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
thief.settimeout(20)
thief.connect("{invitation.lifeline_path}")
thief.send(bytes.fromhex("{frame(5, invitation.token).hex()}"))
answer, fds, _, _ = socket.recv_fds(thief, 4096, 16)
print(answer[12], len(fds), thief.recv(1))
"""
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        told = subprocess.run([*as_nobody, python, "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=60, cwd="/").stdout
        assert told == f"{UNAUTHENTICATED} 0 b''\n"
        RawProducer(invitation).close()
        client.bye()
        daemon.stop()


def test_a_feed_that_the_daemon_fills_has_no_producers(daemon, tmp_path):
    numpy.save(tmp_path / "x.npy", numpy.arange(8))
    client = Client(daemon.address, messages().FeedSpec(dataset={"path": str(tmp_path / "x.npy")}, batch_size=2, slots=3))
    assert refused(greet(invitation_to(client.offer))).code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    client.bye()


def test_a_feed_has_so_many_producers_and_no_more(trainer):
    client = trainer(samples=2)
    producers = [attach(client) for _ in range(LIMIT)]
    assert refused(greet(invitation_to(client.offer))).code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    attach(trainer(samples=2)).close()  # another feed has room
    producers.pop().close()  # it has no task

    def fits():
        with contextlib.suppress(Refused):
            producers.append(attach(client))
        return len(producers) == LIMIT

    eventually("there is room for one", fits)
    task = producers[0].next()
    producers[0].fill(task)
    producers[0].done(task)
    assert take_all(client) == 2
    client.bye()
    assert all(producer.next() is None for producer in producers)


def test_producers_leave_descriptors_for_others(tmp_path):
    daemon = Daemon(tmp_path / "run", "--pool-bytes", "64MiB", "--workers", "2", under=("prlimit", "--nofile=200"))
    client, producers = Client(daemon.address, produced_spec(samples=2)), []
    with pytest.raises(Refused, match="producers and batchers' processes have 74 of the daemon's 200 descriptors, of which one user's may have three eighths") as raised:
        while True:
            producers.append(RawProducer(invitation_to(client.offer)))
    assert raised.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0] and len(producers) > 20
    Client(daemon.address, produced_spec(samples=2)).bye()
    for producer in producers:
        producer.close()
    client.bye()
    daemon.stop()


def keep_memory(client, producer, kept):
    """Takes memory of its own for batch after batch, until that is refused."""
    while True:
        task = producer.next()
        kept.append(producer.memory(task, 1))
        producer.fill(task)
        producer.done(task)
        client.release(client.take())


def test_memory_of_large_batches_leaves_descriptors_for_others(tmp_path):
    daemon = Daemon(tmp_path / "run", "--pool-bytes", "64MiB", "--workers", "2", under=("prlimit", "--nofile=200"))
    client = Client(daemon.address, produced_spec(samples=1000, batch_size=1))
    producer, kept = RawProducer(invitation_to(client.offer)), []
    try:
        with pytest.raises(Refused, match="of which one user's may have three eighths, and such a batch takes one") as raised:
            keep_memory(client, producer, kept)
        assert raised.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0] and len(kept) == 75 - 2
        Client(daemon.address, produced_spec(samples=2)).bye()
    finally:
        for fd in kept:
            os.close(fd)
    producer.close()
    client.bye()
    daemon.stop()


# ---- Frames -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 48, 255, 257, 4096, 65536])
def test_a_first_frame_of_another_size_is_refused_and_spoils_nothing(trainer, size):
    client = trainer(samples=2)
    invitation = invitation_to(client.offer)
    lifeline = connect(invitation.lifeline_path)
    lifeline.send((frame(5, invitation.token) + bytes(65536))[:size])
    assert refused(lifeline).code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    attach(client, invitation)


WRONG = "short, long, one byte, huge, magic, kind, hello, welcome, bye, leave, produce, task, task 0, another's task, an old task, the greatest task, empty, descriptor, done twice, " \
    "memory of an old task, memory of task 0, memory of no bytes, memory twice"


@pytest.mark.parametrize("what", WRONG.split(", "))
def test_a_wrong_frame_ends_the_connection_and_its_batch_waits_for_the_process(trainer, culprit, what):
    client = trainer(samples=20)
    bad = culprit("misbehave", line_of(client), what)
    assert bad.tells() == "after the end: refused"
    culprit("good", line_of(client))
    batch = client.take()  # it filled this one before
    client.release(batch)
    bad.kill()
    assert take_all(client, first=1) == 20


@pytest.mark.parametrize("text", [b"x" * 208, b"\xff\xfe\x80" * 69, b"", b"two\nlines\x1b[2J", b"cut\0rest"], ids=["not ended", "not UTF-8", "empty", "control", "NUL"])
def test_any_text_of_an_error_is_told_as_printable_text(trainer, text):
    client = trainer()
    producer = attach(client)
    producer.done(producer.next(), 15, text)
    code, told = failure_of(client)
    start = "the producer of batch 0 of epoch 0 says: "
    assert code == 15 and told.startswith(start) and told.isprintable()
    expected = {b"x" * 208: "x" * 208, b"": "", b"cut\0rest": "cut", b"two\nlines\x1b[2J": r"two\nlines\x1b[2J"}.get(text, r"\xff\xfe\x80" * 69)
    assert told[len(start) :] == expected


@pytest.mark.parametrize("code", [17, 99, 0xFFFFFFFF])
def test_an_unknown_code_is_unknown(trainer, code):
    client = trainer()
    producer = attach(client)
    producer.done(producer.next(), code, b"why")
    assert failure_of(client)[0] == grpc.StatusCode.UNKNOWN.value[0]


@pytest.mark.parametrize("code", [*range(1, 11), *range(12, 17)])
def test_an_error_of_any_code_ends_a_feed_of_the_package_with_its_text(host, code):
    """Some codes mean something else to a trainer, such as the end of its feed."""
    with produced_feed.open_produced("any", 4096, 4, 10, host.address) as feed:
        producer = RawProducer(messages().ProducerInvitation.FromString(feed.invite_producer()))
        producer.done(producer.next(), code, b"this is why")
        with pytest.raises(pinfeed.Error, match="this is why") as raised:
            feed.take(0, bytes)
        assert raised.value.code == (grpc.StatusCode.UNKNOWN.value[0] if code == 4 else code)
        producer.close()


def test_batches_behind_the_end_of_the_data_are_dealt_to_nobody(host):
    with produced_feed.open_produced("ends", 4096, 4, 10, host.address) as feed:
        first, other = (RawProducer(messages().ProducerInvitation.FromString(feed.invite_producer())) for _ in range(2))
        for producer in (first, other, first, other):  # the feed has four slots
            producer.done(producer.next(), 11, b"")

        def counts():
            (each,) = pinfeed.status(host.address)["feeds"]
            return each.get("data_end"), *(int(each.get(name, 0)) for name in ("producers", "producers_busy", "batches", "batches_dealt_again"))

        eventually("nobody has one", lambda: counts() == ("batch 0 of epoch 0", 2, 0, 0, 0))
        first.close()
        other.close()
    eventually("the memory is free", lambda: used_bytes(host) == 0)


def test_the_order_in_which_tasks_are_done_does_not_matter(trainer):
    client = trainer(samples=16)
    producers = [attach(client) for _ in range(4)]
    tasks = [producer.next() for producer in producers]
    assert [task[2] for task in tasks] == [0, 1, 2, 3]
    for producer, task in reversed([*zip(producers, tasks)]):
        producer.fill(task)
        producer.done(task)
    for number in range(4):
        batch = client.take()
        assert batch["batch_index"] == number and values_of(client, batch) == [2 * number, 2 * number + 1]
        client.release(batch)
    client.bye()
    assert all(is_over(producer.socket) for producer in producers)


def test_a_task_of_another_feed_is_none(trainer):
    """Every feed counts its own tasks."""
    ones, others = trainer(samples=2), trainer(samples=20)
    producer, thief = attach(ones), attach(others)
    task = producer.next()
    thief.socket.send(done_frame(task[0] + 7))
    assert is_over(thief.socket)
    producer.fill(task)
    producer.done(task)
    assert take_all(ones) == 2


# ---- Processes ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["hold", "hang_up", "deaf"])
def test_a_held_batch_waits_for_the_process_while_others_go_on(host, trainer, culprit, what):
    client = trainer(samples=40, slots=8)
    bad = culprit(what, line_of(client))
    assert bad.tells() in ("holds 0", "sent")
    await_attached(host, client)
    other = attach(client)
    tasks = []
    for _ in range(6):
        tasks.append(other.next())
        other.fill(tasks[-1])
        other.done(tasks[-1])
    assert 0 not in [task[2] for task in tasks]
    with pytest.raises(AssertionError, match="no batch came"):
        client.take(deadline_s=0.3)
    bad.kill()
    while tasks[-1][2] != 0:
        tasks.append(other.next())
        other.fill(tasks[-1])
        other.done(tasks[-1])
    batch = client.take()
    assert batch["batch_index"] == 0 and values_of(client, batch) == [0, 1]


def fill_until(batch, producers, filled):
    """Fills what the producers get until a batch is among it. Adds to `filled`, by batch, who filled it and its task."""
    deadline = time.monotonic() + 20
    while batch not in filled:
        assert time.monotonic() < deadline, f"nobody got batch {batch}"
        for producer in producers:
            while select.select([producer.socket], [], [], 0.01)[0]:
                task = producer.next()
                producer.fill(task)
                producer.done(task)
                filled[task[2]] = producer, task


def with_task_timeout(milliseconds, samples=10**6):
    spec = produced_spec(samples)
    spec.dataset.produced.task_timeout_ms = milliseconds
    return {"dataset": spec.dataset}


@pytest.mark.parametrize("then", ["done", "killed"])
def test_a_producer_that_stops_inside_a_write_spoils_no_batch(trainer, culprit, then):
    client = trainer(slots=4, **with_task_timeout(50))
    bad = culprit("late", line_of(client))
    number, slot = bad.tells().split()[1:]
    assert number == "0"
    other = attach(client)
    filled, held = {}, None

    def serve(first, behind):
        nonlocal held
        for expected in range(first, behind):
            fill_until(expected, [other], filled)
            batch = client.take()
            assert batch["batch_index"] == expected and values_of(client, batch) == [2 * expected, 2 * expected + 1]
            if held is None:
                held = batch
            else:
                client.release(batch)

    serve(0, 20)
    bad.send_signal(signal.SIGCONT)
    assert bad.tells() == "wrote"
    assert values_of(client, held) == [0, 1]
    serve(20, 40)
    assert int(slot) not in [task[3] for _, task in filled.values()] and values_of(client, held) == [0, 1]
    if then == "done":
        bad.hear("go on")
        assert int(bad.tells().split()[1]) >= 20  # it gets tasks again
    else:
        bad.kill()
        bad.wait()
        serve(40, 60)
        assert int(slot) in [task[3] for _, task in filled.values()]
    client.release(held)


def test_a_producer_that_hangs_up_inside_a_task_costs_no_batch(trainer, culprit):
    client = trainer(**with_task_timeout(3_600_000, samples=40))
    bad = culprit("hang_up", line_of(client))
    assert bad.tells() == "holds 0"
    culprit("good", line_of(client))
    assert take_all(client) == 40


def test_the_producers_of_a_group_write_to_memory_of_their_own(trainer, culprit):
    shared = {"sharing": "BROADCAST", "group": "raw", "group_size": 2}
    clients = [trainer(samples=40, slots=4, **shared) for _ in range(2)]
    writers = [attach(client) for client in clients]
    filled = {}
    for number in range(20):
        fill_until(number, writers, filled)
        taken = [client.take() for client in clients]
        writer, task = filled[number]
        writer.tensor(task, "x")[:] = -1  # too late
        assert [values_of(client, batch) for client, batch in zip(clients, taken)] == [[2 * number, 2 * number + 1]] * 2
        for client, batch in zip(clients, taken):
            client.release(batch)


def test_the_producers_of_a_member_that_leaves_finish_what_they_have(trainer, culprit):
    shared = {"sharing": "BROADCAST", "group": "raw", "group_size": 2}
    leaving, staying = [trainer(samples=40, slots=4, **shared) for _ in range(2)]
    last = attach(leaving)
    task = last.next()
    leaving.bye()
    assert last.next() is None  # no more tasks
    last.fill(task)
    last.done(task)
    batch = staying.take()
    assert batch["batch_index"] == 0 and values_of(staying, batch) == [0, 1]
    staying.release(batch)
    culprit("good", line_of(staying))
    assert take_all(staying, first=1) == 40


def await_attached(daemon, client):
    line = f"session {client.offer.session_id} "
    eventually("it is attached", lambda: any("a producer attached" in each and line in each for each in daemon.log().splitlines()))


def test_a_producer_that_guesses_its_tasks_and_never_reads_is_hung_up_on(trainer, culprit):
    client = trainer()
    blind = culprit("guess", line_of(client))
    taken = 0
    while (told := blind.tells()).startswith("done"):
        client.release(client.take())
        taken += 1
        assert taken < 20000, "its socket never fills"
        blind.hear("go on")
    assert told == f"hung up {taken + 1}"
    culprit("good", line_of(client))
    blind.kill()  # which is waited for by the batches that it was told of; one whose task its socket could not take may be there already
    for number in range(taken, taken + 10):
        batch = client.take()
        assert batch["batch_index"] == number and values_of(client, batch) == [2 * number, 2 * number + 1]
        client.release(batch)


def test_a_child_that_keeps_the_socket_of_a_killed_producer_is_no_producer(trainer, culprit):
    client = trainer(samples=20)
    parent = culprit("forked", line_of(client))
    told = parent.tells().split()
    assert told[:3] == ["holds", "0", "child"]
    child = os.pidfd_open(int(told[3]))
    culprit("good", line_of(client))
    parent.kill()
    parent.wait()
    assert parent.tells() in ("refused end", "sent end")  # sent: before the daemon closed it
    poll = select.poll()
    poll.register(child, select.POLLIN)
    assert poll.poll(20000)
    os.close(child)
    assert take_all(client) == 20


def test_producers_are_counted_and_one_that_hangs_is_named(trainer, culprit, host):
    client = trainer(samples=20)

    def feed():
        return next(each for each in pinfeed.status(host.address)["feeds"] if each["sessions"][0]["id"] == str(client.offer.session_id))

    def counts():
        return [int(feed().get(name, 0)) for name in ("producers", "producers_busy", "batches_dealt_again")]

    assert counts() == [0, 0, 0]
    bad = culprit("hold", line_of(client))
    assert bad.tells() == "holds 0"
    assert counts() == [1, 1, 0]
    bad.send_signal(signal.SIGSTOP)
    named = f"producer {bad.pid}", f"filling batch 0 of epoch 0 of feed {feed()['id']}"
    eventually("status names it", lambda: named in [(each["thread"], each.get("operation")) for each in pinfeed.status(host.address).get("hung", [])])
    eventually("the log names it", lambda: ": ".join(named) + " has taken" in host.log())
    _, shown, _ = tool(host, "status")
    assert f"{named[0]} hangs: {named[1]} for" in shown
    assert f"feed {feed()['id']} has 1 producer, 1 with a batch to fill" in shown
    assert feed()["slowest_producer_pid"] == bad.pid and feed()["slowest_producer_task"] == "batch 0 of epoch 0"
    bad.kill()
    eventually("its batch waits for another", lambda: counts() == [0, 0, 1])
    culprit("good", line_of(client))
    assert take_all(client) == 20


def test_three_processes_that_end_at_one_batch_fail_the_feed(trainer, culprit, host):
    client = trainer()
    for number in range(3):
        bad = culprit("hold", line_of(client))
        assert bad.tells() == "holds 0"
        bad.kill()
        if number < 2:  # the next one attaches after the daemon has seen this end
            eventually("the end is seen", lambda pid=bad.pid: f"process {pid} ended while it filled" in host.log())
    code, text = failure_of(client)
    assert code == grpc.StatusCode.DATA_LOSS.value[0] and text.startswith("3 processes ended while they filled batch 0 of epoch 0")


# ---- Memory -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["bye", "drop"])
def test_memory_stays_charged_until_the_last_writer_is_gone(trainer, culprit, host, end):
    client = trainer()
    writer = culprit("keep", line_of(client))
    assert writer.tells() == "holds 0"
    before = used_bytes(host)
    assert before >= client.offer.arena.bytes
    if end == "bye":
        client.bye()
    else:
        client.leave()
        client.bye()
    assert writer.tells() == "still writes"
    assert used_bytes(host) == before
    writer.kill()


def test_memory_for_a_large_batch_is_charged_until_no_process_has_it(trainer, culprit, host):
    client = trainer()
    before = used_bytes(host)
    writer = culprit("large", line_of(client))
    assert writer.tells() == "has memory"
    assert used_bytes(host) == before + (1 << 20)
    client.release(client.take())
    client.bye()
    eventually("the feed is gone", lambda: not pinfeed.status(host.address).get("feeds"))
    assert used_bytes(host) >= 1 << 20
    writer.kill()


@pytest.mark.parametrize("size", [(128 << 20) + 4096, 2**62, 2**64 - 1])
def test_memory_beyond_the_pool_is_refused_with_the_numbers_and_the_producer_goes_on(trainer, size):
    client = trainer()
    producer = attach(client)
    task = producer.next()
    with pytest.raises(Refused) as refusal:
        producer.memory(task, size)
    assert refusal.value.code == 8 and "of the host pool, which has 128 MiB" in refusal.value.text and str(size) in refusal.value.text
    producer.fill(task)
    producer.done(task)
    assert values_of(client, client.take()) == [0, 1]


def test_a_shared_feed_has_no_memory_for_large_batches(trainer):
    shared = {"sharing": "BROADCAST", "group": "large", "group_size": 1}
    client = trainer(**shared)
    producer = attach(client)
    with pytest.raises(Refused) as refusal:
        producer.memory(producer.next(), 4096)
    assert refusal.value.code == 9 and "shared" in refusal.value.text


def test_descriptors_of_large_batches_are_limited(trainer):
    client = trainer()
    producer = attach(client)
    kept = []
    try:
        with pytest.raises(Refused) as refusal:
            keep_memory(client, producer, kept)
        assert refusal.value.code == 8 and "which is the limit" in refusal.value.text and len(kept) == 128
    finally:
        for fd in kept:
            os.close(fd)


def test_memory_stays_charged_while_a_descriptor_of_it_is_open(trainer, culprit, host):
    client = trainer()
    keeper = culprit("keep_descriptor", line_of(client))
    assert keeper.tells() == "attached"
    client.bye()
    eventually("the feed is gone", lambda: not pinfeed.status(host.address).get("feeds"))
    assert used_bytes(host) > 0
    keeper.kill()


def test_memory_stays_charged_while_its_descriptor_is_on_its_way(trainer, culprit, host):
    client = trainer()
    deaf = culprit("deaf", line_of(client))
    assert deaf.tells() == "sent"
    await_attached(host, client)
    client.bye()
    eventually("the feed is gone", lambda: not pinfeed.status(host.address).get("feeds"))
    assert used_bytes(host) > 0
    deaf.kill()


def test_a_producer_of_the_library_ends_quietly_in_the_middle_of_a_task(host):
    feed = produced_feed.open_produced("closed", 4096, 4, None, host.address)
    producer = _producer.Producer(feed.invite_producer())
    task = producer.next()
    feed.close()
    task.memory[:4] = b"late"
    producer.done(task)
    assert producer.next() is None
    producer.close()
    eventually("all memory is free", lambda: used_bytes(host) == 0)


# ---- Specs --------------------------------------------------------------------------------------------------------------------------

X = {"name": "x", "dtype": "INT64", "shape": [3]}
NONSENSE = {
    "no sample": ({"samples": 0}, "dataset.produced.samples"),
    "more samples than fit": ({"samples": 2**53 + 1}, "dataset.produced.samples"),
    "2^63 samples": ({"samples": 2**63}, "dataset.produced.samples"),
    "all bits": ({"samples": 2**64 - 1}, "dataset.produced.samples"),
    "no field": ({"fields": []}, "dataset.produced.fields"),
    "300 fields": ({"fields": [{**X, "name": f"x{i}"} for i in range(300)]}, "dataset.produced.fields"),
    "a name twice": ({"fields": [X, X]}, "dataset.produced.fields[1].name"),
    "no name": ({"fields": [{**X, "name": ""}]}, "dataset.produced.fields[0].name"),
    "a long name": ({"fields": [{**X, "name": "x" * 257}]}, "dataset.produced.fields[0].name"),
    "lines in a name": ({"fields": [{**X, "name": "a\nb"}]}, "dataset.produced.fields[0].name"),
    "the daemon's own": ({"fields": [{**X, "name": "sample_id"}]}, "dataset.produced.fields[0].name"),
    "16 dimensions": ({"fields": [X, {"name": "y", "dtype": "UINT8", "shape": [1] * 16}]}, "dataset.produced.fields[1].shape"),
    "a dimension of 0": ({"fields": [{**X, "shape": [3, 0]}]}, "dataset.produced.fields[0]"),
    "a negative dimension": ({"fields": [{**X, "shape": [-1]}]}, "dataset.produced.fields[0]"),
    "the least dimension": ({"fields": [{**X, "shape": [-(2**63)]}]}, "dataset.produced.fields[0]"),
    "two negative dimensions": ({"fields": [{**X, "shape": [-1, -1]}]}, "dataset.produced.fields[0]"),
    "an overflow": ({"fields": [{**X, "shape": [2**62, 4]}]}, "dataset.produced.fields[0]"),
    "an overflow to 0": ({"fields": [{**X, "shape": [2**32, 2**32]}]}, "dataset.produced.fields[0]"),
    "an overflow by the type": ({"fields": [{**X, "shape": [2**61]}]}, "dataset.produced.fields[0]"),
    "no type": ({"fields": [{"name": "x", "shape": [3]}]}, "dataset.produced.fields[0]"),
    "a long dataset name": ({"name": "x" * 257}, "dataset.produced.name"),
    "a time limit of more than a day": ({"task_timeout_ms": 86_400_001}, "dataset.produced.task_timeout_ms"),
    "a time limit with lanes": ({"task_timeout_ms": 1, "lanes": 2}, "dataset.produced.task_timeout_ms"),
    "a long fingerprint": ({"fingerprint": "x" * 257}, "dataset.produced.fingerprint"),
}
FEEDS = {
    "backend": [{"backend": name} for name in ("AUTO", "CUDA_IPC", "VMM_FD")],
    "sharing": {"sharing": "QUEUE", "group": "g", "group_size": 2},
    "sample_ids": {"sample_ids": True},
    "valid": {"valid": True},
    "on_bad_sample": {"on_bad_sample": "SKIP"},
    "fields": {"fields": ["x"]},
    "transforms": {"transforms": [{"normalize": {"mean": [0], "std": [1]}}]},
    "sample_path": {"sample_path": True},
    "encoded_images": {"encoded_images": 65537, "batch_size": 1},
    "batch_size": {"encoded_images": 4, "batch_size": 2},
    "dataset.produced.fields[0]": {"encoded_images": 4, "batch_size": 1},  # which is not UINT8
    "dataset.produced": {"dataset": {"path": "/tmp/x"}},
}


def refusal_of_spec(address, **options):
    spec = {"samples": 10, "batch_size": 2, **options}
    produced = spec.pop("produced", {})
    message = produced_spec(**{key: value for key, value in spec.items() if key != "dataset"})
    message.MergeFrom(messages().FeedSpec(dataset=spec.get("dataset")))
    replaced = {"name": "raw", "samples": 10, "fields": [X], **produced}
    message.dataset.produced.CopyFrom(messages().ProducedDataset(**replaced))
    with pytest.raises(grpc.RpcError) as refusal:
        open_feed(address, request_for(message))
    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT, refusal.value
    return refusal.value.details()


@pytest.mark.parametrize("what", NONSENSE)
def test_a_nonsensical_dataset_is_refused_by_the_name_of_its_field(host, what):
    produced, at = NONSENSE[what]
    assert refusal_of_spec(host.address, produced=produced).startswith(at + ":")


@pytest.mark.parametrize("name", FEEDS)
def test_a_feed_that_producers_cannot_fill_is_refused_by_the_name_of_its_field(host, name):
    for options in FEEDS[name] if isinstance(FEEDS[name], list) else [FEEDS[name]]:
        assert any(line.startswith(name + ":") for line in refusal_of_spec(host.address, **options).splitlines())


@pytest.mark.parametrize("fields", [[{"name": "x", "dtype": "UINT8", "shape": [2**40]}], [{"name": "x", "dtype": "UINT8", "shape": [2**62]}]])
def test_a_batch_that_no_memory_holds_is_refused(host, fields):
    spec = produced_spec()
    spec.dataset.produced.CopyFrom(messages().ProducedDataset(name="huge", samples=10, fields=fields))
    with pytest.raises(grpc.RpcError) as refusal:
        open_feed(host.address, request_for(spec))
    assert refusal.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT), refusal.value
    assert used_bytes(host) == 0
