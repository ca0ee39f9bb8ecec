#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Puts what tests/device/run.sh measured on machines with GPUs into docs/benchmarks.md, as a table and a plot.

    publish_gpu.py "one NVIDIA H200, 16 cores"=results.json ["four of them, 64 cores"=results4.json ...]

A table for each file, under the name of its machine. The plot has what no earlier file had.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    import report

    lines, drawn = [], []
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        if not path:
            sys.exit(__doc__)
        rows = report.read_json(pathlib.Path(path))
        lines += [f"**{name}**", "", report.table(rows), ""]
        known = {row.work for row in drawn}
        drawn += [row for row in rows if row.work not in known]
    if not drawn:
        sys.exit(__doc__)
    docs = ROOT / "docs"
    report.plot(drawn, docs / "benchmarks-gpu.png")
    report.publish(lines[:-1], docs / "benchmarks.md", "GPU results", "benchmarks-gpu.png")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
