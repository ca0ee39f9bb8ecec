# SPDX-License-Identifier: Apache-2.0
"""No memory left, in the pool or in the daemon's control group: feeds are refused by name, nobody is killed, what is open goes on."""

import contextlib
import functools
import os
import pathlib
import subprocess

import numpy
import pinfeed
import pinfeed.transforms
from PIL import Image
from clients import Feed, Trainers, fill, try_open
from hardship import eventually, read_status
from place import nothing_left
from rows import holds

MIB = 1 << 20
LIMIT_MIB = 256
ROW = 8192  # numbers of 8 bytes: 64 KiB
BATCH = 64  # 4 MiB
SLOTS = 4


@contextlib.contextmanager
def control_group():
    """A new control group with that limit, as a folder; None where none can be made."""
    for root, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        group = pathlib.Path(root) / f"pinfeed-load-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(LIMIT_MIB * MIB))
                yield group
                return
        finally:
            group.rmdir()
    yield None


def killed(group):
    """How often the kernel has killed somebody for the group's limit."""
    text = "".join((group / name).read_text() for name in ("memory.events", "memory.oom_control") if (group / name).exists())
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])


def into(group):
    """A command that becomes the one behind it, in the group."""
    return ("sh", "-c", f'echo $$ >"{group}/cgroup.procs" && exec "$@"', "sh")


def refuse_and_go_on(daemon, rows, names, what, least):
    """Feeds until one is refused by these names; those that are open go on; when one closes there is room for another."""
    make = functools.partial(Feed, daemon, rows, batch_size=BATCH, slots=SLOTS)
    feeds, error = fill(make)
    named = isinstance(error, pinfeed.ResourceExhaustedError) and all(name in str(error) for name in names)
    yield holds(f"{what}: the feed after {len(feeds)} of {BATCH * SLOTS * ROW * 8 // MIB} MiB", f"{error.code.name}, with the numbers and what to do", named and len(feeds) >= least)
    assert named, error
    for feed in feeds:
        feed.take(2 * SLOTS)
    feeds[0].feed.close()
    again = eventually("there is room again", lambda: try_open(make))
    again.take(2)
    yield holds("  what is open goes on; once one is closed another is let in", f"{(len(feeds) + 1) * 2 * SLOTS} batches checked")
    for feed in (*feeds, again):
        feed.feed.close()


def in_pool(place, rows):
    with place.daemon("--pool-bytes", "64MiB", "--dataset-cache", "0") as daemon:
        with Trainers(daemon, place.numbers, step_s=0.005) as steady:
            steady.await_open()
            yield from refuse_and_go_on(daemon, rows, ("pool_bytes",), "pool of 64 MiB", 2)
        yield nothing_left(daemon, "the pool was full")


def in_group(place, rows, group):
    refused = subprocess.run(
        [*into(group), os.environ["PINFEED_DAEMON"], "--socket-dir", str(place.scratch), "--http-listen", "off", "--pool-bytes", f"{LIMIT_MIB + 1}MiB"],
        stderr=subprocess.PIPE, text=True, timeout=60,
    )
    named = "pool_bytes" in refused.stderr and str(group) in refused.stderr
    yield holds(f"control group of {LIMIT_MIB} MiB: a larger pool_bytes", f"exit status {refused.returncode}", refused.returncode == 2 and named)
    with place.daemon(under=into(group)) as daemon:
        pool = int(read_status(daemon.address)["pool_capacity_bytes"]) / MIB
        yield holds("  pool_bytes by default", f"{pool:.0f} MiB", LIMIT_MIB / 8 < pool <= LIMIT_MIB / 4)
    with place.daemon("--pool-bytes", f"{LIMIT_MIB}MiB", "--dataset-cache", "0", under=into(group)) as daemon:
        with Trainers(daemon, place.numbers, step_s=0.005) as steady:
            steady.await_open()
            # Files that the kernel caches for the daemon fill the group, and give way.
            with pinfeed.open(place.scratch / "cached", batch_size=BATCH, slots=SLOTS, epochs=1, address=daemon.address, framework="numpy") as feed:
                for batch in feed:
                    del batch
            used = next(int((group / name).read_text()) for name in ("memory.current", "memory.usage_in_bytes") if (group / name).exists())
            yield holds("  a dataset as large as the limit is read", f"{used / MIB:.0f} MiB in use, with cached files", used > LIMIT_MIB * MIB * 0.7)
            yield from refuse_and_go_on(daemon, rows, (str(group), "pool_bytes"), "pool as large as the limit", 8)
        yield nothing_left(daemon, "the group was full")
    yield holds("  processes that the kernel killed", str(killed(group)), killed(group) == 0)


def giants(place, group):
    """Samples of which each needs about as much as the group has: a hole of 1 GiB, and small files that decode to 192 MiB, also by 192 MiB of coefficients."""
    options = dict(batch_size=1, epochs=1, framework="numpy", transforms=[pinfeed.transforms.Resize((8, 8))])
    with place.daemon("--pool-bytes", f"{LIMIT_MIB // 4}MiB", "--workers", "1", under=into(group)) as daemon:
        with pinfeed.open(place.scratch / "giants", on_bad_sample="zero", valid=True, address=daemon.address, **options) as feed:
            valid = [bool(batch.valid[0]) for batch in feed]
        bad = f"{valid.count(False)} of {len(valid)} are bad ones"
        yield holds("  samples that need more than there is, one at a time", bad, valid == [True, False, True, False, True, False])
        try:
            with pinfeed.open(place.scratch / "giants", address=daemon.address, **options) as feed:
                error = f"none of {len(list(feed))}"
        except pinfeed.Error as caught:
            error = str(caught)
        yield holds("  why", error[error.find("a sample"):][:60], "a sample that takes" in error and str(group) in error)
        cropped = {**options, "transforms": [pinfeed.transforms.CenterCrop(8)], "layout": "HWC"}
        try:
            with pinfeed.open(place.scratch / "giant_array", address=daemon.address, **cropped) as feed:
                error = f"none of {len(list(feed))}"
        except pinfeed.Error as caught:
            error = str(caught)
        yield holds("  an array that is read whole to be cropped", error[error.find("a sample"):][:60], "a sample that takes 768 MiB" in error)
    with place.daemon("--pool-bytes", f"{LIMIT_MIB // 4}MiB", under=into(group)) as daemon:
        with pinfeed.open(place.scratch / "giants", on_bad_sample="zero", valid=True, address=daemon.address, **{**options, "batch_size": 6}) as feed:
            with contextlib.suppress(pinfeed.DataLossError):  # each may be in the way of another
                for batch in feed:
                    del batch
        with Trainers(daemon, place.numbers, step_s=0.005) as steady:
            steady.await_open()
    yield holds("  by two workers: processes that the kernel killed", str(killed(group)), killed(group) == 0)


def make_giants(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "hole.jpg").open("wb") as hole:
        hole.truncate(1 << 30)
    image = Image.new("RGB", (8192, 8192))
    for number in range(4):
        image.save(folder / f"{number}.jpg", progressive=number % 2 == 1)
    image.save(folder / "4.png")  # in the order of names: the hole is last


def run(place):
    rows, cached = place.scratch / "rows", place.scratch / "cached"
    rows.mkdir(exist_ok=True)
    cached.mkdir(exist_ok=True)
    numpy.save(rows / "x.npy", numpy.arange(BATCH * ROW, dtype=numpy.int64).reshape(BATCH, ROW))
    # A hole is read as any file is, and takes no disk.
    numpy.lib.format.open_memmap(cached / "x.npy", "w+", numpy.int64, (LIMIT_MIB * 16, ROW)).flush()
    yield from in_pool(place, rows)
    with control_group() as group:
        if group is None:
            yield holds("control group: none can be made here", "not tried")
        else:
            make_giants(place.scratch / "giants" / "class")
            (place.scratch / "giant_array").mkdir()
            numpy.lib.format.open_memmap(place.scratch / "giant_array" / "image.npy", "w+", numpy.uint8, (2, 16384, 16384, 3)).flush()
            yield from giants(place, group)
            yield from in_group(place, rows, group)
