# SPDX-License-Identifier: Apache-2.0
"""What the device run reads: arrays, JPEG files of a photograph's size, tokens. In: a folder. Out: the files, and all of them in the page cache.

    make_inputs.py FOLDER
"""
import concurrent.futures
import json
import pathlib
import sys

import numpy as np
from PIL import Image

ARRAYS = 40_960  # 3 x 224 x 224: 6.2 GB, far more than the caches hold
JPEG_CLASSES, JPEG_PER_CLASS = 10, 600
TOKENS = 200_000_000
TEXTS = 20_000


def make_arrays(job):
    path, begin, end = job
    images = np.load(path, mmap_mode="r+")
    random = np.random.default_rng(begin)
    images[begin:end] = random.integers(0, 256, images[begin:end].shape, np.uint8)


def make_photo(job):
    """Soft shapes and a camera's grain: about 70 KB at quality 90, as a photograph of this size has."""
    path, seed = job
    random = np.random.default_rng(seed)
    shapes = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8)).resize((500, 375), Image.BICUBIC)
    grain = random.normal(0, 9, (375, 500, 1))
    Image.fromarray(np.clip(np.asarray(shapes) + grain, 0, 255).astype(np.uint8)).save(path, quality=90)


def make_texts(path):
    random = np.random.default_rng(2)
    lengths = random.integers(0, 400, TEXTS)
    lengths[TEXTS // 2] = 200_000  # a batch of some has several pieces
    with open(path, "w") as file:
        for number, length in enumerate(lengths.tolist()):
            row = {"number": number, "text": chr(ord("a") + number % 26) * length, "list": random.integers(0, 99, number % 9).tolist()}
            file.write(json.dumps(row) + "\n")


def main():
    root = pathlib.Path(sys.argv[1])
    (root / "arrays").mkdir(parents=True)
    images = root / "arrays" / "image.npy"
    np.lib.format.open_memmap(images, "w+", np.uint8, (ARRAYS, 3, 224, 224)).flush()
    np.save(root / "arrays" / "label.npy", np.arange(ARRAYS, dtype=np.int64))
    photos = []
    for label in range(JPEG_CLASSES):
        folder = root / "jpeg" / f"class{label}"
        folder.mkdir(parents=True)
        photos += [(folder / f"{number:04}.jpg", label * JPEG_PER_CLASS + number) for number in range(JPEG_PER_CLASS)]
    # Ends its processes when they are idle; a Pool kills them, whatever lock they hold.
    with concurrent.futures.ProcessPoolExecutor() as pool:
        list(pool.map(make_arrays, [(images, begin, begin + 512) for begin in range(0, ARRAYS, 512)]))
        list(pool.map(make_photo, photos, chunksize=50))
    np.random.default_rng(1).integers(0, 50257, TOKENS, np.uint16).tofile(root / "tokens.bin")
    make_texts(root / "texts.jsonl")
    size = sum(path.stat().st_size for path, _ in photos) / len(photos)
    print(f"inputs: {ARRAYS} arrays, {len(photos)} JPEG files of {size / 1000:.1f} KB on average, {TOKENS} tokens")


if __name__ == "__main__":
    main()
