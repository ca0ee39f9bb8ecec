# SPDX-License-Identifier: Apache-2.0
"""What is kept of image folders and shards, in real daemons: what is looked at again, and that the samples are always those of the disk."""
import functools
import os
import sys
import time

import numpy
import pinfeed
import pytest
from conftest import ROOT
from PIL import Image

sys.path.append(str(ROOT / "tests" / "bench"))
from tar_shards import write_shard  # noqa: E402

CLASSES = 5


@pytest.fixture
def pictures(tmp_path):
    root = tmp_path / "pictures"
    for number in range(CLASSES):
        (root / f"c{number}").mkdir(parents=True)
        add(root / f"c{number}" / "0.png")
    return root


@pytest.fixture
def start(start_daemon, pictures):
    """Starts daemons that keep no dataset open."""
    return functools.partial(start_daemon, "--allowed-roots", str(pictures), "--dataset-cache", "0", "--pool-bytes", "64MiB")


def add(path):
    Image.fromarray(numpy.zeros((8, 8, 3), numpy.uint8)).save(path)


def samples(daemon, pictures):
    """Opens the pictures. Returns the paths of all samples, in order."""
    with pinfeed.open(pictures, address=daemon.address, batch_size=1, epochs=1, sample_path=True, transforms=pinfeed.CenterCrop(8), framework="numpy") as feed:
        paths = [bytes(batch.sample_path[0]).decode() for batch in feed]
    return paths


def counts(daemon):
    status = pinfeed.status(daemon.address)
    return int(status["folders_listed"]), int(status["folders_unchanged"])


def open_until(daemon, pictures, listed, unchanged):
    """Opens the pictures again and again, until an open listed and recalled so many directories: they must be 2 s old to be kept."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = counts(daemon)
        names = samples(daemon, pictures)
        after = counts(daemon)
        if (after[0] - before[0], after[1] - before[1]) == (listed, unchanged):
            return names
    raise AssertionError(f"after {counts(daemon)}:\n{daemon.log()}")


def expected(pictures):
    return sorted(str(path.relative_to(pictures)) for path in pictures.glob("*/*.png"))


def test_the_second_open_lists_only_what_changed(start, pictures, tmp_path):
    daemon = start("--index-dir", str(tmp_path / "index"))
    assert open_until(daemon, pictures, 0, CLASSES) == expected(pictures)
    # The next daemon.
    daemon = start("--index-dir", str(tmp_path / "index"))
    assert samples(daemon, pictures) == expected(pictures)
    assert counts(daemon) == (0, CLASSES)
    assert f"{CLASSES} files; 0 directories were listed, {CLASSES} had not changed" in daemon.log()
    add(pictures / "c3" / "1.png")
    assert open_until(daemon, pictures, 1, CLASSES - 1) == expected(pictures)
    (pictures / "c3" / "0.png").unlink()
    assert samples(daemon, pictures) == expected(pictures)
    assert open_until(daemon, pictures, 0, CLASSES) == expected(pictures)


def test_a_damaged_file_is_told_and_replaced(start, pictures, tmp_path):
    daemon = start("--index-dir", str(tmp_path / "index"))
    open_until(daemon, pictures, 0, CLASSES)
    (kept,) = (tmp_path / "index").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert open_until(daemon, pictures, CLASSES, 0) == expected(pictures)
    assert daemon.log().count("the kept index is damaged") == 1
    open_until(daemon, pictures, 0, CLASSES)


def test_auto_is_the_service_s_or_the_user_s(start, pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    open_until(start(), pictures, 0, CLASSES)
    assert len(list((tmp_path / "user" / "pinfeed").iterdir())) == 1
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "service"))
    open_until(start(), pictures, 0, CLASSES)
    assert len(list((tmp_path / "service").iterdir())) == 1


def test_off_and_a_directory_that_others_may_write(start, pictures, tmp_path):
    daemon = start("--index-dir", "off")
    assert samples(daemon, pictures) == expected(pictures)
    assert counts(daemon) == (0, 0)
    (tmp_path / "open").mkdir()
    os.chmod(tmp_path / "open", 0o777)
    daemon = start("--index-dir", str(tmp_path / "open"))
    assert samples(daemon, pictures) == expected(pictures)
    assert "index_dir: " in daemon.log() and "may be written by other users; the file names of datasets are not kept" in daemon.log()
    assert not list((tmp_path / "open").iterdir())


def pack(path, texts):
    """A shard of samples of one text each. Takes the place of one that was there."""
    write_shard(path.with_suffix(".new"), [(f"{number}.txt", text.encode()) for number, text in enumerate(texts)])
    os.replace(path.with_suffix(".new"), path)


def texts(daemon, shards):
    with pinfeed.open(shards, address=daemon.address, batch_size=1, epochs=1, framework="numpy") as feed:
        return [batch.txt.decode()[0] for batch in feed]


def test_shards_that_may_be_written_now_are_read_each_time(start, pictures, tmp_path):
    """Of those that have not changed for an hour, shard_index_test tells."""
    shards = pictures / "shards"
    shards.mkdir()
    for number in range(3):
        pack(shards / f"{number}.tar", [f"{number} a", f"{number} b"])
    expected = ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b"]
    daemon = start("--index-dir", str(tmp_path / "index"))
    assert texts(daemon, shards) == texts(daemon, shards) == expected
    # A shard of the same size, and with the time that it had.
    before = os.stat(shards / "1.tar")
    pack(shards / "1.tar", ["1 c", "1 d"])
    os.utime(shards / "1.tar", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(shards / "1.tar").st_size == before.st_size
    expected[2:4] = ["1 c", "1 d"]
    assert texts(daemon, shards) == expected
    assert daemon.log().count("3 shards were read, 0 had not changed") == 3
    assert not list((tmp_path / "index").glob("*"))
