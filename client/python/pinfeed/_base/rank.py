# SPDX-License-Identifier: Apache-2.0
"""This process's share of the data: from arguments, or else from the launcher."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple, Optional

from .checks import to_integer
from .errors import invalid


class Rank(NamedTuple):
    rank: int
    world_size: int
    source: str  # "arguments", "torch.distributed", "RANK/WORLD_SIZE", "SLURM_PROCID/SLURM_NTASKS", "LOCAL_RANK/WORLD_SIZE", "share" or "default"


# Sources that never change during the life of a feed. Other sources only tell what was known when it was opened.
_FIXED_SOURCES = ("arguments", "share", "torch.distributed")
# Variables that tell of several processes, and what each needs beside it. A Slurm allocation has SLURM_NTASKS for one process too.
_NEEDED = (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK"), ("SLURM_PROCID", "SLURM_NTASKS"))


def _from_environment(rank_name: str, world_name: str) -> Optional[Rank]:
    rank, world = os.environ.get(rank_name), os.environ.get(world_name)
    if not rank or not world:
        return None
    try:
        return Rank(int(rank), int(world), f"{rank_name}/{world_name}")
    except ValueError:
        raise invalid(f"rank: the environment has {rank_name}={rank!r} and {world_name}={world!r}, which are not numbers") from None


def _refuse_half_a_rank() -> None:
    """Raises if a variable is set without its other half: as 0 of 1, every process would get all samples."""
    for name, missing in _NEEDED:
        value = os.environ.get(name)
        if value and not os.environ.get(missing) and (name, value) != ("WORLD_SIZE", "1"):
            raise invalid(
                f"rank: the environment has {name}={value!r} and no {missing}: set both, as a launcher does, or neither, or give rank and world_size, or open the feed once torch.distributed is initialised",
            )


def later_rank(known: Rank) -> Optional[Rank]:
    """Returns another rank found since, because the process group was initialised or the launcher's variables were set.
    None if it is unchanged.
    """
    if known.source in _FIXED_SOURCES:
        return None
    found = find_rank(None, None, False)
    return None if found.source == "default" or found[:2] == known[:2] else found


def _number(value: int) -> int:
    """Returns an int in place of NumPy's and the like. What is no whole number stays: it is refused with the other arguments."""
    number = to_integer(value)
    return value if number is None else number


def find_rank(rank: Optional[int], world_size: Optional[int], shared: bool) -> Rank:
    """Returns the rank from the arguments, else from an initialised ``torch.distributed``, else from torchrun's
    variables, else from Slurm's (for a job with more than one task), else from Lightning's on its first node, else 0 of
    1. A shared feed is one stream for its whole group, so only arguments split it. InvalidArgumentError if there is only
    half of a source.
    """
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            missing = "rank" if rank is None else "world_size"
            raise invalid(f"rank, world_size: give both or neither; {missing} is None")
        return Rank(_number(rank), _number(world_size), "arguments")
    if shared:
        return Rank(0, 1, "share")
    distributed = sys.modules.get("torch.distributed")  # never imported here: a program that uses it has imported it
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    torchrun = _from_environment("RANK", "WORLD_SIZE")
    if torchrun is not None:
        return torchrun
    slurm = _from_environment("SLURM_PROCID", "SLURM_NTASKS")
    if slurm is not None and slurm.world_size > 1:
        return slurm
    if os.environ.get("NODE_RANK") == "0":  # Lightning's. Those of other nodes do not tell how many ranks a node has.
        lightning = _from_environment("LOCAL_RANK", "WORLD_SIZE")
        if lightning is not None:
            return lightning
    _refuse_half_a_rank()
    return Rank(0, 1, "default")
