# SPDX-License-Identifier: Apache-2.0
"""The iterator of a loader whose workers fill a feed.

In: a loader and the epoch that begins. Out: its batches, in the sampler's order.

Long because: it is one class, whose invariant about the next batch all of its steps keep.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import mmap
import operator
import os
import pickle
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import numpy

from .._base.abi import logger
from .._base.checks import MAX_NAME_BYTES, MAX_SLOTS, MIN_SLOTS
from .._base.errors import Code, DataLossError, DeadlineExceededError, Error, LargeBatchWarning, ResourceExhaustedError, UnavailableError, invalid
from .._feed.open import RECONNECT_TIMEOUT_S
from .._worker.batch_memory import ELSEWHERE, END, UnpickleError, read_batch, read_tag, used_bytes
from .._worker.encoded import Totals
from .._worker.epoch_state import Epoch
from .._worker.fetch import Kind
from .._worker.index_log import MAX_IN_FLIGHT, IndexLog
from .._worker.lanes import Lanes, LaneState
from .arguments import DEFAULT_PREFETCH
from .device_copies import DeviceCopies
from .first_batch import FirstBatch
from .iterator import LoaderIterator
from .produced_feed import ProducedFeed, open_produced
from .share import MembersDiffer, refused, too_late
from .supervisor import Supervisor
from .worker_pool import worker_deaths

if TYPE_CHECKING:
    from .data_loader import DataLoader

_HELD_SLOTS = 2  # by the trainer: the batch in use, and the one before it
_MIN_SLACK_BYTES = 64 * 1024
_PAGE = 4096
_POLL_S, _RETRY_S, _TELL_S = 0.01, 0.1, 30.0
_CLOSE_PATIENCE_S = 2.0
_served: Set[Optional[str]] = set()  # the addresses of the daemons at which loaders of this process have had feeds
_NO_MORE = object()  # indices: the sampler has ended


class _WrongBatch(Error):
    """The feed gives another batch than the next one, and none of the later ones would be right."""


class _Received(NamedTuple):
    """What a worker wrote: a batch, or an exception in its place, and its state behind it."""

    content: Any
    error: Optional[Exception]
    state: bytes


class WorkerIterator(LoaderIterator):
    """Takes the batches of a feed that workers fill.

    Owns the index log, the feed and its supervisor, and the workers unless they are persistent. Errors: an exception
    of the dataset is raised in place of its batch, and the next call returns the next batch. If a signal handler raises, as
    for Ctrl-C, the next call returns the batch that this one would have.

    Invariant: before the feed is asked for a batch, the log has `_ahead` batches from that one on, or the epoch's end.
    The daemon deals no batch beyond those, because it has at most `_ahead - 1` slots. In lanes `_ahead` is what torch's loader has asked
    its sampler for when it returns that batch, and the daemon has as many slots: the feed keeps the latest batch's until then.

    `_number` is the number of the next batch, from the epoch's start. In lanes it counts also what lanes that have ended
    would give.
    """

    _SHARED_LENGTH = (
        "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset replica at each worker. "
        "Please see https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
    )

    def __init__(self, loader: "DataLoader[Any]", epoch: Epoch) -> None:
        super().__init__(loader, epoch)
        self.over = False
        self._closed = False  # whether `close` has reached its end
        self._feed: Optional[ProducedFeed] = None
        self._supervisor: Optional[Supervisor] = None
        self._first_batch: Optional[FirstBatch] = None
        self._share = loader._share
        self._copies = DeviceCopies(loader._ordinal) if loader._ordinal >= 0 and self._share is None else None
        if self._copies is not None:
            self._finish = None
        self._one_offs: List[Any] = []  # weak references to the memory of batches that did not fit into a slot
        self._pages: Optional[mmap.mmap] = None  # of the next batch, if it is in memory of its own and has arrived
        self._before: LaneState = None  # of the worker of the pending batch
        self._owner = os.getpid()
        workers = self._arguments.num_workers
        in_flight = workers * (loader.prefetch_factor or DEFAULT_PREFETCH) * (1 if self._share is None else self._share.size)
        spare = 2 if loader._retry_after else 0  # which the daemon keeps for a batch that goes to a second worker and a third
        self._least_slots = MIN_SLOTS + spare
        self._slots = min(max(in_flight + _HELD_SLOTS + spare, self._least_slots), loader._carried.most_slots)
        self._ahead = self._slots + 1
        self._lanes: Optional[Lanes] = None
        if loader._lane_options is not None:
            if in_flight > MAX_IN_FLIGHT:  # num_workers or prefetch_factor were set since the constructor looked
                raise invalid(f"DataLoader: num_workers * prefetch_factor is {in_flight}, over {MAX_IN_FLIGHT}, the limit of batches in flight of this loader")
            self._ahead = in_flight + 1
            self._slots = min(max(self._ahead, MIN_SLOTS), MAX_SLOTS)
            self._lanes = Lanes(loader._lane_options, loader.dataset, workers, loader._kept_starts, epoch)
        self._number = epoch.first if self._lanes is None else self._lanes.position
        self._first = self._number
        # For workers that take the place of others, and for those of a group whose slowest member is behind this one.
        self._kept = 0 if self._lanes is None and self._share is None else self._slots
        self._log = IndexLog(self._number)
        self._pool = loader._start_workers(epoch.base_seed)
        self._indices = itertools.chain(epoch.indices, [_NO_MORE])
        self._drawn: Tuple[int, List[Any]] = -1, []  # a batch's number and its indices, until they are in the log
        _iterators.add(self)
        try:
            self._pool.begin_epoch(epoch.seed, self._number, self._lanes, self._log)
            self._append(self._ahead - (self._lanes is not None))
            if self._log.end == self._number:
                return
            # Until the feed is opened.
            self._first_batch = FirstBatch(self._pool, loader._retry_after, loader.timeout, self._lanes)
            capacity, structure = loader._carried.capacity, loader._carried.structure
            if capacity and (self._share is None or structure) and (loader._encoded is None or loader._encoded.images):
                self._open(capacity)
            else:
                self._first_batch.begin(self._number)
        except BaseException:  # some workers may have been told, or half told: the next epoch starts others
            self._pool.stop()
            self.close()
            raise

    def _append(self, ahead: int) -> None:
        """Adds the indices of the following batches to the log."""
        while self._log.end is None and self._log.appended < self._number + ahead:
            number = self._log.appended
            if self._drawn[0] != number:
                self._drawn = number, []
                self._drawn[1].extend(itertools.islice(self._indices, 1))  # no signal handler runs between the sampler and the list
            if not self._drawn[1]:
                self.close()
                raise Error(
                    Code.FAILED_PRECONDITION,
                    f"the sampler raised, or was interrupted, when it was asked for batch {number}, so the order of the batches behind it is lost: "
                    "continue from a state_dict(), or begin another epoch",
                )
            if self._drawn[1][0] is _NO_MORE:
                self._epoch.drawn.all = True
                self._log.append_end()
            else:
                self._epoch.drawn.add(number, self._drawn[1][0])
                try:
                    self._log.append(self._drawn[1][0])
                except (pickle.PicklingError, AttributeError, TypeError) as error:  # what pickle raises
                    raise TypeError(
                        f"DataLoader: what the sampler gives for batch {number} cannot be sent to the workers: {error}. Have the sampler give numbers or "
                        "other values that pickle can write, or use num_workers=0"
                    ) from error

    def state_dict(self) -> Dict[str, Any]:
        pending = self._pending is not None
        lanes = None if self._lanes is None else self._lanes.saved((self._before,) if pending else None)
        return self._epoch.state(self._yielded - pending, lanes)

    def _next(self) -> Any:
        if self._pending is None:
            self._fetch()
            self._check_length()
        received: Any = self._pending
        if received.error is None:
            return received.content
        error, self._pending = received.error, None
        del received
        if isinstance(error, (MembersDiffer, _WrongBatch)):
            self.close()
        try:
            raise error
        finally:
            del error  # otherwise its traceback and this frame would keep each other, and the iterator, alive

    def _fetch(self) -> None:
        """Waits for the next batch, which is then pending. Raises StopIteration at the end."""
        if os.getpid() != self._owner:
            raise Error(Code.FAILED_PRECONDITION, "this iterator belongs to the parent process; a forked child must begin its own: iter(loader)")
        while True:
            self._log.consume(max(self._first, self._number - self._kept))
            self._append(self._ahead)
            if self._number == self._log.end:
                raise StopIteration
            received = self._measure() if self._feed is None else None
            if received is None:
                received = self._take()
            self._advance(received)
            if received.content is not END:
                break
            assert self._lanes is not None
            if self._lanes.end():
                raise StopIteration

    def _advance(self, received: "_Received") -> None:
        """Makes the batch behind this one the next."""
        lanes, number = self._lanes, self._number
        worker = number % self._arguments.num_workers
        before = None if lanes is None else lanes.states[worker]
        behind, end, state = number + 1, received.content is END, received.state
        # Python runs signal handlers only at calls and backward jumps: there are none until the numbers agree again.
        if lanes is not None:
            lanes.states[worker] = number, state
            lanes.position = behind
        self._number = behind
        if not end:
            self._yielded += 1
            self._before = before
            self._pending = received
        self._pages = None
        if self._feed is not None and self._supervisor is not None:
            if lanes is None:
                self._feed.drop_before(behind - self._feed_first)
            self._supervisor.advance(behind)
            self._supervisor.pass_on_warnings()

    # ---- The feed ----

    def _open(self, capacity: int, holder: Optional[int] = None) -> None:
        arguments = self._arguments
        name = type(arguments.dataset).__name__.encode("utf-8")[:MAX_NAME_BYTES].decode("utf-8", "ignore")
        lanes = 0 if self._lanes is None else arguments.num_workers
        group = None
        if self._share is not None:
            fingerprint = self._share.fingerprint_of(arguments.dataset, self._carried.structure, self._epoch.seed, self._number)
            group = self._share.name(arguments.epoch), self._share.size, fingerprint
        ordinal = -1 if self._copies is None else arguments.ordinal
        retry_ms = round(arguments.retry_after * 1000)
        images = None if arguments.encoded is None else arguments.encoded.spec(self._epoch.seed)

        def open_feed(slots: int) -> ProducedFeed:
            return open_produced(name, capacity, slots, arguments.timeout or None, arguments.address, ordinal, lanes, retry_ms, group, images)

        try:
            feed = self._with_fewer_slots(open_feed, capacity)
        except Error as error:
            if self._share is not None and error.code == Code.FAILED_PRECONDITION:
                raise refused(self._share, error) from error
            if error.code == Code.RESOURCE_EXHAUSTED:
                size = f"{self._slots} slots of {capacity} bytes, for num_workers={arguments.num_workers} and prefetch_factor={arguments.prefetch_factor}"
                fewer = ', or give seeding="sample", for which fewer slots do' if self._lanes is not None and arguments.kind is Kind.MAP else ""
                raise ResourceExhaustedError(f"{error}. This DataLoader's feed has {size}: with little memory, lower these, or batch_size{fewer}") from error
            raise
        supervisor = None
        try:
            if self._share is not None:
                begun = feed.position()
                if begun:  # told before its workers are dealt batches that this loader's log does not have yet
                    raise too_late(self._share, arguments.epoch, self._number + begun)
            supervisor = Supervisor(self._pool, feed, self._number, self._lanes, 0 if arguments.encoded is None else arguments.encoded.reserved, holder)
            supervisor.start()
            self._feed_capacity = self._carried.capacity = capacity
            self._feed_first = self._number
            self._supervisor, self._feed = supervisor, feed
            if self._close_asked:
                feed.interrupt(Error(Code.CANCELLED, "the iterator was closed while it opened its feed"))
        except BaseException:
            feed.close()
            if supervisor is not None:
                supervisor.stop()
            raise

    def _with_fewer_slots(self, open_feed: Callable[[int], ProducedFeed], capacity: int) -> ProducedFeed:
        """Returns the feed, with as many slots as the daemon allows. Later epochs ask for no more."""
        arguments, slots = self._arguments, self._slots
        refusal: Optional[str] = None  # the first one, which has the numbers of what is wanted
        while True:
            try:
                feed = self._opened(open_feed, slots)
                break
            except ResourceExhaustedError as error:
                refusal = refusal or str(error)
                # A worker's place in the data, or the other members, rely on the number of slots.
                if self._lanes is not None or self._share is not None or slots <= self._least_slots:
                    raise ResourceExhaustedError(refusal) from error
                slots = max(self._least_slots, slots // 2)
        _served.add(arguments.address)
        if refusal is not None:
            self._carried.most_slots = slots
            logger.warning(
                "DataLoader: the daemon has no room for %d batches of %d bytes at a time, as num_workers=%d and prefetch_factor=%s want, but for %d, so that "
                "fewer workers may load at once: %s",
                self._slots, capacity, arguments.num_workers, arguments.prefetch_factor, slots, refusal,
            )  # fmt: skip
        return feed

    def _opened(self, open_feed: Callable[[int], ProducedFeed], slots: int) -> ProducedFeed:
        """Opens a feed. If the daemon has served this process, and is gone or stopped, waits for it or the next one as long as a feed does."""
        begun = time.monotonic()
        told = 0
        while True:
            try:
                return open_feed(slots)
            except (UnavailableError, DeadlineExceededError) as error:
                waited = time.monotonic() - begun
                if self._arguments.address not in _served or waited >= RECONNECT_TIMEOUT_S or self._close_asked:
                    raise
                if waited >= told * _TELL_S:
                    told += 1
                    logger.warning("the DataLoader's epoch waits for a daemon: %s", str(error))  # not the error, whose frames handlers would keep
            time.sleep(_RETRY_S)  # polled: there is nothing to wait on while no daemon listens

    def _take(self) -> "_Received":
        """Returns the next batch, or the exception that its worker raised."""
        assert self._feed is not None and self._supervisor is not None
        self._feed.drop_before(self._number - self._feed_first)
        if self._copies is not None:
            self._copies.let_go(wait=self._feed.held >= _HELD_SLOTS)
        try:
            # With too few free slots, workers would wait for the trainer: it gets copies of what it holds beyond its share.
            read = functools.partial(self._read, copy=self._feed.held >= _HELD_SLOTS)
            received: _Received = self._feed.take(self._number - self._feed_first, read)
        except DeadlineExceededError as error:
            raise self._late() from error
        except DataLossError as error:
            raise self._deaths_or(error) from error
        except Exception:
            if self._closed:  # by the interpreter's end. Only a daemon thread can be here, which ends with it: as with torch's loader, without a word
                raise SystemExit from None
            if self._feed is not None and self._feed.interrupted:
                self.close()
            raise
        return self._take_one_off() if received.content is ELSEWHERE else received

    def _take_one_off(self) -> "_Received":
        """Returns a batch that did not fit into its slot. The slots of the next epoch have room for it."""
        assert self._supervisor is not None
        arguments = self._arguments
        if self._pages is None:
            self._pages = self._supervisor.one_offs.take(self._number, arguments.timeout)
        if self._pages is None:
            raise self._late()
        pages = self._pages
        if not self._carried.warned_of_size:
            self._carried.warned_of_size = True
            warnings.warn(
                f"DataLoader: batch {self._number} needs {len(pages)} bytes, and there are {self._feed_capacity} for each batch. It got memory of its "
                "own, as larger ones will: that takes longer, and counts towards what the user may have at the daemon. From the next epoch on there "
                f"is room for batches like it; max_batch_bytes={len(pages)} or more gives it from the first, and makes each batch that is larger still an error",
                LargeBatchWarning,
                stacklevel=6,
            )
        if len(pages) > self._carried.capacity:
            self._carried.capacity = _capacity_for(len(pages))
        self._one_offs = [each for each in self._one_offs if each() not in (None, pages)]
        if len(self._one_offs) >= _HELD_SLOTS:  # what the trainer holds beyond its share are copies
            return self._read(_flat(bytearray(pages)))
        self._one_offs.append(weakref.ref(pages))
        return self._read(_flat(pages))

    def _read(self, memory: Any, images: Any = None, image_error: Any = None, copy: bool = False) -> "_Received":
        """Returns the batch in a slot, or the exception that is there instead. Raises what a signal handler raises."""
        if copy:
            memory, images = _copied(memory[: used_bytes(memory)]), None if images is None else _copied(images)
        try:
            return self._read_once(memory, images, image_error)
        except Exception as error:
            failure = error.__cause__ if isinstance(error, UnpickleError) and error.__cause__ is not None else error
            first = repr(error)
        try:  # what the memory holds is raised each time that it is read
            self._read_once(memory, images, image_error)
        except Exception as error:
            if repr(error) == first:
                del failure  # as below
                state = b""
                with contextlib.suppress(Error):
                    _, state = read_tag(memory)
                return _Received(None, error.with_traceback(None), state)  # the worker's is in its text
        try:
            raise failure
        finally:
            del failure  # otherwise its traceback and this frame would keep each other alive

    def _read_once(self, memory: Any, images: Any, image_error: Any) -> "_Received":
        number, state = read_tag(memory)
        if number != self._number:
            joined = "" if self._share is None else ": a loader joins a group before its first batch, so restart all members together"
            raise _WrongBatch(Code.INTERNAL, f"batch {number} was written where batch {self._number} belongs{joined}")
        if self._share is not None and state and state != self._log.digest(number):
            raise MembersDiffer(
                Code.FAILED_PRECONDITION,
                f"batch {number} has other indices in another loader of group {self._share.group!r}: give all of them the same shuffle, "
                "sampler or batch_sampler, and generator=torch.Generator().manual_seed(n) with the same n, or samplers with the same seed",
            )
        if self._arguments.encoded is not None and image_error is not None and image_error[0]:
            self._arguments.encoded.on_error(number, bytes(image_error.tolist()))
        content = read_batch(memory, images=images) if self._copies is None else self._copies.read(memory, images)
        if content is END and self._share is not None and self._lanes is None:
            raise MembersDiffer(
                Code.FAILED_PRECONDITION,
                f"the epoch of another loader of group {self._share.group!r} ends before batch {number}: give all of them samplers of one "
                "length, and the same batch_size and drop_last",
            )
        return _Received(content, None, state)

    def _deaths_or(self, error: DataLossError) -> Exception:
        """Ends the epoch. Returns the error of workers that keep dying, which the daemon may notice before their
        supervisor; `error` if none died.
        """
        assert self._supervisor is not None
        self._supervisor.stop()
        deaths = list(dict.fromkeys(self._supervisor.deaths + self._pool.deaths()))  # both may tell of the last one
        self.close()
        return worker_deaths(deaths) if deaths else error

    def _late(self) -> DeadlineExceededError:
        if self._lanes is not None:  # at its first batch it is not attached yet, so that the status does not name it
            advice = f": process {self._pool.processes[self._number % len(self._pool.processes)].pid} makes this batch"
        elif self._feed is None:
            advice = ". One of them makes the first batch alone: if it waits for the others, give max_batch_bytes="
        else:  # the daemon counts from where the feed began
            group = "" if self._share is None else " Or a member of the group is missing, or holds its batches."
            place = f" (there, this is batch {self._number - self._feed_first})" if self._feed_first else ""
            advice = f"; `pinfeed status` names the slowest{place}, and gets no answer if the daemon is stopped.{group}"
        return DeadlineExceededError(
            f"DataLoader timed out after {self._arguments.timeout:g} seconds: no worker had batch {self._number} ready. Raise timeout=, or "
            f"find out with py-spy what the workers wait for{advice}",
        )

    def _close_feed(self) -> None:
        """May be called again after a signal handler has interrupted it."""
        feed, supervisor = self._feed, self._supervisor
        if self._copies is not None:
            self._copies.close()
        if feed is not None:
            feed.close()  # the workers see a hang-up
        if supervisor is not None:
            supervisor.stop()
        self._feed = self._supervisor = None

    def _measure(self) -> "Optional[_Received]":
        """Opens the feed when a worker has computed the next batch. Returns what it has instead, if it has none."""
        arguments = self._arguments
        try:
            assert self._first_batch is not None
            message = self._first_batch.take(self._number)
        except BaseException as error:
            if isinstance(error, RuntimeError) or -1 in self._pool.ends:  # a worker could not be replaced
                self.close()
            raise
        if message is None:
            raise self._late()
        if message[0] == "instead":
            return self._read(_flat(bytearray(message[3])))
        self._carried.structure = message[4]
        if message[6]:
            self._carried.warn_of_kept_generator(message[6], arguments.excludes_worker, 6)
        first: Totals = message[5]
        needed = message[3] - first.bytes
        most = self._most_samples() if first.samples < (arguments.batch_size or 0) else 0  # a sampler's length may draw random numbers
        whole = min(arguments.batch_size or 0, most or sys.maxsize)
        if most and 0 < first.samples < whole:  # a short one, behind a state
            needed = -(-needed * whole // first.samples)
        extra = 0 if arguments.encoded is None else arguments.encoded.measure(first, whole)
        holder = self._first_batch.holder if self._lanes is None else None  # each lane has its own worker
        self._open((arguments.max_batch_bytes or _capacity_for(needed)) + extra, holder)
        return None

    def _most_samples(self) -> int:
        """Returns how many samples an epoch can have; 0: not known."""
        with contextlib.suppress(Exception):  # whatever a length raises
            return max(operator.length_hint(self._arguments.sampler), operator.length_hint(self._arguments.dataset))
        return 0

    # ---- The end ----

    def close(self) -> None:
        """Ends the epoch: closes the feed and ends the workers, unless they are persistent. If a signal handler calls it within `next`, `next` does
        so at its end, and waits for no batch. If another thread does, it waits for that end, at most 2 s.
        """
        if os.getpid() != self._owner:
            self.over = True
            return
        if self._closed:
            return
        thread = threading.get_ident()
        if self._inside:
            self._close_asked = True
            closed = Error(Code.CANCELLED, "the iterator was closed while it waited for a batch")
            if self._first_batch is not None:
                self._first_batch.interrupt(closed)
            if self._feed is not None:
                self._feed.interrupt(closed)
            if self._supervisor is not None:
                self._supervisor.one_offs.end(closed)
            if self._inside == thread:
                return
            until = time.monotonic() + _CLOSE_PATIENCE_S
            while self._inside:  # two threads would use the workers' pipes
                if not self.over and time.monotonic() >= until:  # it may wait for the sampler
                    return
                time.sleep(_POLL_S)
            if self._closed:
                return
        self._inside = thread  # no call since the look at it. A handler that closes within this has nothing left to do
        try:
            self._leave()
            self._close_feed()
            lost = -1 in self._pool.ends or (self._lanes is not None and self._lanes.lost)  # -1: a worker could not be replaced
            if lost or not self._arguments.persistent_workers:
                self._pool.stop()
            if self._lanes is None or self._pool.stopped:
                self._log.close()
            else:
                self._pool.end_epoch(self._log)  # they still read the log
            self._closed = True
        finally:
            self._inside = 0

    def __del__(self) -> None:
        if "_pool" in self.__dict__ and not self._closed:
            try:
                self.close()
            finally:  # Python drops what a signal handler raises here
                self.close()


_iterators: "weakref.WeakSet[WorkerIterator]" = weakref.WeakSet()


def _close_all() -> None:
    for iterator in list(_iterators):
        if not iterator._closed and iterator._owner == os.getpid():
            iterator.over = iterator._closed = True  # deleted later, when the names of modules may be gone, it does nothing
            iterator._close_feed()


atexit.register(_close_all)  # runs before the workers are terminated


def _copied(memory: Any) -> Any:
    return memory.clone() if hasattr(memory, "clone") else memory.copy()


def _flat(memory: Any) -> Any:
    """Returns an array of memory's bytes, which keeps it."""
    return numpy.frombuffer(memory, numpy.uint8)


def _capacity_for(needed: int) -> int:
    """Returns the size of slots for batches like one of `needed` bytes."""
    return (needed + max(needed // 4, _MIN_SLACK_BYTES) + _PAGE - 1) // _PAGE * _PAGE
