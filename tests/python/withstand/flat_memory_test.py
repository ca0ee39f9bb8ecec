# SPDX-License-Identifier: Apache-2.0
"""Memory does not grow with the number of batches, in the daemon or in the trainer."""

import subprocess
import sys

from hardship import start_daemon

BATCHES, MAY_GROW = 20_000, 8 << 20

TRAINER = """
import sys, pinfeed, pinfeed._feed.batch_maker
def resident(pid):
    return next(int(line.split()[1]) << 10 for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))
address, dataset, daemon, batches = sys.argv[1:]
pinfeed._feed.batch_maker.SMALL_BYTES = 0  # views, whose leases are what could grow
with pinfeed.open(dataset, batch_size=4, shuffle=True, sample_ids=True, framework="numpy", address=address) as feed:
    count, before, total = 0, None, 0
    while count < int(batches):
        for batch in feed:
            count += 1
            total += int(batch.sample_id[0])
            if count == int(batches) // 10:
                before = resident(daemon), resident("self")
    print(*before, resident(daemon), resident("self"), count)
"""


def test_memory_stays_flat(numbers, tmp_path):
    daemon = start_daemon(tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", TRAINER, daemon.address, str(numbers), str(daemon.process.pid), str(BATCHES)], capture_output=True, text=True, timeout=250)
    daemon.stop()
    assert done.returncode == 0, done.stderr
    daemon_before, trainer_before, daemon_after, trainer_after, batches = map(int, done.stdout.split())
    print(f"{batches} batches; resident KiB of the daemon {daemon_before >> 10} -> {daemon_after >> 10}, of the trainer {trainer_before >> 10} -> {trainer_after >> 10}")
    assert batches >= BATCHES
    assert daemon_after - daemon_before < MAY_GROW and trainer_after - trainer_before < MAY_GROW
