# SPDX-License-Identifier: Apache-2.0
"""deploy/container/compose.yaml, validated by docker-compose itself; and that it fits the image and the files that it mounts."""

import json
import os
import re
import subprocess

import pytest
import yaml
from files import ROOT

FOLDER = ROOT / "deploy" / "container"
VARIABLES = {"PINFEED_DATA": "/data", "GRAFANA_PASSWORD": "secret"}


def compose(*files, **variables):
    """What `docker-compose config` makes of the files: defaults and variables filled in."""
    words = [word for name in files for word in ("-f", FOLDER / name)]
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(["docker-compose", *words, "config"], capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module", params=[("compose.yaml",), ("compose.yaml", "compose.gpu.yaml")], ids=["cpu", "gpu"])
def project(request):
    status, out, err = compose(*request.param, **VARIABLES)
    assert status == 0 and not err, err
    return yaml.safe_load(out)


def mounts(service):
    return [mount.split(":")[:2] for mount in service.get("volumes", [])]


@pytest.mark.parametrize("missing", VARIABLES)
def test_what_must_be_set_is_asked_for_by_name(missing):
    status, _, err = compose("compose.yaml", **{name: value for name, value in VARIABLES.items() if name != missing})
    assert status != 0 and f"{missing} must" in err


def test_an_unknown_key_is_a_fault(tmp_path):
    text = (FOLDER / "compose.yaml").read_text().replace("read_only:", "readonly:")
    (tmp_path / "compose.yaml").write_text(text)
    done = subprocess.run(["docker-compose", "-f", tmp_path / "compose.yaml", "config"], capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], **VARIABLES})
    assert done.returncode != 0 and "readonly" in done.stderr


def test_the_daemon_is_locked_up_but_sees_processes(project):
    daemon = project["services"]["pinfeed"]
    assert daemon["pid"] == "host" and daemon["read_only"] is True and daemon["cap_drop"] == ["ALL"]
    assert "privileged" not in daemon and "ipc" not in daemon and "shm_size" not in daemon
    assert ["/run/pinfeed", "/run/pinfeed"] in mounts(daemon) and ["/data", "/data"] in mounts(daemon)
    assert int(daemon["stop_grace_period"].rstrip("s")) > 30, "drain_timeout is 30 s"


def test_a_trainer_shares_the_folder_and_the_group_only(project):
    trainer = project["services"]["trainer"]
    assert mounts(trainer) == [["/run/pinfeed", "/run/pinfeed"]] and trainer["group_add"] == ["990"]
    assert not {"pid", "ipc", "cap_add", "privileged"} & set(trainer)


def test_number_of_the_user_is_the_image_s(project):
    user = re.search(r"^USER (\d+):\1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE).group(1)
    assert project["services"]["trainer"]["group_add"] == [user]
    folder = project["services"]["pinfeed-folder"]
    assert f"chown {user}:{user} /run/pinfeed" in folder["entrypoint"][-1]
    # At boot the engine starts nothing that has ended.
    assert folder["entrypoint"][-1].endswith("exec sleep infinity") and folder["restart"] == project["services"]["pinfeed"]["restart"]


def test_what_is_mounted_from_here_exists(project):
    here = [source for service in project["services"].values() for source, _ in mounts(service) if source.startswith(str(ROOT))]
    assert len(here) >= 6 and all(os.path.exists(source) for source in here), here


def test_prometheus_takes_its_files_as_they_are_mounted(project, tmp_path):
    for source, target in mounts(project["services"]["prometheus"]):
        if target.startswith("/etc/prometheus/"):
            (tmp_path / os.path.basename(target)).symlink_to(source)
    subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], check=True, capture_output=True)
    assert "127.0.0.1:9467" in (tmp_path / "prometheus.yml").read_text() and project["services"]["pinfeed"]["network_mode"] == "host"


def test_grafana_finds_dashboard_and_data_source(project):
    grafana = project["services"]["grafana"]
    at = {target: source for source, target in mounts(grafana)}

    def provisioned(kind, name):
        with open(os.path.join(at["/etc/grafana/provisioning/" + kind], name), encoding="utf-8") as file:
            return yaml.safe_load(file)

    (source,) = provisioned("datasources", "prometheus.yaml")["datasources"]
    prometheus = project["services"]["prometheus"]["command"]
    assert source["type"] == "prometheus" and "--web.listen-address=" + source["url"].removeprefix("http://") in prometheus
    (provider,) = provisioned("dashboards", "pinfeed.yaml")["providers"]
    dashboard = provider["options"]["path"] + "/pinfeed.json"
    assert dashboard == grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    with open(at[dashboard], encoding="utf-8") as file:
        assert json.load(file)["uid"] == "pinfeed"


def test_gpus_are_asked_for_in_the_overlay_only():
    for files, wanted in ((("compose.yaml",), False), (("compose.yaml", "compose.gpu.yaml"), True)):
        daemon = yaml.safe_load(compose(*files, **VARIABLES)[1])["services"]["pinfeed"]
        assert ("deploy" in daemon) == wanted and (daemon["environment"].get("PINFEED_GPUS") == "on") == wanted
    (device,) = daemon["deploy"]["resources"]["reservations"]["devices"]
    assert "utility" in device["capabilities"] and device["count"] == "all"
