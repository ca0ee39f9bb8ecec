# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` whose workers, trainer and daemon are killed, stopped and interrupted at random moments. Every batch comes once, in order.

$PINFEED_KILLS (60) workers are killed at random moments, and a tenth of them once more from a fork server.
$PINFEED_TEST_SEED repeats a run.

Long because: each process that can end, and each moment, is a test of that one promise.
"""

import collections
import contextlib
import errno
import functools
import gc
import multiprocessing.connection
import multiprocessing.reduction
import os
import pathlib
import random
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import types

import pytest

torch = pytest.importorskip("torch")

from daemon_process import Daemon  # noqa: E402
from loader_datasets import Numbers, Stream, place_of_worker, slow  # noqa: E402
from raw_client import messages  # noqa: E402
from withstand.hardship import eventually, is_stopped  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._loader import produced_feed, supervisor, worker_pool  # noqa: E402
from pinfeed._worker import worker  # noqa: E402

HOST_FLAGS = ("--pool-bytes", "128MiB")
KILLS = int(os.environ.get("PINFEED_KILLS") or 60)
DEADLINE_S = 60
HERE = pathlib.Path(__file__).resolve().parent
ENDLESS = 10**7

pytestmark = [pytest.mark.usefixtures("memory_is_free", "nothing_is_left"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]


@pytest.fixture
def impatient(monkeypatch):
    """A loader does not wait for workers that are stopped."""
    monkeypatch.setattr(worker_pool, "_EXIT_PATIENCE_S", 0.1)
    monkeypatch.setattr(worker_pool, "_KILL_PATIENCE_S", 0.1)


@pytest.fixture
def draw():
    seed = int(os.environ.get("PINFEED_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PINFEED_TEST_SEED={seed}")
    return random.Random(seed)


def pids_of(iterator):
    return [process.pid for process in iterator._pool.processes]


def living_of(iterator):
    """Returns a pidfd for each worker that has not ended. One that was killed may still be among the pool's processes."""
    living = []
    for pid in pids_of(iterator):
        with contextlib.suppress(ProcessLookupError):
            living.append(os.pidfd_open(pid))
    return living


def descriptors():
    gc.collect()
    return sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}"))


def ended(pidfd):
    """Whether a process ends in time."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    answered = poll.poll(DEADLINE_S * 1000)
    os.close(pidfd)
    return bool(answered)


class Killer:
    """Kills random workers at random moments on a thread, but none of the batches that are under way at a kill is under way at the next
    one: three deaths at one batch end the loader. Ends after `count` kills.
    """

    UNDER_WAY = 10  # of four workers: two for each, and those that the trainer holds

    def __init__(self, iterator, draw, count):
        self.iterator, self.draw, self.count = iterator, draw, count
        self.batches, self.kills, self.error = 0, 0, None
        self._at = -self.UNDER_WAY  # the number of batches at the latest kill
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while self.kills < self.count and not self.over.wait(self.draw.uniform(0.010, 0.020)):
            if self.batches < self._at + self.UNDER_WAY:
                continue
            pid = self.draw.choice(pids_of(self.iterator))
            with contextlib.suppress(ProcessLookupError):  # the one before ended already
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
                self._at = self.batches
        self.over.set()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *details):
        self.over.set()
        self._thread.join()


# ---- Workers that are killed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method, kills", [("fork", KILLS), ("forkserver", KILLS // 10)])
def test_workers_killed_at_random_moments_cost_no_batch(host, draw, method, kills):
    def loader(samples):
        return pinfeed.DataLoader(Numbers(samples, slow), 2, num_workers=4, multiprocessing_context=method, address=host.address)

    assert sum(len(batch[0]) for batch in loader(20)) == 20  # what stays for good is there now
    before = descriptors()
    iterator, expected = iter(loader(ENDLESS)), 0
    with Killer(iterator, draw, kills) as killer:
        for index, values in iterator:
            assert index.tolist() == [expected, expected + 1] and values.tolist() == [[expected] * 100, [expected + 1] * 100]
            expected += 2
            killer.batches += 1
            if killer.over.is_set():
                break
    assert killer.kills == kills
    del iterator, killer, index, values
    assert descriptors() == before
    assert "hung up, and its process lives" not in host.log()


def test_workers_that_are_all_killed_at_once_cost_no_batch(host):
    """While the trainer is busy, and again and again."""
    iterator = iter(pinfeed.DataLoader(Numbers(200, slow), 2, num_workers=4, address=host.address))
    seen = []
    for index, _ in iterator:
        seen += index.tolist()
        if len(seen) in (20, 60, 100):
            killed = living_of(iterator)
            for pidfd in killed:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            assert killed and all(map(ended, killed))
    assert seen == list(range(200))


def keeps_a_child(index):
    """The first sample starts a process that has all descriptors of the worker, and lives longer."""
    if index == 0 and not os.fork():
        os.close(ENDS_WITH_TEST[1])
        os.read(ENDS_WITH_TEST[0], 1)
        os._exit(0)
    return place_of_worker(index)


ENDS_WITH_TEST = [-1, -1]


def test_a_killed_worker_is_replaced_though_a_child_of_it_lives(host):
    ENDS_WITH_TEST[:] = os.pipe()
    iterator = iter(pinfeed.DataLoader(Numbers(400, keeps_a_child), 2, num_workers=1, multiprocessing_context="fork", timeout=DEADLINE_S, address=host.address))
    seen, pids = [], set()
    for index, pid, *_ in iterator:
        seen += index.tolist()
        pids |= set(pid.tolist())
        if len(seen) == 10:
            os.kill(pids_of(iterator)[0], signal.SIGKILL)
    assert seen == list(range(400)) and len(pids) == 2
    del iterator, index, pid, _
    gc.collect()
    for fd in ENDS_WITH_TEST:
        os.close(fd)


class StopsWorkers:
    """Makes samples. Of some of them, so many workers stop that begin them."""

    def __init__(self, workers):
        self._pipes = {index: os.pipe() for index in workers}
        for index, (reader, writer) in self._pipes.items():
            os.write(writer, b"1" * workers[index])
            os.set_blocking(reader, False)

    def __call__(self, index):
        if index in self._pipes:
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipes[index][0], 1)
                os.kill(os.getpid(), signal.SIGSTOP)
        return index

    def close(self):
        for pipe in self._pipes.values():
            for end in pipe:
                os.close(end)


def test_a_worker_that_is_stopped_delays_its_batches_only(host):
    stops = StopsWorkers({100: 1})
    iterator = iter(pinfeed.DataLoader(Numbers(400, stops), 2, num_workers=4, multiprocessing_context="fork", timeout=DEADLINE_S, address=host.address))
    seen, seen_while_stopped = [], []

    def go_on():
        eventually("one is stopped", lambda: any(map(is_stopped, pids_of(iterator))))
        (stopped,) = filter(is_stopped, pids_of(iterator))
        eventually("the others have filled all places", lambda: pinfeed.status(host.address)["feeds"][0].get("producers_busy") == 1 and len(seen) == 100)
        seen_while_stopped.extend(seen)
        os.kill(stopped, signal.SIGCONT)

    helper = threading.Thread(target=go_on)
    helper.start()
    for batch in iterator:
        seen += batch.tolist()
    helper.join()
    assert seen == list(range(400)) and len(seen_while_stopped) == 100
    stops.close()


@pytest.mark.parametrize("seeding", ["sample", "worker"])
@pytest.mark.parametrize("failing", range(5))  # a message of the epoch to each worker, the descriptor behind it, one to make the first batch, ...
def test_a_message_for_which_the_system_lacks_memory_costs_no_batch(host, monkeypatch, seeding, failing):
    trainer, told = os.getpid(), []

    def short(real):
        def send(*arguments):
            if os.getpid() == trainer:
                told.append(real)
                if len(told) == failing + 1:
                    raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            return real(*arguments)

        return send

    monkeypatch.setattr(multiprocessing.connection.Connection, "send", short(multiprocessing.connection.Connection.send))
    monkeypatch.setattr(multiprocessing.reduction, "send_handle", short(multiprocessing.reduction.send_handle))
    batches = pinfeed.DataLoader(Numbers(8), 2, num_workers=2, address=host.address, seeding=seeding, timeout=DEADLINE_S, multiprocessing_context="fork")
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len(told) > failing + 1


def hang_up():
    """Ends this worker's connection to the daemon: the only one that is no stream."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
            if one.type == socket.SOCK_SEQPACKET:
                one.shutdown(socket.SHUT_RDWR)


class HangsUpOnce:
    def __init__(self, path):
        self.path = path

    def __call__(self, index):
        with contextlib.suppress(FileExistsError):
            if index == 9:
                self.path.touch(exist_ok=False)
                hang_up()
        return index


@pytest.mark.parametrize("seeding", ["sample", "worker"])
def test_a_worker_whose_connection_ends_is_replaced(host, tmp_path, seeding, caplog):
    dataset = Numbers(20, HangsUpOnce(tmp_path / "hung-up"))
    batches = pinfeed.DataLoader(dataset, 2, num_workers=2, address=host.address, seeding=seeding, timeout=DEADLINE_S, multiprocessing_context="fork")
    assert [index for batch in batches for index in batch.tolist()] == list(range(20))
    assert (tmp_path / "hung-up").exists() and "another one takes its place" in caplog.text


def test_a_worker_that_fails_to_attach_behind_the_daemons_welcome_costs_no_batch(host, monkeypatch, caplog, capfd):
    """As where it has no room for the descriptor: the daemon deals it a batch, which waits for the end of its process."""
    real, failed = worker.Producer, multiprocessing.get_context("fork").Value("i", 0)

    def short(invitation):
        producer = real(invitation)
        with failed.get_lock():
            failed.value += 1
            if failed.value > 1:
                return producer
        assert producer.next() is not None
        producer.close()
        raise pinfeed.ResourceExhaustedError("receive the daemon's descriptors: not all arrived")

    monkeypatch.setattr(worker, "Producer", short)
    batches = pinfeed.DataLoader(Numbers(20, slow), 2, num_workers=2, address=host.address, timeout=DEADLINE_S, multiprocessing_context="fork")
    assert [index for batch, _ in batches for index in batch.tolist()] == list(range(20))
    assert failed.value > 1 and "another one takes its place" in caplog.text
    assert "lost its connection to the daemon" in capfd.readouterr().err  # and it has ended for no other reason


def test_a_worker_that_the_daemon_has_refused_tries_again(host, monkeypatch, caplog):
    """Its death would end the epoch of such a dataset. Only the text of the library tells a refusal from what comes behind a welcome."""
    real, refusals = worker.Producer, multiprocessing.get_context("fork").Value("i", 0)

    def refused_once(invitation):
        with refusals.get_lock():
            refusals.value += 1
            if refusals.value > 1:
                return real(invitation)
        other = messages().ProducerInvitation.FromString(invitation)
        other.token = bytes(len(other.token))
        return real(other.SerializeToString())

    monkeypatch.setattr(worker, "Producer", refused_once)
    batches = pinfeed.DataLoader(Stream(20), 2, num_workers=2, address=host.address, timeout=DEADLINE_S, multiprocessing_context="fork")
    assert sorted(index for batch in batches for index in batch.tolist()) == sorted(2 * list(range(20)))
    assert refusals.value > 1 and "another one takes its place" not in caplog.text


class StopsOnce:
    """Stops the process that writes it to a slot: the first one that has a descriptor of an empty pipe left."""

    def __init__(self, once):
        self.once = once

    def __reduce__(self):
        with contextlib.suppress(BlockingIOError):
            os.read(self.once, 1)
            os.kill(os.getpid(), signal.SIGSTOP)
        return str, ("written",)


class StopsInsideAWrite:
    """A collate_fn. The batch of sample 40 stops its worker when its tensor is in the slot, and what follows is not."""

    def __init__(self, once):
        self.once = once

    def __call__(self, samples):
        index = torch.tensor([sample[0] for sample in samples])
        values = torch.stack([sample[1] for sample in samples])
        return {"index": index, "values": values, "last": StopsOnce(self.once) if 40 in index else "written", "pid": os.getpid()}


def test_a_worker_that_stops_inside_a_write_costs_no_batch_and_spoils_none(host):
    once, end = os.pipe()
    os.write(end, b"1")
    os.set_blocking(once, False)
    loader = pinfeed.DataLoader(
        Numbers(20_000, slow), 2, num_workers=3, collate_fn=StopsInsideAWrite(once), multiprocessing_context="fork", retry_after=0.3, address=host.address
    )
    iterator, seen, late = iter(loader), [], None
    for batch in iterator:
        index = batch["index"].tolist()
        assert batch["values"].tolist() == [[each] * 100 for each in index] and batch["last"] == "written"
        seen += index
        if 40 in index:
            held = batch
            (late,) = filter(is_stopped, pids_of(iterator))
            eventually("status counts it", lambda: dealt_again(host) >= 1)
        if len(seen) == 300:
            os.kill(late, signal.SIGCONT)
        elif batch["pid"] == late and len(seen) > 300:
            break  # it is used again once it is done
    assert seen == list(range(len(seen))) and batch["pid"] == late
    assert held["values"].tolist() == [[40] * 100, [41] * 100]
    assert f"process {late} has not filled batch 20 of epoch 0 within 300 ms" in host.log()
    del iterator, batch, held
    os.close(once)
    os.close(end)


def test_a_worker_that_hangs_for_ever_costs_no_batch(host, impatient):
    iterator = iter(pinfeed.DataLoader(Numbers(400, slow), 2, num_workers=3, retry_after=0.2, address=host.address))
    seen = []
    for index, _ in iterator:
        seen += index.tolist()
        if len(seen) == 100:
            for pid in pids_of(iterator)[:2]:
                os.kill(pid, signal.SIGSTOP)
    assert seen == list(range(400))


@pytest.mark.parametrize("prefetch_factor", [1, 2])
@pytest.mark.parametrize("held, workers", [(2, {2: 1}), (1, {2: 1, 4: 1}), (2, {2: 1, 4: 1}), (1, {40: 2}), (1, {40: 1, 42: 1})])
def test_workers_that_hang_for_ever_hold_up_no_other(host, impatient, held, workers, prefetch_factor):
    """`held`: the batches that the trainer keeps. `workers`: how many stop, by the sample at which they do."""
    stops = StopsWorkers(workers)
    options = {"num_workers": 3, "prefetch_factor": prefetch_factor, "multiprocessing_context": "fork", "retry_after": 0.2, "timeout": DEADLINE_S}
    iterator = iter(pinfeed.DataLoader(Numbers(80, stops), 2, address=host.address, **options))
    seen, kept = [], collections.deque(maxlen=held)
    for batch in iterator:
        seen += batch.tolist()
        kept.append(batch)
    assert seen == list(range(80))
    del iterator, batch, kept
    gc.collect()
    stops.close()


def test_a_first_batch_that_hangs_goes_to_another_worker(host, impatient):
    loader = pinfeed.DataLoader(Numbers(20, slow), 2, num_workers=2, worker_init_fn=stop_first, seeding="sample", retry_after=0.2, address=host.address)
    assert [index for batch in loader for index in batch[0].tolist()] == list(range(20))


class Gates:
    """A dataset whose first sample waits, in each worker, until `open` was called for that worker."""

    def __init__(self, count, workers):
        self.count = count
        self.begun, self._begun = os.pipe()
        self._gates = [os.pipe() for _ in range(workers)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == 0:
            worker = torch.utils.data.get_worker_info().id
            os.write(self._begun, bytes([worker]))
            os.read(self._gates[worker][0], 1)
        return index, torch.utils.data.get_worker_info().id

    def open(self, worker):
        os.write(self._gates[worker][1], b"1")

    def close(self):
        for descriptor in (self.begun, self._begun, *(end for gate in self._gates for end in gate)):
            os.close(descriptor)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_first_batch_that_is_slow_everywhere_comes_from_the_first_worker_that_has_it(host, impatient, first):
    dataset = Gates(20, 3)
    loader = pinfeed.DataLoader(dataset, 2, num_workers=3, multiprocessing_context="fork", retry_after=0.2, timeout=DEADLINE_S, address=host.address)
    iterator = iter(loader)

    def open_one():
        begun = b""
        while len(begun) < 3:
            begun += os.read(dataset.begun, 1)
        assert sorted(begun) == [0, 1, 2]
        dataset.open(first)

    opener = threading.Thread(target=open_one)
    opener.start()
    batches = [(index.tolist(), worker.tolist()) for index, worker in iterator]
    opener.join()
    assert [index for indices, _ in batches for index in indices] == list(range(20))
    assert batches[0][1] == [first, first]
    del iterator
    gc.collect()
    dataset.close()


def test_a_batch_that_stops_all_workers_comes_from_the_one_that_goes_on(host, impatient):
    once, end = os.pipe()
    os.write(end, b"123")
    os.set_blocking(once, False)
    loader = pinfeed.DataLoader(
        Numbers(200, slow), 2, num_workers=3, collate_fn=StopsInsideAWrite(once), multiprocessing_context="fork", retry_after=0.2, address=host.address
    )
    iterator = iter(loader)
    seen = [next(iterator)["index"].tolist() for _ in range(20)]
    eventually("all have stopped", lambda: all(map(is_stopped, pids_of(iterator))))
    goes_on = pids_of(iterator)[1]
    os.kill(goes_on, signal.SIGCONT)
    batch = next(iterator)
    assert batch["pid"] == goes_on and batch["values"].tolist() == [[40] * 100, [41] * 100]
    seen += [batch["index"].tolist(), *(batch["index"].tolist() for batch in iterator)]
    assert seen == [[index, index + 1] for index in range(0, 200, 2)]
    del iterator, batch
    gc.collect()
    os.close(once)
    os.close(end)


def stop_first(worker):
    if worker == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


def dealt_again(daemon):
    return sum(int(feed.get("batches_dealt_again", 0)) for feed in pinfeed.status(daemon.address)["feeds"])


def test_a_stopped_worker_ends_with_its_epoch(host, impatient):
    iterator = iter(pinfeed.DataLoader(Numbers(ENDLESS, slow), 2, num_workers=2, address=host.address))
    next(iterator)
    workers = [os.pidfd_open(pid) for pid in pids_of(iterator)]
    signal.pidfd_send_signal(workers[0], signal.SIGSTOP)
    del iterator
    gc.collect()
    assert all(map(ended, workers))


# ---- A daemon that is killed --------------------------------------------------------------------------------------------------------


def test_a_daemon_killed_again_and_again_costs_no_batch(tmp_path):
    flags = ("--pool-bytes", "128MiB", "--workers", "2")
    running, seen = [Daemon(tmp_path / "run", *flags)], []
    try:
        for index, _ in pinfeed.DataLoader(Numbers(800, slow), 2, num_workers=4, address=running[0].address):
            seen += index.tolist()
            if len(seen) in (40, 42, 200, 500):
                running[-1].process.kill()
                running[-1].process.wait()
                running.append(Daemon(tmp_path / "run", *flags))
        assert seen == list(range(800))
    finally:
        running[-1].stop()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_begins_while_there_is_no_daemon_waits_for_one(tmp_path, caplog, persistent):
    flags = ("--pool-bytes", "128MiB", "--workers", "2")
    running = [Daemon(tmp_path / "run", *flags)]
    try:
        loader = pinfeed.DataLoader(Numbers(8), 2, num_workers=2, address=running[0].address, persistent_workers=persistent)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        running[0].process.kill()
        running[0].process.wait()

        def restart():
            eventually("the loader says that it waits", lambda: "waits for a daemon" in caplog.text)
            running.append(Daemon(tmp_path / "run", *flags))

        thread = threading.Thread(target=restart)
        thread.start()
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        thread.join()
        del loader
    finally:
        running[-1].stop()


def test_an_epoch_that_begins_while_the_daemon_is_stopped_waits_for_it(tmp_path, caplog, monkeypatch):
    running = Daemon(tmp_path / "run", "--pool-bytes", "128MiB", "--workers", "2")
    try:
        loader = pinfeed.DataLoader(Numbers(8), 2, num_workers=2, address=running.address)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        running.process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(produced_feed, "open_spec", functools.partial(produced_feed.open_spec, open_timeout=0.5))

        def resume():
            eventually("the loader says that it waits", lambda: "waits for a daemon" in caplog.text)
            monkeypatch.undo()
            running.process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=resume)
        thread.start()
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        thread.join()
        assert "did not answer in time" in caplog.text
        del loader
    finally:
        running.process.send_signal(signal.SIGCONT)
        running.stop()


def test_refusals_of_a_worker_end_the_epoch_and_not_those_of_many():
    pool = types.SimpleNamespace(generation=0, receive=lambda worker: ("again", 1, f"refused {worker}"))
    watcher = supervisor.Supervisor(pool, None, 0, None)
    for _ in range(supervisor._MAX_REFUSALS - 1):
        assert all(watcher._receive(worker) for worker in range(32))
    with pytest.raises(RuntimeError, match="cannot attach to their feed: refused 3"):
        watcher._receive(3)
    watcher.stop()


def test_a_worker_that_closed_its_pipe_and_was_ended_here_is_not_told_as_killed_by_the_system(monkeypatch, caplog):
    monkeypatch.setattr(worker_pool, "_EXIT_PATIENCE_S", 0.2)
    with pytest.raises(RuntimeError, match=r"closed its pipe to the trainer, had not ended 0.2 s later, and was ended") as caught:
        list(pinfeed.DataLoader(Numbers(8, lambda index: without_its_pipe()), 2, num_workers=1, multiprocessing_context="fork"))
    assert "memory may be short" not in str(caught.value) and "by signal" not in str(caught.value)


def without_its_pipe():
    """Closes the sockets of a worker, and stays."""
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.close(number)
    time.sleep(DEADLINE_S)


IGNORES = """
import os, signal, sys
import pinfeed
from loader_datasets import Numbers, place_of_worker

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
seen = []
for index, pid, *_ in pinfeed.DataLoader(Numbers(60, place_of_worker), 2, num_workers=2, address=sys.argv[1]):
    seen += index.tolist()
    if index[0] == 20:
        os.kill(int(pid[0]), 9)
assert seen == list(range(60)), seen
"""


def test_a_worker_is_replaced_where_sigchld_is_ignored(host, warm_torch):
    program = warm_torch.run(IGNORES, host.address, stderr=True)
    _, errors = program.communicate()
    assert program.returncode == 0 and "ended; its exit code is not known, because this program ignores SIGCHLD" in errors, errors


def test_a_worker_that_has_ended_is_sent_no_signal_where_sigchld_is_ignored():
    pool = worker_pool.WorkerPool.__new__(worker_pool.WorkerPool)
    reader, writer = os.pipe()
    os.write(writer, b"e")
    sent = []
    process = types.SimpleNamespace(pid=7, exitcode=None, is_alive=lambda: True, join=lambda timeout: None, kill=lambda: sent.append("kill"))
    pool.processes, pool.ends, pool.stopped = [process], [reader], True
    pool.pipes = [types.SimpleNamespace(send=without_memory)]
    pool._join(0.0, lambda each: each.kill())
    pool.send(0, "exit")
    (death,) = pool.deaths()
    assert sent == [] and "(pid 7) ended; its exit code is not known" in death
    os.close(reader)
    os.close(writer)


def without_memory(_message):
    raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))


def test_a_forked_child_ends_no_worker_of_its_parent(host):
    iterator = iter(pinfeed.DataLoader(Numbers(20), 2, num_workers=1, multiprocessing_context="fork", address=host.address))
    child = os.fork()
    if child == 0:
        iterator._pool.send(0, "exit")  # as the next() of an iterator that was interrupted in its first batch
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    worker_pid = pids_of(iterator)
    assert [batch.tolist()[0] for batch in iterator] == list(range(0, 20, 2))
    assert pids_of(iterator) == worker_pid


# ---- A trainer that is killed or interrupted ----------------------------------------------------------------------------------------

TRAINER = """
import multiprocessing, sys, threading
import pinfeed
from loader_datasets import Numbers, slow

multiprocessing.set_forkserver_preload(["torch"])

def begin():
    global iterator
    loader = pinfeed.DataLoader(Numbers(10**7, slow), 2, num_workers=2, multiprocessing_context=sys.argv[2], address=sys.argv[1])
    iterator = iter(loader)
    next(iterator)

if __name__ == "__main__":
    if sys.argv[3] == "thread":
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    else:
        begin()
    next(iterator)
    print(*[process.pid for process in iterator._pool.processes], flush=True)
    for batch in iterator:
        pass
"""


class Trainer:
    """A trainer in a session of its own, as in a terminal, and a pidfd of each of its workers."""

    def __init__(self, warm_torch, folder, daemon, method, where="main"):
        (folder / "trainer.py").write_text(TRAINER)  # which workers that are spawned import
        self.process = warm_torch.run(TRAINER, daemon.address, method, where, file=folder / "trainer.py", own_session=True, stderr=True)
        self.workers = [os.pidfd_open(int(pid)) for pid in self.process.stdout.readline().split()]
        assert len(self.workers) == 2

    def relatives(self):
        """The processes of its session: its workers, and those of multiprocessing."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(state[3]) == self.process.pid and state[0] != "Z":
                    found.append((int(folder.name), (folder / "cmdline").read_text().replace("\0", " ")))
        return found


@pytest.fixture
def trainer(tmp_path, host, warm_torch, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(HERE)]))
    started = []

    def start(*arguments):
        started.append(Trainer(warm_torch, tmp_path, host, *arguments))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_nothing_survives_a_killed_trainer_whose_iterator_a_short_thread_made(trainer, method):
    one = trainer(method, "thread")
    one.process.kill()
    one.process.wait()
    assert all(map(ended, one.workers))
    eventually(one.relatives, lambda: not one.relatives())


def test_a_worker_that_starts_after_its_trainer_has_ended_ends_without_a_word():
    job = "Job(None, None, 1, 0, False, None, (2**22 + 1, 1))"  # above every pid
    code = f"from pinfeed._worker.worker import Job, worker_main; worker_main(None, 0, {job})"
    ended_early = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=DEADLINE_S)
    assert (ended_early.returncode, ended_early.stderr) == (1, b"")


def test_a_worker_serves_a_trainer_that_proc_hides_from_it(host, monkeypatch):
    monkeypatch.setattr(worker, "process_start_time", lambda pid: 0)  # as with hidepid=2, and a trainer that is not dumpable
    loader = pinfeed.DataLoader(Numbers(8), 2, num_workers=1, multiprocessing_context="fork", address=host.address)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ctrl_c_in_a_terminal_leaves_nothing(trainer, method):
    one = trainer(method)
    os.killpg(one.process.pid, signal.SIGINT)
    _, errors = one.process.communicate(timeout=DEADLINE_S)
    # A worker that is still importing modules shows its own.
    assert one.process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors, errors
    assert all(map(ended, one.workers))
    eventually(one.relatives, lambda: not one.relatives())


def test_impatient_ctrl_c_leaves_nothing(trainer, draw):
    """Whatever the second one interrupts."""
    for _ in range(3):
        one = trainer("fork")
        while one.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(draw.uniform(0.001, 0.05))
        assert all(map(ended, one.workers))
        eventually(one.relatives, lambda: not one.relatives())  # noqa: B023


def test_a_killed_trainer_whose_worker_is_stopped_leaves_nothing_once_it_goes_on(trainer):
    one = trainer("fork")
    signal.pidfd_send_signal(one.workers[0], signal.SIGSTOP)
    one.process.kill()
    one.process.wait()
    signal.pidfd_send_signal(one.workers[0], signal.SIGCONT)
    assert all(map(ended, one.workers))
    eventually(one.relatives, lambda: not one.relatives())
