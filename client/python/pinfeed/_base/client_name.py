# SPDX-License-Identifier: Apache-2.0
"""The default name of a feed.

In: how this program was started. Out: a name that its user recognises in ``pinfeed status``.
"""

from __future__ import annotations

import os
import sys
from typing import Optional

from .checks import MAX_NAME_BYTES


def default_name() -> Optional[str]:
    """Returns the module of ``python3 -m``, or else the script's file name. None if there is neither, or if the daemon
    would not accept it.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module: str = getattr(spec, "name", None) or ""
    argv = getattr(sys, "argv", None) or [""]
    name = module[: -len(".__main__")] if module.endswith(".__main__") else module
    if not name or name == "__main__":
        name = os.path.basename(argv[0])
    if name in ("", "-", "-c", "-m"):  # the interpreter runs no script
        return None
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return shown.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore") or None
