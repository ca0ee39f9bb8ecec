# SPDX-License-Identifier: Apache-2.0
"""What is promised of death, on the driver that there is: clients killed under their own kernels, daemons killed under their clients.

    death.py PINFEEDD OUT [--scribble CUBIN] [--child-seconds S]

For both backends: (1) a client is killed while a kernel of its writes to a slot that it holds, without and with a forked child alive; other
sessions, older and newer, check every byte they get meanwhile; then the memory must be back. (2) the daemon is killed under clients that
hold a batch: it stays as it was, and the clients go on by themselves with a new daemon, no batch lost, none twice. (3) a client whose own
work broke its context leaves its feed at once, and its memory is back when it has ended. Without a cubin of scribble.cu the slot is
written, and the context of a stand-in broken, by copies. Every wait has a limit. Prints a line a promise and writes OUT/death.json; exit status 1 if one
does not hold.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import zlib

import numpy as np
import pinfeed
from pinfeed._feed import device

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from driver_memory import Gpu  # noqa: E402

BACKENDS = ("vmm-fd", "cuda-ipc")
SAMPLES, BATCH = 2048, 64
LEAVE_S = 3.0  # a busy GPU would be waited for for 10 s
PAUSE_S = 0.005  # of a witness behind each batch: a training step
LONG_PAUSE_S = 0.05  # of one that outlives a daemon: not done before all have begun and the daemon is killed
BATCHES = 120  # of those that outlive a daemon
TOLERANCE = 64 << 20  # of the GPU's free memory: the driver keeps a little for itself
rows = []
pattern = np.empty(0, np.uint8)  # of images, once their size is known


def row(backend, promise, seen, holds):
    rows.append({"backend": backend, "promise": promise, "seen": seen, "holds": bool(holds)})
    print(f"{'ok  ' if holds else 'FAIL'} {backend:9} {promise:74} {seen}", flush=True)


def within(seconds, what, holds):
    """Seconds until it holds; None after the limit."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            print(f"     not within {seconds} s: {what}", flush=True)
            return None
        time.sleep(0.005)
    return time.monotonic() - began


# ---- the processes -------------------------------------------------------------------------------------------------------------------


def expected(index):
    """The image of a sample: cheap to make, different in each."""
    return pattern + np.uint8(index * 13 % 256)


def make_data(folder):
    folder.mkdir()
    images = np.stack([expected(index) for index in range(SAMPLES)])
    np.save(folder / "image.npy", images)
    np.save(folder / "label.npy", np.arange(SAMPLES, dtype=np.int64))


class Daemon:
    def __init__(self, program, folder, data, log):
        folder.mkdir(mode=0o700, exist_ok=True)
        self.address = str(folder / "pinfeed.sock")
        ready, writer = os.pipe()
        sizes = ("--pool-bytes", "1GiB", "--pinned-bytes", "512MiB", "--gpu-bytes", "1GiB", "--workers", "2")
        with open(log, "ab") as file:
            flags = ("--socket-dir", str(folder), "--allowed-roots", str(data), "--http-listen", "off", "--gpus", "on")
            ends = ("--drain-timeout", "2s", "--ready-fd", str(writer))
            self.process = subprocess.Popen([program, *flags, *ends, *sizes], pass_fds=(writer,), stdout=file, stderr=file)
        os.close(writer)
        with os.fdopen(ready) as pipe:
            if pipe.read().strip() != "ready":
                raise SystemExit(f"pinfeedd did not start; see {log}")

    def gpu(self):
        return pinfeed.status(self.address)["gpus"][0]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -1


def open_feed(gpu, address, data, backend, **more):
    device.torch_memory = lambda ordinal: gpu.memory()
    sys.modules["torch"] = types.ModuleType("torch")  # PyTorch proper would take each process a second or two
    where = {"device": "cuda:0", "backend": backend, "framework": "torch", "rank": 0, "world_size": 1}
    return pinfeed.open(str(data), batch_size=BATCH, shuffle=True, seed=3, slots=4, address=address, timeout=60, **where, **more)


def wrong_in(batch):
    images, labels = batch.image.numpy(), batch.label.numpy()
    return sum(not np.array_equal(image, expected(int(label))) for image, label in zip(images, labels))


def victim(arguments):
    """Holds two batches, has a kernel write to the second one, forks if asked to, and waits for its end."""
    gpu = Gpu()
    feed = iter(open_feed(gpu, arguments.address, arguments.data, arguments.backend, zero_copy=True))
    held = [next(feed), next(feed)]
    scratch = gpu.allocate(held[1].image.nbytes)
    if os.path.exists(arguments.scribble):
        gpu.scribble(arguments.scribble, held[1].image.address, held[1].image.nbytes, arguments.seconds)
    child = 0
    if arguments.fork:
        child = os.fork()
        if child == 0:
            time.sleep(arguments.child_seconds)  # and nothing else: a data loader's worker
            os._exit(0)
    print(json.dumps({"child": child}), flush=True)
    while not os.path.exists(arguments.scribble):
        gpu.copy_async(held[1].image.address, scratch, held[1].image.nbytes)
    time.sleep(600)


def faulty(arguments):
    """Breaks its context before its batch is given back, and leaves the feed: {left_s} says how long that took."""
    gpu = Gpu()
    with open_feed(gpu, arguments.address, arguments.data, arguments.backend, zero_copy=True) as feed:
        batch = next(iter(feed))
        gpu.fault(arguments.scribble)
        del batch  # behind what fails
        began = time.monotonic()
    print(json.dumps({"left_s": time.monotonic() - began}), flush=True)


def witness(arguments):
    """Checks every byte of its batches until stdin ends; a line a batch, {index, labels, wrong}, and {backend, reconnects, held} last."""
    gpu = Gpu()
    with open_feed(gpu, arguments.address, arguments.data, arguments.backend, zero_copy=arguments.hold) as feed:
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        held, crc, taken = None, 0, 0
        while not over.is_set() and taken < arguments.batches:
            for batch in feed:
                if arguments.hold and taken == 2:
                    held, crc = batch, zlib.crc32(batch.image.numpy().tobytes())
                labels = zlib.crc32(batch.label.numpy().tobytes())
                print(json.dumps({"epoch": batch.epoch, "index": batch.index, "labels": labels, "wrong": wrong_in(batch)}), flush=True)
                taken += 1
                del batch
                time.sleep(arguments.pause)
                if over.is_set() or taken == arguments.batches:
                    break
        kept = held is None or zlib.crc32(held.image.numpy().tobytes()) == crc
        del held
        print(json.dumps({"backend": feed.backend, "reconnects": feed.reconnects, "kept": kept}), flush=True)


class Role:
    """This program as another process; its lines are read by a thread, so that it never waits for us."""

    def __init__(self, role, daemon_address, data, backend, *flags):
        side = str(pattern.shape[-1])
        command = [sys.executable, __file__, "--role", role, "--address", daemon_address, "--data", str(data), "--backend", backend, "--side", side]
        self.process = subprocess.Popen([*command, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines, self.errors = [], []
        self.readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(pipe, into):
        for line in pipe:
            into.append(line)

    def await_lines(self, count, seconds=90):
        waited = within(seconds, f"{count} lines of process {self.process.pid}", lambda: len(self.lines) >= count or self.process.poll() is not None)
        if waited is None or len(self.lines) < count:
            self.process.kill()
            raise RuntimeError("a process of the test did not do its work: " + "".join(self.errors)[-2000:])

    def finish(self, seconds=120, stop=False):
        """All it printed, once it has come to its end: by itself, or because it is told to stop."""
        try:
            if stop:
                self.process.stdin.close()
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError("a process of the test did not end: " + "".join(self.errors)[-2000:]) from None
        for reader in self.readers:
            reader.join(10)
        if status != 0:
            raise RuntimeError("a process of the test failed: " + "".join(self.errors)[-2000:])
        lines = [json.loads(line) for line in self.lines]
        return lines[:-1], lines[-1]


# ---- the promises --------------------------------------------------------------------------------------------------------------------


def client_killed(options, daemon, data, gpu, backend, fork):
    name = "client killed under its kernel, " + ("a forked child lives" if fork else "no child")
    seconds = options.child_seconds
    free_before = gpu.free_bytes()
    older = Role("witness", daemon.address, data, backend)
    older.await_lines(2)
    used_before = int(daemon.gpu()["arena_used_bytes"])
    flags = ["--scribble", options.scribble, "--seconds", str(seconds + 20), "--child-seconds", str(seconds), *(["--fork"] if fork else [])]
    dying = Role("victim", daemon.address, data, backend, *flags)
    dying.await_lines(1)
    arena = int(daemon.gpu()["arena_used_bytes"]) - used_before
    killed = time.monotonic()
    dying.process.kill()
    dying.process.wait(30)
    lingers = lambda: any(dying.process.pid in piece["pids"] for piece in daemon.gpu()["lingering"])  # noqa: E731
    lingered = within(20, "its memory lingers", lingers) if fork else None
    within(20, "the feed of the killed client ends", lambda: len(pinfeed.status(daemon.address)["feeds"]) == 1)
    is_back = lambda: not daemon.gpu()["lingering"] and int(daemon.gpu()["arena_used_bytes"]) == used_before  # noqa: E731
    back = None if fork else within(30, "nothing lingers", is_back)
    took = time.monotonic() - killed
    newer = [Role("witness", daemon.address, data, backend, "--batches", "40") for _ in range(2)]  # who would get the memory if anybody did
    seen = [witness.finish() for witness in newer]
    if fork:
        alive = time.monotonic() - killed < seconds - 0.5
        held = lingered is not None and (lingers() or not alive)
        row(backend, f"{name}: its memory lingers while the child lives", f"{arena >> 20} MiB of an arena", held)
        back = within(seconds + 30, "nothing lingers", is_back)
        took = time.monotonic() - killed
    row(backend, f"{name}: its memory is back", f"{took:.2f} s after the kill", back is not None and (not fork or took > seconds - 1))
    seen.append(older.finish(stop=True))
    batches = sum(len(lines) for lines, _ in seen)
    wrong = sum(line["wrong"] for lines, _ in seen for line in lines)
    right_backend = all(last["backend"] == backend for _, last in seen)
    row(backend, f"{name}: nothing of other sessions is overwritten", f"{wrong} wrong samples in {batches} batches", wrong == 0 and batches >= 80 and right_backend)
    freed = within(20, "the GPU's memory is free again", lambda: gpu.free_bytes() + TOLERANCE >= free_before)
    row(backend, f"{name}: the GPU's memory is free again", f"{(free_before - gpu.free_bytes()) / 2**20:.0f} MiB less than before", freed is not None)


def client_faults(options, daemon, data, backend):
    name = "client whose work broke its context"
    other = Role("witness", daemon.address, data, backend)
    other.await_lines(2)
    used_before = int(daemon.gpu()["arena_used_bytes"])
    role = Role("faulty", daemon.address, data, backend, "--scribble", options.scribble)
    _, last = role.finish()
    said = any("cannot be returned" in line and "CUDA_ERROR_" in line for line in role.errors)
    row(backend, f"{name}: leaves its feed at once", f"{last['left_s']:.2f} s", last["left_s"] < LEAVE_S)
    row(backend, f"{name}: is told that its memory stays", "", said)
    back = within(30, "its memory is back", lambda: int(daemon.gpu()["arena_used_bytes"]) == used_before and not daemon.gpu()["lingering"])
    row(backend, f"{name}: its memory is back once it has ended", "" if back is None else f"{back:.2f} s", back is not None)
    lines, _ = other.finish(stop=True)
    wrong = sum(line["wrong"] for line in lines)
    row(backend, f"{name}: nothing of another session is overwritten", f"{wrong} wrong samples in {len(lines)} batches", wrong == 0)


def daemon_killed(options, folder, data, log, backend):
    first = Daemon(options.pinfeedd, folder, data, log)
    whole, _ = Role("witness", first.address, data, backend, "--batches", str(BATCHES)).finish()
    clients = [Role("witness", first.address, data, backend, "--batches", str(BATCHES), "--pause", str(LONG_PAUSE_S), *flags) for flags in ([], ["--hold"])]
    for client in clients:
        client.await_lines(10)
    first.process.kill()
    first.process.wait(30)
    for client in clients:
        within(30, "the clients see that their daemon is gone", lambda client=client: any("reconnecting" in line for line in client.errors))
    second = Daemon(options.pinfeedd, folder, data, log)
    for client, what in zip(clients, ("owned tensors", "a batch held")):
        lines, last = client_rest(client)
        same = lines == whole
        row(backend, f"daemon killed, {what}: the client goes on by itself, nothing lost or twice", f"{len(lines)} batches, {last['reconnects']} reconnects", same and last["reconnects"] == 1)
        if what == "a batch held":
            row(backend, "daemon killed: a batch that is held stays as it was", "same bytes" if last["kept"] else "other bytes", last["kept"])
    row(backend, "daemon killed: the next one ends cleanly", "", second.stop() == 0)


def client_rest(client):
    client.await_lines(BATCHES + 1, 120)
    return client.finish()


def run(options):
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    log = out / "death-pinfeedd.log"
    gpu = Gpu()
    with tempfile.TemporaryDirectory(prefix="pinfeed-death-") as temporary:
        root = pathlib.Path(temporary)
        data = root / "data"
        make_data(data)
        for backend in [options.backend] if options.backend else BACKENDS:
            tests = [lambda: daemon_killed(options, root / "restarted", data, log, backend)]
            for fork in (False, True):
                tests.append(lambda fork=fork: with_daemon(options, root / "run", data, log, lambda d: client_killed(options, d, data, gpu, backend, fork)))
            tests.append(lambda: with_daemon(options, root / "faults", data, log, lambda d: client_faults(options, d, data, backend)))
            for test in tests:
                try:
                    test()
                except Exception as error:  # the others are run all the same
                    row(backend, "the test could be made", f"{type(error).__name__}: {error}", False)
    (out / "death.json").write_text(json.dumps(rows, indent=1))
    return 0 if all(one["holds"] for one in rows) else 1


def with_daemon(options, folder, data, log, test):
    daemon = Daemon(options.pinfeedd, folder, data, log)
    try:
        test(daemon)
    finally:
        status = daemon.stop()
    row("-", "the daemon ends cleanly after it", f"status {status}", status == 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pinfeedd", nargs="?")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--scribble", default="")
    parser.add_argument("--child-seconds", type=float, default=8.0)
    parser.add_argument("--role", choices=("victim", "witness", "faulty"))
    parser.add_argument("--address")
    parser.add_argument("--data")
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    parser.add_argument("--side", type=int, default=96, help="of images: a stand-in's kernel takes each byte by itself")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batches", type=int, default=10**9)
    parser.add_argument("--pause", type=float, default=PAUSE_S)
    parser.add_argument("--fork", action="store_true")
    parser.add_argument("--hold", action="store_true")
    options = parser.parse_args()
    global pattern
    pattern = (np.arange(3 * options.side**2, dtype=np.uint32) * 7).astype(np.uint8).reshape(3, options.side, options.side)
    if options.role == "victim":
        return victim(options)
    if options.role == "witness":
        return witness(options)
    if options.role == "faulty":
        return faulty(options)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
