# SPDX-License-Identifier: Apache-2.0
"""Compares resize candidates with Pillow's Image.resize(size, BILINEAR, box): how near, how fast. README.md says how to run it."""
import ctypes
import io
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

PACKAGES = ["zimg", "libswscale", "libavutil", "vips", "imlib2", "GraphicsMagick", "libturbojpeg"]
ROUNDS, REPEATS = 5, 301


class Job(ctypes.Structure):
    _fields_ = [("src", ctypes.c_void_p)] + [(n, ctypes.c_int) for n in ("src_w", "src_h", "x", "y", "w", "h")] + \
               [("dst", ctypes.c_void_p), ("dst_w", ctypes.c_int), ("dst_h", ctypes.c_int)]


def build(folder):
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", *PACKAGES], capture_output=True, text=True, check=True).stdout.split()
    here = Path(__file__).parent
    subprocess.run(["g++", "-std=c++20", "-O3", "-shared", "-fPIC", here / "candidates.cc", here / "own.cc", "-o", folder + "/c.so",
                    "-isystem/usr/include/opencv4", *flags, "-lyuv", "-lopencv_imgproc", "-lopencv_core"], check=True)
    lib = ctypes.CDLL(folder + "/c.so")
    lib.Name.restype, lib.Resize.restype = ctypes.c_char_p, ctypes.c_bool
    lib.TimeResize.restype = lib.TimeDecode.restype = ctypes.c_double
    return lib


def cases():
    """Yields (kind, image, box, size)."""
    rng = np.random.default_rng(7)
    photos = [Image.fromarray(a) for a in load_sample_images().images]
    noise = Image.fromarray(rng.integers(0, 256, (375, 500, 3), dtype=np.uint8))
    smooth = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)

    def whole(kind, image, size):
        return kind, image, (0, 0, *image.size), size
    for im in [p.resize((500, 375), Image.LANCZOS) for p in photos] + [noise, smooth]:
        yield whole("500x375 to 224", im, (224, 224))
        for _ in range(8):
            x, y = rng.integers(0, 400), rng.integers(0, 300)
            box = tuple(int(v) for v in (x, y, x + rng.integers(1, 501 - x), y + rng.integers(1, 376 - y)))
            yield "crop by box", im, box, (224, 224)
            yield whole("crop, then resize", im.crop(box), (224, 224))
        yield whole("up", im.crop((90, 40, 122, 72)), (224, 224))
        yield whole("up", im.crop((9, 4, 233, 228)), (500, 500))
        yield whole("7x5, 1xN, Nx1", im.crop((3, 3, 10, 8)), (224, 224))
        for n in (1, 3, 17, 300):
            yield whole("7x5, 1xN, Nx1", im.crop((30, 30, 31, 30 + n)), (33, 47))
            yield whole("7x5, 1xN, Nx1", im.crop((30, 30, 30 + n, 31)), (47, 33))
            yield whole("7x5, 1xN, Nx1", im, (n, 1))
    yield whole("4000x3000 to 224", photos[0].resize((4000, 3000), Image.BICUBIC), (224, 224))
    yield whole("4000x3000 to 224", Image.fromarray(rng.integers(0, 256, (3000, 4000, 3), dtype=np.uint8)), (224, 224))


def job_of(src, box, out):
    return Job(src.ctypes.data, src.shape[1], src.shape[0], box[0], box[1], box[2] - box[0], box[3] - box[1], out.ctypes.data, out.shape[1],
               out.shape[0])


def accuracy(lib, index, planar, all_cases):
    differences = {}  # kind -> largest difference over the channels, per pixel; a refused case counts as 255
    for kind, im, box, size in all_cases:
        src, out = np.ascontiguousarray(np.asarray(im)), np.zeros((size[1], size[0], 3), np.uint8)
        want = np.asarray(im.resize(size, Image.BILINEAR, box=box)).astype(int)
        done = lib.Resize(index, ctypes.byref(job_of(src, box, out)))
        got = out.reshape(3, size[1], size[0]).transpose(1, 2, 0) if planar else out
        worst = np.abs(got.astype(int) - want).max(axis=2).ravel()
        differences.setdefault(kind, []).append(worst if done else np.full_like(worst, 255))
    return {k: np.concatenate(v) for k, v in differences.items()}


def main():
    with tempfile.TemporaryDirectory() as folder:
        lib = build(folder)
    all_cases = list(cases())
    names = []
    while name := lib.Name(len(names)):
        names.append(name.decode())
    image, jpeg = all_cases[0][1], io.BytesIO()
    image.save(jpeg, "JPEG", quality=90, subsampling="4:2:0")
    src, out, data = np.ascontiguousarray(np.asarray(image)), np.zeros((224, 224, 3), np.uint8), jpeg.getvalue()
    decoded, job = np.empty_like(src), job_of(src, (0, 0, 500, 375), out)
    timers = {"libjpeg-turbo decode": lambda: lib.TimeDecode(data, ctypes.c_ulong(len(data)), decoded.ctypes.data_as(ctypes.c_void_p), 500, 375, REPEATS)}

    def pillow():
        start = time.perf_counter()
        for _ in range(20):
            image.resize((224, 224), Image.BILINEAR)
        return (time.perf_counter() - start) * 50
    timers["Pillow"] = pillow
    for i, name in enumerate(names):
        timers[name] = lambda i=i: lib.TimeResize(i, ctypes.byref(job), REPEATS)
    rounds = [{k: f() for k, f in timers.items()} for _ in range(ROUNDS)]  # in turns, so a busy spell hits all alike
    print("500x375 q90 4:2:0 decode and 500x375 to 224x224 resize, one thread: median ms of a round, best and worst round")
    for k in timers:
        print(f"  {k:42s} {min(r[k] for r in rounds):7.3f} {max(r[k] for r in rounds):7.3f}")
    print("Against Pillow: pixels within 1 level % / exact % / largest difference")
    for i, name in enumerate(names):
        cells = [f"{k}: {100 * (d <= 1).mean():.2f} / {100 * (d == 0).mean():.1f} / {d.max()}" for k, d in accuracy(lib, i, "[planar]" in name, all_cases).items()]
        print(f"  {name}\n    " + "; ".join(cells))


if __name__ == "__main__":
    main()
