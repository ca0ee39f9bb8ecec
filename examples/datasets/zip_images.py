#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images of a zip file with a folder for each class, decoded by worker processes.

What comes in: a zip file with images such as `cat/1.jpg`; without one, a small one is made. What goes out: how many samples came in one
epoch.
"""

import io
import os
import sys
import tempfile
import zipfile

import numpy
import torch
from PIL import Image

import pinfeed

IMAGES = (".jpg", ".jpeg", ".png")


class ZipImages(torch.utils.data.Dataset):
    """Forked processes share one position in an open file, and would read each other's bytes. So each process opens the file for itself."""

    def __init__(self, path, transform=None):
        self.path = path
        self.transform = transform
        self._zip = self._owner = None
        with zipfile.ZipFile(path) as archive:
            self.names = sorted(name for name in archive.namelist() if name.lower().endswith(IMAGES))
        self.classes = sorted({name.split("/")[0] for name in self.names})

    def _open(self):
        if self._owner != os.getpid():
            self._zip, self._owner = zipfile.ZipFile(self.path), os.getpid()
        return self._zip

    def __getstate__(self):  # for workers that are spawned: an open file cannot be pickled
        return {**self.__dict__, "_zip": None, "_owner": None}

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        name = self.names[index]
        image = Image.open(io.BytesIO(self._open().read(name))).convert("RGB")
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float() / 255
        return pixels if self.transform is None else self.transform(pixels), self.classes.index(name.split("/")[0])


def make_input(folder, samples=32):
    """Writes a class for each sample i, whose image has pixels i."""
    path = os.path.join(folder, "images.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for sample in range(samples):
            png = io.BytesIO()
            Image.new("RGB", (24, 24), (sample, sample, sample)).save(png, "PNG")
            archive.writestr(f"class{sample:04}/image.png", png.getvalue())
    return path


def main():
    with tempfile.TemporaryDirectory() as folder:
        dataset = ZipImages(sys.argv[1] if len(sys.argv) > 1 else make_input(folder))
        loader = pinfeed.DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
        labels = torch.cat([label for image, label in loader])
    print(f"{len(labels)} samples in {len(loader)} batches, labels {labels.min()} to {labels.max()}")


if __name__ == "__main__":
    main()
