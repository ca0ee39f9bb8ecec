# SPDX-License-Identifier: Apache-2.0
"""What operators have a running daemon do: load its configuration again, end a session, drain, log more or less. With real trainers.

Long because: each of these has a program of its own that plays the trainer.
"""
import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy
import pinfeed
import pytest
from conftest import TOOL, tool
from daemon_process import Daemon
from raw_client import HELLO, connect, field, frame, open_feed, request_for
from terminal import OnATerminal
from withstand.hardship import eventually, metrics

NOBODY = 65534


class Configured:
    """A daemon with a file, and what the file says of datasets."""

    def __init__(self, folder, arrays, *flags, under=()):
        self.file = folder / "pinfeed.toml"
        self.arrays = arrays
        self.write()
        self.daemon = Daemon(folder / "run", "--config", str(self.file), *flags, http_listen="127.0.0.1:0", under=under)

    def write(self, head="", datasets=("train",)):
        tables = "".join(f'[datasets.{name}]\npath = "{self.arrays}"\n' for name in datasets)
        self.file.write_text(f'pool_bytes = "128MiB"\nworkers = 2\n{head}{tables}')

    def can_open(self, name):
        try:
            with pinfeed.open(name, batch_size=4, framework="numpy", address=self.daemon.address) as feed:
                return len(next(iter(feed)).id) == 4
        except pinfeed.NotFoundError:
            return False


@pytest.fixture
def configured(tmp_path, arrays):
    one = Configured(tmp_path, arrays)
    yield one
    one.daemon.stop()


@pytest.mark.parametrize("how", ["tool", "signal"])
def test_a_reload_changes_what_can_change_and_names_the_rest(configured, how):
    daemon = configured.daemon
    assert configured.can_open("train") and not configured.can_open("new")
    before = metrics(daemon)["pinfeed_config_last_reload_success_timestamp_seconds"]
    configured.write('max_sessions = 1\nsocket_mode = "0600"\n', datasets=("new",))
    if how == "tool":
        status, out, err = tool(daemon, "reload")
        assert status == 0, err
        now, later = out.split("waits for a restart:")
        assert "max_sessions = 1" in now and "datasets.new: added" in now and "datasets.train: removed" in now
        assert re.search(r"socket_mode = 0o600 \(.*pinfeed.toml:4\); 0o660 stays", later)
    else:
        daemon.process.send_signal(signal.SIGHUP)
        eventually("it is loaded", lambda: "takes effect only after a restart: socket_mode = 0o600" in daemon.log())
    assert configured.can_open("new") and not configured.can_open("train")
    eventually("a new page says when", lambda: metrics(daemon)["pinfeed_config_last_reload_success_timestamp_seconds"] > before)
    assert metrics(daemon)["pinfeed_sessions_limit"] == 1
    with pinfeed.open("new", batch_size=4, framework="numpy", address=daemon.address):
        with pytest.raises(pinfeed.ResourceExhaustedError, match="max_sessions"):
            configured.can_open("new")


def test_a_reload_of_what_needs_a_restart_alone_does_not_say_that_nothing_changed(configured):
    configured.write('socket_mode = "0600"\n')
    status, out, err = tool(configured.daemon, "reload")
    assert status == 0 and out.startswith("loaded: no change takes effect now\nwaits for a restart:\n"), err
    assert "the configuration was loaded: no change takes effect now" in configured.daemon.log()


def test_a_reload_warns_of_what_a_restart_would_refuse(configured):
    configured.write('cache_bytes = "1000 TiB"\nsocket_group = "nobodys"\n')
    status, out, err = tool(configured.daemon, "reload")
    assert status == 0, err
    warnings = out.split("loaded as it is, but:")[1]
    for line, fault in ((3, "cache_bytes: .* and the pool"), (4, "socket_group: there is no group 'nobodys'")):
        assert re.search(rf"{configured.file}:{line}: {fault}.*; a restart with this value would fail", warnings)
    assert "a restart with this value would fail" in configured.daemon.log()


def test_a_wrong_file_changes_nothing_and_says_where(configured):
    daemon = configured.daemon
    configured.write('log_level = "debug"\nmax_sessions = "many"\nsockets = 3\n', datasets=("new",))
    status, _, err = tool(daemon, "reload")
    assert status == 1
    assert f"{configured.file}:4: max_sessions: expected" in err and f"{configured.file}:5: sockets: unknown key" in err
    for line in (4, 5):  # an entry each
        assert re.search(rf"^2.*the configuration is unchanged: {configured.file}:{line}: ", daemon.log(), re.M)
    eventually("a new page says so", lambda: metrics(daemon)["pinfeed_config_last_reload_successful"] == 0)
    assert configured.can_open("train") and not configured.can_open("new")
    assert " debug " not in daemon.log()
    configured.write()
    assert tool(daemon, "reload")[:2] == (0, "loaded: nothing changed\n")
    eventually("a new page says so", lambda: metrics(daemon)["pinfeed_config_last_reload_successful"] == 1)


def test_a_reload_names_what_a_flag_or_a_variable_overrides(tmp_path, arrays):
    one = Configured(tmp_path, arrays, "--max-sessions", "7", under=["env", "PINFEED_ALLOWED_ROOTS=/"])
    one.write(f'allowed_roots = ["{arrays}"]\nmax_sessions = 7\n')
    status, out, err = tool(one.daemon, "reload")
    assert status == 0, err
    overridden = f'allowed_roots = ["{arrays}"] ({one.file}:3) is not in force: environment PINFEED_ALLOWED_ROOTS overrides it'
    assert out.startswith("loaded: nothing changed\nloaded as it is, but:\n  " + overridden) and "max_sessions" not in out
    assert overridden in one.daemon.log()
    one.write("max_sessions = 8\n")
    assert f"max_sessions = 8 ({one.file}:3) is not in force: flag --max-sessions overrides it" in tool(one.daemon, "reload")[1]
    one.daemon.stop()


def test_a_reload_warns_of_what_is_not_there_and_takes_it(configured, tmp_path):
    daemon, later = configured.daemon, tmp_path / "later"
    configured.write(f'allowed_roots = ["{later}"]\n')
    with configured.file.open("a") as file:
        file.write(f'[datasets.new]\npath = "{later}/train"\n')
    status, out, err = tool(daemon, "reload")
    assert status == 0 and "datasets.new: added" in out, err
    warnings = out.split("loaded as it is, but:")[1]
    assert f"{configured.file}:3: allowed_roots: open the directory '{later}': No such file or directory" in warnings
    assert f"{configured.file}:6: datasets.new: read '{later}/train': No such file or directory" in warnings
    assert f" warning {configured.file}:3: allowed_roots: open the directory" in daemon.log()
    shutil.copytree(configured.arrays, later / "train")
    assert configured.can_open("new") and configured.can_open(later / "train")
    assert tool(daemon, "reload")[:2] == (0, "loaded: nothing changed\n")


def test_an_open_feed_goes_on_over_a_reload_that_takes_its_dataset(configured):
    with pinfeed.open("train", batch_size=4, framework="numpy", address=configured.daemon.address) as feed:
        ids = [int(number) for batch in feed for number in batch.id]
        configured.write(datasets=())
        assert tool(configured.daemon, "reload")[0] == 0
        assert [int(number) for batch in feed for number in batch.id] == ids == list(range(64))
    assert not configured.can_open("train")


def test_the_log_level_changes_until_the_next_reload(configured, arrays):
    daemon = configured.daemon
    assert tool(daemon, "logs", "--level", "error")[:2] == (0, "log level error (was info), until the daemon restarts or loads its configuration again\n")
    assert re.search(r" info +.* sets the log level error, which was info$", daemon.log(), re.M)
    lines = daemon.log().count("opened on feed")
    assert configured.can_open("train") and daemon.log().count("opened on feed") == lines
    assert tool(daemon, "reload")[0] == 0
    assert configured.can_open("train") and daemon.log().count("opened on feed") == lines + 1
    status, _, err = tool(daemon, "logs", "--level", "loud")
    assert status == 2 and "loud not in" in err


def session_of(daemon, name):
    return next(session for feed in pinfeed.status(daemon.address)["feeds"] for session in feed.get("sessions", []) if session["client_name"] == name)


def test_an_evicted_trainer_gets_an_error_and_its_memory_goes_back(daemon, arrays):
    options = dict(batch_size=4, framework="numpy", address=daemon.address)
    used = int(pinfeed.status(daemon.address)["pool_used_bytes"])
    with pinfeed.open(arrays, name="stays", **options) as other:
        with pinfeed.open(arrays, name="goes", **options) as feed:
            epoch = iter(feed)
            held = next(epoch)
            values = held.big.copy()
            status, out, err = tool(daemon, "evict", session_of(daemon, "goes")["id"], "--reason", "the host is needed")
            assert status == 0, err
            assert re.fullmatch(rf"evicted session \d+ \(pid {os.getpid()}, uid {os.geteuid()}, 'goes'\)\n", out)
            eventually("its memory is back", lambda: [[s["client_name"] for s in f.get("sessions", [])] for f in pinfeed.status(daemon.address)["feeds"]] == [["stays"]])
            assert (held.big == values).all()  # what it holds is its own
            with pytest.raises(pinfeed.Error, match="evicted by an operator .*: the host is needed") as evicted:
                collections.deque(epoch, maxlen=0)
                next(iter(feed))  # the whole epoch was published before
            assert evicted.value.code.name == "ABORTED"
        assert sum(len(batch.id) for batch in other) == 64
    eventually("the batch it holds is still its memory", lambda: int(pinfeed.status(daemon.address)["pool_kept_bytes"]) > 0)
    del held, epoch, feed, evicted  # whose traceback has them
    eventually("all is back", lambda: int(pinfeed.status(daemon.address)["pool_used_bytes"]) == used)
    status, _, err = tool(daemon, "evict", 10**9)
    assert status == 1 and "there is no session 1000000000" in err


def test_how_long_a_batch_is_held_counts_before_anyone_asks(tmp_path, arrays):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", str(arrays.parent), "--pool-bytes", "64MiB", "--stuck-timeout", "1s")
    with pinfeed.open(arrays, batch_size=4, framework="numpy", address=daemon.address, zero_copy=True) as feed:
        held = next(iter(feed))
        time.sleep(3)
        assert pinfeed.status(daemon.address)["feeds"][0]["sessions"][0]["lease_age_seconds"] > 1.5
        del held
    daemon.stop()


MEMBER = """
import os, signal, sys
import pinfeed
feed = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", address=sys.argv[2], share="broadcast", group="pair", group_size=2, slots=4, zero_copy=True)
epoch = iter(feed)
held = next(epoch)
values = held.big.copy()
print("stops", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
assert (held.big == values).all()
try:
    next(epoch)
except pinfeed.Error as error:
    print(error.code.name, str(error), flush=True)
sys.stdin.read()
"""


def test_an_evicted_trainer_that_seeks_hears_of_it_first(daemon, arrays):
    used = int(pinfeed.status(daemon.address)["pool_used_bytes"])
    with pinfeed.open(arrays, name="seeks", batch_size=4, framework="numpy", address=daemon.address) as feed:
        epoch = iter(feed)
        begun = feed.state_dict()
        next(epoch)
        assert tool(daemon, "evict", session_of(daemon, "seeks")["id"])[0] == 0
        with pytest.raises(pinfeed.Error, match="evicted by an operator") as evicted:
            feed.load_state_dict(begun)
        assert evicted.value.code.name == "ABORTED"
    del epoch, feed, evicted
    eventually("all is back", lambda: not pinfeed.status(daemon.address).get("feeds") and int(pinfeed.status(daemon.address)["pool_used_bytes"]) == used)


def test_a_stopped_member_of_a_group_that_is_evicted_keeps_what_it_holds_and_no_more(daemon, arrays):
    used = int(pinfeed.status(daemon.address)["pool_used_bytes"])
    member = subprocess.Popen([sys.executable, "-c", MEMBER, str(arrays), daemon.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with pinfeed.open(arrays, batch_size=4, framework="numpy", address=daemon.address, share="broadcast", group="pair", group_size=2, slots=4, zero_copy=True, name="stays") as feed:
        assert member.stdout.readline() == "stops\n"
        epoch = iter(feed)
        seen = [int(number) for _ in range(4) for number in next(epoch).id]  # all slots
        stuck = next(s for s in pinfeed.status(daemon.address)["feeds"][0]["sessions"] if int(s["pid"]) == member.pid)
        status, out, err = tool(daemon, "evict", stuck["id"], "--reason", "it is stuck")
        assert status == 0, err
        assert "it still holds 1 batch of its group" in out
        assert tool(daemon, "evict", stuck["id"])[0] == 1
        seen += [int(number) for batch in epoch for number in batch.id]
        assert seen == list(range(64))
        assert [s["state"] for s in pinfeed.status(daemon.address)["feeds"][0]["sessions"] if int(s["pid"]) == member.pid] == ["evicted"]
        member.send_signal(signal.SIGCONT)
        assert member.stdout.readline().startswith("ABORTED ")
        member.kill()
        member.wait()
        eventually("it has gone", lambda: len(pinfeed.status(daemon.address)["feeds"][0]["sessions"]) == 1)
    eventually("all is back", lambda: int(pinfeed.status(daemon.address)["pool_used_bytes"]) == used)


def test_an_evicted_member_that_has_released_all_can_be_ended(daemon, arrays):
    used = int(pinfeed.status(daemon.address)["pool_used_bytes"])
    options = dict(batch_size=4, framework="numpy", address=daemon.address, share="broadcast", group="pair", group_size=2, slots=4, zero_copy=True)
    with pinfeed.open(arrays, name="goes", **options) as feed, pinfeed.open(arrays, name="stays", **options) as other:
        held, _ = next(iter(feed)), next(iter(other))
        session = session_of(daemon, "goes")["id"]
        assert "it still holds 1 batch of its group" in tool(daemon, "evict", session)[1]
        status, _, err = tool(daemon, "evict", session)
        assert status == 1 and "end its process to reclaim the batches that it holds" in err
        del held
        eventually("it has released its batch", lambda: session_of(daemon, "goes").get("slots_held", 0) == 0)
        assert tool(daemon, "evict", session)[0] == 0
        assert [s["client_name"] for s in pinfeed.status(daemon.address)["feeds"][0]["sessions"]] == ["stays"]
    eventually("all is back", lambda: int(pinfeed.status(daemon.address)["pool_used_bytes"]) == used)


# A program's lifeline is its one SOCK_SEQPACKET.
HANG_UP = """
for number in os.listdir("/proc/self/fd"):
    try:
        with socket.socket(fileno=os.dup(int(number))) as one:
            if one.type == socket.SOCK_SEQPACKET:
                one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
print("orphaned", flush=True)
"""

HANGS_UP = (
    """
import os, socket, sys
import pinfeed
feed = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", address=sys.argv[2], name="orphan")
batch = next(iter(feed))
"""
    + HANG_UP
    + """sys.stdin.read()
print(int(batch.id[0]), flush=True)
os._exit(0)
"""
)


def test_an_orphaned_session_is_evicted_too(daemon, arrays):
    used = int(pinfeed.status(daemon.address)["pool_used_bytes"])
    orphan = subprocess.Popen([sys.executable, "-c", HANGS_UP, str(arrays), daemon.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert orphan.stdout.readline() == "orphaned\n"
    eventually("it is orphaned", lambda: session_of(daemon, "orphan")["state"] == "orphaned")
    assert int(pinfeed.status(daemon.address)["pool_used_bytes"]) > used
    assert tool(daemon, "evict", session_of(daemon, "orphan")["id"])[0] == 0
    eventually("it has gone", lambda: not pinfeed.status(daemon.address)["feeds"])
    assert int(pinfeed.status(daemon.address)["pool_used_bytes"]) > used, "what it has mapped is charged to its user"
    assert orphan.communicate("")[0] == "0\n"
    eventually("its memory is back", lambda: int(pinfeed.status(daemon.address)["pool_used_bytes"]) == used)


def test_a_trainer_that_is_evicted_before_it_connects_is_told(daemon, arrays):
    used = int(pinfeed.status(daemon.address)["pool_used_bytes"])
    offer = open_feed(daemon.address, request_for({"dataset": {"path": str(arrays)}, "batch_size": 4}, client_name="pending"))
    session, refused = session_of(daemon, "pending")["id"], daemon.log().count("refused (token)")
    assert tool(daemon, "evict", session)[0] == 0
    eventually("all is back, before its client comes", lambda: int(pinfeed.status(daemon.address)["pool_used_bytes"]) == used)
    assert re.search(rf"session {session} .*: ended: evicted by an operator", daemon.log())
    with connect(offer.lifeline_path) as lifeline:
        lifeline.send(frame(HELLO, offer.token))
        welcome = lifeline.recv(4096)
        assert field(numpy.frombuffer(welcome, numpy.uint8), "Lifeline frame", "code") == 10 and b"evicted by an operator" in welcome
    assert daemon.log().count("refused (token)") == refused


LOSES_ITS_GROUP = (
    """
import os, socket, sys
import pinfeed
feed = pinfeed.open(sys.argv[1], batch_size=4, framework="numpy", address=sys.argv[2], share=sys.argv[3], group="pair", group_size=2, slots=4, zero_copy=True, name="orphan")
epoch = iter(feed)
held = next(epoch)
values = held.big.copy()
"""
    + HANG_UP
    + """sys.stdin.readline()
assert (held.big == values).all(), "a batch that it holds was written to"
try:
    while next(epoch):
        pass
except pinfeed.Error as error:
    print(error.code.name, str(error), flush=True)
del held
print("released", flush=True)
sys.stdin.read()
"""
)


@pytest.mark.parametrize("share", ["broadcast", "queue"])
def test_an_orphaned_member_of_a_group_keeps_what_it_holds_and_no_more(daemon, arrays, share):
    used = int(pinfeed.status(daemon.address)["pool_used_bytes"])
    command = [sys.executable, "-c", LOSES_ITS_GROUP, str(arrays), daemon.address, share]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as orphan, contextlib.ExitStack() as end:
        end.callback(orphan.kill)
        options = dict(batch_size=4, framework="numpy", address=daemon.address, share=share, group="pair", group_size=2, slots=4, zero_copy=True, name="stays")
        with pinfeed.open(arrays, **options) as feed:
            assert orphan.stdout.readline() == "orphaned\n"
            eventually("it is orphaned", lambda: session_of(daemon, "orphan")["state"] == "orphaned")
            for _ in range(3):  # what it holds is none of the slots that are filled again and again
                assert sum(len(batch.id) for batch in feed) >= 60
            assert session_of(daemon, "orphan")["slots_held"] == 1
            status, _, err = tool(daemon, "evict", session_of(daemon, "orphan")["id"])
            assert status == 1 and "end its process to reclaim the batches that it holds" in err
            print(file=orphan.stdin, flush=True)
            assert re.match("ABORTED .*connection to the daemon has ended, though its process lives", orphan.stdout.readline())
            assert orphan.stdout.readline() == "released\n"
            eventually("it has released its batch", lambda: session_of(daemon, "orphan").get("slots_held", 0) == 0)
        orphan.communicate("")
    eventually("all is back", lambda: int(pinfeed.status(daemon.address)["pool_used_bytes"]) == used)


def test_drain_waits_for_the_trainers_and_returns_at_the_end(tmp_path, arrays):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", "/", "--pool-bytes", "128MiB", "--workers", "2", "--drain-timeout", "1h")
    feed = pinfeed.open(arrays, batch_size=4, framework="numpy", address=daemon.address)
    drain = subprocess.Popen([TOOL, "--address", daemon.address, "drain", "--wait"], stdout=subprocess.PIPE, text=True)
    assert drain.stdout.readline() == "draining: 1 session to leave, at most 1 h 0 min\n"
    assert tool(daemon, "drain")[0] == 0  # changes nothing: it ends nothing at once
    eventually("it drains", lambda: pinfeed.status(daemon.address)["state"] == "draining")
    status, _, err = tool(daemon, "reload")
    assert status == 1 and "the daemon is stopping" in err
    assert drain.poll() is None and daemon.process.poll() is None
    feed.close()
    assert drain.communicate(timeout=60)[0] == "the daemon has ended\n" and drain.returncode == 0
    assert daemon.process.wait(60) == 0


def test_drain_tells_of_a_daemon_that_does_not_end(tmp_path, arrays):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", "/", "--pool-bytes", "128MiB", "--workers", "2", "--drain-timeout", "1s")
    feed = pinfeed.open(arrays, batch_size=4, framework="numpy", address=daemon.address)
    drain = subprocess.Popen([TOOL, "--address", daemon.address, "drain", "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert drain.stdout.readline() == "draining: 1 session to leave, at most 1.0 s\n"
    daemon.process.send_signal(signal.SIGSTOP)
    assert drain.stderr.readline().startswith("the daemon has not ended after 11.0 s, though its drain timeout is over: something keeps it")
    daemon.process.send_signal(signal.SIGCONT)
    feed.close()
    assert drain.communicate(timeout=60) == ("the daemon has ended\n", "") and drain.returncode == 0
    assert daemon.process.wait(60) == 0


def test_top_shows_who_waits_for_what_until_q(tmp_path, arrays):
    daemon = Daemon(tmp_path / "run", "--allowed-roots", "/", "--pool-bytes", "128MiB", "--workers", "2")
    with pinfeed.open(arrays, batch_size=4, slots=4, framework="numpy", address=daemon.address, name="trainer.py") as feed:
        next(iter(feed))  # and no other: it is the trainer that is slow
        top = OnATerminal("--address", daemon.address, "top", "--interval", "0.2")
        top.await_line(rf" {os.getpid()}  trainer.py .* trainer (9\d|100)%$")
        assert re.match(rf"pinfeedd \S+ is ready, up .*, pid {daemon.process.pid}. q quits$", top.screen()[0])
        assert any(line.startswith("pool     [") and line.endswith(" of 128 MiB") for line in top.screen())
    daemon.stop()
    top.await_line("^trying again. q quits$")  # it stays for the next daemon
    again = Daemon(tmp_path / "run", "--allowed-roots", "/", "--pool-bytes", "64MiB", "--workers", "2")
    top.await_line("of 64 MiB$")
    assert top.end(b"q") == 0
    assert top.text.startswith("\x1b[?1049h\x1b[?25l") and top.text.endswith("\x1b[?25h\x1b[?1049l")  # the terminal is as it was
    interrupted = OnATerminal("--address", again.address, "top")
    interrupted.await_line("no feeds|0 feeds")
    assert interrupted.end(b"\x03") == 130
    again.stop()
    status, _, err = tool(again, "top")
    assert status == 1 and "\x1b" not in err


def test_top_needs_a_terminal(daemon):
    status, out, err = tool(daemon, "top")
    assert status == 2 and out == "" and "`pinfeed status` shows the same once" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("words", [["drain"], ["evict", "1"], ["reload"], ["logs", "--level", "error"], ["cache", "drop"]])
def test_other_users_may_not(words):
    with tempfile.TemporaryDirectory() as folder:
        for each in (folder, folder + "/run"):
            os.makedirs(each, exist_ok=True)
            os.chmod(each, 0o711)
        for program in (TOOL, pathlib.Path(os.environ["PINFEED_LIBRARY"]).resolve()):  # where that user can read them
            shutil.copy(program, folder)
        for path in pathlib.Path(folder).iterdir():
            path.chmod(0o755) if path.is_file() else None
        library = next(path for path in pathlib.Path(folder).iterdir() if path.name.startswith("libpinfeed"))
        library.rename(pathlib.Path(folder) / "libpinfeed.so.0")
        daemon = Daemon(pathlib.Path(folder) / "run", "--socket-mode", "0666", "--allowed-uids", "*")
        done = subprocess.run(
            [pathlib.Path(folder) / "pinfeed", "--address", daemon.address, *words], env={"LD_LIBRARY_PATH": folder},
            user=NOBODY, group=NOBODY, extra_groups=(), capture_output=True, text=True, timeout=60, cwd="/", check=False,
        )
        assert done.returncode == 1 and "only root and the daemon's own user (uid 0) may; you are uid 65534" in done.stderr, done.stderr
        assert pinfeed.status(daemon.address)["state"] == "ready"
        assert "only root and the daemon's own user" in daemon.log()
        daemon.stop()
