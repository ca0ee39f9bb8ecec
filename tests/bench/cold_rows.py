# SPDX-License-Identifier: Apache-2.0
"""The rows of a cold page cache: shuffled arrays, JPEG files and tokens from the disk that the inputs are on.

In: a running daemon; fio; root, to drop the kernel's caches. Out: rows of the table, whose ceiling is the lesser of fio and the warm rate. Beside
them, lines with each contender's rates, and what it made of the disk and of the processors.
"""
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time

import inputs as bench_inputs
import numpy as np
import psutil
import torch_side
from report import Row
from torch.utils.data import DataLoader

DEPTHS = (1, 4, 16, 64, 256)
ROUNDS = 3
COPIES = {"npy": 4, "jpeg": 5, "tokens": 5}  # of the inputs, so that an epoch takes seconds
OF_CEILING = 0.9
NEITHER = 0.01  # of the data: so much may be in the page cache when it is cold, or missing when it is warm


def drop_caches():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except PermissionError:
        raise SystemExit("row cold: only root can drop the kernel's caches") from None


def cached_share(files):
    """Of their bytes, what the page cache has."""
    found = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", *files], capture_output=True, text=True, check=True)
    return sum(map(int, found.stdout.split())) / sum(os.path.getsize(file) for file in files)


def make_cold(files):
    drop_caches()
    if (share := cached_share(files)) > NEITHER:
        raise RuntimeError(f"the page cache still has {share:.0%} of the data: no figure of this row counts")


def make_warm(files):
    for file in files:
        bench_inputs.read_once(file)
    if (share := cached_share(files)) < 1 - NEITHER:
        raise RuntimeError(f"the page cache holds only {share:.0%} of the data: no figure of this row counts")


@dataclasses.dataclass
class Round:
    """What one turn of a contender gave, and what it made of the machine meanwhile."""

    rate: float = 0.0  # samples a second, the first batch included: a cold start counts
    first_ms: float = 0.0  # until the first batch
    disk_busy: float = 0.0  # share of the time in which the disk had a read
    disk_depth: float = 0.0  # reads that it had at a time
    read_kib: float = 0.0  # the mean size of its reads
    read_mbs: float = 0.0
    cpu_own: float = 0.0  # share of all processors that the contender and the daemon used
    cpu_others: float = 0.0  # share that other programs used, or the host of a virtual machine took; a busy machine makes rounds unlike each other


class Machine:
    """What the disk below a file and the processors did since this was made. `daemon`: its process."""

    def __init__(self, file, daemon):
        self._processes = [psutil.Process(), daemon]
        device = os.stat(file).st_dev
        self._disk = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        self._before = self._read()

    def _read(self):
        disk = list(map(int, self._disk.read_text().split()))
        cpu = list(map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
        # user, system and the ended children's; children that run are the DataLoader's workers
        everyone = [*self._processes, *psutil.Process().children(recursive=True)]
        own = sum(sum(process.cpu_times()[:4]) for process in {process.pid: process for process in everyone}.values())
        return time.perf_counter(), np.array([disk[0], disk[2], disk[9], disk[3]]), np.array([sum(cpu), cpu[3] + cpu[4], own * os.sysconf("SC_CLK_TCK")])

    def since(self):
        """A Round without its rate."""
        (begin, disk, cpu), (end, disk_now, cpu_now) = self._before, self._read()
        seconds = end - begin
        (reads, sectors, busy_ms, waited_ms), (ticks, idle, own) = disk_now - disk, cpu_now - cpu
        return Round(
            disk_busy=busy_ms / 1e3 / seconds, disk_depth=waited_ms / 1e3 / seconds, read_kib=sectors / 2 / max(1, reads), read_mbs=sectors * 512 / 1e6 / seconds,
            cpu_own=own / max(1, ticks), cpu_others=max(0, ticks - idle - own) / max(1, ticks),
        )


def fio(daemon, file, block, seconds, depth, direct=True):
    """Random reads of `block` bytes from any page on, `depth` at a time. Past the page cache they are queued, else each thread makes one."""
    jobs = min(depth, len(os.sched_getaffinity(0))) if direct else depth
    queue = [f"--numjobs={jobs}", "--group_reporting", f"--ioengine={'libaio' if direct else 'psync'}", f"--iodepth={depth // jobs}"]
    # --thread: a process of fio's would begin a session, to which the kernel's autogroups give a share of the processors of its own.
    words = ["fio", "--name=cold", "--thread", f"--filename={file}", "--rw=randread", f"--direct={int(direct)}", f"--bs={block}", "--blockalign=4096", *queue]
    words += ["--readonly", "--time_based", f"--runtime={max(1, round(seconds))}", "--output-format=json", "--randrepeat=0"]
    machine = Machine(file, daemon)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return dataclasses.replace(machine.since(), rate=json.loads(done.stdout)["jobs"][0]["read"]["iops"])


def take(daemon, batches, seconds, batch_size, file):
    machine = Machine(file, daemon)
    begin = time.perf_counter()
    first = count = 0
    for _first, _second in batches:
        count += batch_size
        if count == batch_size:
            first = time.perf_counter() - begin
        if time.perf_counter() - begin >= seconds:
            break
    return dataclasses.replace(machine.since(), rate=count / (time.perf_counter() - begin), first_ms=first * 1e3)


def make_copies(inputs, folder):
    """The inputs several times over, as new folders and files."""
    made = bench_inputs.Inputs(folder / "npy", folder / "jpeg", folder / "shards", folder / "tokens.bin")
    unfinished = folder / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    if not made.npy.exists():
        unfinished.mkdir(parents=True)
        for name in ("images.npy", "labels.npy"):
            array = np.load(inputs.npy / name, mmap_mode="r")
            copies = np.lib.format.open_memmap(unfinished / name, "w+", array.dtype, (COPIES["npy"] * len(array), *array.shape[1:]))
            for number in range(COPIES["npy"]):
                copies[number * len(array) : (number + 1) * len(array)] = array
            copies.flush()
        os.rename(unfinished, made.npy)
    if not made.tokens.exists():
        with open(unfinished, "wb") as out:
            for _ in range(COPIES["tokens"]):
                out.write(inputs.tokens.read_bytes())
        os.rename(unfinished, made.tokens)
    if not made.jpeg.exists():
        for number in range(COPIES["jpeg"]):
            for file in sorted(inputs.jpeg.rglob("*.jpg")):
                copy = unfinished / file.parent.name / f"{number}-{file.name}"
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
        os.rename(unfinished, made.jpeg)
    return made


def line(name, turns):
    middle = Round(*(statistics.median(values) for values in zip(*map(dataclasses.astuple, turns))))
    return (
        f"  {name}: {' '.join(f'{turn.rate:.0f}' for turn in turns)}/s; first after {middle.first_ms:.0f} ms; disk {middle.read_mbs:.0f} MB/s, busy "
        f"{middle.disk_busy:.0%}, {middle.disk_depth:.1f} reads of {middle.read_kib:.0f} KiB at a time; of the processors {middle.cpu_own:.0%} own, {middle.cpu_others:.0%} others"
    )


def rows(bench, specs, side, mean, std, progress):
    """`specs`: the arguments of pinfeed.open by kind: npy, jpeg, tokens."""
    data = make_copies(bench.inputs, bench.inputs.npy.parent / "cold")
    files = {"npy": sorted(data.npy.iterdir()), "jpeg": sorted(data.jpeg.rglob("*.jpg")), "tokens": [data.tokens]}
    sequence = specs["tokens"]["sequence_length"]
    images = data.npy / "images.npy"
    # fio reads blocks of the mean size of samples. For JPEG these are parts of the arrays' file: it opens no files.
    kinds = {
        "npy": ("arrays", data.npy, images, 3 * 224 * 224, lambda: torch_side.Arrays(data.npy)),
        "jpeg": ("JPEG", data.jpeg, images, sum(map(os.path.getsize, files["jpeg"])) // len(files["jpeg"]), lambda: torch_side.image_folder(data.jpeg, side, mean, std)),
        "tokens": ("tokens", data.tokens, data.tokens, 2 * sequence + 2, lambda: torch_side.Tokens(data.tokens, sequence)),
    }
    seconds = bench.seconds(6)
    daemon = bench.daemon.process
    for kind, (name, path, file, sample_bytes, dataset) in kinds.items():
        spec, size, all_files = specs[kind], specs[kind]["batch_size"], files[kind]

        def feed(path=path, spec=spec, size=size, file=file):
            with bench.trainer(path, spec).open() as opened:
                return take(daemon, opened, seconds, size, file)

        def loader(size=size, dataset=dataset, file=file):
            return take(daemon, DataLoader(dataset(), size, shuffle=True, num_workers=2, drop_last=True), seconds, size, file)

        block = -(-sample_bytes // 4096) * 4096
        by_depth = {depth: fio(daemon, file, block, seconds / 3, depth).rate for depth in DEPTHS}
        depth = max(by_depth, key=by_depth.get)
        turns = {contender: [] for contender in ("fio", "fio, buffered", "cold", "DataLoader", "warm")}
        for _ in progress(range(ROUNDS), f"cold {name}"):
            turns["fio"].append(fio(daemon, file, block, seconds / 3, depth))
            make_cold([file])
            turns["fio, buffered"].append(fio(daemon, file, block, 1, depth, direct=False))
            make_cold(all_files)
            turns["cold"].append(feed())
            make_cold(all_files)
            turns["DataLoader"].append(loader())
            make_warm(all_files)
            turns["warm"].append(feed())
        middle = {contender: statistics.median(turn.rate for turn in each) for contender, each in turns.items()}
        # Other programs can only lower what fio gets, so its highest rate counts.
        disk = max(*by_depth.values(), *(turn.rate for turn in turns["fio"]))
        ceiling = min(disk, middle["warm"])
        print(f"cold {name}: fio reads {block} bytes at depth {depth}, the best of " + ", ".join(f"{each} ({rate:.0f}/s)" for each, rate in by_depth.items()))
        print("\n".join(line(*each) for each in turns.items()))
        yield Row(
            f"{name} of a cold page cache, shuffled (ceiling: {'the disk' if disk < middle['warm'] else 'warm'})",
            middle["cold"], "samples/s", middle["DataLoader"], ceiling, f">= {OF_CEILING:.0%} of ceiling", middle["cold"] >= OF_CEILING * ceiling,
            drawn=False,
        )
