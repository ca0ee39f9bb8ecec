# SPDX-License-Identifier: Apache-2.0
"""Where the images of a feed are decoded.

In: the argument of `open`, and the state that a feed resumes. Out: the spec's part for the daemon, and a refusal to
resume with pixels of another decoder.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Optional, Tuple

from .._base.checks import Checks, shown
from .._base.errors import Code, Error
from .spec import Spec

_WHOLE_SHARE = 1000
_ACCEPTED = '"cpu", "gpu", "auto", or "auto:" with the share of the GPU per mille, such as "auto:787"'


def _parse(text: Any) -> Optional[Tuple[str, int]]:
    """Returns mode and share; None if it is neither."""
    if not isinstance(text, str):
        return None
    found = re.fullmatch(r"(cpu|gpu|auto)(?::([0-9]{1,4}))?", text, re.ASCII)
    if found is None or (found[2] and (found[1] != "auto" or not 1 <= int(found[2]) <= _WHOLE_SHARE)):
        return None
    return found[1], int(found[2] or 0)


def _remembered(state: Mapping[str, Any]) -> str:
    """Returns the `Feed.decode` of the feed that a state is of."""
    return str(state.get("decode", "cpu"))


def add_decode(spec: Spec, checks: Checks, decode: Any, state: Any, any_decoder: Any, ordinal: int, zero_copy: Optional[bool]) -> None:
    """Adds who decodes. `state` is what the feed resumes, or None."""
    known = _remembered(state) if isinstance(state, Mapping) else None
    if decode is None or (decode == "auto" and known is not None):
        decode = known or "cpu"
    parsed = _parse(decode)
    if parsed is None:
        checks.refuse("decode", decode, f"{_ACCEPTED}, or None for what the state has, else the CPU")
        return
    if known is not None and decode != known and not checks.flag("any_decoder", any_decoder):
        checks.add(
            "decode",
            f"{shown(decode)} is not what the state was taken with, {shown(known)}: omit decode to go on with that, or pass any_decoder=True "
            "to accept that the pixels of the other decoder differ a little",
        )
    mode, share = parsed
    if mode == "cpu":
        return
    if (mode == "gpu" or share) and ordinal < 0:
        instead = "" if known is None else ', as the state was taken with it. To go on without one, pass decode="cpu" and any_decoder=True'
        checks.add("decode", f'"{decode}" needs a device that gets the batches, such as device="cuda"{instead}')
    if mode == "gpu" and zero_copy:
        checks.add("zero_copy", "True is not possible with decode=\"gpu\": the slots have encoded images; use None")
    spec["decode"] = f"DECODE_{mode.upper()}"
    if share:
        spec["gpu_share"] = share


def describe_decoder(decode: str, decoder: str) -> Dict[str, str]:
    """Returns what a feed's state has of it."""
    return {} if decode == "cpu" else {"decode": decode, "decoder": decoder}


def check_decoder(state: Mapping[str, Any], decode: str, decoder: str) -> None:
    """Raises unless a state was taken with this `Feed.decode` and decoder."""
    before = _remembered(state), str(state.get("decoder", ""))
    if before == (decode, decoder):
        return
    now, then = (text + (f" by {kind}" if kind else "") for text, kind in ((decode, decoder), before))
    raise Error(
        Code.FAILED_PRECONDITION,
        f"decode: the state was taken with images decoded by {then!r}, and this feed has {now!r}, whose pixels differ a little: open it with "
        "state=... and without decode on the same kind of GPU, or with any_decoder=True to accept the difference",
    )
