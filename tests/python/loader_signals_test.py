# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` when a signal handler raises, or closes, inside of `next`, and when workers are silent: no batch is lost, none comes twice, nobody
waits without a word.
"""

import errno
import gc
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import select
import signal
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from loader_datasets import Numbers, seeded  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._loader import first_batch, one_off, produced_feed, supervisor, worker_iterator, worker_pool  # noqa: E402

pytestmark = [pytest.mark.usefixtures("feeds"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]

PACKAGE = os.path.dirname(pinfeed.__file__)
FILES = {os.path.join(PACKAGE, name) for name in ("_loader/worker_iterator.py", "_loader/iterator.py", "_loader/produced_feed.py", "_worker/batch_memory.py", "_worker/lanes.py")}


class Interrupted(Exception):
    pass


class Interruption:
    """Raises `error` at event number `place`, as a signal handler would: when a function of FILES begins, or where one has called a function in C."""

    def __init__(self, place, error):
        self.place, self.error, self.over = place, error, False

    def __call__(self, frame, event, argument):
        if event not in ("call", "c_return") or frame.f_code.co_filename not in FILES:
            return
        self.place -= 1
        if self.place < 0:
            self.over = True
            sys.setprofile(None)
            raise self.error

    def __enter__(self):
        gc.disable()  # what __del__ raises goes nowhere
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        gc.enable()


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted])
@pytest.mark.parametrize("seeding", ["sample", "worker"])
def test_no_batch_is_lost_or_comes_twice_wherever_a_signal_handler_raises(seeding, error):
    loader = pinfeed.DataLoader(Numbers(12), num_workers=2, seeding=seeding)
    iterator = iter(loader)
    seen, places = [next(iterator).item()], 0
    while len(seen) < 12:  # each batch comes after calls that are interrupted at one more place each time, until one is not
        interruption = Interruption(places, error("by a signal handler"))
        before = loader.state_dict()
        try:
            with interruption:
                batch = next(iterator).item()
        except error:
            after = loader.state_dict()
            assert (after["batches"], after["lanes"]) == (before["batches"], before["lanes"])
            places += 1
            continue
        assert not interruption.over, "the exception was swallowed"
        seen.append(batch)
        places = 0
    assert seen == list(range(12))
    assert next(iterator, None) is None


class Counting(torch.utils.data.IterableDataset):
    def __init__(self, count, made):
        self.count, self.made = count, made

    def __iter__(self):
        return map(self.made, range(self.count))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("place", [(one_off.OneOffBatches, "advance"), (produced_feed.ProducedFeed, "take"), (worker_iterator, "open_produced"), (supervisor.Supervisor, "stop")],
                         ids=lambda place: place[1])  # fmt: skip
def test_a_handler_may_close_the_iterator_inside_of_next(monkeypatch, persistent, place):
    loader = pinfeed.DataLoader(Numbers(100), num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    owner, name = place
    original = getattr(owner, name)

    def interrupted(*arguments):
        monkeypatch.undo()
        lock = getattr(arguments[0], "_lock", None)
        if lock is None:
            iterator.close()
        else:
            with lock:
                iterator.close()
        return original(*arguments)

    monkeypatch.setattr(owner, name, interrupted)
    seen = []
    try:
        for batch in iterator:
            seen.append(batch.item())
    except pinfeed.Error as error:
        assert error.code is pinfeed.Code.CANCELLED
    assert seen == list(range(len(seen))) and (len(seen) < 100 or name == "stop")
    if len(seen) < 100:
        assert loader.state_dict()["batches"] == len(seen)
    with pytest.raises(StopIteration):
        next(iterator)
    assert [batch.item() for batch in loader] == list(range(100))


def test_a_handler_may_close_the_iterator_before_next_has_begun():
    loader = pinfeed.DataLoader(Numbers(40), num_workers=2)
    iterator = iter(loader)
    assert next(iterator).item() == 0

    class Interrupted(dict):
        def setdefault(self, *arguments):
            iterator.close()
            return super().setdefault(*arguments)

    iterator._in_next = Interrupted()
    with pytest.raises(StopIteration):
        next(iterator)
    assert loader.state_dict()["batches"] == 1


def once(call, place, name, monkeypatch):
    """The next call of this function makes another one first, as a signal handler may."""
    original = getattr(place, name)

    def interrupted(*arguments):
        monkeypatch.setattr(place, name, original)
        call()
        return original(*arguments)

    monkeypatch.setattr(place, name, interrupted)


def raising(error):
    """A function that raises this."""

    def call(*_):
        raise error

    return call


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("calls", [lambda function: function(), in_thread], ids=["handler", "thread"])
@pytest.mark.parametrize("kind", [Numbers, Counting])
def test_an_iterator_without_workers_may_be_closed_inside_of_next(kind, calls):
    def made(index):
        if index == 3:
            calls(iterator.close)
        return index

    loader = pinfeed.DataLoader(kind(8, made))
    iterator = iter(loader)
    assert [batch.item() for batch in iterator] == [0, 1, 2, 3]
    assert loader.state_dict()["batches"] == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_handler_that_takes_a_batch_or_begins_an_epoch_inside_of_next_is_refused(workers, monkeypatch):
    loader = pinfeed.DataLoader(Numbers(8), num_workers=workers, persistent_workers=workers > 0)
    iterator = iter(loader)
    assert next(iterator).item() == 0
    check, refused = iterator._check_length, []

    def interrupted():
        monkeypatch.undo()
        for call, given in [(next, iterator), (iter, loader)][: 1 + (workers > 0)]:
            with pytest.raises(RuntimeError, match=r"within (its )?next\(\)") as error:
                call(given)
            refused.append(error)
        check()

    monkeypatch.setattr(iterator, "_check_length", interrupted)
    assert [batch.item() for batch in iterator] == list(range(1, 8)) and refused
    assert len(list(loader)) == 8


@pytest.mark.parametrize("persistent", [False, True])
def test_another_thread_may_close_the_iterator_while_its_first_batch_is_made(monkeypatch, persistent):
    monkeypatch.setattr(worker_pool, "_EXIT_PATIENCE_S", 0.1)
    reader, writer = os.pipe()
    gate = select.poll()
    gate.register(reader, select.POLLIN)  # nobody reads what comes: it stays open
    made = Numbers(8, lambda index: index if gate.poll(60_000) else -1)
    loader = pinfeed.DataLoader(made, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork")
    iterator = iter(loader)
    closer = threading.Thread(target=iterator.close)
    once(closer.start, first_batch.FirstBatch, "take", monkeypatch)
    with pytest.raises(pinfeed.Error, match="closed while it waited") as error:
        next(iterator)
    assert error.value.code is pinfeed.Code.CANCELLED
    os.write(writer, b"1")
    assert [batch.item() for batch in loader] == list(range(8))  # also while that thread still closes
    closer.join()
    os.close(reader)
    os.close(writer)


def test_a_close_while_another_thread_is_in_the_sampler_waits_little_and_an_epoch_is_refused(monkeypatch):
    monkeypatch.setattr(worker_iterator, "_CLOSE_PATIENCE_S", 0.1)
    asked, given = threading.Event(), threading.Event()

    class Sampler:
        def __iter__(self):
            yield from range(8)
            asked.set()
            assert given.wait(60)
            yield 8

    def take():
        try:
            seen.extend(batch.item() for batch in iterator)
        except RuntimeError as error:
            ended.append(str(error))

    loader = pinfeed.DataLoader(Numbers(9), sampler=Sampler(), num_workers=1, prefetch_factor=1, persistent_workers=True)
    iterator, seen, ended = iter(loader), [], []
    taker = threading.Thread(target=take)
    taker.start()
    assert asked.wait(60)
    iterator.close()
    with pytest.raises(RuntimeError, match=r"cannot begin within next\(\)"):
        iter(loader)
    given.set()
    taker.join()
    assert "another one was to begin" in ended[0]
    assert seen == list(range(len(seen))) and len(seen) < 9 and loader.state_dict()["batches"] == len(seen)
    assert [batch.item() for batch in loader] == list(range(9))


def test_a_handler_that_takes_a_batch_while_next_closes_the_iterator_gets_none(monkeypatch):
    loader = pinfeed.DataLoader(Numbers(8), num_workers=2)
    iterator = iter(loader)
    check, close_feed, given = iterator._check_length, iterator._close_feed, []
    monkeypatch.setattr(iterator, "_check_length", lambda: check() or iterator.close())
    monkeypatch.setattr(iterator, "_close_feed", lambda: given.append(next(iterator, None)) or close_feed())
    assert [batch.item() for batch in iterator] == [0] and given == [None]
    assert loader.state_dict()["batches"] == 1


@pytest.mark.parametrize("seeding", ["sample", "worker"])
@pytest.mark.parametrize("place", [(worker_iterator.WorkerIterator, "_append"), (worker_pool, "wait")], ids=lambda place: place[1])
def test_a_handler_may_ask_for_the_state_while_iter_begins_an_epoch(monkeypatch, seeding, place):
    def make():
        return pinfeed.DataLoader(Numbers(8), shuffle=True, generator=seeded(), num_workers=2, persistent_workers=True, seeding=seeding)

    plain, loader, states = make(), make(), []
    expected = [[batch.item() for batch in plain] for _ in range(3)]
    original = getattr(*place)
    assert [batch.item() for batch in loader] == expected[0]

    def interrupted(*arguments):
        done = original(*arguments)
        monkeypatch.undo()
        try:
            states.append(loader.state_dict())
        except pinfeed.Error as error:
            assert "take the state once it has returned" in str(error)
        return done

    monkeypatch.setattr(*place, interrupted)
    assert [[batch.item() for batch in loader] for _ in range(2)] == expected[1:]
    for state in states:
        other = make()
        other.load_state_dict(state)
        assert [batch.item() for batch in other] == expected[1]


def test_a_handler_may_ask_for_the_state_while_next_or_state_dict_waits_for_the_end_of_an_epoch(monkeypatch):
    loader, states = pinfeed.DataLoader(Numbers(8), num_workers=2, persistent_workers=True, seeding="worker"), []
    once(lambda: states.append(loader.state_dict()), worker_iterator.WorkerIterator, "_close_feed", monkeypatch)
    assert len(list(loader)) == 8 and states[0]["batches"] == 8
    once(lambda: pytest.raises(pinfeed.Error, loader.state_dict).match("once it has returned"), worker_pool, "wait", monkeypatch)
    assert not loader.state_dict()["running"]
    assert len(list(loader)) == 8


def test_a_handler_that_begins_an_epoch_while_next_ends_one_is_refused(monkeypatch):
    loader = pinfeed.DataLoader(Numbers(8), num_workers=2, persistent_workers=True)
    once(lambda: pytest.raises(RuntimeError, iter, loader).match("cannot begin within next"), worker_iterator.WorkerIterator, "_close_feed", monkeypatch)
    assert len(list(loader)) == len(list(loader)) == 8


class Hundreds(torch.utils.data.IterableDataset):
    """Each worker's epochs go on."""

    def __init__(self):
        self.position, self.epoch = 0, 0

    def __iter__(self):
        while self.position < 4:
            self.position += 1
            yield self.position - 1 + 100 * self.epoch
        self.position, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.position, self.epoch = state["position"], state["epoch"]


class Large(Hundreds):
    """With a state that takes several reads."""

    def state_dict(self):
        return {**super().state_dict(), "buffer": b"\x00\x00\x01\x00" * (1 << 20)}  # which looks like the lengths of messages


@pytest.mark.parametrize(
    "where",
    [(worker_pool.WorkerPool, "_receive_start"), (multiprocessing.connection.Connection, "_recv"), (worker_pool.WorkerPool, "begin_epoch"),
     (worker_iterator.WorkerIterator, "_append"), (worker_iterator, "open_produced")],
    ids=lambda where: where[1],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Hundreds, Large])
def test_workers_whose_states_an_interrupt_may_have_cost_are_replaced_where_they_were(monkeypatch, kind, where):
    loader = pinfeed.DataLoader(kind(), num_workers=2, persistent_workers=True)
    for epoch in range(2):
        assert sorted(batch.item() for batch in loader) == sorted(2 * [100 * epoch + number for number in range(4)])
        once(raising(KeyboardInterrupt), *where, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)


def test_an_iter_that_fails_behind_an_epoch_left_early_does_not_begin_anew_without_a_word(monkeypatch):
    loader = pinfeed.DataLoader(Hundreds(), num_workers=2, persistent_workers=True)
    assert sorted(batch.item() for batch in loader) == sorted(2 * list(range(4)))
    iterator = iter(loader)
    seen = [next(iterator).item() for _ in range(3)]
    iterator.close()
    once(raising(pinfeed.ResourceExhaustedError(pinfeed.Code.RESOURCE_EXHAUSTED, "no room")), worker_iterator, "open_produced", monkeypatch)
    with pytest.raises(pinfeed.ResourceExhaustedError):
        iter(loader)
    for _ in range(2):  # it is told until a state is loaded
        with pytest.raises(pinfeed.Error, match=r"load_state_dict\(state_dict\(\)\) continues that epoch"):
            iter(loader)
    loader.load_state_dict(loader.state_dict())
    assert sorted([*seen, *(batch.item() for batch in loader)]) == sorted(2 * [100 + number for number in range(4)])


def test_workers_that_were_told_of_nothing_outlive_an_iter_that_failed(monkeypatch):
    loader = pinfeed.DataLoader(Hundreds(), num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    workers = [process.pid for process in iterator._pool.processes]
    once(raising(OSError(errno.EMFILE, "no descriptor is left")), worker_iterator, "IndexLog", monkeypatch)
    with pytest.raises(OSError, match="no descriptor is left"):
        iter(loader)
    iterator = iter(loader)
    assert [process.pid for process in iterator._pool.processes] == workers
    iterator.close()


class FailsOnce:
    fails = False

    def __len__(self):
        return 8

    def __iter__(self):
        if self.fails:
            self.fails = False
            raise OSError("the list of samples is away")
        return iter(range(8))


def test_new_workers_behind_an_iter_that_failed_have_random_numbers_of_their_own():
    order = FailsOnce()
    loader = pinfeed.DataLoader(Numbers(8, lambda _: torch.rand(())), None, sampler=order, num_workers=2, persistent_workers=True, seeding="worker", multiprocessing_context="fork")
    first = [batch.item() for batch in loader]
    loader._pool.stop()  # as when they keep dying
    order.fails = True
    with pytest.raises(OSError, match="is away"):
        iter(loader)
    assert not set(first) & {batch.item() for batch in loader}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops what __del__ raises
@pytest.mark.parametrize("where", [(produced_feed.ProducedFeed, "close"), (supervisor.Supervisor, "stop")], ids=lambda where: where[1])
def test_an_interrupt_while_a_dropped_iterator_closes_leaves_no_worker(monkeypatch, where):
    iterator = iter(pinfeed.DataLoader(Numbers(40), 4, num_workers=2))
    next(iterator)
    workers = iterator._pool.processes
    once(raising(KeyboardInterrupt), *where, monkeypatch)
    del iterator
    gc.collect()
    assert [worker.is_alive() for worker in workers] == [False, False]


def test_a_message_that_an_interrupt_has_cut_is_not_read_on(monkeypatch):
    loader = pinfeed.DataLoader(Large(), num_workers=2, persistent_workers=True)
    for epoch in range(2):
        assert sorted(batch.item() for batch in loader) == sorted(2 * [100 * epoch + number for number in range(4)])
        reads = itertools.count()

        def read(descriptor, size, read=os.read, reads=reads):
            if size > 1 << 16 and next(reads) == 2:
                raise KeyboardInterrupt
            return read(descriptor, size)

        monkeypatch.setattr(multiprocessing.connection.Connection._recv, "__defaults__", (read,))
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        monkeypatch.setattr(multiprocessing.connection.Connection._recv, "__defaults__", (os.read,))


class Plain(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(4))


def test_workers_without_a_state_are_all_replaced_after_an_interrupt(monkeypatch):
    loader = pinfeed.DataLoader(Plain(), num_workers=3, persistent_workers=True)
    assert len(list(loader)) == 12
    receive = worker_pool.WorkerPool._receive_start

    def second(pool, number):
        monkeypatch.setattr(worker_pool.WorkerPool, "_receive_start", raising(KeyboardInterrupt))
        return receive(pool, number)

    monkeypatch.setattr(worker_pool.WorkerPool, "_receive_start", second)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    monkeypatch.setattr(worker_pool.WorkerPool, "_receive_start", receive)
    assert len(list(loader)) == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_whose_close_is_interrupted_gives_no_batch_behind_the_position_that_it_left(monkeypatch, workers):
    loader = pinfeed.DataLoader(Numbers(8), num_workers=workers, persistent_workers=workers > 0)
    iterator = iter(loader)
    assert [next(iterator).item() for _ in range(3)] == [0, 1, 2]
    leave = type(iterator)._leave

    def interrupted(self):
        leave(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(iterator), "_leave", interrupted)
    with pytest.raises(KeyboardInterrupt):
        iterator.close()
    monkeypatch.setattr(type(iterator), "_leave", leave)
    assert loader.state_dict()["batches"] == 3
    with pytest.raises(StopIteration):
        next(iterator)


def test_without_workers_a_stream_has_no_state_while_its_samples_are_with_nobody():
    refused = []

    def collate(samples):
        if samples[0] == 2:
            refused.append(pytest.raises(pinfeed.Error, loader.state_dict).match("that nobody has got yet"))
        return samples

    loader = pinfeed.DataLoader(Hundreds(), 2, collate_fn=collate)
    assert list(loader) == [[0, 1], [2, 3]] and len(refused) == 1
    assert not loader.state_dict()["running"]


def test_an_iterator_leaves_its_position_behind_a_failed_epoch(monkeypatch):
    loader = pinfeed.DataLoader(Numbers(8), num_workers=2)
    iterator = iter(loader)
    assert [next(iterator).item() for _ in range(3)] == [0, 1, 2]
    once(raising(OSError("no process")), worker_pool.WorkerPool, "_start_process", monkeypatch)
    with pytest.raises(OSError, match="no process"):
        iter(loader)
    assert loader.state_dict()["batches"] == 3
    iterator.close()
    assert loader.state_dict()["batches"] == 3


def test_a_batch_that_is_being_copied_to_the_gpu_is_not_behind_the_state(monkeypatch):
    loader, states = pinfeed.DataLoader(Numbers(8)), []
    iterator = iter(loader)
    iterator._finish = lambda batch: states.append(loader.state_dict()["batches"]) or batch
    assert [next(iterator).item() for _ in range(2)] == [0, 1] and states == [0, 1]
    assert loader.state_dict()["batches"] == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_workers_that_cannot_be_replaced_between_epochs_are_all_replaced(monkeypatch, error):
    loader = pinfeed.DataLoader(Numbers(8), num_workers=2, persistent_workers=True, seeding="worker")
    iterator = iter(loader)
    assert [next(iterator).item() for _ in range(8)] == list(range(8))
    process = loader._pool.processes[1]
    os.kill(process.pid, signal.SIGSTOP)  # so that it does not tell that it has ended the epoch
    assert next(iterator, None) is None
    process.kill()
    process.join()

    once(raising(error), worker_pool.WorkerPool, "_start_process", monkeypatch)
    with pytest.raises(error):
        iter(loader)
    assert [batch.item() for batch in loader] == list(range(8))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_epoch_whose_first_worker_cannot_be_replaced_ends(monkeypatch, tmp_path, error):
    go = tmp_path / "go"

    def made(index):
        while not go.exists():
            time.sleep(0.01)
        return index

    loader = pinfeed.DataLoader(Numbers(8, made), num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    process = iterator._pool.processes[0]
    process.kill()
    process.join()
    go.touch()

    once(raising(error), worker_pool.WorkerPool, "_start_process", monkeypatch)
    with pytest.raises(error):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert [batch.item() for batch in loader] == list(range(8))


def test_an_interrupted_end_leaves_no_worker_that_is_stopped(monkeypatch):
    iterator = iter(pinfeed.DataLoader(Numbers(80), num_workers=2))
    assert next(iterator).item() == 0
    processes = iterator._pool.processes
    os.kill(processes[1].pid, signal.SIGSTOP)

    once(raising(KeyboardInterrupt), worker_pool, "wait", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        iterator.close()
    assert [process.is_alive() for process in processes] == [False, False]


class Waits(Numbers):
    """Its samples wait for an event."""

    def __getitem__(self, index):
        assert self.event.wait(60)
        return super().__getitem__(index)


class Own(multiprocessing.context.BaseContext):
    """A context that has no name of a start method."""

    Process = multiprocessing.context.ForkProcess


@pytest.mark.parametrize("context, told", [("fork", True), (Own(), True), ("forkserver", False)])
def test_a_first_batch_that_does_not_come_is_told(monkeypatch, caplog, context, told):
    monkeypatch.setattr(first_batch, "_PATIENCE_S", 0.2)
    dataset = Waits(4, int)
    dataset.event = multiprocessing.get_context("spawn").Event()
    iterator = iter(pinfeed.DataLoader(dataset, num_workers=1, multiprocessing_context=context))

    class Goes(logging.Handler):
        def emit(self, record):
            if "is still being made" in record.getMessage():
                dataset.event.set()

    handler = Goes()
    logging.getLogger("pinfeed").addHandler(handler)
    try:
        assert [batch.item() for batch in iterator] == [0, 1, 2, 3]
    finally:
        logging.getLogger("pinfeed").removeHandler(handler)
    assert "its first one, batch 0, is still being made (pid " in caplog.text
    assert ('multiprocessing_context="forkserver"' in caplog.text) == told


def test_a_worker_that_reads_no_message_holds_nobody_up():
    loader = pinfeed.DataLoader(Numbers(8), num_workers=2, persistent_workers=True, retry_after=0.05)
    expected = list(range(8))
    assert [batch.item() for batch in loader] == expected
    process = loader._pool.processes[1]
    os.kill(process.pid, signal.SIGSTOP)
    for _ in range(300):
        assert [batch.item() for batch in loader] == expected
        if loader._pool.processes[1] is not process:
            break
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
