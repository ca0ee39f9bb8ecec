# SPDX-License-Identifier: Apache-2.0
"""Batches of `pinfeed.DataLoader` that do not fit into their slots: memory of their own, which the daemon charges, and its limit."""

import contextlib
import errno
import gc
import os
import signal
import warnings
from multiprocessing import connection, reduction

import pytest

torch = pytest.importorskip("torch")

from conftest import tool  # noqa: E402
from daemon_process import Daemon  # noqa: E402
from loader_datasets import Numbers, Stream  # noqa: E402
from withstand.hardship import eventually, is_stopped  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._loader import one_off, supervisor, worker_pool  # noqa: E402

HOST_FLAGS = ("--pool-bytes", "64MiB", "--user-pool-bytes", "32MiB")
DEADLINE_S = 60
LARGE = 1 << 20  # bytes; at least

pytestmark = [pytest.mark.usefixtures("memory_is_free", "nothing_is_left"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]


def feed_of(daemon):
    (feed,) = pinfeed.status(daemon.address)["feeds"]
    return feed


def counts(daemon):
    return [int(feed_of(daemon).get(name, 0)) for name in ("one_off_batches", "one_off_bytes", "one_off_peak_bytes")]


def large_from_4_to_9(index):
    return torch.full((LARGE if 4 <= index < 10 else 100,), index % 100, dtype=torch.uint8)


def too_large_at_4_and_5(index):
    return torch.full(((64 << 20) if index in (4, 5) else 100,), index, dtype=torch.uint8)


def loader(host, make, count=20, **arguments):
    return pinfeed.DataLoader(Numbers(count, make), 1, **{"num_workers": 2, "address": host.address, **arguments})


def test_the_daemon_charges_and_counts_large_batches_and_one_warning_says_what_to_do(host):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        iterator = iter(loader(host, large_from_4_to_9))
        kept = [next(iterator) for _ in range(5)].pop()
        assert kept.unique().tolist() == [4] and kept.numel() == LARGE
        rest = [batch[0, 0].item() for batch in iterator]
        assert rest == list(range(5, 20))
    large = [each for each in told if issubclass(each.category, pinfeed.LargeBatchWarning)]
    assert len(large) == 1 and large[0].filename == __file__
    assert "batch 4 needs 10" in str(large[0].message) and "max_batch_bytes=10" in str(large[0].message)
    assert kept.unique().tolist() == [4]


def test_with_little_memory_a_loader_has_fewer_slots_and_the_log_says_so(host, caplog):
    made = loader(host, lambda index: torch.full((2**21,), index, dtype=torch.uint8), 20, num_workers=8, prefetch_factor=4)
    assert [batch[0, -1].item() for batch in made] == list(range(20))
    (told,) = [record.getMessage() for record in caplog.records if "has no room" in record.getMessage()]
    assert "no room for 34 batches" in told and "but for 8, so that fewer workers" in told and "pool_bytes" in told


def test_without_room_for_the_least_slots_the_error_is_of_those_that_were_wanted(host):
    made = loader(host, lambda index: torch.zeros(2**25, dtype=torch.uint8), 20, num_workers=8, prefetch_factor=4)
    with pytest.raises(pinfeed.ResourceExhaustedError, match="of 34 slots of.* feed has 34 slots.*lower these, or batch_size$"):
        next(iter(made))


def test_workers_that_take_turns_need_all_slots_and_the_error_says_which_seeding_does_not(host):
    made = loader(host, lambda index: torch.zeros(2**21, dtype=torch.uint8), 20, num_workers=8, prefetch_factor=4, seeding="worker")
    with pytest.raises(pinfeed.ResourceExhaustedError, match='lower these, or batch_size, or give seeding="sample", for which fewer slots do$'):
        next(iter(made))


def test_what_the_trainer_keeps_is_charged_and_beyond_two_batches_are_copies(host):
    iterator = iter(loader(host, large_from_4_to_9, 400))
    first = [next(iterator) for _ in range(20)]
    batches = 6
    eventually("only two are charged", lambda: LARGE * 2 < counts(host)[1] <= (LARGE + 8192) * 2)
    made, now, peak = counts(host)
    assert made == batches and peak >= now
    status = pinfeed.status(host.address)
    assert int(status["pool_used_bytes"]) == int(feed_of(host)["arena_bytes"]) + now == int(status["users"][0]["pool_bytes"])
    _, shown, _ = tool(host, "status")
    assert "had 6 batches larger than a slot, in memory of their own: 2 MiB now, " in shown
    del first
    gc.collect()
    eventually("none is charged", lambda: counts(host)[1] == 0)
    assert counts(host) == [batches, 0, peak]
    iterator.close()


def test_a_batch_that_outlives_its_feed_stays_charged(host):
    iterator = iter(loader(host, large_from_4_to_9))
    kept = [next(iterator) for _ in range(5)].pop()
    iterator.close()
    eventually("the feed is gone", lambda: not pinfeed.status(host.address).get("feeds"))
    eventually("only that batch is left", lambda: LARGE < int(pinfeed.status(host.address)["pool_used_bytes"]) < LARGE + 12288)
    assert kept.unique().tolist() == [4]


@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_beyond_the_limit_names_its_indices_and_its_size(host, stream):
    dataset = Streamed(20) if stream else Numbers(20, too_large_at_4_and_5)
    iterator = iter(pinfeed.DataLoader(dataset, 2, num_workers=1, address=host.address))
    seen = [next(iterator)[:, 0].tolist() for _ in range(2)] if not stream else [next(iterator).shape[0] for _ in range(2)]
    with pytest.raises(pinfeed.ResourceExhaustedError) as refusal:
        next(iterator)
    text = str(refusal.value)
    assert ("batch 2 needs 1342" if stream else "batch 2 of indices [4, 5] needs 1342") in text, text
    assert "The daemon gives it no memory of its own: reserve 128 MiB" in text and "max_batch_bytes=1342" in text
    assert len(list(iterator)) == 7 and len(seen) == 2, "it costs no other batch"


class Streamed(Stream):
    def __iter__(self):
        return (torch.zeros((64 << 20) if index in (4, 5) else 100, dtype=torch.uint8) for index in range(self.count))


def test_the_users_part_of_the_pool_is_the_limit(host):
    iterator = iter(loader(host, lambda index: torch.zeros((40 << 20) if index == 4 else 100, dtype=torch.uint8), multiprocessing_context="fork"))
    assert [len(next(iterator)) for _ in range(4)] == [1] * 4
    with pytest.raises(pinfeed.ResourceExhaustedError, match=r"(?s)batch 4 of indices \[4\] needs 419\d+ bytes.*user_pool_bytes: user \d+ has .*40"):
        next(iterator)
    assert len(list(iterator)) == 15


# ---- Workers that are late, stopped or killed ---------------------------------------------------------------------------------------


def is_open(descriptor):
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return True
    return False


def test_memory_that_comes_too_late_is_given_back_at_once():
    batches = one_off.OneOffBatches(3)
    made = [os.memfd_create(f"batch {number}") for number in range(5)]
    for descriptor in made:
        os.ftruncate(descriptor, 4096)
    batches.add(2, made[0])
    assert not is_open(made[0]), "the trainer is at batch 3"
    batches.add(3, made[1])
    batches.add(3, made[2])
    assert not is_open(made[1]), "another worker made the same"
    batches.add(5, made[3])
    batches.add(7, made[4])
    assert len(batches.take(3, DEADLINE_S)) == 4096
    batches.advance(6)
    assert [is_open(each) for each in made[2:]] == [False, False, True]
    batches.end()
    with pytest.raises(pinfeed.Error, match="batch 6 is in memory of its own, which its worker did not send"):
        batches.take(6, 0)
    del batches
    gc.collect()
    assert not is_open(made[4])


@contextlib.contextmanager
def tokens(count):
    """A pipe with some bytes, for what is to happen so often."""
    reader, writer = os.pipe()
    os.write(writer, b"1" * count)
    os.set_blocking(reader, False)
    yield reader
    os.close(reader)
    os.close(writer)


def took(token):
    with contextlib.suppress(BlockingIOError):
        os.read(token, 1)
        return True
    return False


def raise_before_sending(monkeypatch, token, number):
    """Workers that take a byte of `token` send themselves a signal before they send memory."""
    trainer, send_handle = os.getpid(), reduction.send_handle

    def send(connection, handle, destination):
        if os.getpid() != trainer and took(token):
            os.kill(os.getpid(), number)
        send_handle(connection, handle, destination)

    monkeypatch.setattr(reduction, "send_handle", send)


def test_a_worker_that_stops_while_it_sends_holds_up_nobody(host, monkeypatch):
    monkeypatch.setattr(worker_pool, "_EXIT_PATIENCE_S", 0.1)
    with tokens(1) as token:
        raise_before_sending(monkeypatch, token, signal.SIGSTOP)
        iterator = iter(loader(host, large_from_4_to_9, 40, num_workers=3, multiprocessing_context="fork", retry_after=0.3))
        seen, late = [], None
        for batch in iterator:
            seen.append(batch[0, 0].item())
            if late is None:
                late = next((process.pid for process in iterator._pool.processes if is_stopped(process.pid)), None)
            if late is not None and len(seen) == 20:
                os.kill(late, signal.SIGCONT)
                # What it sends now is too late.
                eventually("it goes on", lambda: not is_stopped(late))
        assert seen == list(range(40)) and late is not None


def test_a_worker_that_is_killed_while_it_sends_costs_no_batch(host, monkeypatch):
    with tokens(2) as token:
        raise_before_sending(monkeypatch, token, signal.SIGKILL)
        batches = loader(host, large_from_4_to_9, 40, multiprocessing_context="fork")
        assert [batch[0, 0].item() for batch in batches] == list(range(40))
        assert not took(token)


def test_a_worker_that_is_killed_after_it_has_sent_costs_no_batch(host, monkeypatch, tmp_path):
    died, told = tmp_path / "died", []

    def sample(index):
        if index == 5 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return large_from_4_to_9(index)

    def late(objects, timeout=None):
        """The trainer's thread learns of the message and of the end at once."""
        ready = connection.wait(objects, timeout)
        pipe, end = objects[1:]
        if pipe in ready and not told:
            told.append(True)
            assert connection.wait([end], DEADLINE_S)
            return connection.wait(objects, 0)
        return ready

    monkeypatch.setattr(supervisor, "wait", late)
    batches = loader(host, sample, num_workers=1, multiprocessing_context="fork", timeout=DEADLINE_S)
    assert [batch[0, 0].item() for batch in batches] == list(range(20)) and told


def test_memory_for_which_no_descriptor_is_left_is_an_error_and_no_wait(host, monkeypatch):
    trainer, receive = os.getpid(), reduction.recv_handle

    def refused(pipe):
        if os.getpid() != trainer:
            return receive(pipe)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(reduction, "recv_handle", refused)
    batches = iter(loader(host, large_from_4_to_9, timeout=DEADLINE_S))
    with pytest.raises(pinfeed.ResourceExhaustedError, match=r"batch [4-9] is in memory of its own.*none left \(ulimit -n"):
        for number in range(5):
            assert next(batches)[0, 0].item() == number


def test_large_batches_survive_the_daemon(tmp_path):
    flags = ("--pool-bytes", "64MiB", "--workers", "2")
    running, seen = [Daemon(tmp_path / "run", *flags)], []
    try:
        for workers in ({"num_workers": 3}, {"num_workers": 2, "seeding": "worker"}):
            seen = []
            for batch in pinfeed.DataLoader(Numbers(40, always_larger), 1, address=running[0].address, **workers):
                seen.append(batch[0, 0].item())
                if len(seen) in (5, 6, 20):
                    running[-1].process.kill()
                    running[-1].process.wait()
                    running.append(Daemon(tmp_path / "run", *flags))
            assert seen == list(range(40))
    finally:
        running[-1].stop()


def always_larger(index):
    return torch.full((1000 if index == 0 else 200000,), index, dtype=torch.uint8)
