#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compressed images from an LMDB environment, decoded by worker processes.

What comes in: an environment that has "length", and for sample i "image-i" (PNG or JPEG) and "label-i"; without one, a small one is made.
What goes out: how many samples came in one epoch.
"""

import io
import os
import sys
import tempfile

import lmdb
import numpy
import torch
from PIL import Image

import pinfeed


_environments = {}  # of this process, by path: LMDB must not open one twice, nor use one in a process that was forked later


def _close_inherited():
    while _environments:
        _environments.popitem()[1].close()  # without locks, this process alone notices


os.register_at_fork(after_in_child=_close_inherited)


class LmdbImages(torch.utils.data.Dataset):
    """Each process opens the environment once, however many datasets it has of it."""

    def __init__(self, path, transform=None):
        self.path = path
        self.transform = transform
        with self._open().begin() as transaction:
            self._length = int(transaction.get(b"length"))

    def _open(self):
        if self.path not in _environments:
            # Without read-ahead, random reads do not fill the page cache with neighbours.
            _environments[self.path] = lmdb.open(self.path, readonly=True, lock=False, readahead=False)
        return _environments[self.path]

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        with self._open().begin(buffers=True) as transaction:
            image = Image.open(io.BytesIO(transaction.get(b"image-%d" % index))).convert("RGB")
            label = int(bytes(transaction.get(b"label-%d" % index)))
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float() / 255
        return pixels if self.transform is None else self.transform(pixels), label


def make_input(folder, samples=32):
    """Writes sample i with pixels and label i."""
    path = os.path.join(folder, "images.lmdb")
    with lmdb.open(path, map_size=64 << 20) as environment, environment.begin(write=True) as transaction:
        for sample in range(samples):
            png = io.BytesIO()
            Image.new("RGB", (24, 24), (sample, sample, sample)).save(png, "PNG")
            transaction.put(b"image-%d" % sample, png.getvalue())
            transaction.put(b"label-%d" % sample, b"%d" % sample)
        transaction.put(b"length", b"%d" % samples)
    return path


def main():
    with tempfile.TemporaryDirectory() as folder:
        dataset = LmdbImages(sys.argv[1] if len(sys.argv) > 1 else make_input(folder))
        loader = pinfeed.DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
        labels = torch.cat([label for image, label in loader])
    print(f"{len(labels)} samples in {len(loader)} batches, labels {labels.min()} to {labels.max()}")


if __name__ == "__main__":
    main()
