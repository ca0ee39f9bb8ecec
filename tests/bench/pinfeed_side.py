# SPDX-License-Identifier: Apache-2.0
"""The daemon under test, and trainers that do nothing with their batches.

In: the build and the inputs. Out: a running daemon, contenders of measure.interleave, processes that take batches.
"""
import itertools
import json
import multiprocessing
import os
import select
import subprocess
import tempfile
import time

import psutil

import measure
import pinfeed

START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 30
_daemons = itertools.count()


class Daemon:
    """pinfeedd on a socket of its own, with its defaults but for `settings`. A context manager."""

    def __init__(self, build, root, **settings):
        self._folder = tempfile.TemporaryDirectory(prefix="pinfeed-bench-")
        self.address = os.path.join(self._folder.name, "pinfeed.sock")
        self.log_path = build / "bench" / f"pinfeedd{next(_daemons)}.log"
        self._log = open(self.log_path, "wb")
        reading, writing = os.pipe()
        options = {"socket-dir": self._folder.name, "allowed-roots": root, "http-listen": "off", "log-level": "warning", "ready-fd": writing, **settings}
        self._process = subprocess.Popen(
            [str(build / "server" / "pinfeedd")] + [f"--{name}={value}" for name, value in options.items()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[writing],
        )
        os.close(writing)
        ready = select.select([reading], [], [], START_TIMEOUT_S)[0] and os.read(reading, 64)
        os.close(reading)
        if not ready:
            self._process.kill()
            raise RuntimeError(f"pinfeedd did not start; its log is {self.log_path}:\n{self.log_path.read_text()}")
        self.process = psutil.Process(self._process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"pinfeedd did not stop within {STOP_TIMEOUT_S} s of SIGTERM") from None
        finally:
            self._log.close()
            self._folder.cleanup()

    def cpu_seconds(self):
        times = self.process.cpu_times()
        return times.user + times.system

    def resident_mib(self):
        return self.process.memory_info().rss / 2**20


class Trainer:
    """A contender that opens a feed, takes batches for a while and closes it. `arguments` are pinfeed.open's."""

    def __init__(self, daemon, path, arguments):
        self.open = lambda: pinfeed.open(str(path), address=daemon.address, rank=0, world_size=1, shuffle=True, **arguments)
        self._batch_size = arguments["batch_size"]
        self._address = daemon.address

    def round(self, seconds):
        """Samples a second. Every batch counts as full: the feeds drop the last one of an epoch."""
        with self.open() as feed:
            return measure.batches_per_second(self.batches(feed), 2 * feed.slots, seconds) * self._batch_size

    def batches(self, feed):
        return itertools.chain.from_iterable(itertools.repeat(feed))

    def close(self):
        pass

    def first_batch_ms(self):
        """On a daemon at rest: a feed before it would still be giving its memory back, on the same cores."""
        deadline = time.monotonic() + 30
        while int(pinfeed.status(self._address)["pool_used_bytes"]) != 0:
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon still holds memory of a feed that was closed 30 s ago")
        begin = time.perf_counter()
        feed = self.open()
        first = next(iter(feed))
        elapsed = time.perf_counter() - begin
        del first
        feed.close()
        return elapsed * 1e3

    def ready_batch_us(self, count, pause_s, beside):
        """How long next() takes when it need not wait, and, by turns, `beside`, after which next() is not timed: two lists of microseconds. Batches that were
        not ready do not count.
        """
        micros, others = [], []
        with self.open() as feed:
            epochs = itertools.chain.from_iterable(itertools.repeat(feed))
            for number in range(20 * count):
                time.sleep(pause_s)
                if number % 2:
                    begin = time.perf_counter()
                    made = beside()
                    others.append((time.perf_counter() - begin) * 1e6)
                    del made
                    next(epochs)
                    continue
                waited = feed.wait_seconds
                begin = time.perf_counter()
                first, second = next(epochs)
                end = time.perf_counter()
                if feed.wait_seconds == waited:
                    micros.append((end - begin) * 1e6)
                del first, second
                if len(micros) == count:
                    return micros, others
        raise RuntimeError(f"only {len(micros)} of {10 * count} batches were ready when they were asked for")


def spec_json(path, **spec):
    """A FeedSpec for the C++ trainer."""
    dataset = {"path": str(path), **{key: spec.pop(key) for key in ("sequence_length",) if key in spec}}
    return json.dumps({"dataset": dataset, "order": "SHUFFLE", **spec})


def take_epoch(daemon, path, trainers, arguments):
    """Processes that take one epoch each, together. Returns the daemon's CPU seconds for it."""
    context = multiprocessing.get_context("spawn")
    sharing = {"share": "broadcast", "group": f"bench-{time.monotonic_ns()}", "group_size": trainers} if trainers > 1 else {}
    counts = context.Queue()
    processes = [context.Process(target=_take_epoch, args=(daemon.address, path, dict(arguments, **sharing), counts)) for _ in range(trainers)]
    before = daemon.cpu_seconds()
    for process in processes:
        process.start()
    taken = {counts.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    if len(taken) != 1 or 0 in taken:
        raise RuntimeError(f"{trainers} trainers took {sorted(taken)} batches of the same epoch")
    return daemon.cpu_seconds() - before


def _take_epoch(address, path, arguments, counts):
    with pinfeed.open(str(path), address=address, shuffle=True, epochs=1, framework="numpy", **arguments) as feed:
        taken = sum(1 for _ in feed)
    counts.put(taken)


def jobs_together(daemon, path, jobs, seconds, arguments):
    """Processes with a seed each. Returns the images a second of all, and the daemon's CPU seconds for 1,000 of them."""
    context = multiprocessing.get_context("spawn")
    barrier, counts = context.Barrier(jobs + 1), context.Queue()
    processes = [context.Process(target=_take_for, args=(daemon.address, path, seconds, dict(arguments, seed=seed), barrier, counts)) for seed in range(jobs)]
    for process in processes:
        process.start()
    barrier.wait(120)
    before = daemon.cpu_seconds()
    taken = sum(counts.get(timeout=120) for _ in processes)
    cpu = daemon.cpu_seconds() - before
    for process in processes:
        process.join()
    return taken / seconds, cpu / taken * 1e3


def _take_for(address, path, seconds, arguments, barrier, counts):
    with pinfeed.open(str(path), address=address, shuffle=True, framework="numpy", **arguments) as feed:
        epochs = itertools.chain.from_iterable(itertools.repeat(feed))
        for _ in range(2 * feed.slots):
            next(epochs)
        barrier.wait(120)
        taken, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            next(epochs)
            taken += arguments["batch_size"]
    counts.put(taken)


def memory_growth(daemon, path, batches, arguments):
    """A process takes 1,000 batches, then `batches`. Returns by how many MiB the daemon and the process grew after the first 1,000."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_take_many, args=(there, daemon.address, path, batches, arguments))
    process.start()
    there.close()
    trainer_before = here.recv()
    daemon_before = daemon.resident_mib()
    here.send("go on")
    trainer_after = here.recv()
    daemon_after = daemon.resident_mib()
    here.send("end")
    process.join()
    return daemon_after - daemon_before, trainer_after - trainer_before


def _take_many(pipe, address, path, batches, arguments):
    with pinfeed.open(str(path), address=address, shuffle=True, framework="numpy", **arguments) as feed:
        epochs = itertools.chain.from_iterable(itertools.repeat(feed))
        me = psutil.Process()
        for count in (1000, batches):
            for _ in itertools.islice(epochs, count):
                pass
            pipe.send(me.memory_info().rss / 2**20)
            pipe.recv()
