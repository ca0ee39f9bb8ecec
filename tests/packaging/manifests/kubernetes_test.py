# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes, rendered by kubectl and validated by the schemas of Kubernetes' releases; and that it fits image and configuration."""

import copy
import os
import re
import subprocess

import kubernetes_validate
import pytest
import yaml
from files import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.28", "1.32", "1.37")
OVERLAYS = ("cpu", "gpu")
USER = int(re.search(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE).group(1))


def render(overlay):
    done = subprocess.run([os.environ["KUBECTL"], "kustomize", FOLDER / "overlays" / overlay], capture_output=True, text=True, check=True)
    assert not done.stderr, done.stderr
    return {resource["kind"]: resource for resource in yaml.safe_load_all(done.stdout)}


@pytest.fixture(scope="module")
def rendered():
    return {overlay: render(overlay) for overlay in OVERLAYS}


@pytest.fixture(scope="module")
def trainer():
    return yaml.safe_load((FOLDER / "example" / "trainer.yaml").read_text())


def pod_of(resources):
    return resources["DaemonSet"]["spec"]["template"]["spec"]


def daemon_of(resources):
    (container,) = pod_of(resources)["containers"]
    return container


def environment(container):
    return {variable["name"]: variable["value"] for variable in container["env"]}


def volumes(pod):
    return {volume["name"]: volume for volume in pod["volumes"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_is_what_kubernetes_takes(rendered, trainer, version):
    for resource in [*rendered["cpu"].values(), *rendered["gpu"].values(), trainer]:
        kubernetes_validate.validate(resource, version, strict=True)
    assert set(rendered["cpu"]) == set(rendered["gpu"]) == {"Namespace", "ConfigMap", "DaemonSet", "NetworkPolicy"}


def test_the_schemas_refuse_what_is_wrong(rendered):
    def refuses(change):
        broken = copy.deepcopy(rendered["gpu"]["DaemonSet"])
        change(broken["spec"]["template"]["spec"])
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)

    refuses(lambda pod: pod.update(hostPid=True))
    refuses(lambda pod: pod.update(hostPID="yes"))
    refuses(lambda pod: pod["containers"][0].pop("name"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_daemon_shares_the_process_namespace_and_nothing_else(rendered, overlay):
    pod, daemon = pod_of(rendered[overlay]), daemon_of(rendered[overlay])
    assert pod["hostPID"] is True and not pod["hostIPC"] and not pod["hostNetwork"] and pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"] == USER and pod["securityContext"]["runAsNonRoot"] is True
    rights = daemon["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], **({"add": ["SYS_NICE"]} if overlay == "gpu" else {})}
    assert rights["readOnlyRootFilesystem"] is True and rights["allowPrivilegeEscalation"] is False
    assert pod["terminationGracePeriodSeconds"] > 30, "drain_timeout is 30 s"
    level = rendered[overlay]["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert level == "privileged", "hostPID and hostPath are refused below it"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_sockets_are_where_the_trainer_looks(rendered, trainer, overlay):
    mounts = {mount["name"]: mount["mountPath"] for mount in daemon_of(rendered[overlay])["volumeMounts"]}
    ours = volumes(pod_of(rendered[overlay]))["sockets"]["hostPath"]
    assert ours == {"path": "/run/pinfeed", "type": "DirectoryOrCreate"} and mounts["sockets"] == "/run/pinfeed"
    theirs = volumes(trainer["spec"])["pinfeed"]["hostPath"]
    assert theirs["path"] == ours["path"] and trainer["spec"]["securityContext"]["supplementalGroups"] == [USER]
    (first,) = pod_of(rendered[overlay])["initContainers"]
    assert first["command"][-1] == f"chown {USER}:{USER} /run/pinfeed && chmod 0750 /run/pinfeed"
    assert first["image"] == daemon_of(rendered[overlay])["image"] != "pinfeed"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_configuration_is_one_that_the_daemon_takes(rendered, overlay, tmp_path):
    config = rendered[overlay]["ConfigMap"]
    assert volumes(pod_of(rendered[overlay]))["config"]["configMap"]["name"] == config["metadata"]["name"] != "pinfeed"
    (tmp_path / "pinfeed.toml").write_text(config["data"]["pinfeed.toml"])
    flags = [f"--{name.removeprefix('PINFEED_').lower()}={value}" for name, value in environment(daemon_of(rendered[overlay])).items() if name.startswith("PINFEED_")]
    daemon = os.environ.get("PINFEED_DAEMON", ROOT / "build" / "release" / "server" / "pinfeedd")
    done = subprocess.run([daemon, "--config", tmp_path / "pinfeed.toml", *flags, "--print-config"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'http_listen = "0.0.0.0:9467"' in done.stdout


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_monitor_finds_the_daemons_and_gives_them_the_job_of_the_alerts(rendered, overlay):
    monitor = yaml.safe_load((FOLDER / "example" / "podmonitor.yaml").read_text())
    template = rendered[overlay]["DaemonSet"]["spec"]["template"]
    assert monitor["metadata"]["namespace"] == rendered[overlay]["DaemonSet"]["metadata"]["namespace"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in daemon_of(rendered[overlay])["ports"]]
    assert {"targetLabel": "job", "replacement": "pinfeed"} in endpoint["relabelings"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_and_scraping_ask_for_pages_that_there_are(rendered, overlay):
    daemon, template = daemon_of(rendered[overlay]), rendered[overlay]["DaemonSet"]["spec"]["template"]
    (port,) = daemon["ports"]
    assert {name: daemon[name + "Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")} == {
        "startup": {"path": "/readyz", "port": port["name"]},
        "readiness": {"path": "/readyz", "port": port["name"]},
        "liveness": {"path": "/healthz", "port": port["name"]},
    }
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"]) == "9467"
    (rule,) = rendered[overlay]["NetworkPolicy"]["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port["containerPort"]}]
    assert rendered[overlay]["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_overlays_differ_in_the_gpus(rendered):
    cpu, gpu = rendered["cpu"], rendered["gpu"]
    assert environment(daemon_of(cpu)) == {"PINFEED_GPUS": "off", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert environment(daemon_of(gpu))["PINFEED_GPUS"] == "on" and "utility" in environment(daemon_of(gpu))["NVIDIA_DRIVER_CAPABILITIES"]
    assert "runtimeClassName" not in pod_of(cpu) and pod_of(gpu)["runtimeClassName"] == "nvidia" and pod_of(gpu)["nodeSelector"]
    assert "nvidia.com/gpu" not in daemon_of(gpu)["resources"]["limits"], "the daemon must not take GPUs from trainers"
