# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` whose workers take turns: iterable datasets and seeding="worker", beside torch's loader and its workers."""

import contextlib
import itertools
import os
import random
import signal
import warnings

import pytest

torch = pytest.importorskip("torch")

from daemon_process import Daemon  # noqa: E402
from loader_datasets import Numbers, Resumable, ResumableIterator, Shards, all_same, growing, randoms, seeded  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._loader import worker_pool  # noqa: E402
from pinfeed._worker.seeding import global_states, set_global_states  # noqa: E402

TorchLoader = torch.utils.data.DataLoader

pytestmark = [pytest.mark.usefixtures("nothing_is_left", "feeds"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]


# ---- beside torch's -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"batch_size": 4}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}, {"batch_size": 2, "persistent_workers": True}])
@pytest.mark.parametrize("counts", [[9, 9], [1, 30, 0], [0, 0], [13]])
def test_an_iterable_datasets_batches_are_torchs(counts, arguments):
    dataset = Shards(counts)
    loaders = [kind(dataset, num_workers=len(counts), generator=seeded(), **arguments) for kind in (pinfeed.DataLoader, TorchLoader)]
    for _ in range(2):
        assert all_same(*loaders)


@pytest.mark.parametrize("arguments", [{"shuffle": True}, {"generator": seeded, "seeding": None}, {"persistent_workers": True}])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_random_numbers_of_seeding_by_worker_are_torchs(workers, arguments):
    arguments = {name: value() if callable(value) else value for name, value in arguments.items()}
    seeding = {"seeding": "worker", **arguments}
    arguments.pop("seeding", None)
    epochs = []
    for kind, options in ((pinfeed.DataLoader, seeding), (TorchLoader, arguments)):
        torch.manual_seed(8)
        if "generator" in options:
            options["generator"].manual_seed(5)
        loader = kind(Numbers(23, randoms), 2, num_workers=workers, **options)
        epochs.append([[list(batch) for batch in loader] for _ in range(3)])
    assert all_same(*epochs)


@pytest.mark.parametrize("taken", [0, 1, 4, 11])
@pytest.mark.parametrize(
    "arguments", [{}, {"persistent_workers": True}, {"num_workers": 1, "prefetch_factor": 1}, {"prefetch_factor": 3, "persistent_workers": True}]
)
def test_the_epoch_after_a_break_is_torchs(arguments, taken):
    epochs = []
    for kind in (pinfeed.DataLoader, TorchLoader):
        generator = seeded()
        loader = kind(Numbers(23, randoms), **{"batch_size": 2, "shuffle": True, "num_workers": 2, "generator": generator, **arguments})
        iterator = iter(loader)
        first = [list(next(iterator)) for _ in range(taken)]
        if "persistent_workers" not in arguments:
            del iterator
        epochs.append(first + [list(batch) for batch in loader])
    assert all_same(*epochs)


def test_a_wrong_length_is_told_as_by_torch():
    dataset, messages = Shards([3, 3], said=4), []
    for kind in (pinfeed.DataLoader, TorchLoader):
        loader = kind(dataset, num_workers=2)
        assert len(loader) == 4
        with pytest.warns(UserWarning, match="was reported to be 4") as warned:
            list(loader)
        # Python 3.12 and later also warn of each fork beside threads, and later torches lack a space.
        texts = [str(each.message).replace(" (when", "(when") for each in warned]
        messages.append([text for text in texts if text.startswith("Length of")])
    assert messages[0] == messages[1] != []


@pytest.mark.parametrize("kind", [pinfeed.DataLoader, TorchLoader])
def test_an_exception_ends_its_worker_only(kind):
    iterator = iter(kind(Shards([9, 9], fails=4), 2, num_workers=2))
    seen = []
    while True:
        try:
            seen.append(next(iterator).tolist())
        except StopIteration:
            break
        except ValueError as error:
            seen.append(str(error).splitlines()[0][:5])
    assert seen[:4] == [[0, 1], [1000, 1001], [2, 3], [1002, 1003]]
    assert seen[4:] == ["Value" if kind is pinfeed.DataLoader else "Caugh"] * 2


def ends_at_two(index):
    return next(iter(())) if index == 2 else index


@pytest.mark.parametrize("seeding", ["sample", "worker"])
def test_stop_iteration_of_a_dataset_with_indices_is_an_error_of_its_batch(seeding):
    iterator = iter(pinfeed.DataLoader(Numbers(6, ends_at_two), num_workers=2, seeding=seeding))
    assert [next(iterator).item(), next(iterator).item()] == [0, 1]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert [batch.item() for batch in iterator] == [3, 4, 5]


# ---- state --------------------------------------------------------------------------------------------------------------------------

STREAMS = {"none": Shards, "dataset": Resumable, "iterator": ResumableIterator}


@pytest.mark.parametrize("stream", STREAMS)
def test_an_iterable_dataset_continues_where_it_stood(stream, tmp_path):
    log = tmp_path / "log"

    def loader():
        return pinfeed.DataLoader(STREAMS[stream]([3, 12, 0], log=log, make=randoms), 2, num_workers=3, generator=seeded(), prefetch_factor=1)

    epochs = [[list(batch) for batch in loader()]]
    whole = loader()
    list(whole)
    epochs.append([list(batch) for batch in whole])
    assert len(epochs[0]) == 8
    for taken in (0, 1, 2, 3, 5, 8):  # 2: the turn is that of worker 2, which has none; 3: the last batch of worker 0
        stopped = loader()
        iterator = iter(stopped)
        for _ in range(taken):
            next(iterator)
        resumed = loader()
        resumed.load_state_dict(stopped.state_dict())
        iterator.close()
        log.write_bytes(b"")
        assert all_same([list(batch) for batch in resumed], epochs[0][taken:])
        if stream != "none" and taken == len(epochs[0]):
            assert log.read_bytes() == b""  # nothing is read again
        assert all_same([list(batch) for batch in resumed], epochs[1])


def test_the_state_of_seeding_by_worker_has_the_generators():
    def loader():
        return pinfeed.DataLoader(Numbers(20, randoms), 2, shuffle=True, num_workers=3, generator=seeded())

    whole = [list(batch) for batch in loader()]
    for taken in (0, 1, 5, 6, 10):
        stopped = loader()
        iterator = iter(stopped)
        for _ in range(taken):
            next(iterator)
        resumed = loader()
        resumed.load_state_dict(stopped.state_dict())
        iterator.close()
        assert all_same([list(batch) for batch in resumed], whole[taken:])


def test_another_number_of_workers_cannot_continue():
    loader = pinfeed.DataLoader(Shards([9, 9]), 2, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    other = pinfeed.DataLoader(Shards([9, 9]), 2, num_workers=1)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(pinfeed.InvalidArgumentError, match="num_workers: 1 with these arguments cannot continue an epoch of 2 workers"):
        iter(other)


def test_a_state_with_workers_and_one_without_are_not_exchanged():
    states = {}
    for workers in (0, 2):
        loader = pinfeed.DataLoader(Shards([9, 9]), 2, num_workers=workers)
        iterator = iter(loader)
        next(iterator)
        states[workers] = loader.state_dict()
        iterator.close()
    for workers, state in states.items():
        other = pinfeed.DataLoader(Shards([9, 9]), 2, num_workers=2 - workers)
        other.load_state_dict(state)
        with pytest.raises(pinfeed.InvalidArgumentError, match="Use the arguments of the loader that the state is from"):
            iter(other)


def fail(worker):
    raise OSError(f"no file for worker {worker}")


def test_a_worker_without_a_start_raises_once():
    iterator = iter(pinfeed.DataLoader(Shards([9, 9]), 2, num_workers=2, worker_init_fn=fail))
    for worker in range(2):
        with pytest.raises(OSError, match=f"no file for worker {worker}"):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


# ---- processes that end -------------------------------------------------------------------------------------------------------------


def kill_some(loader, draw, kills, batches):
    """Yields batches, and kills a worker before some of them."""
    iterator = iter(loader)
    moments = sorted(draw.sample(range(batches), kills))
    for number in range(batches):
        if number in moments:
            with contextlib.suppress(ProcessLookupError):  # its predecessor was killed a moment ago
                os.kill(draw.choice(iterator._pool.processes).pid, signal.SIGKILL)
        yield next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_killed_workers_cost_no_batch_and_no_random_number():
    def loader():
        return pinfeed.DataLoader(Numbers(240, randoms), 2, shuffle=True, num_workers=3, generator=seeded(), prefetch_factor=3)

    expected = [list(batch) for batch in loader()]
    assert all_same([list(batch) for batch in kill_some(loader(), random.Random(1), 30, 120)], expected)


@pytest.mark.parametrize("count", [12, 2])
def test_a_worker_killed_between_two_epochs_costs_no_random_number(count):
    def epochs(killed):
        generator = seeded()
        loader = pinfeed.DataLoader(Numbers(count, randoms), 2, num_workers=2, generator=generator, persistent_workers=True)
        batches = [list(batch) for batch in loader]
        if killed is not None:
            process = loader._pool.processes[killed]
            process.kill()
            process.join()
        return batches + [list(batch) for _ in range(2) for batch in loader]

    expected = epochs(None)
    assert all_same(epochs(0), expected)
    assert all_same(epochs(1), expected)


@pytest.mark.parametrize("left", [[5], [0], [5, 0, 0], [12, 3], [2, None, 1], [None, 4]], ids=str)
def test_a_worker_killed_after_a_break_costs_no_random_number(left):
    """`left`: how many batches of each epoch are taken before it is left; None: all. The next one has begun or not."""

    def epochs(killed, begun=False):
        loader = pinfeed.DataLoader(Numbers(40, randoms), 2, shuffle=True, num_workers=3, generator=seeded(), persistent_workers=True)
        batches = []
        for count in left:
            iterator = iter(loader)
            batches += [list(batch) for batch in itertools.islice(iterator, count)]
            iterator.close()
        following = iter(loader) if begun else None
        if killed is not None:
            process = loader._pool.processes[killed]
            process.kill()
            process.join()
        return batches + [list(batch) for batch in (iter(loader) if following is None else following)] + [list(batch) for batch in loader]

    expected = epochs(None)
    for killed, begun in itertools.product((0, 2), (False, True)):
        assert all_same(epochs(killed, begun), expected), (killed, begun)


def test_epochs_that_are_left_again_and_again_keep_no_logs():
    loader = pinfeed.DataLoader(Numbers(40, randoms), 2, num_workers=2, generator=seeded(), persistent_workers=True)
    assert len(list(itertools.islice(loader, 5))) == 5
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(12):
        iter(loader)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    iterator = iter(loader)
    loader._pool.processes[1].kill()
    assert len(list(iterator)) == 20


def test_workers_that_do_not_finish_an_epoch_are_told(caplog, monkeypatch):
    monkeypatch.setattr(worker_pool, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(worker_pool, "_SLICE_S", 0.05)
    loader = pinfeed.DataLoader(Numbers(8), 2, num_workers=2, seeding="worker", persistent_workers=True)
    iterator = iter(loader)
    assert len(list(itertools.islice(iterator, 4))) == 4
    os.kill(loader._pool.processes[1].pid, signal.SIGSTOP)
    with pytest.raises(StopIteration):
        next(iterator)
    loader.timeout = 1
    with pytest.raises(pinfeed.DeadlineExceededError, match="timed out after 1 seconds: worker 1 has not finished the batches"):
        iter(loader)
    assert "the next epoch waits: worker 1 has not finished" in caplog.text
    loader.timeout = 0
    os.kill(loader._pool.processes[1].pid, signal.SIGCONT)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("stream", ["dataset", "iterator"])
def test_killed_workers_of_a_dataset_with_a_state_cost_nothing(stream):
    def loader():
        return pinfeed.DataLoader(STREAMS[stream]([80, 80, 80], make=randoms), 2, num_workers=3, generator=seeded())

    expected = [list(batch) for batch in loader()]
    assert all_same([list(batch) for batch in kill_some(loader(), random.Random(2), 15, 120)], expected)


def test_workers_killed_behind_their_last_batch_cost_the_next_epoch_no_random_number():
    def batches(killed):
        loader = pinfeed.DataLoader(Resumable([12, 12], make=randoms), 4, num_workers=2, generator=seeded(), persistent_workers=True)
        for epoch in range(2):
            for number, batch in enumerate(loader):
                yield list(batch)
                if killed and (epoch, number) == (0, 5):
                    for process in loader._pool.processes:
                        process.kill()

    assert all_same(batches(killed=True), batches(killed=False))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_state_behind_the_last_batch_costs_the_next_epoch_no_random_number(options):
    streams, resumed = (pinfeed.DataLoader(Resumable([10, 10], make=randoms), 4, **options) for _ in range(2))
    iterator = iter(streams)
    for _ in range(3 * options.get("num_workers", 1)):
        next(iterator)
    state, generators = streams.state_dict(), global_states()
    expected = [list(batch) for batch in [*iterator, *streams]]
    resumed.load_state_dict(state)
    set_global_states(generators)
    assert all_same([list(batch) for batch in [*resumed, *resumed]], expected)


def test_a_killed_worker_of_a_dataset_without_a_state_is_an_error():
    iterator = iter(pinfeed.DataLoader(Shards([10**6, 10**6]), 2, num_workers=2))
    assert next(iterator).tolist() == [0, 1]
    os.kill(iterator._pool.processes[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed, and its place in the data is lost with it"):
        for _ in iterator:
            pass
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_killed_daemon_costs_nothing_though_no_worker_can_go_back(tmp_path):
    def loader(address=None):
        return pinfeed.DataLoader(Shards([40, 60], make=randoms), 2, num_workers=2, generator=seeded(), prefetch_factor=4, address=address)

    expected = [list(batch) for batch in loader()]
    daemons = [Daemon(tmp_path / "run", "--pool-bytes", "128MiB")]
    seen = []
    try:
        for number, batch in enumerate(loader(daemons[0].address)):
            seen.append(list(batch))
            if number in (5, 6, 20, 30):
                daemons[-1].process.kill()
                daemons[-1].process.wait()
                daemons.append(Daemon(tmp_path / "run", "--pool-bytes", "128MiB"))
    finally:
        daemons[-1].stop()
    assert all_same(seen, expected)


# ---- batches that do not fit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeding", ["sample", "worker"])
def test_batches_that_grow_come_in_memory_of_their_own(seeding):
    loader = pinfeed.DataLoader(Numbers(36, growing), 1, num_workers=2, seeding=seeding)
    with pytest.warns(pinfeed.LargeBatchWarning, match="memory of its own.*max_batch_bytes=") as told:
        whole = list(loader)
    assert len([each for each in told if each.category is pinfeed.LargeBatchWarning]) == 1
    assert all_same(whole, TorchLoader(Numbers(36, growing), 1))
    whole[-1] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", pinfeed.LargeBatchWarning)
        assert all_same(list(loader)[:-1], whole[:-1])


def test_an_iterable_dataset_with_a_fixed_size_keeps_it():
    iterator = iter(pinfeed.DataLoader(Shards([20], make=growing), 1, num_workers=1, max_batch_bytes=5000))
    for index in range(20):
        if index < 16:
            assert next(iterator).shape[1] == growing(index).shape[0]
        else:
            with pytest.raises(pinfeed.ResourceExhaustedError, match="give max_batch_bytes="):
                next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_more_workers_than_the_daemon_has_lanes_are_refused():
    with pytest.raises(pinfeed.InvalidArgumentError, match="num_workers: 257 is over 256, the limit with seeding=\"worker\", the default with dataset.make"):
        pinfeed.DataLoader(Numbers(4, random.Random(0).random), num_workers=257)
    pinfeed.DataLoader(Numbers(4), num_workers=257)


def test_more_batches_in_flight_than_the_log_has_entries_are_refused():
    arguments = {"num_workers": 2, "prefetch_factor": 2001}
    with pytest.raises(pinfeed.InvalidArgumentError, match="over 4000, the limit of batches in flight with seeding=\"worker\""):
        pinfeed.DataLoader(Numbers(4), seeding="worker", **arguments)
    pinfeed.DataLoader(Numbers(4), **arguments)
