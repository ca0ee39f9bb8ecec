# SPDX-License-Identifier: Apache-2.0
"""What systemd is for a service: a socket that hears its messages (sd_notify(3)), sockets passed to it (sd_listen_fds(3)). And a thread of
the service that the kernel stops, as one is by a disk that does not answer."""
import contextlib
import ctypes
import os
import pathlib
import socket
import subprocess
import sys
import time

WAIT_S = 60
# Becomes the program, with the descriptors named by the first argument as 3, 4, ...
LAUNCHER = """
import fcntl, os, sys
moved = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1].split(",")]
for place, number in enumerate(moved):
    os.dup2(number, 3 + place)
    os.close(number)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class Service:
    """A pinfeedd with $NOTIFY_SOCKET. `sockets`: names and listening sockets, passed to it. `stop` expects status 0."""

    def __init__(self, folder, *flags, sockets=None, watchdog_ms=None, env=None, pass_fds=()):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.address = str(self.folder / "pinfeed.sock")
        self.log_path = self.folder / "log"
        self._messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._messages.bind(str(self.folder / f"notify-{time.monotonic_ns()}"))
        self.notify_address = self._messages.getsockname()
        environment = {**os.environ, **(env or {}), "NOTIFY_SOCKET": self.notify_address}
        if watchdog_ms is not None:
            environment["WATCHDOG_USEC"] = str(watchdog_ms * 1000)
        command = [os.environ["PINFEED_DAEMON"], "--socket-dir", str(self.folder), "--pool-bytes", "128MiB", "--http-listen", "off", *flags]
        if sockets:
            environment["LISTEN_FDS"] = str(len(sockets))
            environment["LISTEN_FDNAMES"] = ":".join(sockets)
            numbers = [listener.fileno() for listener in sockets.values()]
            pass_fds = (*pass_fds, *numbers)
            command = [sys.executable, "-c", LAUNCHER, ",".join(map(str, numbers)), *command]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, pass_fds=pass_fds)

    def receive(self, timeout_s=WAIT_S):
        """The next message as {variable: value}; None when none comes in time."""
        self._messages.settimeout(timeout_s)
        try:
            text = self._messages.recv(65536).decode()
        except TimeoutError:
            return None
        return dict(line.split("=", 1) for line in text.splitlines())

    def receive_until(self, variable):
        """All messages up to the first that sets the variable."""
        seen = []
        while not seen or variable not in seen[-1]:
            message = self.receive()
            assert message is not None, f"{variable} did not come; before it: {seen}; log:\n{self.log()}"
            seen.append(message)
        return seen

    def silent_for(self, variable, seconds):
        """Whether no message sets the variable for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = self.receive(left)
            if message is not None and variable in message:
                return False
        return True

    def log(self):
        return self.log_path.read_text(errors="replace")

    def thread(self, name):
        """The number of the daemon's thread of this name."""
        return thread_of(self.process.pid, name)

    def busy_worker(self):
        """The name of the worker that has run longest: small batches keep few of them busy, and the others sleep."""
        workers = [(int((task / "schedstat").read_text().split()[0]), name) for name, task in threads_of(self.process.pid) if name.startswith("worker")]
        return max(workers)[1]

    def stop(self):
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0, self.log()


def threads_of(pid):
    """The name and the folder below /proc of each thread of the process."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            yield (task / "comm").read_text().strip(), task


def thread_of(pid, name):
    """The number of the process's thread of this name."""
    for found, task in threads_of(pid):
        if found == name:
            return int(task.name)
    raise AssertionError(f"the process has no thread {name}")


# ptrace(2), linux/ptrace.h.
_SYSCALL, _DETACH, _SEIZE, _INTERRUPT, _GET_SYSCALL_INFO = 24, 17, 0x4206, 0x4207, 0x420E
_O_TRACESYSGOOD, _ALL_CHILDREN, _ENTRY = 1, 0x40000000, 1
_PREAD64 = {"x86_64": 17, "aarch64": 67}[os.uname().machine]
_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _request(request, thread, address=None, data=None):
    if _ptrace(request, thread, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request:#x} of thread {thread}: {os.strerror(number)}")


@contextlib.contextmanager
def stopped_thread(thread, in_read):
    """Inside, the kernel runs this one thread of a process no more; `in_read`: from its next pread(2) on, which does not return."""
    _request(_SEIZE, thread, None, _O_TRACESYSGOOD)
    try:
        _request(_INTERRUPT, thread)
        os.waitpid(thread, _ALL_CHILDREN)
        while in_read and not _enters_pread(thread):
            _request(_SYSCALL, thread)
            os.waitpid(thread, _ALL_CHILDREN)
        yield
    finally:
        _request(_DETACH, thread)


def _enters_pread(thread):
    # struct ptrace_syscall_info: op, 3 bytes of padding, arch, instruction pointer, stack pointer, then the call's number.
    info = (ctypes.c_uint64 * 11)()
    _request(_GET_SYSCALL_INFO, thread, ctypes.sizeof(info), ctypes.addressof(info))
    return info[0] & 0xFF == _ENTRY and info[3] == _PREAD64
