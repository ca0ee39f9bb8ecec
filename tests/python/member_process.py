# SPDX-License-Identifier: Apache-2.0
"""A member of a group in a process of its own, which does what it is told."""

import json
import subprocess
import sys


class Member:
    """A process that opens a feed and reads as many batches of it as it is told."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        self.first_word = json.loads(self.process.stdout.readline())
        return self

    def begin_reading(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()

    def read(self, count):
        self.begin_reading(count)
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def __exit__(self, kind, *_):
        if kind is None and not self.process.stdin.closed:
            self.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
