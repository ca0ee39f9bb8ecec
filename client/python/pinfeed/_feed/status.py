# SPDX-License-Identifier: Apache-2.0
"""The daemon's status and its datasets."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from .._base import abi, daemon
from .._base.checks import Checks


def status(address: Optional[str] = None, *, timeout: float = 10.0) -> Dict[str, Any]:
    """Returns what the daemon is doing: `pinfeed.v1.GetStatusResponse` as JSON. `address` is as in `open`. `timeout`:
    how many seconds to wait for a daemon that is starting. The answer has 10 s.
    """
    return _call("pf_status_json", address, timeout)


def datasets(address: Optional[str] = None, *, timeout: float = 10.0) -> Dict[str, Any]:
    """Returns the named datasets: `pinfeed.v1.ListDatasetsResponse` as JSON. `address` is as in `open`. `timeout`: how
    many seconds to wait for a daemon that is starting. The answer has 10 s; what has not opened by then has an `error`.
    """
    answer = _call("pf_datasets_json", address, timeout)
    answer.setdefault("datasets", [])
    return answer


def _call(function: str, address: Optional[str], timeout: float) -> Dict[str, Any]:
    checks = Checks()
    checks.address(address)
    checks.raise_faults()
    return abi.load().ask(function, os.fsencode(daemon.address_for(address, timeout)))
