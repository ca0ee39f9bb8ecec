# SPDX-License-Identifier: Apache-2.0
"""The arguments that torch's DataLoader has, as it checks them.

In: what the caller gave. Out: an error with torch's text, or nothing.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import sys
import warnings
from typing import Any

from .._base.checks import UINT32_MAX, shown, to_integer, to_number
from .._base.errors import Code, Error, invalid
from .._worker.fetch import Kind

DEFAULT_PREFETCH = 2  # batches per worker
_ITERABLE = "DataLoader with IterableDataset: expected unspecified"


def check_workers(workers: int, prefetch_factor: Any, persistent_workers: Any, timeout: Any, seeding: Any) -> None:
    """Raises InvalidArgumentError. `timeout`: seconds; 0: none."""
    seconds = to_number(timeout)
    if seconds is None or seconds < 0:
        raise invalid(f"timeout option should be non-negative; it is {shown(timeout)}")
    if seconds > 0 and workers == 0:
        raise invalid("timeout option needs num_workers > 0: in the calling thread nothing can time out")
    if workers == 0 and prefetch_factor is not None:
        raise invalid(
            "prefetch_factor option could only be specified in multiprocessing. Let num_workers > 0 to enable multiprocessing, otherwise set "
            "prefetch_factor to None."
        )
    factor = 1 if prefetch_factor is None else to_integer(prefetch_factor)
    if factor is None or factor < 1:
        raise invalid(f"prefetch_factor option should be at least 1; it is {shown(prefetch_factor)}")
    if persistent_workers and workers == 0:
        raise invalid("persistent_workers option needs num_workers > 0")
    if seeding not in ("sample", "worker", None):
        raise invalid(f'seeding: {shown(seeding)} is not "sample", "worker" or None')


def number_of_workers(num_workers: Any) -> int:
    """Returns it as an int. Raises InvalidArgumentError."""
    workers = to_integer(num_workers)
    if workers is None or not 0 <= workers <= UINT32_MAX:
        raise invalid(f"num_workers option should be non-negative; use num_workers=0 to disable multiprocessing. It is {shown(num_workers)}, not an int of at least 0.")
    return workers


def check_order(kind: Kind, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: Any) -> None:
    """Raises InvalidArgumentError for options that exclude each other."""
    if kind is Kind.ITERABLE:
        if shuffle not in (False, None):
            raise invalid(f"{_ITERABLE} shuffle option, but got shuffle={shuffle}")
        if sampler is not None:
            raise invalid(f"{_ITERABLE} sampler option, but got sampler={sampler}")
        if batch_sampler is not None:
            raise invalid(f"{_ITERABLE} batch_sampler option, but got batch_sampler={batch_sampler}")
    if sampler is not None and shuffle:
        raise invalid("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise invalid("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
    elif batch_size is None and drop_last:
        raise invalid("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")


def context_of(context: Any, workers: int) -> Any:
    """Returns the context that a value or a start method's name says; None: the default. Raises InvalidArgumentError or TypeError."""
    if context is None:
        return None
    if not workers:
        raise invalid(f"multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got num_workers={workers}")
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise invalid(
                f"multiprocessing_context option should specify a valid start method in {methods!r}, but got multiprocessing_context={context!r}"
            )
        context = multiprocessing.get_context(context)
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, but got "
            f"multiprocessing_context={context}"
        )
    process = getattr(context, "Process", None)
    if not (isinstance(process, type) and issubclass(process, multiprocessing.process.BaseProcess)):
        raise TypeError(
            f"multiprocessing_context: the Process of {type(context).__name__} is no process of multiprocessing, such as a thread. Workers here are processes: "
            "give num_workers=0, or a context of multiprocessing.get_context()"
        )
    return context


def refuse_greenlets(workers: int) -> None:
    """Raises Error where gevent has replaced what looks after workers: they could not read their pipes, and the trainer would wait for ever."""
    monkey: Any = sys.modules.get("gevent.monkey")
    if workers and monkey is not None and (monkey.is_module_patched("threading") or monkey.is_module_patched("select")):
        raise Error(
            Code.FAILED_PRECONDITION,
            f"DataLoader: num_workers={workers}: gevent has replaced threads or select in this process (monkey.patch_all), with which worker processes and their pipes "
            "do not work, those of torch's loader neither. Give num_workers=0, or load in a process that is not patched. pinfeed.open works in both",
        )


# What splits torch's loaders over ranks, and leaves other classes as they are.
_SPLITTERS = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning")
_told_of_ranks = False


def warn_of_equal_ranks(loader: Any, index_sampler: Any) -> None:
    """Warns, once a process, if each of several ranks gets all samples of a loader, and a framework is there that splits torch's loaders over them."""
    global _told_of_ranks
    distributed: Any = sys.modules.get("torch.distributed")
    accelerate = getattr(getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None), "_shared_state", None)  # not empty: there is an Accelerator
    frameworks = ["accelerate"] if accelerate else [name for name in _SPLITTERS if name in sys.modules]
    if _told_of_ranks or not frameworks or type(loader).__module__.startswith("accelerate."):
        return
    if distributed is None or not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    sampler = index_sampler.sampler if type(index_sampler).__name__ == "BatchSampler" else index_sampler
    if type(sampler).__name__ in ("RandomSampler", "SequentialSampler"):
        _told_of_ranks = True
        warnings.warn(
            f"each of the {distributed.get_world_size()} ranks gets all samples of this DataLoader: {frameworks[0]} splits torch's loaders over the ranks, and leaves this one "
            "as it is. To split it, give sampler=torch.utils.data.DistributedSampler(dataset)",
            stacklevel=4,
        )


def warn_of_many_workers(workers: int) -> None:
    """Warns the caller of who calls this, if there are more workers than CPUs."""
    cpus = len(os.sched_getaffinity(0))
    if workers > cpus:
        warnings.warn(
            f"This DataLoader will create {workers} worker processes in total. Our suggested max number of worker in current system is "
            f"{cpus}, which is smaller than what this DataLoader is going to create. Please be aware that excessive worker creation might get "
            "DataLoader running slow or even freeze, lower the worker number to avoid potential slowness/freeze if necessary.",
            stacklevel=3,
        )
