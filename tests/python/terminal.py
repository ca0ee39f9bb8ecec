# SPDX-License-Identifier: Apache-2.0
"""The tool on a terminal."""

import fcntl
import os
import pty
import re
import struct
import termios
import time

from conftest import TOOL


class OnATerminal:
    """`pinfeed top` on a terminal of 80 x 24; `screen` is what it drew last, as lines without the control sequences."""

    def __init__(self, *words):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
            os.execv(TOOL, [str(TOOL), *words])
        self.text = ""

    def read(self):
        try:
            self.text += os.read(self.terminal, 65536).decode()
            return True
        except OSError:  # its end is closed
            return False

    def screen(self):
        drawn = self.text.split("\x1b[H")
        whole = next((part for part in reversed(drawn[1:]) if part.endswith("\x1b[J")), "")
        return [re.sub(r"\x1b\[\??[0-9]*[A-Za-z]", "", line) for line in whole.split("\r\n")]

    def await_line(self, pattern):
        deadline = time.monotonic() + 60
        while not any(re.search(pattern, line) for line in self.screen()):
            assert time.monotonic() < deadline and self.read(), self.text
        assert len(self.screen()) <= 24 and all(len(line) <= 80 for line in self.screen())

    def end(self, how):
        os.write(self.terminal, how)
        while self.read():
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
