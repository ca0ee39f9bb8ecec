# SPDX-License-Identifier: Apache-2.0
"""Producers over the fake library: tasks and their memory, Ctrl-C, the end of the feed, and how a feed invites."""

import ctypes
import os
import re
import signal
import threading

import numpy as np
import pytest

import pinfeed
from pinfeed._worker import producer as _producer

INVITATION = b"a\0b"


@pytest.fixture
def attach(fake, monkeypatch):
    """Attaches a producer; settings become FAKE_* variables. `done` tells what the library heard last."""

    def make(**settings):
        for key, value in settings.items():
            monkeypatch.setenv(f"FAKE_{key}", str(value))
        return _producer.Producer(INVITATION)

    fake.c.fake_done.restype = ctypes.c_char_p
    make.done = lambda: fake.c.fake_done().decode()
    make.fake = fake
    return make


def test_a_task_is_filled_and_done(attach):
    producer = attach()
    task = producer.next()
    assert task.batch_index == 6
    assert (task.memory.format, task.memory.nbytes, task.memory.readonly) == ("B", 8, False)
    task.memory[:] = bytes(range(8))
    producer.done(task)
    assert attach.done() == "task 1, byte 7, no error"
    assert producer.next() is None


def test_memory_cannot_be_used_once_it_is_done_or_the_producer_is_closed(attach):
    producer = attach(TASKS=2)
    first, second = producer.next(), producer.next()
    producer.done(first)
    with pytest.raises(ValueError, match="released"):
        first.memory[0] = 1
    producer.close()
    with pytest.raises(ValueError, match="released"):
        second.memory[0] = 1


def test_an_array_that_refers_to_the_memory_prevents_nothing(attach):
    producer = attach()
    task = producer.next()
    array = np.frombuffer(task.memory, np.uint8)
    array[7] = 9
    producer.done(task)
    assert attach.done() == "task 1, byte 9, no error"


def test_an_error_is_told(attach):
    producer = attach()
    producer.done(producer.next(), "KeyError: '\udc80é'")
    assert attach.done() == "task 1, byte 0, KeyError: '?é'"


def test_done_is_silent_when_the_feed_was_closed(attach):
    producer = attach(DONE_ENDS=1)
    producer.done(producer.next())
    assert producer.next() is None


def test_next_waits_longer_than_one_wait_inside_the_library(attach, monkeypatch):
    monkeypatch.setattr(_producer, "_SLICE_MS", 1)
    producer = attach(BLOCKED=1)
    waits = []
    real_next = producer._library.pf_producer_next

    def count_waits(*arguments):
        waits.append(arguments)
        if len(waits) == 3:
            attach.fake.c.fake_unblock()
        return real_next(*arguments)

    monkeypatch.setattr(producer._library, "pf_producer_next", count_waits)
    assert producer.next().batch_index == 6
    assert len(waits) == 3


def test_ctrl_c_ends_a_wait(attach, monkeypatch):
    producer = attach(BLOCKED=1)
    real_next = producer._library.pf_producer_next

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return real_next(*arguments)

    monkeypatch.setattr(producer._library, "pf_producer_next", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.next()


def test_an_exception_loses_no_task(attach, monkeypatch):
    producer = attach()

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(producer._library, "pf_producer_tensor", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.next()
    assert producer.next().batch_index == 6


def test_a_batch_of_several_tensors_is_refused(attach):
    with pytest.raises(pinfeed.Error, match="2 tensors to fill") as raised:
        attach(TENSORS=2).next()
    assert raised.value.code == pinfeed.Code.FAILED_PRECONDITION


def test_a_closed_producer_is_refused_and_closes_once(attach):
    closed = attach.fake.c.fake_closed
    before = closed()
    producer = attach()
    task = producer.next()
    producer.close()
    producer.close()
    for call in (producer.next, lambda: producer.done(task)):
        with pytest.raises(pinfeed.Error, match="this producer is closed"):
            call()
    del producer, call
    assert closed() == before + 1
    attach()  # closed when it is collected
    assert closed() == before + 2


def test_a_refused_invitation_raises(fake):
    with pytest.raises(pinfeed.Error, match="it is void") as raised:
        _producer.Producer(b"another")
    assert raised.value.code == pinfeed.Code.UNAUTHENTICATED


@pytest.mark.parametrize("python", ["with", "without"])
def test_end_with_process_opens_a_pidfd(attach, monkeypatch, python):
    if python == "without":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    _producer.end_with_process(os.getpid())
    pidfd = int(attach.done())
    with open(f"/proc/self/fdinfo/{pidfd}") as info:
        assert re.search(rf"^Pid:\t{os.getpid()}$", info.read(), re.MULTILINE)
    os.close(pidfd)
    with pytest.raises(ProcessLookupError):
        _producer.end_with_process(2**22 + 1)  # above every pid


def test_end_with_process_closes_what_is_refused(attach, monkeypatch):
    monkeypatch.setenv("FAKE_DONE_ENDS", "1")
    with pytest.raises(pinfeed.InvalidArgumentError):
        _producer.end_with_process(os.getpid())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(int(attach.done()))


def test_a_feed_invites_while_another_thread_waits_for_a_batch(fake):
    feed = fake(settings={"BLOCKED": 1})
    thread = threading.Thread(target=lambda: next(iter(feed)))
    thread.start()
    while feed._snapshot is None:  # the state of a thread that is inside the library
        assert thread.is_alive()
    assert feed.invite_producer() == INVITATION
    assert thread.is_alive()
    fake.c.fake_unblock()
    thread.join()
    feed.close()
    with pytest.raises(pinfeed.Error, match="is closed"):
        feed.invite_producer()


def test_a_feed_is_not_closed_while_it_invites(fake, monkeypatch):
    feed = fake()
    library = feed._library
    real_invite, order = library.pf_invite_producer, []
    inviting, closing = threading.Event(), threading.Event()

    def invite(*arguments):
        inviting.set()
        assert closing.wait(30)
        order.append("invited")
        return real_invite(*arguments)

    class Announced:
        """The lock, which tells when the closing thread comes to it."""

        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            if inviting.is_set():
                closing.set()
            return self.lock.__enter__()

        def __exit__(self, *details):
            return self.lock.__exit__(*details)

    monkeypatch.setattr(library, "pf_invite_producer", invite)
    monkeypatch.setattr(feed, "_invite_lock", Announced(feed._invite_lock))
    monkeypatch.setattr(feed._handle, "close", lambda close=feed._handle.close: (order.append("closed"), close()))
    thread = threading.Thread(target=lambda: order.append(feed.invite_producer()))
    thread.start()
    assert inviting.wait(30)
    feed.close()
    thread.join()
    assert order.index("invited") < order.index("closed")
    assert INVITATION in order
