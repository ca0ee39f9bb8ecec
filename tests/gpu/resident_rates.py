# SPDX-License-Identifier: Apache-2.0
"""Rates of samples that are resident on the GPU, beside what torch does with the same samples on the same device, and beside a plain copy there, which is
the ceiling.

    resident_rates.py PINFEEDD OUT      (run.sh calls it; it starts a daemon of its own)

Out: a line for each rate, and OUT/resident.json. The exit status is 3 when a rate is below its budget.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from resident_feeds import CROP, DEVICE, Daemon, FLIP, MEAN, NORMAL, STD, make_inputs, open_feed

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 4.0  # of a rate
BEHIND = 8  # batches that the stream may be behind
BUDGET_GBS, BUDGET_IMAGES, BUDGET_CORE = 1000.0, 20e6, 0.05


def rate_of(step, seconds=SECONDS):
    """Calls a second of what puts one batch on the stream, which may be some batches behind."""
    stream = torch.cuda.current_stream()
    events = [torch.cuda.Event() for _ in range(BEHIND)]
    for _ in range(50):
        step()
    stream.synchronize()
    began, calls = time.perf_counter(), 0
    while True:
        event = events[calls % BEHIND]
        event.synchronize()
        step()
        event.record(stream)
        calls += 1
        if calls % 64 == 0 and time.perf_counter() - began >= seconds:
            break
    stream.synchronize()
    return calls / (time.perf_counter() - began)


def kernel_us(step):
    """Microseconds of the GPU for one batch, without what the processor takes; None: the profiler does not work here."""
    try:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(200):
                step()
            torch.cuda.synchronize()
        spent = sum(getattr(event, "self_device_time_total", 0) or getattr(event, "self_cuda_time_total", 0) for event in profiled.key_averages())
        return spent / 200 if spent > 0 else None
    except Exception as error:  # noqa: BLE001: CUPTI is often missing or forbidden
        print(f"   (no kernel times: {error})")
        return None


def torch_batches(images, labels, batch, crop):
    """What a careful user writes for samples on the GPU."""
    mean = torch.tensor(MEAN, device=DEVICE).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=DEVICE).view(1, 3, 1, 1)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4)) if crop else images
    side = images.shape[-1]
    ramp = torch.arange(side, device=DEVICE)

    def make(index, flip, x, y):
        if crop:
            columns = torch.where(flip[:, None], side - 1 - ramp, ramp) + x[:, None]
            rows = y[:, None] + ramp
            pixels = padded[index[:, None, None, None], torch.arange(3, device=DEVICE)[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]]
        else:
            pixels = padded[index]
            pixels = torch.where(flip[:, None, None, None], pixels.flip(3), pixels)
        return ((pixels.float() / 255 - mean) / std).to(torch.bfloat16), labels[index]

    def step_of(function):
        order = torch.randperm(len(images), device=DEVICE)
        state = {"at": 0}

        def step():
            if state["at"] + batch > len(order):
                state["at"] = 0
            index = order[state["at"] : state["at"] + batch]
            state["at"] += batch
            flip = torch.rand(batch, device=DEVICE) < 0.5
            x, y = (torch.randint(0, 9, (batch,), device=DEVICE) for _ in range(2)) if crop else (None, None)
            return function(index, flip, x, y)

        return step

    return make, step_of


def copy_gbs():
    """Bytes that a plain copy on the device reads and writes a second."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return rate_of(lambda: target.copy_(source), 2.0) * 2 * source.numel() / 1e9


def measure(daemon, inputs, name, batch, crop, copy):
    transforms = [CROP, FLIP, *NORMAL] if crop else [FLIP, *NORMAL]
    out = {"batch": batch}
    sample = 3 * (32 if crop else 224) ** 2
    began = time.perf_counter()
    with open_feed(daemon.address, inputs / name, True, batch_size=batch, drop_last=True, transforms=transforms, output="tuple") as feed:
        batches = iter(())

        def step():
            nonlocal batches
            one = next(batches, None)
            if one is None:
                batches = iter(feed)
                one = next(batches)
            return one

        step()
        torch.cuda.synchronize()
        out["first_batch_s"] = time.perf_counter() - began
        cpu, wall = daemon.cpu_seconds(), time.perf_counter()
        out["rate"] = rate_of(step)
        out["daemon_cores"] = (daemon.cpu_seconds() - cpu) / (time.perf_counter() - wall)
        out["kernel_us"] = kernel_us(step)
        # At the pace of a fast trainer: what a step of a small network takes.
        cpu, wall, calls = daemon.cpu_seconds(), time.perf_counter(), 0
        while time.perf_counter() - wall < SECONDS:
            step()
            calls += 1
            time.sleep(max(0, wall + calls / 1000 - time.perf_counter()))
        out["paced_rate"] = calls / (time.perf_counter() - wall)
        out["paced_daemon_cores"] = (daemon.cpu_seconds() - cpu) / (time.perf_counter() - wall)
    # A trainer in C++: what is left is the library's and the daemon's.
    program = HERE / "bin" / "feed_rate"
    if program.exists():
        bf16 = [{"normalize": {"mean": MEAN, "std": STD}}, {"to_dtype": {"dtype": "bfloat16"}}]
        first = [{"random_crop": {"size": [32], "padding": [4]}}] if crop else []
        spec = {"dataset": {"path": str(inputs / name)}, "order": "SHUFFLE", "batch_size": batch, "drop_last": True, "resident": "RESIDENT_ON", "transforms": [*first, {"random_horizontal_flip": {}}, *bf16]}
        out["cpp"] = json.loads(subprocess.run([program, daemon.address, str(SECONDS), json.dumps(spec)], check=True, stdout=subprocess.PIPE, text=True).stdout)
    images = torch.from_numpy(np.load(inputs / name / "image.npy", mmap_mode="r")[:]).to(DEVICE)
    labels = torch.from_numpy(np.load(inputs / name / "label.npy")).to(DEVICE)
    make, step_of = torch_batches(images, labels, batch, crop)
    out["torch_rate"] = rate_of(step_of(make))
    try:
        out["compiled_rate"] = rate_of(step_of(torch.compile(make)))
    except Exception as error:  # noqa: BLE001: torch.compile needs a compiler on the machine
        print(f"   (no torch.compile: {str(error).splitlines()[0][:120]})")
    out["gbs_out"] = out["rate"] * batch * sample * 2 / 1e9
    out["images_per_s"] = out["rate"] * batch
    out["traffic_of_copy"] = out["rate"] * batch * sample * 3 / 1e9 / copy
    return out


def show(name, out):
    best = max(out["torch_rate"], out.get("compiled_rate", 0))
    print(f"== {name}: {out['rate']:,.0f} batches/s, {out['images_per_s'] / 1e6:.2f} million img/s, {out['gbs_out']:,.0f} GB/s of output")
    if out["kernel_us"]:
        print(f"   of {1e6 / out['rate']:.1f} us a batch the GPU works {out['kernel_us']:.1f} us")
    print(f"   bytes read and written a second are {out['traffic_of_copy']:.1%} of those of a plain copy on the device")
    compiled = f", compiled {out['compiled_rate'] * out['batch'] / 1e6:.2f}" if "compiled_rate" in out else ""
    print(f"   torch's indexing: {out['torch_rate'] * out['batch'] / 1e6:.2f} million img/s{compiled}: pinfeed is {out['rate'] / best:.2f} x the better one")
    if "cpp" in out:
        print(f"   a trainer in C++: {json.dumps(out['cpp'])}")
    print(f"   the daemon takes {out['daemon_cores']:.1%} of a core; at {out['paced_rate']:,.0f} batches/s {out['paced_daemon_cores']:.1%}; first batch after {out['first_batch_s']:.2f} s")


def main():
    program, out = sys.argv[1], pathlib.Path(sys.argv[2])
    missed, result = [], {"gpu": torch.cuda.get_device_name(0)}
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = pathlib.Path(name)
        inputs = folder / "inputs"
        inputs.mkdir()
        make_inputs(inputs)
        daemon = Daemon(program, folder / "run", inputs)
        copy = copy_gbs()
        print(f"ceiling: a plain copy on the device reads and writes {copy:,.0f} GB/s", flush=True)
        result["copy_gbs"] = copy
        for title, dataset, batch, crop in (("3x224x224, batch 256, flip, normalise, bf16", "large", 256, False), ("32x32, batch 1024, crop, flip, normalise, bf16", "small", 1024, True)):
            result[dataset] = rates = measure(daemon, inputs, dataset, batch, crop, copy)
            show(title, rates)
        for text, value, least in (
            ("GB/s of 224x224 batches", result["large"]["gbs_out"], BUDGET_GBS),
            ("32x32 images/s", result["small"]["images_per_s"], BUDGET_IMAGES),
            ("core of the daemon at full rate (224x224), at most", -result["large"]["daemon_cores"], -BUDGET_CORE),
            ("core of the daemon at full rate (32x32), at most", -result["small"]["daemon_cores"], -BUDGET_CORE),
            ("core of the daemon at 1,000 batches/s (32x32), at most", -result["small"]["paced_daemon_cores"], -BUDGET_CORE),
        ):
            verdict = "ok    " if value >= least else "MISSED"
            missed += [text] if value < least else []
            print(f"{verdict}  {text}: {abs(value):,.3f}, budget {abs(least):,}")
        daemon.stop()
    (out / "resident.json").write_text(json.dumps(result, indent=1))
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
