#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Puts what tests/device/run.sh measured on machines with GPUs into docs/benchmarks.md, as a table and a plot.

    publish_gpu.py "one NVIDIA H200, 16 cores"=results.json ["four of them, 64 cores"=results4.json ...]

Each file's rows get the name of their machine; rows of a later file that an earlier one has already are left out.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    import report

    rows, machine = [], []
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        if not path:
            sys.exit(__doc__)
        known = {row.work for row in rows}
        new = [row for row in report.read_json(pathlib.Path(path)) if row.work not in known]
        machine.append(f"- {len(new)} rows from {name}")
        rows += new
    if not rows:
        sys.exit(__doc__)
    docs = ROOT / "docs"
    report.plot(rows, docs / "benchmarks-gpu.png")
    report.publish(machine, rows, docs / "benchmarks.md", "GPU results", "benchmarks-gpu.png")
    print(report.table(rows))


if __name__ == "__main__":
    main()
