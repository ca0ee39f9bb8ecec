# SPDX-License-Identifier: Apache-2.0
"""A worker process of a loader.

In: messages from the trainer on a pipe, and tasks from the daemon. Out: batches in the feed's memory.

The trainer sends ("epoch", seed, first, state) and then the descriptor of the index log, where `first` is the epoch's
first batch that is wanted, and `state` where the worker's lane continues; ("measure", generation, batch): compute this
batch in private memory; ("prepare", batch): the same, without an answer; ("feed", generation, invitation, first,
encoded): fill batches of the feed until it hangs up, where the feed's batch 0 is batch `first`, and `encoded` bytes of a
slot are for images; ("end", generation): the epoch is over, and another one may follow; ("exit",).

The worker answers ("measured", generation, batch, bytes, structure, images, generator), or ("instead", generation, batch, memory) with
the memory of an exception or `END`; ("attached", generation) once it is a feed's producer and has the feed's first batch; ("again",
generation, reason) after a feed hung up; and ("ended", generation, state) with where its lane begins the next epoch. For a batch
that does not fit into its slot it sends ("one-off", generation, batch), and then the descriptor of memory of the daemon's with
that batch.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import signal
from multiprocessing import reduction
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from .._base.errors import Code, Error, ResourceExhaustedError
from .._base.optional_torch import torch_or_none
from .batch_memory import END, BatchCopy, BatchTooLarge, BatchWriter, copy_batch
from .encoded import MAX_PATH_BYTES, BatchImages, Totals
from .fetch import Kind, Recipe, assemble, load
from .index_log import IndexLogReader
from .kept_generators import find_kept_generator
from .lanes import Lane, LaneOptions, LaneState
from .producer import Producer, Task, end_with_process
from .seeding import Seeder
from .structure import structure_of
from .worker_info import set_worker_info


_POLL_S = 0.001


class Job(NamedTuple):
    """What a worker needs to know. Picklable if its members are."""

    recipe: Recipe
    worker_init_fn: Optional[Callable[[int], Any]]
    num_workers: int
    base_seed: int
    grows: bool  # a batch larger than a slot gets memory of its own; otherwise it is an error
    lanes: Optional[LaneOptions]  # if a batch depends on those before
    trainer: Tuple[int, int]  # process id and start time
    shared: bool = False  # the batches go to other trainers too, which compare what they are of
    tells_of_generators: bool = False  # that the dataset keeps by then: each sample gets a seed, and nobody has asked for that


def process_stat(pid: int) -> List[bytes]:
    """Returns the fields of /proc/PID/stat behind the name: the state first. None of them if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []


def process_start_time(pid: int) -> int:
    """Returns when a process started, in ticks since the host did; 0 if there is no such process, or /proc hides it. With
    the process id it names a process for good.
    """
    try:
        return int(process_stat(pid)[19])
    except (IndexError, ValueError):
        return 0


def worker_main(pipe: Any, number: int, job: Job) -> None:
    """Runs a worker until the trainer says so, closes the pipe or ends."""
    pid, start = job.trainer
    try:
        end_with_process(pid)
        ended = process_start_time(pid) not in (start, 0)  # 0: /proc hides the trainer, or it has ended just now
    except ProcessLookupError:
        ended = True
    if ended:
        os._exit(1)
    signal.signal(signal.SIGINT, _do_nothing)  # the trainer handles Ctrl-C. Not SIG_IGN, which the dataset's own processes would inherit
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = Worker(pipe, number, job)
    with contextlib.suppress(EOFError, ConnectionError):  # the trainer closed the pipe
        worker.serve()


def _do_nothing(*_signal: Any) -> None:
    """A signal handler."""


class Worker:
    """Serves one trainer. Owns the pipe and its reader of the index log. Threads: one."""

    def __init__(self, pipe: Any, number: int, job: Job) -> None:
        self._pipe = pipe
        self._number = number
        self._job = job
        self._recipe = job.recipe
        self._log: Optional[IndexLogReader] = None
        self._seed = 0
        self._first = 0
        self._encoded_bytes = 0  # of a slot, for images
        self._attached = b""  # the latest invitation with which the daemon has, or may have, attached this worker
        self._lane: Optional[Lane] = None
        self._left = b""  # what `Lane.leave` returned
        self._iterable = job.lanes is not None and job.lanes.kind is Kind.ITERABLE
        self._prepared: Dict[int, Union[BatchWriter, BatchCopy]] = {}  # batches in private memory, by number
        self._failure: Optional[Exception] = None  # each batch raises it; of an iterable dataset the first
        self._failed = False  # it was raised in this epoch
        self._structure = ""  # of the latest batch, if it is shared
        self._init_failure: Optional[Exception] = None
        torch = torch_or_none()
        if torch is not None:
            torch.set_num_threads(1)
        self._seeder = Seeder()
        seed = self._seeder.seed_worker(job.base_seed, number)
        set_worker_info(number, job.num_workers, seed, job.recipe.dataset)
        if job.worker_init_fn is not None:
            try:
                job.worker_init_fn(number)
            except Exception as error:
                self._init_failure = error

    def serve(self) -> None:
        while True:
            message = self._pipe.recv()
            kind = message[0]
            if kind == "epoch":
                self._begin_epoch(*message[1:])
            elif kind == "measure":
                self._pipe.send(self._measure(*message[1:]))
            elif kind == "prepare":
                self._prepare(*message[1:])
            elif kind == "end":
                self._pipe.send(("ended", message[1], self._end_epoch()))
            elif kind == "feed":
                reason = self._produce(*message[1:])
                self._pipe.send(("again", message[1], reason))
            else:
                return

    def _begin_epoch(self, seed: int, first: int, state: LaneState) -> None:
        if self._log is not None:
            self._log.close()
        try:
            log = reduction.recv_handle(self._pipe)
        except (OSError, RuntimeError) as error:
            if _has_no_descriptor(self._pipe.fileno()):
                most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                raise ResourceExhaustedError(
                    f"DataLoader worker {self._number} cannot begin an epoch: it has opened as many files as it may ({most}, ulimit -n). Raise that, or "
                    "have the dataset or worker_init_fn open fewer",
                ) from error
            if isinstance(error, OSError):
                raise
            raise EOFError from error  # the trainer was interrupted before it sent it, and ends this worker
        self._log = IndexLogReader(log)
        self._seed = seed
        self._first = first
        self._prepared.clear()
        self._lane = None
        self._left = b""
        self._failure = self._init_failure
        self._failed = False
        if self._job.lanes is not None and self._failure is None:
            try:
                self._lane = Lane(self._recipe, self._job.lanes, self._number, self._job.num_workers, state)
            except Exception as error:
                self._failure = error

    def _end_epoch(self) -> bytes:
        """Computes what the lane has been dealt of an epoch that was left early, as torch's workers do: the next epoch's random
        numbers depend on it. Returns the state in which that begins; empty if it is not known.
        """
        lane = self._lane
        if lane is None:  # or asked again
            return self._left
        with contextlib.suppress(Error):  # not dealt
            while (indices := self._indices(lane.next)) is not END:
                self._compute_apart(lane.next, indices)
        self._lane = None
        self._prepared.clear()
        self._left = lane.leave()
        return self._left

    def _indices(self, batch: int, wait: bool = False) -> Any:
        """Returns a batch's indices, or `END`. In lanes, `wait` waits until they are there or the trainer sends a message:
        the trainer draws them late, as torch does.
        """
        assert self._log is not None  # the trainer begins with an epoch
        while True:
            try:
                return self._log.read(batch)
            except Error:
                if not wait or self._lane is None or self._pipe.poll(_POLL_S):
                    raise

    # ---- Computing ----

    def _compute(self, writer: BatchWriter, batch: int, indices: Any) -> None:
        """Finishes the writer with a batch, or with the exception that it raised. Raises BatchTooLarge."""
        lane = self._lane
        if self._job.shared:
            assert self._log is not None
            writer.state = self._log.digest(batch)
        try:
            if self._failure is not None:
                if self._failed and self._iterable:
                    writer.finish_end()  # it has no other batch
                    return
                self._failed = True
                raise self._failure
            if lane is None:
                samples = load(self._recipe, indices, self._seeder, self._seed, batch)
            else:
                try:
                    samples = lane.load(indices)
                except StopIteration:
                    if not self._iterable:
                        raise  # an error of the dataset
                    writer.state = lane.state()
                    writer.finish_end()
                    return
            content = self._assemble(writer, batch, indices, samples)
            if lane is not None:
                writer.state = lane.state()
            if self._job.shared and writer.dry:
                self._structure = structure_of(content)
            writer.finish(content)
        except BatchTooLarge:
            raise
        except Exception as error:
            if lane is not None:
                writer.state = lane.state()
            writer.finish_error(error, worker=self._number)

    def _assemble(self, writer: BatchWriter, batch: int, indices: Any, samples: Any) -> Any:
        if not self._recipe.encodes:
            writer.images = Totals(0, len(samples) if isinstance(samples, list) else 0)
            return assemble(self._recipe, samples, writer.allocate)
        images = BatchImages(batch, indices, len(samples))
        content = assemble(self._recipe, samples, writer.allocate, images)
        rows = images.rows()
        writer.images = images.totals(rows)
        writer.place_images(rows)
        return content

    def _compute_apart(self, batch: int, indices: Any) -> BatchWriter:
        """Computes a batch in private memory."""
        writer = BatchWriter(None, batch)
        self._compute(writer, batch, indices)
        return writer

    def _catch_up(self, batch: int) -> None:
        """Computes the batches of the lane before this one, in private memory."""
        lane = self._lane
        if lane is None or batch in self._prepared:
            return
        if lane.next > batch:
            raise Error(Code.INTERNAL, f"its next one is batch {lane.next}, and it cannot go back")
        while lane.next < batch:
            before = lane.next
            writer = self._compute_apart(before, None if self._iterable else self._indices(before))
            if before >= self._first:
                self._prepared[before] = writer

    def _measure(self, generation: int, batch: int) -> Tuple[Any, ...]:
        assert self._log is not None
        _forget_before(self._log.consumed(), self._prepared)
        writer = self._prepared.get(batch)  # there, if the trainer was interrupted and asks again
        if not isinstance(writer, BatchWriter):
            try:
                self._catch_up(batch)
                writer = self._compute_apart(batch, self._indices(batch))
            except Exception as error:
                writer = BatchWriter(None, batch)
                writer.finish_error(error, worker=self._number)
            self._prepared[batch] = writer
        memory = bytearray(writer.needed)
        if not writer.has_batch:
            writer.replay(memoryview(memory))
            return "instead", generation, batch, bytes(memory)
        recipe, place = self._recipe, ""
        if self._job.tells_of_generators:
            place = find_kept_generator(dataset=recipe.dataset, collate_fn=recipe.collate_fn)  # now: many are made for the first sample
        return "measured", generation, batch, writer.needed, self._structure, writer.images, place

    def _prepare(self, batch: int) -> None:
        """Computes a batch of the lane in private memory, if it has been dealt and is not computed yet."""
        lane = self._lane
        if lane is None or lane.next > batch:
            return
        with contextlib.suppress(Exception):  # told when the feed asks for it
            indices = self._indices(batch)
            if indices is not END:
                self._catch_up(batch)
                self._prepared[batch] = self._compute_apart(batch, indices)

    # ---- Filling ----

    def _produce(self, generation: int, invitation: bytes, first: int, encoded: int) -> str:
        """Fills batches until the feed hangs up. Returns why it could not attach; empty if it did."""
        assert self._log is not None
        self._encoded_bytes = encoded
        try:
            producer = Producer(invitation)
        except Error as error:
            # Otherwise it may have attached this worker, and dealt it a batch. The text is that of client/src/link/lifeline.cc: codes do not tell that.
            if error.code != Code.UNAVAILABLE and "the daemon refused" not in str(error):
                self._attached = invitation
            return str(error) or error.code.name
        if invitation == self._attached:  # the feed goes on, so it was this worker's connection that ended
            producer.close()
            raise Error(
                Code.ABORTED,
                f"DataLoader worker {self._number} lost its connection to the daemon, which lets nobody else fill its batch until this process ends: it "
                "ends now",
            )
        self._attached = invitation
        if first in self._prepared:
            self._pipe.send(("attached", generation))
        filled: Dict[int, memoryview] = {}  # of a lane, and perhaps not taken yet
        try:
            while True:
                task = producer.next()
                if task is None:
                    self._keep(filled)
                    return ""
                batch = first + task.batch_index
                _forget_before(self._log.consumed(), filled, self._prepared)
                try:
                    indices = self._indices(batch, wait=True)
                    if indices is END:
                        if self._job.shared:  # the epochs of other members may be longer: they are told
                            BatchWriter(task.memory, batch).finish_end()
                            producer.done(task)
                        else:
                            producer.end_of_data(task)
                        continue
                    self._catch_up(batch)
                except Exception as error:  # also what the indices' own classes raise as they are unpickled
                    what = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
                    producer.done(task, error=f"worker {self._number} cannot make batch {batch}: {what}")
                    continue
                self._fill(producer, task, generation, batch, indices)
                if self._lane is not None:
                    filled[batch] = task.memory[:]
                producer.done(task)
        finally:
            filled.clear()
            producer.close()

    def _keep(self, filled: Dict[int, memoryview]) -> None:
        """Copies the batches that the trainer may not have taken out of a feed that has ended: after the daemon's end,
        another feed asks for them.
        """
        assert self._log is not None
        _forget_before(self._log.consumed(), filled)
        for batch, memory in filled.items():
            if batch in self._prepared:  # it has no memory of its own yet
                continue
            copy = copy_batch(memory, batch)
            if copy is not None:
                self._prepared[batch] = copy

    def _fill(self, producer: Producer, task: Task, generation: int, batch: int, indices: Any) -> None:
        """Writes a batch to a slot, or what stands for it."""
        memory = task.memory
        writer = BatchWriter(memory, batch)
        prepared = self._prepared.pop(batch, None)
        try:
            if prepared is not None:
                prepared.replay(memory)
            else:
                self._compute(writer, batch, indices)
        except BatchTooLarge as large:
            samples = "" if self._iterable else f" of indices {_shown(indices)}"
            size = f"batch {batch}{samples} needs {large.needed} bytes, and there are {len(memory)} for each"
            try:
                if not self._job.grows:
                    advice = self._advice(large.needed, len(memory), (prepared or writer).images)
                    raise ResourceExhaustedError(f"{size}: {advice}")
                self._send_one_off(producer, task, generation, batch, prepared or writer, large.needed, size)
            except (ResourceExhaustedError, OSError) as error:
                BatchWriter(memory, batch).finish_error(error.with_traceback(None), worker=self._number)
                return
            BatchWriter(memory, batch).finish_elsewhere()

    def _advice(self, needed: int, capacity: int, images: Totals) -> str:
        rest = needed - images.bytes
        parts = []
        if images.bytes > self._encoded_bytes:
            paths = "" if images.largest <= MAX_PATH_BYTES else ", or return paths in place of the files' bytes"
            parts.append(
                f"{images.bytes} of them are encoded images, the largest of which has {images.largest} bytes and is of index "
                f"{_shown(images.largest_sample)}. Give max_encoded_bytes={images.bytes} or more{paths}"
            )
        if rest > capacity - self._encoded_bytes:
            give = "give" if not images.bytes else f"{rest} of them are not encoded images. Give"
            parts.append(f"{give} max_batch_bytes={rest} or more" + ("" if self._job.shared or self._recipe.encodes else ", or omit it"))
        return ". ".join(parts)

    def _send_one_off(
        self, producer: Producer, task: Task, generation: int, batch: int, source: Union[BatchWriter, BatchCopy], needed: int, size: str
    ) -> None:
        """Copies a batch to memory of its own, which goes to the trainer. Raises ResourceExhaustedError if there is none."""
        try:
            fd = producer.memory(task, needed)
        except ResourceExhaustedError as refusal:
            raise ResourceExhaustedError(
                f"{size}. The daemon gives it no memory of its own: {refusal}. Give max_batch_bytes={needed} or more if all batches fit so, make "
                "batches smaller, use fewer workers or a smaller prefetch_factor, or have the operator raise pool_bytes or user_pool_bytes",
            ) from None
        if fd is None:  # the feed has ended: another one asks for the batch
            data = bytearray(needed)
            source.replay(memoryview(data))
            self._prepared[batch] = BatchCopy(bytes(data))
            return
        try:
            with mmap.mmap(fd, needed) as pages, memoryview(pages) as memory:
                source.replay(memory)
            self._pipe.send(("one-off", generation, batch))
            reduction.send_handle(self._pipe, fd, self._job.trainer[0])
        finally:
            os.close(fd)


def _has_no_descriptor(fd: int) -> bool:
    """Whether this process lacks the two descriptors that receiving one takes."""
    spare: List[int] = []
    try:
        spare.extend(os.dup(fd) for _ in range(2))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        while spare:
            os.close(spare.pop())
    return False


def _forget_before(batch: int, *kept: Dict[int, Any]) -> None:
    for each in kept:
        for number in [number for number in each if number < batch]:
            del each[number]


def _shown(indices: Any) -> str:
    text = repr(indices)
    return text if len(text) <= 200 else text[:196] + " ..."
