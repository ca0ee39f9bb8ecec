# SPDX-License-Identifier: Apache-2.0
"""The comparison with other loaders, rehearsed without a GPU: contenders that run, that are not installed, that fail; and what is published of it."""
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import BUILD, ROOT
from PIL import Image

sys.path[:0] = [str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "gpu")]
import peers_report  # noqa: E402
import publish_gpu  # noqa: E402
from peers_report import AUTO, CPU, FREE, GPU, Result  # noqa: E402

SAMPLES = 1040  # four batches and some
WITHOUT_GPU = "no GPU"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root, random = tmp_path_factory.mktemp("inputs"), np.random.default_rng(0)
    (root / "arrays").mkdir()
    np.save(root / "arrays" / "image.npy", random.integers(0, 256, (SAMPLES, 3, 224, 224), np.uint8))
    np.save(root / "arrays" / "label.npy", np.arange(SAMPLES))
    random.integers(0, 50257, 200_000, np.uint16).tofile(root / "tokens.bin")
    for number in range(SAMPLES):
        folder = root / "jpeg" / f"class{number % 5}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8)).resize((64, 48), Image.BICUBIC).save(folder / f"{number}.jpg")
    return root


def run(daemon, inputs, out, *arguments, **environment):
    """(exit status, what was said, results by row and name)."""
    command = [sys.executable, ROOT / "tests" / "gpu" / "peers.py", daemon.address, inputs, out, "--host", "--seconds", "0.3", "--settle", "0.1", "--turns", "1"]
    command += ["--fed-turns", "1", "--steps", "600", *arguments]
    paths = f"{ROOT / 'tests' / 'bench'}:{os.environ['PYTHONPATH']}"
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, "PYTHONPATH": paths, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    results, _ = peers_report.read(out / "peers.json")
    return done.returncode, done.stdout, {(one.row, one.contender): one for one in results}


def test_contenders_are_measured_or_listed(daemon, inputs, tmp_path):
    status, said, results = run(daemon, inputs, tmp_path, "--only", "pinfeed;DALI external;by hand: 1;FFCV;ceiling")
    assert status == 0, said
    ran = {key for key, one in results.items() if one.turns}
    assert ran == {
        ("jpeg", CPU), ("shards", CPU), ("arrays", "pinfeed"), ("arrays", "pinfeed, slots lent"),
        ("arrays", "by hand: 16 threads, pinned slots"), ("arrays", "ceiling: one pinned batch, copied again and again"), ("tokens", "pinfeed"), ("tokens", "by hand: 1 thread, pinned slots"),
    }, said  # fmt: skip
    assert all(results[key].rate > 0 and results[key].check.startswith("ok") for key in ran)
    assert all(results[row, name].absent == WITHOUT_GPU for row in ("jpeg", "shards") for name in (GPU, AUTO))
    assert results["jpeg", "FFCV, 16 workers"].absent == "ffcv not installed" and "| FFCV, 16 workers | ffcv not installed |" in said
    assert results["jpeg", CPU].kept_at_pace() > 0 and results["jpeg", CPU].drained()[1] > 0
    assert (tmp_path / "peers.png").stat().st_size > 10_000


def test_what_fails_is_said_and_the_others_go_on(daemon, inputs, tmp_path):
    (tmp_path / "site" / "ffcv").mkdir(parents=True)
    (tmp_path / "site" / "ffcv" / "__init__.py").write_text("raise RuntimeError('built for another Python')\n")
    status, said, results = run(daemon, inputs, tmp_path, "--rows", "jpeg", "--only", "decode=cpu;FFCV", "--fed-turns", "0", PEERS_SITE=str(tmp_path / "site"))
    assert status == 1 and "built for another Python" in said and "Traceback" in said, said
    assert "built for another Python" in results["jpeg", "FFCV, 16 workers"].failed and "| FFCV, 16 workers | FAILED |" in said
    assert results["jpeg", CPU].rate > 0


def facts(**other):
    same = {"float": True, "contiguous": True, "finite": True, "shape": [256, 3, 224, 224], "bytes": 2, "different": 1.0, "labels": [256], "classes": 10}
    return {**same, "mean": 0.2, "deviation": 1.0, "device": "cuda:0", **other}


def test_a_batch_that_is_not_like_pinfeeds_is_named():
    import peers

    assert peers.judged(facts(mean=0.22, deviation=1.04), facts()) == "ok"
    for wrong in ({"mean": 0.3}, {"deviation": 0.9}, {"bytes": 4}, {"shape": [256, 224, 224, 3]}, {"different": 0.5}, {"finite": False}, {"device": "cpu"}):
        assert peers.judged(facts(**wrong), facts()).startswith("WRONG: "), wrong
    assert peers.judged({"same": False, "got": "sums"}, None) == "WRONG: sums"


def made(gpu=33_000.0, kept=0.95):
    """Results of a run in which DALI took 25,000 images/s and left the trainer 93%."""
    dali = Result("jpeg", "DALI, some way", "DALI", [[25_000.0, 0.156]], check="ok", paced={"3200": [0.98]}, beside={FREE: [[0.93, 20_000.0]]}, versions={"DALI": "2.4.0"})
    ours = Result("jpeg", GPU, "pinfeed", [[gpu, 0.14]], check="ok", paced={"3200": [0.99]}, beside={
        FREE: [[0.9, 28_000.0]], "DALI's": [[kept, 20_000.0]], "1.25 times DALI's": [[kept - 0.01, 25_000.0]],
    })  # fmt: skip
    others = [Result("jpeg", CPU, "pinfeed", [[11_000.0, 1.4]]), Result("jpeg", AUTO, "pinfeed", [[39_000.0, 0.3]])]
    return [dali, ours, *others, Result("jpeg", "FFCV", "FFCV", absent="ffcv not installed"), Result("arrays", "pinfeed", "pinfeed", [[44.0, 0.01]])]


def test_budgets_compare_with_the_best_of_the_same_run():
    met = {row.work: row.met for row in peers_report.budgets(made())}
    assert len(met) == 6 and all(met.values()), met
    missed = [row.work for row in peers_report.budgets(made(gpu=32_000.0, kept=0.92)) if not row.met]
    assert [work.split(",")[0] for work in missed] == ["JPEG", "the trainer keeps at DALI's 20", "images/s that leave the trainer DALI's 93.0%"], missed


def test_peers_are_published_into_their_own_place(tmp_path, monkeypatch, capsys):
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    shutil.copy(ROOT / "docs" / "benchmarks.md", page)
    before = page.read_text("utf-8")
    results = made()
    peers_report.report.write_json([*results, *peers_report.budgets(results), peers_report.Machine({"DALI": "2.4.0"})], tmp_path / "peers.json")
    assert peers_report.read(tmp_path / "peers.json") == (results, {"DALI": "2.4.0"})
    monkeypatch.setattr(publish_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["publish_gpu.py", f"one H200={tmp_path / 'peers.json'}"])
    publish_gpu.main()
    head, _, rest = page.read_text("utf-8").partition("<!-- Peer results: begin -->")
    section, _, tail = rest.partition("<!-- Peer results: end -->")
    assert head == before.partition("<!-- Peer results: begin -->")[0] and tail == before.partition("<!-- Peer results: end -->")[2]
    assert "**one H200**" in section and "DALI 2.4.0" in section and "| FFCV | ffcv not installed |" in section and "(benchmarks-peers.png)" in section
    assert (page.parent / "benchmarks-peers.png").exists()


def test_what_peers_need_is_packed(tmp_path):
    folder = tmp_path / "device"
    subprocess.run([ROOT / "tests" / "gpu" / "pack.sh", BUILD, folder], check=True, stdout=subprocess.DEVNULL)
    help_text = subprocess.run(
        [sys.executable, folder / "peers.py", "--help"], env={**os.environ, "PYTHONPATH": str(folder / "python")}, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    assert "--rows" in help_text and os.access(folder / "wheels.sh", os.X_OK)


def test_parts_are_installed_once_all_have_come(tmp_path):
    """In any order, over several calls; and not if one is damaged."""
    script, kept = ROOT / "tests" / "gpu" / "wheels.sh", tmp_path / "kept"
    packed, carried = tmp_path / "packed", tmp_path / "carried"
    (packed / "site" / "loader").mkdir(parents=True)
    (packed / "site" / "loader" / "__init__.py").write_text("")
    subprocess.run(["bash", "-c", "tar -cJf - site | split -b 60 -d - part- && sha256sum part-* > sum && rm -r site"], cwd=packed, check=True)
    parts = sorted(packed.iterdir())
    assert len(parts) > 2

    def install(*some):
        shutil.rmtree(carried, ignore_errors=True)
        carried.mkdir()
        for path in some:
            shutil.copy(path, carried)
        return subprocess.run([script, "install", carried, kept], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).returncode

    assert install(*parts[2:]) == 3
    assert install(parts[0]) == 3
    damaged = tmp_path / parts[1].name
    damaged.write_bytes(b"x" + parts[1].read_bytes()[1:])
    assert install(damaged) == 3 and not (kept / "site").exists()
    assert install(parts[1]) == 0 and (kept / "site" / "loader").is_dir()
    assert install() == 0
