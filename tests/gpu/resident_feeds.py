# SPDX-License-Identifier: Apache-2.0
"""What the checks and the rates of resident samples share: a daemon of their own, its datasets, and feeds of them.

In: the path of `pinfeedd` and an empty folder. Out: a running `Daemon`, and datasets as files.
"""
import os
import pathlib
import signal
import subprocess
import time

import numpy as np
import pinfeed

DEVICE = os.environ.get("DEVICE", "cuda:0")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMAL = [pinfeed.Normalize(MEAN, STD), pinfeed.ToDtype("bfloat16")]
FLIP = pinfeed.RandomHorizontalFlip()
CROP = pinfeed.RandomCrop(32, padding=4)
LARGE, SMALL = 16384, 50000  # samples


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
        return sum(int(gpu["arena_used_bytes"]) for gpu in pinfeed.status(self.address)["gpus"])

    def await_unused(self):
        """Until no memory is used: samples stay for 15 s after their last feed."""
        until = time.monotonic() + 60
        while self.used():
            assert time.monotonic() < until, f"{self.used()} bytes are still in use"
            time.sleep(0.1)

    def copied(self):
        return sum(int(gpu["copied_bytes"]) for gpu in pinfeed.status(self.address)["gpus"])

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
