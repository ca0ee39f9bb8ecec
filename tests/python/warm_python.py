# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own that have done their imports when they begin: forks of one process of Python, which has no descriptor of this one."""

import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
import types

PATIENCE_S = 60


def serve(orders):
    """Starts a program for each order, with the descriptors that come along: stdin, stdout, and maybe stderr. Answers its pid, and later how it ended.
    Tests may be killed, or leave programs that hang: those that run at the end of the orders are killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal comes here too, and the tests that it ends still give orders
    running = set()
    while True:
        data, fds, _, _ = socket.recv_fds(orders, 1 << 17, 3)
        if not data:
            break
        order = json.loads(data)
        if "ended" in order:
            running.remove(order["ended"])
            orders.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(order["ended"], 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            orders.close()
            become(order, fds)  # what it raises ends the process, as of a program that is run by itself
            return
        running.add(pid)
        for fd in fds:
            os.close(fd)
        orders.send(b"%d" % pid)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def become(order, fds):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["own_session"]:
        os.setsid()
    for standard, fd in enumerate(fds):
        os.dup2(fd, standard)
        os.close(fd)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["file"] or "-c", *order["arguments"]]
    main = types.ModuleType("__main__")
    if order["file"]:
        main.__file__ = order["file"]
    sys.modules["warm_python"], sys.modules["__main__"] = sys.modules["__main__"], main
    exec(compile(order["code"], order["file"] or "<string>", "exec"), main.__dict__)


class WarmPython:
    """The process that is forked. `imports` is what it does before, as code."""

    def __init__(self, imports):
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, pathlib.Path(__file__).resolve(), str(theirs.fileno()), imports]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()

    def run(self, code, *arguments, file=None, own_session=False, stderr=False, env=None):
        """Starts a program, as `python -c`, or as the content of `file`, from which processes that are spawned import it. `stderr`: a pipe too. `env`: what
        differs from this process's environment."""
        order = {"code": code, "arguments": [*map(str, arguments)], "file": file and str(file), "own_session": own_session}
        return Program(self, {**order, "environment": {**os.environ, **(env or {})}}, stderr)

    def ask(self, order, fds=()):
        socket.send_fds(self.orders, [json.dumps(order).encode()], fds)
        return int(self.orders.recv(64))

    def close(self):
        self.orders.close()
        assert self.process.wait(PATIENCE_S) == 0


class Program:
    """A process, with what of subprocess.Popen tests use."""

    def __init__(self, warm, order, stderr):
        self._warm, self.returncode = warm, None
        stdin, writer = os.pipe()
        pipes = [os.pipe() for _ in range(1 + stderr)]
        theirs = [stdin, *(end for _, end in pipes)]
        self.pid = warm.ask(order, theirs)
        self._end = os.pidfd_open(self.pid)
        for fd in theirs:
            os.close(fd)
        self.stdin = open(writer, "w")
        self._outputs = [open(reader) for reader, _ in pipes]
        self.stdout, self.stderr = self._outputs[0], self._outputs[-1] if stderr else None

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)

    def wait(self, timeout=PATIENCE_S):
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._end, select.POLLIN)
            if not poll.poll(1000 * timeout):
                raise subprocess.TimeoutExpired("python", timeout)
            self.returncode = self._warm.ask({"ended": self.pid})
            os.close(self._end)
        return self.returncode

    def communicate(self, timeout=PATIENCE_S):
        """Returns what it still writes to stdout, and to stderr, once it and all processes that have these are gone. Kills it if that takes longer."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        rest, until = {stream: b"" for stream in self._outputs}, time.monotonic() + timeout
        left = [stream for stream in self._outputs if not stream.closed]
        while left:
            ready, _, _ = select.select(left, [], [], max(0, until - time.monotonic()))
            if not ready:
                self.kill()
                raise subprocess.TimeoutExpired("python", timeout)
            for stream in ready:
                data = os.read(stream.fileno(), 1 << 16)
                rest[stream] += data
                if not data:
                    left.remove(stream)
                    stream.close()
        try:
            self.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return [text.decode(errors="replace") for text in rest.values()]


if __name__ == "__main__":
    exec(sys.argv[2])
    serve(socket.socket(fileno=int(sys.argv[1])))
