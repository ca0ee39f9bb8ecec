# SPDX-License-Identifier: Apache-2.0
"""What a feed is called that was given no name.

What comes in: how this program was started. What goes out: a name by which its user knows it again in ``pinfeed status``.
"""

from __future__ import annotations

import os
import sys
from typing import Optional

from ._checks import MAX_NAME_BYTES


def default_name() -> Optional[str]:
    """The module of ``python3 -m``, else the script's file; None when there is neither, or no name that the daemon takes."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module: str = getattr(spec, "name", None) or ""
    argv = getattr(sys, "argv", None) or [""]
    name = module[: -len(".__main__")] if module.endswith(".__main__") else module
    if not name or name == "__main__":
        name = os.path.basename(argv[0])
    if name in ("", "-", "-c", "-m"):  # an interpreter without a script
        return None
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return shown.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore") or None
