# SPDX-License-Identifier: Apache-2.0
"""Tar shards of a real daemon, beside what Python's tarfile, Pillow and NumPy read of the same files by WebDataset's rules."""
import io
import json
import re
import sys
import tarfile
import time
import warnings

import numpy
import pinfeed
import pytest
from conftest import ROOT
from daemon_process import Daemon
from PIL import Image

sys.path.append(str(ROOT / "tests" / "bench"))
from tar_shards import write_shard  # noqa: E402

SAMPLES, SHARDS = 30, 3


def files(number):
    """A sample's files, as (extension, bytes)."""
    random = numpy.random.default_rng(number)
    image, array = io.BytesIO(), io.BytesIO()
    Image.fromarray(random.integers(0, 256, (10, 12, 3), numpy.uint8)).save(image, "PNG")
    numpy.save(array, random.random((2, 3), numpy.float32))
    return [("json", json.dumps({"number": number}).encode()), ("PNG", image.getvalue()), ("cls", f"{number * 7}\n".encode()), ("emb.npy", array.getvalue()), ("txt", b"x" * (number % 5))]


def make(folder, form=tarfile.PAX_FORMAT):
    folder.mkdir(exist_ok=True)
    for shard in range(SHARDS):
        numbers = range(shard * SAMPLES // SHARDS, (shard + 1) * SAMPLES // SHARDS)
        # Names that fit into no header of ustar, and names that do.
        long = "" if form == tarfile.USTAR_FORMAT else "a long name, with an ü " * 8
        members = [(f"part {number % 2}/{long}{number:04}.{extension}", data) for number in numbers for extension, data in files(number)]
        write_shard(folder / f"{shard:03}.tar", [("dataset card", b"no sample"), *members], form)


def read(folder):
    """The samples by WebDataset's rules: neighbours that are equal up to the first dot of a file's name."""
    samples = []
    for path in sorted(folder.glob("*.tar")):
        last = None
        with tarfile.open(path) as archive:
            for member in archive:
                name = re.match(r"((?:.*/|)[^.]+)[.]([^/]*)$", member.name)
                if name is None:
                    continue
                if name[1] != last:
                    samples.append({"path": f"{path.name}/{name[1]}"})
                    last = name[1]
                samples[-1][name[2].lower()] = archive.extractfile(member).read()
    return samples


def check(batch, samples):
    for row, number in enumerate(batch.sample_id):
        sample = samples[number]
        assert (numpy.moveaxis(batch.image[row], 0, -1) == numpy.asarray(Image.open(io.BytesIO(sample["png"])))).all()
        assert batch.label[row] == int(sample["cls"])
        assert (batch["emb.npy"][row] == numpy.load(io.BytesIO(sample["emb.npy"]))).all()
        assert (batch.json.decode()[row], batch.txt.decode()[row]) == (sample["json"].decode(), sample["txt"].decode())
        assert batch.sample_path.decode()[row] == sample["path"]


CROP = pinfeed.CenterCrop((10, 12))
OPTIONS = {"batch_size": 4, "shuffle": True, "seed": 3, "epochs": 2, "sample_ids": True, "sample_path": True, "framework": "numpy", "transforms": CROP}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["ustar", "gnu", "pax"])
def test_samples_are_those_of_the_archives(feeds, tmp_path, form):
    make(tmp_path / "set", form)
    samples = read(tmp_path / "set")
    assert len(samples) == SAMPLES
    seen = []
    with pinfeed.open(tmp_path / "set", **OPTIONS) as feed:
        assert list(feed.dataset.targets) == [int(sample["cls"]) for sample in samples]
        for epoch in feed, feed:
            for batch in epoch:
                assert list(batch.keys())[:5] == ["image", "label", "emb.npy", "json", "txt"]
                check(batch, samples)
                seen += batch.sample_id.tolist()
    assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:]) == list(range(SAMPLES)) and seen[:SAMPLES] != seen[SAMPLES:]


def test_ranks_share_the_samples_of_all_shards_and_resume_in_the_middle(feeds, tmp_path):
    make(tmp_path / "set")
    samples = read(tmp_path / "set")
    seen = []
    for rank in 0, 1:
        with pinfeed.open(tmp_path / "set", rank=rank, world_size=2, **OPTIONS) as feed:
            batches = iter(feed)
            seen += next(batches).sample_id.tolist() + next(batches).sample_id.tolist()
            state = feed.state_dict()
        with pinfeed.open(tmp_path / "set", rank=rank, world_size=2, state=state, **OPTIONS) as feed:
            for batch in feed:
                check(batch, samples)
                seen += batch.sample_id.tolist()
    assert sorted(seen) == list(range(SAMPLES))


def test_fields_that_some_samples_lack_are_told(feeds, tmp_path):
    make(tmp_path / "set")
    write_shard(tmp_path / "set" / "zz.tar", [(f"99.{extension}", data) for extension, data in files(99)[1:]])
    with pytest.warns(pinfeed.ColumnsLeftOutWarning, match=r"sample 'zz.tar/99' lacks its 'json'"), pinfeed.open(tmp_path / "set", batch_size=4, transforms=CROP) as feed:
        assert "json" not in next(iter(feed)).keys()
    with pytest.raises(pinfeed.InvalidArgumentError, match=r"sample 'zz.tar/99' lacks its 'json'"):
        pinfeed.open(tmp_path / "set", batch_size=4, fields=["image", "json"])
    with warnings.catch_warnings(), pinfeed.open(tmp_path / "set", batch_size=4, fields=["image", "label"], transforms=CROP) as feed:
        warnings.simplefilter("error")
        assert len(feed.dataset) == SAMPLES + 1


def test_an_archive_that_was_cut_off_is_refused_with_the_place(feeds, tmp_path):
    make(tmp_path / "set")
    whole = (tmp_path / "set" / "001.tar").read_bytes()
    for size, what in [(len(whole) // 2, "ends within a file|without the mark of its end|ends within a block"), (len(whole) - 10240, "cut off")]:
        (tmp_path / "set" / "001.tar").write_bytes(whole[:size])
        with pytest.raises(pinfeed.DataLossError, match=rf"001.tar' at offset \d+: .*({what})"):
            pinfeed.open(tmp_path / "set", batch_size=4)
    (tmp_path / "set" / "001.tar.gz").write_bytes(b"")
    with pytest.raises(pinfeed.InvalidArgumentError, match="gunzip"):
        pinfeed.open(tmp_path / "set" / "001.tar.gz", batch_size=4)


def test_a_shard_that_is_written_to_gives_no_other_bytes(feeds, tmp_path):
    make(tmp_path / "set")
    with pinfeed.open(tmp_path / "set", batch_size=4, slots=3, transforms=CROP) as feed:
        batches = iter(feed)
        next(batches)
        for path in sorted((tmp_path / "set").glob("*.tar")):
            path.write_bytes(bytes(reversed(path.read_bytes())))
        with pytest.raises(pinfeed.DataLossError, match="open the dataset again"):
            for _ in batches:
                pass


def test_the_decoded_cache_keeps_the_images_of_a_shard_apart(tmp_path):
    make(tmp_path / "set")
    time.sleep(2.1)  # the cache keeps what did not change in the last 2 s before it is opened
    options = dict(OPTIONS, epochs=3, transforms=[pinfeed.Resize((8, 9)), pinfeed.RandomHorizontalFlip()])
    batches = []
    for flags in ["--cache-bytes", "64MiB"], []:
        daemon = Daemon(tmp_path / f"run{len(batches)}", "--allowed-roots", str(tmp_path), *flags)
        with pinfeed.open(tmp_path / "set", address=daemon.address, **options) as feed:
            batches.append([batch.image.tobytes() + batch.sample_id.tobytes() for _ in range(3) for batch in feed])
        status = pinfeed.status(daemon.address)
        if flags:
            assert int(status["cache_hits"]) >= SAMPLES and int(status["cache_entries"]) == SAMPLES
        daemon.stop()
    assert batches[0] == batches[1]
