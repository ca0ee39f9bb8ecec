# SPDX-License-Identifier: Apache-2.0
"""The connection of a batcher's client or consumer to the daemon: docs/protocol.md, section 14.

In: a place that the daemon grants. Out: frames, and memory that both share.
"""

from __future__ import annotations

import array
import base64
import contextlib
import json
import mmap
import os
import resource
import socket
import struct
from typing import Any, Dict, List, NamedTuple, Optional

from .._base import abi
from .._base.daemon import Common
from .._base.errors import Code, Error, ResourceExhaustedError, UnavailableError, make_error

_MAGIC = 0x3130464C46504650
_WELCOME, _JOIN = 2, 9
REQUEST, CANCEL, ANSWERED, TAKE, ANSWER = 10, 11, 12, 13, 14
_FRAME = struct.Struct("=QIIQQQII208s")  # magic, kind, code, epoch, batch_index, timeout_us, slot, bytes, text
_HELLO = struct.Struct("=QII32s208s")
_TIMEOUT_S = 10.0  # for a daemon that does not answer its greeting
HANGS_S = 30.0  # a daemon that has not answered so long after it had to


class Frame(NamedTuple):
    """A frame from the daemon."""

    kind: int
    code: int
    slot: int
    bytes: int
    text: str


def common(kind: str, name: str) -> Common:
    """What needs a daemon for all processes of a batcher of that name."""
    return Common(f"{kind} {name!r}", "the model's processes and in those of its clients")


def join(address: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Asks for a place at a batcher. Returns a ``pinfeed.v1.BatcherInvitation`` as JSON."""
    return abi.load().ask("pf_join_batcher_json", os.fsencode(address), json.dumps(request).encode())


class Link:
    """A socket and the memory that comes with it, as `memory`. Threads: `send` from any, `receive` from one at a time.
    A forked child may only close it, which leaves the parent's alone. Errors: UnavailableError once the daemon has hung up.
    """

    def __init__(self, place: Dict[str, Any]) -> None:
        self._pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(_TIMEOUT_S)
            self.memory = self._attach(place)
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 1, 0))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(HANGS_S), 0))
        except BaseException:
            self._socket.close()
            raise

    def _attach(self, place: Dict[str, Any]) -> mmap.mmap:
        fds: List[int] = []
        try:
            self._socket.connect(place["lifeline_path"])
            self._socket.send(_HELLO.pack(_MAGIC, _JOIN, 0, base64.b64decode(place["token"]), b""))
            data, ancillary, flags, _ = self._socket.recvmsg(_FRAME.size, socket.CMSG_SPACE(4 * 8), socket.MSG_CMSG_CLOEXEC)
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds += array.array("i", content[: len(content) - len(content) % 4])
            welcome = self._parse(data)
            if welcome.code:
                raise make_error(welcome.code, welcome.text)
            if flags & socket.MSG_CTRUNC:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                raise ResourceExhaustedError(f"join a batcher: this process has no descriptor left for the memory of its place (ulimit -n: {limit}): raise it")
            if welcome.kind != _WELCOME or len(fds) != 1 or os.fstat(fds[0]).st_size < int(place["memory_bytes"]):
                raise Error(Code.INTERNAL, "the daemon's welcome to a batcher is not usable: are pinfeedd and this package of the same version?")
            return mmap.mmap(fds[0], int(place["memory_bytes"]))
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise UnavailableError(f"join a batcher: the daemon does not answer at {place['lifeline_path']}: {error}") from error
        finally:
            for fd in fds:
                os.close(fd)

    @staticmethod
    def _parse(data: bytes) -> Frame:
        if not data:
            raise UnavailableError("the daemon has closed the connection: the batcher has ended, or the daemon stops")
        if len(data) != _FRAME.size or _FRAME.unpack(data)[0] != _MAGIC:
            raise Error(Code.INTERNAL, f"the daemon sent a frame of {len(data)} bytes that is not one of the protocol's")
        _, kind, code, _, _, _, slot, size, text = _FRAME.unpack(data)
        return Frame(kind, code, slot, size, text.rstrip(b"\0").decode("utf-8", "replace"))

    def send(
        self, kind: int, *, epoch: int = 0, batch_index: int = 0, timeout_us: int = 0, slot: int = 0, size: int = 0, sent: Optional[List[int]] = None
    ) -> None:
        """Sends a frame. `sent` then is no longer empty, also if a signal handler raises."""
        frame = _FRAME.pack(_MAGIC, kind, 0, epoch, batch_index, timeout_us, slot, size, b"")
        try:
            ([] if sent is None else sent).extend(map(self._socket.send, (frame,)))  # no handler runs between sending and extending
        except BlockingIOError as error:
            raise UnavailableError(f"the daemon has read nothing for {HANGS_S:g} s: it hangs, or is stopped") from error
        except OSError as error:
            raise UnavailableError(f"the connection to the daemon is closed: the batcher has ended, or the daemon stops ({error})") from error

    def receive(self) -> Optional[Frame]:
        """Waits for a kAnswered frame; None after a second without one."""
        try:
            frame = self._parse(self._socket.recv(_FRAME.size))
        except BlockingIOError:
            return None
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise UnavailableError(f"the connection to the daemon is closed ({error})") from error
        if frame.kind != ANSWERED:
            raise Error(Code.INTERNAL, f"the daemon sent a frame of kind {frame.kind} to a batcher's client")
        return frame

    def hang_up(self) -> None:
        """Ends the connection; `receive` then raises. May be called twice, and from any thread. Nothing in a forked child."""
        if self.is_parents():
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def is_parents(self) -> bool:
        """Whether this is a forked child of the process that made the connection."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """Hangs up and frees the socket. Nothing may use it any more. The memory goes with its last view."""
        self.hang_up()
        self._socket.close()
        with contextlib.suppress(BufferError):
            self.memory.close()
