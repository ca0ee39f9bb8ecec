# SPDX-License-Identifier: Apache-2.0
"""What users have today: PyTorch's DataLoader over the datasets that its tutorials show.

It is set to its advantage: persistent workers, no pinned memory, no copy that the collating does not need, as many workers as are best.
"""
import math
import time
import warnings

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

import measure

WORKERS = (0, 1, 2, 4)

# Arrays are mapped for reading only, and collating only reads.
warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
# More workers than cores are tried as well.
warnings.filterwarnings("ignore", message="This DataLoader will create")


class Arrays(Dataset):
    """Mapped .npy files; default_collate stacks the samples straight out of the mapping."""

    def __init__(self, folder):
        self.images = np.load(folder / "images.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Tokens(Dataset):
    """A mapped stream of uint16, cut into x and the same one token on."""

    def __init__(self, path, length):
        self.tokens = np.memmap(path, "<u2", "r")
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index):
        begin = index * self.length
        both = torch.from_numpy(self.tokens[begin : begin + self.length + 1].astype(np.int64))
        return both[:-1], both[1:]


def pair_of_tensors(shape):
    """A function that makes two tensors over memory that is there."""
    arrays = [np.zeros(shape, np.int64) for _ in range(2)]
    return lambda: (torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]))


def image_folder(folder, side, mean, std):
    from torchvision import datasets, transforms

    return datasets.ImageFolder(
        str(folder),
        transforms.Compose(
            [
                transforms.RandomResizedCrop(side),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean, std),
            ]
        ),
    )


class _Picks(Sampler):
    """`count` samples at random: one round is one epoch, after which the workers rest."""

    def __init__(self, samples):
        self._samples = samples
        self.count = 0

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(torch.randint(self._samples, (self.count,)).tolist())


class Loader:
    """A contender of measure.interleave."""

    def __init__(self, dataset, batch_size, workers):
        self._batch_size = batch_size
        self._picks = _Picks(len(dataset))
        self._warm = max(1, workers)  # a batch of each worker
        self._loader = DataLoader(
            dataset, batch_size, sampler=self._picks, num_workers=workers, persistent_workers=workers > 0, drop_last=True
        )
        self._rate = 0.0

    def batches(self, count):
        self._picks.count = count * self._batch_size
        return iter(self._loader)

    def round(self, seconds):
        """Samples a second."""
        while self._rate == 0.0:
            count = 2 * self._warm
            begin = time.perf_counter()
            for _ in self.batches(count):
                pass
            self._rate = count / (time.perf_counter() - begin)
        # Workers deliver in bursts of a batch each: a part of one would count for more or less than it took.
        count = self._warm * math.ceil(max(2, self._rate * seconds / self._warm))
        self._rate = measure.batches_per_second(self.batches(self._warm + count), self._warm, math.inf)
        return self._rate * self._batch_size

    def close(self):
        self._loader._iterator = None  # ends the workers


def best_workers(dataset, batch_size, rounds, seconds, progress):
    """The number of workers that loads most, and its contender."""
    loaders = {workers: Loader(dataset, batch_size, workers) for workers in WORKERS}
    rates = measure.interleave(loaders, rounds, seconds, progress, "DataLoader: how many workers")
    best = max(rates, key=rates.get)
    for workers, loader in loaders.items():
        if workers != best:
            loader.close()
    return best, loaders[best]


def first_batch_ms(dataset, batch_size, workers):
    """From making the DataLoader to its first batch."""
    begin = time.perf_counter()
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers)
    next(iter(loader))
    return (time.perf_counter() - begin) * 1e3


def ready_batch_us(dataset, batch_size, count, pause_s):
    """How long next() takes when the one worker had `pause_s` to prepare: a list of microseconds."""
    picks = _Picks(len(dataset))
    picks.count = (count + 8) * batch_size
    batches = iter(DataLoader(dataset, batch_size, sampler=picks, num_workers=1))
    micros = []
    for number in range(count + 8):
        time.sleep(pause_s)
        begin = time.perf_counter()
        first, second = next(batches)
        if number >= 8:
            micros.append((time.perf_counter() - begin) * 1e6)
        del first, second
    return micros
