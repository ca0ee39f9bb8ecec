# SPDX-License-Identifier: Apache-2.0
"""Where a load is tried: inputs, daemons, and whether anything is left in one afterwards."""

import contextlib
import pathlib
import re
import time

import numpy
import pinfeed
from census_test import same_threads
from daemon_process import Daemon
from hardship import SAMPLES, WIDTH, await_census, census, census_at_rest, eventually, read_status, sessions_of
from PIL import Image
from rows import Row

IMAGES = 64
# The C library's heaps of threads that ended stay, as do threads' cached stacks: a few maps, not one for each client.
MAY_KEEP_MAPS = 40


def resident_bytes(pid):
    return next(int(line.split()[1]) << 10 for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))


class Place:
    """`short`: seconds instead of minutes, with fewer of everything."""

    def __init__(self, scratch, short, seconds, say):
        self.scratch, self.short, self.seconds, self.say = pathlib.Path(scratch), short, seconds, say
        self.numbers, self.images = self.scratch / "numbers", self.scratch / "images"
        self.numbers.mkdir()
        numpy.save(self.numbers / "x.npy", numpy.arange(SAMPLES * WIDTH, dtype=numpy.int64).reshape(SAMPLES, WIDTH))
        (self.images / "class").mkdir(parents=True)
        for number in range(IMAGES):
            noise = numpy.random.default_rng(number).integers(0, 255, (15, 20, 3), numpy.uint8)
            Image.fromarray(noise).resize((320, 240)).save(self.images / "class" / f"{number:03}.jpg")
        time.sleep(2.1)  # what changed less than 2 s before it is opened is not kept open, and all daemons are to keep it
        self._started = 0

    @contextlib.contextmanager
    def daemon(self, *flags, under=()):
        """A daemon that has served a client and now serves nobody; `at_start` is what it holds then. It must end by itself, with status 0."""
        self._started += 1
        run = self.scratch / f"run{self._started}"
        daemon = Daemon(run, "--allowed-roots", str(self.scratch), "--workers", "2", *flags, http_listen="127.0.0.1:0", under=under)
        try:
            self.take_some(daemon)
            eventually("nothing is left of the client", lambda: not sessions_of(status := read_status(daemon.address)) and int(status["pool_used_bytes"]) == 0)
            daemon.at_start = census_at_rest(daemon)
            yield daemon
            assert daemon.process.poll() is None, f"the daemon ended:\n{daemon.log()}"
            daemon.stop()
            assert not re.search("PF_CHECK|bug at", daemon.log()), daemon.log()
        finally:
            if daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait()

    def take_some(self, daemon):
        """An honest client: opens a feed, checks its first batches, leaves. Returns how long it had to wait for the first."""
        began = time.monotonic()
        with pinfeed.open(self.numbers, batch_size=16, address=daemon.address, framework="numpy", timeout=60, open_timeout=60) as feed:
            batches = iter(feed)
            for number in range(4):
                assert (next(batches).x[:, 0] == WIDTH * (16 * number + numpy.arange(16))).all()
                if number == 0:
                    took = time.monotonic() - began
        return took


def nothing_left(daemon, of):
    """Waits until the daemon holds what it held at its start, and says so in a row."""
    now = await_census(daemon, daemon.at_start)
    eventually(lambda: f"threads {census(daemon).threads}, at the start {daemon.at_start.threads}", lambda: same_threads(census(daemon).threads, daemon.at_start.threads))
    same = f"{now.fds} fds, {sum(now.threads.values())} threads, {now.memfd_maps} shared maps, {now.pool_used_bytes} bytes of the pool"
    more = now.maps - daemon.at_start.maps
    return Row(f"left after {of}", f"nothing ({same}; other maps {more:+})", f"other maps <= +{MAY_KEEP_MAPS}", more <= MAY_KEEP_MAPS)
