#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures pinfeed beside PyTorch's DataLoader and beside what the machine gives, all in one run.

In: a build of the `release` preset. Out: a table, results.json (one object a row) and a plot; with --publish the table and the plot go
into docs/.
"""
import argparse
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = ("npy", "jpeg", "tokens", "next", "first", "memory", "broadcast", "cache", "loader", "batcher")
ON_REQUEST = ("cold",)  # drops the kernel's caches, and measures the disk


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release", help="a build of the release preset")
    parser.add_argument("--data-dir", type=pathlib.Path, default=ROOT / "build" / "bench" / "data", help="where the inputs are made (2 GB)")
    parser.add_argument("--out-dir", type=pathlib.Path, default=ROOT / "build" / "bench", help="where results.json and the plot go")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help="some of: " + ",".join(ROWS + ON_REQUEST))
    parser.add_argument("--quick", action="store_true", help="shorter and noisier: about a minute")
    parser.add_argument("--publish", action="store_true", help="put the results into docs/benchmarks.md")
    parser.add_argument("--profile", choices=("npy", "jpeg", "tokens"), help="only show where the daemon spends its time on this row")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(ROWS + ON_REQUEST)
    if unknown:
        parser.error(f"--rows: there is no {', '.join(sorted(unknown))}; there are {', '.join(ROWS + ON_REQUEST)}")
    if arguments.publish and (arguments.quick or arguments.rows != list(ROWS)):
        parser.error("--publish wants a whole run: without --quick and --rows")

    # Only here: the trainer processes import this file again, and need neither torch nor the rows.
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "client" / "python"))
    import inputs as bench_inputs
    import pinfeed_side
    import report
    import rows

    others = report.others_cpu_share()
    build = arguments.build_dir.resolve()
    os.environ["PINFEED_LIBRARY"] = str(build / "client" / "libpinfeed.so")
    out = arguments.out_dir
    out.mkdir(parents=True, exist_ok=True)
    inputs = bench_inputs.make_inputs(arguments.data_dir.resolve(), rows.progress)
    results = []
    with pinfeed_side.Daemon(build, arguments.data_dir.resolve()) as daemon:
        bench = rows.Bench(build, inputs, daemon, arguments.quick)
        if arguments.profile:
            rows.profile(bench, arguments.profile)
            return
        for name in arguments.rows:
            results.extend(rows.ROWS[name](bench))
    report.write_json(results, out / "results.json")
    if any(row.drawn for row in results):
        report.plot(results, ROOT / "docs" / "benchmarks.png" if arguments.publish else out / "benchmarks.png")
    machine = report.hardware(others)
    print("\n".join(machine), "", report.table(results), sep="\n")
    if arguments.publish:
        report.publish([*machine, "", report.table(results)], ROOT / "docs" / "benchmarks.md")


if __name__ == "__main__":
    main()
