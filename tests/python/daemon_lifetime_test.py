# SPDX-License-Identifier: Apache-2.0
"""Who keeps what, and until when: slots and views, the private daemon and its process; and what goes wrong, said in full."""

import json
import os
import pathlib
import select
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy
import pytest
from daemon_process import Daemon

import pinfeed


@pytest.fixture
def feeds(daemon, monkeypatch):
    monkeypatch.setenv("PINFEED_ADDRESS", daemon.address)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    numpy.save(folder / "big.npy", numpy.arange(64 * 1000, dtype=numpy.int64).reshape(64, 1000))
    numpy.save(folder / "id.npy", numpy.arange(64))
    return folder


# ---- slots --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_held_batches_are_never_overwritten(feeds, arrays, framework):
    """Holds all slots but one in turn, over many uses of each."""
    if framework == "torch":
        pytest.importorskip("torch")
    with pinfeed.open(arrays, batch_size=4, framework=framework, slots=4, shuffle=True) as feed:
        held = []
        for _ in range(20):
            for batch in feed:
                held.append((batch.big, [int(number) for number in batch.id]))
                if len(held) == 3:
                    for big, numbers in held:
                        assert (numpy.asarray(big) == numpy.arange(1000) + 1000 * numpy.array(numbers)[:, None]).all()
                    held.pop(len(numbers) % 3)
        assert feed.held <= 4


def test_the_memory_of_a_closed_feed_is_there_for_the_next(tmp_path, arrays):
    """Each feed takes the whole pool and is closed in the middle of its work."""
    daemon = Daemon(tmp_path / "run", "--allowed-roots", "/", "--pool-bytes", "64MiB", "--workers", "2")
    numpy.save(tmp_path / "rows.npy", numpy.zeros((256, 100_000), numpy.uint8))
    for _ in range(20):
        with pinfeed.open(tmp_path / "rows.npy", batch_size=128, framework="numpy", slots=4, address=daemon.address) as feed:
            next(iter(feed))
    daemon.stop()


def await_published(feed, name, batches):
    """Returns when the daemon has published so many in the feed's session; until the feed gives slots back it can publish no more."""
    deadline = time.monotonic() + 60
    while True:
        sessions = [session for each in pinfeed.status(feed.address)["feeds"] for session in each.get("sessions", [])]
        published = [int(session.get("batches_published", 0)) for session in sessions if session["client_name"] == name]
        if published == [batches]:
            return
        assert time.monotonic() < deadline, f"{batches} batches are not there: {sessions}"
        time.sleep(0.005)


def test_holding_everything_warns_and_waits_and_recovers(feeds, arrays):
    with pinfeed.open(arrays, batch_size=4, framework="numpy", slots=3, timeout=0.5, name="holder") as feed:
        held = []
        await_published(feed, "holder", 3)
        with pytest.warns(pinfeed.SlotsHeldWarning, match="all 3 slots"), pytest.raises(pinfeed.DeadlineExceededError):
            held.extend(feed)
        assert len(held) == 3
        held = []
        iterator = iter(feed)  # the next epoch, in a session of its own
        await_published(feed, "holder", 3)
        for _ in range(3):
            held.append(next(iterator))
        before = [batch.big.copy() for batch in held]
        with pytest.raises(pinfeed.DeadlineExceededError):
            next(iterator)
        assert all((batch.big == copy).all() for batch, copy in zip(held, before))
        numbers = [held[-1].id[-1]]
        del held[0]
        await_published(feed, "holder", 4)
        assert next(iterator).id[0] == numbers[0] + 1


def test_views_outlive_feed_and_daemon_session(feeds, arrays, daemon):
    feed = pinfeed.open(arrays, batch_size=4, framework="numpy")
    batch = next(iter(feed))
    row = batch.big[2]
    feed.close()
    del feed, batch
    assert row.tolist() == list(range(2000, 3000))


def test_dlpack_views_keep_the_slot(feeds, arrays):
    with pinfeed.open(arrays, batch_size=4, framework="numpy") as feed:
        batch = next(iter(feed))
        taken = numpy.from_dlpack(batch.raw["big"])
        assert taken.ctypes.data == batch.big.ctypes.data and (taken == batch.big).all()
        del batch
        assert feed.held == 1
        del taken
        assert feed.held == 0


def test_broadcast_shares_read_only_slots(feeds, arrays):
    options = dict(batch_size=4, framework="numpy", share="broadcast", group="python-test", group_size=2, sample_ids=True, epochs=2)
    got = {0: [], 1: []}

    def read(number):
        with pinfeed.open(arrays, name=f"reader {number}", **options) as feed:
            for _ in range(2):
                for batch in feed:
                    assert not batch.big.flags.writeable
                    assert (batch.big[:, 0] == 1000 * batch.id).all()
                    got[number].append((batch.epoch, batch.index, batch.sample_id.tolist()))

    threads = [threading.Thread(target=read, args=(number,)) for number in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got[0] == got[1] and len(got[0]) == 32


def test_two_threads_may_share_an_iterator(feeds, arrays):
    seen = []
    with pinfeed.open(arrays, batch_size=1, framework="numpy", epochs=1) as feed:
        iterator = iter(feed)

        def read():
            for batch in iterator:
                seen.append(int(batch.id[0]))

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(seen) == list(range(64))


def test_a_forked_child_cannot_use_the_feed(feeds, arrays):
    with pinfeed.open(arrays, batch_size=4, framework="numpy") as feed:
        first = next(iter(feed))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                next(iter(feed))
            except pinfeed.Error as error:
                status = 0 if error.code == pinfeed.Code.FAILED_PRECONDITION else 2
            finally:
                del first
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert first.id.tolist() == [0, 1, 2, 3]
        assert next(iter(feed)).epoch == 1


# ---- errors -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, code, words",
    [
        (dict(dataset="/no/such/place"), "NOT_FOUND", "/no/such/place"),
        (dict(dataset="no-such-name"), "NOT_FOUND", "no-such-name"),
        (dict(dataset="a\nname"), "INVALID_ARGUMENT", "dataset.name"),
        (dict(dataset=""), "INVALID_ARGUMENT", "dataset"),
        (dict(batch_size=0), "INVALID_ARGUMENT", "batch_size"),
        (dict(batch_size=-1), "INVALID_ARGUMENT", "batch_size"),
        (dict(batch_size=2**40), "INVALID_ARGUMENT", "batch_size"),
        (dict(seed=-1), "INVALID_ARGUMENT", "seed"),
        (dict(rank=2, world_size=2), "INVALID_ARGUMENT", "rank"),
        (dict(rank=-1, world_size=2), "INVALID_ARGUMENT", "rank"),
        (dict(batch_size=65, drop_last=True), "INVALID_ARGUMENT", "batch_size"),
        (dict(slots=1), "INVALID_ARGUMENT", "slots"),
        (dict(slots=1000), "INVALID_ARGUMENT", "slots"),
        (dict(format="parquet"), "INVALID_ARGUMENT", "parquet"),
        (dict(transforms=[pinfeed.CenterCrop(-3)]), "INVALID_ARGUMENT", "size"),
        (dict(transforms=[pinfeed.CenterCrop(0)]), "INVALID_ARGUMENT", "center_crop"),
        (dict(transforms=[pinfeed.CenterCrop((1, 2, 3))]), "INVALID_ARGUMENT", "center_crop"),
        (dict(transforms=[pinfeed.RandomHorizontalFlip(float("nan"))]), "INVALID_ARGUMENT", "random_horizontal_flip"),
        (dict(transforms=[pinfeed.Normalize([0], [0])]), "INVALID_ARGUMENT", "std"),
        (dict(transforms=[pinfeed.ToDtype("complex64")]), "INVALID_ARGUMENT", "to_dtype"),
        (dict(name="x" * 1000), "INVALID_ARGUMENT", "name: 'xxx"),
        (dict(share="queue"), "INVALID_ARGUMENT", "group"),
        (dict(address="/no/such/socket"), "UNAVAILABLE", "/no/such/socket"),
        (dict(address="/" + "x" * 200), "INVALID_ARGUMENT", "bytes"),
    ],
)
def test_errors_name_what_is_wrong(feeds, arrays, options, code, words):
    options = {"dataset": arrays, "batch_size": 4, "framework": "numpy", **options}
    with pytest.raises(pinfeed.Error) as caught:
        pinfeed.open(options.pop("dataset"), **options).close()
    assert caught.value.code.name == code, str(caught.value)
    assert words in str(caught.value)
    # A user's text must not forge lines.
    assert "a\nname" not in str(caught.value)


def test_one_error_lists_every_fault(feeds, arrays):
    with pytest.raises(pinfeed.InvalidArgumentError) as caught:
        pinfeed.open(arrays, batch_size=0, rank=3, world_size=2, slots=1, transforms=[pinfeed.CenterCrop(0)])
    for field in ("batch_size", "rank", "slots", "transforms"):
        assert field in str(caught.value)


def test_transforms_on_what_is_no_image(feeds, arrays):
    with pytest.raises(pinfeed.InvalidArgumentError, match="(?i)transform"):
        pinfeed.open(arrays, batch_size=4, transforms=[pinfeed.CenterCrop(2)])


def lying_npy(path, shape, descr="<f8", data=b"\0" * 64):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)


@pytest.mark.parametrize(
    "shape, descr",
    [
        ("(1000000000, 1000)", "<f8"),
        ("(4611686018427387904, 4611686018427387904)", "<f8"),
        ("(18446744073709551616,)", "<f8"),
        ("(-1,)", "<f8"),
        ("(9,)", "<f8"),
        ("()", "<f8"),
        ("(8,)", "|O"),
        ("(8,)", "<f99"),
        ("(8", "<f8"),
    ],
)
def test_a_header_that_lies_is_refused(feeds, tmp_path, shape, descr):
    lying_npy(tmp_path / "lie.npy", shape, descr)
    with pytest.raises(pinfeed.Error, match="lie.npy") as caught:
        pinfeed.open(tmp_path / "lie.npy", batch_size=1)
    assert caught.value.code in (pinfeed.Code.INVALID_ARGUMENT, pinfeed.Code.DATA_LOSS, pinfeed.Code.UNIMPLEMENTED), str(caught.value)


def test_bad_images(feeds, tmp_path):
    from PIL import Image

    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(4):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / label / f"{number}.png")
    (tmp_path / "b" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nand no more")
    options = dict(batch_size=4, transforms=[pinfeed.Resize((8, 8))], framework="numpy", epochs=1)
    with pinfeed.open(tmp_path, **options) as feed:
        with pytest.raises(pinfeed.DataLossError, match="1.png"):
            for _ in feed:
                pass
    with pinfeed.open(tmp_path, on_bad_sample="skip", **options) as feed:
        batches = [(batch.label.tolist(), batch.skipped) for batch in feed]
        assert batches == [([0, 0, 0, 0], 0), ([1, 1, 1], 1)]
    with pinfeed.open(tmp_path, on_bad_sample="zero", **options) as feed:
        red = [batch.image[:, 0, 0, 0].tolist() for batch in feed]
        assert red == [[0, 1, 2, 3], [0, 0, 2, 3]]


def test_a_state_of_another_order_is_refused(feeds, arrays):
    def open_feed(shuffle, seed=0, batch_size=4, rank=0, world_size=1):
        return pinfeed.open(arrays, batch_size=batch_size, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size, framework="numpy")

    for shuffle, words in ((True, "order: the state is of a shuffled feed, this one is sequential"), (False, "of a sequential feed, this one is shuffled")):
        with open_feed(shuffle) as feed, open_feed(not shuffle) as other:
            for moved in range(2):  # at the start of the epoch, and within it
                with pytest.raises(pinfeed.InvalidArgumentError, match=words):
                    other.load_state_dict(json.loads(json.dumps(feed.state_dict())))
                next(iter(feed))
            assert len(list(other)) == len(other)  # it stays where it was
    with open_feed(True, seed=1) as feed, open_feed(True, seed=2) as other:
        with pytest.raises(pinfeed.InvalidArgumentError, match="seed: the state is of a feed shuffled with seed 1, this one has seed 2"):
            other.load_state_dict(feed.state_dict())
    with open_feed(True) as feed, open_feed(True, batch_size=3) as other:
        next(iter(feed))
        with pytest.raises(pinfeed.InvalidArgumentError, match="position 4 is no border.*batch_size"):
            other.load_state_dict(feed.state_dict())
    # What may change: the seed of a feed that does not shuffle, and the world size with the same global batch.
    with open_feed(False, seed=1) as feed, open_feed(False, seed=2, batch_size=2, rank=1, world_size=2) as other:
        next(iter(feed))
        other.load_state_dict(feed.state_dict())
        assert next(iter(other)).id.tolist() == [6, 7]


def test_classes_of_a_path(feeds, arrays, tmp_path):
    from PIL import Image

    for name in ("dog", "cat", "caf\u00e9"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    with pinfeed.open(tmp_path, batch_size=1, transforms=[pinfeed.Resize((8, 8))], framework="numpy") as feed:
        assert feed.classes == ["caf\u00e9", "cat", "dog"]
    with pinfeed.open(arrays, batch_size=1, framework="numpy") as feed:
        assert feed.classes == []


def test_a_state_of_other_data_is_refused(feeds, arrays, tmp_path):
    numpy.save(tmp_path / "other.npy", numpy.arange(7))
    with pinfeed.open(arrays, batch_size=4, shuffle=True, framework="numpy") as feed, pinfeed.open(tmp_path, batch_size=4, framework="numpy") as other:
        next(iter(feed))
        with pytest.raises(pinfeed.Error, match="cursor"):
            other.load_state_dict(feed.state_dict())
    with pinfeed.open(arrays, batch_size=4, shuffle=True, seed=1, framework="numpy") as reseeded:
        state = dict(reseeded.state_dict())
        state["cursor"] = dict(state["cursor"], seed="7", position="4")
        with pytest.raises(pinfeed.InvalidArgumentError, match="seed"):
            reseeded.load_state_dict(state)


# ---- without torch ------------------------------------------------------------------------------------------------------------------


def test_numpy_alone(feeds, arrays):
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "ml_dtypes", "jax"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
import pinfeed
feed = pinfeed.open(sys.argv[1], batch_size=4, epochs=1)
print(feed.framework, type(next(iter(feed)).big).__module__, len(feed))
"""
    done = subprocess.run([sys.executable, "-c", code, str(arrays)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "numpy numpy 16\n", done.stderr


# ---- the private daemon -------------------------------------------------------------------------------------------------------------

PRIVATE = """
import os, sys, pinfeed, pinfeed._daemon
pinfeed._daemon.SYSTEM_SOCKET = "/no/such/socket"
one = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy")
two = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy")
kept = next(iter(one))
assert one.address == two.address
print(pinfeed.status()["pid"], os.path.dirname(one.address), flush=True)
"""


def start_private(arrays, code):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("watching the daemon's end needs os.pidfd_open (Python 3.9)")
    process = subprocess.Popen([sys.executable, "-c", PRIVATE + code, str(arrays)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line, process.stderr.read()
    pid, folder = line.split(None, 1)
    return process, os.pidfd_open(int(pid)), pathlib.Path(folder.strip())


def wait_gone(pidfd):
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(60000), "the private daemon outlives its process"
    os.close(pidfd)


def test_the_private_daemon_ends_with_its_process(arrays):
    process, pidfd, folder = start_private(arrays, "sys.stdin.read()")  # until communicate: its daemon must be there to be watched
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0 and error == "", error
    wait_gone(pidfd)
    assert not folder.exists()


def test_the_private_daemon_ends_with_its_killed_process(arrays):
    process, pidfd, folder = start_private(arrays, "sys.stdin.read()")
    assert folder.stat().st_mode & 0o777 == 0o700
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    wait_gone(pidfd)


def test_a_forked_child_does_not_keep_the_private_daemon(arrays):
    # The child lives until its stdin ends, which is after the check.
    process, pidfd, folder = start_private(arrays, "child = os.fork()\nif child == 0:\n    sys.stdin.read()\n    os._exit(0)\nos.kill(os.getpid(), 9)")
    assert process.wait(60) == -signal.SIGKILL
    wait_gone(pidfd)
    process.communicate()


def test_a_private_daemon_that_does_not_start_says_why(arrays, tmp_path):
    def attempt(program):
        environment = {**os.environ, "PINFEED_DAEMON": str(program)}
        return subprocess.run([sys.executable, "-c", PRIVATE, str(arrays)], env=environment, capture_output=True, text=True, timeout=60)

    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho no memory for the pool >&2\nexit 3\n")
    failing.chmod(0o755)
    done = attempt(failing)
    assert "UnavailableError" in done.stderr and "ended with status 3" in done.stderr and "no memory for the pool" in done.stderr
    done = attempt(tmp_path / "missing")
    assert "NotFoundError" in done.stderr and "missing" in done.stderr


def test_one_private_daemon_for_all_threads(arrays):
    code = """
import threading
addresses = set()
def run():
    with pinfeed.open(sys.argv[1], batch_size=4, framework="numpy") as feed:
        addresses.add(feed.address)
threads = [threading.Thread(target=run) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert addresses == {one.address}, addresses
"""
    process, pidfd, _ = start_private(arrays, code)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    wait_gone(pidfd)
