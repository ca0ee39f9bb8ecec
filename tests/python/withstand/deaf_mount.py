# SPDX-License-Identifier: Apache-2.0
"""A file system with one file, whose server is or goes deaf: it takes requests and answers none. Who waits for one is not ended by a kill either."""

import collections
import ctypes
import errno
import os
import select
import struct
import threading

MNT_DETACH = 2
# linux/fuse.h, of version 7.31.
HEADER = struct.Struct("=IIQQIIII")  # fuse_in_header: length, opcode, unique, node, uid, gid, pid, padding
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 18, 25, 26, 36, 42
DIRECT_IO = 1  # each read(2) is a READ
FOLDER, FILE = 1, 2
DIRECTORY_MODE, FILE_MODE = 0o40755, 0o100644
VALID_S = 3600


class DeafMount:
    """`path` is the folder, `name` the file's. Needs the right to mount, else OSError. Requests of the kinds `deaf_to` are never answered, from `go_deaf` on none
    is; `left` counts these by kind, `heard` is set at the next read of the file then. `end` aborts the connection, as does the end of this process, by closing the one descriptor that there is of it: what waits fails, in whatever state."""

    def __init__(self, path, name, content, deaf_to=()):
        self.deaf_to, self.left = deaf_to, collections.Counter()
        self.path, self.name, self.content = str(path), name.encode(), content
        self.deaf, self.heard = threading.Event(), threading.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if self.libc.mount(b"deaf", self.path.encode(), b"fuse", 0, options) != 0:
            error = ctypes.get_errno()
            os.close(self.device)
            raise OSError(error, f"mount {self.path}: {os.strerror(error)}")
        self.stop = os.eventfd(0, os.EFD_CLOEXEC)
        self.server = threading.Thread(target=self._serve, daemon=True)
        self.server.start()

    def go_deaf(self):
        self.deaf.set()

    def end(self):
        if self.device < 0:
            return
        os.eventfd_write(self.stop, 1)
        self.server.join()  # it waits for nothing but these two
        os.close(self.device)
        os.close(self.stop)
        self.device = -1
        self.libc.umount2(self.path.encode(), MNT_DETACH)

    def _serve(self):
        poll = select.poll()
        poll.register(self.device, select.POLLIN)
        poll.register(self.stop, select.POLLIN)
        while self.stop not in dict(poll.poll()):
            try:
                request = os.read(self.device, 1 << 17)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # ENOENT: taken back before it was read
                    continue
                return
            _, opcode, unique, node, *_ = HEADER.unpack_from(request)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):  # which have no answer
                continue
            if self.deaf.is_set() or opcode in self.deaf_to:
                self.left[opcode] += 1
                if opcode == READ:
                    self.heard.set()
                continue
            try:
                answer, code = self._answer(opcode, node, request[HEADER.size :]), 0
            except OSError as error:
                answer, code = b"", -error.errno
            try:
                os.write(self.device, struct.pack("=IiQ", 16 + len(answer), code, unique) + answer)
            except OSError as error:
                if error.errno != errno.ENOENT:  # the one who asked is gone
                    return

    def _answer(self, opcode, node, body):
        if opcode == INIT:
            return struct.pack("=IIIIHHIIHHI7I", 7, 31, 4096, 0, 16, 12, 4096, 1, 0, 0, 0, *[0] * 7)
        if opcode == LOOKUP:
            if node != FOLDER or body.rstrip(b"\0") != self.name:
                raise OSError(errno.ENOENT, "")
            return struct.pack("=QQQQII", FILE, 0, VALID_S, VALID_S, 0, 0) + self._attributes(FILE)
        if opcode == GETATTR:
            return struct.pack("=QII", VALID_S, 0, 0) + self._attributes(node)
        if opcode == OPEN:
            return struct.pack("=QII", 0, DIRECT_IO, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("=QQI", body)
            return self.content[offset : offset + size]
        if opcode in (RELEASE, FLUSH):
            return b""
        raise OSError(errno.ENOSYS, "")

    def _attributes(self, node):
        size, mode = (len(self.content), FILE_MODE) if node == FILE else (0, DIRECTORY_MODE)
        return struct.pack("=6Q10I", node, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
