#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images and labels from one HDF5 file, read by worker processes.

What comes in: a file with the datasets `image` [samples, 3, height, width] and `label` [samples]; without one, a small one is made.
What goes out: how many samples came in one epoch.
"""

import os
import sys
import tempfile

import h5py
import numpy
import torch

import pinfeed


class Hdf5Images(torch.utils.data.Dataset):
    """The handle of an HDF5 file must not be used in a process that was forked later. So each process opens the file for itself."""

    def __init__(self, path, transform=None):
        self.path = path
        self.transform = transform
        self._file = self._owner = None
        with h5py.File(path, "r") as file:
            self._length = len(file["label"])

    def _open(self):
        if self._owner != os.getpid():
            self._file, self._owner = h5py.File(self.path, "r"), os.getpid()
        return self._file

    def __getstate__(self):  # for workers that are spawned: an open file cannot be pickled
        return {**self.__dict__, "_file": None, "_owner": None}

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        file = self._open()
        image = torch.from_numpy(file["image"][index]).float() / 255
        return image if self.transform is None else self.transform(image), int(file["label"][index])


def make_input(folder, samples=32):
    """Writes sample i with pixels and label i."""
    path = os.path.join(folder, "images.h5")
    with h5py.File(path, "w") as file:
        file["image"] = numpy.broadcast_to(numpy.arange(samples, dtype=numpy.uint8)[:, None, None, None], (samples, 3, 24, 24))
        file["label"] = numpy.arange(samples)
    return path


def main():
    with tempfile.TemporaryDirectory() as folder:
        dataset = Hdf5Images(sys.argv[1] if len(sys.argv) > 1 else make_input(folder))
        loader = pinfeed.DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
        labels = torch.cat([label for image, label in loader])
    print(f"{len(labels)} samples in {len(loader)} batches, labels {labels.min()} to {labels.max()}")


if __name__ == "__main__":
    main()
