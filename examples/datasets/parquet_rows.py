#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of a Parquet file, read by worker processes, one row group at a time.

What comes in: a file with the columns `feature` (lists of equal length) and `label`; without one, a small one is made.
What goes out: how many samples came in one epoch.
"""

import bisect
import itertools
import os
import sys
import tempfile

import pyarrow
import pyarrow.parquet
import torch

import pinfeed


class ParquetRows(torch.utils.data.Dataset):
    """Parquet is read by row groups. `__getitems__` gets the indices of a whole batch, so that it reads each group once for it; the last
    group stays in memory. An order that shuffles groups, and rows within a group, reads each group about once per epoch."""

    def __init__(self, path):
        self.path = path
        self._file = self._owner = None
        self._cached = None, None
        metadata = pyarrow.parquet.read_metadata(path)
        self._ends = list(itertools.accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)))

    def _read(self, group):
        if self._owner != os.getpid():
            self._file, self._owner = pyarrow.parquet.ParquetFile(self.path), os.getpid()
        if self._cached[0] != group:
            # Without Arrow's own threads: the workers are the parallelism here.
            self._cached = group, self._file.read_row_group(group, columns=["feature", "label"], use_threads=False)
        return self._cached[1]

    def __getstate__(self):  # for workers that are spawned
        return {**self.__dict__, "_file": None, "_owner": None, "_cached": (None, None)}

    def __len__(self):
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        samples = [None] * len(indices)
        for place in sorted(range(len(indices)), key=indices.__getitem__):
            group = bisect.bisect_right(self._ends, indices[place])
            row = indices[place] - (self._ends[group - 1] if group else 0)
            table = self._read(group)
            samples[place] = torch.tensor(table["feature"][row].as_py()), table["label"][row].as_py()
        return samples


def make_input(folder, samples=32):
    """Writes sample i with features and label i."""
    path = os.path.join(folder, "rows.parquet")
    table = pyarrow.table({"feature": [[float(sample)] * 16 for sample in range(samples)], "label": list(range(samples))})
    pyarrow.parquet.write_table(table, path, row_group_size=10)
    return path


def main():
    with tempfile.TemporaryDirectory() as folder:
        dataset = ParquetRows(sys.argv[1] if len(sys.argv) > 1 else make_input(folder))
        loader = pinfeed.DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
        labels = torch.cat([label for feature, label in loader])
    print(f"{len(labels)} samples in {len(loader)} batches, labels {labels.min()} to {labels.max()}")


if __name__ == "__main__":
    main()
