# SPDX-License-Identifier: Apache-2.0
"""Waiting for a batch: slots that are all held, other threads, Ctrl-C, and what the library says meanwhile."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest
from fake_library import EPOCH, labels

import pinfeed


@pytest.fixture
def still(fake, monkeypatch):
    """A feed for which no batch comes until `release` is called, and what a thread that waits for one got."""

    class Waiting:
        def __init__(self, **options):
            self.feed = fake(settings={"BLOCKED": 1}, **options)
            self.got = []
            self.thread = threading.Thread(target=self.wait)
            self.thread.start()
            while self.feed._snapshot is None:  # the state of a thread that is inside the library
                assert self.thread.is_alive()

        def wait(self):
            try:
                self.got.append(next(iter(self.feed)))
            except pinfeed.Error as error:
                self.got.append(error)

        def release(self):
            fake.c.fake_unblock()
            self.thread.join()
            return self.got[0]

    return Waiting


def test_what_a_feed_is_is_told_while_another_thread_waits(fake, still):
    first = fake()
    expected = first.state_dict()
    waiting = still()
    feed = waiting.feed
    assert feed.state_dict() == expected
    assert (feed.classes, feed.fingerprint, feed.reconnects, feed.held, len(feed), feed.epoch) == (["cat", "dog"], "f00d", 0, 0, 3, 0)
    assert waiting.thread.is_alive() and waiting.got == []
    assert waiting.release().label.tolist() == EPOCH[0]
    assert feed.state_dict()["cursor"]["position"] == "4"


def test_close_ends_another_threads_wait(still):
    waiting = still()
    waiting.feed.close()
    waiting.thread.join()
    assert waiting.got[0].code in (pinfeed.Code.CANCELLED, pinfeed.Code.FAILED_PRECONDITION)
    with pytest.raises(pinfeed.Error, match="is closed"):
        iter(waiting.feed)


def test_a_close_that_cannot_wait_leaves_the_end_to_the_thread_in_the_library(fake, still, monkeypatch):
    monkeypatch.setattr("pinfeed._feed.connection._CLOSE_PATIENCE_S", 0.0)
    monkeypatch.setattr("pinfeed._feed.stream._SLICE_MS", 600_000)  # as long as a lost daemon may take
    closed = fake.c.fake_closed()
    waiting = still()
    waiting.feed.close()
    assert (waiting.thread.is_alive(), fake.c.fake_closed()) == (True, closed)
    fake.c.fake_interrupt()  # the library returns, with nothing
    waiting.thread.join()
    assert waiting.got[0].code == pinfeed.Code.CANCELLED and fake.c.fake_closed() == closed + 1


def test_a_child_that_was_forked_while_another_thread_waits_may_close_its_copy(still):
    waiting = still()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        waiting.feed.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    waiting.release()


def test_interrupting_a_wait(fake, fake_path):
    code = """
import ctypes, os, pinfeed, _thread, threading
feed = pinfeed.open("/x", batch_size=4, address="/nowhere", framework="numpy")
timer = threading.Timer(0.3, _thread.interrupt_main)
try:
    timer.start()
    next(iter(feed))
except KeyboardInterrupt:
    ctypes.CDLL(os.environ["PINFEED_LIBRARY"]).fake_unblock()
    print("interrupted", next(iter(feed)).label.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FAKE_BLOCKED": "1"}, capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted [0, 1, 2, 3]\n", done.stderr


def test_a_bad_sample_is_an_error(fake):
    feed = fake(settings={"FAILS_AT": 1})
    with pytest.raises(pinfeed.DataLossError, match="cat.jpg"):
        labels(feed)


def test_library_messages_go_to_logging(fake, caplog):
    feed = fake()
    with caplog.at_level(logging.INFO, "pinfeed"):
        fake.c.fake_log(2, b"reconnected\xff")
        fake.c.fake_log(1, b"hello")
        next(iter(feed))
    records = [(record.levelname, record.message) for record in caplog.records]
    assert ("WARNING", "reconnected\ufffd") in records and ("INFO", "hello") in records


class Interrupt(Exception):
    """What a signal handler raises."""


def call_when_interrupted(monkeypatch, feed, function, step):
    """Has `function` called as a signal handler would be, at the first call after the library gave a batch, its slot was taken, or its
    tensors were made."""
    feed._disarm()  # the extension has no such calls
    feed._quick_made = True
    maker = feed._maker
    original = getattr(maker, step) if step != "next" else feed._library.pf_next_info_quick

    def wrapped(*arguments):
        result = original(*arguments)
        monkeypatch.undo()
        function()
        return result

    monkeypatch.setattr(*((feed._library, "pf_next_info_quick") if step == "next" else (maker, step)), wrapped)


STEPS = ["next", "make"]


@pytest.mark.parametrize("step", STEPS)
def test_close_in_a_signal_handler(fake, step):
    feed = fake()
    iterator = iter(feed)
    released = fake.c.fake_released()
    with pytest.MonkeyPatch.context() as patch:
        call_when_interrupted(patch, feed, feed.close, step)
        with pytest.raises(pinfeed.Error, match="is closed") as caught:
            next(iterator)
    assert caught.value.code == pinfeed.Code.FAILED_PRECONDITION
    del caught
    assert fake.c.fake_released() == released + 1


@pytest.mark.parametrize("framework, zero_copy", [("numpy", None), ("torch", False)])
@pytest.mark.parametrize("step", STEPS)
def test_an_exception_of_a_signal_handler_loses_no_batch(fake, step, framework, zero_copy):
    feed = fake(framework=framework, zero_copy=zero_copy)
    iterator = iter(feed)
    first = [next(iterator).label.tolist()]
    states = [feed.state_dict()]

    def interrupt():
        states.append(feed.state_dict())
        raise Interrupt

    with pytest.MonkeyPatch.context() as patch:
        call_when_interrupted(patch, feed, interrupt, step)
        with pytest.raises(Interrupt):
            next(iterator)
    states.append(feed.state_dict())
    assert states[0] == states[1] == states[2], "a batch that was not given is counted"
    assert first + [batch.label.tolist() for batch in iterator] == EPOCH
    assert feed.held == 0
    other = fake()
    other.load_state_dict(states[1])
    assert first + labels(other) == EPOCH


def test_a_batch_counts_as_given_only_when_the_trainer_has_it(fake):
    """Also a signal handler that runs as the feed's lock is released."""
    feed = fake()
    iterator = iter(feed)
    before = feed.state_dict()
    seen = []
    lock = feed._lock

    class Lock:
        def __enter__(self):
            lock.__enter__()

        def __exit__(self, *arguments):
            lock.__exit__(*arguments)
            feed._lock = lock
            seen.append(feed.state_dict())
            raise Interrupt

    feed._lock = Lock()
    with pytest.raises(Interrupt):
        next(iterator)
    assert seen == [before] and feed.state_dict() == before
    assert [batch.label.tolist() for batch in iterator] == EPOCH


def test_next_in_a_signal_handler(fake):
    feed = fake()
    iterator = iter(feed)
    inner = []
    with pytest.MonkeyPatch.context() as patch:
        call_when_interrupted(patch, feed, lambda: inner.append(next(iterator).label.tolist()), "make")
        inner.append(next(iterator).label.tolist())
    assert inner == EPOCH[:2]


def test_a_queue_yields_the_batches_of_a_member_that_died(fake):
    feed = fake(share="queue", group="g")
    labels(feed)
    iterator = iter(feed)
    assert next(iterator).epoch == 1
    fake.c.pf_seek_epoch(feed._handle, ctypes.c_uint64(0))
    late = [(batch.epoch, batch.index) for batch in iterator]
    assert late == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [batch.epoch for batch in feed] == [2, 2, 2]


@pytest.mark.parametrize("options", [{}, {"group_size": 1}, {"group_size": 2}])
def test_a_group_needs_a_common_daemon(monkeypatch, options):
    monkeypatch.setattr("pinfeed._base.daemon.SYSTEM_SOCKET", "/nowhere/pinfeed.sock")
    with pytest.raises(pinfeed.UnavailableError, match="share='queue': .*a private daemon serves this process only; start pinfeedd and set PINFEED_ADDRESS"):
        pinfeed.open("/data/x", batch_size=4, framework="numpy", share="queue", group="g", **options)
