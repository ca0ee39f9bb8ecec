# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks read. In: a folder. Out: an array of images, a folder of JPEG files, tar shards of them, and a stream of tokens in it.

They are made once, and are larger than the processor's caches but smaller than the page cache.
"""
import dataclasses
import io
import multiprocessing
import os
import pathlib
import shutil

import numpy as np
import tar_shards

IMAGE_SHAPE = (3, 224, 224)
NPY_SAMPLES = 10240  # 1.54 GB
JPEG_SIZE = (500, 375)
JPEG_CLASSES, JPEG_PER_CLASS = 10, 200
SHARDS = 10
TOKENS = 100_000_000  # 200 MB


@dataclasses.dataclass(frozen=True)
class Inputs:
    npy: pathlib.Path  # folder with images.npy and labels.npy
    jpeg: pathlib.Path  # class folders
    shards: pathlib.Path  # of the same images
    tokens: pathlib.Path  # flat uint16


def make_inputs(root, progress):
    """Makes what is missing. `progress(iterable, description)` shows a bar."""
    root.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(root / "npy", root / "jpeg", root / "shards", root / "tokens.bin")
    for path, make in ((inputs.npy, _make_npy), (inputs.jpeg, _make_jpeg), (inputs.shards, _make_shards), (inputs.tokens, _make_tokens)):
        if path.exists():
            continue
        unfinished = path.with_name(path.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished, progress)
        os.rename(unfinished, path)
    return inputs


def read_once(path):
    """Puts a file or all files of a folder into the page cache."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.*")):
        with open(file, "rb", buffering=0) as stream:
            while stream.read(1 << 24):
                pass


def _make_npy(folder, progress):
    folder.mkdir()
    random = np.random.default_rng(0)
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (NPY_SAMPLES,) + IMAGE_SHAPE)
    for begin in progress(range(0, NPY_SAMPLES, 256), "making arrays"):
        images[begin : begin + 256] = random.integers(0, 256, (256,) + IMAGE_SHAPE, np.uint8)
    images.flush()
    np.save(folder / "labels.npy", random.integers(0, 1000, NPY_SAMPLES))


def _make_tokens(path, progress):
    random = np.random.default_rng(1)
    with open(path, "wb") as file:
        for _ in progress(range(100), "making tokens"):
            # Few tokens are frequent and most are rare, as in text.
            file.write((random.exponential(3000.0, TOKENS // 100) % 50257).astype("<u2").tobytes())


def _make_jpeg(folder, progress):
    for label in range(JPEG_CLASSES):
        (folder / f"class{label}").mkdir(parents=True)
    with multiprocessing.get_context("fork").Pool(initializer=_load_photos) as pool:
        jobs = [(folder / f"class{label}" / f"{number:04}.jpg", label * JPEG_PER_CLASS + number)
                for label in range(JPEG_CLASSES) for number in range(JPEG_PER_CLASS)]
        for _ in progress(pool.imap_unordered(_make_photo, jobs, 20), "making JPEG files", len(jobs)):
            pass


def _make_shards(folder, progress):
    folder.mkdir()
    tar_shards.pack_images(folder.parent / "jpeg", folder, SHARDS, progress)


def _load_photos():
    from sklearn.datasets import load_sample_images

    global _photos
    _photos = load_sample_images().images


def _make_photo(job):
    """A crop of a real photograph in other colours, with a camera's grain: sizes come out as those of photographs do."""
    from PIL import Image

    path, seed = job
    random = np.random.default_rng(seed)
    photo = _photos[random.integers(len(_photos))]
    width = int(random.integers(320, photo.shape[1] + 1))
    height = min(width * JPEG_SIZE[1] // JPEG_SIZE[0], photo.shape[0])
    x, y = random.integers(0, photo.shape[1] - width + 1), random.integers(0, photo.shape[0] - height + 1)
    crop = photo[y : y + height, x : x + width, random.permutation(3)]
    if random.random() < 0.5:
        crop = crop[:, ::-1]
    pixels = np.asarray(Image.fromarray(np.ascontiguousarray(crop)).resize(JPEG_SIZE, Image.LANCZOS), np.float32)
    pixels = pixels * random.uniform(0.7, 1.2, 3) + random.uniform(-20, 20)
    pixels += random.normal(0, random.uniform(4, 8), pixels.shape[:2])[:, :, None]
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=90, subsampling="4:2:0")
    path.write_bytes(out.getvalue())
