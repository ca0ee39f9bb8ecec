#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the defaults of `workers` and `slots` are as good as the best values by hand, row by row.

usage: settings.py [--device cuda:0] [--rows arrays,jpeg,...] [--settings workers,slots] [--limit SECONDS]

In: a build, the inputs (made here; on a GPU those of tests/gpu/make_inputs.py). Out: tables, settings.json, settings.png.
Every value of a setting gets the same short rounds by turns. Then the best one and the default are measured again, alone and by turns: the
highest of many medians is too high by chance, a second measurement is not. A default below 0.97 of the best fails.
"""
import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path += [str(ROOT / "tests" / "gpu"), str(ROOT / "client" / "python")]

import grid  # noqa: E402
import make_inputs  # noqa: E402
import measure  # noqa: E402
import pinfeed_side  # noqa: E402
import report  # noqa: E402

import pinfeed  # noqa: E402

CORES = len(os.sched_getaffinity(0))
OF_BEST = 0.97
ROWS = ("arrays", "jpeg", "tokens", "texts", "work")
SETTINGS = ("workers", "slots")
SLOTS = (3, 4, 6, 8, 16)  # 3 is the least
TEXTS = {"batch_size": 64, "fields": ["number", "text"]}
ROUNDS = (3, 7)  # of the search, and of the best value beside the default
OVERHEAD_S = 0.5  # of a round: opening, first batches, closing
PINNED_BYTES = "256MiB"  # of each of many daemons: more than a feed takes


def workers_values(row):
    few = (1, 2, 3, 4) if CORES < 8 or row not in ("jpeg", "work") else (4,)  # where decoding counts, fewer cannot win
    return sorted({*few, CORES // 2, CORES - 1, CORES, CORES * 3 // 2, CORES * 2} - {0})


class Setting(pinfeed_side.Trainer):
    """A contender with one value of a setting. Keeps what its rounds found."""

    def __init__(self, daemon, arguments, work_s=0.0):
        super().__init__(daemon, arguments["dataset"], {name: value for name, value in arguments.items() if name != "dataset"})
        self._daemon = daemon
        self._work_s = work_s
        self.workers = pinfeed.status(daemon.address)["workers"]
        self.rates, self.cpu_us = [], []
        self.slots = self.bound = None

    def round(self, seconds):
        self.rates.append(super().round(seconds))
        return self.rates[-1]

    def batches(self, feed):
        """Each is worked on for some CPU time. What loading costs is counted from where the rate is."""
        self.slots = feed.slots
        taken = -2 * feed.slots
        try:
            for batch in super().batches(feed):
                if taken == 0:
                    before = self._cpu_seconds()
                yield batch
                taken += 1
                until = time.thread_time() + self._work_s
                while time.thread_time() < until:
                    pass
        finally:
            if taken > 0:
                spent = self._cpu_seconds() - before - taken * self._work_s
                self.cpu_us.append(spent / (taken * self._batch_size) * 1e6)
            status = next(each for each in pinfeed.status(self._address)["feeds"] if each["sessions"])
            self.bound = f"{status.get('bound_on')} {float(status.get('bound_share', 0)):.0%}"

    def _cpu_seconds(self):
        return self._daemon.cpu_seconds() + time.process_time()


@dataclasses.dataclass
class Result:
    """One setting on one row. `default` and `best` are values; rates are samples a second, costs CPU us of daemon and trainer for one sample."""

    row: str
    setting: str
    default: int
    best: int
    default_rates: "list[float]"
    best_rates: "list[float]"
    default_cost: float
    best_cost: float
    bound: str
    searched: "dict[int, tuple[float, float]]"  # medians of the search: rate and cost

    @property
    def of_best(self):
        """The same value twice shows the noise."""
        return grid.cell(self.default_rates, "", of=self.best_rates).share

    @property
    def holds(self):
        return self.best == self.default or self.of_best >= OF_BEST

    def line(self):
        rates = [grid.cell(values, "samples/s") for values in (self.default_rates, self.best_rates)]
        mark = "" if self.holds else " **below**"
        costs = f"{report.number(self.default_cost)} / {report.number(self.best_cost)}"
        return [self.row, self.setting, str(self.default), *map(str, rates), str(self.best), f"{self.of_best:.3f}{mark}", costs, self.bound]

    def drawn(self):
        work = f"{self.row}, {self.setting}: {self.default} by default (ceiling: {self.best} by hand)"
        default, best = median(self.default_rates), median(self.best_rates)
        return report.Row(work, default, "samples/s", None, best, f">= {OF_BEST:.0%} of the best", self.holds)


HEAD = ["row", "setting", "default", "rate with it", "best rate by hand", "best value", "default / best", "CPU us a sample", "default bound on"]


def median(values):
    return grid.cell(values, "").median if values else 0.0


def compare(row, setting, contenders, seconds, rounds=ROUNDS):
    """`contenders`: {value: Setting}, the default's under None. Searches for the best value, then measures it beside the default."""
    measure.interleave(contenders, rounds[0], seconds, lambda turns, _: turns, "")
    default = contenders.pop(None)
    best = max(contenders, key=lambda value: median(contenders[value].rates))
    searched = {value: (median(one.rates), median(one.cpu_us)) for value, one in contenders.items()}
    pair = default, contenders[best]
    for one in pair:
        one.rates, one.cpu_us = [], []
    measure.interleave(dict(enumerate(pair)), rounds[1], seconds, lambda turns, _: turns, "")
    rates, costs = ([getattr(one, name) for one in pair] for name in ("rates", "cpu_us"))
    return Result(row, setting, getattr(default, setting), best, *rates, *map(median, costs), default.bound, searched)


def inputs_of(root, device):
    """{row: arguments of pinfeed.open}"""
    if device is not None:
        import feeding

        found = {kind: dict(feeding.feed_arguments(root, kind), device=device) for kind in ("arrays", "jpeg", "tokens")}
    else:
        import inputs
        import rows

        made = inputs.make_inputs(root, rows.progress)
        found = {"arrays": dict(rows.NPY, dataset=made.npy), "jpeg": dict(rows.JPEG, dataset=made.jpeg), "tokens": dict(rows.TOKENS, dataset=made.tokens)}
        if not (root / "texts.jsonl").exists():
            make_inputs.make_texts(root / "texts.jsonl")
    common = {name: found["arrays"][name] for name in ("drop_last", "device", "backend") if name in found["arrays"]}
    return {**found, "texts": dict(TEXTS, dataset=root / "texts.jsonl", **common), "work": found["jpeg"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--inputs", type=pathlib.Path, default=ROOT / "build" / "bench" / "data", help="a folder that is filled if there is no --device")
    parser.add_argument("--device", help="a GPU for the batches; default: the host")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help="some of: " + ",".join(ROWS))
    parser.add_argument("--settings", type=lambda text: text.split(","), default=list(SETTINGS), help="some of: " + ",".join(SETTINGS))
    parser.add_argument("--rounds", type=lambda text: [int(each) for each in text.split(",")], default=ROUNDS, help="of the search, of what decides")
    parser.add_argument("--limit", type=float, default=300, help="seconds that all rounds together take, about")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench" / "settings.json", help="a plot goes beside it")
    arguments = parser.parse_args()
    os.environ.setdefault("PINFEED_LIBRARY", str(arguments.build_dir / "client" / "libpinfeed.so"))
    rows = inputs_of(arguments.inputs, arguments.device)
    values = {(row, setting): workers_values(row) if setting == "workers" else SLOTS for row in arguments.rows for setting in arguments.settings}
    search, again = arguments.rounds
    rounds = sum((len(each) + 1) * search + 2 * again for each in values.values())
    seconds = max(0.3, arguments.limit / rounds - OVERHEAD_S)
    print(f"{CORES} cores, {rounds} rounds of {seconds:.1f} s; others use {report.others_cpu_share():.0%} of the processors", flush=True)

    options = {"gpus": "on", "pinned-bytes": PINNED_BYTES} if arguments.device else {}
    results = []
    with contextlib.ExitStack() as stack:
        numbers = {0} | {number for (_, setting), numbers in values.items() if setting == "workers" for number in numbers}
        daemons = {
            number: stack.enter_context(pinfeed_side.Daemon(arguments.build_dir, arguments.inputs, workers=number, **options)) for number in sorted(numbers)
        }
        for (row, setting), numbers in values.items():
            # As long as a batch takes if nothing is beside it.
            work_s = rows[row]["batch_size"] / Setting(daemons[0], rows[row]).round(seconds) if row == "work" else 0.0
            contenders = {None: Setting(daemons[0], rows[row], work_s)}
            for number in numbers:
                by_hand = (daemons[number], rows[row]) if setting == "workers" else (daemons[0], dict(rows[row], slots=number))
                contenders[number] = Setting(*by_hand, work_s)
            results.append(compare(row, setting, contenders, seconds, arguments.rounds))
            print(" | ".join(results[-1].line()), flush=True)
    finish(results, arguments.out)


def finish(results, out):
    tables = [["| " + " | ".join(line) + " |" for line in (HEAD, ["---"] * len(HEAD), *(result.line() for result in results))]]
    for setting in dict.fromkeys(result.setting for result in results):
        chosen = [result for result in results if result.setting == setting]
        names = sorted({value for result in chosen for value in result.searched})
        lines = [[f"{setting}: rate (CPU us a sample)", *map(str, names)], ["---"] * (len(names) + 1)]
        for result in chosen:
            cells = [result.searched.get(value) for value in names]
            lines.append([result.row, *("-" if cell is None else f"{report.number(cell[0])} ({report.number(cell[1])})" for cell in cells)])
        tables.append(["| " + " | ".join(line) + " |" for line in lines])
    print("", *("\n".join(table) + "\n" for table in tables), sep="\n")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([dict(dataclasses.asdict(result), of_best=result.of_best, holds=result.holds) for result in results], indent=1) + "\n")
    report.plot([result.drawn() for result in results], out.with_suffix(".png"))
    below = [f"{result.setting} of {result.row}" for result in results if not result.holds]
    if below:
        sys.exit(f"settings.py: below {OF_BEST} of the best value by hand: {', '.join(below)}")


if __name__ == "__main__":
    main()
