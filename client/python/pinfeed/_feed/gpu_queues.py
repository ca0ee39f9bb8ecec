# SPDX-License-Identifier: Apache-2.0
"""The hardware queues between this process and its GPUs.

The driver spreads the streams of a process over a few queues (8, unless the environment says otherwise), and work waits for
whatever was queued before it in the same one, of any stream and priority. nvJPEG waits for its own work in each call. So beside
a trainer that is 25 ms ahead of its GPU, an H200 decodes 2,400 to 3,800 images a second with 8 queues, and 23,100 to 30,800
with 32 (tests/gpu/decode_images.cc). 32 is the most; they take 7 MiB of the GPU's memory more. The driver reads the number once, when CUDA is
initialised in the process: CUDA Programming Guide, "CUDA Environment Variables".

In: the environment and this process. Out: a variable of the environment, which children inherit; a warning.
"""

from __future__ import annotations

import os
import warnings

_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST = "32"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED

_too_late = False


def _cuda_is_initialised() -> bool:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            if "/libcuda.so" not in maps.read():
                return False
    except OSError:  # no /proc: not known
        return False
    import ctypes  # takes longer than the rest of `import pinfeed`

    count = ctypes.c_int()
    return bool(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED)


def ask_for_all() -> None:
    """Asks the driver for all queues, unless the user has chosen a number. Call it before CUDA is initialised."""
    global _too_late
    if _VARIABLE in os.environ:
        return
    _too_late = _cuda_is_initialised()
    os.environ[_VARIABLE] = _MOST


def warn_of_few() -> None:
    """Warns, for a feed whose images the GPU decodes, if the driver has not been asked for all queues in time."""
    chosen = os.environ.get(_VARIABLE)
    if not _too_late and chosen == _MOST:
        return
    why = "CUDA had been initialised when pinfeed was imported" if _too_late else f"{_VARIABLE} is {chosen}"
    warnings.warn(
        f"decode: images may be decoded several times slower while the GPU has much work queued: {why}, so streams wait for one another in "
        f"few hardware queues; import pinfeed before CUDA is used, or start the program with {_VARIABLE}={_MOST}",
        RuntimeWarning,
        stacklevel=4,
    )
