# SPDX-License-Identifier: Apache-2.0
"""Samples that are resident on the GPU: that batches have the bytes of an ordinary feed, whatever happens.

    resident.py PINFEEDD                           (run.sh calls it; it starts daemons of its own)
    resident.py --trainer ADDRESS SPEC BATCHES     (a trainer that it starts)

Out: a line for each check. The exit status is 1 when one failed.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import traceback

import pinfeed
import torch
from resident_feeds import CROP, DEVICE, Daemon, FLIP, LARGE, MEAN, NORMAL, STD, make_inputs, open_feed


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


def main():
    program, failed = sys.argv[1], 0
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
        for title, check in checks:
            try:
                print(f"ok      {title}: {check()}", flush=True)
            except Exception:  # noqa: BLE001: the next checks run all the same
                failed = 1
                print(f"FAILED  {title}\n{traceback.format_exc()}", flush=True)
        daemon.stop()
        if failed:
            print(daemon.log()[-4000:])
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "--trainer":
        train(sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
