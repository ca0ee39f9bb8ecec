# SPDX-License-Identifier: Apache-2.0
"""`Batcher`: the model's side of an inference server."""

from __future__ import annotations

import collections.abc
import threading
import time
import warnings
from typing import Any, Iterator, Optional, Sequence, Type, TypeVar, Union

from .._base.checks import Checks, shown, to_integer
from .._base.dtypes import dtype_name
from .._base.errors import Code, Error, UnavailableError, invalid, make_error
from .._base.rank import Rank
from .._feed.device import ordinal_of
from .._feed.dlpack import DTYPES
from .._feed.feed import Feed
from .._feed.open import choose_framework, open_spec
from .._feed.spec import Spec, add_output
from .arrays import as_array, bytes_of, bytes_of_rows, holds_numbers
from .link import ANSWER, HANGS_S, TAKE, Frame, Link, common, join

_MAX_BATCH, _MAX_DELAY_S, _MAX_QUEUE = 4096, 60.0, 65536
_LONG_DELAY_S, _IN_SECONDS = 1.0, "max_delay is in seconds: 0.005 is 5 ms"
_MAX_REQUEST_BYTES, _MAX_ANSWER_BYTES = 64 << 20, 16 << 20
_NO_OUTPUTS = (str, bytes, bytearray, memoryview, collections.abc.Mapping, collections.abc.Set)
_ERROR_BYTES = 200  # of the text of an error, for which each answer has room
_Self = TypeVar("_Self", bound="Batcher")


class RequestBatch:
    """The requests of one batch, from `Batcher`'s iteration until `answer`. `tensors` is the feed's batch: `image`, or
    `input` for arrays, and `sample_id`, the numbers of the requests. ``len`` is the number of requests, which differs
    from batch to batch.
    """

    def __init__(self, batcher: "Batcher", tensors: Any) -> None:
        self._batcher = batcher
        self._answered = False
        self.tensors = tensors
        self.request_ids = tensors["sample_id"]

    @property
    def inputs(self) -> Any:
        """The images or arrays, one request behind the other: a copy."""
        return self.tensors[0]

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def answer(self, outputs: Union[Sequence[Any], BaseException]) -> int:
        """Answers the requests, in the batch's order: with bytes, an array or a tensor each, whose bytes the client gets,
        or with an exception, which its future raises as `pinfeed.Error`. An array or a tensor for the batch is a
        sequence of its rows; a tuple of them is refused, as models return tuples of several outputs. One exception
        answers all requests. Returns how many requests still waited: others were cancelled, or late. Once only: after
        that, `Error`.
        """
        return self._batcher._answer(self, outputs)


class Batcher:
    """Collects the requests of `BatcherClient` processes of this user into batches.

        with pinfeed.Batcher("classifier", transforms=[pinfeed.Resize(256), pinfeed.CenterCrop(224)], max_batch=64, max_delay=0.005) as batcher:
            for batch in batcher:
                batch.answer(model(batch.inputs).cpu())

    name: for clients, and for further processes that open the same batcher to take batches too: each batch goes to one of
      them.
    input: "image", an encoded JPEG, PNG or WebP, or (dtype, shape) of an array. transforms, layout, device, framework, slots,
      address: as in `open`.
    max_batch, max_delay: a batch closes when it has so many requests, or when its first one has waited so many seconds
      and a slot is free. A second or more is possible, with a warning, as milliseconds may have been meant.
    queue_limit: requests that wait for a batch; further ones are refused. max_request_bytes: of an encoded image.
      max_answer_bytes: of an answer.
    redeal: requests whose consumer ended without an answer go to another one, at most twice. Otherwise they fail.

    The order is that of arrival: it is no function of a seed, and there is nothing to resume. A request that cannot be
    decoded fails alone. Requests of a batch that is never answered fail at their deadlines.

    Threads: one iterates; `RequestBatch.answer` may be called from any. Errors: those of `open`. ``with`` closes it.
    """

    def __init__(
        self,
        name: str,
        *,
        input: Union[str, Sequence[Any]] = "image",  # noqa: A002
        transforms: Any = (),
        layout: str = "CHW",
        max_batch: int = 64,
        max_delay: float = 0.005,
        queue_limit: int = 1024,
        max_request_bytes: int = 4 << 20,
        max_answer_bytes: int = 16 << 10,
        redeal: bool = False,
        device: Any = None,
        framework: str = "auto",
        slots: Optional[int] = None,
        address: Optional[str] = None,
    ) -> None:
        checks = Checks()
        name = checks.title("name", name)
        spec: Spec = {"dataset": {}, "sharing": "QUEUE", "group": name, "group_size": 1, "order": "SEQUENTIAL", "drop_last": False}
        add_output(spec, checks, transforms, layout, "fail", True, slots)
        spec["batch_size"] = checks.integer("max_batch", max_batch, 1, _MAX_BATCH)
        delay = checks.seconds("max_delay", max_delay, 0)
        if not checks.faults and delay > _MAX_DELAY_S:
            checks.refuse("max_delay", max_delay, f"at most 60: {_IN_SECONDS}")
        most = checks.integer("max_answer_bytes", max_answer_bytes, 1, _MAX_ANSWER_BYTES)
        batcher: Spec = {
            "max_delay_us": 0 if checks.faults else round(delay * 1e6),
            "queue_limit": checks.integer("queue_limit", queue_limit, 1, _MAX_QUEUE),
            "max_answer_bytes": max(most, _ERROR_BYTES),
            "redeal": checks.flag("redeal", redeal),
        }
        most_request = checks.integer("max_request_bytes", max_request_bytes, 1, _MAX_REQUEST_BYTES)
        if input == "image":
            batcher["max_request_bytes"] = most_request
        else:
            batcher["array"] = _array_spec(checks, input)
        spec["batcher"] = batcher
        ordinal = ordinal_of(checks, device)
        spec["backend"] = "HOST" if ordinal < 0 else "AUTO"
        framework = checks.choice("framework", framework, ("auto", "torch", "cupy", "numpy"))
        checks.address(address)
        checks.raise_faults()
        if delay >= _LONG_DELAY_S:
            waits = f"with max_delay={shown(max_delay)}, the requests of a batch that is not full wait {delay:g} s"
            warnings.warn(f"Batcher {name!r}: {waits}. {_IN_SECONDS}", stacklevel=2)
        framework = choose_framework(framework, ordinal)
        self._name = name
        self._closed = False
        self._most = most  # bytes of an answer that is no error
        self._failed = ""  # the error of the call that has ended the connection
        self._lock = threading.RLock()  # a signal handler may close within a call
        self._feed = Feed(
            open_spec(
                spec,
                Rank(0, 1, "arguments"),
                framework=framework,
                zero_copy=None,  # views in a variable of each waiting process could keep all slots
                address=address,
                common=common("Batcher", name),
                device=device,
                ordinal=ordinal,
                reconnect_timeout=0,
            )
        )
        self._batches = iter(self._feed)
        try:
            place = join(self._feed.address, {"name": name, "consumer": True})
            self._room = int(place["max_answer_bytes"])
            self._answers, self._lengths = int(place["answer_offset"]), int(place["length_offset"])
            self._link = Link(place)
        except BaseException:
            self._feed.close()
            raise

    def __iter__(self) -> Iterator[RequestBatch]:
        """Yields batches with at least one request that waits for an answer."""
        for tensors in self._batches:
            if self._waiting(tensors) > 0:
                yield RequestBatch(self, tensors)

    def close(self) -> None:
        """Leaves the batcher. Requests of batches that were not answered fail, or go to another process (`redeal`). With
        the last process the batcher ends. May be called twice.
        """
        self._closed = True
        self._link.hang_up()
        self._feed.close()
        if self._link.is_parents():
            self._link.close()
            return
        with self._lock:
            self._link.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, exc_type: Optional[Type[BaseException]], exc: Optional[BaseException], traceback: Any) -> None:
        self.close()

    def _waiting(self, tensors: Any) -> int:
        """Asks the daemon how many requests of a new batch wait for an answer."""
        self._refuse_within("next")
        with self._lock:  # no generator keeps it: what a signal handler raises on the way into one leaves it there, locked, as long as the traceback lives
            return self._call(TAKE, tensors, 0)

    def _refuse_within(self, call: str) -> None:
        """Refuses what would mix the answers of two batches: a signal handler or a finalizer within a call, and a forked child."""
        if self._link.is_parents():
            raise Error(Code.FAILED_PRECONDITION, f"{call}: a forked child cannot use its parent's Batcher: answer in the process that took the batch")
        if self._lock._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks
            raise Error(Code.FAILED_PRECONDITION, f"{call}: this thread is within another call of the batcher {self._name!r}: a signal handler or __del__ may only close it")

    def _call(self, kind: int, tensors: Any, size: int) -> int:
        """Tells the daemon something about a batch. Returns the number in its reply. The caller has the lock."""
        if self._failed:
            raise UnavailableError(f"an earlier call of the batcher {self._name!r} has ended the connection ({self._failed}): open another Batcher")
        try:
            self._link.send(kind, epoch=tensors.epoch, batch_index=tensors.index, size=size)
            reply: Optional[Frame] = None
            until = time.monotonic() + HANGS_S
            while reply is None:
                reply = self._link.receive()
                if reply is None and time.monotonic() > until:
                    raise UnavailableError(f"the daemon has not answered for {HANGS_S:g} s: it hangs, or is stopped")
        except BaseException as error:  # also Ctrl-C: the next call must not take this one's reply
            self._failed = f"{type(error).__name__}: {error}".rstrip(": ")
            self._link.hang_up()
            raise
        if reply.code:
            raise make_error(reply.code, reply.text)
        return reply.bytes

    def _answer(self, batch: RequestBatch, outputs: Union[Sequence[Any], BaseException]) -> int:
        contents = [_bytes_of(output) for output in _outputs_for(len(batch), outputs)]
        if len(contents) != len(batch):  # the daemon answers from memory that is as long as the batch
            raise invalid(f"answer: {type(outputs).__name__} has {len(contents)} outputs, and a len() of {len(batch)}, the number of requests")
        self._refuse_within("answer")
        with self._lock:
            if self._closed:
                raise Error(Code.FAILED_PRECONDITION, f"answer: the batcher {self._name!r} is closed")
            if batch._answered:
                raise Error(Code.FAILED_PRECONDITION, "answer: the batch was answered before: give all its outputs in one call")
            memory = memoryview(self._link.memory)  # which a `close` by a signal handler then leaves mapped
            for row, (content, failed) in enumerate(contents):
                if not failed and len(content) > self._most:
                    content, failed = f"the answer has {len(content)} bytes, more than max_answer_bytes={self._most}".encode(), True
                at = self._answers + row * self._room
                memory[at : at + len(content)] = content
                length = ~len(content) if failed else len(content)
                at = self._lengths + row * 8
                memory[at : at + 8] = length.to_bytes(8, "little", signed=True)
            waited = self._call(ANSWER, batch.tensors, len(contents))
            batch._answered = True
            return waited


def _array_spec(checks: Checks, given: Any) -> Spec:
    try:
        dtype, shape = given
        lengths = [0] if isinstance(shape, str) else [to_integer(length) or 0 for length in shape]
    except (TypeError, ValueError):
        lengths = [0]
    if any(length < 1 for length in lengths):
        checks.refuse("input", given, '"image", or the dtype and the shape of an array, such as ("float32", (128,))')
        return {}
    name = dtype_name(dtype)
    known = [kind.name for kind in DTYPES.values()]
    if name not in known:
        checks.refuse("input", dtype, f"a dtype of arrays: {', '.join(known)}")
    return {"dtype": name.upper(), "shape": [str(length) for length in lengths]}


def _outputs_for(requests: int, outputs: Union[Sequence[Any], BaseException]) -> Sequence[Any]:
    """Returns an output for each request."""
    if isinstance(outputs, BaseException):
        return [outputs] * requests
    try:
        if isinstance(outputs, _NO_OUTPUTS) or hasattr(outputs, "columns"):  # whose members have no bytes, or other ones: those of tables are columns
            raise TypeError
        count = len(outputs)
    except TypeError:
        raise invalid(
            f"answer: {type(outputs).__name__} is no sequence with an output for each of the {requests} requests: give a list, or an array or a tensor "
            "with a row for each; one exception answers them all",
        ) from None
    if isinstance(outputs, tuple) and any(hasattr(output, "shape") for output in outputs):
        raise invalid(
            f"answer: a tuple of {count} arrays may be a model's several outputs, or one for each request: give the output that is meant, or a list with an array "
            "for each request",
        )
    if count != requests:
        raise invalid(f"answer: there are {count} outputs for a batch of {requests} requests")
    listed: Any = outputs.detach().cpu() if hasattr(outputs, "detach") else outputs  # at once, not row by row
    rows: Sequence[Any] = bytes_of_rows(listed) if holds_numbers(listed) else listed
    return rows


def _bytes_of(output: Any) -> "tuple[Union[bytes, memoryview], bool]":
    """An output's bytes, and whether it is an error."""
    if isinstance(output, BaseException):
        return f"{type(output).__name__}: {output}".encode("utf-8", "replace")[:_ERROR_BYTES], True
    if isinstance(output, (bytes, bytearray, memoryview)):
        return bytes(output), False
    if isinstance(output, str):
        raise invalid("answer: give bytes, an array or a tensor in place of a str: text.encode()")
    array = as_array("answer", output)
    if getattr(array.dtype, "hasobject", False):
        raise invalid(f"answer: {type(output).__name__} has no bytes; give bytes, an array or a tensor")
    return bytes_of(array), False
