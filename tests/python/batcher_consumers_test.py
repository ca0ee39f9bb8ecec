# SPDX-License-Identifier: Apache-2.0
"""Consumers of a batcher that are stopped: the others go on with all that these do not have in hand. Each is a process of its own."""

import multiprocessing
import os
import signal

import numpy as np
import pytest
from batchers import ARRAY, TIMEOUT, array
from withstand.hardship import eventually

import pinfeed

SPAWN = multiprocessing.get_context("spawn")


def consume(address, name, sign, holds, pipe):
    """Answers each request with its value times `sign`, once it is told to begin. `holds`: says which values a batch has, and waits for a word
    before it answers."""
    batcher = pinfeed.Batcher(name, input=ARRAY, framework="numpy", max_batch=1, max_delay=0.001, address=address)
    pipe.send("ready")
    pipe.recv()
    for batch in batcher:
        if holds:
            pipe.send(batch.inputs[:, 0].tolist())
            holds = pipe.recv()
        answered = batch.answer(np.asarray(batch.inputs) * sign)
        if holds:
            pipe.send(answered)


class Consumer:
    def __init__(self, address, name, sign, holds=False, begins=True):
        self.pipe, there = SPAWN.Pipe()
        self.process = SPAWN.Process(target=consume, args=(address, name, sign, holds, there))
        self.process.start()
        assert self.receive() == "ready"
        self.address, self.name, self.pid = address, name, self.process.pid
        if begins:
            self.pipe.send("begin")

    def receive(self):
        assert self.pipe.poll(TIMEOUT)
        return self.pipe.recv()

    def await_waiting(self):
        """Until it waits for a batch."""

        def waits():
            before, after = self.waited(), self.waited()
            return after > before

        eventually("the consumer waits for a batch", waits)

    def waited(self):
        return next(session["wait_seconds"] for session in feed_of(self.address, self.name)["sessions"] if int(session["pid"]) == self.pid)

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])  # all threads, by now

    def stop_waiting(self):
        """Stops it while it waits for a batch: between two such waits it would be dealt none."""
        while True:
            self.await_waiting()
            self.stop()
            before = self.waited()
            if self.waited() > before:
                return
            self.resume()

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def end(self):
        self.process.kill()
        self.process.join(TIMEOUT)


@pytest.fixture
def start(daemon):
    """Starts consumers, and ends them."""
    running = []

    def begin(*arguments, **options):
        running.append(Consumer(daemon.address, *arguments, **options))
        return running[-1]

    yield begin
    for consumer in running:
        consumer.end()


def feed_of(address, name):
    return next(feed for feed in pinfeed.status(address)["feeds"] if feed["name"] == name)


def consumers_of(address, name):
    """{pid: (batches, requests)} of what each consumer has taken and not answered"""
    listed = feed_of(address, name).get("consumers", [])
    return {int(one["pid"]): (int(one.get("batches_held", 0)), int(one.get("requests_held", 0))) for one in listed}


def ask(client, value):
    return ask_all(client, [value])[0]


def ask_all(client, values):
    """The answers to requests that are on their way together."""
    futures = [client.submit(array(value)) for value in values]
    return [float(np.frombuffer(future.result(TIMEOUT), np.float32)[0]) for future in futures]


def test_what_a_stopped_consumer_was_dealt_goes_to_the_other(daemon, start):
    stopped = start("stopped", 1)
    stopped.stop_waiting()
    with pinfeed.BatcherClient("stopped", address=daemon.address, in_flight=64) as client:
        waiting = client.submit(array(1))  # which it is dealt, as the only one
        eventually("it is dealt", lambda: int(feed_of(daemon.address, "stopped")["sessions"][0].get("slots_ready", 0)) == 1)
        start("stopped", -1)
        assert np.frombuffer(waiting.result(TIMEOUT), np.float32)[0] == -1
        assert [ask(client, value) for value in range(2, 100)] == [-value for value in range(2, 100)]
        assert ask_all(client, range(64)) == [-value for value in range(64)]
        assert int(feed_of(daemon.address, "stopped")["requests_dealt_again"]) >= 1
        # It goes on: what it was dealt is void, and it answers again.
        stopped.resume()
        eventually("it answers", lambda: 5 in ask_all(client, [5] * 16))
        assert all(abs(ask(client, value)) == value for value in range(100))


def test_what_a_stopped_consumer_has_in_hand_meets_its_deadline(daemon, start):
    stopped, other = start("in hand", 1, holds=True), start("in hand", -1, begins=False)
    with pinfeed.BatcherClient("in hand", address=daemon.address) as client:
        in_hand = client.submit(array(7), deadline=5)  # enough for a busy machine to come to the line that looks at it
        assert stopped.receive() == [7]
        stopped.stop()
        other.pipe.send("begin")
        assert consumers_of(daemon.address, "in hand") == {stopped.pid: (1, 1), other.pid: (0, 0)}
        assert [ask(client, value) for value in range(100)] == [-value for value in range(100)]
        with pytest.raises(pinfeed.DeadlineExceededError):
            in_hand.result(TIMEOUT)
        assert consumers_of(daemon.address, "in hand")[stopped.pid][1] == 0
        stopped.pipe.send(True)
        stopped.resume()
        assert stopped.receive() == 0  # too late
        stopped.pipe.send(False)  # from now on it answers at once
        eventually("it answers", lambda: 5 in ask_all(client, [5] * 16))


def test_two_of_three_consumers_are_stopped(daemon, start):
    stopped = [start("two of three", 1), start("two of three", 2)]
    for consumer in stopped:
        consumer.await_waiting()
        consumer.stop()
    start("two of three", -1)
    with pinfeed.BatcherClient("two of three", address=daemon.address) as client:
        assert [ask(client, value) for value in range(1, 50)] == [-value for value in range(1, 50)]
        for consumer in stopped:
            consumer.resume()
        for answer in (5, 10):
            eventually("both answer", lambda: answer in ask_all(client, [5] * 16))
    listed = consumers_of(daemon.address, "two of three")
    assert {consumer.pid for consumer in stopped} < set(listed)


def test_batches_wait_for_the_consumer_that_is_free_first(daemon, start):
    busy = start("busy", 1, holds=True)
    with pinfeed.BatcherClient("busy", address=daemon.address) as client:
        first = client.submit(array(1))
        assert busy.receive() == [1]
        held = [client.submit(array(value)) for value in (2, 3)]  # in slots, dealt to nobody
        start("busy", -1)
        assert [np.frombuffer(one.result(TIMEOUT), np.float32)[0] for one in held] == [-2, -3]
        assert int(feed_of(daemon.address, "busy").get("requests_dealt_again", 0)) == 0
        busy.pipe.send(True)
        assert busy.receive() == 1
        assert np.frombuffer(first.result(TIMEOUT), np.float32)[0] == 1
