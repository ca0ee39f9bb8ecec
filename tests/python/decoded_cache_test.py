# SPDX-License-Identifier: Apache-2.0
"""The decoded cache of a real daemon: the same batches as without it, its figures, and what operators do with it."""
import functools
import os
import re
import subprocess
import time

import numpy
import pinfeed
import pytest
from conftest import tool
from PIL import Image
from withstand.hardship import eventually

FILES = 24
HEADS = {
    "whole": [pinfeed.RandomResizedCrop(24), pinfeed.RandomHorizontalFlip()],
    "crop": [pinfeed.Resize(32), pinfeed.CenterCrop(24), pinfeed.RandomHorizontalFlip(), pinfeed.ToDtype("float32", scale=True)],
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    random = numpy.random.default_rng(1)
    for number in range(FILES):
        folder = root / ("a" if number < FILES // 2 else "b")
        folder.mkdir(exist_ok=True)
        pixels = random.integers(0, 256, (40 + number, 60, 3), numpy.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.{'png' if number % 3 == 0 else 'jpg'}")
    return root


@pytest.fixture
def start(start_daemon, pictures):
    return functools.partial(start_daemon, "--allowed-roots", str(pictures))


def opened(daemon, pictures, transforms, **options):
    options = {"batch_size": 8, "shuffle": True, "seed": 5, "framework": "numpy", "sample_ids": True, **options}
    return pinfeed.open(pictures, address=daemon.address, transforms=transforms, **options)


def epoch_of(feed):
    return [(batch.image.copy(), batch.label.copy(), batch.sample_id.copy()) for batch in feed]


def same(left, right):
    return len(left) == len(right) and all(numpy.array_equal(a, b) for one, other in zip(left, right) for a, b in zip(one, other))


def fill(daemon, pictures, transforms):
    """Epochs until one finds every image; the cache waits until the new files have settled."""
    deadline = time.monotonic() + 60
    with opened(daemon, pictures, transforms) as feed:
        counts = (0, 0)
        while True:
            epoch_of(feed)
            found = pinfeed.status(daemon.address)["feeds"][-1]
            before, counts = counts, (int(found.get("cache_hits", 0)), int(found.get("cache_misses", 0)))
            if counts[0] - before[0] >= FILES // 2 and counts[1] == before[1]:
                return
            assert time.monotonic() < deadline, f"hits and misses are {counts}"


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("size", ["64MiB", "128KiB"])  # the second does not hold all whole images
def test_batches_are_the_same_with_and_without_it(start, pictures, head, size):
    with_it, without = start("--cache-bytes", size), start()
    with opened(with_it, pictures, HEADS[head]) as cached, opened(without, pictures, HEADS[head]) as plain:
        deadline = time.monotonic() + 60
        epochs = 0
        while epochs < 4 or int(pinfeed.status(with_it.address).get("cache_hits", 0)) < FILES // 2:
            assert time.monotonic() < deadline, "the cache is never used"
            assert same(epoch_of(cached), epoch_of(plain))
            epochs += 1
    assert int(pinfeed.status(without.address).get("cache_capacity_bytes", 0)) == 0


def test_other_jobs_find_what_one_has_decoded(start, pictures):
    daemon = start("--cache-bytes", "64MiB", http_listen="127.0.0.1:0")
    fill(daemon, pictures, HEADS["crop"])
    for seed in range(4):  # after the first job has ended, and with other transforms behind the head
        with opened(daemon, pictures, HEADS["crop"][:2], seed=seed) as feed:
            epoch_of(feed)
            found = pinfeed.status(daemon.address)["feeds"][-1]
            assert int(found["cache_hits"]) >= FILES and int(found.get("cache_misses", 0)) == 0
            shown = tool(daemon, "status")[1]
            assert re.search(r"^cache .* of 64 MiB used by 24 images, .* hits, .* misses, 0 evictions, .* decoded ahead$", shown, re.M)
            assert re.search(r"^feed \d+ found 100% of its images in the cache$", shown, re.M)
    status = pinfeed.status(daemon.address)
    assert int(status["cache_entries"]) == FILES and int(status["cache_capacity_bytes"]) == 64 << 20
    assert 0 < int(status["cache_used_bytes"]) == int(status["users"][0]["cache_bytes"]) <= 64 << 20
    _, page = daemon.http("/metrics")
    assert f"pinfeed_cache_entries {FILES}" in page and re.search(r"^pinfeed_cache_hits_total [1-9]", page, re.M)
    assert f'pinfeed_user_cache_bytes{{uid="{os.geteuid()}"}}' in page
    assert '"cache_capacity_bytes":67108864' in daemon.http("/status.json")[1].replace(" ", "")


@pytest.mark.parametrize("head", HEADS)
def test_idle_workers_decode_what_the_feed_comes_to(start, pictures, head):
    """The trainer takes nothing, all slots are full: the cache gets the rest of the epoch, and the batches stay the same."""
    settled = max(path.stat().st_ctime for path in pictures.rglob("*.*")) + 2.1
    time.sleep(max(0, settled - time.time()))  # until then they are not kept
    daemon, without = start("--cache-bytes", "64MiB", http_listen="127.0.0.1:0"), start()
    with opened(daemon, pictures, HEADS[head], batch_size=2, slots=3) as feed, opened(without, pictures, HEADS[head], batch_size=2) as plain:
        eventually(lambda: pinfeed.status(daemon.address), lambda: int(pinfeed.status(daemon.address).get("cache_entries", 0)) >= FILES)
        before = pinfeed.status(daemon.address)
        ahead = int(before["cache_made_ahead"])
        assert FILES - 3 * 2 - 4 <= ahead <= FILES and int(before["cache_misses"]) <= 3 * 2
        assert same(epoch_of(feed), epoch_of(plain)) and same(epoch_of(feed), epoch_of(plain))
        after = pinfeed.status(daemon.address)
        assert after["cache_misses"] == before["cache_misses"] and after["cache_made_ahead"] == before["cache_made_ahead"]
        assert f"{ahead} decoded ahead" in tool(daemon, "status")[1]
        assert f"pinfeed_cache_made_ahead_total {ahead}\n" in daemon.http("/metrics")[1]


def test_a_replaced_file_is_read_again(start, pictures, tmp_path):
    copy = pictures / "copy"
    (copy / "a").mkdir(parents=True)
    path = copy / "a" / "0.png"
    Image.new("RGB", (30, 30), (10, 20, 30)).save(path)
    daemon = start("--cache-bytes", "64MiB")
    try:
        with opened(daemon, copy, [pinfeed.Resize((8, 8))], batch_size=1, shuffle=False, slots=3) as feed:
            deadline = time.monotonic() + 60
            while int(pinfeed.status(daemon.address)["feeds"][0].get("cache_hits", 0)) == 0:
                assert time.monotonic() < deadline, "it is never kept"
                assert [batch.image.reshape(3, -1)[:, 0].tolist() for batch in feed] == [[10, 20, 30]]
            fresh = tmp_path / "fresh.png"
            Image.new("RGB", (30, 30), (90, 80, 70)).save(fresh)
            os.utime(fresh, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
            os.replace(fresh, path) if fresh.stat().st_dev == path.stat().st_dev else path.write_bytes(fresh.read_bytes())
            for _ in range(2 + feed.slots):  # some batches were filled before
                last = [batch.image.reshape(3, -1)[:, 0].tolist() for batch in feed]
            assert last == [[90, 80, 70]]
    finally:
        path.unlink()
        (copy / "a").rmdir()
        copy.rmdir()


def test_an_operator_drops_it(start, pictures):
    daemon = start("--cache-bytes", "64MiB")
    fill(daemon, pictures, HEADS["whole"])
    used = int(pinfeed.status(daemon.address)["cache_used_bytes"])
    assert used > 0
    status, out, err = tool(daemon, "cache", "drop")
    assert status == 0 and out.startswith(f"dropped {FILES} decoded images, "), err
    after = pinfeed.status(daemon.address)
    assert int(after.get("cache_used_bytes", 0)) == 0 and int(after.get("cache_entries", 0)) == 0
    assert re.search(r" info +.* dropped 24 decoded images from the cache$", daemon.log(), re.M)
    fill(daemon, pictures, HEADS["whole"])
    assert int(pinfeed.status(daemon.address)["cache_used_bytes"]) == used


def test_without_one_there_is_nothing_to_drop(start):
    daemon = start("--cache-bytes", "off")
    status, out, err = tool(daemon, "cache", "drop")
    assert status == 1 and out == "" and "this daemon has none; set cache_bytes" in err
    status, _, err = tool(daemon, "cache", "fill")
    assert status == 2 and "drop" in err


def test_a_cache_that_cannot_be_is_refused(tmp_path):
    done = subprocess.run([os.environ["PINFEED_DAEMON"], "--socket-dir", str(tmp_path), "--http-listen", "off", "--cache-bytes", "900TiB"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and re.search(r"cache_bytes: 900 TiB .* are more than the .* that this process may use", done.stderr), done.stderr
