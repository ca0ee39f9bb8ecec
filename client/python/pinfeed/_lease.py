# SPDX-License-Identifier: Apache-2.0
"""Giving batches back.

What comes in: an object that stands for a slot in use, and the function of the library that releases it. What goes out: one call of that
function, when the object dies.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Dict, Optional


class Lease(weakref.ref):  # type: ignore[type-arg]  # as Python 3.8 cannot subscribe it
    """Gives a batch back when the object that stands for its slot dies.

    A reference whose callback is a function of the library: it runs on whatever thread, and no instruction of Python runs in it. So no
    Ctrl-C can land there, where Python would swallow it and the slot would be lost. ctypes gives the function `_as_parameter_` for the
    reference.
    """

    _as_parameter_: Optional[int] = None  # NULL: nothing to give back


# By handle. A reference that dies before its object calls nothing, so these live on until the library uses the handle again; it has a
# few hundred in all.
LEASES: Dict[int, Lease] = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(LEASES))  # slots may die while the interpreter takes this module apart
