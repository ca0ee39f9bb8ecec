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

WINDOWS, KILLS_A_WINDOW = 8, 20


def test_clients_killed_anywhere_leave_nothing(host, numbers, reader):
    seed = int(os.environ.get("PINFEED_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PINFEED_TEST_SEED={seed}")
    neighbour = reader(host.address, numbers, batch_size=8, shuffle=True, seed=3, name="neighbour", step_s=0.004)
    neighbour.advance(20)
    victims = subprocess.Popen([sys.executable, str(HERE / "victims.py"), host.address, str(numbers), str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def window(order):
        """What victims.py answers, and the neighbour's batches/s meanwhile."""
        begin, batches = time.monotonic(), neighbour.batches
        victims.stdin.write(order + "\n")
        victims.stdin.flush()
        answer = victims.stdout.readline()
        assert answer, "victims.py failed; see above"
        neighbour.advance(1)
        return json.loads(answer), (neighbour.batches - batches) / (time.monotonic() - begin)

    killed, rates_killed, rates_spared = collections.Counter(), [], []
    window("0")  # it has only just started
    for number in range(WINDOWS):
        answer, rate = window(f"{KILLS_A_WINDOW}")
        killed.update(answer)
        rates_killed.append(rate)
        # Clients that come and go cost the host the same, killed or not: what differs is what their death does to the daemon.
        if number % 2:
            rates_spared.append(window(f"{KILLS_A_WINDOW} spared")[1])
    victims.stdin.close()
    assert victims.wait(60) == 0 and sum(killed.values()) == WINDOWS * KILLS_A_WINDOW
    rates = [statistics.median(rates_killed), statistics.median(rates_spared)]
    print(f"killed: {dict(killed)}; neighbour's batches/s while clients are killed and while they leave in order: {rates[0]:.0f} {rates[1]:.0f}")
    batches = neighbour.finish()
    print("at the start:", host.at_start, "\nnow:", await_census(host, host.at_start))
    check_order(batches, 3, 8, numbers, host.address)
    assert rates[0] >= 0.5 * rates[1]
