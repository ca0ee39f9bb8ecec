# SPDX-License-Identifier: Apache-2.0
"""Who keeps what, and until when: slots and views, the private daemon and its process."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading

import numpy
import pytest
from conftest import TOOL
from daemon_process import Daemon
from withstand.hardship import eventually

import pinfeed
from pinfeed._base import daemon as private



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
                        assert (numpy.asarray(big) == numpy.arange(3000) + 3000 * numpy.array(numbers)[:, None]).all()
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

    def published():
        sessions = [session for each in pinfeed.status(feed.address)["feeds"] for session in each.get("sessions", [])]
        return [int(session.get("batches", 0)) for session in sessions if session["client_name"] == name]

    eventually(lambda: f"{batches} batches are not there: {published()}", lambda: published() == [batches])


def session_named(feed, name):
    (session,) = [s for each in pinfeed.status(feed.address)["feeds"] for s in each.get("sessions", []) if s["client_name"] == name]
    return session


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("slots", [3, 4])
def test_a_trainer_that_keeps_every_batch_never_waits_for_ever(feeds, arrays, framework, slots):
    """What it keeps first are views, up to all slots but one; what comes then are copies, of a feed that goes on."""
    if framework == "torch":
        pytest.importorskip("torch")
    name = f"keeps all, {framework}, {slots}"
    with pinfeed.open(arrays, batch_size=4, framework=framework, slots=slots, timeout=60, name=name) as feed:
        with pytest.warns(pinfeed.SlotsHeldWarning, match=f"{slots - 1} of the {slots} slots of the feed of .* held.*is a copy.*raise slots") as told:
            kept = [batch for _ in range(2) for batch in feed]
        assert len(told) == 1 and told[0].filename == __file__
        assert (feed.held, feed.copied) == (slots - 1, 32 - (slots - 1))
        assert int(session_named(feed, name)["batches_copied"]) == feed.copied
        status = subprocess.run([TOOL, "status"], env={**os.environ, "PINFEED_ADDRESS": feed.address}, capture_output=True, text=True, timeout=60)
        assert f"({name}) copied {feed.copied} batches: the trainer holds too many; raise slots" in status.stdout
        for batch in kept:
            assert (numpy.asarray(batch.big) == numpy.arange(3000) + 3000 * numpy.asarray(batch.id)[:, None]).all()
        assert numpy.from_dlpack(kept[-1].raw["big"]).shape == (4, 3000)
        kept[-1].big[:] = 0  # its own
        del kept, batch
        assert feed.held == 0
        assert [batch.index for batch in feed] == list(range(16)) and feed.copied == 32 - (slots - 1)


def test_kept_labels_hold_no_slot(feeds, arrays):
    with pinfeed.open(arrays, batch_size=4, framework="numpy", slots=3, timeout=60) as feed:
        labels = [batch.id for _ in range(3) for batch in feed]
        assert (feed.held, feed.copied) == (0, 0)
        assert numpy.concatenate(labels).tolist() == list(range(64)) * 3


def test_a_batch_of_small_tensors_holds_no_slot(feeds, arrays):
    with pinfeed.open(arrays, batch_size=2, framework="numpy", slots=3, zero_copy=True, timeout=60) as feed:
        kept = list(feed)
        assert (feed.held, feed.copied, len(kept)) == (0, 0, 32)
        assert numpy.from_dlpack(kept[5].raw["id"]).tolist() == [10, 11]


def test_views_outlive_feed_and_daemon_session(feeds, arrays, daemon):
    feed = pinfeed.open(arrays, batch_size=4, framework="numpy")
    batch = next(iter(feed))
    row = batch.big[2]
    feed.close()
    del feed, batch
    assert row.tolist() == list(range(6000, 9000))


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
    options = dict(batch_size=4, framework="numpy", share="broadcast", group="python-test", group_size=2, sample_ids=True, epochs=2, zero_copy=True)
    got = {0: [], 1: []}

    def read(number):
        with pinfeed.open(arrays, name=f"reader {number}", **options) as feed:
            for _ in range(2):
                for batch in feed:
                    assert not batch.big.flags.writeable
                    assert (batch.big[:, 0] == 3000 * batch.id).all()
                    got[number].append((batch.epoch, batch.index, batch.sample_id.tolist()))

    threads = [threading.Thread(target=read, args=(number,)) for number in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got[0] == got[1] and len(got[0]) == 32


@pytest.mark.parametrize("move", [lambda feed, start: feed.set_epoch(3), lambda feed, start: feed.load_state_dict(start)], ids=["set_epoch", "load_state_dict"])
def test_a_session_with_fewer_slots_copies_sooner(tmp_path, move):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", "/", "--pool-bytes", "24MiB", "--workers", "2")
    numpy.save(tmp_path / "rows.npy", numpy.zeros((200, 110_000), numpy.uint8))
    try:
        with pinfeed.open(tmp_path / "rows.npy", batch_size=10, framework="numpy", address=daemon.address, timeout=60) as feed:
            start, slots = feed.state_dict(), feed.slots
            kept = [next(iter(feed))]  # its memory is no other session's
            move(feed, start)
            with pytest.warns(pinfeed.SlotsHeldWarning):
                kept += feed
            assert len(kept) == 21
            assert feed.slots < slots and feed.copied == 20 - (feed.slots - 1)
            del kept
    finally:
        daemon.stop()


@pytest.mark.filterwarnings("ignore::pinfeed.SlotsHeldWarning")
@pytest.mark.parametrize("zero_copy", [None, True])
@pytest.mark.parametrize("slots", [3, 4, 8])
def test_members_that_keep_different_batches_never_stop_their_group(feeds, arrays, slots, zero_copy):
    """Together they would hold every slot."""
    options = dict(batch_size=4, framework="numpy", share="broadcast", group=f"keepers {slots} {zero_copy}", group_size=2, epochs=1, slots=slots, timeout=60)
    with pinfeed.open(arrays, zero_copy=zero_copy, **options) as even, pinfeed.open(arrays, zero_copy=zero_copy, **options) as odd:
        kept = []
        for number, batches in enumerate(zip(even, odd)):
            kept.append(batches[number % 2])
        assert len(kept) == 16
        assert all((batch.big[:, 0] == 3000 * batch.id).all() for batch in kept)
        assert even.held + odd.held < slots
        del batches
        kept.clear()


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
import os, sys, pinfeed, pinfeed._base.daemon
pinfeed._base.daemon.SYSTEM_SOCKET = "/no/such/socket"
one = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy")
two = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy")
kept = next(iter(one))
assert one.address == two.address
print(pinfeed.status()["pid"], os.path.dirname(one.address), flush=True)
"""


def run_program(code, arrays, *arguments):
    return subprocess.run([sys.executable, "-c", code, str(arrays), *arguments], capture_output=True, text=True, timeout=60, check=False)


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


FORKED_AMID = """
import os, sys, threading
import pinfeed
from pinfeed._base import abi, daemon
locks = [lambda: abi._loading, lambda: daemon._PrivateDaemon._lock]
held, done = threading.Event(), threading.Event()
def hold():
    with locks[0](), locks[1]():
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(0 if all(lock().acquire(blocking=False) for lock in locks) else 1)
status = os.waitpid(child, 0)[1]
done.set()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_that_was_forked_while_another_thread_loads_the_library_or_starts_a_daemon_can_do_so():
    assert subprocess.run([sys.executable, "-c", FORKED_AMID], timeout=60).returncode == 0


FORKED_BETWEEN = """
import os, sys, threading, time
import pinfeed, pinfeed._base.daemon
pinfeed._base.daemon.SYSTEM_SOCKET = "/no/such/socket"
pipe = os.pipe
children = []

def fork():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)

def pipe_and_fork():
    ends = pipe()
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join(0.5)
    return ends

os.pipe = pipe_and_fork
began = time.monotonic()
feed = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy")
print(time.monotonic() - began)
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
assert len(children) == 3, children
for child in children:
    os.kill(child, 9)
"""


def test_a_child_that_another_thread_forks_while_the_private_daemon_starts_does_not_hold_it_up(arrays):
    done = subprocess.run([sys.executable, "-c", FORKED_BETWEEN, str(arrays)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and float(done.stdout) < 30, done.stdout + done.stderr


INTERRUPTED_FORKS = """
import contextlib, os, random, signal, sys, threading
from pinfeed._base.fork_locks import no_forks

class Raised(Exception):
    pass

def handler(*_):
    raise Raised

sys.unraisablehook = lambda _: None
signal.signal(signal.SIGALRM, handler)
for _ in range(300):
    with contextlib.suppress(Raised):
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
        if os.fork() == 0:
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
taken = []
thread = threading.Thread(target=lambda: taken.append(no_forks.acquire(timeout=1)))
thread.start()
thread.join()
print(taken)
"""


def test_a_signal_handler_that_raises_within_a_fork_leaves_nothing_taken():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_FORKS], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[True]\n", done.stdout + done.stderr


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


CLOSED = """
import os, sys
out = os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT), 9)
import pinfeed, pinfeed._base.daemon
pinfeed._base.daemon.SYSTEM_SOCKET = "/no/such/socket"
for number in map(int, sys.argv[3]):
    os.close(number)
try:
    said = str(sum(1 for _ in pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1)))
except Exception as error:
    said = repr(error)
os.write(out, said.encode())
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "12", "012"])
def test_a_private_daemon_starts_where_standard_streams_are_closed(arrays, tmp_path, closed):
    subprocess.run([sys.executable, "-c", CLOSED, str(arrays), str(tmp_path / "out"), closed], stdin=subprocess.DEVNULL, timeout=60)
    assert (tmp_path / "out").read_text() == "16"


def test_a_private_daemon_needs_no_folder_for_temporary_files(arrays):
    code = 'import tempfile\ndef refuse():\n    raise FileNotFoundError(2, "No usable temporary directory found in []")\ntempfile.gettempdir = refuse\n'
    done = subprocess.run([sys.executable, "-c", code + PRIVATE, str(arrays)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_private_daemons_folder_can_be_entered_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = os.umask(0o777)
    try:
        folder = private._make_folder()
    finally:
        os.umask(before)
    assert os.stat(folder).st_mode & 0o777 == 0o700


def test_where_no_folder_serves_each_is_named_with_the_reason(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fsdecode(b"/\xff"))
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 100)
    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(pinfeed.Error, match=r"\('/\\udcff': its path is not UTF-8; /x{100}: its path is too long; /tmp: .*; /dev/shm: .*: set TMPDIR"):
        private._make_folder()


def refused(**_):
    raise PermissionError(13, "Permission denied")


DIES = """
import os, sys
import pinfeed, pinfeed._base.daemon
pinfeed._base.daemon.SYSTEM_SOCKET = "/no/such/socket"
pinfeed._base.daemon._MIN_LIFETIME_S = {"old enough": 0, "too young": 3600}[sys.argv[2]]
feed = pinfeed.open(sys.argv[1], batch_size=4, shuffle=True, framework="numpy", epochs=2)
expected = [list(batch.id) for _ in range(2) for batch in feed]
feed.close()
feed = pinfeed.open(sys.argv[1], batch_size=4, shuffle=True, framework="numpy", epochs=2, slots=3)
seen = []
for epoch in range(2):
    for batch in feed:
        if len(seen) in (5, 20):
            pid = int(pinfeed.status(feed.address)["pid"])
            os.kill(pid, 9)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        seen.append(list(batch.id))
        del batch
assert seen == expected, (seen, expected)
other = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy")
assert other.address == feed.address
print("went on")
"""


def run_dying(arrays, age):
    return run_program(DIES, arrays, age)


def test_a_private_daemon_that_dies_is_started_anew(arrays):
    done = run_dying(arrays, "old enough")
    assert done.stdout == "went on\n", done.stderr
    assert "ended with status -9" in done.stderr and "starting another one; no batch is lost" in done.stderr


def test_a_private_daemon_that_dies_at_once_is_not(arrays):
    done = run_dying(arrays, "too young")
    assert done.returncode == 1
    assert "ended with status -9; its log ends with" in done.stderr and "another one would do no better" in done.stderr


TERMINATED = """
import contextlib, os, shutil, sys
import pinfeed, pinfeed._base.daemon as daemon
daemon.SYSTEM_SOCKET = "/no/such/socket"
daemon._MIN_LIFETIME_S = 0
first = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1, slots=3)
seen = []
for batch in first:
    seen += batch.id.tolist()
    del batch
    if len(seen) == 8:
        process = daemon._PrivateDaemon.instance._process
        umask = os.umask(0o777)
        if sys.argv[2] == "replaced":
            shutil.rmtree(os.path.dirname(first.address))
            second = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1)
            assert second.address != first.address
            process.kill()
        else:
            process.terminate()
            with contextlib.suppress(pinfeed.Error):  # it has ended
                # It heeds that before the epoch's last batch: with nothing left to give, it would wait for this feed's end.
                while pinfeed.status(first.address)["state"] == "ready":
                    pass
os.umask(umask)
assert seen == list(range(64)), seen
assert os.stat(os.path.dirname(first.address)).st_mode & 0o777 == 0o700
feed = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1)
assert (feed.address == first.address) == (sys.argv[2] == "alone")
print(len(list(feed)))
"""


@pytest.mark.parametrize("which", ["alone", "replaced"])
def test_a_private_daemon_whose_folder_has_gone_with_it_is_replaced_for_what_is_open(arrays, which):
    """A daemon that is told to end removes its folder."""
    done = run_program(TERMINATED, arrays, which)
    assert done.stdout == "16\n" and "starting another one; no batch is lost" in done.stderr, done.stderr


REMOVED = """
import os, shutil, sys
import pinfeed, pinfeed._base.daemon
pinfeed._base.daemon.SYSTEM_SOCKET = "/no/such/socket"
first = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1)
iterator = iter(first)
next(iterator)
shutil.rmtree(os.path.dirname(first.address))
second = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1)
assert second.address != first.address
print(sum(1 for _ in iterator), sum(1 for _ in second), pinfeed.open(sys.argv[1], batch_size=4, framework="numpy").address == second.address)
"""


def test_a_private_daemon_whose_folder_is_removed_serves_what_is_open_and_another_one_the_rest(arrays):
    done = run_program(REMOVED, arrays)
    assert done.stdout == "15 16 True\n" and "was removed, perhaps by a cleaner of temporary files" in done.stderr, done.stderr


UNMADE = """
import os, shutil, sys, tempfile
import pinfeed, pinfeed._base.daemon as daemon
daemon.SYSTEM_SOCKET = "/no/such/socket"
os.environ.pop("XDG_RUNTIME_DIR", None)
tempfile.tempdir = tempfile.mkdtemp(dir="/tmp")
first = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1)
list(first)
process = daemon._PrivateDaemon.instance._process
process.kill()
process.wait()
shutil.rmtree(tempfile.tempdir)
if sys.argv[2] == "another":
    os.mkdir(tempfile.tempdir)
    os.symlink(sys.argv[1], os.path.dirname(first.address))
second = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1)
print(len(list(second)), second.address != first.address)
shutil.rmtree(tempfile.tempdir, ignore_errors=True)
"""


@pytest.mark.parametrize("which", ["none", "another"])
def test_a_private_daemon_whose_folder_cannot_be_had_again_is_replaced_elsewhere(arrays, which):
    """Such as where a job's TMPDIR is removed."""
    done = run_program(UNMADE, arrays, which)
    assert done.stdout == "16 True\n" and "was removed, perhaps by a cleaner" in done.stderr, done.stderr


READ_ONLY = """
import os, sys, tempfile
import pinfeed, pinfeed._base.daemon
pinfeed._base.daemon.SYSTEM_SOCKET = "/no/such/socket"
os.environ.pop("XDG_RUNTIME_DIR", None)
def gettempdir():
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/']")
tempfile.gettempdir, mkdtemp = gettempdir, tempfile.mkdtemp
def make(prefix, dir):
    if dir not in sys.argv[2:]:
        raise OSError(30, "Read-only file system")
    return mkdtemp(prefix=prefix, dir=dir)
tempfile.mkdtemp = make
with pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1) as feed:
    print(len(list(feed)), os.path.dirname(os.path.dirname(feed.address)))
"""


def test_a_private_daemon_needs_no_folder_on_the_disk(arrays):
    """As in a container whose root is read-only."""
    done = run_program(READ_ONLY, arrays, "/dev/shm")
    assert done.stdout == "16 /dev/shm\n", done.stderr
    done = run_program(READ_ONLY, arrays)
    assert "pinfeed._base.errors.Error: no folder for the private daemon's socket (No usable temporary directory" in done.stderr, done.stderr
    assert "/dev/shm: Read-only file system): set TMPDIR" in done.stderr, done.stderr


SHORT = """
import errno, os, sys
import pinfeed, pinfeed._base.daemon as daemon
daemon.SYSTEM_SOCKET = "/no/such/socket"
daemon._MIN_LIFETIME_S = 0
def short(*arguments, **options):
    raise OSError(getattr(errno, sys.argv[3]), os.strerror(getattr(errno, sys.argv[3])))
owner, name = {"pipe": (os, "pipe"), "process": (daemon.subprocess, "Popen")}[sys.argv[2]]
real = getattr(owner, name)
def attempt(what):
    setattr(owner, name, short)
    try:
        what()
    except pinfeed.Error as error:
        print(type(error).__name__, error.code.name, error)
    setattr(owner, name, real)
before = sorted(os.listdir("/proc/self/fd"))
attempt(lambda: pinfeed.open(sys.argv[1], batch_size=4, framework="numpy"))
assert sorted(os.listdir("/proc/self/fd")) == before, os.listdir("/proc/self/fd")
feed = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", epochs=1, slots=3)
batches = iter(feed)
seen = [list(next(batches).id)]
pid = int(pinfeed.status(feed.address)["pid"])
os.kill(pid, 9)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
def rest():
    for batch in batches:
        seen.append(list(batch.id))
attempt(rest)
rest()
assert len(seen) == 16 and sum(seen, []) == list(range(64)), seen
"""


@pytest.mark.parametrize("what, error, words", [("pipe", "EMFILE", "ulimit -n"), ("process", "EAGAIN", "ulimit -u"), ("process", "ENOMEM", "memory")])
def test_a_private_daemon_for_which_the_system_is_short_is_an_error_and_the_loop_may_go_on(arrays, what, error, words):
    done = run_program(SHORT, arrays, what, error)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2, done.stdout + done.stderr
    assert all(line.startswith("ResourceExhaustedError RESOURCE_EXHAUSTED starting the daemon") and words in line for line in lines), lines


SYSTEM = """
import pinfeed, pinfeed._base.daemon, sys
pinfeed._base.daemon.SYSTEM_SOCKET = sys.argv[2]
print("asks", flush=True)
for _ in range(2):
    with pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", open_timeout=float(sys.argv[3])) as feed:
        print(feed.address, flush=True)
"""


def open_by_default(arrays, socket, timeout):
    environment = {name: value for name, value in os.environ.items() if name != "PINFEED_ADDRESS"}
    command = [sys.executable, "-c", SYSTEM, str(arrays), str(socket), str(timeout)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "asks\n", process.stderr.read()
    return process


def test_the_systems_daemon_is_waited_for_while_it_is_away(tmp_path, arrays):
    (tmp_path / "run").mkdir()
    process = open_by_default(arrays, tmp_path / "run" / "pinfeed.sock", 60)
    daemon = Daemon(tmp_path / "run", "--allowed-roots", "/", "--pool-bytes", "64MiB", "--workers", "1")
    out, error = process.communicate(timeout=90)
    assert (out, error) == (f"{daemon.address}\n" * 2, "")
    daemon.stop()


def test_a_private_daemon_in_the_systems_place_is_told_of_once(tmp_path, arrays):
    (tmp_path / "run").mkdir()
    out, error = open_by_default(arrays, tmp_path / "run" / "pinfeed.sock", 5).communicate(timeout=90)
    first, second = out.splitlines()
    assert first == second != str(tmp_path / "run" / "pinfeed.sock")
    assert len(error.splitlines()) == 1 and "starting a private one" in error and "set PINFEED_ADDRESS" in error and "No such file" in error, error


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
