# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` with worker processes and a real daemon: the same batches as torch's, and what happens when processes end.

Long because: each row of docs/dataloader.md about workers is a test, with the same daemon and datasets.
"""

import contextlib
import errno
import functools
import gc
import multiprocessing
import os
import pickle
import random
import resource
import select
import signal
import subprocess
import sys
import time

import numpy
import pytest

torch = pytest.importorskip("torch")

from daemon_process import Daemon  # noqa: E402
from loader_datasets import STRUCTURES, Batched, Numbers, Shards, all_same, big, deadly, failing, growing, place_of_worker, randoms, seeded, talkative, tensor, values  # noqa: E402
from withstand.hardship import eventually  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._worker import worker  # noqa: E402

TorchLoader = torch.utils.data.DataLoader
METHODS = ("fork", "spawn", "forkserver")

pytestmark = [pytest.mark.usefixtures("nothing_is_left", "feeds"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]


def gone(pidfds):
    """Whether the processes end within a minute."""
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    waiting = set(pidfds)
    while waiting:
        ready = poll.poll(60000)
        if not ready:
            return False
        for pidfd, _ in ready:
            poll.unregister(pidfd)
            os.close(pidfd)
            waiting.discard(pidfd)
    return True


# ---- beside torch's -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"batch_size": 4}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}, {"batch_sampler": [[3], [1, 2], [2, 3, 4]]}])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_batches_are_torchs(structure, arguments):
    dataset = Numbers(14, STRUCTURES[structure])
    loader = pinfeed.DataLoader(dataset, num_workers=2, **arguments)
    for _ in range(2):
        assert all_same(loader, TorchLoader(dataset, **arguments))


def test_the_order_is_torchs():
    orders = []
    for kind in (TorchLoader, pinfeed.DataLoader):
        torch.manual_seed(4)
        loader = kind(Numbers(30), 4, shuffle=True, num_workers=2)
        orders.append([values(loader) for _ in range(2)])
    assert orders[0] == orders[1]


def uneven(index):
    return {"tokens": list(range(index % 5)), "index": index}


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_come_ragged_or_padded(workers):
    for batch in pinfeed.DataLoader(Numbers(20, uneven), 4, num_workers=workers, ragged="tokens", max_batch_bytes=1 << 16 if workers else None):
        assert batch["tokens"].tolist() == [list(range(index % 5)) for index in batch["index"].tolist()]
    for batch in pinfeed.DataLoader(Numbers(20, uneven), 4, num_workers=workers, pad=-1):
        assert batch["tokens_length"].tolist() == [index % 5 for index in batch["index"].tolist()]
        assert all(row[length:].eq(-1).all() for row, length in zip(batch["tokens"], batch["tokens_length"].tolist()))
    for arguments in ({"collate_fn": list}, {"batch_size": None}):
        with pytest.raises(ValueError, match="pad: applies to batches that are collated by default"):
            pinfeed.DataLoader(Numbers(20, uneven), pad=0, num_workers=workers, **arguments)


def test_batches_come_in_order_even_if_they_need_not():
    assert values(pinfeed.DataLoader(Numbers(40), 4, num_workers=3, in_order=False)) == values(TorchLoader(Numbers(40), 4))


@pytest.mark.parametrize("method", METHODS)
def test_every_start_method_serves(method):
    dataset = Numbers(10, place_of_worker)
    loader = pinfeed.DataLoader(dataset, 2, num_workers=2, multiprocessing_context=method, worker_init_fn=functools.partial(print, end=""))
    batches = list(loader)
    assert [index for batch in batches for index in batch[0].tolist()] == list(range(10))
    assert os.getpid() not in {pid for batch in batches for pid in batch[1].tolist()}
    for _, _, number, count, threads in batches:
        assert set(number.tolist()) <= {0, 1} and set(count.tolist()) == {2} and set(threads.tolist()) == {1}


class OnlyInWorkers(Numbers):
    """Refuses to load where it was made."""

    def __init__(self, count, make):
        super().__init__(count, make)
        self.trainer = os.getpid()

    def __getitem__(self, index):
        if os.getpid() == self.trainer:
            raise AssertionError("a sample was loaded in the trainer's process")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"seeding": "worker"}, {"batch_size": None}, {"pad": 0}, {"retry_after": 60}, {"persistent_workers": True}, {"share": "broadcast", "group": "alone", "group_size": 1}],
    ids=str,
)
def test_no_sample_is_loaded_in_the_trainer(arguments):
    loader = pinfeed.DataLoader(OnlyInWorkers(12, uneven if "pad" in arguments else tensor), **{"batch_size": 3, "num_workers": 2, **arguments})
    assert [len(list(loader)) for _ in range(2)] == [len(loader)] * 2
    loader.state_dict()


def print_worker(number):
    print(f"worker {number}\n", end="")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_workers_print_comes_where_the_trainer_prints(method, capfd):
    arguments = {"num_workers": 2, "multiprocessing_context": method, "worker_init_fn": print_worker}
    assert values(pinfeed.DataLoader(Numbers(8, talkative), 2, **arguments)) == values(TorchLoader(Numbers(8), 2))
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(["worker 0", "worker 1", *(f"{what} {index}" for what in ("sample", "bytes") for index in range(8))])
    assert sorted(err.splitlines()) == [f"warning {index}" for index in range(8)]


def test_custom_collation_and_whole_batches():
    collated = list(pinfeed.DataLoader(Numbers(5), 2, num_workers=2, collate_fn=lambda samples: (sum(samples), os.getpid()), multiprocessing_context="fork"))
    assert [total for total, _ in collated] == [1, 5, 4] and os.getpid() not in {pid for _, pid in collated}
    assert values(pinfeed.DataLoader(Batched(5), 2, num_workers=1)) == [[0, 1], [2, 3], [4]]


def test_with_max_batch_bytes_all_workers_begin_at_once():
    met, first = multiprocessing.get_context("fork").Barrier(2), []

    def wait(index):
        if not first:
            first.append(met.wait(30))
        return index

    batches = pinfeed.DataLoader(Numbers(8, wait), 1, num_workers=2, max_batch_bytes=1 << 16, multiprocessing_context="fork")
    assert [batch.item() for batch in batches] == list(range(8))


class Meeting(torch.utils.data.IterableDataset):
    """As MosaicML's StreamingDataset: the workers wait for one another before each one's first sample of an epoch."""

    def __init__(self, met):
        self.met = met

    def __iter__(self):
        if self.met is not None:
            self.met.wait(30)
        info = torch.utils.data.get_worker_info()
        yield from range(info.id, 11, info.num_workers)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_stream_may_wait_for_one_another(persistent):
    met = multiprocessing.get_context("fork").Barrier(3)
    loader = pinfeed.DataLoader(Meeting(met), 2, num_workers=3, persistent_workers=persistent, multiprocessing_context="fork")
    expected = values(TorchLoader(Meeting(None), 2, num_workers=3))
    assert [values(loader) for _ in range(2)] == [expected] * 2
    assert next(iter(loader)).tolist() == expected[0]
    assert values(loader) == expected


def test_workers_with_random_numbers_of_their_own_may_wait_for_one_another():
    met, first = multiprocessing.get_context("fork").Barrier(2), []

    def wait(index):
        if not first:
            first.append(met.wait(30))
        return index + torch.rand(()).item()

    def batches(kind, **arguments):
        torch.manual_seed(3)
        return values(kind(Numbers(8, wait), 1, num_workers=2, multiprocessing_context="fork", **arguments))

    assert batches(pinfeed.DataLoader, seeding="worker") == batches(TorchLoader)


class DiesWhileOthersWait(Meeting):
    def __init__(self, met, died):
        self.met, self.died = met, died

    def __iter__(self):
        if torch.utils.data.get_worker_info().id == 1 and not self.died.value:
            self.died.value = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__iter__()


def test_a_worker_that_dies_while_another_one_waits_for_it_is_replaced():
    context = multiprocessing.get_context("fork")
    loader = pinfeed.DataLoader(DiesWhileOthersWait(context.Barrier(2), context.Value("i", 0)), 2, num_workers=2, multiprocessing_context="fork")
    assert values(loader) == values(TorchLoader(Meeting(None), 2, num_workers=2))


def test_workers_without_a_batch_do_not_hold_up_the_first_one():
    assert values(pinfeed.DataLoader(range(1), num_workers=3, seeding="worker")) == [[0]]


def test_a_small_max_batch_bytes_is_an_error_with_advice():
    for workers in ({"num_workers": 1}, {"num_workers": 1, "seeding": "worker"}):
        iterator = iter(pinfeed.DataLoader([torch.ones(2000)] * 4, max_batch_bytes=1, **workers))
        for _ in range(4):
            with pytest.raises(pinfeed.ResourceExhaustedError, match="give max_batch_bytes=[0-9]+ or more"):
                next(iterator)


class OfNoLength:
    def __iter__(self):
        return iter(range(4))

    def __len__(self):
        raise RuntimeError("of unknown length")


class OfManySamples(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(4))

    def __len__(self):
        return 10**20


def test_a_length_that_cannot_be_had_stops_nothing():
    for loader in (pinfeed.DataLoader(OfManySamples(), num_workers=1), pinfeed.DataLoader(range(4), sampler=OfNoLength(), num_workers=1)):
        assert [batch.item() for batch in loader] == [0, 1, 2, 3]  # list() would ask for the length


def two_views(samples):
    whole = torch.tensor(samples)
    return whole, whole[:1]


def test_views_of_one_tensor_come_apart():
    whole, part = next(iter(pinfeed.DataLoader(Numbers(4), 4, num_workers=1, collate_fn=two_views)))
    whole += 1
    assert (whole.tolist(), part.tolist()) == ([1, 2, 3, 4], [0])


class OneBuffer(torch.utils.data.Dataset):
    """Returns one tensor again and again, with other numbers."""

    def __init__(self):
        self.buffer = torch.zeros(2)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.buffer.fill_(index)


def test_a_tensor_that_the_dataset_changes_afterwards_leaves_its_batch_alone():
    batches = list(pinfeed.DataLoader(OneBuffer(), batch_size=None, num_workers=1))
    assert [batch.tolist() for batch in batches] == [[index, index] for index in range(6)]


def interrupted(_index):
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGINT)
        return process.wait()


def test_a_workers_own_processes_can_be_interrupted():
    assert next(iter(pinfeed.DataLoader(Numbers(1, interrupted), num_workers=1))).tolist() == [-signal.SIGINT]


def test_a_used_loader_is_pickled_without_its_workers():
    loader = pinfeed.DataLoader(range(4), num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    copy = pickle.loads(pickle.dumps(loader))
    assert values(copy) == [[0], [1], [2], [3]] and copy._pool is not loader._pool
    assert [batch.item() for batch in iterator] == [1, 2, 3]


def test_numbers_may_be_numpys():
    import numpy

    loader = pinfeed.DataLoader(range(4), num_workers=numpy.int64(1), prefetch_factor=numpy.int64(2))
    assert values(loader) == [[0], [1], [2], [3]]


def test_a_batch_of_two_dtypes_has_the_first_ones_as_in_torchs_workers():
    samples = [torch.ones(2), torch.full((2,), 2.0, dtype=torch.float64)]
    assert all_same(*(kind(samples, 2, num_workers=1) for kind in (pinfeed.DataLoader, TorchLoader)))


class Unstackable:
    pass


def test_the_users_own_functions_of_torchs_collation_are_used(monkeypatch):
    functions = pytest.importorskip("torch.utils.data._utils.collate").default_collate_fn_map
    monkeypatch.setitem(functions, Unstackable, lambda batch, *, collate_fn_map=None: f"{len(batch)} of them")
    monkeypatch.setitem(functions, str, lambda batch, *, collate_fn_map=None: "|".join(batch))
    assert list(pinfeed.DataLoader([Unstackable()] * 4, 2, num_workers=1)) == ["2 of them"] * 2
    assert list(pinfeed.DataLoader(list("abcd"), 2, num_workers=1)) == ["a|b", "c|d"]


def test_an_empty_sampler_gives_no_batch():
    assert list(pinfeed.DataLoader(Numbers(5), 2, num_workers=2, sampler=[])) == []


def test_many_more_batches_than_slots():
    assert [int(batch) for batch in pinfeed.DataLoader(Numbers(5000), 1, num_workers=2)] == list(range(5000))


# ---- randomness ---------------------------------------------------------------------------------------------------------------------


def test_random_numbers_do_not_depend_on_the_workers():
    epochs = []
    for workers in (1, 3):
        torch.manual_seed(8)
        loader = pinfeed.DataLoader(Numbers(12, randoms), 2, num_workers=workers, shuffle=True)
        epochs.append([[list(batch) for batch in loader] for _ in range(2)])
    assert all_same(*epochs)
    drawn = {float(number) for epoch in epochs[0] for batch in epoch for number in batch[1]}
    assert len(drawn) == 24


def test_persistent_workers_draw_other_numbers_each_epoch():
    loader = pinfeed.DataLoader(Numbers(12, randoms), 2, num_workers=2, persistent_workers=True)
    drawn = {float(number) for _ in range(3) for batch in loader for number in batch[1]}
    assert len(drawn) == 36


# ---- memory -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"seeding": "worker"}, {"retry_after": 5}])
def test_workers_have_nothing_to_do_behind_the_end_of_an_epoch(arguments):
    """Otherwise, they would seem to hang while the trainer does something else before the next epoch."""
    iterator = iter(pinfeed.DataLoader(Numbers(12, tensor), 2, num_workers=2, **arguments))
    for _ in range(6):
        next(iterator)

    def busy():
        feeds = [feed for feed in pinfeed.status()["feeds"] if any(int(session["pid"]) == os.getpid() for session in feed.get("sessions", []))]
        return [int(feed.get("producers_busy", 0)) for feed in feeds]

    eventually("no worker has a batch to fill", lambda: busy() == [0])
    with pytest.raises(StopIteration):
        next(iterator)


def test_all_batches_may_be_kept():
    batches = list(pinfeed.DataLoader(Numbers(60, big), 2, num_workers=2))
    assert [batch[:, 7, 7].tolist() for batch in batches] == [[index, index + 1] for index in range(0, 60, 2)]


def test_batches_live_longer_than_their_loader():
    kept = list(pinfeed.DataLoader(Numbers(4, big), 2, num_workers=1))
    gc.collect()
    kept[1] += 1
    assert kept[1][1].unique().tolist() == [4]


def test_a_tensor_that_is_shared_leaves_its_views_behind():
    (batch,) = pinfeed.DataLoader(Numbers(2, big), 2, num_workers=1)
    view, copy = batch.numpy(), batch.clone()
    batch.share_memory_()
    assert torch.equal(batch, copy) and view.ctypes.data != batch.data_ptr()


def report(pipe, *batches):
    """In a forked child, where torch's own threads are not: it would wait for them."""
    pipe.recv()
    pipe.send([numpy.unique(batch.numpy()).tolist() for batch in batches])


def test_a_forked_child_has_a_batch_as_long_as_its_parent():
    iterator = iter(pinfeed.DataLoader(Numbers(60, big), 1, num_workers=1))
    kept, dropped = next(iterator), next(iterator)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=report, args=(theirs, kept, dropped.clone()))
    child.start()
    del dropped
    assert sum(1 for _ in iterator) == 58
    ours.send("now")
    theirs.close()
    assert ours.poll(60) and ours.recv() == [kept.unique().tolist(), [1]] == [[0], [1]]
    child.join()


def test_batches_that_grow_are_delivered():
    dataset = Numbers(32, growing)
    assert all_same(pinfeed.DataLoader(dataset, 1, num_workers=2), TorchLoader(dataset, 1))


def test_a_fixed_size_is_kept():
    iterator = iter(pinfeed.DataLoader(Numbers(32, growing), 1, num_workers=2, max_batch_bytes=100000))
    taken = 0
    with pytest.raises(pinfeed.ResourceExhaustedError, match=r"(?s)batch 24 of indices \[24\] needs \d+ bytes.*give max_batch_bytes=\d+ or more"):
        for taken, _ in enumerate(iterator):
            pass
    assert taken == 23


# ---- errors -------------------------------------------------------------------------------------------------------------------------


def test_an_exception_costs_its_batch_only():
    iterator = iter(pinfeed.DataLoader(Numbers(10, failing), 2, num_workers=2))
    assert values([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
    for number in (5, 6):
        with pytest.raises(KeyError, match=f"(?s)in pinfeed worker .*failing.*no sample {number}"):
            next(iterator)
    assert values(iterator) == [[8, 9]]


def test_the_first_batches_may_fail():
    iterator = iter(pinfeed.DataLoader(Numbers(10, failing), 1, num_workers=2, sampler=[5, 6, 0, 1]))
    for _ in range(2):
        with pytest.raises(KeyError):
            next(iterator)
    assert values(iterator) == [[0], [1]]


@pytest.mark.parametrize("sampler", [[5, 0], [0, 5]], ids=["first", "second"])
def test_an_iterator_that_has_raised_is_freed_with_its_last_reference(sampler):
    gc.disable()  # which would find a cycle of the exception and its frames, some time
    try:
        iterator = iter(pinfeed.DataLoader(Numbers(10, failing), 1, num_workers=1, sampler=sampler))
        workers = iterator._pool.processes
        raised = []
        for _ in sampler:
            try:
                next(iterator)
            except KeyError:
                raised.append(True)
        del iterator
        assert (raised, [worker.is_alive() for worker in workers]) == ([True], [False])
    finally:
        gc.enable()


def refuse(worker):
    raise OSError(f"worker {worker} has no GPU")


class Jitter(Numbers):
    """Draws from a generator of its own, as MONAI's transforms do."""

    generator = random.Random(0)

    def __getitem__(self, index):
        return index, self.generator.random(), random.random()


def seed_own_generator(worker):
    torch.utils.data.get_worker_info().dataset.generator.seed(worker)
    random.seed(worker)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_worker_init_fn_sets_is_as_in_torch(persistent, later):
    arguments = {"batch_size": 2, "num_workers": 2, "worker_init_fn": seed_own_generator, "persistent_workers": persistent}
    ours, theirs = pinfeed.DataLoader(Jitter(12), **arguments), TorchLoader(Jitter(12), **arguments)
    if later:  # as Lightning's seed_everything
        ours, theirs = (kind(Jitter(12), **{**arguments, "worker_init_fn": None}) for kind in (pinfeed.DataLoader, TorchLoader))
        ours.worker_init_fn = theirs.worker_init_fn = seed_own_generator
    for _ in range(2):
        assert [[column.tolist() for column in batch] for batch in ours] == [[column.tolist() for column in batch] for batch in theirs]


def test_a_worker_init_fn_that_fails_is_told():
    with pytest.raises(OSError, match="has no GPU"):
        list(pinfeed.DataLoader(Numbers(4), num_workers=1, worker_init_fn=refuse))


made = os.pipe()


def made_by_a_worker_that_attaches_late(index):
    """Writes the index of each sample that is made to a pipe."""
    if index == 0:
        attach = worker.Producer

        def late(invitation):
            time.sleep(0.3)  # others would be there by then
            return attach(invitation)

        worker.Producer = late
    os.write(made[1], bytes([index]))
    return index


def test_the_first_batch_is_made_once():
    """Other workers that are there before the one that has made it are not dealt it."""
    assert values(pinfeed.DataLoader(Numbers(8, made_by_a_worker_that_attaches_late), 2, num_workers=3, multiprocessing_context="fork")) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sorted(os.read(made[0], 100)) == list(range(8))


def slow_place_of_worker(index):
    time.sleep(0.5)
    return torch.utils.data.get_worker_info().id


def test_the_batches_behind_the_first_are_made_at_once():
    """The worker that has the first one gets no more of them than the others, although it only copies that one."""
    _, second, third = values(pinfeed.DataLoader(Numbers(3, slow_place_of_worker), 1, num_workers=2, multiprocessing_context="fork"))
    assert second != third


def test_a_first_batch_that_does_not_come_in_time_is_told_apart():
    """Its worker may wait for the others, which have nothing to make yet."""
    reader, writer = os.pipe()
    iterator = iter(pinfeed.DataLoader(Numbers(8, lambda index: len(os.read(reader, 1))), 2, num_workers=2, timeout=2, multiprocessing_context="fork"))
    with pytest.raises(RuntimeError, match="One of them makes the first batch alone: if it waits for the others, give max_batch_bytes="):
        next(iterator)
    os.write(writer, b"12345678")
    assert values(iterator) == [[1, 1]] * 4
    os.close(reader)
    os.close(writer)


def test_a_batch_that_does_not_come_in_time_is_an_error():
    reader, writer = os.pipe()

    def blocked(index):
        return index if index < 4 else len(os.read(reader, 1))

    iterator = iter(pinfeed.DataLoader(Numbers(8, blocked), 2, num_workers=1, timeout=0.3, multiprocessing_context="fork"))
    assert values([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.3 seconds"):
        next(iterator)
    os.write(writer, b"four")
    assert values(iterator) == [[1, 1], [1, 1]]
    os.close(reader)
    os.close(writer)


def test_a_late_batch_has_also_the_number_that_it_has_in_the_status():
    reader, writer = os.pipe()

    def loader():
        return pinfeed.DataLoader(Numbers(8, lambda index: index if index < 6 else len(os.read(reader, 1))), 2, num_workers=1, timeout=2, multiprocessing_context="fork")

    first = loader()
    iterator = iter(first)
    next(iterator)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    iterator = iter(resumed)
    assert values([next(iterator), next(iterator)]) == [[2, 3], [4, 5]]
    with pytest.raises(RuntimeError, match=r"no worker had batch 3 ready.* names the slowest \(there, this is batch 2\)"):
        next(iterator)
    os.close(writer)
    os.close(reader)


# ---- processes that end -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_worker_costs_no_batch(method, caplog):
    indices, kills = [], (3, 15) if method == "fork" else (3,)  # of the others each new one imports PyTorch
    for number, (index, pid, *_) in enumerate(pinfeed.DataLoader(Numbers(60, place_of_worker), 2, num_workers=2, multiprocessing_context=method)):
        indices += index.tolist()
        if number in kills:
            os.kill(int(pid[0]), signal.SIGKILL)
    assert indices == list(range(60))
    assert "is killed by signal: Killed; another one takes its place" in caplog.text


def test_workers_that_keep_dying_are_an_error():
    iterator = iter(pinfeed.DataLoader(Numbers(20, deadly), 2, num_workers=2))
    assert values(next(iterator) for _ in range(5)) == [[index, index + 1] for index in range(0, 10, 2)]
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_first_batch_that_kills_is_an_error(caplog):
    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        list(pinfeed.DataLoader(Numbers(20, deadly), 2, num_workers=2, sampler=[10]))
    assert "is killed by signal: Killed; another one takes its place" in caplog.text


def test_after_a_break_the_workers_end():
    loader = pinfeed.DataLoader(Numbers(60, place_of_worker), 2, num_workers=2)
    for _ in loader:
        assert len(multiprocessing.active_children()) == 2
        break
    gc.collect()
    assert multiprocessing.active_children() == []


def test_persistent_workers_stay_until_the_loader_is_gone():
    loader = pinfeed.DataLoader(Numbers(12, place_of_worker), 2, num_workers=2, persistent_workers=True)
    pids = [{pid for batch in loader for pid in batch[1].tolist()} for _ in range(3)]
    assert len(set().union(*pids)) <= 2
    for _ in loader:
        break
    assert [index for batch in loader for index in batch[0].tolist()] == list(range(12))
    workers = [os.pidfd_open(process.pid) for process in multiprocessing.active_children()]
    assert len(workers) == 2
    del loader, _
    gc.collect()
    assert gone(workers)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", [Shards([12, 8, 4]), Numbers(24, randoms)], ids=["stream", "random"])
def test_a_number_of_workers_that_is_set_later_is_that_of_torch(dataset, persistent):
    def epochs(loader_type):
        loader = loader_type(dataset, 2, num_workers=2, persistent_workers=persistent, generator=seeded())
        yield list(loader)
        for workers in (3, 1):
            loader.num_workers = workers
            yield list(loader)
        loader = loader_type(dataset, 2, generator=seeded())
        loader.num_workers, loader.prefetch_factor = 2, 2  # which torch from 2.0 on does not set for them
        yield list(loader)

    for ours, torchs in zip(epochs(pinfeed.DataLoader), epochs(TorchLoader)):
        assert all_same(ours, torchs)


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_without_workers_between_others_draw_what_those_of_torch_do(persistent):
    def epochs(loader_type):
        loader = loader_type(Numbers(24), 2, shuffle=True, num_workers=2, persistent_workers=persistent, generator=seeded())
        for workers in (2, 0, 2, 0):
            loader.num_workers = workers
            yield values(loader)

    assert list(epochs(pinfeed.DataLoader)) == list(epochs(TorchLoader))


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_in_the_place_of_persistent_ones_are_as_many(workers):
    class Sampler:
        fails = False

        def __iter__(self):
            if self.fails:
                raise KeyError("no order")
            return iter(range(24))

        def __len__(self):
            return 24

    def epochs(fails):
        sampler = Sampler()
        loader = pinfeed.DataLoader(Numbers(24, randoms), 2, sampler=sampler, num_workers=2, persistent_workers=True, generator=seeded())
        yield list(loader)
        loader.num_workers = workers
        if fails:
            sampler.fails = True
            with pytest.raises(KeyError):
                iter(loader)
            sampler.fails = False
        yield list(loader)
        yield list(loader)

    for behind_a_failure, without in zip(epochs(True), epochs(False)):
        assert all_same(behind_a_failure, without)


def test_workers_that_are_set_later_are_asked_for_as_many_batches_as_by_torch():
    def asked(loader_type):
        numbers = iter(range(24))
        loader = loader_type(Numbers(24), 2, sampler=numbers, generator=seeded())
        loader.num_workers = 2
        if loader_type is TorchLoader:
            loader.prefetch_factor = 2  # from 2.0 on it is not set for workers that come later
        next(iter(loader))
        return next(numbers)

    assert asked(pinfeed.DataLoader) == asked(TorchLoader) == 10


def test_more_batches_in_flight_than_the_limit_are_refused_also_later():
    loader = pinfeed.DataLoader(Numbers(10), num_workers=1, prefetch_factor=4000, seeding="worker")
    loader.num_workers = 2
    with pytest.raises(ValueError, match=r"num_workers \* prefetch_factor is 8000, over 4000"):
        iter(loader)


def test_iterators_without_workers_are_independent_also_of_a_loader_with_persistent_workers():
    loader = pinfeed.DataLoader(Numbers(6), 2, num_workers=1, persistent_workers=True)
    loader.num_workers = 0
    assert [(one.tolist(), other.tolist()) for one, other in zip(loader, loader)] == [([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4, 5], [4, 5])]


@pytest.mark.parametrize("workers", [-1, None, "2", 2.5])
def test_a_number_of_workers_that_is_set_later_is_checked_when_an_epoch_begins(workers):
    loader = pinfeed.DataLoader(Numbers(4), 2)
    loader.num_workers = workers
    with pytest.raises(ValueError, match="num_workers option should be non-negative"):
        iter(loader)
    loader.num_workers = numpy.int64(1)
    assert values(loader) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "call, error, words",
    [
        ("memfd_create", "EMFILE", "indices of a DataLoader's batches.*ulimit -n"),
        ("pwrite", "EFBIG", "indices of a DataLoader's batches.*ulimit -f"),
        ("fork", "EAGAIN", "start DataLoader worker 0: Resource temporarily unavailable: the system refuses another process"),
        ("fork", "ENOMEM", "start DataLoader worker 0: Cannot allocate memory: .*or give fewer workers"),
    ],
)
def test_what_the_system_does_not_allow_is_told_with_its_limit(monkeypatch, call, error, words):
    def refused(*_):
        raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))

    loader = pinfeed.DataLoader(Numbers(8), 2, num_workers=1, multiprocessing_context="fork")
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refused)
        with pytest.raises(pinfeed.ResourceExhaustedError, match=words):
            iter(loader)
    assert values(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


class TakesDescriptors:
    """A worker_init_fn that leaves `spare` of them."""

    def __init__(self, spare):
        self.spare, self.held = spare, []

    def __call__(self, worker):
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        with contextlib.suppress(OSError):
            while True:
                self.held.append(os.dup(0))
        for _ in range(self.spare):
            os.close(self.held.pop())


@pytest.mark.parametrize("spare", [0, 1])
def test_a_worker_without_descriptors_for_its_epoch_says_so(capfd, spare):
    loader = pinfeed.DataLoader(Numbers(8), 2, num_workers=1, worker_init_fn=TakesDescriptors(spare), multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="exited unexpectedly with exit code 1.*What they wrote before they ended says why"):
        next(iter(loader))
    said = capfd.readouterr().err
    assert "cannot begin an epoch: it has opened as many files as it may (128, ulimit -n). Raise that" in said, said


def test_a_new_iterator_ends_the_one_of_persistent_workers():
    loader = pinfeed.DataLoader(Numbers(12), 2, num_workers=2, persistent_workers=True)
    first = iter(loader)
    next(first)
    assert values(loader) == values(TorchLoader(Numbers(12), 2))
    with pytest.raises(RuntimeError, match="ended because another one was to begin"):
        next(first)


def test_two_loaders_at_once():
    loaders = [pinfeed.DataLoader(Numbers(40, make), 2, num_workers=2) for make in (big, place_of_worker)]
    for number, (one, other) in enumerate(zip(*loaders)):
        assert one[:, 0, 0].tolist() == other[0].tolist() == [2 * number, 2 * number + 1]


TRAINER = """
import os, sys
import pinfeed
from loader_datasets import Numbers, place_of_worker

class Endless(Numbers):
    def __getitem__(self, index):
        if index > 50:
            os.read(READER, 1)
        return self.make(index)

READER, WRITER = os.pipe()
if __name__ == "__main__":
    loader = pinfeed.DataLoader(Endless(1000, place_of_worker), 2, num_workers=2, multiprocessing_context="fork", address=sys.argv[1])
    iterator = iter(loader)
    for _ in range(5):
        batch = next(iterator)
    import multiprocessing
    print(*[process.pid for process in multiprocessing.active_children()], flush=True)
    sys.stdin.readline()  # until they are watched
    %s
"""


def start_trainer(daemon, then):
    here = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], here])}
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER % then, daemon.address], **pipes, text=True, env=environment)
    workers = [os.pidfd_open(int(pid)) for pid in trainer.stdout.readline().split()]
    assert len(workers) == 2
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    return trainer, workers


def test_no_worker_survives_a_killed_trainer(daemon):
    trainer, workers = start_trainer(daemon, "for batch in iterator: pass")
    trainer.kill()
    trainer.communicate()
    assert gone(workers)


def test_ctrl_c_ends_trainer_and_workers(daemon):
    trainer, workers = start_trainer(daemon, "for batch in iterator: pass")
    trainer.send_signal(signal.SIGINT)
    _, errors = trainer.communicate(timeout=60)
    assert trainer.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors, errors
    assert gone(workers)


# A daemon thread that waits for a batch: the interpreter's end closes the iterator under it.
WAITS = "import threading, time; threading.Thread(target=lambda: list(iterator), daemon=True).start(); time.sleep(0.5)"


@pytest.mark.parametrize("then, status", [("", 0), ("raise SystemExit(3)", 3), ("del iterator, loader", 0), (WAITS, 0)])
def test_an_abandoned_iterator_ends_with_the_interpreter(daemon, then, status):
    trainer, workers = start_trainer(daemon, then)
    _, errors = trainer.communicate(timeout=60)
    assert trainer.returncode == status and errors == ""
    assert gone(workers)


def test_a_daemon_that_is_killed_and_started_again_costs_no_batch(tmp_path):
    first = Daemon(tmp_path / "run", "--pool-bytes", "128MiB")
    indices = []
    second = None
    try:
        loader = pinfeed.DataLoader(Numbers(60, place_of_worker), 2, num_workers=2, address=first.address)
        for number, (index, *_) in enumerate(loader):
            indices += index.tolist()
            if number == 7:
                first.process.kill()
                first.process.wait()
                second = Daemon(tmp_path / "run", "--pool-bytes", "128MiB")
    finally:
        first.process.kill()
        if second is not None:
            second.stop()
    assert indices == list(range(60))


# ---- state --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_continues_with_the_same_random_numbers(persistent):
    def loader():
        generator = torch.Generator().manual_seed(6)
        return pinfeed.DataLoader(Numbers(20, randoms), 2, shuffle=True, num_workers=2, generator=generator, persistent_workers=persistent)

    whole = loader()
    epochs = [[list(batch) for batch in whole] for _ in range(3)]
    stopped = loader()
    for _ in stopped:
        pass
    iterator = iter(stopped)
    for _ in range(4):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    assert all_same([list(batch) for batch in resumed], epochs[1][4:])
    assert all_same([list(batch) for batch in resumed], epochs[2])
    between = loader()
    for _ in between:
        pass
    resumed = loader()
    resumed.load_state_dict(between.state_dict())
    assert all_same([list(batch) for batch in resumed], epochs[1])
    assert all_same([list(batch) for batch in resumed], epochs[2])
