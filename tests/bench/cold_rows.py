# SPDX-License-Identifier: Apache-2.0
"""The rows of a cold page cache: shuffled arrays, JPEG files and tokens from the disk that the inputs are on.

In: a running daemon; fio; root, to drop the kernel's caches. Out: rows of the table, whose ceiling is the lesser of fio and the warm rate.
"""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time

import inputs as bench_inputs
import torch_side
from report import Row
from torch.utils.data import DataLoader

DEPTHS = (1, 4, 16, 64)
COPIES = 5  # of the photographs and the tokens, so that a round of seconds stays within an epoch
OF_CEILING = 0.9


def drop_caches():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except PermissionError:
        raise SystemExit("row cold: only root can drop the kernel's caches") from None


def fio_rate(file, block, seconds):
    """Random reads of `block` bytes a second past the page cache, at the best depth; and that depth."""
    best = (0.0, 0)
    for depth in DEPTHS:
        words = ["fio", "--name=cold", f"--filename={file}", "--rw=randread", "--direct=1", "--ioengine=libaio", f"--bs={block}", f"--iodepth={depth}"]
        words += ["--readonly", "--time_based", f"--runtime={seconds:.0f}", "--output-format=json", "--randrepeat=0"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        best = max(best, (json.loads(done.stdout)["jobs"][0]["read"]["iops"], depth))
    return best


def take(batches, seconds, batch_size):
    """Samples a second, the first batch included: a cold start counts."""
    begin = time.perf_counter()
    count = 0
    for _first, _second in batches:
        count += batch_size
        if time.perf_counter() - begin >= seconds:
            break
    return count / (time.perf_counter() - begin)


def make_copies(inputs, folder):
    """Larger tokens, and more photographs."""
    tokens, jpeg, unfinished = folder / "tokens.bin", folder / "jpeg", folder / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    if not tokens.exists():
        unfinished.mkdir(parents=True)
        with open(unfinished / "tokens.bin", "wb") as out:
            for _ in range(COPIES):
                out.write(inputs.tokens.read_bytes())
        os.rename(unfinished / "tokens.bin", tokens)
        unfinished.rmdir()
    if not jpeg.exists():
        for number in range(COPIES):
            for file in sorted(inputs.jpeg.rglob("*.jpg")):
                copy = unfinished / file.parent.name / f"{number}-{file.name}"
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
        os.rename(unfinished, jpeg)
    return tokens, jpeg


def rows(bench, specs, side, mean, std, progress):
    """`specs`: the arguments of pinfeed.open by kind: npy, jpeg, tokens."""
    npy = bench.inputs.npy
    tokens, jpeg = make_copies(bench.inputs, npy.parent / "cold")
    files = [file.stat().st_size for file in jpeg.rglob("*.jpg")]
    sequence = specs["tokens"]["sequence_length"]
    kinds = {
        "npy": ("arrays", npy, 3 * 224 * 224, lambda: torch_side.Arrays(npy)),
        "jpeg": ("JPEG", jpeg, sum(files) // len(files), lambda: torch_side.image_folder(jpeg, side, mean, std)),
        "tokens": ("tokens", tokens, 2 * sequence + 2, lambda: torch_side.Tokens(tokens, sequence)),
    }
    seconds = bench.seconds(6)
    for kind, (name, path, sample_bytes, dataset) in kinds.items():
        spec = specs[kind]
        size = spec["batch_size"]

        def feed(path=path, spec=spec, size=size):
            with bench.trainer(path, spec).open() as opened:
                return take(opened, seconds, size)

        def loader(size=size, dataset=dataset):
            return take(DataLoader(dataset(), size, shuffle=True, num_workers=2, drop_last=True), seconds, size)

        block = -(-sample_bytes // 4096) * 4096
        fio = [fio_rate(npy / "images.npy", block, max(1, seconds / 3))]
        rates = {"cold": [], "warm": [], "DataLoader": []}
        for _ in progress(range(3), f"cold {name}"):
            drop_caches()
            rates["cold"].append(feed())
            drop_caches()
            rates["DataLoader"].append(loader())
            bench_inputs.read_once(path)
            rates["warm"].append(feed())
        fio.append(fio_rate(npy / "images.npy", block, max(1, seconds / 3)))
        disk, depth = max(fio)
        middle = {contender: statistics.median(values) for contender, values in rates.items()}
        ceiling = min(disk, middle["warm"])
        print(
            f"cold {name}: fio {fio[0][0]:.0f} and {fio[1][0]:.0f} reads/s of {block} bytes (best depth {depth}), "
            + ", ".join(f"{contender} {' '.join(f'{rate:.0f}' for rate in values)}" for contender, values in rates.items())
        )
        yield Row(
            f"{name} of a cold page cache, shuffled (ceiling: {'the disk' if disk < middle['warm'] else 'warm'})",
            middle["cold"], "samples/s", middle["DataLoader"], ceiling, f">= {OF_CEILING:.0%} of ceiling", middle["cold"] >= OF_CEILING * ceiling,
            drawn=False,
        )
