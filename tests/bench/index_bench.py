#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How long an image folder of a million files takes to open, beside `find` that stats each file with 16 processes.

In: a build of the release preset; root, to drop the caches of the kernel. Out: one line a figure, and the ratios. The files are empty, since
no contender reads them. All in one run: cold find, cold open, cold open with the kept lists, warm open with them.
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


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def find_seconds(folder):
    names = "\0".join(str(path) for path in folder.iterdir())
    drop_caches()
    begin = time.perf_counter()
    subprocess.run(
        ["xargs", "-0", "-P16", "-n16", "sh", "-c", 'exec find "$@" -type f -size +1k', "find"], input=names.encode(), stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - begin


def resident_kib(pid, key):
    return int(re.search(key + r":\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def open_seconds(build, folder, index, cold):
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
        feed = pinfeed.open(str(folder), address=daemon.address, batch_size=1, rank=0, world_size=1, transforms=[pinfeed.Resize(32), pinfeed.CenterCrop(32)])
        seconds = time.perf_counter() - begin
        stays, most = (resident_kib(daemon.process.pid, key) - before for key in ("VmRSS", "VmHWM"))
        feed.close()
        words = re.search(r"indexed .*", (build / "bench" / "pinfeedd.log").read_text())[0]
    return seconds, words, stays * 1024, most * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--data-dir", type=pathlib.Path, default=ROOT / "build" / "bench" / "million")
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("only root can drop the kernel's caches")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "client" / "python"))
    build = arguments.build_dir.resolve()
    os.environ["PINFEED_LIBRARY"] = str(build / "client" / "libpinfeed.so")
    folder = arguments.data_dir.resolve() / "set"
    make_files(folder.parent, arguments.folders, arguments.files)
    with tempfile.TemporaryDirectory(prefix="pinfeed-index-", dir=folder.parent) as index:
        contenders = {
            "find and stat, 16 processes, cold": lambda: find_seconds(folder),
            "open, cold, nothing kept": lambda: open_seconds(build, folder, "off", True),
            "open, cold, lists kept": lambda: open_seconds(build, folder, index, True),
            "open, warm, lists kept": lambda: open_seconds(build, folder, index, False),
        }
        open_seconds(build, folder, index, False)  # makes the lists
        kept = sum(file.stat().st_size for file in pathlib.Path(index).iterdir())
        results = {name: [] for name in contenders}
        for _ in range(arguments.rounds):
            for name, contender in contenders.items():
                results[name].append(contender())
    find = statistics.median(results.pop("find and stat, 16 processes, cold"))
    print(f"{'find and stat, 16 processes, cold':36} {find:6.2f} s")
    names = sum(len(file.name) for below in folder.iterdir() for file in below.iterdir()) / arguments.files
    for name, rounds in results.items():
        seconds = statistics.median(each[0] for each in rounds)
        stays, most = (statistics.median(each[i] for each in rounds) / arguments.files for i in (2, 3))
        print(f"{name:36} {seconds:6.2f} s  {seconds / find:5.2f} of find  {stays:.0f} bytes a file stay, {most:.0f} at most; {rounds[-1][1]}")
    print(f"the kept lists: {kept / arguments.files:.1f} bytes a file; names: {names:.1f}")


if __name__ == "__main__":
    main()
