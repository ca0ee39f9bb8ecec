# SPDX-License-Identifier: Apache-2.0
"""The extension that takes a plain batch in one call, if it is there: for CPython 3.11 and later.

In: what a maker says of its batches. Out: an object for `Stream`, and the base of a feed's iterators. All that the
extension does the Python code does too.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
from typing import Any, Dict, Optional

from .._base import abi, places


def _load() -> Any:
    """Returns the extension, or None."""
    if sys.version_info < (3, 11) or sys.implementation.name != "cpython" or "t" in getattr(sys, "abiflags", ""):  # t: free-threaded
        return None
    tree = places.source_tree()
    folders = [places.PACKAGE] if tree is None else [places.PACKAGE, tree / "build" / "release" / "client"]
    for folder in folders:
        path = folder / "_quick.abi3.so"
        if not path.is_file():
            continue
        name = f"{__package__.rpartition('.')[0]}._quick"
        try:
            loader = importlib.machinery.ExtensionFileLoader(name, str(path))
            spec = importlib.util.spec_from_file_location(name, path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError:  # of another machine, or a Python without the stable ABI
            return None
        return module
    return None


extension = _load()


class _Iterator:
    """What the extension's `Iterator` is when it was never armed."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # Not a call of its own, so that warnings name the same caller with the extension and without.
        cls.__next__ = cls._next_slowly  # type: ignore[attr-defined]

    def __iter__(self) -> Any:
        return self

    def _next_slowly(self) -> Any:
        raise NotImplementedError


Iterator: Any = _Iterator if extension is None else extension.Iterator


def make_next(
    library: abi.Library,
    handle: Optional[ctypes.c_void_p],
    out: ctypes.c_void_p,
    lock: Any,
    of_maker: Optional[Dict[str, Any]],
    output: str,
) -> Any:
    """Returns the extension's `Next` for a feed; None if there is no extension, or the maker's batches are not plain.
    `output`: as of `open`.
    """
    if extension is None or handle is None or of_maker is None:
        return None

    def address_of(function: Any) -> Optional[int]:
        return ctypes.cast(function, ctypes.c_void_p).value

    info = of_maker.pop("info")
    if "write" in of_maker:
        of_maker["write"] = address_of(of_maker["write"])
    return extension.Next(
        kept=(library, handle, out, info),
        feed=ctypes.addressof(handle),
        out=ctypes.addressof(out),
        info=ctypes.addressof(info),
        next=address_of(library.pf_next_info_quick),
        release=address_of(library.pf_batch_release_quick),
        acquire=lock.acquire,
        release_lock=lock.release,
        messages=library._messages,
        output={"batch": None, "tuple": (), "dict": of_maker["batch_type"]._fields}[output],
        **of_maker,
    )
