# SPDX-License-Identifier: Apache-2.0
"""Submitting requests to a `pinfeed.Batcher`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Type, TypeVar

from .._base import daemon
from .._base.checks import MAX_SLOTS, MIN_SLOTS, UINT32_MAX, Checks
from .._base.dtypes import dtype_name
from .._base.errors import Code, Error, ResourceExhaustedError, UnavailableError, invalid, make_error
from .arrays import as_array, bytes_of
from .link import CANCEL, HANGS_S, REQUEST, Frame, Link, common, join

_OPEN_TIMEOUT_S = 10.0
_CLOSE_PATIENCE_S = 2.0  # with the thread of answers, which waits for the lock of a call in which a signal handler closes
_MAX_DEADLINE_S = 24 * 3600.0
_Self = TypeVar("_Self", bound="BatcherClient")


class RequestFuture(concurrent.futures.Future):  # type: ignore[type-arg]  # not generic before Python 3.9
    """The answer to a request. `result` returns its bytes, or raises `pinfeed.Error`. `cancel` tells the daemon that no
    answer is wanted; then, as for any cancelled future, `result` raises CancelledError. In asyncio, use
    ``await asyncio.wrap_future(future)``.
    """

    def __init__(self, client: "BatcherClient", slot: int, until: float) -> None:
        super().__init__()
        self._client, self._slot, self._until = client, slot, until
        self._cancel_sent = False

    def cancel(self) -> bool:
        """Returns whether the request is cancelled; False if its answer has come."""
        cancelled = super().cancel()
        if cancelled:
            self._client._cancel(self)
        return cancelled

    def result(self, timeout: Optional[float] = None) -> Any:
        if not self.done():
            self._client._refuse_child("result")
        return super().result(timeout)

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        if not self.done():
            self._client._refuse_child("exception")
        return super().exception(timeout)


class BatcherClient:
    """One process's connection to the batcher of that name, which its user's model serves.

    name: of the batcher. address: as in `open`; no private daemon is started. in_flight: requests that may wait for
    answers at a time, 3 to 64. max_request_bytes: of each encoded image; the batcher may allow less. The daemon's memory
    for requests is in_flight times that, charged to the user, of which only what is used is allocated.

    Threads: any. A forked child cannot use it, and may close its own. Errors: `pinfeed.Error`; NotFoundError if the user
    has no such batcher. When the batcher ends, or the daemon, requests in flight fail with UnavailableError, and so does
    `submit`: make another client. ``with`` closes it, and so does dropping it and its futures.
    """

    def __init__(self, name: str, *, address: Optional[str] = None, in_flight: int = 16, max_request_bytes: int = 512 * 1024) -> None:
        checks = Checks()
        name = checks.title("name", name)
        in_flight = checks.integer("in_flight", in_flight, MIN_SLOTS, MAX_SLOTS)
        max_request_bytes = checks.integer("max_request_bytes", max_request_bytes, 1, UINT32_MAX)
        checks.address(address)
        checks.raise_faults()
        self._name = name
        chosen = daemon.address_for(address, _OPEN_TIMEOUT_S, common("BatcherClient", name))
        place = join(chosen, {"name": name, "slots": in_flight, "max_request_bytes": max_request_bytes})
        self._stride, self._room = int(place["slot_stride"]), int(place["max_request_bytes"])
        self._room_of = "BatcherClient" if self._room == max_request_bytes else "Batcher"  # whose limit it is
        self._answer_offset = int(place["answer_offset"])
        self._array: Optional[Dict[str, Any]] = place.get("array")
        self._shape = tuple(int(length) for length in (self._array or {}).get("shape", ()))
        self._dtype: Any = None  # of the latest request
        self._link = Link(place)
        self._lock = threading.RLock()
        self._free = list(range(in_flight))  # the last one is taken first: memory that was used is used again
        # Something for each of them. No Condition: what a signal handler raises in its `wait` leaves the lock free.
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(in_flight):
            self._permits.put(None)
        self._futures: Dict[int, RequestFuture] = {}
        self._ended: Optional[BaseException] = None
        self._closed = False
        weakref.finalize(self, self._link.hang_up)
        self._thread = threading.Thread(target=_receive, args=(weakref.ref(self), self._link), name="pinfeed-answers", daemon=True)
        self._thread.start()

    def submit(self, data: Any, *, deadline: float = 30.0, timeout: Optional[float] = None) -> RequestFuture:
        """Sends a request: bytes of an image file, or an array of the batcher's dtype and shape.

        deadline: seconds until an answer must have come; then the future raises DeadlineExceededError. timeout: seconds
        to wait while in_flight requests are on their way; then ResourceExhaustedError. None: as long as the deadline. A
        callback of a future, which holds up all later answers, does not wait.
        If the daemon's queue is full, or the request cannot be decoded, the future raises.
        """
        self._refuse_child("submit")
        checks = Checks()
        deadline = checks.seconds("deadline", deadline, 0.001)
        if timeout is not None:
            timeout = checks.seconds("timeout", timeout, 0, ", or None for the deadline")
        if not checks.faults and deadline > _MAX_DEADLINE_S:
            checks.refuse("deadline", deadline, "at most a day, in seconds")
        checks.raise_faults()
        content = self._content(data)
        until = time.monotonic() + deadline
        taken: List[Any] = []
        sent: List[int] = []
        try:
            self._take_slot(deadline if timeout is None else min(timeout, deadline), taken)
            _, slot = taken
            future = RequestFuture(self, slot, until)
            at = slot * self._stride
            self._link.memory[at : at + content.nbytes] = content
            with self._lock:
                self._check()
                self._futures[slot] = future
                left = max(until - time.monotonic(), 0.000001)
                self._link.send(REQUEST, slot=slot, size=content.nbytes, timeout_us=max(1, round(left * 1e6)), sent=sent)
        except BaseException as error:
            if not sent:  # else the slot becomes free with the answer
                for slot in taken[1:]:
                    self._futures.pop(slot, None)
                    self._free.append(slot)
                for permit in taken[:1]:
                    self._permits.put(permit)
            if isinstance(error, ValueError):  # `close` in another thread has taken the memory
                self._check()
            raise
        return future

    def close(self) -> None:
        """Ends the connection. Requests in flight fail, once a callback that runs has ended. May be called twice."""
        if self._link.is_parents():
            self._link.close()
            return
        self._closed = True
        self._link.hang_up()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_PATIENCE_S)
        if not self._thread.is_alive():  # otherwise the link goes with the client
            with self._lock:
                self._link.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, exc_type: Optional[Type[BaseException]], exc: Optional[BaseException], traceback: Any) -> None:
        self.close()

    def _content(self, data: Any) -> memoryview:
        if self._array is not None:
            array = as_array("submit", data)
            dtype = array.dtype
            good = dtype is self._dtype or dtype_name(dtype).upper() == self._array["dtype"]
            if good:
                self._dtype = dtype  # reading the name takes longer than all else here
            if not good or tuple(array.shape) != self._shape:
                raise invalid(
                    f"submit: the batcher {self._name!r} takes arrays of {self._array['dtype'].lower()} {self._shape}, and this is one of "
                    f"{dtype_name(dtype)} {tuple(array.shape)}",
                )
            return bytes_of(array)
        try:
            file = memoryview(data)
            if file.ndim != 1 or file.itemsize != 1:
                raise TypeError
            content = file.cast("B")
        except (TypeError, ValueError):  # ValueError: dates, for example, which have no buffer
            raise invalid(
                f"submit: this {type(data).__name__} is not the bytes of a JPEG, PNG or WebP file, which the batcher {self._name!r} takes; one with "
                "input=(dtype, shape) takes arrays",
            ) from None
        if not 0 < content.nbytes <= self._room:
            raise invalid(
                f"submit: the request has {content.nbytes} bytes, and this client has room for 1 to {self._room}: raise max_request_bytes of the {self._room_of}",
            )
        return content

    def _refuse_child(self, what: str) -> None:
        if self._link.is_parents():
            raise Error(Code.FAILED_PRECONDITION, f"{what}: a forked child cannot use its parent's BatcherClient: make one in the child")

    def _check(self) -> None:
        if self._closed:
            raise Error(Code.FAILED_PRECONDITION, f"submit: this client of the batcher {self._name!r} is closed")
        if self._ended is not None:
            raise UnavailableError(f"the connection to the batcher {self._name!r} has ended: {self._ended}")

    def _take_slot(self, timeout: float, taken: List[Any]) -> None:
        """Adds a permit and a free slot to `taken`, which are to be given back. The permit alone if the connection has ended."""
        waits = timeout > 0 and threading.current_thread() is not self._thread  # a callback of a future would wait for itself
        try:
            taken.extend(map(self._permits.get, (waits,), (timeout,)))  # no handler runs between getting and extending
        except queue.Empty:
            raise ResourceExhaustedError(
                f"submit: {len(self._futures)} requests of this client are on their way (in_flight), and none was answered within {timeout if waits else 0:g} s",
            ) from None
        self._check()
        taken.extend(map(self._free.pop, (-1,)))

    def _cancel(self, future: RequestFuture) -> None:
        if self._link.is_parents():
            return
        with self._lock:
            if self._ended is None and self._futures.get(future._slot) is future and not future._cancel_sent:
                future._cancel_sent = True  # the socket has room for one frame of each
                with contextlib.suppress(UnavailableError):  # the thread below learns it too
                    self._link.send(CANCEL, slot=future._slot)

    def _check_daemon(self) -> None:
        """Raises if the daemon should have answered a request long ago."""
        with self._lock:
            first = min((future._until for future in list(self._futures.values())), default=None)  # an interrupted `submit` has no lock
        if first is not None and time.monotonic() > first + HANGS_S:
            raise UnavailableError(f"the daemon has not answered a request for {HANGS_S:g} s after its deadline: it hangs, or is stopped")

    def _on_frame(self, frame: Optional[Frame]) -> None:
        if frame is None:
            self._check_daemon()
            return
        with self._lock:
            future = self._futures.pop(frame.slot, None)
            if future is None:
                raise Error(Code.INTERNAL, f"the daemon answered slot {frame.slot}, which has no request")
            at = frame.slot * self._stride + self._answer_offset
            answer = self._link.memory[at : at + frame.bytes]
            self._free.append(frame.slot)
            self._permits.put(None)
        if not future.set_running_or_notify_cancel():
            return
        if frame.code:
            future.set_exception(make_error(frame.code, frame.text))
        else:
            future.set_result(answer)

    def _on_end(self, error: BaseException) -> None:
        if self._closed:
            error = Error(Code.CANCELLED, "its client was closed")
        with self._lock:
            self._ended = error
            lost = list(self._futures.values())
            self._futures.clear()
            self._permits.put(None)  # each who waits gets it, and gives it back
        for future in lost:
            if future.set_running_or_notify_cancel():
                future.set_exception(UnavailableError(f"the request was lost: {error}"))


def _receive(client_of: "weakref.ref[BatcherClient]", link: Link) -> None:
    """The thread that takes answers, until the connection ends or nobody has the client."""
    try:
        while True:
            frame = link.receive()
            client = client_of()
            if client is None:
                break
            client._on_frame(frame)
            del client, frame
    except BaseException as error:  # whatever it is, also of a callback: no future waits for ever
        link.hang_up()
        client = client_of()
        if client is not None:
            client._on_end(error)
            return
    link.close()
