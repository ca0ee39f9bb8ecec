# SPDX-License-Identifier: Apache-2.0
"""`pinfeed doctor` with no GPU, and with the stand-in for the driver: the shape of what it says. Its figures mean nothing here."""

import json
import os
import subprocess
import xml.etree.ElementTree

import pytest
from conftest import BUILD, TOOL

STAND_IN = BUILD / "tests" / "stand_in_cuda"
SMALL, TINY = 100 << 20, 20 << 20  # memory of a GPU: measured with little, and not at all. Measuring all takes seconds
SETS, SOURCES = ("1 large", "1,000 small", "1,000 large"), ("pageable", "pinned", "pin, then copy")
WITH_STAND_IN = pytest.mark.skipif(not (STAND_IN / "libcuda.so.1").exists(), reason="built without CUDA")


def doctor(address, *words, gpus=0, **more):
    environment = {**os.environ, "PINFEED_STAND_IN_GPUS": str(gpus), "PINFEED_STAND_IN_PAGEABLE": "1", **more}
    if gpus:
        environment["LD_LIBRARY_PATH"] = str(STAND_IN)
    command = [TOOL, "--address", address, "doctor", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


def findings(report):
    return {finding["what"]: finding for finding in report["findings"]}


def test_without_a_gpu_the_rest_is_reported(daemon, tmp_path):
    status, out, err = doctor(daemon.address)
    assert status == 0, err
    for line in ("memfd seals, pidfd, openat2", "available of", "is ready, backend host", "batches stay in host memory"):
        assert line in out, out
    assert "BROKEN" not in out and "Does pinning pay" not in out
    status, _, err = doctor(daemon.address, "--plot", tmp_path / "bars.svg")
    assert status == 1 and err == f"pinfeed: write {tmp_path / 'bars.svg'}: there is nothing to plot: no GPU was found\n"
    assert not (tmp_path / "bars.svg").exists()


def test_no_daemon_is_a_note(tmp_path):
    status, out, _ = doctor(str(tmp_path / "none.sock"), "--json")
    report = json.loads(out)
    assert status == 0 and not report["broken"] and report["daemon"] is None
    assert findings(report)["daemon"]["state"] == "note" and "with this address fails" in findings(report)["daemon"]["text"]
    assert report["host"]["memory_available_bytes"] > 0 and report["host"]["nofile_hard"] != 0


@WITH_STAND_IN
def test_the_table_and_the_answers_of_the_first_gpu(daemon, tmp_path):
    plot = tmp_path / "bars.svg"
    more = {"PINFEED_STAND_IN_BYTES": str(SMALL), "PINFEED_NVJPEG": "/nowhere/libnvjpeg.so"}
    status, out, err = doctor(daemon.address, "--json", "--plot", plot, gpus=2, **more)
    assert status == 0, (out, err)
    report = json.loads(out)
    first, second = report["gpus"]
    assert 0 < first["buffer_bytes"] <= SMALL // 4
    assert [(copy["tensors"], copy["source"], copy["blocking"]) for copy in first["copies"]] == [
        (tensors, source, blocking) for tensors in SETS for source in SOURCES for blocking in (True, False)
    ]
    assert all(copy["milliseconds"] > 0 and 0 < copy["copied"] <= copy["count"] for copy in first["copies"])
    assert "copies" not in second and second["pinned_bytes_per_second"] > 0
    for gpu in first, second:
        assert gpu["decode"]["works"] is False and "/nowhere" in gpu["decode"]["reason"]
        assert gpu["backends"] == [{"name": name, "works": True, "reason": ""} for name in ("vmm-fd", "cuda-ipc")]
    assert [overlap["source"] for overlap in first["overlap"]] == ["pageable", "pinned"]
    assert all(0 <= overlap["hidden"] <= 1 for overlap in first["overlap"])
    answers = report["answers"]
    assert answers[0].startswith("Does pinning pay here? ") and answers[-2].startswith("Does overlap work here? ")
    picture = xml.etree.ElementTree.parse(plot).getroot()
    bars = picture.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 1 + 2 + len(first["copies"])


@WITH_STAND_IN
def test_the_report_in_words(daemon):
    status, out, _ = doctor(daemon.address, gpus=1, PINFEED_NVJPEG=str(STAND_IN / "libnvjpeg.so.12"))
    assert status == 0
    table = out[out.index("TENSORS") :].splitlines()
    assert table[0].split("  ") and [line.split("  ")[0] for line in table[1:10]] == [tensors for tensors in SETS for _ in SOURCES]
    assert "its engines decode JPEG files" in out
    assert "Does pinning pay here? " in out and "Does overlap work here? " in out


@WITH_STAND_IN
def test_a_gpu_whose_memory_cannot_be_shared_is_broken(daemon):
    fail = "cuMemImportFromShareableHandle:1:800"
    tiny = {"gpus": 1, "PINFEED_STAND_IN_BYTES": str(TINY)}
    status, out, _ = doctor(daemon.address, "--json", PINFEED_STAND_IN_FAIL=fail, **tiny)
    found = findings(json.loads(out))
    assert status == 0, "the other way works"
    assert found["GPU 0 vmm-fd"]["state"] == "note" and "import" in found["GPU 0 vmm-fd"]["text"]
    status, out, _ = doctor(daemon.address, "--json", PINFEED_STAND_IN_FAIL=fail + ",cuIpcOpenMemHandle:1:800", **tiny)
    report = json.loads(out)
    found = findings(report)
    assert status == 1 and report["broken"]
    assert found["GPU 0 cuda-ipc"]["state"] == "note" and "open the IPC handle" in found["GPU 0 cuda-ipc"]["text"]
    assert ("GPU 0", "broken") in [(finding["what"], finding["state"]) for finding in report["findings"]]


@WITH_STAND_IN
def test_a_gpu_that_breaks_amid_the_measuring_is_told(daemon):
    status, out, _ = doctor(daemon.address, "--json", gpus=1, PINFEED_STAND_IN_FAIL="cuMemcpyHtoDAsync:9")
    assert status == 1 and "CUDA_ERROR_UNKNOWN" in out


@WITH_STAND_IN
def test_a_tiny_gpu_is_not_measured(daemon):
    status, out, _ = doctor(daemon.address, "--json", gpus=1, PINFEED_STAND_IN_BYTES=str(TINY))
    report = json.loads(out)
    assert status == 0 and "copies" not in report["gpus"][0]


def test_plots_are_svg(daemon, tmp_path):
    status, _, err = doctor(daemon.address, "--plot", tmp_path / "bars.png")
    assert status == 2 and "must end in .svg" in err
