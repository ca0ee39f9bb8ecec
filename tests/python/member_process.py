# SPDX-License-Identifier: Apache-2.0
"""Trainers in processes of their own: a member of a group, which does what it is told, and one that prints without end."""

import json
import queue
import subprocess
import sys
import threading


def start(program, *arguments):
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Member:
    """A process that opens a feed and reads as many batches of it as it is told. `run` starts it."""

    def __init__(self, program, *arguments, run=start):
        self.process = run(program, *arguments)

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


class Printer:
    """A process whose lines are kept until they are asked for: it never waits for somebody to read them."""

    def __init__(self, *command):
        self.process = subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True)
        self._lines = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _keep(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")  # as readline says it

    def readline(self):
        """The next line, "" after the last; queue.Empty when none comes within a minute."""
        return self._lines.get(timeout=60)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._thread.join()
        self.process.stdout.close()
