# SPDX-License-Identifier: Apache-2.0
"""A reload that names what lies on a mount that does not answer: the daemon serves on, feeds its watchdog, takes another reload and ends as asked."""

import os
import pathlib
import re
import select
import signal
import subprocess

import numpy
import pinfeed
import pytest
from hardship import eventually
from service_manager import Service

TOOL = pathlib.Path(os.environ["PINFEED_BUILD_DIR"]) / "client" / "cli" / "pinfeed"
WATCHDOG_MS = 1000
HANGS = "reload the configuration: not done after 4 s, at "


class Configured:
    """A service with a file that names the dataset 'here'; `write` adds to it."""

    def __init__(self, folder):
        numpy.save(folder / "x.npy", numpy.arange(64))
        self.folder, self.file = folder, folder / "pinfeed.toml"
        self.write()
        self.service = Service(folder / "run", "--config", str(self.file), "--workers", "1", watchdog_ms=WATCHDOG_MS)
        self.service.receive_until("READY")

    def write(self, head="", tables=""):
        self.file.write_text(f'{head}\n[datasets.here]\npath = "{self.folder}/x.npy"\n{tables}')

    def hup(self):
        self.service.process.send_signal(signal.SIGHUP)

    def reload(self):
        tool = [TOOL, "--address", self.service.address, "reload"]
        return subprocess.run(tool, capture_output=True, text=True, timeout=60, check=False)

    def serves(self):
        with pinfeed.open("here", batch_size=4, framework="numpy", address=self.service.address, epochs=1) as feed:
            return len(list(feed)) == 16


@pytest.fixture
def configured(tmp_path, hung):
    one = Configured(tmp_path)
    yield one
    hung.end()
    if one.service.process.poll() is None:
        one.service.process.kill()
    one.service.process.wait()


def name_a_dataset(one, mount):
    one.write(tables=f'[datasets.away]\npath = "{mount}/x.npy"\n')
    return f"checking '{mount}/x.npy' (datasets.away)"


def name_a_root(one, mount):
    one.write(head=f'allowed_roots = ["{mount}/data"]')
    return f"checking '{mount}/data' (allowed_roots)"


def name_certificates(one, mount):
    one.write(head=f'admin_listen = "127.0.0.1:0"\nadmin_cert = "{mount}/c"\nadmin_key = "{mount}/k"\nadmin_ca = "{mount}/a"\nadmin_clients = ["x"]')
    return f"reading '{mount}/a', '{mount}/c' and '{mount}/k' (admin_ca, admin_cert, admin_key)"


def lead_the_file_away(one, mount):
    one.file.unlink()
    one.file.symlink_to(f"{mount}/pinfeed.toml")
    return f"reading the configuration '{one.file}'"


@pytest.mark.parametrize("away", [name_a_dataset, name_a_root, name_certificates, lead_the_file_away])
def test_a_reload_that_hangs_holds_nothing_up(configured, hung, away):
    service = configured.service
    step = away(configured, hung.path)
    configured.hup()
    began = service.receive_until("RELOADING")[-1]
    assert int(began["MONOTONIC_USEC"]) > 0
    assert configured.serves()
    over = service.receive_until("READY")
    # The watchdog was fed all the while, and the manager does not wait for storage either.
    assert sum("WATCHDOG" in message for message in over) >= 2
    assert over[-1]["STATUS"].endswith(f"; a reload hangs, at {step}")
    told = [line for line in service.log().splitlines() if HANGS in line]
    assert len(told) == 1 and f"{HANGS}{step}; does its storage answer?" in told[0] and "SIGHUP of pid" in told[0], told
    assert configured.serves()
    for _ in range(2):
        service.receive_until("WATCHDOG")
    assert service.log().count(HANGS) == 1
    service.process.terminate()
    service.receive_until("STOPPING")
    assert service.process.wait(60) == 0, service.log()
    assert f"a reload hangs, at {step}; the daemon exits without waiting for it" in service.log()


def test_what_hangs_at_the_start_holds_up_neither_it_nor_the_end(configured, hung):
    configured.service.stop()
    step = name_a_root(configured, hung.path)
    service = configured.service = Service(configured.folder / "run", "--config", str(configured.file), "--workers", "1", watchdog_ms=WATCHDOG_MS)
    service.receive_until("READY")
    assert select.select([hung.device], [], [], 60)[0]  # asked by the one that looks
    assert configured.serves()
    eventually(service.log, lambda: f"{step} is not done after 4 s; does its storage answer?" in service.log())
    service.process.terminate()
    service.receive_until("STOPPING")
    assert service.process.wait(60) == 0, service.log()
    assert f"{step} has hung since startup; the daemon exits without waiting for it" in service.log()


def test_the_operator_is_answered_and_the_next_reload_is_taken(configured, hung):
    step = name_a_dataset(configured, hung.path)
    refused = configured.reload()
    assert refused.returncode == 1 and f"{HANGS}{step}" in refused.stderr, refused.stderr
    configured.write(head="max_sessions = 7")
    taken = configured.reload()
    assert taken.returncode == 0 and "max_sessions = 7" in taken.stdout, taken.stderr
    assert "abandoned in favour of the next reload" in configured.service.log()
    hung.end()  # what the first one read comes now, and too late
    assert configured.reload().stdout == "loaded: nothing changed\n"
    configured.service.stop()
    assert "away" not in re.sub(rf".*{HANGS}.*", "", configured.service.log())


def test_what_hung_is_taken_once_its_storage_answers(configured, hung):
    name_a_dataset(configured, hung.path)
    configured.hup()
    eventually(configured.service.log, lambda: HANGS in configured.service.log())
    hung.end()
    eventually(configured.service.log, lambda: "the configuration was loaded: datasets.away: added" in configured.service.log())
    assert "datasets.away: read" in configured.service.log()  # the mount is gone: a warning
    seen = configured.service.receive_until("READY") + configured.service.receive_until("READY")
    assert seen[-1]["STATUS"].endswith(" workers")
    configured.service.stop()
