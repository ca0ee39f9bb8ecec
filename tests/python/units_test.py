# SPDX-License-Identifier: Apache-2.0
"""The systemd units, by systemd's own checks, and what they say against what the daemon and the packages say."""
import os
import pathlib
import re
import subprocess

import pytest
from conftest import ROOT

UNITS = ROOT / "deploy" / "systemd"
NAMES = ("pinfeedd.service", "pinfeedd.socket", "pinfeedd-lifeline.socket")
MOST_EXPOSED = 2.5


@pytest.fixture
def units(tmp_path):
    """The units with the program of this build, which is not installed."""
    for name in NAMES:
        text = (UNITS / name).read_text()
        (tmp_path / name).write_text(text.replace("ExecStart=pinfeedd", f"ExecStart={os.environ['PINFEED_DAEMON']}"))
    return tmp_path


def analyze(*arguments, folder):
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_nothing_to_say_of_them(units, name):
    done = analyze("verify", "--man=no", str(units / name), folder=units)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_verify_sees_a_wrong_line(units):
    with open(units / "pinfeedd.service", "a", encoding="utf-8") as unit:
        unit.write("[Service]\nProtectHoem=yes\n")
    assert "ProtectHoem" in analyze("verify", "--man=no", str(units / "pinfeedd.service"), folder=units).stderr


def test_the_service_is_little_exposed(units):
    done = analyze("security", "--offline=true", f"--threshold={int(MOST_EXPOSED * 10)}", str(units / "pinfeedd.service"), folder=units)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"exposure level for pinfeedd.service: ([\d.]+)", done.stdout).group(1)) <= MOST_EXPOSED


@pytest.mark.parametrize("setting", ["RestrictSUIDSGID", "DynamicUser", "PrivateDevices", "PrivateUsers", "PrivateNetwork"])
def test_what_would_break_the_daemon_is_off(setting):
    """The first two answer openat2 with ENOSYS, the others hide GPUs, users and the metrics; make test-packages runs the unit for real."""
    assert not re.search(rf"^{setting}=", (UNITS / "pinfeedd.service").read_text(), re.M)


def test_a_start_that_cannot_succeed_is_not_tried_again_and_none_is_the_last():
    service = (UNITS / "pinfeedd.service").read_text()
    assert re.search(r"^RestartPreventExitStatus=2$", service, re.M)
    assert re.search(r"^StartLimitIntervalSec=0$", service.split("[Service]")[0], re.M)


def test_the_sockets_are_where_clients_look():
    listens = {name: re.search(r"^Listen\w+=(.+)$", (UNITS / name).read_text(), re.M).group(1) for name in NAMES[1:]}
    address = re.search(r'kDefaultAddress\[\] = "(.+)"', (ROOT / "client" / "src" / "link" / "address.h").read_text()).group(1)
    assert listens["pinfeedd.socket"] == address
    assert pathlib.Path(listens["pinfeedd-lifeline.socket"]).parent == pathlib.Path(address).parent
    service = (UNITS / "pinfeedd.service").read_text()
    assert f"ReadWritePaths={pathlib.Path(address).parent}\n" in service
    assert re.search(rf"^d {pathlib.Path(address).parent} ", (UNITS / "tmpfiles.conf").read_text(), re.M)


def test_the_installed_settings_are_accepted_and_say_what_holds():
    settings = ROOT / "deploy" / "pinfeed.toml"
    text = settings.read_text()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PINFEED_")}
    command = [os.environ["PINFEED_DAEMON"], "--print-config", "--config"]
    printed = subprocess.run([*command, str(settings)], check=True, capture_output=True, text=True, env=environment).stdout
    assert 'allowed_uids = ["*"]' in printed
    # What is only an example is well-formed, too.
    everything = re.sub(r"^# (\w+ = .*|\[.*\])$", r"\1", text, flags=re.M)
    assert everything.count("\n[datasets.train]\n") == 1
    done = subprocess.run([*command, "/dev/stdin"], input=everything, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
