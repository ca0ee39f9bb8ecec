# SPDX-License-Identifier: Apache-2.0
"""The wheel on a machine with a GPU: installed by pip, its batches from its private daemon, and its rate beside the packed build's.

    wheel.py WHEEL INPUTS

In: the file, the folder that make_inputs.py filled. Out: a table; exit status 1 if it does not work, or is slower than 0.9 of the packed build. Its
processes get none of the packed libraries.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TURNS, SECONDS = 3, 3.0
SHARE = 0.9

# What a user writes.
PROGRAM = """
import time
began = time.perf_counter()
import json, sys
import pinfeed
imported = time.perf_counter()
import torch
torch.zeros(1, device="cuda")
opening = time.perf_counter()
bytes_taken, first = 0, None
with pinfeed.open(sys.argv[1], batch_size=256, shuffle=True, device="cuda:0") as feed:
    while first is None or time.perf_counter() - measured < float(sys.argv[2]):
        for batch in feed:
            if first is None:
                torch.cuda.synchronize()
                first = time.perf_counter()
                assert batch.image.is_cuda and batch.image.shape[1:] == (3, 224, 224), batch.image
            if first is not None and bytes_taken == 0:
                measured = time.perf_counter()
            bytes_taken += batch.image.nbytes
    torch.cuda.synchronize()
    took = time.perf_counter() - measured
print(json.dumps({"gb_per_s": bytes_taken / took / 1e9, "first_ms": (first - opening) * 1e3, "import_ms": (imported - began) * 1e3, "where": pinfeed.__file__, "backend": feed.backend}))
"""


def take(dataset, environment):
    """What the program says in that environment."""
    command = [sys.executable, "-c", PROGRAM, str(dataset), str(SECONDS)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=90, check=True)
    return json.loads(done.stdout)


def main():
    wheel, inputs = map(pathlib.Path, sys.argv[1:3])
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PINFEED_") and name not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    packed = {**os.environ, "PINFEED_DAEMON": str(HERE / "bin" / "pinfeedd")}
    with tempfile.TemporaryDirectory() as site:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, str(wheel)], env=plain, check=True)
        print(f"pip install: {time.perf_counter() - began:.1f} s", flush=True)
        ways = {"wheel": {**plain, "PYTHONPATH": site}, "packed build": packed}
        found = {name: [] for name in ways}
        for _ in range(TURNS):
            for name, environment in ways.items():
                found[name].append(take(inputs / "arrays", environment))
    rates = {}
    for name, turns in found.items():
        rates[name] = statistics.median(turn["gb_per_s"] for turn in turns)
        first, imported = (statistics.median(turn[key] for turn in turns) for key in ("first_ms", "import_ms"))
        print(f"{name:13} {rates[name]:5.1f} GB/s by {turns[0]['backend']}, first batch {first:.0f} ms after open, import {imported:.1f} ms, from {turns[0]['where']}")
    share = rates["wheel"] / rates["packed build"]
    print(f"the wheel has {share:.0%} of the packed build's rate ({'met' if share >= SHARE else 'MISSED'}: {SHARE:.0%})")
    sys.exit(share < SHARE)


if __name__ == "__main__":
    main()
