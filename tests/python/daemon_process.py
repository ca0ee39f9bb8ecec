# SPDX-License-Identifier: Apache-2.0
"""Starts and stops pinfeedd, the one that $PINFEED_DAEMON names."""

import os
import pathlib
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request

SHARED_S = 0.1  # HttpPages::kMaxPageAge


class Daemon:
    """A pinfeedd in a folder of its own. `address` is its socket; `stop` expects it to end by itself, with status 0. `under`: a command that
    becomes it, such as `prlimit --nofile=64`."""

    def __init__(self, folder, *flags, http_listen="off", user=None, under=()):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            os.chown(self.folder, user, user)
        self.address = str(self.folder / "pinfeed.sock")
        self.log_path = self.folder / "log"
        ready, writer = os.pipe()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*under, os.environ["PINFEED_DAEMON"], "--socket-dir", str(self.folder), "--http-listen", http_listen, "--ready-fd", str(writer), *flags],
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
                user=user,
                group=user,
                extra_groups=None if user is None else (),
            )
        os.close(writer)
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        answered = poll.poll(60000)
        text = os.read(ready, 64) if answered else b""
        os.close(ready)
        if text.strip() != b"ready":
            if not answered:
                self.process.kill()
            self.process.wait(60)  # it says why last
            raise AssertionError(f"pinfeedd did not start:\n{self.log()}")

    def http(self, path, host=None):
        """(status, text) of a page. Figures are shared for a while by all who ask: waits until they are of now."""
        time.sleep(SHARED_S)
        port = (self.folder / "http.port").read_text().strip()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={} if host is None else {"Host": host})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def log(self):
        return self.log_path.read_text(errors="replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log()
