# SPDX-License-Identifier: Apache-2.0
"""One broadcast to all GPUs of the host: what each member gets against the files, while another member is killed.

    broadcast.py ADDRESS INPUTS [--devices cuda:0,cuda:1] [--batches N]      (run.sh calls it)

Every member compares every byte. The last one is killed in the middle; the others go on to the end. The exit status is 1 where a sample is wrong,
a member does not come to its end, or nothing was copied between the GPUs.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np
import pinfeed
import torch
from feeding import endless, open_feed


def member(arguments):
    """Prints a line once it has half of the batches, and one that counts the wrong samples at the end."""
    images = torch.from_numpy(np.load(arguments.inputs / "arrays" / "image.npy", mmap_mode="c")).to(arguments.device)
    labels = torch.from_numpy(np.load(arguments.inputs / "arrays" / "label.npy")).to(arguments.device)
    on_gpu = arguments.device != "cpu"
    options = {"device": arguments.device, "backend": "vmm-fd" if on_gpu else "auto", "sample_ids": True, "timeout": 60, "open_timeout": 120}
    group = {"share": "broadcast", "group": "compared", "group_size": arguments.members}
    wrong = torch.zeros((), dtype=torch.int64, device=arguments.device)
    with open_feed(arguments.address, arguments.inputs, "arrays", **options, **group) as feed:
        for number, batch in zip(range(arguments.batches), endless(feed)):
            image, label, ids = batch.image, batch.label, batch.sample_id
            wrong += ((image != images[ids]).flatten(1).any(1) | (label != labels[ids])).sum()
            if number == arguments.batches // 2:
                print(json.dumps({"half": number}), flush=True)
    print(json.dumps({"wrong": int(wrong)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("inputs", type=pathlib.Path)
    parser.add_argument("--devices", default=",".join(f"cuda:{gpu}" for gpu in range(torch.cuda.device_count())))
    parser.add_argument("--batches", type=int, default=8000)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    parser.add_argument("--members", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device:
        return member(arguments)
    devices = arguments.devices.split(",")
    if len(devices) < 2:
        print("one GPU: nothing to compare")
        return 0
    common = [sys.executable, __file__, arguments.address, str(arguments.inputs), "--batches", str(arguments.batches), "--members", str(len(devices))]
    members = [subprocess.Popen([*common, "--device", device], stdout=subprocess.PIPE, text=True) for device in devices]
    *others, victim = members
    half = victim.stdout.readline()
    victim.kill()
    victim.wait()
    failed = "half" not in half
    for device, process in zip(devices, others):
        said = process.communicate()[0].splitlines()
        wrong = json.loads(said[-1]).get("wrong") if said else None
        print(f"{device}: {arguments.batches:,} batches, wrong samples: {wrong}, exit status {process.returncode}")
        failed = failed or process.returncode != 0 or wrong != 0
    if devices[0] != "cpu":
        between = [int(gpu["peer_copied_bytes"]) for gpu in pinfeed.status(arguments.address)["gpus"]]
        print("copied between the GPUs, GB:", *(f"{count / 1e9:.1f}" for count in between))
        failed = failed or 0 in between[: len(devices)]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
