# SPDX-License-Identifier: Apache-2.0
"""The C ABI of pinfeed.h in ctypes: the library, its structs and functions, and its result codes as exceptions.

In: ``libpinfeed.so``, named by ``$PINFEED_LIBRARY`` or found in the package, in the source tree's build or by the
system. Out: one `Library` per process, with every function typed.
"""

from __future__ import annotations

import collections
import ctypes
import ctypes.util
import json
import logging
import os
import sys
import threading
from typing import Any, Deque, Dict, List, Optional, Tuple

from . import places
from .errors import Code, Error, NotFoundError, make_error
from .fork_locks import add_fork_lock

logger = logging.getLogger("pinfeed")

# The package's own major version. A library with another major version has another ABI.
ABI_MAJOR = 0
ONLY_LOOK = -2  # PF_ONLY_LOOK
MAX_DIMS = 16
LOG_WARNING = 2


class OpenOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("address", ctypes.c_char_p),
        ("spec_json", ctypes.c_char_p),
        ("cursor_json", ctypes.c_char_p),
        ("client_name", ctypes.c_char_p),
        ("open_timeout_ms", ctypes.c_int64),
        ("reconnect_timeout_ms", ctypes.c_int64),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
    ]


class FeedInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("batch_size", ctypes.c_uint32),
        ("tensor_count", ctypes.c_uint32),
        ("slot_count", ctypes.c_uint32),
        ("reconnects", ctypes.c_uint32),
        ("dataset_samples", ctypes.c_uint64),
        ("batches_per_epoch", ctypes.c_uint64),
        ("slot_bytes", ctypes.c_uint64),
        ("fingerprint", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
        ("classes", ctypes.POINTER(ctypes.c_char_p)),
        ("class_count", ctypes.c_uint64),
        ("device", ctypes.c_int32),
        ("output_count", ctypes.c_uint32),
        ("left_out", ctypes.POINTER(ctypes.c_char_p)),
        ("left_out_count", ctypes.c_uint64),
        ("decode", ctypes.c_char_p),
        ("decoder", ctypes.c_char_p),
        ("resident_bytes", ctypes.c_uint64),
    ]


class BatchInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("epoch", ctypes.c_uint64),
        ("index", ctypes.c_uint64),
        ("samples", ctypes.c_uint32),
        ("skipped", ctypes.c_uint32),
        ("last_of_epoch", ctypes.c_uint32),
        ("held", ctypes.c_uint32),
        ("data", ctypes.c_void_p),
    ]


class TensorInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("dims", ctypes.c_uint32),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("device", ctypes.c_int32),
        ("writable", ctypes.c_uint32),
        ("extents", ctypes.c_uint32),
        ("lengths", ctypes.c_uint32),
    ]


class TaskInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("task", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64),
        ("batch_index", ctypes.c_uint64),
        ("samples", ctypes.c_uint32),
        ("tensor_count", ctypes.c_uint32),
        ("sample_ids", ctypes.POINTER(ctypes.c_int64)),
    ]


class CopierOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("device", ctypes.c_int32),
        ("threads", ctypes.c_uint32),
        ("ring_bytes", ctypes.c_uint64),
    ]


LogFunction = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

_P = ctypes.c_void_p
_RESULT = ctypes.c_int
# name -> (result type, argument types)
_SIGNATURES = {
    "pf_version": (ctypes.c_uint32, []),
    "pf_last_error": (ctypes.c_char_p, []),
    "pf_set_log": (None, [LogFunction, _P]),
    "pf_open_options_init": (None, [ctypes.POINTER(OpenOptions), ctypes.c_size_t]),
    "pf_open": (_RESULT, [ctypes.POINTER(OpenOptions), ctypes.POINTER(_P)]),
    "pf_close": (None, [_P]),
    "pf_feed_info_init": (None, [ctypes.POINTER(FeedInfo), ctypes.c_size_t]),
    "pf_get_feed_info": (_RESULT, [_P, ctypes.POINTER(FeedInfo)]),
    "pf_next_info": (_RESULT, [_P, ctypes.c_int64, ctypes.POINTER(_P), ctypes.POINTER(BatchInfo)]),
    "pf_batch_info_init": (None, [ctypes.POINTER(BatchInfo), ctypes.c_size_t]),
    "pf_tensor_init": (None, [ctypes.POINTER(TensorInfo), ctypes.c_size_t]),
    "pf_get_tensor": (_RESULT, [_P, ctypes.c_uint32, ctypes.POINTER(TensorInfo)]),
    "pf_get_row_offsets": (_RESULT, [_P, ctypes.c_uint32, _P]),
    "pf_get_output": (_RESULT, [_P, ctypes.c_uint32, ctypes.POINTER(TensorInfo)]),
    "pf_batch_write": (_RESULT, [_P, ctypes.POINTER(_P), ctypes.c_uint32, _P]),
    "pf_batch_release": (None, [_P]),
    "pf_batch_give_back": (_RESULT, [_P]),
    "pf_batch_release_on": (_RESULT, [_P, _P]),
    "pf_count_copied": (_RESULT, [_P]),
    "pf_cursor": (_RESULT, [_P, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]),
    "pf_seek": (_RESULT, [_P, ctypes.c_char_p]),
    "pf_seek_epoch": (_RESULT, [_P, ctypes.c_uint64]),
    "pf_invite_producer": (_RESULT, [_P, ctypes.c_uint32, ctypes.POINTER(_P), ctypes.POINTER(ctypes.c_size_t)]),
    "pf_join_batcher_json": (_RESULT, [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_P)]),
    "pf_producer_attach": (_RESULT, [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(_P)]),
    "pf_producer_close": (None, [_P]),
    "pf_task_init": (None, [ctypes.POINTER(TaskInfo), ctypes.c_size_t]),
    "pf_producer_next": (_RESULT, [_P, ctypes.c_int64, ctypes.POINTER(TaskInfo)]),
    "pf_producer_tensor": (_RESULT, [_P, ctypes.POINTER(TaskInfo), ctypes.c_uint32, ctypes.POINTER(TensorInfo)]),
    "pf_producer_memory": (_RESULT, [_P, ctypes.POINTER(TaskInfo), ctypes.c_uint64, ctypes.POINTER(ctypes.c_int)]),
    "pf_producer_done": (_RESULT, [_P, ctypes.POINTER(TaskInfo), ctypes.c_char_p]),
    "pf_producer_end_of_data": (_RESULT, [_P, ctypes.POINTER(TaskInfo)]),
    "pf_end_with_process": (_RESULT, [ctypes.c_int]),
    "pf_copier_options_init": (None, [ctypes.POINTER(CopierOptions), ctypes.c_size_t]),
    "pf_copier_open": (_RESULT, [ctypes.POINTER(CopierOptions), ctypes.POINTER(_P)]),
    "pf_copier_close": (None, [_P]),
    "pf_copier_stream_state": (_RESULT, [_P, _P, ctypes.POINTER(ctypes.c_int)]),
    "pf_copy_to_device": (_RESULT, [_P, _P, ctypes.c_uint64, _P, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]),
    "pf_status_json": (_RESULT, [ctypes.c_char_p, ctypes.POINTER(_P)]),
    "pf_datasets_json": (_RESULT, [ctypes.c_char_p, ctypes.POINTER(_P)]),
    "pf_free": (None, [_P]),
}


class FeedHandle(_P):
    """A pf_feed, closed with the last reference at the latest: a signal handler may raise when `pf_open` returns."""

    def __init__(self, library: "Library") -> None:
        super().__init__()
        self._pf_close = library.pf_close

    def close(self) -> None:
        """Closes it, and first clears it for the extension, which points to it. Does nothing if that was done. At interpreter exit too,
        when the names of modules may be gone.
        """
        opened, self.value = self.value, None
        if opened is not None:
            self._pf_close(opened)

    __del__ = close


class Library:
    """The loaded ``libpinfeed``. Its functions are attributes. Threads: any.

    Functions that may block are called without the GIL. Functions called for every batch also exist with the suffix
    ``_quick``, which keep the GIL: releasing it for a microsecond can cost a switch interval (5 ms) if another
    thread wants it. They do not block, except for the last release of a session that has ended (pf_batch_release).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        released = ctypes.CDLL(path)
        held = ctypes.PyDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            for dll, suffix in ((released, ""), (held, "_quick")):
                try:
                    function = getattr(dll, name)
                except AttributeError as error:
                    raise Error(Code.FAILED_PRECONDITION, f"{path} is not a usable libpinfeed: it has no {name}") from error
                function.restype = result
                function.argtypes = arguments
                setattr(self, name + suffix, function)
        version = int(self.pf_version())
        if version >> 16 != ABI_MAJOR:
            raise Error(
                Code.FAILED_PRECONDITION,
                f"{path} has version {version >> 16}.{(version >> 8) & 255}.{version & 255}, this package needs "
                f"{ABI_MAJOR}.x; install the two together or set PINFEED_LIBRARY",
            )
        # The library calls the log function inside one of its own functions, where Python exceptions cannot propagate.
        # Messages are queued here until that function has returned (`drain_log`).
        self._messages: Deque[Tuple[int, str]] = collections.deque()
        self._log_function = LogFunction(self._on_log)
        # Never freed: the library may log until the very end of the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._log_function))
        self.pf_set_log(self._log_function, None)

    def __getattr__(self, name: str) -> Any:
        # Reached only for names that __init__ did not set. Declares to type checkers that functions are found here.
        raise AttributeError(name)

    def _on_log(self, level: int, message: Optional[bytes], _user: Any) -> None:
        self._messages.append((level, (message or b"").decode("utf-8", "replace")))

    def drain_log(self) -> None:
        """Passes the queued messages to the logger ``pinfeed``."""
        while self._messages:
            try:
                level, message = self._messages.popleft()
            except IndexError:
                return  # another thread took it
            logger.log(logging.WARNING if level >= LOG_WARNING else logging.INFO, "%s", message)

    def check(self, result: int) -> None:
        """Raises the exception of a failed call. Must follow that call on the same thread."""
        if result:
            raise self.error(result)

    def finish(self, result: int) -> None:
        """Like `check`, and passes the call's messages to the logger, whose handlers may call the library."""
        error = self.error(result) if result else None
        self.drain_log()
        if error is not None:
            raise error

    def error(self, result: int) -> Error:
        """Returns the exception of a failed call, with the library's message."""
        message: Optional[bytes] = self.pf_last_error_quick()
        return make_error(result, (message or b"").decode("utf-8", "replace"))

    def tensor(self, get: Any, owner: Optional[Any], number: int) -> TensorInfo:
        """Returns what `get` (pf_get_tensor of a batch, pf_get_output of a feed or pf_producer_tensor of a task) says
        about tensor `number`. Raises if it fails.
        """
        tensor = TensorInfo()
        self.pf_tensor_init(tensor, ctypes.sizeof(tensor))
        self.check(get(owner, number, tensor))
        return tensor

    def ask(self, function: str, *arguments: bytes) -> Dict[str, Any]:
        """Returns what a function answers in JSON, in its last parameter. Raises if it fails."""
        text = ctypes.c_void_p()
        self.finish(getattr(self, function)(*arguments, text))
        answer: Dict[str, Any] = json.loads(self.take_bytes(text, -1))
        return answer

    def take_bytes(self, pointer: ctypes.c_void_p, size: int) -> bytes:
        """Returns the bytes at a pointer, up to a NUL if `size` is -1, and frees them with pf_free."""
        try:
            return ctypes.string_at(pointer.value or 0, size)
        finally:
            self.pf_free(pointer)


def _default_path() -> Optional[str]:
    for folder in places.library_folders():
        for path in sorted(folder.glob("libpinfeed.so*")):
            if path.is_file():
                return str(path)
    return ctypes.util.find_library("pinfeed")  # runs ldconfig, or a compiler: tens of milliseconds


_loaded: List[Library] = []
_loading: threading.Lock
add_fork_lock(sys.modules[__name__], "_loading")


def load() -> Library:
    """Returns the process's library, loading it at the first call. Raises NotFoundError with the places searched."""
    with _loading:  # one object only: it owns the process-wide log function
        if not _loaded:
            _loaded.append(_find())
        return _loaded[0]


def _find() -> Library:
    chosen = os.environ.get("PINFEED_LIBRARY")
    path = chosen or _default_path()
    if not path:
        raise NotFoundError(
            f"libpinfeed.so was not found in {', '.join(map(str, places.library_folders()))} or on the system's library path: "
            f"{_how_to_get_it()}, or set PINFEED_LIBRARY to the file",
        )
    try:
        return Library(path)
    except OSError as error:
        set_by = "PINFEED_LIBRARY names it; unset that, or " if chosen else ""
        raise NotFoundError(f"loading libpinfeed from {path} failed: {error} ({set_by}{_how_to_get_it()})") from error


def _how_to_get_it() -> str:
    tree = places.source_tree()
    return f"run `make build` in {tree}" if tree is not None else "install pinfeed's wheel or its Debian packages"
