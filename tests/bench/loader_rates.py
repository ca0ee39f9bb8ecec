#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures `pinfeed.DataLoader` beside PyTorch's, and beside what the same processes do without any loader.

usage: loader_rates.py [--workers 2,16] [--device cuda:0] [--rows arrays,small,lanes,jpeg,encoded] [--seconds 3] [--out FILE.json]

In: datasets in memory, made here. Out: a table, and a JSON file. The DataLoader gets persistent workers, and on a GPU pin_memory and
non_blocking copies. The ceiling is that of the same number of processes which draw indices from the sampler, seed the generators for each
sample, load it and copy it to private memory: together as much as a loader's batches under way take. Less would stay in the processor's caches,
where no batch is that a trainer takes later. On a GPU, as many batches are copied to it meanwhile from page-locked memory, and these count.
Rates are medians of interleaved rounds. PINFEED_DAEMON and PINFEED_LIBRARY choose the build.
"""

import argparse
import functools
import io
import json
import multiprocessing
import pathlib
import random
import statistics
import sys
import tempfile
import time
import warnings

import numpy
import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))
import pinfeed  # noqa: E402

ROUNDS = 3
POLL_SECONDS, MOST_COPIES = 0.0005, 8  # of batches to a GPU, beside the processes alone
RING_BATCHES = 3  # for each process alone: with two workers, a loader has six slots
WARM_UP_SECONDS = 3  # in which every worker has faulted in every slot
ENCODED_BUDGET = 2.5  # times the DataLoader, with PIL and torchvision
BUDGETS = {"arrays": (3.0, 0.9), "small": (1.0, None), "lanes": (3.0, None), "jpeg": (1.0, None)}  # times the DataLoader; share of the ceiling


class Arrays:
    """uint8 images of 3x224x224 in memory."""

    batch_size, name = 256, "arrays, uint8 3x224x224, batch 256"
    arguments = {}  # of pinfeed's loader only
    seeds = True  # for each sample

    def __init__(self):
        self.images = numpy.random.default_rng(1).integers(0, 256, (512, 3, 224, 224), dtype=numpy.uint8)

    def __len__(self):
        return 1 << 40  # more than any round takes, in the order of the sampler

    def __getitem__(self, index):
        return self.images[index % len(self.images)]


class Small(Arrays):
    """Dicts of six small fields."""

    batch_size, name = 64, "dicts of 6 small fields, batch 64"

    def __init__(self):
        pass

    def __getitem__(self, index):
        return {
            "state": torch.full((8,), float(index)),
            "action": numpy.arange(4, dtype=numpy.float32),
            "reward": float(index),
            "done": index % 2,
            "next": torch.zeros(8),
            "index": index,
        }


class SmallInLanes(Small):
    """The same with torch's seeds: one for each worker."""

    name, arguments, seeds = "the same, seeded by worker", {"seeding": "worker"}, False


class Jpeg(Arrays):
    """JPEGs of 500x375 through PIL and torchvision's transforms, as in the tutorials."""

    batch_size, name = 64, "JPEG by PIL and torchvision, batch 64"

    def __init__(self):
        from PIL import Image
        from torchvision import transforms

        generator, self.files = numpy.random.default_rng(1), []
        for _ in range(64):
            low = generator.integers(0, 256, (24, 32, 3), dtype=numpy.uint8)
            buffer = io.BytesIO()
            Image.fromarray(low).resize((500, 375), Image.BICUBIC).save(buffer, "JPEG", quality=90)
            self.files.append(buffer.getvalue())
        self.open = Image.open
        self.transform = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()])

    def __getitem__(self, index):
        return self.transform(self.open(io.BytesIO(self.files[index % 64])).convert("RGB")), index


DATASETS = {"arrays": Arrays, "small": Small, "lanes": SmallInLanes, "jpeg": Jpeg}


class JpegFiles(Jpeg):
    """The same JPEGs as files, through the tutorials' four transforms; `encoded`: not opened, but handed to the daemon."""

    name = "JPEG files by EncodedImage, batch 64"

    def __init__(self, folder, encoded):
        from torchvision import transforms

        super().__init__()
        self.paths = [str(pathlib.Path(folder) / f"{number}.jpg") for number in range(len(self.files))]
        for path, data in zip(self.paths, self.files):
            pathlib.Path(path).write_bytes(data)
        normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        self.transform = transforms.Compose([*self.transform.transforms, normalize])
        self.encoded = encoded

    def __getitem__(self, index):
        path = self.paths[index % len(self.paths)]
        if self.encoded:
            return pinfeed.EncodedImage(path), index
        return self.transform(self.open(path).convert("RGB")), index


class Endless:
    """0, 1, 2, ... as a sampler."""

    def __iter__(self):
        index = 0
        while True:
            yield index
            index += 1

    def __len__(self):
        return 1 << 40


def to_device(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    return [to_device(each, device) for each in batch]


def rate(kind, dataset, workers, device, seconds, address=None):
    """Returns samples per second after the first seconds, which fault memory in. `address`: of pinfeed's daemon."""
    arguments = {"batch_size": dataset.batch_size, "sampler": Endless(), "num_workers": workers}
    torchs = kind is torch.utils.data.DataLoader
    if torchs:
        arguments.update(persistent_workers=True, pin_memory=device is not None)
    else:
        arguments.update(device=device, address=address, **dataset.arguments)
    iterator = iter(kind(dataset, **arguments))
    move = torchs and device is not None
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP_SECONDS:
        batch = next(iterator)
    if device is not None:
        torch.cuda.synchronize()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        batch = next(iterator)
        if move:
            batch = to_device(batch, device)
        count += 1
    if device is not None:
        torch.cuda.synchronize()
    took = time.perf_counter() - begin
    del batch, iterator
    return count * dataset.batch_size / took


def work_alone(dataset, first, seconds, start, done, number):
    """A worker without a loader: draws indices, seeds, loads and copies to private memory. Counts its batches in `done[number]`."""
    torch.set_num_threads(1)
    sizes = [value.nbytes if hasattr(value, "nbytes") else 8 for value in leaves(dataset[0])]
    ring = [numpy.empty((RING_BATCHES * dataset.batch_size, size), numpy.uint8) for size in sizes]
    for rows in ring:
        rows.fill(1)  # faults it in
    batches = enumerate(torch.utils.data.BatchSampler(Endless(), dataset.batch_size, drop_last=False))
    start.wait()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        count, indices = next(batches)
        for place, index in enumerate(indices, count % RING_BATCHES * dataset.batch_size):
            if dataset.seeds:
                random.seed(index)
                numpy.random.seed(index)
                torch.default_generator.manual_seed(index)
            for rows, value in zip(ring, leaves(dataset[first + index])):
                if isinstance(value, (torch.Tensor, numpy.ndarray)):
                    rows[place] = numpy.asarray(value).reshape(-1).view(numpy.uint8)
        done[number] += 1


def leaves(sample):
    values = sample.values() if isinstance(sample, dict) else sample if isinstance(sample, tuple) else [sample]
    return [value.numpy() if isinstance(value, torch.Tensor) else value for value in values]


def ceiling(dataset, workers, device, seconds):
    """Samples per second of the workers alone. With a GPU, of copies to it: each batch that a worker counts is copied once."""
    context = multiprocessing.get_context("fork")
    start, done = context.Barrier(workers + 1), context.Array("Q", workers, lock=False)
    processes = [
        context.Process(target=work_alone, args=(dataset, number * dataset.batch_size, seconds, start, done, number)) for number in range(workers)
    ]
    for process in processes:
        process.start()
    copy = Copies(dataset, device, RING_BATCHES * workers) if device else None
    start.wait()
    begin, count = time.perf_counter(), 0
    while (left := begin + seconds - time.perf_counter()) > 0:
        time.sleep(POLL_SECONDS if copy else left)
        ready = sum(done)
        if copy:
            ready = min(ready, count + MOST_COPIES)
            copy(range(count, ready))
        count = ready
    took = time.perf_counter() - begin
    for process in processes:
        process.join()
    return count * dataset.batch_size / took


class Copies:
    """Copies of whole batches from page-locked memory to a GPU."""

    def __init__(self, dataset, device, batches):
        batch = torch.empty((batches, dataset.batch_size, *numpy.shape(dataset[0])), dtype=torch.uint8)
        self._host = batch.pin_memory()
        self._there = torch.empty_like(self._host[0], device=device)

    def __call__(self, numbers):
        for number in numbers:
            self._there.copy_(self._host[number % len(self._host)], non_blocking=True)
        torch.cuda.synchronize()


def encoded_results(workers, device, seconds):
    """Files by torch's DataLoader with PIL and torchvision, by ours with the same, and by ours with EncodedImage. The budget is for the last."""
    with tempfile.TemporaryDirectory() as folder:
        opened, handed = JpegFiles(folder, encoded=False), JpegFiles(folder, encoded=True)
        ours = functools.partial(pinfeed.DataLoader, transforms=opened.transform)
        rounds = [
            (
                rate(torch.utils.data.DataLoader, opened, workers, device, seconds),
                rate(pinfeed.DataLoader, opened, workers, device, seconds),
                rate(ours, handed, workers, device, seconds),
            )
            for _ in range(ROUNDS)
        ]
    theirs, with_pil, encoded = (statistics.median(each) for each in zip(*rounds))
    met = encoded >= ENCODED_BUDGET * theirs
    print(
        f"{handed.name:38} {workers:3} workers to {device or 'host':7} pinfeed {encoded:10,.0f}  DataLoader {theirs:10,.0f}  "
        f"{encoded / theirs:5.2f}x  pinfeed with PIL {with_pil:10,.0f}  {'met' if met else 'MISSED'}",
        flush=True,
    )
    return {
        "work": handed.name, "workers": workers, "to": device or "host", "pinfeed": encoded, "dataloader": theirs, "ratio": encoded / theirs,
        "with_pil": with_pil, "met": met,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=lambda text: [int(each) for each in text.split(",")], default=[2])
    parser.add_argument("--device", help="a GPU for the batches; default: the host")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[*DATASETS, "encoded"])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")
    results = []
    for row in arguments.rows:
        if row == "encoded":
            results += [encoded_results(workers, arguments.device, arguments.seconds) for workers in arguments.workers]
            continue
        dataset = DATASETS[row]()
        for workers in arguments.workers:
            alone = ceiling(dataset, workers, arguments.device if row == "arrays" else None, arguments.seconds)
            rounds = [
                [rate(kind, dataset, workers, arguments.device, arguments.seconds) for kind in (pinfeed.DataLoader, torch.utils.data.DataLoader)]
                for _ in range(ROUNDS)
            ]
            ours, theirs = (statistics.median(each) for each in zip(*rounds))
            times, share = BUDGETS[row]
            met = ours >= times * theirs and (share is None or ours >= share * alone)
            results.append(
                {
                    "work": dataset.name, "workers": workers, "to": arguments.device or "host", "pinfeed": ours, "dataloader": theirs,
                    "ratio": ours / theirs, "ceiling": alone, "of_ceiling": ours / alone, "met": met,
                }
            )  # fmt: skip
            print(
                f"{dataset.name:38} {workers:3} workers to {arguments.device or 'host':7} pinfeed {ours:10,.0f}  DataLoader {theirs:10,.0f}  "
                f"{ours / theirs:5.2f}x  ceiling {alone:10,.0f} ({ours / alone:.0%})  {'met' if met else 'MISSED'}",
                flush=True,
            )
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
