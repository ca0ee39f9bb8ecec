# SPDX-License-Identifier: Apache-2.0
"""Where the tests find the build, and daemons for them."""

import os
import pathlib
import select
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PINFEED_BUILD_DIR") or ROOT / "build" / "release")
PACKAGE = ROOT / "client" / "python"

if str(PACKAGE) not in sys.path:
    sys.path.insert(0, str(PACKAGE))
os.environ["PYTHONPATH"] = str(PACKAGE)
os.environ.setdefault("PINFEED_LIBRARY", str(BUILD / "client" / "libpinfeed.so"))
os.environ.setdefault("PINFEED_DAEMON", str(BUILD / "server" / "pinfeedd"))
# Nothing of the user's or of whoever started the tests.
for name in ("PINFEED_ADDRESS", "PINFEED_CONFIG", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
    os.environ.pop(name, None)


class Daemon:
    """A pinfeedd in a folder of its own. `address` is its socket; `stop` expects it to end by itself, with status 0."""

    def __init__(self, folder, *flags):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.address = str(self.folder / "pinfeed.sock")
        self.log_path = self.folder / "log"
        ready, writer = os.pipe()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [os.environ["PINFEED_DAEMON"], "--socket-dir", str(self.folder), "--http-listen", "off", "--ready-fd", str(writer), *flags],
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
            )
        os.close(writer)
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        answered = poll.poll(60000)
        text = os.read(ready, 64) if answered else b""
        os.close(ready)
        assert text.strip() == b"ready", f"pinfeedd did not start:\n{self.log()}"

    def log(self):
        return self.log_path.read_text(errors="replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    """One daemon for all tests that only open feeds. Every path may be read; 4 slots and 2 workers."""
    running = Daemon(tmp_path_factory.mktemp("daemon") / "run", "--allowed-roots", "/", "--pool-bytes", "512MiB", "--workers", "2")
    yield running
    running.stop()
