# SPDX-License-Identifier: Apache-2.0
"""Errors of calls that need a GPU which cannot be used.

In: what was called, and the reason. Out: an error that says what to do.
"""

from __future__ import annotations

from typing import Optional

from .errors import Error, UnavailableError, invalid, make_error
from .optional_torch import torch_or_none

_INSTALL = "; install NVIDIA's driver, or start the container with its GPUs (--gpus all)"
_LOOK = "; nvidia-smi shows whether the driver works, and CUDA_VISIBLE_DEVICES may hide GPUs"
_FIELD = "device: "


def torch_fault(ordinal: int) -> Optional[Error]:
    """Returns why PyTorch cannot use GPU `ordinal`; None if it can. Initialises the driver: a process that is forked
    afterwards cannot use CUDA.
    """
    torch = torch_or_none()
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if ordinal < count:
            return None
        return invalid(f"there is no GPU {ordinal}; this process sees {count} (CUDA_VISIBLE_DEVICES may hide some)")
    if not torch.version.cuda:
        return UnavailableError(f"PyTorch {torch.__version__} is built without CUDA; install a build with it")
    return UnavailableError(f"PyTorch {torch.__version__} finds no usable GPU (torch.cuda.is_available() is False){_LOOK}")


def unusable(call: str, reason: Error, instead: str) -> Error:
    """Returns the error of `call`, for which no GPU can be used. `instead`: what works without one."""
    text = str(reason)
    text = text[len(_FIELD) :] if text.startswith(_FIELD) else text
    advice = _INSTALL if "libcuda" in text else _LOOK if "NO_DEVICE" in text else ""
    return make_error(reason.code, f"{call}: {text}{advice}. {instead}")
