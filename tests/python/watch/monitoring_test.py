# SPDX-License-Identifier: Apache-2.0
"""What deploy/ has for monitoring, against the real Prometheus: the alerts and their runbook, and every expression of the dashboard on a loaded daemon."""
import contextlib
import json
import math
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pinfeed
import pytest
import yaml
from watched import Trainer, get, port_of, status

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("PINFEED_BUILD_DIR") or ROOT / "build" / "release")
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "pinfeed.json").read_text("utf-8"))
ALERTS = {rule["alert"]: rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"] for rule in group["rules"]}
METRICS = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "metrics.md").read_text("utf-8"), re.M))
STAND_IN = BUILD / "tests" / "stand_in_cuda"
HAVE_GPU = (STAND_IN / "libcuda.so.1").exists()
# How long the daemon is watched under load, and the range that stands in for Grafana's $__rate_interval.
LOAD_S, RANGE = 8, "6s"


def promtool(*arguments, **options):
    subprocess.run(["promtool", *map(str, arguments)], check=True, timeout=60, **options)


def metrics_in(expression):
    names = set(re.findall(r"\b((?:pinfeed|process)_\w+)", expression))
    return {re.sub(r"_(bucket|sum|count)$", "", name) if re.sub(r"_(bucket|sum|count)$", "", name) in METRICS else name for name in names}


def test_rules_and_configuration_are_well_formed_and_do_as_their_tests_say():
    promtool("check", "config", PROMETHEUS / "prometheus.yml")
    promtool("test", "rules", PROMETHEUS / "alerts_test.yml")


def test_every_alert_is_tested_firing_and_quiet():
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text("utf-8"))["tests"]
    cases = [(case["alertname"], bool(case["exp_alerts"])) for test in tests for case in test["alert_rule_test"]]
    assert set(cases) == {(name, firing) for name in ALERTS for firing in (False, True)}


def test_the_alerts_count_on_the_watchdog_s_shipped_figures():
    """The cases in which the watchdog ends a daemon 170 s after all of it hangs: it looks every 10 s."""
    assert re.findall(r"^WatchdogSec=(.+)$", (ROOT / "deploy" / "systemd" / "pinfeedd.service").read_text("utf-8"), re.M) == ["60"]
    assert re.findall(r"^\| `stuck_timeout` \| `(.+?)` \|", (ROOT / "docs" / "configuration.md").read_text("utf-8"), re.M) == ["120s"]


@pytest.mark.parametrize("name", ALERTS)
def test_alert_has_a_runbook_and_asks_for_metrics_that_exist(name):
    page, anchor = ALERTS[name]["annotations"]["runbook_url"].split("#")
    runbook = (ROOT / page).read_text("utf-8")
    sections = {heading.lower(): text for heading, text in re.findall(r"^## (\w+)\n+(.+?)(?=^## |\Z)", runbook, re.M | re.S)}
    assert anchor == name.lower() and len(sections[anchor].strip()) > 80
    assert metrics_in(ALERTS[name]["expr"]) <= METRICS


def test_runbook_has_no_alert_that_is_not_there():
    runbook = (ROOT / "docs" / "runbook.md").read_text("utf-8")
    assert set(re.findall(r"^## (\w+)", runbook, re.M)) == set(ALERTS)


def expressions():
    """[(panel, row, expression)] of the dashboard, its annotations and its variables, as Grafana would fill them in."""
    found, row = [], ""
    for panel in DASHBOARD["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        found += [(panel["title"], row, target["expr"]) for target in panel.get("targets", [])]
    filled = [(title, row, text.replace("$__rate_interval", RANGE).replace("$instance", ".*")) for title, row, text in found]
    assert not [text for _, _, text in filled if "$" in text]
    return filled


def test_dashboard_asks_for_metrics_that_exist_in_panels_of_their_own():
    for _, _, expression in expressions():
        assert metrics_in(expression) and metrics_in(expression) <= METRICS, expression
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for i, one in enumerate(places):
        assert one["x"] + one["w"] <= 24
        for other in places[:i]:
            apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"] or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert apart, (one, other)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


class Prometheus:
    """The real one, scraping a daemon twice a second, on loopback."""

    def __init__(self, folder, daemon):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{port_of(daemon)}"]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.log = open(folder / "log", "w+b")
        flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={self.address}"]
        self.process = subprocess.Popen(["prometheus", *flags], stdout=self.log, stderr=self.log)

    def ask(self, path, **query):
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=20) as answer:
            return json.load(answer)["data"]

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def await_that(self, holds):
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(urllib.error.URLError):
                if holds():
                    return
            self.log.seek(0)
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read().decode()
            time.sleep(0.1)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture
def loaded(start, data, monkeypatch):
    """A daemon with two sessions that go on, one that has stopped with a batch, and a session on a GPU if there is the stand-in for its driver."""
    if HAVE_GPU:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(STAND_IN))
    daemon = start(*(("--gpus", "on", "--pinned-bytes", "32MiB", "--gpu-bytes", "32MiB") if HAVE_GPU else ("--gpus", "off")))
    trainers = [Trainer(daemon, data / "photos", "photos", batch_size=8, images=True), Trainer(daemon, data / "numbers.npy", "numbers", batch_size=16)]
    for trainer in trainers:
        trainer.go()
    trainers.append(Trainer(daemon, data / "numbers.npy", "stopped", batch_size=16))
    assert trainers[-1].take(3) == 48
    gpu = None
    if HAVE_GPU:
        trainer = ROOT / "tests" / "python" / "device" / "device_trainer.py"
        options = json.dumps({"dataset": str(data / "numbers.npy"), "batch_size": 16})
        gpu = subprocess.Popen([sys.executable, str(trainer), daemon.address, "1000000000", options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    yield daemon
    if gpu:
        gpu.kill()
        gpu.communicate()
    for trainer in trainers:
        trainer.leave()


def test_every_cause_of_waiting_has_a_colour_of_its_own():
    (names,) = re.findall(r"kStallCauseNames = \{(.*?)\}", (ROOT / "server" / "feed" / "stall.h").read_text("utf-8"), re.S)
    panels = [panel for panel in DASHBOARD["panels"] if any("by (cause" in target["expr"] for target in panel.get("targets", ()))]
    assert panels
    for panel in panels:
        rules = panel["fieldConfig"]["overrides"]
        colours = {rule["matcher"]["options"]: rule["properties"][0]["value"]["fixedColor"] for rule in rules if rule["properties"][0]["id"] == "color"}
        assert set(colours) == set(re.findall(r'"(\w+)"', names)), panel["title"]
        assert len(set(colours.values())) == len(colours), panel["title"]


def row_is_there(row):
    return HAVE_GPU or row != "GPUs"


def has_data(result):
    """Every series is a number, such as it can be: a quantile of nothing is none."""
    return result and all(0 <= float(series["value"][1]) < math.inf for series in result)


def test_every_expression_of_the_dashboard_has_data_of_a_loaded_daemon(loaded, tmp_path):
    (tmp_path / "prometheus").mkdir()
    prometheus = Prometheus(tmp_path / "prometheus", loaded)
    try:
        prometheus.await_that(lambda: any(target["health"] == "up" for target in prometheus.ask("targets")["activeTargets"]))
        prometheus.await_that(lambda: prometheus.query(f"count_over_time(pinfeed_ready[{LOAD_S}s]) >= {LOAD_S}"))
        # Trainers on a busy machine take their time to begin: all at one moment, within the patience of await_that.
        without = []

        def all_have_data():
            without[:] = [(title, expression) for title, row, expression in expressions() if row_is_there(row) and not has_data(prometheus.query(expression))]
            return not without

        try:
            prometheus.await_that(all_have_data)
        except AssertionError as never:
            raise AssertionError(f"without data: {without}") from never
        for _, row, expression in expressions():
            assert row_is_there(row) or not prometheus.query(expression)
        value = lambda expression: float(prometheus.query(expression)[0]["value"][1])  # noqa: E731
        rate = {panel["title"]: value(panel["targets"][0]["expr"].replace("$__rate_interval", RANGE).replace("$instance", ".*"))
                for panel in DASHBOARD["panels"] if panel["type"] == "stat"}
        assert rate["Ready"] == 1 and rate["Sessions"] == (4 if HAVE_GPU else 3)
        assert rate["Samples"] > 50 and rate["Delivered"] > 50 * 4096
        assert 0 < rate["Pool taken"] < 1 and 0 <= rate["Most data-bound session"] <= 1.05
        if HAVE_GPU:
            assert value(f"sum(rate(pinfeed_gpu_copied_bytes_total[{RANGE}]))") > 0
        # A trainer that decodes photos as fast as it can waits for that, and one that has stopped for nothing.
        feeds = {session["client_name"]: feed["id"] for feed in status(loaded)["feeds"] for session in feed["sessions"]}
        waits = {name: value(f'sum(rate(pinfeed_feed_stall_seconds_total{{feed="{feeds[name]}",cause!="consumer"}}[{RANGE}]))') for name in ("photos", "stopped")}
        assert waits["photos"] > 0.2 > waits["stopped"], waits
        firing = {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"}
        assert not firing
    finally:
        prometheus.close()


def test_a_scrape_of_a_loaded_daemon_is_as_prometheus_wants_it_and_as_documented(loaded):
    with pinfeed.Batcher("served", input=("float32", (3,)), address=loaded.address), get(loaded, "/metrics") as answer:
        text = answer.read().decode()
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    promtool("check", "metrics", input=text, text=True)
    described = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| \w* \| ([^|]*) \|", (ROOT / "docs" / "metrics.md").read_text("utf-8"), re.M)
    assert described == {name: kind for name, kind, _ in rows if not name.startswith("pinfeed_admin_") and (HAVE_GPU or not name.startswith("pinfeed_gpu_"))}
    labels = {name: set(re.findall(r"`(\w+)`", text)) for name, _, text in rows}
    for name, inside in re.findall(r"^(\w+)(?:\{(.*)\})? ", text, re.M):
        family = name if name in labels else re.sub(r"_(bucket|sum|count)$", "", name)
        assert set(re.findall(r'(\w+)="', inside)) - {"le"} == labels[family], name
    assert text.count("\n") < 2000
