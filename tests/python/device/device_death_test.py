# SPDX-License-Identifier: Apache-2.0
"""Clients that die on a GPU, and backends that cannot be used: with real processes, over the stand-ins for the driver and NVML.

A forked child keeps its parent's GPU open, as it does with the real driver: until it ends, the dead parent's memory is not touched.
"""
import json
import os
import shutil
import subprocess
import sys

import pinfeed
import pytest
from conftest import ROOT, tool
from device_fixtures import daemon, data, stand_in  # noqa: F401
from device_process import BACKENDS, await_unused, finish, gpu, start, trainer, used
from withstand.hardship import eventually

IMPORT = "cuMemImportFromShareableHandle:1:101"
OPEN = "cuIpcOpenMemHandle:1:101"
READ = "cuMemcpyDtoHAsync:1:101"  # of the arena's id


def lingering(daemon):
    return gpu(daemon)["lingering"]


def spec(data, backend, **more):
    return {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True, "backend": backend, **more}


class Orphan:
    """A trainer that was killed and has left a forked child, with the memory of a batch that it held mapped."""

    def __init__(self, daemon, options):
        self.trainer = trainer(daemon.address, 10**6, fork_at=3, zero_copy=True, **options)
        lines = iter(self.trainer.stdout.readline, "")
        said = next(line for line in map(json.loads, lines) if "child" in line)
        self.child, self.crc = said["child"], said["crc"]
        self.pid = self.trainer.pid
        self.trainer.kill()
        self.trainer.wait(60)

    def crc_now(self):
        self.trainer.stdin.write("\n")
        self.trainer.stdin.flush()
        lines = iter(self.trainer.stdout.readline, "")  # the parent's may still come first
        return next(line["crc"] for line in map(json.loads, lines) if "child" in line)

    def end(self):
        self.trainer.stdin.close()  # which the child waits for
        self.trainer.stdout.read()
        self.trainer.stdout.close()
        self.trainer.stderr.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_of_a_dead_client_is_kept_while_its_child_has_the_gpu(daemon, data, backend):  # noqa: F811
    orphan = Orphan(daemon, spec(data, backend))
    eventually("it lingers", lambda: lingering(daemon))
    assert not pinfeed.status(daemon.address)["feeds"]
    (piece,) = lingering(daemon)
    assert piece["pids"] == [orphan.pid] and piece["backend"] == backend
    assert int(piece["bytes"]) == int(gpu(daemon)["lingering_bytes"]) == used(daemon) > 0
    # Sessions of the same shape and more come and go: none of them gets the memory that the child still has.
    expected, _, _ = finish(trainer(daemon.address, 60, **spec(data, "vmm-fd")))
    for other in BACKENDS:
        assert finish(trainer(daemon.address, 60, **spec(data, other)))[0] == expected
    assert orphan.crc_now() == orphan.crc
    assert len(lingering(daemon)) == 1
    orphan.end()
    eventually("the memory is back", lambda: used(daemon) == 0)
    assert lingering(daemon) == []
    assert f"(pid {orphan.pid}, {backend})" in daemon.log()


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_of_a_dead_client_without_children_comes_back(daemon, data, backend):  # noqa: F811
    process = trainer(daemon.address, 10**6, **spec(data, backend))
    assert process.stdout.readline() and used(daemon) > 0
    process.kill()
    process.communicate(timeout=60)
    eventually("the memory is back", lambda: used(daemon) == 0)


def test_status_and_metrics_tell_of_lingering_memory(tmp_path, data):  # noqa: F811
    running = start(tmp_path / "run", data, "--http-listen", "127.0.0.1:0")
    orphan = Orphan(running, spec(data, "cuda-ipc"))
    eventually("it lingers", lambda: lingering(running))
    bytes_kept = int(gpu(running)["lingering_bytes"])
    _, metrics = running.http("/metrics")
    (line,) = [line for line in metrics.splitlines() if line.startswith("pinfeed_gpu_lingering_bytes{")]
    assert float(line.rsplit(" ", 1)[1]) == bytes_kept
    _, text, _ = tool(running, "status")
    assert "LINGERING_BYTES" in text and f"pid {orphan.pid}" in text and "cuda-ipc" in text
    _, as_json, _ = tool(running, "status", "--json")
    assert int(json.loads(as_json)["gpus"][0]["lingering_bytes"]) == bytes_kept
    orphan.end()
    running.stop()


def test_too_much_lingering_memory_refuses_new_cuda_ipc_sessions(tmp_path, data):  # noqa: F811
    running = start(tmp_path / "run", data, "--gpu-bytes", "12MiB")
    large = spec(data, "cuda-ipc", slots=64)
    large["batch_size"] = 100
    orphan = Orphan(running, large)
    eventually("it lingers", lambda: lingering(running))
    _, errors = trainer(running.address, 1, **spec(data, "cuda-ipc")).communicate(timeout=120)
    assert "ResourceExhaustedError" in errors and "are quarantined until the work of dead clients ends" in errors
    finish(trainer(running.address, 5, **spec(data, "vmm-fd")))
    orphan.end()
    eventually("the memory is back", lambda: used(running) == 0)
    finish(trainer(running.address, 5, **spec(data, "cuda-ipc")))
    running.stop()


def test_a_daemon_ends_while_memory_lingers(tmp_path, data):  # noqa: F811
    running = start(tmp_path / "run", data)
    orphan = Orphan(running, spec(data, "cuda-ipc"))
    eventually("it lingers", lambda: lingering(running))
    running.stop()
    assert orphan.crc_now() == orphan.crc
    orphan.end()


# ---- backends that cannot be used ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend, fault", [("vmm-fd", IMPORT), ("cuda-ipc", OPEN), ("vmm-fd", READ), ("cuda-ipc", READ)])
def test_a_required_backend_that_fails_is_an_error(daemon, data, backend, fault):  # noqa: F811
    process = trainer(daemon.address, 5, env={"PINFEED_STAND_IN_FAIL": fault}, **spec(data, backend))
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and "CUDA_ERROR_INVALID_DEVICE" in errors, errors
    await_unused(daemon)


def test_a_failed_probe_falls_back_to_the_next_backend_loudly(tmp_path, data):  # noqa: F811
    running = start(tmp_path / "run", data, "--http-listen", "127.0.0.1:0")
    process = trainer(running.address, 10**6, env={"PINFEED_STAND_IN_FAIL": IMPORT}, **spec(data, "auto"))
    assert process.stdout.readline()
    (feed,) = pinfeed.status(running.address)["feeds"]
    (session,) = feed["sessions"]
    assert session["backend"] == "cuda-ipc"
    assert "vmm-fd failed in the client: import" in session["fallback"] and "CUDA_ERROR_INVALID_DEVICE" in session["fallback"]
    assert any("falls back to cuda-ipc" in line and "warning" in line for line in running.log().splitlines())
    assert 'pinfeed_fallbacks_total{backend="cuda-ipc"} 1' in running.http("/metrics")[1]
    process.kill()
    _, errors = process.communicate(timeout=60)
    assert "batches come by cuda-ipc, not by vmm-fd" in errors
    running.stop()


def test_when_all_probes_fail_batches_come_in_host_memory_loudly(daemon, data):  # noqa: F811
    # The tensors would be moved by torch, for which this is no GPU; what matters is what was said before.
    _, errors = trainer(daemon.address, 5, env={"PINFEED_STAND_IN_FAIL": f"{IMPORT},{OPEN}"}, **spec(data, "auto")).communicate(timeout=60)
    assert "batches come in host memory, not on GPU 0" in errors
    assert "vmm-fd failed in the client" in errors and "cuda-ipc failed in the client" in errors
    assert "falls back to host" in daemon.log()
    await_unused(daemon)


def test_a_client_that_nvml_does_not_list_gets_no_cuda_ipc(tmp_path, data, monkeypatch):  # noqa: F811
    monkeypatch.setenv("PINFEED_STAND_IN_NVML", "blind")
    running = start(tmp_path / "run", data)
    _, errors = trainer(running.address, 1, **spec(data, "cuda-ipc")).communicate(timeout=60)
    assert "cuda-ipc was required" in errors and "NVML does not list the client" in errors
    _, last, _ = finish(trainer(running.address, 5, **spec(data, "auto")))
    assert last["backend"] == "vmm-fd"
    running.stop()


def test_groups_share_no_memory_by_handles(daemon, data):  # noqa: F811
    _, errors = trainer(daemon.address, 1, **spec(data, "cuda-ipc", share="broadcast", group="g", group_size=1)).communicate(timeout=60)
    assert "a group cannot share it" in errors


def in_another_pid_namespace():
    """A command that runs another one there; None where that is not allowed."""
    if shutil.which("unshare") is None:
        return None
    for flags in (["--pid", "--fork"], ["--map-root-user", "--pid", "--fork"]):
        if subprocess.run(["unshare", *flags, "true"], capture_output=True, timeout=60).returncode == 0:
            return ["unshare", *flags]
    return None


def test_a_client_of_another_pid_namespace_gets_no_cuda_ipc(daemon, data):  # noqa: F811
    within = in_another_pid_namespace()
    if within is None:
        pytest.skip("this user may not make PID namespaces")
    _, errors = trainer(daemon.address, 1, within=within, **spec(data, "cuda-ipc")).communicate(timeout=60)
    assert "is in another PID namespace than the daemon" in errors
    _, last, _ = finish(trainer(daemon.address, 5, within=within, **spec(data, "auto")))
    assert last["backend"] == "vmm-fd"
    _, errors = trainer(daemon.address, 5, within=within, env={"PINFEED_STAND_IN_FAIL": IMPORT}, **spec(data, "auto")).communicate(timeout=60)
    assert "batches come in host memory" in errors and "is in another PID namespace" in errors


def test_the_promises_that_a_real_gpu_is_asked_for_hold_here(tmp_path):
    less = ["--backend", "vmm-fd", "--child-seconds", "1", "--side", "24"]
    program = [sys.executable, str(ROOT / "tests" / "gpu" / "death.py"), os.environ["PINFEED_DAEMON"], str(tmp_path), *less]
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout
    promises = json.loads((tmp_path / "death.json").read_text())
    assert len(promises) == 18 and all(promise["holds"] for promise in promises), done.stdout
