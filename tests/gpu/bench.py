# SPDX-License-Identifier: Apache-2.0
"""What a feed on a GPU gives a trainer, beside PyTorch's DataLoader and the ceilings of the machine, in one run.

    bench.py ADDRESS INPUTS OUT [WHAT...]      (run.sh calls it; WHAT: rates, decode, trainer, slots, costs, broadcast, gpus, checksums; default: all)

Prints what it finds and writes OUT/results.json, as `make bench` does; tests/bench/publish_gpu.py puts such files into docs/benchmarks.md. A part
that fails costs the others nothing; the exit status is 1 then.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import traceback
import warnings

import costs
import decode_rates
import numpy as np
import pinfeed
import report
import several_gpus
import slots
import torch
from contenders.arrays import Arrays, Tokens
from contenders.images import Photos
from feeding import (
    BATCH,
    DEVICE,
    HERE,
    MEAN,
    SAMPLE,
    STD,
    STEPS,
    arrays_spec,
    endless,
    feed_rate,
    neighbour,
    open_feed,
    tflops,
    turns_us,
)
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore", message="The given NumPy array is not writ")  # collating only reads

ROUND_S = 4.0
rows = []


def row(work, value, unit, dataloader=None, ceiling=None, least=None, most=None, of_ceiling=None, drawn=True):
    """`least`, `most`: the budget, in the row's unit. `of_ceiling`: the least share of it."""
    made = report.Row(work, value, unit, dataloader, ceiling, less_is_better=most is not None, drawn=drawn)
    if least is not None:
        made.budget, made.met = f">= {least:,} {unit}", value >= least
    elif most is not None:
        made.budget, made.met = f"<= {most:,} {unit}", value <= most
    elif of_ceiling is not None:
        made.budget, made.met = f">= {of_ceiling:.0%} of ceiling", made.vs_ceiling >= of_ceiling
    rows.append(made)
    print(f"{work:66} {report.number(value):>12} {unit:10} DataLoader {report.number(dataloader):>10}  ceiling {report.number(ceiling):>10}", flush=True)


def link_gbs():
    """One pinned copy of a batch after the other."""
    pinned = torch.empty(BATCH * SAMPLE, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(pinned, device=DEVICE)
    for _ in range(20):
        target.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(300):
        target.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    return 300 * pinned.nbytes / (time.perf_counter() - start) / 1e9


# ---- the feed ----------------------------------------------------------------------------------------------------------------------


def python_rate(feed):
    """Batches a second of a loop that does nothing else."""
    batches = endless(feed)
    for _ in range(20):
        next(batches)
    torch.cuda.synchronize()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < ROUND_S:
        for _ in range(8):
            next(batches)
        torch.cuda.synchronize()
        count += 8
    return count / (time.perf_counter() - start)


def launch_for(batch):
    """The least that PyTorch itself does for such a batch: its tensors made, one kernel launched."""
    shapes = [(tensor.shape, tensor.dtype) for tensor in batch]
    return lambda: [torch.empty(shape, dtype=dtype, device=DEVICE) for shape, dtype in shapes][0].zero_()


def ready_us(feed):
    """Microseconds that a ready batch takes (p50, p99) and, by turns with it, the least that PyTorch does for one (p50)."""
    batches = endless(feed)
    (p50, p99), (least, _) = turns_us(lambda: next(batches), launch_for(next(batches)))
    return p50, p99, least


def cold_launch_us(feed):
    """That least alone, on a thread that has just read 64 MB of something else (p50, microseconds)."""
    launch, other, cold = launch_for(next(endless(feed))), np.zeros(64 << 20, np.uint8), []
    for _ in range(200):
        other.sum()
        before = time.perf_counter_ns()
        launch()
        cold.append((time.perf_counter_ns() - before) / 1000)
        torch.cuda.synchronize()
    return sorted(cold)[100]


# ---- what users have today -----------------------------------------------------------------------------------------------------------


def be_quiet(_):
    warnings.filterwarnings("ignore")


def normalise(images, labels):
    """Moves a batch, and normalises it there to bfloat16."""
    mean, deviation = (torch.tensor(values, device=DEVICE).view(3, 1, 1) * 255 for values in (MEAN, STD))
    images = images.to(DEVICE, non_blocking=True)
    return ((images - mean) / deviation).to(torch.bfloat16), labels.to(DEVICE, non_blocking=True)


def tutorial_photos(folder):
    """The form of PyTorch's tutorials: Pillow, and float32 from the workers."""
    from torchvision import datasets, transforms

    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    return datasets.ImageFolder(str(folder), transforms.Compose(steps))


def move(*tensors):
    return [tensor.to(DEVICE, non_blocking=True) for tensor in tensors]


def dataloader_rate(dataset, batch_size, worker_counts, to_device=move):
    """The best of some worker counts, batches a second to tensors on the GPU. Workers deliver in bursts, so only whole ones are counted."""
    best = 0.0
    for workers in worker_counts:
        loader = DataLoader(
            dataset, batch_size, shuffle=True, drop_last=True, pin_memory=True, num_workers=workers, persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None, worker_init_fn=be_quiet,
        )  # fmt: skip
        batches, burst = endless(loader), max(1, workers)
        for _ in range(2 * burst):
            to_device(*next(batches))
        torch.cuda.synchronize()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < ROUND_S:
            for _ in range(burst):
                to_device(*next(batches))
            count += burst
        torch.cuda.synchronize()
        best = max(best, count / (time.perf_counter() - start))
        del batches, loader
    return best


# ---- rows --------------------------------------------------------------------------------------------------------------------------


def rates(address, inputs):
    link = link_gbs()
    today = dataloader_rate(Arrays(inputs / "arrays"), BATCH, (4, 8, 16))
    cpp = feed_rate(address, ROUND_S, arrays_spec(inputs))
    row(f"arrays uint8 3x224x224, batch {BATCH}, C++", cpp["gb_per_s"], "GB/s", today * BATCH * SAMPLE / 1e9, link, least=50)
    rate = python_rate(open_feed(address, inputs, "arrays"))
    row(f"arrays uint8 3x224x224, batch {BATCH}, Python", rate * BATCH * SAMPLE / 1e9, "GB/s", today * BATCH * SAMPLE / 1e9, link, least=50)
    row("ready batch to tensors, arrays, C++, p50", cpp["p50_us"], "us", most=15)
    row("ready batch to tensors, arrays, C++, p99", cpp["p99_us"], "us", drawn=False)
    p50, p99, least = ready_us(open_feed(address, inputs, "arrays"))
    row("ready batch to tensors, arrays, Python, p50", p50, "us", None, least, most=40)
    row("ready batch to tensors, arrays, Python, p99", p99, "us", drawn=False)
    row("its ceiling on a thread that has just read 64 MB", cold_launch_us(open_feed(address, inputs, "arrays")), "us", drawn=False)
    row("first batch after open, arrays, C++", cpp["first_batch_ms"], "ms", most=100)

    today = dataloader_rate(Tokens(inputs / "tokens.bin"), 8, (0, 2, 4, 8))
    spec = {"dataset": {"path": str(inputs / "tokens.bin"), "sequence_length": 2048}, "order": "SHUFFLE", "batch_size": 8, "backend": "VMM_FD"}
    cpp = feed_rate(address, ROUND_S, spec)
    row("tokens 8 x 2048, C++", cpp["batches_per_s"], "batches/s", today, least=20_000)
    rate = python_rate(open_feed(address, inputs, "tokens"))
    p50, _, least = ready_us(open_feed(address, inputs, "tokens"))
    row("tokens 8 x 2048, Python", rate, "batches/s", today, least=10_000)
    row("ready batch to tensors, tokens, C++, p50", cpp["p50_us"], "us", most=15)
    row("ready batch to tensors, tokens, Python, p50", p50, "us", None, least, most=40)

    cores = (os.cpu_count(),)
    forms = {
        "torchvision's decoder": dataloader_rate(Photos(inputs / "jpeg", pillow=False), BATCH, cores, normalise) * BATCH,
        "Pillow": dataloader_rate(Photos(inputs / "jpeg", pillow=True), BATCH, cores, normalise) * BATCH,
        "the tutorial's": dataloader_rate(tutorial_photos(inputs / "jpeg"), BATCH, cores) * BATCH,
    }
    for form, today in forms.items():
        print(f"DataLoader, {form}: {today:,.0f} images/s")
    rate = python_rate(open_feed(address, inputs, "jpeg"))
    row("JPEG 500x375 to bf16 3x224x224, Python", rate * BATCH, "images/s", max(forms.values()), decode_rate(inputs / "jpeg"), least=15_000)


def decode_rate(folder):
    """Images a second that the processors decode and crop when they do nothing else."""
    files = "\n".join(str(path) for path in sorted(folder.rglob("*.jpg")))
    threads = str(len(os.sched_getaffinity(0)))
    answer = subprocess.run([HERE / "bin" / "decode_ceiling", str(ROUND_S), threads], input=files, check=True, capture_output=True, text=True)
    counted = json.loads(answer.stdout)
    return counted["count"] / counted["seconds"]


def decode(address, inputs):
    decode_rates.rates(row, address, inputs)


def trainer(address, inputs):
    alone, beside, lent, owned, fed = [], [], [], [], []
    for _ in range(3):  # turn and turn about: the GPU's clock wanders
        alone.append(tflops(STEPS, None)[0])
        with neighbour(address, inputs) as said:
            beside.append(tflops(STEPS, None)[0])
        with open_feed(address, inputs, "arrays", zero_copy=True) as feed:
            speed, gbs = tflops(STEPS, endless(feed))
            lent.append(speed)
            fed.append(gbs)
        with open_feed(address, inputs, "arrays") as feed:
            owned.append(tflops(STEPS, endless(feed))[0])
    ceiling = statistics.median(alone)
    row(f"bf16 products while the daemon copies {said['gb_per_s']:.1f} GB/s for another process", statistics.median(beside), "TFLOP/s", None, ceiling, of_ceiling=0.99)
    row(f"trainer's bf16 products, fed {statistics.median(fed):.1f} GB/s, slots lent", statistics.median(lent), "TFLOP/s", None, ceiling, of_ceiling=0.99)
    row("the same, tensors of its own (a copy on its GPU each)", statistics.median(owned), "TFLOP/s", None, ceiling, of_ceiling=0.99)


def broadcast(address, inputs):
    """CPU time and copied bytes of the daemon for a number of trainers on one feed."""
    import psutil

    daemon = psutil.Process(pinfeed.status(address)["pid"])
    taken = {}
    for trainers in (1, 8):
        spec = {
            "dataset": {"path": str(inputs / "jpeg")}, "order": "SHUFFLE", "batch_size": BATCH, "drop_last": True, "sharing": "BROADCAST",
            "group": f"of{trainers}", "group_size": trainers, "backend": "VMM_FD",
            "transforms": [{"random_resized_crop": {"size": [224]}}, {"random_horizontal_flip": {}}],
        }  # fmt: skip
        copied = int(pinfeed.status(address)["gpus"][0]["copied_bytes"])
        cpu = sum(daemon.cpu_times()[:2])
        processes = [
            subprocess.Popen([HERE / "bin" / "feed_rate", address, "6", json.dumps(spec)], stdout=subprocess.PIPE, text=True) for _ in range(trainers)
        ]
        answers = [json.loads(process.communicate()[0]) for process in processes]
        batches = (int(pinfeed.status(address)["gpus"][0]["copied_bytes"]) - copied) / (BATCH * SAMPLE)
        taken[trainers] = {
            "cpu": (sum(daemon.cpu_times()[:2]) - cpu) / batches,
            "each": statistics.median(answer["samples_per_s"] for answer in answers),
        }
    row("daemon's CPU time a batch, 8 trainers on one broadcast / 1 trainer", taken[8]["cpu"] / taken[1]["cpu"], "ratio", most=1.1)
    row("images/s that each of 8 trainers gets", taken[8]["each"], "images/s", None, taken[1]["each"])


def gpus(address, inputs):
    """Trainers on several GPUs: each with its share of the samples, then all with the same batches. BENCH_GPUS: how many, such as "2 4"."""
    sources = {"page cache": inputs / "arrays", "processor's cache": several_gpus.few_arrays(inputs, 1024)}
    read = several_gpus.staged_gbs(sources["page cache"], 1, "read")
    row("the host alone: read from the page cache", read, "GB/s", drawn=False)
    asked = [int(count) for count in os.environ.get("BENCH_GPUS", "1 2 4 8").split()]
    for count in (n for n in asked if n <= torch.cuda.device_count()):
        how_many = "1 GPU" if count == 1 else f"{count} GPUs"
        row(f"the host alone, {how_many}: pinned copies", several_gpus.staged_gbs(sources["page cache"], count, "copy"), "GB/s", drawn=False)
        both = {where: several_gpus.staged_gbs(data, count, "both") for where, data in sources.items()}
        row(f"the host alone, {how_many}: read from the page cache, and copied", both["page cache"], "GB/s", drawn=False)
        shards = several_gpus.shards_gbs(address, inputs, count)
        row(f"arrays to {how_many}, disjoint shards, all together", shards, "GB/s", None, read, of_ceiling=0.95 if count == 4 else None)
        if count == 1:
            continue
        for where, data in sources.items():
            each = several_gpus.broadcast_gbs(address, inputs, data, count, f"{where}{count}")
            least = 120 if count == 4 and where != "page cache" else None
            row(f"one broadcast to {count} GPUs, data in the {where}: each GPU", each, "GB/s", None, both[where], least=least)


def checksums(address, inputs):
    """Every batch of a long run against sums computed from the files."""
    import psutil

    daemon = psutil.Process(pinfeed.status(address)["pid"])
    images = torch.from_numpy(np.load(inputs / "arrays" / "image.npy", mmap_mode="r")).flatten(1)
    expected = torch.cat([chunk.to(DEVICE).view(torch.int32).sum(1, dtype=torch.int64) for chunk in images.split(2048)])
    words = torch.from_numpy(np.fromfile(inputs / "tokens.bin", "<u2").astype(np.int32))
    samples = (len(words) - 1) // 2048
    token_sums = words[: samples * 2048].to(DEVICE).view(samples, 2048).sum(1, dtype=torch.int64)
    for kind, count, sums in (("arrays", 100_000, expected), ("tokens", 1_000_000, token_sums)):
        wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
        with open_feed(address, inputs, kind, sample_ids=True) as feed:
            batches = endless(feed)
            for number in range(count):
                batch = next(batches)
                data = batch[0].flatten(1)
                got = (data.view(torch.int32) if kind == "arrays" else data).sum(1, dtype=torch.int64)
                wrong += (got != sums[batch.sample_id]).sum()
                if number == count // 5:  # the allocators of all threads have what they keep: some 20,000 batches
                    torch.cuda.synchronize()
                    free, resident = torch.cuda.mem_get_info(0)[0], daemon.memory_info().rss
                if number % 64 == 63:
                    torch.cuda.current_stream().synchronize()
            row(f"wrong samples in {count:,} batches of {kind}", int(wrong), "samples", most=0, drawn=False)
            row(f"memory of the GPU lost over them, {kind}", (free - torch.cuda.mem_get_info(0)[0]) / 2**20, "MiB", most=1, drawn=False)
            row(f"growth of the daemon over them, {kind}", (daemon.memory_info().rss - resident) / 2**20, "MiB", most=1, drawn=False)


def main():
    address, inputs, out, *chosen = sys.argv[1:]
    parts = {
        "rates": rates, "decode": decode, "trainer": trainer, "slots": slots.slots, "costs": costs.costs, "broadcast": broadcast, "gpus": gpus, "checksums": checksums,
    }  # fmt: skip
    unknown = set(chosen) - set(parts)
    if unknown:
        sys.exit(f"bench.py: there is no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    print(f"{torch.cuda.get_device_name(0)}, {os.cpu_count()} CPUs, torch {torch.__version__}")
    grids, failed = [], []
    for name in chosen or parts:
        began = time.monotonic()
        try:
            for table in parts[name](address, pathlib.Path(inputs)) or ():
                grids.append(table)
                print(f"\n{table.title}\n\n{table.markdown()}\n")
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)
        report.write_json([*rows, *grids], pathlib.Path(out) / "results.json")
    if failed:
        sys.exit(f"bench.py: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
