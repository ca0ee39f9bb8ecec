#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How long a dataset of many files takes to open: an image folder, beside `find` that stats each file with 16 processes; or tar shards, beside
`tar -t` with 16 processes.

In: a build of the release preset; root, to drop the caches of the kernel. Out: one line a figure, and the ratios. The images are not images,
since no contender reads them. All in one run: the peer, cold; open, cold; open with the kept index, cold and warm.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import tar_shards

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make_files(folder, folders, files):
    """Makes folders/files empty images, unless they are there."""
    done = folder / f"made-{folders}-{files}"
    if done.exists():
        return
    for number in range(folders):
        below = folder / "set" / f"n{number:08d}"
        below.mkdir(parents=True, exist_ok=True)
        for file in range(files // folders):
            os.close(os.open(below / f"n{number:08d}_{file * 7919 % 100000:05d}.JPEG", os.O_CREAT | os.O_WRONLY, 0o644))
    os.sync()
    done.touch()
    time.sleep(3)  # directories that changed within the last 2 s are not kept


def make_shards(folder, shards, files):
    """Makes shards of samples with an image's 10 KB and a label, unless they are there."""
    done = folder / f"made-{shards}-{files}"
    if done.exists():
        return
    (folder / "set").mkdir(parents=True, exist_ok=True)
    image = os.urandom(10_000)
    for shard in range(shards):
        numbers = range(files // shards // 2)
        members = [(f"{shard:05}{number:06}.{extension}", data) for number in numbers for extension, data in (("jpg", image), ("cls", b"7"))]
        tar_shards.write_shard(folder / "set" / f"{shard:05}.tar", members)
    os.sync()
    done.touch()


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def peer_seconds(folder, command):
    """`command` gets some entries of the folder at a time, in 16 processes."""
    names = "\0".join(str(path) for path in folder.iterdir())
    drop_caches()
    begin = time.perf_counter()
    subprocess.run(["xargs", "-0", "-P16", *command], input=names.encode(), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def resident_kib(pid, key):
    return int(re.search(key + r":\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def open_seconds(build, folder, index, cold, transforms):
    """Opens it in a daemon of its own. Returns seconds, the daemon's words, bytes that stay resident, and bytes at the most."""
    import pinfeed
    import pinfeed_side

    (build / "bench").mkdir(exist_ok=True)
    settings = {"index-dir": index, "log-level": "info", "pool-bytes": "64MiB"}
    with pinfeed_side.Daemon(build, folder.parent, **settings) as daemon:
        before = resident_kib(daemon.process.pid, "VmRSS")
        if cold:
            drop_caches()
        begin = time.perf_counter()
        feed = pinfeed.open(str(folder), address=daemon.address, batch_size=1, rank=0, world_size=1, transforms=transforms)
        seconds = time.perf_counter() - begin
        stays, most = (resident_kib(daemon.process.pid, key) - before for key in ("VmRSS", "VmHWM"))
        feed.close()
        words = re.search(r"indexed .*", daemon.log_path.read_text())[0]
    return seconds, words, stays * 1024, most * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--data-dir", type=pathlib.Path, default=ROOT / "build" / "bench" / "million")
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--shards", type=int, default=0, help="so many tar shards that have the files, two for each sample, instead of folders")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("only root can drop the kernel's caches")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "client" / "python"))
    import pinfeed

    build = arguments.build_dir.resolve()
    os.environ["PINFEED_LIBRARY"] = str(build / "client" / "libpinfeed.so")
    folder = arguments.data_dir.resolve() / ("shards" if arguments.shards else "folders") / "set"
    if arguments.shards:
        make_shards(folder.parent, arguments.shards, arguments.files)
        if max(shard.stat().st_ctime for shard in folder.iterdir()) > time.time() - 3600:
            raise SystemExit("the shards are there; their index is kept once they are an hour old: run this again then")
        peer, command = "tar -t", ["-n1", "tar", "-tf"]
    else:
        make_files(folder.parent, arguments.folders, arguments.files)
        peer, command = "find and stat", ["-n16", "sh", "-c", 'exec find "$@" -type f -size +1k', "find"]
    transforms = [pinfeed.Resize(32), pinfeed.CenterCrop(32)]
    with tempfile.TemporaryDirectory(prefix="pinfeed-index-", dir=folder.parent) as index:
        contenders = {
            f"{peer}, 16 processes, cold": lambda: peer_seconds(folder, command),
            "open, cold, nothing kept": lambda: open_seconds(build, folder, "off", True, transforms),
            "open, cold, index kept": lambda: open_seconds(build, folder, index, True, transforms),
            "open, warm, nothing kept": lambda: open_seconds(build, folder, "off", False, transforms),
            "open, warm, index kept": lambda: open_seconds(build, folder, index, False, transforms),
        }
        open_seconds(build, folder, index, False, transforms)  # makes the index
        kept = sum(file.stat().st_size for file in pathlib.Path(index).iterdir())
        results = {name: [] for name in contenders}
        for _ in range(arguments.rounds):
            for name, contender in contenders.items():
                results[name].append(contender())
    name = next(iter(contenders))
    reference = statistics.median(results.pop(name))
    print(f"{name:36} {reference:6.2f} s")
    for name, rounds in results.items():
        seconds = statistics.median(each[0] for each in rounds)
        stays, most = (statistics.median(each[i] for each in rounds) / arguments.files for i in (2, 3))
        print(f"{name:36} {seconds:6.2f} s  {seconds / reference:5.2f} of {peer}  {stays:.0f} bytes a file stay, {most:.0f} at most; {rounds[-1][1]}")
    print(f"the kept index: {kept / arguments.files:.1f} bytes a file")


if __name__ == "__main__":
    main()
