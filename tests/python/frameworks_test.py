# SPDX-License-Identifier: Apache-2.0
"""What training frameworks do with a loader, with a real daemon: ranks that are known late, loops that handlers interrupt, validations."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from group_pair import MEMBER, options_of
from member_process import Member

import pinfeed

RANK = """
import json, sys
import pinfeed, torch.distributed
folder, address, meeting, rank = sys.argv[1:]
feed = pinfeed.open(folder, batch_size=4, shuffle=True, address=address)
before = feed.rank, feed.world_size, len(feed)
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
ids = [batch.id.tolist() for batch in feed]
print(json.dumps([before, [feed.rank, feed.world_size, len(feed), feed.rank_source], ids]))
"""


def test_ranks_that_are_known_after_the_feed_was_opened_share_the_samples(daemon, arrays, tmp_path):
    """As under Lightning, which starts its processes first and their group later."""
    torch_distributed = pytest.importorskip("torch.distributed")
    if not torch_distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    command = [sys.executable, "-c", RANK, str(arrays), daemon.address, str(tmp_path / "meeting")]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    results = [json.loads(out) for out, _ in outputs]
    for number, (before, after, _) in enumerate(results):
        assert (before, after) == ([0, 1, 16], [number, 2, 8, "torch.distributed"])
        assert f"this process is now rank {number} of 2" in outputs[number][1] or number == 0
    assert sorted(sum((sum(ids, []) for _, _, ids in results), [])) == list(range(64))


def test_a_late_member_of_a_broadcast_knows_its_epoch_before_its_first_batch(daemon, arrays):
    options = options_of("late", group_size=1)
    with Member(MEMBER.replace("iter(feed)", "itertools.chain.from_iterable(itertools.repeat(feed))"), str(arrays), daemon.address, json.dumps(options)) as member:
        member.read(5 * 16 + 3)
        with pinfeed.open(arrays, address=daemon.address, framework="numpy", **options) as feed:
            epoch = feed.epoch
            assert epoch in (5, 6) and feed.state_dict()["epoch"] == epoch  # the daemon is ahead of the member by what it prefetched
            member.begin_reading(4 * 16)
            assert next(iter(feed)).epoch == epoch


def test_a_validation_runs_over_the_same_epoch_each_time(daemon, arrays):
    with pinfeed.open(arrays, batch_size=8, epochs=1, address=daemon.address, framework="numpy") as feed:
        for _ in range(3):
            assert [batch.id[0] for batch in feed] == list(range(0, 64, 8))


def test_a_feed_whose_group_is_incomplete_answers_and_closes(daemon, arrays):
    """While a thread waits for the first batch; a child that is forked then may close its copy, and end."""
    feed = pinfeed.open(arrays, address=daemon.address, framework="numpy", **options_of("incomplete"))
    state, failures = feed.state_dict(), []

    def wait():
        try:
            next(iter(feed))
        except pinfeed.Error as error:
            failures.append(error.code)

    thread = threading.Thread(target=wait)
    thread.start()
    while feed._snapshot is None:  # it is inside the library
        assert thread.is_alive()
    assert (feed.state_dict(), feed.classes, len(feed.fingerprint) > 0, feed.reconnects) == (state, [], True, 0)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it if it hangs
        feed.close()
        feed.__del__()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert thread.is_alive()
    feed.close()
    thread.join()
    assert failures == [pinfeed.Code.CANCELLED]


class Interrupt(Exception):
    """What the handler raises."""


def test_a_for_loop_that_handlers_interrupt_loses_no_batch(daemon, arrays):
    """Signals come at any place of the package's code and of the loop's head."""
    interrupts, got = 0, []

    def interrupt(*_):
        nonlocal interrupts
        if iterating:
            interrupts += 1
            raise Interrupt

    iterating = False
    gc.collect()
    gc.disable()  # what others left is not to end in the middle of this, where it would swallow an interrupt
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pinfeed.open(arrays, batch_size=4, address=daemon.address, framework="numpy") as feed:
            while interrupts < 200:
                iterator = iter(feed)
                index = 0
                while index < len(feed):
                    signal.setitimer(signal.ITIMER_REAL, 20e-6 + 1e-6 * (interrupts % 40), 200e-6)
                    iterating = True
                    try:
                        for batch in iterator:
                            got.append(batch.index)
                    except Interrupt:
                        pass
                    iterating = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    index = len(got)
                assert got == list(range(len(feed)))
                got.clear()
    finally:
        iterating = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
