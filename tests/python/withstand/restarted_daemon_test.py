# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed, or told to end, under trainers that know nothing of it: what they see is one run without a gap."""

import os
import random
import signal

import pinfeed
import pytest
from hardship import SAMPLES, check_order, start_daemon

RESTARTS = 5


class Restarting:
    """A daemon that comes back, in the same folder."""

    def __init__(self, folder):
        self.folder = folder
        self.running = self.start()
        self.address = self.running.address

    def restart(self, how):
        if how == signal.SIGKILL:
            self.running.process.kill()
            assert self.running.process.wait(60) == -signal.SIGKILL
        else:
            self.running.stop()
        self.running = self.start()

    def start(self):
        # It ends when the trainers have left and not before: those that wait for the next batch do, even if they still hold the last one.
        return start_daemon(self.folder, "--drain-timeout", "1h")


@pytest.fixture
def restarting(tmp_path):
    one = Restarting(tmp_path / "run")
    yield one
    one.running.stop()


def draw_points():
    seed = int(os.environ.get("PINFEED_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PINFEED_TEST_SEED={seed}")
    draw = random.Random(seed)
    return [draw.randrange(1, 150) for _ in range(RESTARTS)]  # batches between two restarts; an epoch has 73


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_trainer_sees_one_run(restarting, numbers, reader, how):
    trainer = reader(restarting.address, numbers, batch_size=7, shuffle=True, seed=11, hold=1, name="trainer")
    for batches in draw_points():
        trainer.advance(batches)
        restarting.restart(how)
    trainer.advance(100)
    batches = trainer.finish()
    print(f"{len(batches)} batches, {batches[-1][0]} epochs")
    check_order(batches, 11, 7, numbers, restarting.address)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_broadcast_group_sees_one_run(restarting, numbers, reader, how):
    # With steps of a training, or they might be through before the last restart.
    options = dict(batch_size=7, shuffle=True, seed=12, share="broadcast", group="survivors", group_size=2, zero_copy=True, epochs=20, step_s=0.002)
    members = [reader(restarting.address, numbers, name=f"member {number}", **options) for number in range(2)]
    for batches in draw_points():
        members[0].advance(batches)
        restarting.restart(how)
    for member in members:
        batches = member.finish()
        assert len(batches) == 20 * 74
        check_order(batches, 12, 7, numbers, restarting.address)


def test_four_trainers_see_one_run_each_over_rolling_restarts(restarting, numbers, reader):
    """As an upgrade does it: SIGTERM, the next daemon when the first has ended, under a shuffled, a sequential, a sharded pair of trainers."""
    shards = [dict(batch_size=7, seed=14, shuffle=True, rank=rank, world_size=2) for rank in (0, 1)]
    options = [dict(batch_size=7, seed=13, shuffle=True), dict(batch_size=5, seed=15, shuffle=True, hold=1), *shards]
    trainers = [reader(restarting.address, numbers, name=f"trainer {number}", **each) for number, each in enumerate(options)]
    for batches in draw_points()[:3]:
        for trainer in trainers:
            trainer.advance(batches)
        restarting.restart(signal.SIGTERM)
    for trainer in trainers:
        trainer.advance(150)
    seen = [trainer.finish() for trainer in trainers]
    for batches, each in zip(seen[:2], options):
        check_order(batches, each["seed"], each["batch_size"], numbers, restarting.address)
    for batches, each in zip(seen[2:], shards):
        assert batches == undisturbed(numbers, restarting.address, len(batches), **each)
    for epoch in range(min(batches[-1][0] for batches in seen[2:])):  # both ranks together: every sample, the epoch's end filled up to equal batches
        ids = [number for batches in seen[2:] for batch in batches if batch[0] == epoch for number in batch[2]]
        assert set(ids) == set(range(SAMPLES)) and len(ids) - SAMPLES <= 1


def undisturbed(dataset, address, count, **options):
    """The first batches of a feed, as nobody disturbs it."""
    batches = []
    with pinfeed.open(dataset, sample_ids=True, framework="numpy", address=address, **options) as feed:
        while len(batches) < count:
            batches += [(batch.epoch, batch.index, batch.sample_id.tolist()) for batch in feed]
    return batches[:count]
