# SPDX-License-Identifier: Apache-2.0
"""Samples that are resident on the GPU: first that batches have the bytes of an ordinary feed, whatever happens, then the rates.

    resident.py PINFEEDD OUT [checks | rates]      (run.sh calls it; it starts daemons of its own)
    resident.py --trainer ADDRESS SPEC BATCHES     (a trainer that it starts)

Out: a line for each check and rate, and OUT/resident.json. The exit status is 1 when a check failed, 3 when all of them held and a rate is below its
budget. Rates are given beside what torch does with the same samples on the same device, and beside a plain copy there, which is the ceiling.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import numpy as np
import pinfeed
import torch

HERE = pathlib.Path(__file__).resolve().parent
DEVICE = "cuda:0"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMAL = [pinfeed.Normalize(MEAN, STD), pinfeed.ToDtype("bfloat16")]
FLIP = pinfeed.RandomHorizontalFlip()
CROP = pinfeed.RandomCrop(32, padding=4)
LARGE, SMALL = 16384, 50000  # samples
SECONDS = 4.0  # of a rate
BEHIND = 8  # batches that the stream may be behind
BUDGET_GBS, BUDGET_IMAGES, BUDGET_CORE = 1000.0, 20e6, 0.05


class Daemon:
    def __init__(self, program, folder, roots, *flags):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.address = str(self.folder / "pinfeed.sock")
        ready, writer = os.pipe()
        self._log = self.folder / "pinfeedd.log"
        with open(self._log, "ab") as log:
            command = [program, "--socket-dir", self.folder, "--allowed-roots", roots, "--http-listen", "off", "--gpus", "on", "--ready-fd", str(writer), *flags]
            self.process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log, pass_fds=(writer,))
        os.close(writer)
        with os.fdopen(ready) as pipe:
            assert pipe.readline().strip() == "ready", self.log()

    def log(self):
        return self._log.read_text(errors="replace")

    def used(self):
        return int(pinfeed.status(self.address)["gpus"][0]["arena_used_bytes"])

    def await_unused(self):
        """Until no memory is used: samples stay for 15 s after their last feed."""
        until = time.monotonic() + 60
        while self.used():
            assert time.monotonic() < until, f"{self.used()} bytes are still in use"
            time.sleep(0.1)

    def copied(self):
        return int(pinfeed.status(self.address)["gpus"][0]["copied_bytes"])

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log()[-3000:]


def make_inputs(folder):
    """Arrays, tokens and, where Pillow is, photographs."""
    random = np.random.default_rng(0)
    for name, samples, side in (("large", LARGE, 224), ("small", SMALL, 32)):
        (folder / name).mkdir()
        images = np.lib.format.open_memmap(folder / name / "image.npy", mode="w+", dtype=np.uint8, shape=(samples, 3, side, side))
        for begin in range(0, samples, 1024):
            part = images[begin : begin + 1024]
            part[:] = np.frombuffer(random.bytes(part.size), np.uint8).reshape(part.shape)
        np.save(folder / name / "label.npy", random.integers(0, 1000, samples))
    (folder / "mixed").mkdir()
    np.save(folder / "mixed" / "image.npy", random.integers(0, 256, (999, 37, 41, 3), np.uint8))
    np.save(folder / "mixed" / "weight.npy", random.random((999, 5, 3), np.float32))
    np.save(folder / "mixed" / "flag.npy", random.integers(0, 2, 999).astype(bool))
    random.integers(0, 50000, 4_000_000, np.uint16).tofile(folder / "tokens.bin")
    try:
        from PIL import Image
    except ImportError:
        return
    for number in range(300):
        path = folder / "photos" / f"class{number % 3}"
        path.mkdir(parents=True, exist_ok=True)
        size = (60 + number % 37, 80 + number % 29, 3)
        Image.fromarray(random.integers(0, 256, size, np.uint8)).save(path / f"{number}.jpg")


def open_feed(address, dataset, resident, **options):
    arguments = dict(batch_size=256, shuffle=True, seed=7, device=DEVICE, address=address, rank=0, world_size=1, resident=resident)
    feed = pinfeed.open(dataset, **{**arguments, **options})
    assert (feed.resident_bytes > 0) == bool(resident), f"resident={resident}, and {feed.resident_bytes} bytes are"
    return feed


def same(one, other):
    assert one._fields == other._fields and (one.epoch, one.index) == (other.epoch, other.index)
    for name, a, b in zip(one._fields, one, other):
        assert a.dtype == b.dtype and a.shape == b.shape and a.device == b.device, name
        assert torch.equal(a.view(torch.uint8) if a.is_floating_point() else a, b.view(torch.uint8) if b.is_floating_point() else b), f"{name} of batch {one.index} of epoch {one.epoch} differs"


def epochs(feed, count):
    for _ in range(count):
        yield from feed


def crc(batch):
    """A number that hardly any other batch has."""
    total = 0
    for tensor in batch:
        data = tensor.contiguous().view(torch.uint8).to(torch.int64).flatten()
        weights = torch.arange(1, data.numel() + 1, device=data.device)
        total = total * 1000003 + int((data * weights).sum().item())
    return total % (1 << 61)


def train(address, spec, batches):
    """The other process: prints a line a batch."""
    options = dict(spec, transforms=[getattr(pinfeed, name)(*arguments) for name, arguments in spec["transforms"]])
    with open_feed(address, options.pop("dataset"), **options) as feed:
        print(json.dumps({"resident_bytes": feed.resident_bytes}), flush=True)
        taken = 0
        while taken < batches:
            for batch in feed:
                print(json.dumps([batch.epoch, batch.index, crc(batch)]), flush=True)
                taken += 1
                if taken == batches:
                    break


class Trainer:
    def __init__(self, address, batches, **spec):
        command = [sys.executable, __file__, "--trainer", address, json.dumps(spec), str(batches)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.resident_bytes = json.loads(self.process.stdout.readline())["resident_bytes"]

    def line(self):
        return json.loads(self.process.stdout.readline())

    def rest(self):
        lines = [json.loads(line) for line in self.process.stdout]
        assert self.process.wait(60) == 0
        return lines

    def kill(self):
        self.process.kill()
        self.process.communicate()


# ---- Checks ----


def bytes_are_equal(daemon, inputs):
    specs = [
        ("large", dict(transforms=[])),
        ("large", dict(transforms=[FLIP, *NORMAL])),
        ("small", dict(batch_size=1024, transforms=[CROP, FLIP, *NORMAL])),
        ("small", dict(batch_size=1000, layout="HWC", sample_ids=True, valid=True, transforms=[FLIP, pinfeed.RandomCrop(32, padding=4, padding_mode="reflect"), pinfeed.RandomVerticalFlip(), pinfeed.ToDtype("float32", True)])),
        ("mixed", dict(batch_size=50, transforms=[])),
        ("mixed", dict(batch_size=7, transforms=[pinfeed.RandomCrop((30, 41), padding=(3, 0)), FLIP, pinfeed.Normalize(MEAN, STD)])),
        ("mixed", dict(batch_size=50, transforms=[pinfeed.Resize((32, 36)), FLIP, pinfeed.RandomCrop(28), pinfeed.ToDtype("float16", True)])),
        ("tokens.bin", dict(batch_size=64, sequence_length=1024, transforms=[])),
    ]
    if (inputs / "photos").exists():
        specs.append(("photos", dict(batch_size=32, sample_path=True, pad={"sample_path": 64}, transforms=[pinfeed.Resize((72, 64)), pinfeed.RandomCrop(60, padding=5), FLIP, *NORMAL])))
    compared = 0
    for dataset, options in specs:
        with open_feed(daemon.address, inputs / dataset, True, **options) as resident, open_feed(daemon.address, inputs / dataset, False, **options) as ordinary:
            for one, other in zip(epochs(resident, 2), epochs(ordinary, 2), strict=True):
                same(one, other)
                compared += 1
            del one, other
    return f"{compared} batches of {len(specs)} specs, two epochs each"


def resumes_amid_an_epoch(daemon, inputs):
    options = dict(batch_size=1024, transforms=[CROP, FLIP, *NORMAL])
    with open_feed(daemon.address, inputs / "small", True, **options) as feed:
        rest = epochs(feed, 2)
        for _ in range(20):
            next(rest)
        state = feed.state_dict()
        expected = [crc(next(rest)) for _ in range(50)]
    loaded = daemon.copied()
    for resident in (True, False):
        with open_feed(daemon.address, inputs / "small", resident, state=state, **options) as feed:
            assert [crc(batch) for batch, _ in zip(epochs(feed, 2), range(50))] == expected, f"resident={resident}"
        if resident:
            assert daemon.copied() == loaded, "the samples were loaded once more"
    return "by a resident and by an ordinary feed; the samples stayed"


SHARED = dict(dataset=None, batch_size=512, transforms=[["RandomCrop", [32, 4]], ["RandomHorizontalFlip", []], ["Normalize", [MEAN, STD]]])


def trainers_share_and_one_is_killed(daemon, inputs):
    spec = dict(SHARED, dataset=str(inputs / "small"))
    ordinary = Trainer(daemon.address, 120, resident=False, **spec).rest()
    daemon.await_unused()
    one = Trainer(daemon.address, 10**6, resident=True, **spec)
    one.line()
    alone = daemon.used()
    other = Trainer(daemon.address, 120, resident=True, **spec)
    seen = [other.line() for _ in range(20)]
    assert daemon.used() == alone, f"{daemon.used()} bytes for two, {alone} for one"
    one.kill()
    seen += other.rest()
    assert seen == ordinary
    return f"{alone >> 20} MiB for both; the other one's batches stay right"


def daemon_is_killed(program, folder, inputs):
    spec = dict(SHARED, dataset=str(inputs / "small"))
    daemon = Daemon(program, folder, inputs)
    ordinary = Trainer(daemon.address, 300, resident=False, **spec).rest()
    trainer = Trainer(daemon.address, 300, resident=True, **spec)
    seen = [trainer.line() for _ in range(30)]
    daemon.kill()
    after = Daemon(program, folder, inputs)
    seen += trainer.rest()
    after.stop()
    assert seen == ordinary
    return "the next daemon loads the samples again; no batch is lost or other"


def quota_is_refused(program, folder, inputs):
    daemon = Daemon(program, folder, inputs, "--gpu-bytes", "256MiB")
    options = dict(batch_size=64, slots=4, transforms=[FLIP, *NORMAL])
    try:
        open_feed(daemon.address, inputs / "large", True, **options)
        raise AssertionError("2.4 GB fit into 256 MiB")
    except pinfeed.ResourceExhaustedError as error:
        said = str(error)
        assert "resident" in said and "gpu_bytes" in said and str(LARGE) in said, said
    with pinfeed.open(inputs / "large", **options, shuffle=True, seed=7, device=DEVICE, address=daemon.address, rank=0, world_size=1, resident="auto") as feed:
        assert feed.resident_bytes == 0
        next(iter(feed))
        (status,) = pinfeed.status(daemon.address)["feeds"]
        assert "more than half" in status["resident_note"], status
    daemon.stop()
    return said.split("\n")[0][:160]


# ---- Rates ----


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
        cpu, wall = daemon.cpu_seconds(), time.perf_counter()
        said = json.loads(subprocess.run([program, daemon.address, str(SECONDS), json.dumps(spec)], check=True, stdout=subprocess.PIPE, text=True).stdout)
        out["cpp"] = said
        out["cpp_daemon_cores"] = (daemon.cpu_seconds() - cpu) / (time.perf_counter() - wall)
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
        print(f"   a trainer in C++: {json.dumps(out['cpp'])}; the daemon takes {out['cpp_daemon_cores']:.1%} of a core")
    print(f"   the daemon takes {out['daemon_cores']:.1%} of a core; at {out['paced_rate']:,.0f} batches/s {out['paced_daemon_cores']:.1%}; first batch after {out['first_batch_s']:.2f} s")


def main():
    program, out = sys.argv[1], pathlib.Path(sys.argv[2])
    what = sys.argv[3:] or ["checks", "rates"]
    failed, missed, result = 0, [], {"gpu": torch.cuda.get_device_name(0)}
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = pathlib.Path(name)
        inputs = folder / "inputs"
        inputs.mkdir()
        make_inputs(inputs)
        daemon = Daemon(program, folder / "run", inputs)
        checks = [
            ("bytes equal those of an ordinary feed", lambda: bytes_are_equal(daemon, inputs)),
            ("a feed resumes amid an epoch", lambda: resumes_amid_an_epoch(daemon, inputs)),
            ("two trainers share the samples, one is killed", lambda: trainers_share_and_one_is_killed(daemon, inputs)),
            ("the daemon is killed", lambda: daemon_is_killed(program, folder / "killed", inputs)),
            ("what does not fit is refused", lambda: quota_is_refused(program, folder / "quota", inputs)),
        ]
        for title, check in checks if "checks" in what else []:
            try:
                print(f"ok      {title}: {check()}", flush=True)
            except Exception:  # noqa: BLE001: the next checks run all the same
                failed = 1
                print(f"FAILED  {title}\n{traceback.format_exc()}", flush=True)
        if "rates" in what:
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
        if failed:
            print(daemon.log()[-4000:])
    (out / "resident.json").write_text(json.dumps(result, indent=1))
    return 1 if failed else 3 if missed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--trainer":
        train(sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
