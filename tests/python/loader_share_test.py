# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader(share="broadcast")`: several trainers get the batches of one dataset, each made once by a worker of one of them."""

import contextlib
import gc
import json
import os
import re
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

from conftest import tool  # noqa: E402
from daemon_process import Daemon  # noqa: E402
from loader_datasets import Numbers, all_same, growing, randoms, record, seeded  # noqa: E402
from member_process import Member  # noqa: E402
from withstand.hardship import eventually  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._feed import stream  # noqa: E402
from pinfeed._loader import worker_pool  # noqa: E402

pytestmark = [pytest.mark.usefixtures("nothing_is_left", "feeds"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]


class Counted:
    """A dataset that writes a byte to a pipe for each sample that it makes."""

    def __init__(self, count, make=lambda index: index):
        self.count, self.make = count, make
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        os.write(self.writer, b"1")
        return self.make(index)

    def made(self):
        made = 0
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.reader, 1 << 16):
                made += len(data)
        return made

    def close(self):
        os.close(self.reader)
        os.close(self.writer)




def loader(dataset, members=2, **arguments):
    given = {"batch_size": 2, "num_workers": 1, "share": "broadcast", "group": "g", "group_size": members, "timeout": 60, "generator": seeded(), **arguments}
    return pinfeed.DataLoader(dataset, **given)


def all_of(loaders):
    """All batches of each, taken at the same time. The workers are started one after the other."""
    iterators = [iter(each) for each in loaders]
    return at_once(*[lambda each=each: list(each) for each in iterators])


def at_once(*functions):
    """The results of functions, or the exceptions that they raised, each in a thread of its own."""
    results = [None] * len(functions)

    def run(number, function):
        try:
            results[number] = function()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_four_trainers_get_the_same_batches_which_are_made_once():
    dataset = Counted(400, randoms)
    loaders = [loader(dataset, 4, shuffle=True, generator=seeded(), persistent_workers=True) for _ in range(4)]
    alone = pinfeed.DataLoader(Numbers(400, randoms), 2, num_workers=1, shuffle=True, generator=seeded(), seeding="sample", persistent_workers=True)
    for epoch in range(2):
        one, *others = all_of(loaders)
        assert all(all_same(one, other) for other in others)
        assert all_same(one, list(alone))
        # Before the first epoch, each measures its first batch.
        assert 400 <= dataset.made() <= 400 + (4 * 2 if epoch == 0 else 0)
    del loaders, alone
    gc.collect()
    dataset.close()


def test_the_status_tells_of_copies_to_shared_slots(daemon):
    loaders = [loader(Numbers(200, record)) for _ in range(2)]
    iterators = [iter(each) for each in loaders]
    at_once(*[lambda each=each: [next(each) for _ in range(20)] for each in iterators])

    def shown():
        (feed,) = [each for each in pinfeed.status(daemon.address)["feeds"] if each["sharing"] == "broadcast"]
        return int(feed["staged_bytes"]) > 0, int(feed["producers"]), len(feed["sessions"])

    # One worker may have made all of these while the other started.
    eventually(shown, lambda: shown() == (True, 2, 2))
    for iterator in iterators:
        iterator.close()


def test_the_status_tells_how_many_members_are_there(daemon):
    iterators = [iter(loader(Numbers(20), group="counted", address=daemon.address)) for _ in range(2)]
    first = threading.Thread(target=next, args=(iterators[0],))
    first.start()

    def shown():
        return "its group: 1 of 2 members are there" in tool(daemon, "status")[1]

    eventually("the status tells of one member", shown)
    (feed,) = [each for each in pinfeed.status(daemon.address)["feeds"] if each["state"] == "waiting"]
    assert feed["group_size"] == 2
    next(iterators[1])
    first.join()
    for iterator in iterators:
        iterator.close()


def test_when_a_member_leaves_the_workers_of_the_others_go_on():
    dataset = Counted(400)
    iterators = [iter(loader(dataset, 3)) for _ in range(3)]
    begun = at_once(*[lambda each=each: [next(each).tolist() for _ in range(20)] for each in iterators])
    assert begun == [[[2 * number, 2 * number + 1] for number in range(20)]] * 3
    iterators[0].close()
    rest = at_once(*[lambda each=each: [batch.tolist() for batch in each] for each in iterators[1:]])
    assert rest == [[[2 * number, 2 * number + 1] for number in range(20, 200)]] * 2
    assert dataset.made() <= 400 + 3 * 2 + 2  # what its worker had begun is not lost, unless it was terminated
    dataset.close()


@pytest.mark.parametrize("seeds", [True, False], ids=["seeded", "not seeded"])
def test_a_member_that_left_an_epoch_early_takes_part_in_the_next_if_generators_are_seeded_anew(seeds):
    generators = [seeded(), seeded()]
    loaders = [loader(Numbers(40), shuffle=True, generator=generator) for generator in generators]
    iterators = [iter(each) for each in loaders]
    first, second = at_once(lambda: [next(iterators[0]).tolist() for _ in range(3)], lambda: [next(iterators[1]).tolist() for _ in range(3)])
    iterators[0].close()
    second += [batch.tolist() for batch in iterators[1]]
    assert first == second[:3] and sorted(sum(second, [])) == list(range(40))
    if seeds:
        for generator in generators:
            generator.manual_seed(4)
        one, other = all_of(loaders)
        assert all_same(one, other) and sorted(torch.cat(one).tolist()) == list(range(40))
    else:
        waiting = iter(loaders[0])
        with pytest.raises(pinfeed.Error, match=r"differs .* in the epoch's seed .*call manual_seed of each before every epoch"):
            iter(loaders[1])
        waiting.close()


MEMBER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from loader_datasets import Numbers, slow
import pinfeed, torch

if __name__ == "__main__":
    torch.manual_seed(1)
    loader = pinfeed.DataLoader(Numbers(1000, slow), 2, num_workers=2, share="broadcast", group="killed", group_size=2, timeout=60)
    iterator = iter(loader)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps([next(iterator)[0].tolist() for _ in range(int(line))]), flush=True)
"""


def batches(first, behind):
    return [[2 * number, 2 * number + 1] for number in range(first, behind)]


def test_a_killed_member_takes_its_workers_along_and_costs_no_batch(daemon, warm_torch):
    here = os.path.dirname(os.path.abspath(__file__))
    with Member(MEMBER, here, run=warm_torch.run) as doomed, Member(MEMBER, here, run=warm_torch.run) as survivor:
        for member in (doomed, survivor):
            member.begin_reading(50)
        assert [json.loads(member.process.stdout.readline()) for member in (doomed, survivor)] == [batches(0, 50)] * 2
        doomed.process.send_signal(signal.SIGKILL)
        assert survivor.read(450) == batches(50, 500)
        doomed.process.wait()
        doomed.process.stdin.close()


EPOCHS = """
import json, pickle, sys
sys.path.insert(0, sys.argv[1])
from loader_datasets import Numbers, seeded
import pinfeed

if __name__ == "__main__":
    loader = pinfeed.DataLoader(Numbers(40), 2, shuffle=True, num_workers=1, generator=seeded(), share="broadcast", group="epochs", group_size=2, timeout=60)
    if len(sys.argv) > 2:
        loader.load_state_dict(pickle.loads(bytes.fromhex(sys.argv[2])))
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        print(json.dumps([[batch.tolist() for batch in loader], pickle.dumps(loader.state_dict()).hex()]), flush=True)
"""


def test_a_member_that_was_killed_comes_back_with_a_state_of_another_one(daemon, warm_torch):
    def read_epoch(*members):
        for member in members:
            member.begin_reading(1)
        return [json.loads(member.process.stdout.readline()) for member in members]

    here = os.path.dirname(os.path.abspath(__file__))
    with Member(EPOCHS, here, run=warm_torch.run) as doomed, Member(EPOCHS, here, run=warm_torch.run) as survivor:
        epochs = [read_epoch(doomed, survivor) for _ in range(2)]
        doomed.process.kill()
        doomed.process.wait()
        doomed.process.stdin.close()
        _, state = epochs[-1][1]
        with Member(EPOCHS, here, state, run=warm_torch.run) as another:
            epochs += [read_epoch(another, survivor) for _ in range(2)]
    assert all(one == other for (one, _), (other, _) in epochs)
    torchs = torch.utils.data.DataLoader(Numbers(40), 2, shuffle=True, num_workers=1, generator=seeded())
    assert [ours for (ours, _), _ in epochs] == [[batch.tolist() for batch in torchs] for _ in range(4)]


def test_a_member_that_comes_back_in_the_middle_of_an_epoch_is_refused_and_disturbs_nobody():
    loaders = [loader(Numbers(400), generator=seeded()) for _ in range(2)]
    state = loaders[1].state_dict()
    iterators = [iter(each) for each in loaders]
    begun = at_once(*[lambda each=each: [next(each).tolist() for _ in range(20)] for each in iterators])
    iterators[1].close()  # as if it were killed
    another = loader(Numbers(400))
    another.load_state_dict(state)
    with pytest.raises(pinfeed.Error, match=r"epoch 1 of group 'g' is under way, at batch \d+, .* Load a state that another member takes when that epoch has ended"):
        next(iter(another))
    rest = [batch.tolist() for batch in iterators[0]]
    assert sorted(sum(begun[0] + rest, [])) == list(range(400))
    another.load_state_dict(loaders[0].state_dict())
    one, other = all_of([loaders[0], another])
    assert all_same(one, other) and len(one) == 200


def test_what_needs_workers_cannot_do_without_them_later_either():
    member = loader(Numbers(20))
    member.num_workers = 0
    with pytest.raises(pinfeed.InvalidArgumentError, match='share: "broadcast" needs num_workers > 0, and it was set to 0'):
        iter(member)
    member = pinfeed.DataLoader(Numbers(20), num_workers=2, seeding="sample", retry_after=1)
    member.num_workers = 0
    with pytest.raises(pinfeed.InvalidArgumentError, match="retry_after needs num_workers > 0, and it was set to 0"):
        iter(member)


def test_a_killed_daemon_costs_a_group_nothing(tmp_path):
    daemon = Daemon(tmp_path / "run", "--pool-bytes", "128MiB", "--workers", "2")
    iterators = [iter(loader(Numbers(400), address=daemon.address)) for _ in range(2)]
    # One is ahead of the other, as far as the slots allow.
    seen = at_once(lambda: [next(iterators[0]).tolist() for _ in range(22)], lambda: [next(iterators[1]).tolist() for _ in range(20)])
    daemon.process.kill()
    daemon.process.wait()
    daemon = Daemon(tmp_path / "run", "--pool-bytes", "128MiB", "--workers", "2")
    rest = at_once(*[lambda each=each: [batch.tolist() for batch in each] for each in iterators])
    assert [[*first, *second] for first, second in zip(seen, rest)] == [batches(0, 200)] * 2
    daemon.stop()


def test_members_that_wait_for_one_that_left_before_a_restart_are_told_again_and_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(stream, "_GROUP_PATIENCE_S", 0.05)
    daemon = Daemon(tmp_path / "run", "--pool-bytes", "128MiB", "--workers", "2")
    iterators = [iter(loader(Numbers(400), address=daemon.address)) for _ in range(2)]
    assert at_once(*[lambda each=each: next(each).tolist() for each in iterators]) == [[0, 1]] * 2
    iterators[0].close()
    assert next(iterators[1]).tolist() == [2, 3]
    iterators[1]._feed._timeout = 1  # as if it were the loader's
    daemon.process.kill()
    daemon.process.wait()
    daemon = Daemon(tmp_path / "run", "--pool-bytes", "128MiB", "--workers", "2")
    with pytest.raises(pinfeed.DeadlineExceededError):
        for _ in iterators[1]:
            pass
    told = [record.getMessage() for record in caplog.records if "group 'g#1' has given this feed no batch" in record.getMessage()]
    assert len(told) >= 2 and all("the daemon was restarted" in each and "continue all of them from a state" in each for each in told)
    assert all("A member that was started anew counts from 1, unless it continues from a state" in each for each in told)
    iterators[1].close()
    daemon.stop()


@pytest.mark.parametrize(
    "other, argument, values, advice",
    [
        ({"dataset": Numbers(41)}, "len(dataset)", ("40", "41"), "dataset"),
        ({"dataset": Counted(40)}, "the dataset's class", ("loader_datasets.Numbers", "loader_share_test.Counted"), "dataset"),
        ({"dataset": Numbers(40, float)}, "the structure of a batch (batch_size, collate_fn)", ("Tensor:torch.int64[2]", "Tensor:torch.float64[2]"), "dataset, batch_size"),
        ({"fingerprint": "another"}, "fingerprint", ("none", "another"), "fingerprint"),
        ({"fingerprint": "another; one"}, "fingerprint", ("none", "#"), "fingerprint"),  # a digest
        ({"generator": 4}, "the epoch's seed (generator)", None, "manual_seed(n) with the same n"),
        ({"batch_size": 3}, "the structure of a batch (batch_size, collate_fn)", ("Tensor:torch.int64[2]", "Tensor:torch.int64[3]"), "dataset, batch_size"),
        ({"num_workers": 2}, "num_workers or prefetch_factor (slots of the feed)", ("6", "10"), "num_workers and prefetch_factor"),
        ({"group_size": 3}, "group_size", ("2", "3"), "group_size"),
        ({"max_batch_bytes": 12345}, "the bytes of a batch's place (max_batch_bytes)", (None, "12345"), "max_batch_bytes"),
        ({"retry_after": 2.5}, "retry_after, in ms", ("0", "2500"), "retry_after"),
    ],
    ids=["length", "class", "structure", "fingerprint", "long fingerprint", "seed", "batch_size", "num_workers", "group_size", "max_batch_bytes", "retry_after"],
)
def test_a_member_that_differs_is_refused_with_the_argument_and_both_values(other, argument, values, advice):
    arguments = [{"dataset": Numbers(40), "generator": 3, "shuffle": True}, {"dataset": Numbers(40), "generator": 3, "shuffle": True, **other}]
    iterators = [iter(loader(**{**each, "generator": seeded(each["generator"])})) for each in arguments]

    def begin(number):
        try:
            return next(iterators[number])
        except pinfeed.Error as error:
            while iterators[1 - number]._feed is None:
                pass  # it was opened before, and is about to know it
            iterators[1 - number]._feed.interrupt(KeyError("a second member"))  # for which it waits
            return error

    results = at_once(lambda: begin(0), lambda: begin(1))
    (refusal,) = [each for each in results if isinstance(each, pinfeed.Error)]
    assert refusal.code == pinfeed.Code.FAILED_PRECONDITION
    said = str(refusal)
    assert said.startswith("DataLoader: this loader differs from the one that opened group 'g' in ") and advice in said.partition(". To share batches, ")[2], said
    found = re.search(re.escape(argument) + r": (\S+) there, (\S+) here", said)
    assert found, said
    if values is not None:
        orders = found.groups(), found.groups()[::-1]  # either member may have opened the group
        assert any(all(want is None or one.startswith(want) for want, one in zip(values, order)) for order in orders), said
    if {"num_workers", "group_size", "retry_after"} & set(other):
        assert said.count(" there, ") == 1, said  # what follows from it is not told
    assert any(isinstance(each, KeyError) for each in results)
    for iterator in iterators:
        iterator.close()


class Shuffled:
    """A sampler with an order of its own."""

    def __init__(self, count, seed):
        self.order = torch.randperm(count, generator=seeded(seed)).tolist()

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


def test_different_orders_are_noticed_before_a_batch_is_wrong():
    loaders = [loader(Numbers(40), sampler=Shuffled(40, seed), generator=seeded()) for seed in (1, 2)]
    results = all_of(loaders)
    assert any(isinstance(each, pinfeed.Error) and "has other indices in another loader of group 'g': give all of them the same shuffle, sampler" in str(each) for each in results)
    for seed, result in zip((1, 2), results):  # one that saw no batch of the other goes on alone
        if isinstance(result, list):
            assert [index for batch in result for index in batch.tolist()] == Shuffled(40, seed).order


def test_an_exception_is_raised_in_every_trainer():
    def fails(index):
        if index == 5:
            raise KeyError("no sample 5")
        return index

    def collect(iterator):
        seen = []
        while True:
            try:
                seen.append(next(iterator).tolist())
            except KeyError as error:
                seen.append(str(error).splitlines()[0])
            except StopIteration:
                return seen

    results = at_once(*[lambda each=iter(loader(Numbers(10, fails))): collect(each) for _ in range(2)])
    assert results[0] == results[1] and results[0][2].startswith("KeyError in pinfeed worker") and len(results[0]) == 5


def test_a_batch_beyond_the_size_of_the_first_names_its_indices():
    results = all_of(loader(Numbers(40, growing), batch_size=1) for _ in range(2))
    for result in results:
        assert isinstance(result, pinfeed.ResourceExhaustedError) and "give max_batch_bytes=" in str(result) and "of indices [" in str(result)
    for result in all_of(loader(Numbers(16, growing), batch_size=1, group="sized", max_batch_bytes=1 << 20) for _ in range(2)):
        assert [len(batch[0]) for batch in result] == [len(growing(index)) for index in range(16)]


def test_a_hung_worker_of_a_member_delays_nobody_for_long(monkeypatch):
    monkeypatch.setattr(worker_pool, "_EXIT_PATIENCE_S", 0.1)
    dataset = Numbers(400)
    iterators = [iter(loader(dataset, retry_after=0.2, num_workers=2)) for _ in range(2)]
    begun = at_once(*[lambda each=each: [next(each).tolist() for _ in range(20)] for each in iterators])
    os.kill(iterators[0]._pool.processes[0].pid, signal.SIGSTOP)
    rest = at_once(*[lambda each=each: [batch.tolist() for batch in each] for each in iterators])
    assert [[*first, *second] for first, second in zip(begun, rest)] == [batches(0, 200)] * 2


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"share": "queue"}, "share: 'queue' is not \"broadcast\""),
        ({"group": None}, "group: share='broadcast' needs the group's name"),
        ({"group_size": None}, "group_size: share='broadcast' needs the number of processes"),
        ({"num_workers": 0, "timeout": 0}, "share: 'broadcast' needs num_workers > 0"),
        ({"seeding": "worker"}, "share: 'broadcast' is not possible with seeding=\"worker\""),
        ({"share": None}, "group: 'g' applies only with share=\"broadcast\""),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, text):
    with pytest.raises(pinfeed.InvalidArgumentError) as refusal:
        loader(Numbers(4), **arguments)
    assert text in str(refusal.value)
