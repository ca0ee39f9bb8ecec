# SPDX-License-Identifier: Apache-2.0
"""A file system that is mounted and answers nothing: what a server that went away leaves behind."""

import ctypes
import os
import struct

REQUEST = struct.Struct("=IIQ")  # of fuse_in_header: length, opcode, unique
INIT = 26
MNT_DETACH = 2


class SilentMount:
    """`path` is the folder. Needs the right to mount, else OSError. The kernel's requests are read, as far as INIT answered, and left; `end` fails those that wait."""

    def __init__(self, path):
        self.path = str(path)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if self.libc.mount(b"silent", self.path.encode(), b"fuse", 0, options) != 0:
            error = ctypes.get_errno()
            os.close(self.device)
            raise OSError(error, f"mount {self.path}: {os.strerror(error)}")
        _, opcode, unique = REQUEST.unpack_from(os.read(self.device, 1 << 16))
        assert opcode == INIT
        # fuse_init_out of version 7.31: no feature, one page a write.
        answer = struct.pack("=IIIIHHIIHHI7I", 7, 31, 4096, 0, 16, 12, 4096, 1, 0, 0, 0, *[0] * 7)
        os.write(self.device, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)

    def end(self):
        if self.device >= 0:
            os.close(self.device)  # ends the connection: what waits fails
            self.device = -1
            self.libc.umount2(self.path.encode(), MNT_DETACH)
