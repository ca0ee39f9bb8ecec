# SPDX-License-Identifier: Apache-2.0
"""Chooses a daemon: the one named, the system's, or a private one that ends with this process.

Out: a socket's path. A process starts at most one private daemon, when its first feed needs it. All its feeds share
that daemon, and it is restarted if it dies. The daemon holds the read end of a pipe and this process the write end,
so the daemon ends whenever this process does, even by SIGKILL.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import logging
import os
import resource
import select
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time
from typing import IO, Dict, List, NamedTuple, Optional, Tuple

from . import places
from .abi import logger
from .errors import Code, Error, NotFoundError, ResourceExhaustedError, UnavailableError
from .fork_locks import add_fork_lock, no_forks

SYSTEM_SOCKET = "/run/pinfeed/pinfeed.sock"
_SOCKET_NAME = "pinfeed.sock"
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 1.0
_RETRY_S = 0.05
# A daemon that dies earlier would die again, because of what it was asked to do.
_MIN_LIFETIME_S = 5.0
_LOG_TAIL_BYTES = 4000
# sun_path holds 108 bytes, and the daemon creates names of at most 32 bytes in the folder.
_FOLDER_LIMIT_BYTES = 75


class Common(NamedTuple):
    """What several processes use together, which needs a daemon that serves them all."""

    what: str  # begins the error
    processes: str

    @classmethod
    def group(cls, share: Optional[str]) -> "Optional[Common]":
        """Of a feed with this `share`."""
        return None if share is None else cls(f"share={share!r}", "every process of the group")


def named_address(address: Optional[str]) -> Optional[str]:
    """Returns the socket named by the caller or the environment. None: use the system's daemon or a private one."""
    return address or os.environ.get("PINFEED_ADDRESS")


def address_for(address: Optional[str], open_timeout_s: float, common: Optional[Common] = None) -> str:
    """Returns the socket to use: the one named, else the system's if it answers, else a private daemon's. If the system
    daemon's folder exists, waits for a daemon that is restarting. `common`: see `private_address`.
    """
    chosen = named_address(address)
    if chosen:
        return chosen
    has_service = os.path.isdir(os.path.dirname(SYSTEM_SOCKET))
    waits = has_service and not _PrivateDaemon.exists()
    reason = _connect_error(SYSTEM_SOCKET, open_timeout_s, open_timeout_s if waits else 0)
    if reason is None:
        return SYSTEM_SOCKET
    return private_address(reason, common)


def private_address(reason: str, common: Optional[Common] = None) -> str:
    """Returns a private daemon's socket. `reason` says why the system's daemon cannot be used. Raises UnavailableError
    for what several processes use, because no other process could join it.
    """
    if common is not None:
        raise UnavailableError(
            f"{common.what}: no system-wide daemon answers at {SYSTEM_SOCKET} ({reason}), and a private daemon serves this process only; "
            f"start pinfeedd and set PINFEED_ADDRESS to its socket in {common.processes}",
        )
    has_service = os.path.isdir(os.path.dirname(SYSTEM_SOCKET))
    return _PrivateDaemon.shared(f"{SYSTEM_SOCKET}: {reason}", logging.WARNING if has_service else logging.INFO).address


def is_private(address: str) -> bool:
    """Whether this is the socket of a private daemon of this process."""
    return address in _PrivateDaemon.by_address


def revive(address: str) -> None:
    """Restarts the private daemon with that address if it died; its feeds then reconnect. Raises UnavailableError if a
    restart is pointless.
    """
    daemon = _PrivateDaemon.by_address.get(address)
    if daemon is not None:
        daemon.revive()


def _connect_error(path: str, timeout_s: float, retry_s: float) -> Optional[str]:
    """Returns None if a daemon accepts connections at the path, or else the reason. Retries for `retry_s` while no
    daemon listens.
    """
    until = time.monotonic() + retry_s
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout_s)
            try:
                probe.connect(path)
                return None
            except OSError as error:
                absent = error.errno in (errno.ENOENT, errno.ECONNREFUSED)
                reason = os.strerror(error.errno) if error.errno else str(error)
        if not absent or time.monotonic() >= until:
            return reason
        time.sleep(_RETRY_S)  # polled: a restarted daemon creates a new socket, so there is nothing to wait on


def find_program() -> str:
    """Returns the program ``pinfeedd``: $PINFEED_DAEMON, the package's own or its tree's, or on the PATH."""
    chosen = os.environ.get("PINFEED_DAEMON")
    if chosen:
        return chosen
    own = places.program("pinfeedd")
    if own:
        return own
    found = shutil.which("pinfeedd") or shutil.which("pinfeedd", path="/usr/sbin:/usr/local/sbin")
    if found:
        return found
    raise NotFoundError(
        "no daemon answers, and pinfeedd is neither in the package, on the PATH nor in the source tree's build/release: start a daemon and "
        "set PINFEED_ADDRESS to its socket, or set PINFEED_DAEMON to the program",
    )


class _PrivateDaemon:
    """A daemon for this process only.

    Owns the process, the pipe's write end, the socket's folder and the daemon's log (an unnamed file). Threads:
    `exists`, `shared` and `revive` from any.
    """

    instance: Optional["_PrivateDaemon"] = None
    by_address: Dict[str, "_PrivateDaemon"] = {}  # also those that `instance` has replaced, which serve open feeds
    _lock: threading.Lock

    @classmethod
    def exists(cls) -> bool:
        """Whether this process has started a private daemon, dead or alive."""
        with cls._lock:
            return cls.instance is not None and cls.instance._is_ours()

    @classmethod
    def shared(cls, why: str, level: int) -> "_PrivateDaemon":
        """Returns the process's daemon, starting it if necessary. `why` is logged at `level` when one is started."""
        with cls._lock:
            if cls.instance is not None and cls.instance._is_ours() and cls.instance._is_lost():
                logger.warning("%s was removed, perhaps by a cleaner of temporary files: what is opened from here on has another private daemon", cls.instance.address)
                cls.instance = cls(why, level)
            elif cls.instance is not None and cls.instance._is_ours():
                cls.instance._restart_if_dead(0)
            else:
                cls.instance = cls(why, level)
            return cls.instance

    def __init__(self, why: str, level: int) -> None:
        self._program = find_program()
        self._owner_pid = os.getpid()
        self._folder = _make_folder()
        self.address = os.path.join(self._folder, _SOCKET_NAME)
        try:
            self._log: IO[bytes] = tempfile.TemporaryFile(dir=self._folder)  # which may be the only folder that can be written to
        except OSError as error:
            os.rmdir(self._folder)
            raise _start_error(self._program, error) from error
        self._lifetime = -1  # closed, or not started yet
        self._stopped = False
        self._process: Optional["subprocess.Popen[bytes]"] = None
        logger.log(
            level,
            "no daemon at %s; starting a private one, %s, with threads and memory of its own, which are not in the system's status and metrics "
            "(`pinfeed status --address %s` shows them); to fail instead, set PINFEED_ADDRESS to the system's socket",
            why,
            self._program,
            self.address,
        )
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._after_fork)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        self.by_address[self.address] = self

    def revive(self) -> None:
        with self._lock:
            if self._is_ours():
                self._restart_if_dead(_MIN_LIFETIME_S)

    def _is_ours(self) -> bool:
        """False in forked children, and after `stop`."""
        return os.getpid() == self._owner_pid and not self._stopped

    def _is_lost(self) -> bool:
        """Whether it runs, and somebody has removed its socket, or it has ended, and its folder cannot be had again."""
        if self._process is not None and self._process.poll() is None:
            return not os.path.exists(self.address)
        try:
            self._make_folder_again()
        except OSError:
            return True
        return False

    def _make_folder_again(self) -> None:
        """Makes its folder if that has gone: a daemon that was told to end, as by SIGTERM, has removed it, or a cleaner of temporary files."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
            os.chmod(self._folder, 0o700)  # whatever the umask leaves of it
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise OSError(errno.EEXIST, "something else is there now", self._folder)

    def _restart_if_dead(self, min_lifetime_s: float) -> None:
        if self._process is None or self._process.poll() is None:
            return
        said = f"the private daemon {self._program} ended with status {self._process.returncode}{self._log_tail()}"
        if time.monotonic() - self._started < min_lifetime_s:
            raise UnavailableError(f"{said}\nit had just been started, so another one would do no better; once what ended it is mended, open the feed again")
        logger.warning("%s\nstarting another one; no batch is lost", said)
        self._start()

    def _start(self) -> None:
        try:
            self._make_folder_again()
            with no_forks:  # a child would keep the pipes open, also Popen's own, which waits for their end
                process, ready = self._launch()
        except OSError as error:
            raise _start_error(self._program, error) from error
        try:
            self._wait_ready(process, ready)
        finally:
            os.close(ready)

    def _launch(self) -> "Tuple[subprocess.Popen[bytes], int]":
        """Starts the program. Returns the process, and a descriptor that the caller owns, on which it reports. An error leaves all as it was."""
        with contextlib.ExitStack() as unused:
            lifetime, lifetime_writer = _pipe(unused)
            ready, ready_writer = _pipe(unused)
            started = time.monotonic()
            process = subprocess.Popen(
                [
                    self._program,
                    "--private",
                    "--lifetime-fd",
                    str(lifetime),
                    "--ready-fd",
                    str(ready_writer),
                    "--socket-dir",
                    self._folder,
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(lifetime, ready_writer),  # it inherits no others
                start_new_session=True,  # the trainer handles Ctrl-C; the pipe ends the daemon
            )
            unused.pop_all()
        before, self._lifetime, self._process, self._started = self._lifetime, lifetime_writer, process, started
        for descriptor in (lifetime, ready_writer, before):
            if descriptor >= 0:
                os.close(descriptor)
        return process, ready

    def _wait_ready(self, process: "subprocess.Popen[bytes]", ready: int) -> None:
        """Waits until the daemon reports on the pipe that it is ready. The pipe also closes when the daemon ends."""
        poll = select.poll()  # unlike select(), accepts descriptors above 1023
        poll.register(ready, select.POLLIN)
        if not poll.poll(_START_TIMEOUT_S * 1000):
            raise UnavailableError(f"the private daemon {self._program} was not ready within {_START_TIMEOUT_S:.0f} s{self._log_tail()}")
        if os.read(ready, 64).strip() != b"ready":
            process.wait()
            raise UnavailableError(f"the private daemon {self._program} ended with status {process.returncode}{self._log_tail()}")

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        text = self._log.read().decode("utf-8", "replace").strip()
        return f"; its log ends with:\n{text}" if text else " and logged nothing"

    def _after_fork(self) -> None:
        """Closes the child's copy of the pipe, so that the daemon ends with the parent."""
        if self._lifetime >= 0:
            os.close(self._lifetime)
            self._lifetime = -1

    def stop(self) -> None:
        """Closes the pipe and removes the folder. Does nothing when called again, and in forked children."""
        if not self._is_ours():
            return
        self._stopped = True
        if self._lifetime >= 0:
            os.close(self._lifetime)
            self._lifetime = -1
        atexit.unregister(self.stop)
        if self._process is not None:
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # The daemon waits for batches that are held here, and ends with this process at the latest.
                self._process.returncode = 0  # suppresses the warning about a running child
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _is_utf8(path: str) -> bool:
    """Whether its bytes are UTF-8, as the daemon needs it."""
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _make_folder() -> str:
    """Creates a folder that only this user can enter, with a path short enough for a socket address."""
    parents = [os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/dev/shm"]  # in a container whose root is read-only, only the last can be written to
    refused: List[str] = []
    try:
        parents.insert(1, tempfile.gettempdir())
    except OSError as error:  # it found no folder at all
        refused.append(error.strerror or str(error))
    for parent in parents:
        if not parent:
            continue
        if not _is_utf8(parent):
            refused.append(f"{parent!r}: its path is not UTF-8")
            continue
        if len(os.fsencode(parent)) + len("/pinfeed-12345678") > _FOLDER_LIMIT_BYTES:
            refused.append(f"{parent}: its path is too long")
            continue
        try:
            folder = tempfile.mkdtemp(prefix="pinfeed-", dir=parent)
            os.chmod(folder, 0o700)  # whatever the umask leaves of it
            return folder
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
    raise Error(Code.FAILED_PRECONDITION, f"no folder for the private daemon's socket ({'; '.join(refused)}): set TMPDIR to a short, writable path")


def _pipe(unused: contextlib.ExitStack) -> Tuple[int, int]:
    """Returns the ends of a pipe, which `unused` closes. None has the number of a standard stream, even if this process has closed those: the
    daemon gets its own there.
    """
    ends = os.pipe()
    higher: List[int] = []
    try:
        for end in ends:
            higher.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))
            unused.callback(os.close, higher[-1])
    finally:
        for end in ends:
            os.close(end)
    return higher[0], higher[1]


def _start_error(program: str, error: OSError) -> Error:
    what = f"starting the daemon {program} failed: {error}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ResourceExhaustedError(f"{what}. It takes some descriptors, and this process may have {most} (ulimit -n): raise that")
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        limits = "for lack of memory or by a limit of processes (ulimit -u, or pids.max of the container)"
        return ResourceExhaustedError(f"{what}. The system refuses another process, {limits}: raise that, or use the system's daemon")
    return NotFoundError(what)


add_fork_lock(_PrivateDaemon, "_lock")
