# SPDX-License-Identifier: Apache-2.0
"""What the daemon says of itself and of its datasets."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, Optional

from . import _abi, _daemon
from ._checks import Checks


def status(address: Optional[str] = None, *, timeout: float = 10.0) -> Dict[str, Any]:
    """What the daemon is doing, as `pinfeed.v1.GetStatusResponse` in JSON. `address` as in `open`."""
    return _ask("pf_status_json", address, timeout)


def datasets(address: Optional[str] = None, *, timeout: float = 10.0) -> Dict[str, Any]:
    """The datasets of the daemon's configuration, as `pinfeed.v1.ListDatasetsResponse` in JSON. `address` as in `open`."""
    answer = _ask("pf_datasets_json", address, timeout)
    answer.setdefault("datasets", [])
    return answer


def _ask(function: str, address: Optional[str], timeout: float) -> Dict[str, Any]:
    checks = Checks()
    checks.address(address)
    checks.raise_faults()
    library = _abi.load()
    text = ctypes.c_void_p()
    result = getattr(library, function)(os.fsencode(_daemon.address_for(address, timeout)), text)
    library.drain_log()
    library.check(result)
    answer: Dict[str, Any] = json.loads(library.take_string(text))
    return answer
