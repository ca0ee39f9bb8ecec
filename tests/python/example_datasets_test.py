# SPDX-License-Identifier: Apache-2.0
"""The datasets of examples/datasets, each run as its users run it, with a real daemon."""

import importlib.util
import pickle
import sys

import pytest
from conftest import ROOT
from produced import produced_by

torch = pytest.importorskip("torch")

import pinfeed  # noqa: E402

pytestmark = pytest.mark.usefixtures("feeds")
FOLDER = ROOT / "examples" / "datasets"
# The class of each, and the module that it needs.
EXAMPLES = {
    "hdf5_images": ("Hdf5Images", "h5py"),
    "lmdb_images": ("LmdbImages", "lmdb"),
    "parquet_rows": ("ParquetRows", "pyarrow"),
    "huggingface_texts": ("Texts", "datasets"),
    "sqlite_rows": ("SqliteRows", "sqlite3"),
    "zip_images": ("ZipImages", "PIL"),
}


@pytest.fixture(params=EXAMPLES)
def example(request, monkeypatch):
    """The module of an example."""
    name, (_, needed) = request.param, EXAMPLES[request.param]
    pytest.importorskip(needed, reason=f"{needed} is not installed")
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXAMPLES)


def test_it_runs_without_an_input(example, daemon, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{example.__name__}.py"])
    with produced_by(daemon) as produced:
        example.main()
    assert "32 samples in 4 batches, labels 0 to 31" in capsys.readouterr().out
    assert (produced.feeds, produced.batches) == (1, 4)


def test_its_samples_are_right_after_the_trainer_has_used_the_dataset(example, daemon, tmp_path):
    """So that workers inherit files that are open; then a copy as for a worker that is spawned."""
    dataset = getattr(example, EXAMPLES[example.__name__][0])(example.make_input(str(tmp_path), samples=203))
    dataset[0]
    arguments = {"collate_fn": example.pad} if hasattr(example, "pad") else {}
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        with produced_by(daemon) as produced:
            got = [flat(batch) for batch in pinfeed.DataLoader(each, 20, num_workers=2, **arguments)]
        assert produced.batches == 11
        values, labels = (sum(column, []) for column in zip(*got))
        assert labels == list(range(203))
        assert values == pytest.approx([label / 255 for label in labels] if "images" in example.__name__ else labels)


def flat(batch):
    """What is in the first place of each sample, and the labels."""
    values, labels = (batch["input_ids"], batch["labels"]) if isinstance(batch, dict) else batch
    return values.flatten(1)[:, 0].tolist(), labels.tolist()
