# SPDX-License-Identifier: Apache-2.0
"""Finds what belongs to this package: its programs and libraries, in the package, an installed tree or the source tree.

Standard library only, so that the commands ``pinfeed`` and ``pinfeedd`` start quickly.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional

PACKAGE = Path(__file__).resolve().parents[1]
# Where the source tree's build has each program.
_BUILT = {"pinfeed": "client/cli/pinfeed", "pinfeedd": "server/pinfeedd"}


def ancestor(path: Path, above: int) -> Path:
    """Returns `path.parents[above]`, or the root if there are fewer parents."""
    return path.parents[min(above, len(path.parents) - 1)]


def source_tree() -> Optional[Path]:
    """Returns the root of the source tree if the package is imported from it (client/python/pinfeed), else None."""
    root = ancestor(PACKAGE, 2)
    return root if (root / "client" / "include" / "pinfeed" / "pinfeed.h").is_file() else None


def library_folders() -> List[Path]:
    """Returns the folders where ``libpinfeed.so`` may be, besides the system's library path."""
    folders = [PACKAGE, PACKAGE / "lib"]
    installed = ancestor(PACKAGE, 2)
    if installed.name == "lib":  # an installed tree, which may be anywhere
        folders += [installed, *installed.glob("*-linux-gnu")]
    tree = source_tree()
    if tree is not None:
        folders.append(tree / "build" / "release" / "client")
    return folders


def program(name: str) -> Optional[str]:
    """Returns the path of ``pinfeed`` or ``pinfeedd``, or None. The PATH is not searched: it may lead to a command that
    calls this function.
    """
    places = [PACKAGE / "bin" / name]
    tree = source_tree()
    if tree is not None:
        places.append(tree / "build" / "release" / _BUILT[name])
    elif PACKAGE.parent.name == "dist-packages":  # an installed tree; in `site-packages`, bin/ has commands of Python
        places.append(ancestor(PACKAGE, 3) / "bin" / name)
    return next((str(place) for place in places if place.is_file()), None)
