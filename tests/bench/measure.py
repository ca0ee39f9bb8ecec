# SPDX-License-Identifier: Apache-2.0
"""How fast contenders are, on a machine that is never quite quiet.

Contenders take turns (A B C A B C ...), so that noise meets all of them, and the median of their rounds counts. A contender has
`round(seconds)`, which returns items a second and leaves nothing running behind it, and `close()`.
"""
import json
import statistics
import subprocess
import time


def interleave(contenders, rounds, seconds, progress, description):
    """Returns {name: median items a second}."""
    rates = {name: [] for name in contenders}
    for number in progress(range(rounds * len(contenders)), description):
        name = list(contenders)[number % len(contenders)]
        rates[name].append(contenders[name].round(seconds))
    return {name: statistics.median(values) for name, values in rates.items()}


def batches_per_second(batches, warm, seconds):
    """Takes `warm` batches, then all that come within `seconds`. Each has two tensors, which are looked at no further."""
    batches = iter(batches)
    for _ in range(warm):
        next(batches)
    count = 0
    begin = now = time.perf_counter()
    for _first, _second in batches:
        count += 1
        now = time.perf_counter()
        if now - begin >= seconds:
            break
    return count / (now - begin)


def quantile(values, share):
    return sorted(values)[int(share * (len(values) - 1))]


class Program:
    """A contender in C++: prints one JSON line with what it did. `arguments(seconds)` is its command line."""

    def __init__(self, arguments, stdin=""):
        self._arguments = arguments
        self._stdin = stdin

    def round(self, seconds):
        answer = run_program(self._arguments(seconds), self._stdin)
        return answer["count"] / answer["seconds"]

    def close(self):
        pass


def run_program(arguments, stdin=""):
    done = subprocess.run([str(argument) for argument in arguments], input=stdin, stdout=subprocess.PIPE, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} failed with status {done.returncode}")
    return json.loads(done.stdout)
