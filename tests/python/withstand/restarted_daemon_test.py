# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed, or told to end, under trainers that know nothing of it: what they see is one run without a gap."""

import os
import random
import signal

import pytest
from hardship import check_order, start_daemon

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
    options = dict(batch_size=7, shuffle=True, seed=12, share="broadcast", group="survivors", group_size=2, epochs=20)
    members = [reader(restarting.address, numbers, name=f"member {number}", **options) for number in range(2)]
    for batches in draw_points():
        members[0].advance(batches)
        restarting.restart(how)
    for member in members:
        batches = member.finish()
        assert len(batches) == 20 * 74
        check_order(batches, 12, 7, numbers, restarting.address)
