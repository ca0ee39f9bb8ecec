# SPDX-License-Identifier: Apache-2.0
"""Batches that the extension takes are those that the Python code takes, and as safe. Over a library that needs no daemon."""

import gc
import os
import signal
import sys
import threading

import numpy
import pytest

torch = pytest.importorskip("torch")

import pinfeed  # noqa: E402
from pinfeed._feed import device, plain_next  # noqa: E402
from pinfeed._feed.feed import _EpochIterator  # noqa: E402

SAMPLES, BATCH = 42, 4
EPOCH = [list(range(first, min(first + BATCH, SAMPLES))) for first in range(0, SAMPLES, BATCH)]


@pytest.fixture(params=["the extension", "Python"])
def feed_of(request, fake, monkeypatch):
    """Opens feeds of many full batches, with the extension and without."""
    if request.param == "Python":
        monkeypatch.setattr(plain_next, "extension", None)
    elif plain_next.extension is None:
        pytest.skip("the extension is not there: it needs python3-dev, and CPython 3.11 or later")

    def open_feed(settings=None, **options):
        return fake(settings={"SAMPLES": SAMPLES, **(settings or {})}, **options)

    open_feed.c = fake.c
    open_feed.copied = fake.copied
    open_feed.quick = request.param == "the extension"
    open_feed.slow = []
    kind = _EpochIterator
    slowly = kind._next_slowly

    def count(iterator):
        open_feed.slow.append(iterator)
        return slowly(iterator)

    monkeypatch.setattr(kind, "_next_slowly", count)
    if not open_feed.quick:
        monkeypatch.setattr(kind, "__next__", count)
    return open_feed


def plain(feed_of, feed, calls):
    """That the tests go the way they mean to: of so many calls of next() the Python code took all, or what the extension left it."""
    assert (feed._quick is not None) == feed_of.quick
    assert len(feed_of.slow) < calls if feed_of.quick else len(feed_of.slow) == calls, len(feed_of.slow)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("options", [{}, {"zero_copy": False}, {"share": "broadcast", "group": "g"}, {"share": "queue", "group": "g"}])
def test_batches_are_the_same(feed_of, framework, options):
    feed = feed_of(framework=framework, **options)
    for epoch in range(2):
        seen = []
        for batch in feed:
            image, label = batch
            assert type(batch) is feed._maker._batch_type and batch.image is image and batch["label"] is label
            assert (batch.epoch, batch.index, batch.skipped) == (epoch, len(seen), 0)
            assert batch.last_of_epoch is (len(seen) == len(EPOCH) - 1)
            assert image.shape == (len(label), 2, 8192) and image[:, 1, 5].tolist() == [value % 256 for value in label.tolist()]
            seen.append(label.tolist())
        assert seen == [[100 * epoch + label for label in labels] for labels in EPOCH]
    plain(feed_of, feed, 2 * (len(EPOCH) + 1))


@pytest.mark.parametrize("output", ["dict", "tuple"])
def test_other_forms_of_batches_are_the_same(feed_of, output):
    feed = feed_of(output=output)
    seen = []
    for made in feed:
        assert (type(made), list(made)) == (dict, ["image", "label"]) if output == "dict" else type(made) is tuple
        image, label = made.values() if output == "dict" else made
        assert image[:, 1, 5].tolist() == [value % 256 for value in label.tolist()]
        seen.append(label.tolist())
    assert seen == EPOCH
    plain(feed_of, feed, len(EPOCH) + 1)
    assert feed.held == 1, "a tensor keeps the slot"
    released = feed_of.c.fake_released()
    del made, image
    gc.collect()
    assert feed.held == 0 and feed_of.c.fake_released() == released + 1


def test_a_tensor_keeps_its_slot(feed_of):
    feed = feed_of()
    iterator = iter(feed)
    for _ in range(2):
        next(iterator)
    batch = next(iterator)
    plain(feed_of, feed, 3)
    gc.collect()
    assert feed.held == 1 and batch.raw["image"].address == batch.image.ctypes.data
    assert not numpy.shares_memory(batch.image, batch.label), "labels are small, and copies"
    view, raw = batch.image[1:, :, 3], numpy.from_dlpack(batch.raw["image"])
    released = feed_of.c.fake_released()
    del batch
    gc.collect()
    view[:] = 7  # the tensors are writable
    assert (raw[1:, :, 3] == 7).all() and feed.held == 1 and feed_of.c.fake_released() == released
    del view
    gc.collect()
    assert feed.held == 1
    del raw
    gc.collect()
    assert feed.held == 0 and feed_of.c.fake_released() == released + 1


def test_held_tensors_outlive_the_feed(feed_of):
    feed = feed_of()
    iterator = iter(feed)
    kept = [next(iterator) for _ in range(3)]
    feed.close()
    with pytest.raises(pinfeed.Error, match="is closed"):
        next(iterator)
    del feed, iterator
    gc.collect()
    assert [batch.image[0, 0, 0] for batch in kept] == [0, 4, 8]
    released = feed_of.c.fake_released()
    del kept
    gc.collect()
    assert feed_of.c.fake_released() == released + 3


def test_the_last_slot_is_the_daemons(feed_of):
    feed = feed_of()
    with pytest.warns(pinfeed.SlotsHeldWarning, match="3 of the 4 slots"):
        kept = list(feed)
    assert [batch.label.tolist() for batch in kept] == EPOCH
    assert (feed.held, feed.copied) == (3, len(EPOCH) - 3) == (feed.held, feed_of.copied(feed))
    del kept[:2]
    gc.collect()
    iterator = iter(feed)
    first = next(iterator)
    assert feed.held == 2 and first.label.tolist() == [100, 101, 102, 103]


def test_another_iterator_ends_the_first(feed_of):
    feed = feed_of()
    first = iter(feed)
    assert [next(first).index for _ in range(3)] == [0, 1, 2]
    second = iter(feed)
    with pytest.raises(RuntimeError, match="ended by a newer one"):
        next(first)
    assert [next(second).epoch for _ in range(3)] == [1, 1, 1]
    with pytest.raises(RuntimeError, match="ended by a newer one"):
        next(first)
    assert next(second).index == 3


@pytest.mark.parametrize("change", ["another iterator", "a position", "the end"])
def test_what_another_thread_changes_while_a_batch_is_returned_counts(feed_of, change):
    """The lock is free by then, and the batch behind this one was to be plain."""
    feed = feed_of()
    iterator = iter(feed)
    next(iterator)
    state = feed.state_dict()
    following = feed._next

    def change_as_it_returns(*arguments):
        batch = following(*arguments)
        del feed._next
        if change == "another iterator":
            iter(feed)
        elif change == "a position":
            feed.load_state_dict(state)
        else:
            feed.close()
        return batch

    feed._next = change_as_it_returns
    assert next(iterator).index == 1 and "_next" not in vars(feed)
    with pytest.raises((RuntimeError, pinfeed.Error), match="is closed" if change == "the end" else "ended by a newer one or by load_state_dict"):
        next(iterator)


def test_positions_in_the_midst(feed_of):
    feed = feed_of()
    iterator = iter(feed)
    for _ in range(4):
        next(iterator)
    state = feed.state_dict()
    assert state["cursor"]["position"] == "16" and next(iterator).index == 4
    feed.set_epoch(5)  # the running iterator goes on
    assert [batch.index for batch in iterator] == list(range(5, len(EPOCH)))
    assert next(iter(feed)).epoch == 5
    running = iter(feed)
    assert [next(running).index for _ in range(3)] == [0, 1, 2]
    feed.load_state_dict(state)
    with pytest.raises(RuntimeError, match="load_state_dict"):
        next(running)
    assert next(iter(feed)).index == 4


def test_a_failing_conversion_loses_no_batch(feed_of):
    feed = feed_of(framework="torch")
    iterator = iter(feed)
    next(iterator)
    views, fails = feed._maker._views[BATCH, False], []
    def convert(array):
        if fails:
            raise fails.pop()
        return array

    views[1] = (*views[1][:3], (*views[1][3], convert))
    feed._disarm()
    feed._quick, feed._quick_made = None, False  # with the function above
    assert [next(iterator).index for _ in range(2)] == [1, 2]
    plain(feed_of, feed, 3)
    fails.append(MemoryError("none left"))
    with pytest.raises(MemoryError):
        next(iterator)
    gc.collect()
    assert [next(iterator).index for _ in range(3)] == [3, 4, 5]
    gc.collect()
    assert feed.held == 0


def test_a_signal_handler_may_take_batches_and_close_the_feed(feed_of):
    feed = feed_of()
    taken = []
    iterator = iter(feed)

    def handler(*_):
        taken.append(next(iterator).index)
        if len(taken) > 5:
            feed.close()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(pinfeed.Error, match="is closed"):
            for batch in iterator:
                taken.append(batch.index)
                os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert taken == list(range(6)), "each batch once, in order"


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python runs signal handlers between any two instructions of the loop")
@pytest.mark.parametrize("output", ["batch", "dict"])
def test_an_exception_of_a_signal_handler_loses_no_batch(feed_of, output):
    feed = feed_of({"SAMPLES": 40_000}, output=output)
    seen, stop, armed, raised = [], threading.Event(), [False], []

    def handler(*_):
        if armed[0]:  # not again while it runs
            armed[0] = False
            raised.append(1)
            raise KeyboardInterrupt

    def interrupt():
        while not stop.wait(0.0005):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    iterator = iter(feed)
    try:
        while True:
            try:
                armed[0] = True
                for batch in iterator:
                    seen.append(batch["label"] if output == "dict" else batch.index)  # no Python code, in which a handler may run
                armed[0] = False
                break
            except KeyboardInterrupt:
                pass
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    numbers = [int(label[0]) // BATCH for label in seen] if output == "dict" else seen
    assert numbers == list(range(10_000)) and raised


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python runs signal handlers between any two instructions of the loop")
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("output", ["batch", "dict", "tuple"])
def test_a_signal_handler_sees_where_the_trainer_is(feed_of, framework, output):
    feed = feed_of({"SAMPLES": 4_000_000}, framework=framework, output=output)
    seen, wrong, told, stop = [], [], [], threading.Event()

    def handler(*_):
        cursor = feed.state_dict()["cursor"]
        told.append(int(cursor["position"]) // BATCH)
        if told[-1] != len(seen):
            wrong.append((told[-1], len(seen)))

    def interrupt():
        while not stop.wait(0.0002):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    iterator = iter(feed)
    seen.append(next(iterator) is None)
    thread.start()
    try:
        for batch in iterator:
            seen.append(batch is None)
            if len(told) > 100:
                break
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert not wrong and len(told) > 100


class Interrupts(torch.overrides.TorchFunctionMode):
    """As torch.set_default_device, a mode that runs Python code in each of torch's functions. Here that code is a signal handler's."""

    def __init__(self, handler):
        super().__init__()
        self.handler = handler

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if self.handler is not None:
            self.handler()
        return function(*args, **(kwargs or {}))


def test_a_handler_within_torchs_functions_sees_where_the_trainer_is(feed_of):
    feed, seen, told = feed_of(framework="torch", zero_copy=False), [], []
    with Interrupts(lambda: told.append((int(feed.state_dict()["cursor"]["position"]) // BATCH, len(seen)))):
        for batch in feed:
            seen.append(batch.index)
    assert seen == list(range(len(EPOCH)))
    # The library knows where it is from the second batch on.
    assert len({position for position, _ in told}) == len(EPOCH) and all(position == delivered for position, delivered in told)


@pytest.mark.parametrize("share", [{}, {"share": "queue", "group": "g"}])
def test_a_handler_within_torchs_functions_that_closes_the_feed_gives_the_batch_back(feed_of, share, monkeypatch):
    before, feed, given_back = feed_of.c.fake_released(), feed_of(framework="torch", zero_copy=False, **share), []
    give_back = feed._library.pf_batch_give_back
    monkeypatch.setattr(feed._library, "pf_batch_give_back", lambda batch: given_back.append(batch) or give_back(batch))
    iterator = iter(feed)
    next(iterator)
    with Interrupts(feed.close), pytest.raises(pinfeed.Error, match="closed"):
        next(iterator)
    assert (feed.held, len(given_back), feed_of.c.fake_released() - before) == (0, len(share) // 2, 2)


def test_a_handler_within_torchs_functions_that_closes_the_feed_and_raises_leaves_it_closed(feed_of):
    feed = feed_of(framework="torch", zero_copy=False)
    iterator = iter(feed)
    next(iterator)

    def handler():
        feed.close()
        raise SystemExit

    before = feed_of.c.fake_closed()
    with Interrupts(handler), pytest.raises(SystemExit):
        next(iterator)
    assert feed_of.c.fake_closed() == before + 1


def test_a_handler_within_torchs_functions_that_cannot_move_the_feed_costs_no_batch(feed_of, monkeypatch):
    feed = feed_of(framework="torch", zero_copy=False)
    state, iterator = feed.state_dict(), iter(feed)
    monkeypatch.setattr(feed._library, "pf_seek", lambda *_: pinfeed.Code.INVALID_ARGUMENT)
    seen = [next(iterator).index]

    def handler():
        with pytest.raises(pinfeed.Error):
            feed.load_state_dict(state)

    with Interrupts(handler):
        seen += [batch.index for batch in iterator]
    assert seen == list(range(len(EPOCH)))


@pytest.mark.parametrize("act, error", [("close", pinfeed.Error), ("load_state_dict", RuntimeError), ("take", RuntimeError)])
def test_a_handler_within_torchs_functions_that_moves_the_feed(feed_of, act, error):
    feed = feed_of(framework="torch", zero_copy=False, settings={"SAMPLES": 400})
    state, iterator = feed.state_dict(), iter(feed)
    for _ in range(3):
        next(iterator)
    taken = []

    def handler():
        mode.handler = None
        {"close": feed.close, "load_state_dict": lambda: feed.load_state_dict(state), "take": lambda: taken.append(next(iterator).index)}[act]()

    with Interrupts(handler) as mode:
        if act == "take" and not feed_of.quick:  # which makes the batch anew
            assert next(iterator).index == 4 and taken == [3]
        else:
            with pytest.raises(error, match={"close": "closed", "load_state_dict": "ended by", "take": "take none in handlers"}[act]):
                next(iterator)
    assert feed.held == 0
    if act != "close":
        rest = [batch.index for batch in (feed if act == "load_state_dict" else iterator)]
        assert rest == (list(range(100)) if act == "load_state_dict" else list(range(5 - feed_of.quick * 2, 100)))


def test_threads_share_a_feed(feed_of):
    feed = feed_of({"SAMPLES": 8_000, "SLOTS": 60})
    iterator = iter(feed)
    seen, lock = [], threading.Lock()
    states = []

    def take():
        for batch in iterator:
            with lock:
                seen.append(batch.index)

    def watch():
        while len(seen) < 1900:
            cursor = feed.state_dict()["cursor"]
            states.append((int(cursor["epoch"]), int(cursor["position"])))

    threads = [threading.Thread(target=take) for _ in range(3)] + [threading.Thread(target=watch)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(2000)) and states == sorted(states)


class Written:
    """A framework's memory on the GPU."""

    address = 1 << 40

    def __init__(self, shape, dtype):
        self.shape = shape


@pytest.mark.parametrize("closes", [False, True])
def test_batches_that_are_written(feed_of, monkeypatch, closes):
    """On a GPU whose memory the framework allocates in Python, where a signal handler may run."""
    hook = [lambda: None]

    def empty(shape, dtype):
        hook[0]()
        return Written(shape, dtype)

    memory = device.Memory(dtype=str, empty=empty, address=lambda tensor: tensor.address, stream=lambda: 3, lend=None, copy=None, is_capturing=lambda: False)
    monkeypatch.setattr(device, "torch_memory", lambda ordinal: memory)
    feed = feed_of({"DEVICE": 0}, device=0, framework="torch")
    released = feed_of.c.fake_released()
    iterator = iter(feed)
    for number in range(5):  # from the third on they are the extension's
        batch = next(iterator)
        assert (batch.index, batch.image.shape, batch.label.shape) == (number, (4, 2, 8192), (4,)) and batch.raw == {}
    plain(feed_of, feed, 5)
    assert feed_of.c.fake_released() == released + 5 and feed.held == 0

    def fail():
        raise MemoryError("none left")

    hook[0] = feed.close if closes else fail
    with pytest.raises(pinfeed.Error if closes else MemoryError):
        next(iterator)
    hook[0] = lambda: None
    if closes:
        assert feed_of.c.fake_released() == released + 6, "a batch that could not be given goes back"
    else:
        assert [batch.index for batch in iterator] == list(range(5, len(EPOCH)))
        assert feed_of.c.fake_released() == released + len(EPOCH)


def test_what_is_not_plain_is_left_to_python(feed_of):
    feed = feed_of()
    feed._maker.plain = lambda: None  # as with packed fields
    iterator = iter(feed)
    for _ in range(3):
        next(iterator)
    assert feed._quick is None


def test_memory_that_is_read_only_stays_so(feed_of):
    feed = feed_of(settings={"READ_ONLY": 1}, framework="numpy", zero_copy=True)
    iterator = iter(feed)
    for _ in range(3):
        batch = next(iterator)
    plain(feed_of, feed, 3)
    assert not batch.image.flags.writeable and batch.image[0, 0, 0] == 8
    with pytest.raises(ValueError, match="WRITEABLE"):
        batch.image.flags.writeable = True


def test_the_librarys_messages_come_with_the_next_batch(feed_of, caplog):
    feed = feed_of()
    iterator = iter(feed)
    next(iterator)
    next(iterator)
    feed._library._messages.append((2, "something to be told"))
    assert next(iterator).index == 2
    assert "something to be told" in caplog.text and next(iterator).index == 3


@pytest.mark.skipif(plain_next.extension is None, reason="the extension is not built")
@pytest.mark.parametrize("arguments", [{}, {"feed": 1}, {"feed": "x"}, {"fields": []}])
def test_arguments_that_are_missing(arguments):
    with pytest.raises((ValueError, TypeError)):
        plain_next.extension.Next(**arguments)
    with pytest.raises(TypeError):
        plain_next.extension.Slot()


def test_a_closed_feed_is_never_asked(feed_of):
    """Whichever way it was closed."""
    feed = feed_of()
    iterator = iter(feed)
    for _ in range(3):
        next(iterator)
    plain(feed_of, feed, 3)
    feed._disarm = lambda: None
    feed.close()
    with pytest.raises(pinfeed.Error, match="is closed"):
        next(iterator)
