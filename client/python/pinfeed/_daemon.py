# SPDX-License-Identifier: Apache-2.0
"""Which daemon to talk to: the one named, the system's, or a private one that ends with this process.

What goes out: the path of a socket. The private daemon is started once a process, when the first feed needs it, and shared by all
its feeds. It holds the reading end of a pipe whose writing end is here, so it ends when this process does, by SIGKILL too.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, List, Optional

from . import _abi
from ._errors import Code, Error, NotFoundError, UnavailableError

logger = logging.getLogger("pinfeed")

SYSTEM_SOCKET = "/run/pinfeed/pinfeed.sock"
_SOCKET_NAME = "pinfeed.sock"
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 1.0
_LOG_TAIL_BYTES = 4000
# sun_path holds 108 bytes; the daemon puts names of at most 32 bytes into the folder.
_FOLDER_LIMIT_BYTES = 75


def address_for(address: Optional[str], open_timeout_s: float, group_size: int = 1) -> str:
    """The socket to use: `address`, else $PINFEED_ADDRESS, else the system's if it answers, else a private daemon's, which can serve no
    group of several feeds."""
    chosen = address or os.environ.get("PINFEED_ADDRESS")
    if chosen:
        return chosen
    reason = _cannot_reach(SYSTEM_SOCKET, open_timeout_s)
    if reason is None:
        return SYSTEM_SOCKET
    if group_size > 1:
        raise UnavailableError(
            Code.UNAVAILABLE,
            f"group_size={group_size}: no common daemon answers at {SYSTEM_SOCKET} ({reason}), and a private daemon serves this process only; "
            "start pinfeedd and set PINFEED_ADDRESS to its socket in every process of the group",
        )
    return _PrivateDaemon.shared(f"{SYSTEM_SOCKET}: {reason}").address


def _cannot_reach(path: str, timeout_s: float) -> Optional[str]:
    """None when somebody accepts connections at the path, else why not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(path)
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
    return None


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
    Threads: `shared` from any; the object itself never changes after it was made.
    """

    _instance: Optional["_PrivateDaemon"] = None
    _lock = threading.Lock()

    @classmethod
    def shared(cls, why: str) -> "_PrivateDaemon":
        with cls._lock:
            if cls._instance is None or cls._instance._process.poll() is not None:
                if cls._instance is not None:
                    cls._instance.stop()
                cls._instance = cls(why)
            return cls._instance

    def __init__(self, why: str) -> None:
        program = find_program()
        self._owner_pid = os.getpid()
        self._folder = _make_folder()
        self.address = os.path.join(self._folder, _SOCKET_NAME)
        self._log: IO[bytes] = tempfile.TemporaryFile()
        # No pipe end is inherited but the two named in pass_fds.
        lifetime, self._lifetime = os.pipe()
        ready, ready_writer = os.pipe()
        logger.info("no daemon at %s; starting a private one: %s", why, program)
        try:
            self._process = subprocess.Popen(
                [
                    program,
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
            os.close(self._lifetime)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise NotFoundError(Code.NOT_FOUND, f"starting the daemon {program} failed: {error}") from error
        finally:
            os.close(lifetime)
            os.close(ready_writer)
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._after_fork)
        try:
            self._wait_ready(ready, program)
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(ready)

    def _wait_ready(self, ready: int, program: str) -> None:
        """Returns when the daemon says on the pipe that it is ready. The pipe also ends with the daemon."""
        poll = select.poll()  # unlike select(), takes descriptors above 1023
        poll.register(ready, select.POLLIN)
        if not poll.poll(_START_TIMEOUT_S * 1000):
            raise UnavailableError(
                Code.UNAVAILABLE, f"the private daemon {program} was not ready within {_START_TIMEOUT_S:.0f} s{self._log_tail()}"
            )
        if os.read(ready, 64).strip() != b"ready":
            self._process.wait()
            raise UnavailableError(
                Code.UNAVAILABLE, f"the private daemon {program} ended with status {self._process.returncode}{self._log_tail()}"
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
