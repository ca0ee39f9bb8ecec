#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures `pinfeed.Batcher` beside an ordinary feed of the same JPEGs, with the same transforms and batches as large.

usage: batcher_rates.py ADDRESS FOLDER [--device cuda:0] [--rounds 5] [--seconds 4] [--processes 2] [--out FILE.json]

In: a running daemon, a folder of class folders of JPEGs. Out: a table, and a JSON file. 64 clients live in a few processes, one thread each,
which speak the frames of docs/protocol.md: a request costs them little, and what it costs is measured. The model answers with a few pixels of
each image, which are compared with those that the feed gave. Closed loop: each client has 8 requests on their way. Open loop: requests arrive
at random times that were planned before, at half of the rate of the closed loop; latency counts from the planned time.
"""

import argparse
import collections
import contextlib
import dataclasses
import gc
import itertools
import json
import multiprocessing
import pathlib
import random
import select
import statistics
import sys
import threading
import time

import numpy

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))
import pinfeed  # noqa: E402
from pinfeed._batcher import link  # noqa: E402

NAME = "bench"
CLIENTS, IN_FLIGHT, PROCESSES = 64, 8, 2
BATCH, MAX_DELAY_S = 64, 0.005
WARM_UP_SECONDS = 0.5  # of each round
DEADLINE_S = 30.0
OF_FEED = 0.8  # budgets: of the feed's rate; milliseconds beyond the maximum delay
BEYOND_DELAY_MS = 5
TRANSFORMS = [
    pinfeed.Resize(256),
    pinfeed.CenterCrop(224),
    pinfeed.ToDtype("float32", scale=True),
    pinfeed.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]


@dataclasses.dataclass
class Rates:
    """Medians of the rounds. CPU seconds are for 1,000 images."""

    feed: float  # images/s
    feed_cpu: float  # of the daemon and the trainer
    closed: float
    daemon_cpu: float
    model_cpu: float
    clients_cpu: float
    p50_ms: float
    p99_ms: float
    late_ms: float  # by how much a request left its client after the planned time, p99
    batch: float  # requests of a batch in the open loop, mean
    stolen: float  # share of the processors' time that a virtual machine's host took from it in the open loop: it makes tails long

    @property
    def of_feed(self):
        return self.closed / self.feed

    @property
    def p99_budget_ms(self):
        return MAX_DELAY_S * 1e3 + BEYOND_DELAY_MS


def pixels_of(images):
    """What the model says of a batch: 12 values of each image, whatever their framework."""
    few = images[:, :, ::112, ::112]
    return few.cpu().numpy() if hasattr(few, "cpu") else numpy.ascontiguousarray(few)


# ---- the processes ---------------------------------------------------------------------------------------------------------------


def serve(address, device, pipe):
    """The model's process: answers until the pipe says "end"; says what CPU time it has used when it is asked."""
    batcher = pinfeed.Batcher(
        NAME, transforms=TRANSFORMS, max_batch=BATCH, max_delay=MAX_DELAY_S, max_answer_bytes=64, device=device,
        framework="torch" if device else "numpy", address=address,
    )  # fmt: skip

    def answer():
        with contextlib.suppress(pinfeed.Error):  # it was closed
            for batch in batcher:
                batch.answer(pixels_of(batch.inputs))

    thread = threading.Thread(target=answer)
    thread.start()
    pipe.send("ready")
    while pipe.recv() != "end":
        pipe.send(time.process_time())
    batcher.close()
    thread.join()


class Client:
    """A connection to the batcher. `slots` get (client, slot) when a slot is free."""

    def __init__(self, address, most, slots):
        place = link.join(address, {"name": NAME, "slots": IN_FLIGHT, "max_request_bytes": most})
        self.link = link.Link(place)
        self.link._socket.setblocking(False)
        self._stride, self._answer_offset = int(place["slot_stride"]), int(place["answer_offset"])
        self._sent = {}
        self._slots = slots
        slots.extend((self, slot) for slot in range(IN_FLIGHT))

    def fileno(self):
        return self.link._socket.fileno()

    def send(self, slot, picture, planned):
        content, _ = picture
        at = slot * self._stride
        self.link.memory[at : at + len(content)] = content
        self._sent[slot] = picture, planned
        self.link.send(link.REQUEST, slot=slot, size=len(content), timeout_us=round(DEADLINE_S * 1e6))

    def receive(self):
        """Yields the planned time of each request that was answered."""
        while (frame := self.link.receive()) is not None:
            (_, expected), planned = self._sent.pop(frame.slot)
            at = frame.slot * self._stride + self._answer_offset
            if frame.code or self.link.memory[at : at + frame.bytes] != expected:
                raise RuntimeError(f"a request got a wrong answer: code {frame.code} {frame.text}. No figure of this run counts")
            self._slots.append((self, frame.slot))
            yield planned


def load(address, clients, pictures, seed, pipe):
    """A process of clients: runs the loops that the pipe names. `pictures`: (path, what the model answers)."""
    gc.disable()
    pictures = [(pathlib.Path(path).read_bytes(), expected) for path, expected in pictures]
    most = max(len(content) for content, _ in pictures)
    slots = collections.deque()
    all_clients = [Client(address, most, slots) for _ in range(clients)]
    endless = itertools.cycle(pictures)
    generator = random.Random(seed)
    pipe.send("ready")
    while (order := pipe.recv()) != "end":
        seconds, rate = order
        pipe.send(run(all_clients, slots, endless, seconds, rate, generator))


def run(clients, slots, pictures, seconds, rate, generator):
    """One round, until all requests are answered. `rate`: of the open loop; None: the closed one. Returns how many answers came in its time and
    in all, CPU seconds for all, the latencies of requests planned in its time, and how late they were sent."""
    cpu, begin = time.process_time(), time.perf_counter() + WARM_UP_SECONDS
    end = begin + seconds
    on_their_way, answered, sent_in_all, latencies, lateness = 0, 0, 0, [], []
    planned = time.perf_counter()  # of the next request
    while True:
        now = time.perf_counter()
        while slots and planned <= now and planned < end:
            client, slot = slots.popleft()
            client.send(slot, next(pictures), planned)
            on_their_way += 1
            sent_in_all += 1
            if rate is None:
                planned = now = time.perf_counter()
            else:
                sent = time.perf_counter()
                if planned >= begin:
                    lateness.append(sent - planned)
                planned += generator.expovariate(rate)
        if now >= end and on_their_way == 0:
            return answered, sent_in_all, time.process_time() - cpu, latencies, lateness
        wait = max(0.0, min(planned, end) - time.perf_counter()) if slots and planned < end else 1.0
        for client in select.select(clients, (), (), wait)[0]:
            for was_planned in client.receive():
                now = time.perf_counter()
                on_their_way -= 1
                answered += begin <= now < end
                if was_planned >= begin:
                    latencies.append(now - was_planned)
        if rate is None:
            planned = time.perf_counter()
        if now > end + DEADLINE_S:
            raise RuntimeError(f"{on_their_way} requests were not answered")


# ---- the measurement -------------------------------------------------------------------------------------------------------------


class Processes:
    """The model and its clients. A context manager."""

    def __init__(self, address, device, pictures, processes):
        context = multiprocessing.get_context("spawn")
        self._address = address
        self._members = []
        self._model = self._start(context, serve, address, device)
        self._clients = [
            self._start(context, load, address, CLIENTS // processes, pictures[number::processes], number) for number in range(processes)
        ]

    def _start(self, context, target, *arguments):
        here, there = context.Pipe()
        process = context.Process(target=target, args=(*arguments, there), daemon=True)
        process.start()
        there.close()
        self._members.append((process, here))
        if here.recv() != "ready":
            raise RuntimeError("a process of the benchmark did not start")
        return here

    def _cpu(self):
        self._model.send("cpu")
        return self._model.recv(), cpu_of_daemon(self._address)

    def round(self, seconds, rate=None):
        """Returns images/s, CPU seconds for 1,000 of them (clients, model, daemon), latencies and lateness in seconds."""
        before = self._cpu()
        for pipe in self._clients:
            pipe.send((seconds, rate and rate / len(self._clients)))
        said = [pipe.recv() for pipe in self._clients]
        model, daemon = (after - earlier for after, earlier in zip(self._cpu(), before))
        answered, in_all, clients = (sum(each[at] for each in said) for at in range(3))
        cpu = tuple(seconds / in_all * 1e3 for seconds in (clients, model, daemon))
        return answered / seconds, cpu, sum((each[3] for each in said), []), sum((each[4] for each in said), [])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, pipe in reversed(self._members):
            with contextlib.suppress(OSError):
                pipe.send("end")
            process.join(20)
            process.kill()


def cpu_of_daemon(address):
    return float(pinfeed.status(address)["cpu_seconds"])


def processor_seconds():
    """(all, stolen) so far."""
    fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[7]


def batches_requested(address):
    feed = next(feed for feed in pinfeed.status(address)["feeds"] if feed["name"] == NAME)
    return int(feed["requests_ended"]), int(feed["batches"])


def open_feed(address, folder, device, **options):
    framework = "torch" if device else "numpy"
    return pinfeed.open(
        str(folder), batch_size=BATCH, transforms=TRANSFORMS, device=device, framework=framework, address=address, rank=0, world_size=1, **options
    )


def expected_answers(address, folder, device):
    """(path, answer) of each picture, from an epoch of the feed."""
    paths = sorted(path for path in pathlib.Path(folder).glob("*/*.jpg"))
    answers = {}
    with open_feed(address, folder, device, epochs=1, drop_last=False, sample_ids=True) as feed:
        for batch in feed:
            answers.update(zip(batch.sample_id.tolist(), (row.tobytes() for row in pixels_of(batch.image))))
    if len(answers) != len(paths):
        raise RuntimeError(f"the feed has {len(answers)} images, and the folder {len(paths)}")
    return [(str(path), answers[number]) for number, path in enumerate(paths)]


def feed_round(address, folder, device, seconds):
    """Images/s of a feed whose trainer does with them what the model does, and CPU seconds for 1,000."""
    with open_feed(address, folder, device, shuffle=True, drop_last=True) as feed:
        batches = itertools.chain.from_iterable(itertools.repeat(feed))
        for _ in range(2 * feed.slots):
            next(batches)
        cpu, begin, count = -time.process_time() - cpu_of_daemon(address), time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            pixels_of(next(batches).image)
            count += BATCH
        took = time.perf_counter() - begin
        cpu += time.process_time() + cpu_of_daemon(address)
    return count / took, cpu / count * 1e3


def measure(address, folder, device, rounds, seconds, processes=PROCESSES, progress=lambda rounds, what: rounds):
    """The feed and the closed loop by turns, then the open loop."""
    pictures = expected_answers(address, folder, device)
    feed, closed, opened = [], [], []
    with Processes(address, device, pictures, processes) as batcher:
        for _ in progress(range(rounds), "batcher, closed loop"):
            feed.append(feed_round(address, folder, device, seconds))
            closed.append(batcher.round(seconds))
        rate = statistics.median(each[0] for each in closed)
        before, ticks = batches_requested(address), processor_seconds()
        for _ in progress(range(rounds), "batcher, open loop"):
            opened.append(batcher.round(seconds, rate / 2)[2:])
        requests, batches = (after - earlier for after, earlier in zip(batches_requested(address), before))
        all_time, stolen = (after - earlier for after, earlier in zip(processor_seconds(), ticks))
    quantile = lambda at, which: statistics.median(float(numpy.quantile(each[which], at)) for each in opened) * 1e3  # noqa: E731
    clients_cpu, model_cpu, daemon_cpu = (statistics.median(values) for values in zip(*(each[1] for each in closed)))
    feed_rate, feed_cpu = (statistics.median(values) for values in zip(*feed))
    return Rates(
        feed_rate, feed_cpu, rate, daemon_cpu, model_cpu, clients_cpu, quantile(0.5, 0), quantile(0.99, 0), quantile(0.99, 1), requests / batches, stolen / max(all_time, 1),
    )


def show(found, where):
    """Prints the figures in words."""
    print(f"a feed to {where}: {found.feed:,.0f} images/s, {found.feed_cpu:.2f} CPU s for 1,000 (daemon and trainer)")
    print(
        f"a batcher, {CLIENTS} clients, closed loop: {found.closed:,.0f} images/s = {found.of_feed:.0%} "
        f"({'met' if found.of_feed >= OF_FEED else 'MISSED'}: {OF_FEED:.0%}); CPU s for 1,000: "
        f"daemon {found.daemon_cpu:.2f}, model {found.model_cpu:.2f}, clients {found.clients_cpu:.2f}"
    )
    print(
        f"open loop at half of that: {found.p50_ms:.1f} ms (p50), {found.p99_ms:.1f} ms (p99; "
        f"{'met' if found.p99_ms <= found.p99_budget_ms else 'MISSED'}: {found.p99_budget_ms:.0f} ms), {found.batch:.1f} requests a batch; "
        f"sent at most {found.late_ms:.2f} ms late (p99); the machine's host took {found.stolen:.1%} of its processors"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", help="a GPU for the batches; default: the host")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="of the clients")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    found = measure(arguments.address, arguments.folder, arguments.device, arguments.rounds, arguments.seconds, arguments.processes)
    where = arguments.device or "the host"
    show(found, where)
    if arguments.out:
        arguments.out.write_text(json.dumps({**dataclasses.asdict(found), "to": where, "of_feed": found.of_feed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
