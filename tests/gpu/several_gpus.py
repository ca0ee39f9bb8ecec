# SPDX-License-Identifier: Apache-2.0
"""Trainers on several GPUs at once, and what the host alone gives there. In: a daemon's address, arrays. Out: GB/s."""
import itertools
import json
import os
import subprocess

import numpy as np
from feeding import HERE, arrays_spec


def one_trainer_a_gpu(address, count, spec, seconds):
    """GB/s of each of `count` trainers at once, each on a GPU of its own; `spec`: of a rank."""
    processes = []
    for rank in range(count):
        command = [HERE / "bin" / "feed_rate", address, str(seconds), json.dumps(spec(rank)), "together"]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(rank)}
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment))
    for process in processes:
        assert process.stdout.readline() == "started\n", "a trainer ended; its error is above"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return [json.loads(process.communicate()[0])["gb_per_s"] for process in processes]


def shards_gbs(address, inputs, count, seconds=6):
    """GB/s of trainers on so many GPUs together, each with its share of the samples."""
    return sum(one_trainer_a_gpu(address, count, lambda rank: arrays_spec(inputs, rank=rank, world_size=count), seconds))


def broadcast_gbs(address, inputs, source, count, name, seconds=6):
    """GB/s that the slowest of so many trainers gets of one broadcast of the arrays in `source`. `name`: of the group, a new one each time."""
    group = {"sharing": "BROADCAST", "group": name, "group_size": count, "dataset": {"path": str(source)}}
    return min(one_trainer_a_gpu(address, count, lambda _: arrays_spec(inputs, **group), seconds))


def staged_gbs(arrays, count, what):
    """What the host gives, at the best of some thread counts and batches: samples read into pinned memory ("read"), copied to the GPUs ("copy"),
    or "both". Batches of 8 samples stay in the processor's cache, those of 32 need fewer copies."""
    images = arrays / "image.npy"
    data = np.load(images, mmap_mode="r")
    best = 0.0
    for threads, at_once in itertools.product((os.cpu_count() // 2, os.cpu_count()), (8, 32)):
        numbers = [data.offset, data[0].nbytes, len(data), threads, count, 2, what, at_once]
        answer = subprocess.run([HERE / "bin" / "staged_ceiling", images, *map(str, numbers)], check=True, capture_output=True, text=True)
        best = max(best, json.loads(answer.stdout)["gb_per_s"])
    return best


def few_arrays(inputs, samples):
    """The first of the arrays."""
    folder = inputs / f"arrays{samples}"
    if not folder.exists():
        folder.mkdir()
        for name in ("image", "label"):
            np.save(folder / f"{name}.npy", np.load(inputs / "arrays" / f"{name}.npy", mmap_mode="r")[:samples])
    return folder
