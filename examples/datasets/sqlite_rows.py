#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of an SQLite database, read by worker processes.

What comes in: a database with the table `samples` (id, from 0 without gaps; feature, the bytes of a float32 array; label); without one, a
small one is made. What goes out: how many samples came in one epoch.
"""

import os
import pathlib
import sqlite3
import sys
import tempfile

import numpy
import torch

import pinfeed


class SqliteRows(torch.utils.data.Dataset):
    """A connection must not be used in a process that was forked later. So each process makes one for itself."""

    def __init__(self, path):
        self.path = path
        self._database = self._owner = None
        (self._length,) = self._connect().execute("SELECT count(*) FROM samples").fetchone()

    def _connect(self):
        if self._owner != os.getpid():
            # immutable: nobody writes while we train, so SQLite needs no locks.
            uri = pathlib.Path(self.path).absolute().as_uri() + "?mode=ro&immutable=1"
            self._database, self._owner = sqlite3.connect(uri, uri=True), os.getpid()
        return self._database

    def __getstate__(self):  # for workers that are spawned: a connection cannot be pickled
        return {**self.__dict__, "_database": None, "_owner": None}

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        feature, label = self._connect().execute("SELECT feature, label FROM samples WHERE id = ?", (index,)).fetchone()
        return torch.from_numpy(numpy.frombuffer(feature, numpy.float32).copy()), label


def make_input(folder, samples=32):
    """Writes sample i with features and label i."""
    path = os.path.join(folder, "rows.sqlite")
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, feature BLOB NOT NULL, label INTEGER NOT NULL)")
    rows = [(sample, numpy.full(16, sample, numpy.float32).tobytes(), sample) for sample in range(samples)]
    database.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)
    database.commit()
    database.close()
    return path


def main():
    with tempfile.TemporaryDirectory() as folder:
        dataset = SqliteRows(sys.argv[1] if len(sys.argv) > 1 else make_input(folder))
        loader = pinfeed.DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
        labels = torch.cat([label for feature, label in loader])
    print(f"{len(labels)} samples in {len(loader)} batches, labels {labels.min()} to {labels.max()}")


if __name__ == "__main__":
    main()
