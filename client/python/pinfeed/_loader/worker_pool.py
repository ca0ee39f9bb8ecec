# SPDX-License-Identifier: Apache-2.0
"""The worker processes of a loader.

In: a job and how processes are started. Out: processes with a pipe to each; what they send is read by others.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import errno
import multiprocessing
import multiprocessing.util  # noqa: F401 - registers its own clean-up first, so that it runs after the one below
import operator
import os
import resource
import select
import signal
import time
import weakref
from multiprocessing import reduction
from multiprocessing.connection import wait
from typing import Any, Callable, Counter, Dict, Iterator, List, Optional, Tuple

from .._base import abi
from .._base.abi import logger
from .._base.errors import DeadlineExceededError, ResourceExhaustedError
from .._worker.index_log import IndexLog
from .._worker.lanes import Lanes, LaneState
from .._worker.producer import pidfd_open
from .._worker.worker import Job, process_start_time, process_stat, worker_main

# How long workers may take to end: what torch's may. A worker in the middle of a sample finishes it.
_EXIT_PATIENCE_S = 5.0
_KILL_PATIENCE_S = 1.0
_SLICE_S, _POLL_S = 1.0, 0.1  # of waiting
_PATIENCE_S = 30.0  # before a warning

MAX_DEATHS = 3  # of a worker and those in its place, without a batch in between

_pools: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()
# The pipes and processes of each pool. Otherwise, the garbage collector could call their finalisers before the pool's, which would use and close
# descriptors that are others' by then.
_kept: Dict[int, Tuple[List[Any], List[Any]]] = {}


def this_process() -> Tuple[int, int]:
    """Returns the process id and the start time."""
    return os.getpid(), process_start_time(os.getpid())


class WorkerPool:
    """Worker processes, the trainer's ends of their pipes, and a pidfd of each: `processes[n]`, `pipes[n]` and `ends[n]`
    belong to worker n. Neither a pipe nor a sentinel of multiprocessing tells the end of a worker for sure: a child that
    it forked may keep the other end open.

    Owns all of them. Threads: one at a time. In a forked child it is void, and its pipes are closed.
    """

    def __init__(self, context: Any, job: Job) -> None:
        abi.load()  # which workers need first of all: an error of theirs would not reach the trainer
        self._context = context if context is not None else multiprocessing
        self._job = job
        self._owner = os.getpid()
        # Of the latest epoch.
        self._seed, self._first = 0, 0
        self._lanes: Optional[Lanes] = None
        self._log: Optional[IndexLog] = None  # None: there was none yet
        self._starts: Dict[int, bytes] = {}  # of the next epoch's lanes, by worker, behind the end of one
        self._ending = 0  # how many of them were told, in order
        self.pipes: List[Any] = [None] * job.num_workers
        self.processes: List[Any] = [None] * job.num_workers
        self.ends = [-1] * job.num_workers  # -1: there is no process
        self._begun: List[Optional[Tuple[Any, ...]]] = [None] * job.num_workers  # messages whose descriptor is still to come
        self.stopped = False
        self.generation = 0  # counts epochs and feeds, to tell what a message is about
        _kept[id(self)] = self.pipes, self.processes
        _pools.add(self)
        try:
            for number in range(job.num_workers):
                self._start(number)
        except BaseException:
            self.stop()
            raise

    def _start(self, number: int) -> None:
        try:
            self._start_process(number)
        except OSError as error:
            what = f"start DataLoader worker {number}: {error.strerror}"
            if error.errno in (errno.EMFILE, errno.ENFILE):
                most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                why = f"each takes some descriptors, and this process may have {most} (ulimit -n): raise that, close files, or give fewer workers"
            elif error.errno in (errno.EAGAIN, errno.ENOMEM):
                why = "the system refuses another process, for lack of memory or by a limit (ulimit -u, pids.max of the container): raise that, or give fewer workers"
            else:
                raise
            raise ResourceExhaustedError(f"{what}: {why}") from error

    @property
    def forks(self) -> bool:
        """Whether workers begin as copies of the trainer."""
        return bool(self.processes[0]._popen.method == "fork")  # a context need not say it

    def _start_process(self, number: int) -> None:
        ours, theirs = self._context.Pipe()
        self.pipes[number] = ours  # from here on, a forked child closes it
        try:
            process = self._context.Process(
                target=worker_main, args=(theirs, number, self._job), name=f"pinfeed-worker-{number}", daemon=True
            )
            process.start()
            self.processes[number] = process
            self.ends[number] = _end_of(process)
        finally:
            theirs.close()

    def begin_epoch(self, seed: int, first: int, lanes: Optional[Lanes], log: IndexLog) -> None:
        """Gives all workers, also those that start later, the epoch's seed and index log. `lanes` has what is known of
        each worker's lane. The caller keeps it up to date.
        """
        continues = self._log is None  # otherwise they stand where the epoch begins
        self.generation += 1
        self._starts, self._ending = {}, 0
        self._seed, self._first, self._lanes, self._log = seed, first, lanes, log
        for number in range(len(self.pipes)):
            if self._await_room(number):
                self._send_epoch(number, lanes.place(number) if lanes is not None and continues else None)
            else:  # it reads no messages: a send would wait for it
                self._kill(number)

    def _send_epoch(self, number: int, state: LaneState) -> None:
        if self._log is None:
            return
        self.send(number, "epoch", self._seed, self._first, state)
        with self._replaced_if_untold(number):
            reduction.send_handle(self.pipes[number], self._log.fileno(), self.processes[number].pid)

    def end_epoch(self, log: IndexLog) -> None:
        """Tells workers with lanes that the epoch of this log is over, if it is their latest. They finish what they have been dealt of it: the log stays
        open until the next one begins.
        """
        if self._log is not log:
            return
        while self._ending < len(self.pipes):  # a signal handler may interrupt this: the next call tells the others
            self.send(self._ending, "end", self.generation)
            self._ending += 1

    def starts(self, timeout: float) -> List[bytes]:
        """Waits until all workers have ended the epoch. Returns the state in which each begins the next one, as `Lane.leave` does. Raises
        DeadlineExceededError after `timeout` seconds (0: never); it may be called again, also after what a signal handler raised. Ends all
        workers if others cannot take the place of those that died or may have been interrupted.
        """
        if self._log is not None:
            self.end_epoch(self._log)  # if an interrupted iterator has not
        deaths: List[str] = []
        deaths_of: "Counter[int]" = collections.Counter()  # by worker: something may kill all of them at once
        begun = told = time.monotonic()
        while missing := [number for number in range(len(self.pipes)) if number not in self._starts]:
            ready = wait([*(self.pipes[number] for number in missing), *(self.ends[number] for number in missing)], _SLICE_S)
            try:
                # What one that has ended sent before is not read: another one sends it too, and a part may have been read.
                dead = [number for number in missing if self.ends[number] in ready or (self.pipes[number] in ready and not self._receive_start(number))]
                for number in dead:
                    deaths.append(self.describe_death(number))
                    deaths_of[number] += 1
                    if deaths_of[number] >= MAX_DEATHS:
                        raise worker_deaths(deaths)
                    if self._lanes is not None:
                        self._lanes.check(number, deaths[-1])
                    logger.warning("%s; another one takes its place", deaths[-1])
                    self.replace(number)
            except BaseException as error:
                missing = [number for number in missing if number not in self._starts]
                if isinstance(error, (OSError, RuntimeError)) or -1 in self.ends or not (self._lanes is None or all(map(self._lanes.is_known, missing))):
                    self.stop()
                else:  # a signal handler's, which may have cost a worker's message: the next call has others in their places
                    for number in missing:
                        self._kill(number)
                    for number in missing:
                        self.processes[number].join(_KILL_PATIENCE_S)
                raise
            now = time.monotonic()
            if timeout and now - begun >= timeout:
                raise DeadlineExceededError(f"DataLoader timed out after {timeout:g} seconds: {_unfinished(missing)}")
            if now - told >= _PATIENCE_S:
                told = now
                logger.warning("the next epoch waits: %s", _unfinished(missing))
        return [self._starts[number] for number in range(len(self.pipes))]

    def _receive_start(self, number: int) -> bool:
        """Receives a message of a worker that was told to end the epoch. Returns False if the worker has died."""
        try:
            message = self.receive(number)
        except (EOFError, OSError):
            return False
        if message is not None and message[:2] == ("ended", self.generation):
            self._starts[number] = message[2]
        elif message is not None and message[0] == "one-off":  # of the epoch that is over
            os.close(message[-1])
        return True

    def _has_room(self, number: int) -> bool:
        """Whether a worker has read most of what it was sent, or has ended."""
        poll = select.poll()
        with contextlib.suppress(OSError):
            poll.register(self.pipes[number], select.POLLOUT)
        return bool(poll.poll(0))

    def _await_room(self, number: int) -> bool:
        """Waits for a worker that has much to read, since a later send would wait for it without a word. Returns False if it is stopped, or has ended and
        left its pipe to a child.
        """
        told = time.monotonic()
        while not self._has_room(number):
            if process_stat(self.processes[number].pid)[:1] == [b"T"] or wait([self.ends[number]], _POLL_S):
                return False
            if time.monotonic() - told >= _PATIENCE_S:
                told = time.monotonic()
                logger.warning("the next epoch waits: %s", _unfinished([number]))
        return True

    def send(self, number: int, *message: Any) -> None:
        """Sends a message. A worker that has ended gets none; its pidfd tells that it ended."""
        with self._replaced_if_untold(number):
            self.pipes[number].send(message)

    @contextlib.contextmanager
    def _replaced_if_untold(self, number: int) -> Iterator[None]:
        """Kills a worker that lives and cannot be sent a message, as where the system lacks memory for it: it would wait for ever."""
        try:
            yield
        except OSError as error:
            if error.errno not in (None, errno.EPIPE, errno.ECONNRESET):  # None: the pipe is closed here. Otherwise the worker has ended
                self._kill(number)

    def receive(self, number: int) -> Optional[Tuple[Any, ...]]:
        """Returns a message of a worker whose pipe is ready. That of a one-off batch ends with its descriptor, which the
        caller owns. None: the descriptor is still to come, from a worker that may have been stopped in between; call this
        when the pipe is ready again. Raises EOFError or OSError if the worker ended before, ResourceExhaustedError if this process
        has no room for the descriptor.
        """
        pipe = self.pipes[number]
        begun = self._begun[number]
        if begun is None:
            message: Tuple[Any, ...] = pipe.recv()
            if message[0] != "one-off":
                return message
            self._begun[number] = message
            return None
        try:
            descriptor = int(reduction.recv_handle(pipe))
        except (OSError, RuntimeError) as error:  # RuntimeError: the kernel has dropped the descriptor
            if isinstance(error, OSError) and error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise ResourceExhaustedError(
                f"batch {begun[2]} is in memory of its own, which takes a descriptor, and this process has none left (ulimit -n: "
                f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]}): raise that, close files, or give max_batch_bytes, with which batches fit into slots",
            ) from error
        self._begun[number] = None
        return (*begun, descriptor)

    def replace(self, number: int) -> None:
        """Starts another process in place of one that ended."""
        self.processes[number].join()
        self._close(number)
        self._start(number)
        self._send_epoch(number, None if self._lanes is None else self._lanes.place(number))
        if number < self._ending:
            self.send(number, "end", self.generation)

    def describe_death(self, number: int) -> str:
        """Says how a worker ended whose pipe is closed or whose pidfd is ready."""
        process = self.processes[number]
        self._join_one(number, time.monotonic() + _EXIT_PATIENCE_S)  # a spawned one that failed to start takes its time to end
        if process.exitcode is None and not self._has_ended(number):  # it closed its pipe, and lives
            process.kill()
            process.join()
            return f"DataLoader worker (pid {process.pid}) closed its pipe to the trainer, had not ended {_EXIT_PATIENCE_S:g} s later, and was ended"
        code = process.exitcode
        if code is None:  # another part of the program has reaped it
            return f"DataLoader worker (pid {process.pid}) ended; its exit code is not known, because this program ignores SIGCHLD or waits for all children"
        if code < 0:
            return f"DataLoader worker (pid {process.pid}) is killed by signal: {signal.strsignal(-code) or -code}"
        return f"DataLoader worker (pid {process.pid}) exited unexpectedly with exit code {code}"

    def deaths(self) -> List[str]:
        """Says how each worker ended that has ended."""
        return [self.describe_death(number) for number, process in enumerate(self.processes) if self._has_ended(number) or not process.is_alive()]

    def stop(self) -> None:
        """Ends the workers and waits for them. Terminates those that take too long."""
        if self.stopped or os.getpid() != self._owner:
            return
        try:
            self.stopped = True
            for number, process in enumerate(self.processes):
                if process is not None and self._has_room(number):
                    self.send(number, "exit")
            self._join(_EXIT_PATIENCE_S, None)
            self._join(_KILL_PATIENCE_S, operator.methodcaller("terminate"))
            self._join(_KILL_PATIENCE_S, operator.methodcaller("kill"))
        except BaseException:  # a signal handler's: nobody waits for them again, and the interpreter's end would, for one that is stopped
            self._join(_KILL_PATIENCE_S, operator.methodcaller("kill"))
            raise
        finally:
            self._close_all()

    def terminate(self) -> None:
        """Ends the workers at once, when this process ends."""
        if self.stopped or os.getpid() != self._owner:
            return
        self.stopped = True
        self._join(_KILL_PATIENCE_S, operator.methodcaller("terminate"))
        self._join(_KILL_PATIENCE_S, operator.methodcaller("kill"))

    def _join(self, patience_s: float, end: Optional[Callable[[Any], None]]) -> None:
        """Waits for the workers that still live, after having called `end` with each."""
        alive = [number for number, process in enumerate(self.processes) if process is not None and process.is_alive()]
        if end is not None:
            for number in alive:
                if not self._has_ended(number):
                    end(self.processes[number])
        until = time.monotonic() + patience_s
        for number in alive:
            self._join_one(number, until)

    def _has_ended(self, number: int) -> bool:
        """Whether a worker has ended for sure. multiprocessing never hears of it where SIGCHLD is ignored, and its process id may be another's by then."""
        return self.ends[number] >= 0 and bool(wait([self.ends[number]], 0))

    def _kill(self, number: int) -> None:
        if not self._has_ended(number):
            self.processes[number].kill()

    def _join_one(self, number: int, until: float) -> None:
        process, end = self.processes[number], self.ends[number]
        if end >= 0:
            wait([end], max(0.0, until - time.monotonic()))
        if process.is_alive():  # the fork server tells of it a little later
            process.join(max(0.0, until - time.monotonic()))

    def _close(self, number: int) -> None:
        if self.pipes[number] is not None:
            self.pipes[number].close()
        self._begun[number] = None
        end, self.ends[number] = self.ends[number], -1
        if end >= 0:
            os.close(end)

    def _close_all(self) -> None:
        for number in range(len(self.pipes)):
            self._close(number)
        _kept.pop(id(self), None)

    def __del__(self) -> None:
        if "processes" in self.__dict__:
            self.stop()


def _unfinished(workers: List[int]) -> str:
    who = f"worker {workers[0]} has" if len(workers) == 1 else f"workers {', '.join(map(str, workers))} have"
    return f"{who} not finished the batches of the epoch before. py-spy shows what for"


def worker_deaths(deaths: List[str]) -> RuntimeError:
    """Returns the error after too many deaths."""
    killed = "If the system killed them, memory may be short: use fewer workers, or smaller batches. " if any(" by signal" in each for each in deaths) else ""
    return RuntimeError(
        f"{deaths[-1]}. It is the last of {len(deaths)} that ended without a batch in between: {'; '.join(deaths)}. {killed}What they wrote before they "
        "ended says why. With num_workers=0 the trainer shows where it happens, but a signal ends it"
    )


def _end_of(process: Any) -> int:
    """Returns a descriptor that is ready once a process has ended."""
    try:
        return pidfd_open(process.pid)
    except ProcessLookupError:  # a child of the fork server, which has collected it
        return os.dup(process.sentinel)


def _end_all() -> None:
    for pool in list(_pools):
        pool.terminate()


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._close_all()
        pool.stopped = True  # the child has workers of its own


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
