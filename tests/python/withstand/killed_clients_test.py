# SPDX-License-Identifier: Apache-2.0
"""Clients that die at any point of their lives leave nothing behind, and their neighbour does not notice."""

import collections
import json
import os
import random
import statistics
import subprocess
import sys
import time

from hardship import HERE, await_census, check_order

WINDOWS, KILLS_A_WINDOW = 10, 20


def test_clients_killed_anywhere_leave_nothing(host, numbers, reader):
    seed = int(os.environ.get("PINFEED_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PINFEED_TEST_SEED={seed}")
    neighbour = reader(host.address, numbers, batch_size=8, shuffle=True, seed=3, name="neighbour", step_s=0.002)
    neighbour.advance(20)
    victims = subprocess.Popen([sys.executable, str(HERE / "victims.py"), host.address, str(numbers), str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    killed, quiet, loud = collections.Counter(), [], []
    for window in range(WINDOWS + 1):
        begin, batches = time.monotonic(), neighbour.batches
        victims.stdin.write(f"{KILLS_A_WINDOW if window else 0}\n")
        victims.stdin.flush()
        answer = victims.stdout.readline()
        assert answer, "victims.py failed; see above"
        if not window:
            continue  # it has only just started
        killed.update(json.loads(answer))
        seconds = time.monotonic() - begin
        loud.append((neighbour.batches - batches) / seconds)
        begin, batches = time.monotonic(), neighbour.batches
        neighbour.advance(max(20, int(loud[-1] * seconds / 2)))
        quiet.append((neighbour.batches - batches) / (time.monotonic() - begin))
    victims.stdin.close()
    assert victims.wait(60) == 0 and sum(killed.values()) == WINDOWS * KILLS_A_WINDOW
    rates = [statistics.median(loud), statistics.median(quiet)]
    print(f"killed: {dict(killed)}; neighbour's batches/s while clients are killed and while they are not: {rates[0]:.0f} {rates[1]:.0f}")
    batches = neighbour.finish()
    print("at the start:", host.at_start, "\nnow:", await_census(host, host.at_start))
    check_order(batches, 3, 8, numbers, host.address)
    assert rates[0] >= 0.5 * rates[1]
