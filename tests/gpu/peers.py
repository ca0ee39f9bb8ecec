#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pinfeed beside other loaders: same files, same outputs, turn by turn in one run.

    peers.py ADDRESS INPUTS OUT [--rows jpeg,shards,arrays,tokens] [--only 'DALI;pinfeed'] [...]      (run.sh calls it; --help has the rest)

In: a daemon's address, the folder that make_inputs.py filled, and, in the environment, PEERS_SITE: the folder that wheels.sh installed other loaders
into. Out: tables, OUT/peers.json, OUT/peers.png and what the contenders said, OUT/peers.log. tests/bench/publish_gpu.py puts such a peers.json into
docs/benchmarks.md.

Each contender is a process of its own (contenders/child.py), stopped with its workers while others are measured, so that none makes batches then. A
turn: some time that does not count, then the window, up to whole bursts of batches. CPU time is that of all its processes, pinfeed's with the daemon.
Then the fastest of DALI and pinfeed feed a trainer of matrix products, in two ways: it takes a batch itself when one is due; and a thread beside it
takes all that come. A contender that fails costs the others nothing, and makes the exit status 1. One that is not installed is listed as such.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import peers_report
import pinfeed
import tar_shards
from contenders import arrays, images  # noqa: F401 - they fill CONTENDERS
from contenders.base import BATCH, CONTENDERS, SAMPLE_BYTES
from peers_report import FREE, GPU, PACE, Machine, Result

HERE = pathlib.Path(__file__).resolve().parent
FILES = 8192  # of one array each, for readers of such files
TOLERANCE = {"mean": 0.03, "deviation": 0.05}  # of normalised pixels, from pinfeed's: decoders and filters differ
PINFEED_FIRST = {"jpeg": peers_report.CPU, "shards": peers_report.CPU, "arrays": "pinfeed", "tokens": "pinfeed"}
IMAGES = ("jpeg", "shards")
SHARDS = 32


def say(what):
    print(f"{time.monotonic() - BEGAN:6.1f} s  {what}", flush=True)


BEGAN = time.monotonic()


class Child:
    """A contender's process. Owns it and its workers, which are a session of their own."""

    def __init__(self, contender, arguments, pids):
        read, write = os.pipe()
        self.log_path = arguments.logs / ("".join(c if c.isalnum() else "-" for c in f"{contender.row}-{contender.name}") + ".log")
        device = "host" if arguments.host else "cuda:0"
        command = [sys.executable, "-u", "-m", "contenders.child", contender.row, contender.name, arguments.inputs, arguments.address, device, write, pids]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=[write], start_new_session=True,
                cwd=HERE, env=environment(contender),
            )  # fmt: skip
        os.close(write)
        self.replies, self.buffer = read, b""

    def reply(self, limit):
        until = time.monotonic() + limit
        while b"\n" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.replies], [], [], left)[0]:
                raise RuntimeError(f"no answer within {limit:.0f} s; its log ends:\n{self.log()}")
            more = os.read(self.replies, 1 << 16)
            if not more:
                raise RuntimeError(f"it ended with status {self.process.wait()}; its log ends:\n{self.log()}")
            self.buffer += more
        line, _, self.buffer = self.buffer.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{answer['trace']}")
        return answer

    def ask(self, limit, **command):
        """Goes on for as long as the answer takes."""
        self.signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.reply(limit)
        self.signal(signal.SIGSTOP)
        return answer

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def log(self):
        return self.log_path.read_text(errors="replace")[-2000:]

    def end(self):
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.replies)


def environment(contender):
    """pinfeed's libraries for pinfeed; for others what they brought, and not ours."""
    libraries = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    python = [str(HERE), *os.environ.get("PYTHONPATH", "").split(":")]
    site = os.environ.get("PEERS_SITE")
    if contender.peer != "pinfeed":
        libraries = [path for path in libraries if pathlib.Path(path) != HERE / "lib"]
    if contender.needs and site:
        python.append(site)
        if contender.peer == "SPDL":
            libraries.insert(0, f"{site}/ffmpeg")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "PYTHONPATH": ":".join(filter(None, python)), "OMP_NUM_THREADS": "1"}


def busy_seconds():
    """Of all processors."""
    fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:3]) + fields[5] + fields[6]) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(limit):
    """Until what works on behind a turn, such as a daemon that fills its slots, is done."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        before = busy_seconds()
        time.sleep(0.1)
        if busy_seconds() - before < 0.1:
            return


def make_files(job):
    """Some of the arrays, in a file each."""
    source, folder, begin, end = job
    samples = np.load(source, mmap_mode="r")
    for number in range(begin, min(end, len(samples))):
        np.save(folder / f"{number:06}.npy", samples[number])


def make_arrays(inputs, folder):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(make_files, [(inputs / "arrays" / "image.npy", folder, begin, begin + 256) for begin in range(0, FILES, 256)]))


def make_shards(inputs, folder):
    tar_shards.pack_images(inputs / "jpeg", folder, SHARDS)


def prepare(inputs):
    for name, make in (("npy", make_arrays), ("shards", make_shards)):
        if (inputs / name).exists():
            continue
        unfinished = inputs / f"{name}.unfinished"
        unfinished.mkdir(exist_ok=True)
        make(inputs, unfinished)
        unfinished.rename(inputs / name)


def judged(facts, reference):
    """What a check found, in words: "ok", or what is wrong. reference: pinfeed's facts, if it ran."""
    if "same" in facts:
        return "ok" if facts["same"] else f"WRONG: {facts['got']}"
    wrong = [name for name in ("float", "contiguous", "finite") if not facts[name]]
    wrong += [f"shape {facts['shape']}"] if facts["shape"] != [BATCH, 3, 224, 224] else []
    wrong += [f"{facts['bytes']} bytes a value"] if facts["bytes"] != 2 else []
    wrong += [f"only {facts['different']:.0%} of the images differ"] if facts["different"] < 0.999 else []
    wrong += [f"labels of shape {facts['labels']}, {facts['classes']} classes"] if facts["labels"] != [BATCH] or facts["classes"] < 2 else []
    if reference is None:
        return "WRONG: " + ", ".join(wrong) if wrong else "ok, not compared"
    for name, most in TOLERANCE.items():
        if abs(facts[name] - reference[name]) > most:
            wrong.append(f"{name} {facts[name]:.3f}, pinfeed's {reference[name]:.3f}")
    if facts["device"] != reference["device"]:
        wrong.append(f"on {facts['device']}")
    return "WRONG: " + ", ".join(wrong) if wrong else "ok"


class Row:
    """One table's contenders: starts them, measures by turns, ends them. Errors: of a contender, it is left out from there on."""

    def __init__(self, row, arguments, results, pids):
        self.row, self.arguments, self.results, self.pids = row, arguments, results, pids
        self.alive, self.facts = {}, {}

    def chosen(self):
        wanted = [part.strip().lower() for part in (self.arguments.only or "").split(";")]
        return [one for (row, name), one in CONTENDERS.items() if row == self.row and any(part in name.lower() for part in wanted)]

    def try_with(self, name, measure):
        """measure() of a contender that runs; None if it failed."""
        try:
            return measure()
        except Exception as error:
            say(f"!! {self.row}: {name} FAILED: {error}")
            self.of[name].failed = str(error).splitlines()[0][:300]
            self.drop(name)

    def drop(self, name):
        if name in self.alive:
            self.alive.pop(name).end()

    def run(self):
        chosen = self.chosen()
        self.of = {one.name: Result(self.row, one.name, one.peer) for one in chosen}
        self.results += self.of.values()
        try:
            # Some at once: most of a start is the import of PyTorch.
            for begin in range(0, len(chosen), self.arguments.starts):
                some = chosen[begin : begin + self.arguments.starts]
                for one in some:
                    self.alive[one.name] = Child(one, self.arguments, self.pids if one.peer == "pinfeed" else "")
                for one in some:
                    self.try_with(one.name, lambda one=one: self.start(one))
            self.judge()
            for turn in range(self.arguments.turns):
                self.turn(turn)
            if self.row == "jpeg":
                self.feed_trainers()
        finally:
            for name in list(self.alive):
                self.drop(name)

    def start(self, contender):
        result, child = self.of[contender.name], self.alive[contender.name]
        ready = child.reply(self.arguments.start_limit)
        if "absent" in ready:
            result.absent = ready["absent"]
            say(f"{self.row}: {contender.name}: {result.absent}")
            return self.drop(contender.name)
        result.versions = ready["versions"]
        self.facts[contender.name] = child.ask(60, do=f"check_{self.row}")
        say(f"{self.row}: {contender.name}: first batch after {ready['first_s']:.1f} s; {json.dumps(self.facts[contender.name])}")

    def judge(self):
        """What is wrong is not measured."""
        reference = self.facts.get(PINFEED_FIRST[self.row])
        for name, facts in self.facts.items():
            self.of[name].check = judged(facts, reference)
            if self.of[name].check.startswith("WRONG"):
                self.try_with(name, lambda name=name: fail(self.of[name].check))

    def out_of_time(self, seconds):
        return time.monotonic() - BEGAN + seconds > self.arguments.budget

    def turn(self, turn):
        names, a = list(self.alive), self.arguments
        settle, seconds = (a.settle, a.seconds) if self.row in IMAGES else (a.settle / 2, a.seconds / 2)
        for name in names[turn % max(1, len(names)) :] + names[: turn % max(1, len(names))]:
            if self.out_of_time(settle + seconds):
                say(f"!! {self.row}: out of time before {name}'s turn {turn + 1}")
                continue
            wait_until_quiet(0 if a.host else 1.0)
            answer = self.try_with(name, lambda name=name: self.alive[name].ask(settle + 3 * seconds + 60, do="drain", settle=settle, seconds=seconds))
            if answer is None:
                continue
            count = answer["batches" if self.row == "tokens" else "samples"]
            rate = count / answer["took"] * (SAMPLE_BYTES / 1e9 if self.row == "arrays" else 1)
            self.of[name].turns.append([rate, 1000 * answer["cpu"] / count])
            say(f"{self.row}: turn {turn + 1}: {name}: {rate:,.2f} {peers_report.ROWS[self.row][1]}, {1000 * answer['cpu'] / count:.3f} CPU s for 1,000")

    def feed_trainers(self):
        """What the trainer keeps, by turns. Where DALI is not there, pinfeed alone."""
        dali = peers_report.best(self.of.values(), "jpeg", "DALI")
        pinfeeds = [name for name in (GPU, peers_report.AUTO, peers_report.CPU) if name in self.alive]
        names = ([dali.contender] if dali and dali.contender in self.alive else []) + pinfeeds
        for turn in range(self.arguments.fed_turns):
            for name in names:
                self.measure_trainer(turn, name, "paced", str(PACE), 50 if self.arguments.host else PACE)
                self.measure_trainer(turn, name, "beside", FREE, None)
            if GPU in self.alive and dali and FREE in dali.beside:
                theirs = statistics.median(rate for _, rate in dali.beside[FREE])
                # At DALI's rate; and some more, since pinfeed as it comes may leave less of the trainer than DALI.
                for label, times in (("DALI's", 1.0), ("1.25 times DALI's", 1.25), ("1.6 times DALI's", 1.6)):
                    self.measure_trainer(turn, GPU, "beside", label, times * theirs)

    def measure_trainer(self, turn, name, do, label, pace):
        if name not in self.alive or self.out_of_time(4):
            return say(f"!! the trainer, {do} at {label}: not measured with {name} in turn {turn + 1}")
        wait_until_quiet(0 if self.arguments.host else 1.0)
        answer = self.try_with(name, lambda: self.alive[name].ask(60, do=do, pace=pace, steps=self.arguments.steps))
        if answer is None:
            return None
        found = answer["kept"] if do == "paced" else [answer["kept"], answer["images_per_s"]]
        getattr(self.of[name], do).setdefault(label, []).append(found)
        say(f"trainer, {'fed by itself' if do == 'paced' else 'fed beside'} at {label}: turn {turn + 1}: {name}: {json.dumps(answer)}")


def fail(why):
    raise RuntimeError(why)


def machine(results, host):
    import torch
    import torchvision

    facts = {}
    if not host:  # without a context of this process on the GPU
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
        facts["GPU"], facts["driver"] = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip().split(", ")
    facts.update({"cores": str(len(os.sched_getaffinity(0))), "Python": platform.python_version(), "PyTorch": torch.__version__})
    facts.update({"torchvision": torchvision.__version__, "NumPy": np.__version__, "pinfeed": pinfeed.__version__})
    for result in results:
        facts.update(result.versions)
    return facts


def measure(arguments, results):
    """All rows; what was found is written after each."""
    daemon = str(pinfeed.status(arguments.address)["pid"])
    for row in arguments.rows:
        Row(row, arguments, results, daemon).run()
        kept = [*results, *peers_report.budgets(results), Machine(machine(results, arguments.host))]
        peers_report.report.write_json(kept, arguments.out / "peers.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("inputs", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(peers_report.ROWS))
    parser.add_argument("--only", help="contenders whose names have one of these parts (A;B)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--settle", type=float, default=0.5, help="seconds of a turn that do not count; half of it but for JPEG, as the next")
    parser.add_argument("--seconds", type=float, default=1.7, help="of a turn's window")
    parser.add_argument("--fed-turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1200, help="of products, in each measurement of the trainer")
    parser.add_argument("--starts", type=int, default=6, help="contenders that start at once")
    parser.add_argument("--start-limit", type=float, default=90)
    parser.add_argument("--budget", type=float, default=440, help="seconds after which nothing new is measured")
    parser.add_argument("--host", action="store_true", help="a rehearsal without a GPU")
    arguments = parser.parse_args()
    arguments.inputs, arguments.out = arguments.inputs.resolve(), arguments.out.resolve()
    unknown = set(arguments.rows) - set(peers_report.ROWS)
    if unknown:
        parser.error(f"--rows: there is no {', '.join(sorted(unknown))}; there are {', '.join(peers_report.ROWS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("peers.py: ended by a signal"))  # and the contenders with it
    arguments.out.mkdir(parents=True, exist_ok=True)
    prepare(arguments.inputs)
    results = []
    with tempfile.TemporaryDirectory(prefix="pinfeed-peers-") as logs:
        arguments.logs = pathlib.Path(logs)
        try:
            measure(arguments, results)
        finally:
            said = (f"==== {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in sorted(arguments.logs.iterdir()))
            (arguments.out / "peers.log").write_text("\n".join(said))
    print("\n" + "\n".join(peers_report.markdown(results, machine(results, arguments.host))))
    peers_report.plot(results, arguments.out / "peers.png")
    failed = [f"{one.row}: {one.contender}: {one.failed}" for one in results if one.failed]
    if failed:
        sys.exit("peers.py: failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
