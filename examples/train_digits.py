#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on batches from a pinfeed daemon; what a training script looks like.

What comes in: the daemon's socket ($PINFEED_ADDRESS) and two datasets of its configuration, digits-train and digits-test.
What goes out: the held-out accuracy and where the time went, for people on stdout and as JSON in --report.
"""

import argparse
import json
import pathlib
import time

import torch
from torch import nn
from tqdm import tqdm

import pinfeed

MEAN, STD = [0.3], [0.35]
TO_FLOAT = [pinfeed.ToDtype("float32", scale=True), pinfeed.Normalize(MEAN, STD)]


def network():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def accuracy(model, device):
    right = total = 0
    model.eval()
    transforms = [pinfeed.Resize((32, 32)), *TO_FLOAT]
    with pinfeed.open("digits-test", batch_size=120, epochs=1, transforms=transforms, device=device, name="digits evaluation") as feed:
        with torch.inference_mode():
            for images, labels in feed:
                right += (model(images).argmax(1) == labels).sum().item()
                total += len(labels)
    return right / total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--report", type=pathlib.Path, required=True)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is small; the daemon has use for the other cores
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    feed = pinfeed.open(
        "digits-train",
        batch_size=64,
        shuffle=True,
        seed=0,
        drop_last=True,
        epochs=arguments.epochs,
        transforms=[pinfeed.RandomResizedCrop(32, scale=(0.7, 1.0), ratio=(0.85, 1.18)), *TO_FLOAT],
        device=device,  # batches come to the GPU by themselves
        name="digits training",
    )
    samples = 0
    began = time.perf_counter()
    for epoch in range(arguments.epochs):
        bar = tqdm(feed, desc=f"epoch {epoch + 1:2}/{arguments.epochs}", unit="batch", leave=epoch + 1 == arguments.epochs, disable=None)
        for images, labels in bar:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(labels)
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        schedule.step()
    seconds = time.perf_counter() - began

    # What the daemon saw of the same minute.
    (of_daemon,) = (entry for entry in pinfeed.status()["feeds"] if any(s["client_name"] == "digits training" for s in entry["sessions"]))
    waited = feed.wait_seconds
    feed.close()
    report = {
        "device": str(device),
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "wait_seconds": waited,
        "accuracy": accuracy(model, device),
        "daemon": {key: of_daemon[key] for key in ("read_seconds", "decode_seconds", "starved_seconds", "full_seconds", "bound_on", "bound_share")},
    }
    arguments.report.write_text(json.dumps(report, indent=2))
    print(f"{samples} samples in {seconds:.1f} s on {device}: {samples / seconds:.0f} samples/s")
    print(f"the trainer waited {waited:.2f} s for batches ({waited / seconds:.1%}) and computed for {seconds - waited:.1f} s")
    print(
        f"the daemon's threads read for {of_daemon['read_seconds']:.2f} s and decoded for {of_daemon['decode_seconds']:.2f} s; "
        f"the feed was bound on: {of_daemon['bound_on'] or 'nothing'} ({of_daemon['bound_share']:.0%} of its time)"
    )
    print(f"accuracy on held-out digits: {report['accuracy']:.1%}")


if __name__ == "__main__":
    main()
