# SPDX-License-Identifier: Apache-2.0
"""Waiting for a batch: slots that are all held, other threads, Ctrl-C, and what the library says meanwhile."""

import logging
import os
import subprocess
import sys
import threading
import warnings

import pytest
from fake_library import EPOCH, labels

import pinfeed


def test_all_slots_held_warns_and_waits(fake):
    feed = fake(settings={"SLOTS": 3}, timeout=0.5)
    kept = []
    with pytest.warns(pinfeed.SlotsHeldWarning, match="all 3 slots"):
        with pytest.raises(pinfeed.DeadlineExceededError):
            for batch in fake_endless(feed):
                kept.append(batch)
    assert [batch.label.tolist() for batch in kept] == EPOCH
    assert feed.wait_seconds >= 0.4
    del kept[1:], batch
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        assert next(iter(feed)).epoch == 1


def fake_endless(feed):
    while True:
        yield from feed


def test_close_ends_another_threads_wait(fake):
    feed = fake(settings={"SLOTS": 1})
    kept = next(iter(feed))
    failures = []
    waiting = threading.Event()

    def wait():
        waiting.set()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                next(iter(feed))
        except pinfeed.Error as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    feed.close()
    thread.join(30)
    assert len(failures) == 1 and failures[0].code in (pinfeed.Code.CANCELLED, pinfeed.Code.FAILED_PRECONDITION)
    assert kept.label.tolist() == EPOCH[0]


def test_interrupting_a_wait(fake, fake_path):
    code = """
import pinfeed, signal, warnings, _thread, threading
warnings.simplefilter("ignore")
feed = pinfeed.open("/x", batch_size=4, address="/nowhere", framework="numpy")
kept = next(iter(feed))
timer = threading.Timer(0.3, _thread.interrupt_main)
timer.start()
try:
    next(iter(feed))
except KeyboardInterrupt:
    del kept
    print("interrupted", next(iter(feed)).label.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FAKE_SLOTS": "1"}, capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted [100, 101, 102, 103]\n", done.stderr


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
