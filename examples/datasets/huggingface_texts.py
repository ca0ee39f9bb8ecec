#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Token lists of a Hugging Face dataset on disk, padded per batch by worker processes.

What comes in: a folder of `Dataset.save_to_disk` with the columns `input_ids` (lists) and `label`; without one, a small one is made.
What goes out: how many samples came in one epoch.
"""

import os
import sys
import tempfile

import datasets
import torch

import pinfeed


class Texts(torch.utils.data.Dataset):
    """The dataset's files are mapped into memory, read-only. Workers may share these mappings, and so nothing is opened again."""

    def __init__(self, path, max_length=512):
        self.rows = datasets.load_from_disk(path)
        self.max_length = max_length

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        """Reads a whole batch at once, which for Arrow is much faster than row by row."""
        rows = self.rows[indices]
        return [{"input_ids": torch.tensor(ids[: self.max_length]), "label": label} for ids, label in zip(rows["input_ids"], rows["label"])]


def pad(samples):
    """Pads to the longest sample of the batch. Batches may have different shapes."""
    ids = [sample["input_ids"] for sample in samples]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    lengths = torch.tensor([len(each) for each in ids])
    return {
        "input_ids": padded,
        "attention_mask": torch.arange(padded.shape[1]) < lengths[:, None],
        "labels": torch.tensor([sample["label"] for sample in samples]),
    }


def make_input(folder, samples=32):
    """Writes sample i with i + 1 tokens and label i."""
    path = os.path.join(folder, "texts")
    rows = {"input_ids": [[sample] * (sample + 1) for sample in range(samples)], "label": list(range(samples))}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows).save_to_disk(path)
    return path


def main():
    with tempfile.TemporaryDirectory() as folder:
        dataset = Texts(sys.argv[1] if len(sys.argv) > 1 else make_input(folder))
        loader = pinfeed.DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=pad, num_workers=2)
        labels = torch.cat([batch["labels"] for batch in loader])
    print(f"{len(labels)} samples in {len(loader)} batches, labels {labels.min()} to {labels.max()}")


if __name__ == "__main__":
    main()
