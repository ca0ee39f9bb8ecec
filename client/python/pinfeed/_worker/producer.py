# SPDX-License-Identifier: Apache-2.0
"""Producers: processes of the feed's user that fill its batches.

In: an invitation from `Connection.invite_producer`, in another process. Out: tasks, each with the memory to fill.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
from typing import Any, Callable, Dict, Optional

from .._base import abi
from .._base.errors import Code, Error

# The length of one wait inside the library. Between waits, Python handles signals.
_SLICE_MS = 50

_SYS_PIDFD_OPEN = 434  # on every architecture


class Task:
    """A batch to fill, from `Producer.next` until `Producer.done`. Threads: one."""

    def __init__(self, info: abi.TaskInfo, memory: memoryview) -> None:
        self._info = info
        self.batch_index: int = info.batch_index  # 0-based within the epoch
        self.memory = memory  # writable bytes of the samples, one behind the other. Released by `Producer.done`


class Producer:
    """One process's attachment to a feed whose batches it helps to fill. Owns the library's handle and, by that, the
    mapping of the feed's memory. Threads: one at a time. A forked child cannot use it. Errors: `pinfeed.Error`;
    UNAVAILABLE if the feed or the daemon is gone, UNAUTHENTICATED if the invitation is void.
    Invariant: an exception, even Ctrl-C in `next`, loses no task.
    """

    def __init__(self, invitation: bytes) -> None:
        self._library = library = abi.load()
        self._close = library.pf_producer_close
        self._handle = ctypes.c_void_p()  # NULL: closed
        self._info = abi.TaskInfo()  # the library's task while no `Task` stands for it; its number is then not 0
        library.pf_task_init(self._info, ctypes.sizeof(self._info))
        self._tasks: Dict[int, Task] = {}  # not done, by number
        result = library.pf_producer_attach(invitation, len(invitation), self._handle)
        library.finish(result)

    def next(self) -> Optional[Task]:
        """Returns the next batch to fill, once there is one. None: the feed is closed, or the daemon ended."""
        info = self._info
        while not info.task:
            self._check_open()
            result: int = self._library.pf_producer_next(self._handle, _SLICE_MS, info)
            if result == Code.OUT_OF_RANGE:
                return None
            if result != Code.DEADLINE_EXCEEDED:
                self._library.check(result)
        task = self._make_task(info)
        self._tasks[info.task] = task
        info.task = 0
        return task

    def _make_task(self, info: abi.TaskInfo) -> Task:
        if info.tensor_count != 1:
            raise Error(Code.FAILED_PRECONDITION, f"the feed's batches have {info.tensor_count} tensors to fill, where a Producer fills one")
        copy = abi.TaskInfo.from_buffer_copy(info)
        tensor = self._library.tensor(functools.partial(self._library.pf_producer_tensor, self._handle), copy, 0)
        return Task(copy, memoryview((ctypes.c_ubyte * tensor.bytes).from_address(tensor.data)).cast("B"))

    def memory(self, task: Task, size: int) -> Optional[int]:
        """Returns a descriptor of `size` bytes of memory for a task's batch that does not fit into `Task.memory`. The
        daemon charges it to the user until no process has it. At most once a task. Raises ResourceExhaustedError, with
        the numbers, if the daemon has none to give. None: the feed is closed, or the daemon ended.
        """
        self._check_open()
        fd = ctypes.c_int()
        result = self._library.pf_producer_memory(self._handle, task._info, size, fd)
        if result == Code.OUT_OF_RANGE:
            return None
        self._library.check(result)
        return fd.value

    def done(self, task: Task, error: Optional[str] = None) -> None:
        """Tells the daemon that the task's memory is filled, or, with `error`, that it cannot be: the feed then fails
        with the start of this text. Nothing may write to the memory from now on. Does nothing if the feed is closed
        or the daemon ended, as `next` tells.
        """
        text = None if error is None else error.encode("utf-8", "replace")
        self._end(task, self._library.pf_producer_done, text)

    def end_of_data(self, task: Task) -> None:
        """Tells the daemon that there is no such batch, since the data end before it: nobody else gets it. Otherwise like
        `done`.
        """
        self._end(task, self._library.pf_producer_end_of_data)

    def _end(self, task: Task, tell: Callable[..., int], *arguments: Any) -> None:
        self._check_open()
        _release(task)
        result = tell(self._handle, task._info, *arguments)
        if result != Code.OUT_OF_RANGE:
            self._library.check(result)
        self._tasks.pop(task._info.task, None)

    def close(self) -> None:
        """Unmaps the feed's memory. Tasks that are not done go to other producers. May be called twice."""
        while self._tasks:
            _release(self._tasks.popitem()[1])
        handle, self._handle = self._handle, ctypes.c_void_p()
        self._info.task = 0
        self._close(handle)

    def _check_open(self) -> None:
        if not self._handle:
            raise Error(Code.FAILED_PRECONDITION, "this producer is closed")

    def __del__(self) -> None:
        if "_tasks" in self.__dict__:  # otherwise the constructor failed early
            self.close()


def _release(task: Task) -> None:
    """Makes the task's memory unusable, unless something else, such as an array, still refers to it."""
    with contextlib.suppress(BufferError):
        task.memory.release()


def end_with_process(pid: int) -> None:
    """Ends this process, with exit code 1 and without any cleaning up, as soon as another process has ended. Raises
    ProcessLookupError if there is no such process.
    """
    library = abi.load()
    pidfd = pidfd_open(pid)
    result = library.pf_end_with_process(pidfd)
    if result:
        os.close(pidfd)
        raise library.error(result)


def pidfd_open(pid: int) -> int:
    """`os.pidfd_open`, also before Python 3.9."""
    try:
        if hasattr(os, "pidfd_open"):  # since Python 3.9
            return os.pidfd_open(pid)
        libc = ctypes.CDLL(None, use_errno=True)
        pidfd = int(libc.syscall(_SYS_PIDFD_OPEN, pid, 0))
        if pidfd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return pidfd
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise
        raise OSError(
            error.errno,
            f"pidfd_open of process {pid}: {error.strerror}: a DataLoader with workers needs this call, and the kernel (5.3 or later) or a sandbox (seccomp, gVisor) "
            "refuses it. `pinfeed doctor` says what is missing; num_workers=0 does not need it",
        ) from error
