# SPDX-License-Identifier: Apache-2.0
"""Batchers, with pinfeedd: clients and consumers are processes that are killed, slow, late or wrong.

Long because: each way in which a client, a consumer or the daemon can fail is a test of the same promise, with the same processes.
"""

import asyncio
import concurrent.futures
import gc
import io
import itertools
import math
import multiprocessing
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading

import batchers
import numpy as np
import PIL.Image
import pytest
from batchers import ARRAY, TIMEOUT, array, serving
from conftest import TOOL
from withstand.hardship import eventually

import pinfeed
from pinfeed._batcher import arrays, link

pytestmark = pytest.mark.filterwarnings("ignore:.* max_delay is in seconds")  # long ones tell what closes a batch
SPAWN = multiprocessing.get_context("spawn")


def jpeg(value, size=(40, 30)):
    out = io.BytesIO()
    PIL.Image.new("RGB", size, (value, value, value)).save(out, "JPEG", quality=95)
    return out.getvalue()


def means(inputs):
    return [np.float32(np.asarray(one, np.float32).mean()) for one in inputs]


def value_of(answer):
    return float(np.frombuffer(answer, np.float32)[0])


@pytest.fixture
def address(daemon, monkeypatch):
    monkeypatch.setenv("PINFEED_ADDRESS", daemon.address)
    return daemon.address


@pytest.fixture
def serve(address):
    """Opens batchers whose model answers each request with the mean of its input. Closes them all."""
    with serving(means) as make:
        yield make


def take(batcher):
    """The next batch; the iterator is left."""
    return next(iter(batcher))


def test_images_are_decoded_transformed_and_answered(serve):
    serve("images", input="image", transforms=[pinfeed.Resize((8, 8)), pinfeed.ToDtype("float32", scale=True)])
    with pinfeed.BatcherClient("images") as client:
        futures = [client.submit(jpeg(value)) for value in (0, 51, 255)]
        assert [round(value_of(future.result(TIMEOUT)), 2) for future in futures] == [0, 0.2, 1]


def test_a_batch_is_full_or_waits_for_the_delay(serve):
    batcher = serve("sizes", model=False, max_batch=4, max_delay=1)
    with pinfeed.BatcherClient("sizes") as client:
        futures = [client.submit(array(value)) for value in range(6)]
        first = take(batcher)
        assert (len(first), first.inputs[:, 0].tolist()) == (4, [0, 1, 2, 3])
        assert first.request_ids.tolist() == [0, 1, 2, 3]
        second = take(batcher)
        assert second.inputs[:, 0].tolist() == [4, 5]
        assert (second.answer([b"4", ValueError("not five")]), first.answer([b"0", b"1", b"2", b"3"])) == (2, 4)
        assert [future.result(TIMEOUT) for future in futures[:5]] == [b"0", b"1", b"2", b"3", b"4"]
        with pytest.raises(pinfeed.Error, match="ValueError: not five"):
            futures[5].result(TIMEOUT)


def test_processes_that_keep_their_batches_keep_no_slots(serve):
    """As each does with its last one while it waits for the next."""
    batchers = [serve("kept", model=False, max_batch=1, max_delay=0, slots=4, input=("uint8", (1 << 16,))) for _ in range(4)]
    with pinfeed.BatcherClient("kept") as client:
        kept = []
        for value in range(12):
            future = client.submit(np.full(1 << 16, value, np.uint8))
            batch = take(batchers[value % 4])
            assert batch.answer([b"."]) == 1
            kept.append(batch.inputs)
            assert future.result(TIMEOUT) == b"."
    assert [int(one.min()) for one in kept] == [int(one.max()) for one in kept] == list(range(12))


def test_a_broken_image_fails_alone(serve):
    serve("broken", input="image", transforms=[pinfeed.Resize((8, 8))], max_batch=3, max_delay=60)
    with pinfeed.BatcherClient("broken") as client:
        futures = [client.submit(data) for data in (jpeg(10), jpeg(20)[:200], jpeg(30))]
        with pytest.raises(pinfeed.Error, match="request"):
            futures[1].result(TIMEOUT)
        assert [round(value_of(futures[i].result(TIMEOUT))) for i in (0, 2)] == [10, 30]


def test_wrong_inputs_are_refused(serve):
    serve("wrong", model=False)
    with pinfeed.BatcherClient("wrong") as client:
        with pytest.raises(pinfeed.InvalidArgumentError, match=r"float32 \(3,\), and this is one of float64 \(3,\)"):
            client.submit(np.zeros(3))
        with pytest.raises(pinfeed.InvalidArgumentError, match=r"float32 \(4,\)"):
            client.submit(np.zeros(4, np.float32))
    serve("wrong images", model=False, input="image", transforms=[pinfeed.Resize((8, 8))], max_request_bytes=1000)
    with pinfeed.BatcherClient("wrong images") as client:
        with pytest.raises(pinfeed.InvalidArgumentError, match="1001 bytes, and this client has room for 1 to 1000: raise max_request_bytes of the Batcher$"):
            client.submit(bytes(1001))
        with pytest.raises(pinfeed.InvalidArgumentError, match="str is not"):
            client.submit("image.jpg")


def test_there_is_no_batcher_of_that_name(address):
    with pytest.raises(pinfeed.NotFoundError, match="nobody"):
        pinfeed.BatcherClient("nobody")


@pytest.mark.parametrize("what, make", [("Batcher", lambda: pinfeed.Batcher("model", input=ARRAY, framework="numpy")), ("BatcherClient", lambda: pinfeed.BatcherClient("model"))])
def test_without_a_common_daemon_the_advice_is_the_batchers(monkeypatch, what, make):
    monkeypatch.setattr("pinfeed._base.daemon.SYSTEM_SOCKET", "/nowhere/pinfeed.sock")
    monkeypatch.delenv("PINFEED_ADDRESS", raising=False)
    with pytest.raises(pinfeed.UnavailableError) as failed:
        make()
    assert str(failed.value) == (
        f"{what} 'model': no system-wide daemon answers at /nowhere/pinfeed.sock (No such file or directory), and a private daemon serves this process "
        "only; start pinfeedd and set PINFEED_ADDRESS to its socket in the model's processes and in those of its clients"
    )


def test_an_error_has_room_however_small_the_answers_are(serve):
    batcher = serve("small", model=False, max_answer_bytes=8, max_batch=3, max_delay=60)
    with pinfeed.BatcherClient("small") as client:
        futures = [client.submit(array(value)) for value in range(3)]
        assert take(batcher).answer([ValueError("the model has no such class"), b"12345678", b"123456789"]) == 3
        with pytest.raises(pinfeed.Error, match="ValueError: the model has no such class"):
            futures[0].result(TIMEOUT)
        assert futures[1].result(TIMEOUT) == b"12345678"
        with pytest.raises(pinfeed.Error, match="the answer has 9 bytes, more than max_answer_bytes=8"):
            futures[2].result(TIMEOUT)


def test_a_forked_child_that_closes_them_closes_nothing_of_the_parent_s(serve):
    batcher = serve("forked")
    with pinfeed.BatcherClient("forked") as client:
        assert value_of(client.submit(array(1)).result(TIMEOUT)) == 1
        child = os.fork()
        if child == 0:
            signal.alarm(TIMEOUT)
            client.close()
            batcher.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert value_of(client.submit(array(2)).result(TIMEOUT)) == 2


def test_a_client_that_is_dropped_is_closed(serve):
    serve("dropped")
    before = {thread for thread in threading.enumerate() if thread.name == "pinfeed-answers"}
    client = pinfeed.BatcherClient("dropped")
    (thread,) = {thread for thread in threading.enumerate() if thread.name == "pinfeed-answers"} - before
    link = client._link
    assert value_of(client.submit(array(1)).result(TIMEOUT)) == 1
    del client
    gc.collect()
    thread.join(TIMEOUT)
    assert not thread.is_alive() and link._socket.fileno() == -1


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_a_request_is_sent_loses_no_slot(serve, monkeypatch, when):
    serve("interrupted")
    with pinfeed.BatcherClient("interrupted", in_flight=3) as client:
        send = client._link.send

        def interrupted(kind, **frame):
            if when == "after":
                send(kind, **frame)
            raise KeyboardInterrupt

        for _ in range(4):
            monkeypatch.setattr(client._link, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.submit(array(1), timeout=TIMEOUT)
            monkeypatch.setattr(client._link, "send", send)
        futures = [client.submit(array(value), timeout=TIMEOUT) for value in range(3)]
        assert [value_of(future.result(TIMEOUT)) for future in futures] == [0, 1, 2]


@pytest.mark.parametrize("what", ["submit", "result", "exception"])
def test_a_forked_child_can_neither_submit_nor_wait(serve, what):
    batcher = serve("child", model=False, max_batch=1, max_delay=0)
    with pinfeed.BatcherClient("child") as client:
        sent = client.submit(array(1))
        child = os.fork()
        if child == 0:
            signal.alarm(TIMEOUT)
            try:
                client.submit(array(1)) if what == "submit" else getattr(sent, what)()
            except pinfeed.Error as error:
                os._exit(0 if str(error).startswith(f"{what}: ") and "make one in the child" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        take(batcher).answer([b"2"])
        assert sent.result(TIMEOUT) == b"2"


def test_a_request_is_cancelled_once_however_often_it_is_asked_for(serve, monkeypatch):
    serve("cancelled", model=False)
    with pinfeed.BatcherClient("cancelled") as client:
        sent = []
        send = client._link.send
        monkeypatch.setattr(client._link, "send", lambda kind, **frame: (sent.append(kind), send(kind, **frame)))
        future = client.submit(array(1))
        sent.clear()
        assert future.cancel() and future.cancel()
        assert len(sent) == 1


def test_a_place_for_whose_memory_no_descriptor_is_left(serve, monkeypatch):
    serve("places")
    receive = socket.socket.recvmsg

    class Truncated(socket.socket):
        def recvmsg(self, *arguments):
            data, ancillary, flags, address = receive(self, *arguments)
            for _, _, content in ancillary:
                os.close(int.from_bytes(content[:4], sys.byteorder))
            return data, [], flags | socket.MSG_CTRUNC, address

    monkeypatch.setattr(link.socket, "socket", Truncated)
    with pytest.raises(pinfeed.ResourceExhaustedError, match="no descriptor left"):
        pinfeed.BatcherClient("places")


def test_callbacks_that_submit_or_fail(serve):
    """On the thread that takes answers: it never waits for itself, and no future waits for one that has ended."""
    serve("callbacks")
    with pinfeed.BatcherClient("callbacks", in_flight=3) as client:
        seen = queue.SimpleQueue()

        def more(_):
            try:
                seen.put([client.submit(array(value)) for value in range(4)])
            except pinfeed.ResourceExhaustedError as error:
                seen.put(error)

        client.submit(array(1)).add_done_callback(more)
        assert "on their way (in_flight)" in str(seen.get(timeout=TIMEOUT))

        def leave(_):
            raise SystemExit

        first = client.submit(array(5), timeout=TIMEOUT)
        first.add_done_callback(leave)
        first.exception(TIMEOUT)
        with pytest.raises(pinfeed.UnavailableError):
            while True:
                client.submit(array(6), timeout=TIMEOUT).result(TIMEOUT)


def test_locks_are_taken_where_no_handler_runs(serve, monkeypatch):
    """Condition's own `with` is Python code: what a signal handler raises in there would leave it locked."""

    def enter(_):
        raise AssertionError("Condition.__enter__")

    serve("locks")
    with pinfeed.BatcherClient("locks") as client:
        monkeypatch.setattr(threading.Condition, "__enter__", enter)
        sent = client.submit(array(1))
        monkeypatch.undo()
        assert value_of(sent.result(TIMEOUT)) == 1


@pytest.mark.parametrize("during", ["answer", "take"])
def test_a_handler_may_close_a_batcher_within_a_call(serve, monkeypatch, during):
    batcher = serve("closed", model=False, max_batch=1, max_delay=0)
    with pinfeed.BatcherClient("closed") as client:
        future = client.submit(array(1))
        batch = take(batcher) if during == "answer" else None
        receive = batcher._link.receive

        def handler():
            batcher.close()
            return receive()

        monkeypatch.setattr(batcher._link, "receive", handler)
        with pytest.raises(pinfeed.Error):
            batch.answer([b"1"]) if batch else take(batcher)
        assert future.exception(TIMEOUT) is not None or future.result() == b"1"


def test_a_handler_may_close_a_client_within_a_call(serve):
    serve("closed-client")
    client = pinfeed.BatcherClient("closed-client")
    with client._lock:
        client.submit(array(1))
        client.close()  # the thread of answers waits for this lock
    client._thread.join(TIMEOUT)
    assert not client._thread.is_alive()
    client.close()
    assert client._link._socket.fileno() == -1


def test_values_of_other_byte_orders_and_dtypes(serve):
    batcher = serve("values", model=False, max_batch=1)
    with pinfeed.BatcherClient("values") as client:
        future = client.submit(np.array([1, 2, 3], ">f4"))
        batch = take(batcher)
        assert batch.inputs.tolist() == [[1, 2, 3]]
        torch = pytest.importorskip("torch")
        batch.answer(torch.ones(1, 2, dtype=torch.bfloat16))
        assert future.result(TIMEOUT) == b"\x80\x3f" * 2
        future = client.submit(array(1))
        take(batcher).answer(torch.arange(5.0).reshape(1, 1, 5)[:, :, 1])  # one element, with a stride of five
        assert value_of(future.result(TIMEOUT)) == 1
        with pytest.raises(pinfeed.InvalidArgumentError, match="is masked"):
            client.submit(np.ma.masked_array(array(1), [0, 1, 0]))
        client.submit(array(1))
        batch = take(batcher)
        for masked in (np.ma.masked_array([[1, 2]], [[0, 1]]), [np.ma.masked_array([1, 2], [0, 1])], np.ma.masked_array([1], [1])):
            with pytest.raises(pinfeed.InvalidArgumentError, match="is masked"):
                batch.answer(masked)
    batcher.close()
    with pytest.raises(pinfeed.Error, match="the batcher 'values' is closed"):
        batch.answer([b"x"])


def test_numpy_ma_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy.ma")
    monkeypatch.delattr(np, "ma")  # as with NumPy 2, until somebody asks for it
    given = array(1)
    assert arrays.as_array("submit", given) is given


def test_tensors_are_requests(serve):
    torch = pytest.importorskip("torch")
    batcher = serve("halves", model=False, input=("bfloat16", (4,)), max_batch=1)
    values = torch.arange(8.0).bfloat16()
    with pinfeed.BatcherClient("halves") as client:
        for given in (values[:4], values[:4].clone().requires_grad_(), values[::2]):
            client.submit(given)
            assert take(batcher).inputs.tobytes() == given.detach().contiguous().view(torch.int16).numpy().tobytes()
        with pytest.raises(pinfeed.InvalidArgumentError, match=r"takes arrays of bfloat16 \(4,\), and this is one of float32 \(4,\)"):
            client.submit(values[:4].float())


def test_arguments_are_refused_before_anything_is_opened(address):
    with pytest.raises(pinfeed.InvalidArgumentError) as refused:
        pinfeed.Batcher("x", input="video", max_batch=0, max_delay=-1, queue_limit=0)
    for field in ("input", "max_batch", "max_delay", "queue_limit"):
        assert field in str(refused.value)


def test_a_delay_that_may_be_meant_in_milliseconds_is_told(serve, recwarn):
    serve("quick", model=False, max_delay=0.999)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"^Batcher 'slow': with max_delay=5, .* wait 5 s\. max_delay is in seconds: 0\.005 is 5 ms$") as warned:
        serve("slow", model=False, max_delay=5)
    assert warned[0].filename == batchers.__file__  # where it is called
    with pytest.raises(pinfeed.InvalidArgumentError, match="max_delay: 500 is not at most 60: max_delay is in seconds: 0.005 is 5 ms"):
        serve("slower", model=False, max_delay=500)


def test_pixels_are_no_image_file(serve):
    serve("files", input="image", transforms=[pinfeed.Resize((8, 8))])
    with pinfeed.BatcherClient("files") as client:
        for pixels in (np.zeros((8, 8, 3), np.uint8), np.zeros(64, np.float32), np.zeros(3, "M8[s]"), [1, 2]):
            with pytest.raises(pinfeed.InvalidArgumentError, match=r"not the bytes of a JPEG, PNG or WebP file.* input=\(dtype, shape\) takes arrays"):
                client.submit(pixels)
        assert client.submit(np.frombuffer(jpeg(51), np.uint8)).result(TIMEOUT)


def test_answers_are_in_the_hosts_byte_order(serve):
    batcher = serve("order", model=False, max_delay=0)
    with pinfeed.BatcherClient("order") as client:
        future = client.submit(array(1))
        take(batcher).answer(np.array([1.5], ">f4"))
        assert value_of(future.result(TIMEOUT)) == 1.5


def test_one_exception_answers_all_requests(serve):
    batcher = serve("fails", model=False, max_batch=2, max_delay=60)
    with pinfeed.BatcherClient("fails") as client:
        futures = [client.submit(array(value)) for value in range(2)]
        assert take(batcher).answer(MemoryError("no room for two")) == 2
        for future in futures:
            with pytest.raises(pinfeed.Error, match="MemoryError: no room for two"):
                future.result(TIMEOUT)


class Table:
    """As pandas' DataFrame: a length of rows, and the names of columns as members."""

    columns = ("a", "b")

    def __len__(self):
        return 2

    def __iter__(self):
        return iter(map(np.float32, range(2)))


class Longer(list):
    def __len__(self):
        return 2


TWO_ARRAYS = (np.zeros(2, np.float32), np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        (TWO_ARRAYS, "a tuple of 2 arrays may be a model's several outputs"),
        (Table(), "Table is no sequence with an output for each of the 2 requests"),
        (Longer([b"1", b"2", b"3"]), r"Longer has 3 outputs, and a len\(\) of 2, the number of requests"),
    ],
    ids=["tuple", "table", "longer"],
)
def test_outputs_that_may_be_others_are_refused(serve, outputs, why):
    batcher = serve("others", model=False, max_batch=2, max_delay=60)
    with pinfeed.BatcherClient("others") as client:
        futures = [client.submit(array(value)) for value in range(2)]
        batch = take(batcher)
        with pytest.raises(pinfeed.InvalidArgumentError, match=why):
            batch.answer(outputs)
        assert batch.answer(list(TWO_ARRAYS)) == 2
        assert [future.result(TIMEOUT) for future in futures] == [one.tobytes() for one in TWO_ARRAYS]


def test_a_closed_client_is_no_fault_of_the_daemon(serve):
    serve("closed", model=False, max_batch=2, max_delay=60)
    client = pinfeed.BatcherClient("closed")
    future = client.submit(array(1))
    client.close()
    with pytest.raises(pinfeed.UnavailableError, match="the request was lost: its client was closed"):
        future.result(TIMEOUT)
    with pytest.raises(pinfeed.Error, match="this client of the batcher 'closed' is closed"):
        client.submit(array(1))


@pytest.mark.parametrize("outputs", [b"1", "1", memoryview(b"1"), {0: b"1"}, {b"1"}, np.float32(1), iter([b"1"]), None, ValueError])
def test_what_has_no_output_for_each_request_is_refused_and_the_batch_can_still_be_answered(serve, outputs):
    batcher = serve("outputs", model=False, max_batch=1)
    with pinfeed.BatcherClient("outputs") as client:
        future = client.submit(array(1))
        batch = take(batcher)
        with pytest.raises(pinfeed.InvalidArgumentError, match=r"is no sequence with an output for each of the 1 requests: give a list"):
            batch.answer(outputs)
        assert (batch.answer([b"1"]), future.result(TIMEOUT)) == (1, b"1")


def test_a_batch_is_answered_once(serve):
    batcher = serve("once", model=False, max_batch=1)
    with pinfeed.BatcherClient("once") as client:
        future = client.submit(array(1))
        batch = take(batcher)
        assert batch.answer([b"1"]) == 1
        with pytest.raises(pinfeed.Error, match="the batch was answered before") as caught:
            batch.answer([b"2"])
        assert (future.result(TIMEOUT), caught.value.code) == (b"1", pinfeed.Code.FAILED_PRECONDITION)


def test_a_full_queue_refuses(serve):
    serve("full", model=False, slots=3, max_batch=1, max_delay=0, queue_limit=2)
    with pinfeed.BatcherClient("full") as client:
        futures = [client.submit(array(value)) for value in range(6)]  # three in batches, two in the queue
        with pytest.raises(pinfeed.ResourceExhaustedError, match="queue is full"):
            futures[5].result(TIMEOUT)


def test_a_client_with_too_many_requests_waits_or_is_refused(serve):
    batcher = serve("flight", model=False, max_delay=0)
    with pinfeed.BatcherClient("flight", in_flight=3) as client:
        futures = [client.submit(array(value)) for value in range(3)]
        with pytest.raises(pinfeed.ResourceExhaustedError, match="in_flight"):
            client.submit(array(3), timeout=0.05)
        done = 0
        for batch in batcher:
            batch.answer([b"."] * len(batch))
            done += len(batch)
            if done == 3:
                break
        assert client.submit(array(3), timeout=TIMEOUT) is not None
        assert [future.result(TIMEOUT) for future in futures] == [b"."] * 3


def test_deadline_and_cancel(serve, address):
    batcher = serve("late", model=False, max_batch=2, max_delay=60)
    with pinfeed.BatcherClient("late") as client:
        with pytest.raises(pinfeed.DeadlineExceededError, match="deadline"):
            client.submit(array(0), deadline=0.05).result(TIMEOUT)
        cancelled = client.submit(array(1))
        assert cancelled.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            cancelled.result(TIMEOUT)
        kept = client.submit(array(2))
        taken = client.submit(array(3))
        batch = take(batcher)
        assert batch.inputs[:, 0].tolist() == [2, 3]
        assert taken.cancel()
        while ends(address, "late") < 3:  # until the daemon has read the cancel
            pass
        assert batch.answer([b"a", b"b"]) == 1
        assert kept.result(TIMEOUT) == b"a"


def test_asyncio(serve):
    serve("asyncio")

    async def ask(client):
        futures = [asyncio.wrap_future(client.submit(array(value))) for value in range(5)]
        return [value_of(answer) for answer in await asyncio.gather(*futures)]

    with pinfeed.BatcherClient("asyncio") as client:
        assert asyncio.run(ask(client)) == [0, 1, 2, 3, 4]


def submit_and_wait(address, name, count, pipe):
    client = pinfeed.BatcherClient(name, address=address)
    futures = [client.submit(array(value)) for value in range(count)]
    pipe.send("sent")
    pipe.recv()
    pipe.send([value_of(future.result(TIMEOUT)) for future in futures])


def start(target, *arguments):
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*arguments, there))
    process.start()
    assert here.poll(TIMEOUT)
    return process, here


def end(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join(TIMEOUT)


def ends(daemon_address, name):
    feeds = [feed for feed in pinfeed.status(daemon_address)["feeds"] if feed["name"] == name]
    return int(feeds[0].get("requests_ended", 0)) if feeds else 0


def test_a_killed_client_is_dropped_and_others_go_on(serve, address):
    batcher = serve("killed", model=False, max_batch=4, max_delay=0.01)
    process, pipe = start(submit_and_wait, address, "killed", 3)
    assert pipe.recv() == "sent"
    batch = take(batcher)  # of all or some of them
    end(process)
    eventually("the daemon has seen the end", lambda: ends(address, "killed") == 3)
    assert batch.answer([b"."] * len(batch)) == 0
    with pinfeed.BatcherClient("killed") as client:
        future = client.submit(array(7))
        for batch in batcher:
            batch.answer([array(value) for value in batch.inputs[:, 0]])
            break
        assert value_of(future.result(TIMEOUT)) == 7


def test_a_client_that_does_not_read_blocks_nobody(serve, address):
    serve("slow")
    process, pipe = start(submit_and_wait, address, "slow", 8)
    assert pipe.recv() == "sent"
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pinfeed.BatcherClient("slow") as client:
            for value in range(200):
                assert value_of(client.submit(array(value)).result(TIMEOUT)) == value
    finally:
        os.kill(process.pid, signal.SIGCONT)
    pipe.send("go on")
    assert pipe.recv() == list(range(8))
    process.join(TIMEOUT)


def consume(address, name, redeal, pipe):
    batcher = pinfeed.Batcher(name, input=ARRAY, framework="numpy", max_batch=2, max_delay=60, redeal=redeal, address=address)
    pipe.send("ready")
    for batch in batcher:
        pipe.send(batch.inputs[:, 0].tolist())
        pipe.recv()  # for ever: it is killed with the batch in hand


@pytest.mark.parametrize("redeal", (False, True))
def test_a_killed_consumer_s_requests_fail_or_are_dealt_again(serve, address, redeal):
    name = f"consumer {redeal}"
    process, pipe = start(consume, address, name, redeal)
    assert pipe.recv() == "ready"
    with pinfeed.BatcherClient(name) as client:
        futures = [client.submit(array(value)) for value in (5, 6)]
        assert pipe.poll(TIMEOUT) and pipe.recv() == [5, 6]
        serve(name, max_batch=2, max_delay=60, redeal=redeal)
        end(process)
        if redeal:
            assert [value_of(future.result(TIMEOUT)) for future in futures] == [5, 6]
        else:
            for future in futures:
                with pytest.raises(pinfeed.UnavailableError, match="ended without an answer"):
                    future.result(TIMEOUT)
        futures = [client.submit(array(value)) for value in (9, 10)]
        assert [value_of(future.result(TIMEOUT)) for future in futures] == [9, 10]


def test_with_the_last_consumer_the_batcher_ends(serve, address):
    batcher = serve("ends", model=False)
    with pinfeed.BatcherClient("ends") as client:
        future = client.submit(array(0))
        batcher.close()
        with pytest.raises(pinfeed.UnavailableError):
            future.result(TIMEOUT)
        with pytest.raises(pinfeed.UnavailableError, match="has ended"):
            while True:  # until the connection's end has come
                client.submit(array(1)).exception(TIMEOUT)


def test_status_counts_requests(serve, address):
    serve("counted")
    with pinfeed.BatcherClient("counted") as client:
        for value in range(10):
            client.submit(array(value)).result(TIMEOUT)
    feed = next(feed for feed in pinfeed.status(address)["feeds"] if feed["name"] == "counted")
    assert (int(feed["requests"]), int(feed["requests_ended"])) == (10, 10)
    latency = feed["request_latency_seconds"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"]


def test_the_status_of_an_idle_batcher_says_that_it_waits_for_requests(serve, address):
    serve("idle")

    def lines():
        done = subprocess.run([TOOL, "--address", address, "status"], capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert "would wait less" not in done.stdout, done.stdout
        return re.findall(r"^\d+ +idle .*", done.stdout, re.MULTILINE)

    def feed():
        return next(feed for feed in pinfeed.status(address)["feeds"] if feed["name"] == "idle")

    eventually("the batcher has waited for a while", lambda: feed()["starved_seconds"] > 2)
    (line,) = lines()
    assert line.endswith("requests: the batcher waits for them"), line
    assert sum(feed()["stall_seconds"].values()) == 0 and feed()["bound_share"] == 0  # so no alert fires either
    with pinfeed.BatcherClient("idle") as client:
        client.submit(array(1)).result(TIMEOUT)
    seen = feed()
    assert sum(seen["stall_seconds"].values()) < seen["starved_seconds"] / 2  # what the request took, on a machine that may be busy


def test_a_batch_of_broken_images_only_is_passed_over_in_silence(serve, caplog):
    batcher = serve("only broken", model=False, input="image", transforms=[pinfeed.Resize((8, 8))], max_batch=1)
    with pinfeed.BatcherClient("only broken") as client:
        with pytest.raises(pinfeed.Error, match="request 0"):
            client.submit(b"no image").result(TIMEOUT)
        client.submit(jpeg(9))
        assert take(batcher).request_ids.tolist() == [1]
    assert "empty" not in caplog.text


def test_a_handler_cannot_answer_within_an_answer(serve, monkeypatch):
    """The answers of both batches would lie in the same memory."""
    batcher = serve("nested", model=False, max_batch=1)
    with pinfeed.BatcherClient("nested") as client:
        futures = [client.submit(array(value)) for value in range(2)]
        first, second = take(batcher), take(batcher)
        send = batcher._link.send

        def handled(*arguments, **frame):
            monkeypatch.undo()
            with pytest.raises(pinfeed.Error, match="within another call of the batcher 'nested'"):
                second.answer([b"second"])
            send(*arguments, **frame)

        monkeypatch.setattr(batcher._link, "send", handled)
        assert first.answer([b"first"]) == second.answer([b"second"]) == 1
        assert [future.result(TIMEOUT) for future in futures] == [b"first", b"second"]


def test_a_forked_child_cannot_answer(serve):
    batcher = serve("forked answers", model=False, max_batch=1)
    with pinfeed.BatcherClient("forked answers") as client:
        future = client.submit(array(1))
        batch = take(batcher)
        child = os.fork()
        if child == 0:
            signal.alarm(TIMEOUT)
            try:
                batch.answer([b"child"])
            except pinfeed.Error as error:
                os._exit(0 if str(error).startswith("answer: a forked child cannot") else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert batch.answer([b"parent"]) == 1
        assert future.result(TIMEOUT) == b"parent"


def test_a_handler_that_raises_behind_taking_a_slot_costs_none(serve, monkeypatch):
    serve("handled", model=False, max_delay=0)

    def interrupted(*_):
        raise KeyboardInterrupt

    with pinfeed.BatcherClient("handled", in_flight=3) as client:
        for _ in range(3):
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(concurrent.futures.Future, "__init__", interrupted)
                client.submit(array(1))
        assert len([client.submit(array(value), timeout=1) for value in range(3)]) == 3


def test_what_follows_an_interrupted_answer_says_so(serve, monkeypatch):
    batcher = serve("stopped", model=False, max_batch=1)
    with pinfeed.BatcherClient("stopped") as client:
        client.submit(array(1))
        batch = take(batcher)

        def interrupted():
            raise KeyboardInterrupt

        monkeypatch.setattr(batcher._link, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batch.answer([b"1"])
        with pytest.raises(pinfeed.UnavailableError, match=r"^an earlier call of the batcher 'stopped' has ended the connection \(KeyboardInterrupt\): open another Batcher$"):
            batch.answer([b"1"])


def test_a_handler_that_raises_anywhere_in_an_answer_leaves_the_batcher_to_other_threads(serve):
    """Python runs handlers where a function begins, too."""

    def is_free(lock):
        return lock.acquire(timeout=1) and lock.release() is None

    for calls in itertools.count(1):
        batcher = serve(f"anywhere {calls}", model=False, max_batch=1)
        with pinfeed.BatcherClient(f"anywhere {calls}") as client, concurrent.futures.ThreadPoolExecutor() as another:
            client.submit(array(1))
            batch = take(batcher)
            begun = itertools.count(1)

            def handled(*_, begun=begun, calls=calls):
                if next(begun) == calls:
                    raise KeyboardInterrupt

            before = sys.gettrace()
            sys.settrace(handled)
            try:
                batch.answer([b"1"])
                break
            except KeyboardInterrupt:
                sys.settrace(before)
                assert another.submit(is_free, batcher._lock).result(TIMEOUT)
            finally:
                sys.settrace(before)
    assert calls > 5


def test_requests_one_by_one_use_the_same_memory(serve):
    """That of the others is never allocated."""
    serve("one by one", max_delay=0)
    with pinfeed.BatcherClient("one by one") as client:
        futures = []
        for value in range(20):
            futures.append(client.submit(array(value)))
            assert value_of(futures[-1].result(TIMEOUT)) == value
        assert len({future._slot for future in futures}) == 1


def test_an_array_is_taken_whatever_other_threads_submit_meanwhile(serve, monkeypatch):
    """Equal dtypes may be different objects: those of torch, of the other byte order, and of unpickled arrays."""
    serve("dtypes", max_delay=0)
    with pinfeed.BatcherClient("dtypes") as client:
        monkeypatch.setattr(pinfeed.BatcherClient, "_dtype", property(lambda _: None, lambda *_: None), raising=False)
        assert value_of(client.submit(array(3)).result(TIMEOUT)) == 3


def test_an_interrupted_request_that_leaves_does_not_end_the_client(serve):
    serve("leaving", model=False)
    with pinfeed.BatcherClient("leaving") as client:
        futures = [client.submit(array(value)) for value in range(2)]

        class Leaving(type(futures[0])):
            _until = property(lambda self: client._futures.clear() or math.inf)

        futures[0].__class__ = Leaving
        client._check_daemon()


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_the_rows_of_a_tensor_with_names_are_answers(serve):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "has_names"):
        pytest.skip("this torch has no named tensors")
    batcher = serve("names", model=False, max_batch=1)
    with pinfeed.BatcherClient("names") as client:
        future = client.submit(array(1))
        assert take(batcher).answer(torch.full((1, 2), 3.0).rename("request", "score")) == 1
        assert np.frombuffer(future.result(TIMEOUT), np.float32).tolist() == [3, 3]
