# SPDX-License-Identifier: Apache-2.0
"""Runs every fuzz target of a build for a while, from the seeds in corpus/ and what earlier runs found. Fails on the first crash."""
import argparse
import os
import pathlib
import subprocess
import sys

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="a build directory made with the fuzz preset")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--only", default="", help="targets whose name holds this word")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    targets = sorted(path for path in (build / "fuzz").glob("*_fuzz") if arguments.only in path.name)
    if not targets:
        print(f"no fuzz target in {build}/fuzz", file=sys.stderr)
        return 1
    for target in targets:
        name = target.name.removesuffix("_fuzz")
        found = build / "fuzz-corpus" / name
        found.mkdir(parents=True, exist_ok=True)
        print(f"== {name}", flush=True)
        command = [str(target), f"-max_total_time={arguments.seconds}", "-timeout=10", "-rss_limit_mb=4096", "-print_final_stats=1",
                   f"-fork={os.cpu_count()}", "-ignore_crashes=0", f"-artifact_prefix={build}/fuzz/{name}-", str(found), str(CORPUS / name)]
        words = CORPUS.parent / f"{name}.dict"
        if words.exists():
            command.insert(1, f"-dict={words}")
        if subprocess.run(command, check=False, cwd=build).returncode != 0:
            print(f"fuzz: {name} failed; its input is {build}/fuzz/{name}-*", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
