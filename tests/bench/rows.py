# SPDX-License-Identifier: Apache-2.0
"""What is measured. In: a running daemon and its inputs. Out: rows of the table, each with its budget.

The budgets are ratios where there is something to compare with, else times as they stand. docs/benchmarks.md says what each row
means.
"""
import dataclasses
import os
import pathlib
import shutil
import statistics
import subprocess

import numpy as np
from tqdm import tqdm

import batcher_rates
import cold_rows
import inputs as bench_inputs
import loader_rows
import measure
import pinfeed_side
import torch_side
from report import Row

import pinfeed

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SEQUENCE = 2048
CORES = len(os.sched_getaffinity(0))

NPY = {"batch_size": 256, "drop_last": True}
JPEG = {
    "batch_size": 64,
    "drop_last": True,
    "transforms": [
        pinfeed.RandomResizedCrop(SIDE),
        pinfeed.RandomHorizontalFlip(),
        pinfeed.ToDtype("float32", scale=True),
        pinfeed.Normalize(MEAN, STD),
    ],
}
TOKENS = {"batch_size": 8, "sequence_length": SEQUENCE, "drop_last": True}
CACHE_BYTES = "4GiB"  # holds all of the decoded images
CENTRE = {"batch_size": 64, "drop_last": True, "layout": "HWC", "transforms": [pinfeed.Resize(256), pinfeed.CenterCrop(SIDE)]}
CROPS = {"batch_size": 64, "drop_last": True, "layout": "HWC", "transforms": [pinfeed.RandomResizedCrop(SIDE)]}
SMALL = {"batch_size": 8, "sequence_length": 64, "drop_last": True, "rank": 0, "world_size": 20}  # 9,765 batches an epoch

# Ratios hold on any machine: of the ceiling, and over the DataLoader.
OF_CEILING = 0.85
NPY_TIMES, JPEG_TIMES, TOKENS_TIMES = 5, 2.5, 10
SHARDS_OF_FILES = 0.95
NEXT_CPP_US, NEXT_PYTHON_US, NEXT_P99_OF_P50 = 15, 40, 5
FIRST_BATCH_MS = 100
GROWTH_MIB = 1
BROADCAST_CPU = 1.1
CACHED_OF_ARRAYS, CACHED_OF_RESIZE, CACHED_JOBS_TIMES = 0.9, 0.9, 3.5


@dataclasses.dataclass
class Bench:
    """What every row needs."""

    build: pathlib.Path
    inputs: bench_inputs.Inputs
    daemon: pinfeed_side.Daemon
    quick: bool
    workers: dict = dataclasses.field(default_factory=dict)  # of the DataLoader, best by row
    ceilings: dict = dataclasses.field(default_factory=dict)  # samples a second by row

    @property
    def rounds(self):
        return 3 if self.quick else 7

    def seconds(self, full):
        return full / 4 if self.quick else full

    def program(self, name):
        return self.build / "bench" / name

    def trainer(self, path, arguments):
        return pinfeed_side.Trainer(self.daemon, path, arguments)

    def compete(self, row, dataset, batch_size, seconds, others):
        """Medians of the DataLoader's best number of workers and of `others`, items a second."""
        probes = 1 if self.quick else 3
        self.workers[row], loader = torch_side.best_workers(dataset, batch_size, probes, self.seconds(seconds) / 2, progress)
        contenders = {"DataLoader": loader, **others}
        rates = measure.interleave(contenders, self.rounds, self.seconds(seconds), progress, row)
        for contender in contenders.values():
            contender.close()
        self.ceilings[row] = rates.get("ceiling")
        return rates


def progress(iterable, description, total=None):
    return tqdm(iterable, description, total, leave=False, dynamic_ncols=True, disable=None)


def ratios(times):
    return f">= {OF_CEILING:.0%} of ceiling, >= {times}x"


def meets(rates, times):
    return rates["pinfeed"] >= max(OF_CEILING * rates["ceiling"], times * rates["DataLoader"])


def npy_rows(bench):
    """Arrays from the page cache, shuffled."""
    folder = bench.inputs.npy
    bench_inputs.read_once(folder)
    dataset = torch_side.Arrays(folder)
    trainer = bench.trainer(folder, NPY)
    check_arrays(bench.trainer(folder, dict(NPY, sample_ids=True)), dataset)
    sample_bytes = dataset.images[0].nbytes
    with trainer.open() as feed:
        places = NPY["batch_size"] * feed.slots
    ceiling = measure.Program(
        lambda seconds: [bench.program("pread_ceiling"), folder / "images.npy", dataset.images.offset, sample_bytes, len(dataset), places, seconds, CORES]
    )
    rates = bench.compete("npy", dataset, NPY["batch_size"], 2, {"pinfeed": trainer, "ceiling": ceiling})
    met = meets(rates, NPY_TIMES)
    for scale, unit, budget in ((sample_bytes / 1e9, "GB/s", ratios(NPY_TIMES)), (1, "samples/s", "")):
        yield Row(
            f"arrays, uint8 3x224x224, batch 256 (DataLoader: {bench.workers['npy']} workers)",
            rates["pinfeed"] * scale, unit, rates["DataLoader"] * scale, rates["ceiling"] * scale, budget, met if budget else None,
            drawn=bool(budget),
        )


def jpeg_rows(bench):
    """Photographs, decoded, cropped at random, flipped, normalised."""
    folder = bench.inputs.jpeg
    bench_inputs.read_once(folder)
    dataset = torch_side.image_folder(folder, SIDE, MEAN, STD)
    trainer = bench.trainer(folder, JPEG)
    check_images(bench.trainer(folder, dict(JPEG, sample_ids=True)), dataset)
    names = "".join(f"{path}\n" for path, _ in dataset.samples)
    ceiling = measure.Program(lambda seconds: [bench.program("decode_ceiling"), seconds, CORES], names)
    bench_inputs.read_once(bench.inputs.shards)
    shards = bench.trainer(bench.inputs.shards, JPEG)
    rates = bench.compete("jpeg", dataset, JPEG["batch_size"], 4, {"pinfeed": trainer, "shards": shards, "ceiling": ceiling})
    yield Row(
        f"JPEG 500x375 to float32 3x224x224, batch 64 (DataLoader: {bench.workers['jpeg']} workers)",
        rates["pinfeed"], "images/s", rates["DataLoader"], rates["ceiling"],
        ratios(JPEG_TIMES), meets(rates, JPEG_TIMES),
    )
    yield Row(
        "the same images in tar shards (ceiling: as files)", rates["shards"], "images/s", None, rates["pinfeed"],
        f">= {SHARDS_OF_FILES:.0%} of ceiling", rates["shards"] >= SHARDS_OF_FILES * rates["pinfeed"],
    )


def tokens_rows(bench):
    """Pairs of token sequences, in Python and in C++."""
    path = bench.inputs.tokens
    bench_inputs.read_once(path)
    dataset = torch_side.Tokens(path, SEQUENCE)
    trainer = bench.trainer(path, TOKENS)
    check_tokens(bench.trainer(path, dict(TOKENS, sample_ids=True)), dataset)
    spec = pinfeed_side.spec_json(path, **TOKENS)
    in_cpp = measure.Program(lambda seconds: [bench.program("client_rate"), bench.daemon.address, spec, "rate", 16, seconds])
    rates = bench.compete("tokens", dataset, TOKENS["batch_size"], 2, {"Python": trainer, "C++": in_cpp})
    loader = rates["DataLoader"] / TOKENS["batch_size"]
    for language, rate in (("Python", rates["Python"] / TOKENS["batch_size"]), ("C++", rates["C++"])):
        yield Row(
            f"tokens 8 x 2048, {language} (DataLoader: {bench.workers['tokens']} workers)",
            rate, "batches/s", loader, None, f">= {TOKENS_TIMES}x", rate >= TOKENS_TIMES * loader,
        )


def next_rows(bench):
    """How long a batch that is ready takes to get."""
    path = bench.inputs.tokens
    count = 300 if bench.quick else 2000
    trainer = bench.trainer(path, TOKENS)
    spec = pinfeed_side.spec_json(path, **TOKENS)
    rounds = {"Python": [], "tensors": [], "C++": [], "DataLoader": []}
    tensors = torch_side.pair_of_tensors((TOKENS["batch_size"], SEQUENCE))
    for _ in progress(range(3), "next"):
        for name, micros in zip(("Python", "tensors"), trainer.ready_batch_us(count, 0.001, tensors)):
            rounds[name].append((measure.quantile(micros, 0.5), measure.quantile(micros, 0.99)))
        answer = measure.run_program([bench.program("client_rate"), bench.daemon.address, spec, "latency", 16, count])
        rounds["C++"].append((answer["p50"], answer["p99"]))
        micros = torch_side.ready_batch_us(torch_side.Tokens(path, SEQUENCE), TOKENS["batch_size"], count // 10, 0.01)
        rounds["DataLoader"].append((measure.quantile(micros, 0.5), measure.quantile(micros, 0.99)))
    p50, p99 = ({name: statistics.median(each[at] for each in values) for name, values in rounds.items()} for at in (0, 1))
    for language, budget in (("Python", NEXT_PYTHON_US), ("C++", NEXT_CPP_US)):
        beside = ("DataLoader", "tensors") if language == "Python" else ()
        yield Row(
            f"next() on a ready batch, {language}, p50", p50[language], "us", *(p50[name] for name in beside),
            budget=f"<= {budget} us", met=p50[language] <= budget, less_is_better=True,
        )
        yield Row(
            f"next() on a ready batch, {language}, p99", p99[language], "us", *(p99[name] for name in beside),
            budget=f"<= {NEXT_P99_OF_P50}x p50", met=p99[language] <= NEXT_P99_OF_P50 * p50[language], less_is_better=True,
        )


def first_rows(bench):
    """From opening a feed to its first batch; the daemon runs and has the dataset open."""
    for row, name, path, arguments, dataset in (
        ("npy", "arrays, batch 256", bench.inputs.npy, NPY, torch_side.Arrays(bench.inputs.npy)),
        ("jpeg", "JPEG, batch 64", bench.inputs.jpeg, JPEG, torch_side.image_folder(bench.inputs.jpeg, SIDE, MEAN, STD)),
    ):
        trainer = bench.trainer(path, arguments)
        workers = bench.workers.get(row, CORES)
        trainer.first_batch_ms()
        ours, theirs = [], []
        for number in progress(range(5 if bench.quick else 20), "first batch"):
            ours.append(trainer.first_batch_ms())
            if number % 4 == 0:
                theirs.append(torch_side.first_batch_ms(dataset, arguments["batch_size"], workers))
        value = statistics.median(ours)
        ceiling = bench.ceilings.get(row) and arguments["batch_size"] / bench.ceilings[row] * 1e3
        yield Row(
            f"first batch after open, {name} (DataLoader: {workers} workers)", value, "ms", statistics.median(theirs), ceiling,
            budget=f"<= {FIRST_BATCH_MS} ms", met=value <= FIRST_BATCH_MS, less_is_better=True,
        )


def memory_rows(bench):
    """Growth over many small batches."""
    batches = 10_000 if bench.quick else 100_000
    growth = pinfeed_side.memory_growth(bench.daemon, bench.inputs.tokens, batches, SMALL)
    for who, value in zip(("daemon", "trainer"), growth):
        yield Row(
            f"memory growth over {batches:,} batches, {who}", value, "MiB", None, None,
            f"<= {GROWTH_MIB} MiB", value <= GROWTH_MIB, less_is_better=True, drawn=False,
        )


def broadcast_rows(bench):
    """The daemon's CPU time for an epoch of JPEG that several trainers see, over that for one trainer."""
    seconds = {1: [], 4: []}
    for number in progress(range(2 if bench.quick else 6), "broadcast"):
        trainers = (1, 4)[number % 2]
        seconds[trainers].append(pinfeed_side.take_epoch(bench.daemon, bench.inputs.jpeg, trainers, JPEG))
    value = statistics.median(seconds[4]) / statistics.median(seconds[1])
    yield Row(
        "daemon's CPU time, 4 trainers on one broadcast / 1 trainer", value, "ratio", None, None,
        f"<= {BROADCAST_CPU}", value <= BROADCAST_CPU, less_is_better=True, drawn=False,
    )


def cache_rows(bench):
    """The second epoch, from the decoded cache, beside arrays and beside a bare resize from memory; four jobs, beside four without it."""
    folder = bench.inputs.jpeg
    bench_inputs.read_once(folder)
    bench_inputs.read_once(bench.inputs.npy)
    names = "".join(f"{path}\n" for path in sorted(folder.rglob("*.jpg")))
    with pinfeed_side.Daemon(bench.build, bench.inputs.npy.parent, **{"cache-bytes": CACHE_BYTES}) as daemon:
        arrays = pinfeed_side.Trainer(daemon, bench.inputs.npy, dict(NPY, batch_size=CENTRE["batch_size"]))
        resize = measure.Program(lambda seconds: [bench.program("decode_ceiling"), seconds, CORES, "decoded"], names)
        for name, what, arguments, beside, budget in (
            ("Resize + CenterCrop", "arrays", CENTRE, arrays, CACHED_OF_ARRAYS),
            ("RandomResizedCrop", "bare resize", CROPS, resize, CACHED_OF_RESIZE),
        ):
            trainer = pinfeed_side.Trainer(daemon, folder, arguments)
            warm(daemon, trainer)
            rates = measure.interleave({"pinfeed": trainer, what: beside}, bench.rounds, bench.seconds(2), progress, f"cache, {name}")
            yield Row(
                f"decoded cache, uint8 224x224x3, {name} (ceiling: {what})", rates["pinfeed"], "images/s", None, rates[what],
                f">= {budget:.0%} of ceiling", rates["pinfeed"] >= budget * rates[what],
            )
        together, cold = [], []
        for _ in progress(range(bench.rounds), "cache, 4 jobs"):
            together.append(pinfeed_side.jobs_together(daemon, folder, 4, bench.seconds(2), CENTRE))
            cold.append(pinfeed_side.jobs_together(bench.daemon, folder, 4, bench.seconds(2), CENTRE))
    (rate, cpu), (cold_rate, cold_cpu) = (map(statistics.median, zip(*values)) for values in (together, cold))
    yield Row(
        "images/s of 4 jobs with seeds of their own, decoded cache / none", rate / cold_rate, "ratio", None, None,
        f">= {CACHED_JOBS_TIMES}", rate / cold_rate >= CACHED_JOBS_TIMES, drawn=False,
    )
    yield Row("the daemon's CPU time for an image, 4 jobs, decoded cache / none", cpu / cold_cpu, "ratio", less_is_better=True, drawn=False)


def loader_rows_of(bench):
    """Any Python dataset."""
    yield from loader_rows.rows(bench, progress)


def batcher_rows(bench):
    """Requests for a model, beside a feed of the same photographs; then their latency at half of that rate."""
    found = batcher_rates.measure(bench.daemon.address, bench.inputs.jpeg, None, bench.rounds, bench.seconds(4), progress=progress)
    yield Row(
        f"batcher: JPEG 500x375 to float32 3x224x224; {batcher_rates.CLIENTS} clients and the model on the same cores (ceiling: a feed)",
        found.closed, "images/s", None, found.feed, f">= {batcher_rates.OF_FEED:.0%} of ceiling", found.of_feed >= batcher_rates.OF_FEED,
    )
    for who, seconds in (("daemon", found.daemon_cpu), ("model", found.model_cpu), ("clients", found.clients_cpu)):
        yield Row(f"batcher: CPU time for 1,000 of them, {who}", seconds, "s", less_is_better=True, drawn=False)
    yield Row("batcher: request to answer at half of that rate, p50", found.p50_ms, "ms", less_is_better=True, drawn=False)
    yield Row(
        "batcher: request to answer at half of that rate, p99", found.p99_ms, "ms", None, None,
        f"<= {found.p99_budget_ms:.0f} ms", found.p99_ms <= found.p99_budget_ms, less_is_better=True, drawn=False,
    )


def warm(daemon, trainer):
    """Epochs until the cache has all images."""
    with trainer.open() as feed:
        for _ in range(20):
            before = int(pinfeed.status(daemon.address).get("cache_misses", 0))
            for _first, _second in feed:
                pass
            if int(pinfeed.status(daemon.address).get("cache_misses", 0)) == before:
                return
    raise RuntimeError("the cache does not hold the dataset: no figure of this run counts")


def cold_rows_of(bench):
    """Data that the page cache lacks."""
    return cold_rows.rows(bench, {"npy": NPY, "jpeg": JPEG, "tokens": TOKENS}, SIDE, MEAN, STD, progress)


ROWS = {
    "npy": npy_rows,
    "jpeg": jpeg_rows,
    "tokens": tokens_rows,
    "next": next_rows,
    "first": first_rows,
    "memory": memory_rows,
    "broadcast": broadcast_rows,
    "cache": cache_rows,
    "loader": loader_rows_of,
    "batcher": batcher_rows,
    "cold": cold_rows_of,
}


def batches_to_check(trainer):
    """Three batches with the ids of their samples."""
    with trainer.open() as feed:
        for _, (first, second, ids) in zip(range(3), feed):
            yield first.numpy(), second.numpy(), ids.numpy()


def expect(right, what):
    if not right:
        raise RuntimeError(f"what came is not what lies on disk: {what}. No figure of this run counts")


def check_arrays(trainer, dataset):
    for images, labels, ids in batches_to_check(trainer):
        expect(len(set(ids)) == len(ids) == len(images), "sample ids")
        expect(np.array_equal(images, dataset.images[ids]) and np.array_equal(labels, dataset.labels[ids]), "arrays")


def check_tokens(trainer, dataset):
    for x, y, ids in batches_to_check(trainer):
        for row, sample in enumerate(ids):
            want_x, want_y = dataset[int(sample)]
            expect(np.array_equal(x[row], want_x) and np.array_equal(y[row], want_y), "tokens")


def check_images(trainer, dataset):
    """Labels exactly. Of the pixels, whose crops are random, that they are those of a normalised photograph (the tests compare more)."""
    for images, labels, ids in batches_to_check(trainer):
        expect(images.shape[1:] == (3, SIDE, SIDE) and images.dtype == np.float32, "shape of the images")
        expect(all(dataset.samples[sample][1] == label for sample, label in zip(ids, labels)), "labels")
        low, high = ((np.float32(end) - np.array(MEAN)) / np.array(STD) for end in (0, 1))
        by_channel = images.transpose(0, 2, 3, 1)
        expect((by_channel >= low - 1e-5).all() and (by_channel <= high + 1e-5).all() and (images.std((1, 2, 3)) > 0.05).all(), "pixels")


def profile(bench, row):
    """Where the daemon's time goes while a trainer takes batches."""
    path, arguments = {"npy": (bench.inputs.npy, NPY), "jpeg": (bench.inputs.jpeg, JPEG), "tokens": (bench.inputs.tokens, TOKENS)}[row]
    data = bench.build / "bench" / f"{row}.perf"
    perf = shutil.which("perf")
    if perf is None:
        raise SystemExit("--profile needs perf (apt-get install linux-perf)")
    # cpu-clock: virtual machines seldom have a counter of cycles.
    command = [perf, "record", "-q", "-e", "cpu-clock", "-g", "-o", str(data), "-p", str(bench.daemon.process.pid), "--", "sleep", "4"]
    with subprocess.Popen(command) as recording:
        rate = bench.trainer(path, arguments).round(5)
        recording.wait()
    print(f"{rate:,.0f} samples/s while perf recorded")
    subprocess.run([perf, "report", "--stdio", "--no-children", "-g", "none", "--percent-limit", "0.7", "-i", str(data)], check=True)
