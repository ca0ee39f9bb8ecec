# SPDX-License-Identifier: Apache-2.0
"""What the tool `pinfeed` finds of private daemons. In PID and mount namespaces of its own: others of this user's, and a common one, may run on
the host."""

import subprocess
import sys
import textwrap

import pytest
from conftest import TOOL


TRAINER = """
import os, subprocess, sys
import pinfeed
tool, arrays = sys.argv[1:3]
def look(*words):
    done = subprocess.run([tool, *words], capture_output=True, text=True, timeout=60)
    print("STATUS", done.returncode, flush=True)
    print(done.stdout + done.stderr, end="", flush=True)
feed = pinfeed.open(arrays, batch_size=4, framework="numpy", name="one")
print("ADDRESS", feed.address, flush=True)
"""


def own_namespace():
    within = ["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]
    for flags in ([], ["--map-root-user"]):
        if subprocess.run(["unshare", *flags, *within, "true"], capture_output=True, timeout=60, check=False).returncode == 0:
            return ["unshare", *flags, *within]
    pytest.skip("this user may not make PID and mount namespaces")


@pytest.fixture
def run(arrays, tmp_path):
    def run_(code):
        script = tmp_path / "my_train.py"
        script.write_text(TRAINER + textwrap.dedent(code))
        done = subprocess.run([*own_namespace(), sys.executable, script, TOOL, arrays], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_


def test_the_only_private_daemon_is_what_status_shows(run):
    out = run("look('status')\nlook('datasets')")
    address = out.split("ADDRESS ")[1].split()[0]
    status, datasets = out.split("STATUS ")[1:]
    assert status.startswith("0\npinfeedd ") and " one " in status
    for said in (status, datasets):
        assert "no daemon serves you at /run/pinfeed/pinfeed.sock; this is the private one of pid " in said
        assert "my_train.py" in said and f"--address {address}" in said
    assert datasets.startswith("0\nno datasets are named")


def test_several_private_daemons_are_listed_with_their_addresses(run):
    out = run("""
        code = "import sys, pinfeed; feed = pinfeed.open(sys.argv[1], batch_size=4); print(feed.address, flush=True); sys.stdin.read()"
        other = subprocess.Popen([sys.executable, "-c", code, arrays], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print("OTHER", other.stdout.readline(), flush=True)
        look("status")
        look("--address", feed.address, "status")
        other.kill()
        other.wait()
    """)
    addresses = [out.split(word)[1].split()[0] for word in ("ADDRESS ", "OTHER ")]
    listed, named = out.split("STATUS ")[1:]
    assert listed.startswith("1\n") and "2 private ones run; choose with --address:" in listed
    assert addresses[0] != addresses[1] and all(f"--address {address}\n" in listed for address in addresses)
    assert named.startswith("0\npinfeedd ") and "private" not in named


def test_a_common_daemon_that_is_named_is_what_counts(run):
    out = run("os.environ['PINFEED_ADDRESS'] = '/nowhere/pinfeed.sock'\nlook('status')")
    said = out.split("STATUS ")[1]
    assert said.startswith("1\n") and "/nowhere/pinfeed.sock" in said and feed_address_of(out) not in said


def feed_address_of(out):
    return out.split("ADDRESS ")[1].split()[0]


def test_a_common_daemon_comes_first_and_private_ones_are_told_of(run):
    out = run("""
        os.mkdir("/run/pinfeed", 0o700)
        ready, writer = os.pipe()
        common = subprocess.Popen([os.environ["PINFEED_DAEMON"], "--socket-dir", "/run/pinfeed", "--http-listen", "off", "--ready-fd", str(writer)], pass_fds=(writer,), stderr=subprocess.DEVNULL)
        os.close(writer)
        assert os.read(ready, 64) == b"ready\\n"
        look("status")
        common.terminate()
        common.wait()
    """)
    said = out.split("STATUS ")[1]
    assert said.startswith("0\npinfeedd ") and "no feeds are open" in said
    assert "private daemons of your own trainers (not included above):\n  pid 1 (" in said and f"--address {feed_address_of(out)}\n" in said


def test_none_is_as_before(run):
    out = run("feed.close()\nimport pinfeed._base.daemon\npinfeed._base.daemon._PrivateDaemon.instance.stop()\nlook('status')")
    said = out.split("STATUS ")[1]
    assert said.startswith("1\n") and "is the daemon running?" in said and "private" not in said
