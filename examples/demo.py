#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pinfeed from end to end on this host: images on disk, a daemon, a trainer in another process, and an orderly end.

What comes in: a build (--build-dir). What goes out: a trained network's accuracy and a sheet of one batch, in BUILD/demo.
Fails (status 1) when the accuracy is below 95% or anything does not end cleanly.
"""

import argparse
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile

import numpy
from PIL import Image
from sklearn.datasets import load_digits
from tqdm import tqdm

ROOT = pathlib.Path(__file__).resolve().parents[1]
NEEDED_ACCURACY = 0.95
SIDE = 48


def write_digits(folder):
    """scikit-learn's 1,797 handwritten digits as image files: FOLDER/{train,test}/<digit>/<number>, half PNG, half JPEG. Every fifth
    of a digit is held out."""
    digits = load_digits()
    seen = [0] * 10
    for number, (pixels, label) in enumerate(zip(tqdm(digits.images, desc="writing digits", unit="file", disable=None), digits.target)):
        held_out = seen[label] % 5 == 4
        seen[label] += 1
        place = folder / ("test" if held_out else "train") / str(label)
        place.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((pixels * (255 / 16)).astype(numpy.uint8)).resize((SIDE, SIDE), Image.BICUBIC).convert("RGB")
        if number % 2:
            image.save(place / f"{number:04}.png")
        else:
            image.save(place / f"{number:04}.jpg", quality=92)


class Daemon:
    """pinfeedd in a process of its own, from a configuration file. Leaving the `with` block ends it and checks that it ended well."""

    def __init__(self, build, folder, sockets):
        self.log = folder / "pinfeedd.log"
        config = folder / "pinfeedd.toml"
        config.write_text(
            f'socket_dir = "{sockets}"\nhttp_listen = "127.0.0.1:0"\npool_bytes = "256MiB"\n'
            f'[datasets.digits-train]\npath = "{folder}/digits/train"\n'
            f'[datasets.digits-test]\npath = "{folder}/digits/test"\n'
        )
        ready, writer = os.pipe()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [build / "server" / "pinfeedd", "--config", config, "--ready-fd", str(writer)], stdout=log, stderr=log, pass_fds=[writer]
            )
        os.close(writer)
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        poll.poll(30000)
        if os.read(ready, 64).strip() != b"ready":
            self.process.kill()
            sys.exit(f"the daemon did not start; {self.log} says:\n{self.log.read_text()}")
        os.close(ready)
        self.address = f"{sockets}/pinfeed.sock"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = "no end within 30 s"
        if status != 0 and kind is None:
            sys.exit(f"the daemon ended with {status}; {self.log} says:\n{self.log.read_text()}")


def write_sheet(path):
    """One augmented batch as the trainer gets it, as a picture of 8 x 4 digits."""
    import pinfeed

    feed = pinfeed.open(
        "digits-train",
        batch_size=32,
        shuffle=True,
        layout="HWC",
        transforms=[pinfeed.RandomResizedCrop(64, scale=(0.7, 1.0), ratio=(0.85, 1.18))],
        framework="numpy",
        name="contact sheet",
    )
    with feed:
        batch = next(iter(feed))
        rows = batch.image.reshape(4, 8, 64, 64, 3).transpose(0, 2, 1, 3, 4)
        Image.fromarray(rows.reshape(4 * 64, 8 * 64, 3)).save(path)
        print(f"a batch of {len(batch.label)} is shown in {path}; its labels, row by row:")
        for row in batch.label.reshape(4, 8):
            print("   ", " ".join(feed.classes[label] for label in row))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release")
    build = parser.parse_args().build_dir.resolve()
    folder = build / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    os.environ["PINFEED_LIBRARY"] = str(build / "client" / "libpinfeed.so")
    os.environ["PYTHONPATH"] = package = str(ROOT / "client" / "python")
    sys.path.insert(0, package)

    write_digits(folder / "digits")
    # A socket's path is limited to 107 bytes; the build's may be longer.
    with tempfile.TemporaryDirectory(prefix="pinfeed-demo-") as sockets, Daemon(build, folder, sockets) as daemon:
        os.environ["PINFEED_ADDRESS"] = daemon.address
        print(f"pinfeedd runs as process {daemon.process.pid}; training in another", flush=True)
        report = folder / "report.json"
        subprocess.run([sys.executable, ROOT / "examples" / "train_digits.py", "--report", report], check=True)
        write_sheet(folder / "batch.png")
    print("the daemon ended cleanly")
    reached = json.loads(report.read_text())["accuracy"]
    if reached < NEEDED_ACCURACY:
        sys.exit(f"the accuracy of {reached:.1%} is below {NEEDED_ACCURACY:.0%}: something is wrong with the batches")


if __name__ == "__main__":
    main()
