# SPDX-License-Identifier: Apache-2.0
"""Which daemon to talk to: the one named, the system's, or a private one that ends with this process.

What goes out: the path of a socket. The private daemon is started once a process, when the first feed needs it, shared by all its
feeds, and started anew when it dies. It holds the reading end of a pipe whose writing end is here, so it ends when this process does, by SIGKILL too.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, List, Optional

from . import _abi
from ._errors import Code, Error, NotFoundError, UnavailableError

logger = logging.getLogger("pinfeed")

SYSTEM_SOCKET = "/run/pinfeed/pinfeed.sock"
_SOCKET_NAME = "pinfeed.sock"
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 1.0
_RETRY_S = 0.05
# A daemon that dies sooner would die again: what it was asked to do is what kills it.
_LEAST_LIFE_S = 5.0
_LOG_TAIL_BYTES = 4000
# sun_path holds 108 bytes; the daemon puts names of at most 32 bytes into the folder.
_FOLDER_LIMIT_BYTES = 75


def named_address(address: Optional[str]) -> Optional[str]:
    """The socket that the caller or the environment names; None: it is the system's, or a private daemon's."""
    return address or os.environ.get("PINFEED_ADDRESS")


def address_for(address: Optional[str], open_timeout_s: float, share: Optional[str] = None) -> str:
    """The socket to use: the one named, else the system's if it answers, else a private daemon's. Where the system's daemon has its
    folder, one that is being restarted is waited for. `share`: see `private_address`."""
    chosen = named_address(address)
    if chosen:
        return chosen
    has_service = os.path.isdir(os.path.dirname(SYSTEM_SOCKET))
    waits = has_service and not _PrivateDaemon.is_there()
    reason = _cannot_reach(SYSTEM_SOCKET, open_timeout_s, open_timeout_s if waits else 0)
    if reason is None:
        return SYSTEM_SOCKET
    return private_address(reason, share)


def private_address(reason: str, share: Optional[str] = None) -> str:
    """A private daemon's socket, since the system's daemon is of no use, for that reason. Raises UnavailableError for a feed that is to be
    shared, which would be shared with nobody."""
    if share is not None:
        raise UnavailableError(
            Code.UNAVAILABLE,
            f"share={share!r}: no common daemon answers at {SYSTEM_SOCKET} ({reason}), and a private daemon serves this process only; "
            "start pinfeedd and set PINFEED_ADDRESS to its socket in every process of the group",
        )
    has_service = os.path.isdir(os.path.dirname(SYSTEM_SOCKET))
    return _PrivateDaemon.shared(f"{SYSTEM_SOCKET}: {reason}", logging.WARNING if has_service else logging.INFO).address


def is_private(address: str) -> bool:
    """Whether that is this process's private daemon."""
    daemon = _PrivateDaemon.instance
    return daemon is not None and daemon.address == address


def revive(address: str) -> None:
    """If the private daemon has that address and died, starts it anew; its feeds then go on by themselves. Raises UnavailableError when
    that is no use."""
    daemon = _PrivateDaemon.instance
    if daemon is not None and is_private(address):
        daemon.revive()


def _cannot_reach(path: str, timeout_s: float, absent_s: float) -> Optional[str]:
    """None when somebody accepts connections at the path, else why not. Nobody's being there is taken for an answer after `absent_s`."""
    until = time.monotonic() + absent_s
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
        time.sleep(_RETRY_S)  # there is nothing to wait on: the socket's very name is new after a restart


def find_program() -> str:
    """The program ``pinfeedd``: $PINFEED_DAEMON, in the package, on the PATH, in the source tree's build."""
    chosen = os.environ.get("PINFEED_DAEMON")
    if chosen:
        return chosen
    package = Path(__file__).resolve().parent
    for bundled in (package / "bin" / "pinfeedd", _abi.ancestor(package, 3) / "bin" / "pinfeedd"):  # in the package; beside it in an installed tree
        if bundled.is_file():
            return str(bundled)
    tree = _abi.source_tree()
    if tree is not None:
        built = tree / "build" / "release" / "server" / "pinfeedd"
        if built.is_file():
            return str(built)
    found = shutil.which("pinfeedd") or shutil.which("pinfeedd", path="/usr/sbin:/usr/local/sbin")
    if found:
        return found
    raise NotFoundError(
        Code.NOT_FOUND,
        "no daemon answers, and pinfeedd is neither in the package, on the PATH nor in the source tree's build/release: start a daemon and "
        "set PINFEED_ADDRESS to its socket, or set PINFEED_DAEMON to the program",
    )


class _PrivateDaemon:
    """A daemon of this process alone.

    Owns the process, the pipe's writing end, the socket's folder and the daemon's log (a file without a name).
    Threads: `is_there`, `shared` and `revive` from any.
    """

    instance: Optional["_PrivateDaemon"] = None
    _lock = threading.Lock()

    @classmethod
    def is_there(cls) -> bool:
        """Whether this process has one, dead or alive."""
        with cls._lock:
            return cls.instance is not None and cls.instance._is_ours()

    @classmethod
    def shared(cls, why: str, level: int) -> "_PrivateDaemon":
        """`why`: what one is started for, which is logged at `level`."""
        with cls._lock:
            if cls.instance is not None and cls.instance._is_ours():
                cls.instance._restart_if_dead(0)
            else:
                cls.instance = cls(why, level)
            return cls.instance

    def __init__(self, why: str, level: int) -> None:
        self._program = find_program()
        self._owner_pid = os.getpid()
        self._folder = _make_folder()
        self.address = os.path.join(self._folder, _SOCKET_NAME)
        self._log: IO[bytes] = tempfile.TemporaryFile()
        self._lifetime = -1  # stopped, or not started yet
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

    def revive(self) -> None:
        with self._lock:
            if self._is_ours():
                self._restart_if_dead(_LEAST_LIFE_S)

    def _is_ours(self) -> bool:
        """False in forked children, and once it is stopped."""
        return os.getpid() == self._owner_pid and self._lifetime >= 0

    def _restart_if_dead(self, least_life_s: float) -> None:
        if self._process is None or self._process.poll() is None:
            return
        said = f"the private daemon {self._program} ended with status {self._process.returncode}{self._log_tail()}"
        if time.monotonic() - self._started < least_life_s:
            raise UnavailableError(
                Code.UNAVAILABLE, f"{said}\nit had just been started, so another one would do no better; once what ended it is mended, open the feed again"
            )
        logger.warning("%s\nstarting another one; no batch is lost", said)
        os.close(self._lifetime)
        self._lifetime = -1
        self._start()

    def _start(self) -> None:
        # No pipe end is inherited but the two named in pass_fds.
        lifetime, self._lifetime = os.pipe()
        ready, ready_writer = os.pipe()
        self._started = time.monotonic()
        try:
            self._process = process = subprocess.Popen(
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
                pass_fds=(lifetime, ready_writer),
                start_new_session=True,  # Ctrl-C is the trainer's to handle; the pipe ends the daemon
            )
        except OSError as error:
            os.close(ready)
            raise NotFoundError(Code.NOT_FOUND, f"starting the daemon {self._program} failed: {error}") from error
        finally:
            os.close(lifetime)
            os.close(ready_writer)
        try:
            self._wait_ready(process, ready)
        finally:
            os.close(ready)

    def _wait_ready(self, process: "subprocess.Popen[bytes]", ready: int) -> None:
        """Returns when the daemon says on the pipe that it is ready. The pipe also ends with the daemon."""
        poll = select.poll()  # unlike select(), takes descriptors above 1023
        poll.register(ready, select.POLLIN)
        if not poll.poll(_START_TIMEOUT_S * 1000):
            raise UnavailableError(
                Code.UNAVAILABLE, f"the private daemon {self._program} was not ready within {_START_TIMEOUT_S:.0f} s{self._log_tail()}"
            )
        if os.read(ready, 64).strip() != b"ready":
            process.wait()
            raise UnavailableError(
                Code.UNAVAILABLE, f"the private daemon {self._program} ended with status {process.returncode}{self._log_tail()}"
            )

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        text = self._log.read().decode("utf-8", "replace").strip()
        return f"; its log ends with:\n{text}" if text else " and logged nothing"

    def _after_fork(self) -> None:
        """A child must not keep the pipe open: the daemon is to end with the parent."""
        if self._lifetime >= 0:
            os.close(self._lifetime)
            self._lifetime = -1

    def stop(self) -> None:
        """Hangs up and removes the folder. Does nothing the second time, and in forked children."""
        if os.getpid() != self._owner_pid or self._lifetime < 0:
            return
        os.close(self._lifetime)
        self._lifetime = -1
        atexit.unregister(self.stop)
        if self._process is not None:
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # It waits for batches that are still held here, and ends with this process at the latest.
                self._process.returncode = 0  # no warning of a child that runs on
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _make_folder() -> str:
    """A new folder that only this user can enter, with a path short enough for a socket's address."""
    parents: List[str] = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    refused: List[str] = []
    for parent in parents:
        if not parent or len(os.fsencode(parent)) + len("/pinfeed-12345678") > _FOLDER_LIMIT_BYTES:
            continue
        try:
            return tempfile.mkdtemp(prefix="pinfeed-", dir=parent)  # mode 0700
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
    raise Error(Code.FAILED_PRECONDITION, f"no place for the private daemon's socket ({'; '.join(refused)}): set TMPDIR to a short, writable path")
