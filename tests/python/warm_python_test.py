# SPDX-License-Identifier: Apache-2.0
"""What programs of tests leave that do not end."""

import os
import select
import signal
import subprocess
import sys

import pytest
from warm_python import PATIENCE_S, WarmPython

ENDLESS = "import signal; print('runs', flush=True); signal.pause()"


@pytest.fixture
def warm():
    running = WarmPython("")
    yield running
    running.close()


def has_ended(pidfd):
    """Whether a process ends within a minute."""
    return bool(select.select([pidfd], [], [], PATIENCE_S)[0])


def test_a_program_that_takes_too_long_is_killed(warm):
    program = warm.run(ENDLESS)
    with pytest.raises(subprocess.TimeoutExpired):
        program.communicate(0.1)
    assert program.wait() == -signal.SIGKILL


def test_one_that_does_not_end_behind_its_output_is_killed_too(warm):
    program = warm.run("import os, signal; os.close(1); signal.pause()")
    with pytest.raises(subprocess.TimeoutExpired):
        program.communicate(2)
    assert program.wait() == -signal.SIGKILL


@pytest.mark.parametrize("own_session", [False, True])
def test_no_program_outlives_the_orders(own_session):
    warm = WarmPython("")
    program = warm.run(ENDLESS, own_session=own_session)
    assert program.stdout.readline() == "runs\n"
    warm.close()  # as where it is killed
    assert has_ended(program._end)


def test_ctrl_c_ends_programs_and_not_what_starts_them():
    code = f"""
import os, signal
from warm_python import WarmPython
warm = WarmPython("")
signal.signal(signal.SIGINT, signal.SIG_IGN)  # now: what it starts has not got that from here
program = warm.run({ENDLESS!r}, stderr=True)
program.stdout.readline()
os.killpg(0, signal.SIGINT)
_, errors = program.communicate()
assert program.returncode == -signal.SIGINT and errors.endswith("KeyboardInterrupt\\n"), (program.returncode, errors)
warm.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True, timeout=PATIENCE_S, start_new_session=True
    )
    assert (done.returncode, done.stderr) == (0, "")
