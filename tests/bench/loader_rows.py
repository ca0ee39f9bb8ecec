# SPDX-License-Identifier: Apache-2.0
"""The rows of `pinfeed.DataLoader`: Python datasets in memory, loaded by as many worker processes as the DataLoader has.

In: a running daemon. Out: rows of the table.
"""
import functools
import multiprocessing
import resource
import statistics
import tempfile
import time
import warnings

import loader_rates
import measure
import torch
from report import Row

import pinfeed

WORKERS = 2
BROADCAST_CPU = 1.1
BROADCAST_BATCH, BROADCAST_BATCHES = 16, 128


class Loading:
    """A contender: a class of loaders, with persistent workers and all of its other settings at their defaults."""

    def __init__(self, kind, dataset, address=None):
        self._arguments = kind, dataset, WORKERS, None
        self._address = address

    def round(self, seconds):
        return loader_rates.rate(*self._arguments, seconds, self._address)

    def close(self):
        pass


class Alone:
    """The contender without a loader."""

    def __init__(self, dataset):
        self._dataset = dataset

    def round(self, seconds):
        return loader_rates.ceiling(self._dataset, WORKERS, None, seconds)

    def close(self):
        pass


def rows(bench, progress):
    """Python datasets in memory, beside the DataLoader and beside the same processes without a loader."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
    for key, kind in loader_rates.DATASETS.items():
        dataset = kind()
        contenders = {
            "DataLoader": Loading(torch.utils.data.DataLoader, dataset),
            "pinfeed": Loading(pinfeed.DataLoader, dataset, bench.daemon.address),
            "ceiling": Alone(dataset),
        }
        rates = measure.interleave(contenders, 2 if bench.quick else 5, bench.seconds(4 if key == "jpeg" else 2), progress, dataset.name)
        times, share = loader_rates.BUDGETS[key]
        met = rates["pinfeed"] >= max(times * rates["DataLoader"], (share or 0) * rates["ceiling"])
        yield Row(
            f"DataLoader: {dataset.name} ({WORKERS} workers each)", rates["pinfeed"], "samples/s", rates["DataLoader"], rates["ceiling"],
            f">= {times:g}x" + (f", >= {share:.0%} of ceiling" if share else ""), met,
        )
    yield encoded_row(bench, progress)
    yield broadcast_row(bench, progress)


def encoded_row(bench, progress):
    """Files that the DataLoader's workers open with PIL, and that the daemon decodes for ours."""
    with tempfile.TemporaryDirectory(dir=bench.inputs.jpeg.parent) as folder:
        opened, handed = (loader_rates.JpegFiles(folder, encoded) for encoded in (False, True))
        contenders = {
            "DataLoader": Loading(torch.utils.data.DataLoader, opened),
            "pinfeed": Loading(functools.partial(pinfeed.DataLoader, transforms=opened.transform), handed, bench.daemon.address),
        }
        rates = measure.interleave(contenders, 2 if bench.quick else 5, bench.seconds(4), progress, handed.name)
    return Row(
        f"DataLoader: {handed.name} ({WORKERS} workers each)", rates["pinfeed"], "samples/s", rates["DataLoader"], None,
        f">= {loader_rates.ENCODED_BUDGET:g}x", rates["pinfeed"] >= loader_rates.ENCODED_BUDGET * rates["DataLoader"],
    )


class Some:
    """The first samples of a dataset."""

    def __init__(self, dataset, samples):
        self._dataset = dataset
        self._samples = samples

    def __len__(self):
        return self._samples

    def __getitem__(self, index):
        return self._dataset[index]


def broadcast_row(bench, progress):
    """The workers' CPU time for an epoch that four trainers see, over that for one trainer with as many workers."""
    dataset = Some(loader_rates.Jpeg(), BROADCAST_BATCH * BROADCAST_BATCHES)
    seconds = {1: [], 4: []}
    for number in progress(range(2 if bench.quick else 6), "DataLoader, broadcast"):
        trainers = (1, 4)[number % 2]
        seconds[trainers].append(_take_epoch(bench.daemon.address, dataset, trainers, 4 // trainers))
    value = statistics.median(seconds[4]) / statistics.median(seconds[1])
    return Row(
        "DataLoader: workers' CPU time, 4 trainers on one broadcast / 1 trainer", value, "ratio", None, None,
        f"<= {BROADCAST_CPU}", value <= BROADCAST_CPU, less_is_better=True, drawn=False,
    )


def _take_epoch(address, dataset, trainers, workers):
    """Processes that take one epoch each, together. Returns the CPU seconds of their workers."""
    context = multiprocessing.get_context("fork")
    sharing = {"share": "broadcast", "group": f"bench-{time.monotonic_ns()}", "group_size": trainers} if trainers > 1 else {}
    answers = context.Queue()
    arguments = {"batch_size": BROADCAST_BATCH, "num_workers": workers, "address": address, **sharing}
    processes = [context.Process(target=_trainer, args=(dataset, arguments, answers)) for _ in range(trainers)]
    for process in processes:
        process.start()
    taken, seconds = zip(*(answers.get(timeout=300) for _ in processes))
    for process in processes:
        process.join()
    if set(taken) != {BROADCAST_BATCHES}:
        raise RuntimeError(f"{trainers} trainers took {sorted(taken)} batches of the same epoch")
    return sum(seconds)


def _trainer(dataset, arguments, answers):
    taken = sum(1 for _ in pinfeed.DataLoader(dataset, **arguments))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the workers, which have ended with their epoch
    answers.put((taken, usage.ru_utime + usage.ru_stime))
