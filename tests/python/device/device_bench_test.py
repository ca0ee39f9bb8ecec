# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark's parts that make tables, packed and run as on a machine with a GPU, over the stand-in driver; what is published of them."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import BUILD, ROOT
from device_fixtures import stand_in  # noqa: F401

sys.path.insert(0, str(ROOT / "tests" / "bench"))
import grid  # noqa: E402
import publish_gpu  # noqa: E402
import report  # noqa: E402
import settings  # noqa: E402

COUNTS = ["4", "6", "8", "12", "16"]


@pytest.fixture
def packed(tmp_path):
    folder = tmp_path / "device"
    subprocess.run([ROOT / "tests" / "gpu" / "pack.sh", BUILD, folder], check=True, stdout=subprocess.DEVNULL)
    places = [str(folder), str(pathlib.Path(__file__).parent)]
    (folder / "python" / "sitecustomize.py").write_text(f"import sys\nsys.path[:0] = {places}\nimport stand_in_torch\n")
    arrays = tmp_path / "inputs" / "arrays"
    arrays.mkdir(parents=True)
    np.save(arrays / "image.npy", np.random.default_rng(0).integers(0, 256, (64, 3, 224, 224), np.uint8))
    np.save(arrays / "label.npy", np.arange(64))
    return folder


def run(folder, parts):
    """(exit status, what was said, results.json) of run.sh."""
    out = folder.parent / "out"
    few = {"PINFEED_POOL_BYTES": "512MiB", "PINFEED_PINNED_BYTES": "192MiB", "PINFEED_GPU_BYTES": "192MiB", "PINFEED_WORKERS": "2"}
    environment = {**os.environ, **few, "PATH": "/usr/bin:/bin", "PARTS": "bench", "BENCH_PARTS": parts, "OUT": str(out)}
    done = subprocess.run(
        [folder / "run.sh", folder.parent / "inputs"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False
    )
    results = out / "results.json"
    return done.returncode, done.stdout, results if results.exists() else None


def test_what_feeding_costs_becomes_tables(packed):
    status, said, results = run(packed, "trainer slots costs")
    assert status == 0, said
    assert "slots: turn 2 of 2, 16 slots: alone " in said and "costs: round 2 of 2, the daemon copies;" in said, said
    products, latency, costs = grid.read_grids(results)
    assert [name for name, _ in products.lines] == [name for name, _ in latency.lines] == COUNTS
    assert [name for name, _ in costs.lines][0] == "nothing" and len(costs.lines) == 10
    for table in (products, latency, costs):
        for name, cells in table.lines:
            assert len(cells) == len(table.head) - 1
            assert all(one.low <= one.median <= one.high for one in cells if one is not None), name
    fed = dict(products.lines)["8"]
    assert [one.unit for one in fed] == ["TFLOP/s"] + ["TFLOP/s", "GB/s"] * 3
    # So few steps may end before the neighbour has counted a batch.
    assert all(one.median > 0 or one.unit == "GB/s" for _, cells in [*products.lines, *latency.lines] for one in cells)
    assert fed[0].share is None and fed[1].share > 0
    rows = report.read_json(results)
    assert [row.work.split(" ")[0] for row in rows] == ["bf16", "trainer's", "the"] and all(row.value > 0 and row.ceiling > 0 for row in rows)


def test_tables_are_published_beside_the_rows(tmp_path, monkeypatch, capsys):
    """Each into its own place of the page, which keeps what it had where nothing new came."""
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    shutil.copy(ROOT / "docs" / "benchmarks.md", page)
    monkeypatch.setattr(publish_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(report, "plot", lambda rows, path: None)
    table = grid.Grid("What it costs", ["what", "alone"], [("nothing", [grid.cell([1.0, 2.0, 4.0], "us")])])
    row = report.Row("arrays, as never before", 53.8, "GB/s")

    def publish(*entries):
        report.write_json(entries, tmp_path / "results.json")
        monkeypatch.setattr(sys, "argv", ["publish_gpu.py", f"one H200={tmp_path / 'results.json'}"])
        publish_gpu.main()
        return page.read_text("utf-8")

    before = page.read_text("utf-8")
    places = [before.index(f"<!-- GPU {which}: {end} -->") for which in ("results", "tables") for end in ("begin", "end")]
    assert places == sorted(places)
    with_table = publish(table)
    section = with_table.split("<!-- GPU tables: begin -->")[1].split("<!-- GPU tables: end -->")[0]
    assert section == f"\n**one H200**: What it costs\n\n{table.markdown()}\n"
    assert with_table.split("<!-- GPU tables: begin -->")[0] == before.split("<!-- GPU tables: begin -->")[0]
    with_row = publish(row)
    assert section in with_row and row.work in with_row and with_row.count("<!-- GPU ") == 4
    capsys.readouterr()
    report.write_json([], tmp_path / "results.json")
    with pytest.raises(SystemExit, match="publish_gpu.py"):
        publish_gpu.main()


def test_a_part_that_fails_takes_no_other_with_it(packed):
    (packed / "costs.cu").unlink()
    status, said, results = run(packed, "costs slots")
    assert status == 1 and "bench.py: failed: costs" in said and "costs.cu" in said, said
    assert len(grid.read_grids(results)) == 2


def test_an_unknown_part_is_refused_before_anything_is_measured(packed):
    status, said, results = run(packed, "slots cost")
    assert status == 1 and results is None and "there is no part cost; there are rates, decode, trainer, slots, costs, " in said, said


def test_figures_by_turns_become_a_median_with_its_spread():
    shared = grid.cell([650.0, 640.0, 655.0], "TFLOP/s", of=[660.0, 670.0, 655.0])
    assert (shared.median, shared.low, shared.high, shared.share) == (650, 640, 655, 650 / 660)
    assert str(shared) == "650 (640 to 655) TFLOP/s = 98.5%"
    assert str(grid.cell([0.5, -0.25, 18.94], "us", added=True)) == "+0.50 (-0.25 to +18.9) us"


def test_tables_are_read_as_they_were_written(tmp_path):
    table = grid.Grid("A table", ["what", "a", "b"], [("one", [grid.cell([1.0, 2.0, 4.0], "us"), None])])
    row = report.Row("arrays", 53.8, "GB/s")
    report.write_json([row, table], tmp_path / "results.json")
    assert len(json.loads((tmp_path / "results.json").read_text())) == 2
    assert grid.read_grids(tmp_path / "results.json") == [table]
    assert report.read_json(tmp_path / "results.json") == [row]
    assert table.markdown().splitlines()[2] == "| one | 2.00 (1.00 to 4.00) us | - |"


class Rates:
    """A contender whose rounds find what they are told to."""

    workers, bound = 2, "decode 90%"

    def __init__(self, *rates):
        self._rates, self.rates, self.cpu_us = iter(rates), [], []

    def round(self, _seconds):
        self.rates.append(next(self._rates))
        return self.rates[-1]


def test_the_best_setting_is_measured_again_beside_the_default():
    """Its rounds of the search do not count."""
    again = settings.ROUNDS[1] * [1.0]
    lucky, slow = Rates(*settings.ROUNDS[0] * [2.0], *again), Rates(*settings.ROUNDS[0] * [0.5])
    found = settings.compare("row", "workers", {None: Rates(*settings.ROUNDS[0] * [1.0], *again), 3: lucky, 1: slow}, 1.0)
    assert (found.default, found.best, found.of_best, found.holds) == (2, 3, 1.0, True)
    assert found.searched == {3: (2.0, 0.0), 1: (0.5, 0.0)}
    better = Rates(*settings.ROUNDS[0] * [2.0], *settings.ROUNDS[1] * [1.04])
    found = settings.compare("row", "workers", {None: Rates(*settings.ROUNDS[0] * [1.0], *again), 3: better}, 1.0)
    assert not found.holds and "0.962 **below**" in found.line()


@pytest.mark.parametrize("name", ["costs.cu", "scribble.cu"])
def test_device_code_of_the_programs_compiles(name, tmp_path):
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    subprocess.run([nvcc, "-ptx", "-Werror", "all-warnings", "-o", tmp_path / "out.ptx", ROOT / "tests" / "gpu" / name], check=True)
