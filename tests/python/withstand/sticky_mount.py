# SPDX-License-Identifier: Apache-2.0
"""A file system with one file that can be opened and read, and whose close is not answered."""

import errno
import os
import select
import stat
import struct
import threading

from silent_mount import REQUEST, SilentMount

LOOKUP, GETATTR, OPEN, READ, RELEASE, FLUSH = 1, 3, 14, 15, 18, 25
UNANSWERED_BY_NATURE = {2, 42}  # FORGET, BATCH_FORGET
HEADER_BYTES = 40  # of a request
ROOT, FILE = 1, 2  # inodes


class StickyMount(SilentMount):
    """Holds `content` under the name "x.npy". Each close(2) of it waits until `end`. `closing` counts those that wait."""

    def __init__(self, path, content):
        super().__init__(path)
        self.content = content
        self.closing = 0
        self.stop_read, self.stop_write = os.pipe()
        self.server = threading.Thread(target=self._serve)
        self.server.start()

    def end(self):
        if self.server.is_alive():
            os.close(self.stop_write)
            self.server.join()
            os.close(self.stop_read)
        super().end()

    def _serve(self):
        while True:
            ready, _, _ = select.select([self.device, self.stop_read], [], [])
            if self.stop_read in ready:
                return
            try:
                request = os.read(self.device, 1 << 17)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):  # it was withdrawn meanwhile
                    continue
                return  # unmounted
            _, opcode, unique = REQUEST.unpack_from(request)
            inode = struct.unpack_from("=Q", request, 16)[0]
            if opcode == FLUSH:
                self.closing += 1
            elif opcode not in UNANSWERED_BY_NATURE:
                self._answer(unique, *self._reply(opcode, inode, request[HEADER_BYTES:]))

    def _answer(self, unique, error, payload=b""):
        try:
            os.write(self.device, struct.pack("=IiQ", 16 + len(payload), -error, unique) + payload)
        except OSError as failed:
            if failed.errno != errno.ENOENT:  # nobody waits for it any more
                raise

    def _attributes(self, inode):
        mode, size = (stat.S_IFDIR | 0o755, 0) if inode == ROOT else (stat.S_IFREG | 0o644, len(self.content))
        return struct.pack("=6Q10I", inode, size, 0, 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _reply(self, opcode, inode, body):
        if opcode == LOOKUP:
            if inode != ROOT or body.split(b"\0")[0] != b"x.npy":
                return (errno.ENOENT,)
            return 0, struct.pack("=4QII", FILE, 0, 60, 60, 0, 0) + self._attributes(FILE)
        if opcode == GETATTR:
            return 0, struct.pack("=QII", 60, 0, 0) + self._attributes(inode)
        if opcode == OPEN:
            return 0, struct.pack("=QII", 0, 0, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("=QQI", body)
            return 0, self.content[offset : offset + size]
        if opcode == RELEASE:
            return (0,)
        return (errno.ENOSYS,)
