# SPDX-License-Identifier: Apache-2.0
"""What is given to `open` as a dataset and is no path: what to give instead.

What comes in: any object. What goes out: a sentence, by the object's kind, without importing the library that it is of.
"""

from __future__ import annotations

import os
from typing import Any

_AS_ARRAYS = 'numpy.save("DIR/image.npy", images), numpy.save("DIR/label.npy", labels), one row a sample, then pinfeed.open("DIR/", ...)'


def instead_of(value: Any) -> str:
    """What to give instead of an object that is no path; begins with "; ", or is empty."""
    if value is None or isinstance(value, (str, bytes, int, float)):
        return ""
    root = getattr(value, "root", None)
    if isinstance(root, (str, os.PathLike)) and hasattr(value, "__getitem__"):  # torchvision's datasets
        return f"; the daemon reads the files itself: give the folder, as {os.fspath(root)!r}, and transforms=[...] to open"
    if hasattr(value, "dataset") and hasattr(value, "batch_size"):
        return "; open takes the place of the DataLoader: give the path of what its dataset reads"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"; the daemon reads files: save the array, {_AS_ARRAYS}"
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return f"; a dataset is one path: a folder of class folders with images, or of .npy files ({_AS_ARRAYS})"
    if hasattr(value, "__getitem__") or hasattr(value, "__iter__"):
        return (
            "; the daemon runs no Python code: use pinfeed.DataLoader(dataset, ...), whose workers run it, or give the path of the files that it "
            f"reads, or save its samples as arrays ({_AS_ARRAYS})"
        )
    return ""


def looks_like_file(name: str) -> bool:
    """Whether what was taken for a dataset's name looks like a file's, or like a pattern of files' names."""
    return bool(os.path.splitext(name)[1]) or any(letter in name for letter in "*?{")
