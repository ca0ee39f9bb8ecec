# SPDX-License-Identifier: Apache-2.0
"""Returning slots to the daemon.

In: an object that stands for a slot in use, and the library function that releases it. Out: one call of that
function, when the object dies.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Dict, Optional


class Lease(weakref.ref):  # type: ignore[type-arg]  # Python 3.8 cannot subscribe it
    """Releases a batch when the object that stands for its slot dies.

    A weak reference whose callback is a library function. It may run on any thread and executes no Python code, so
    Ctrl-C cannot interrupt it; Python would swallow the exception, and the slot would be lost. ctypes passes the
    reference to the function as `_as_parameter_`.
    """

    _as_parameter_: Optional[int] = None  # NULL: nothing to release


# By handle. A weak reference that dies before its object calls nothing, so each one stays here until the library reuses
# the handle. There are a few hundred handles in all.
LEASES: Dict[int, Lease] = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(LEASES))  # slots may die while the interpreter clears this module
