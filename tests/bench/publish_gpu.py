#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Puts what tests/device/run.sh measured on machines with GPUs into docs/benchmarks.md, as a table and a plot.

    publish_gpu.py "one NVIDIA H200, 16 cores"=results.json ["four of them, 64 cores"=results4.json ...]

Under the name of each machine: a table of its rows, then the tables that its parts made (slots, costs). What files of one name say comes under it
together: a run of some parts adds to an earlier one. The plot has what no earlier file had.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]


def pages_lines(arguments):
    """(the page's lines, the rows that are drawn) of what the command line names."""
    import grid
    import report

    machines = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not path:
            sys.exit(__doc__)
        rows, grids = machines.setdefault(name, ([], []))
        rows += report.read_json(pathlib.Path(path))
        grids += grid.read_grids(pathlib.Path(path))
    lines, drawn = [], []
    for name, (rows, grids) in machines.items():
        lines += [f"**{name}**", ""]
        if rows:
            lines += [report.table(rows), ""]
        for table in grids:
            lines += [f"{table.title}: median (least to most of the turns) = share of alone.", "", table.markdown(), ""]
        known = {row.work for row in drawn}
        drawn += [row for row in rows if row.work not in known]
    return lines[:-1], drawn


def main():
    import report

    lines, drawn = pages_lines(sys.argv[1:])
    if not drawn:
        sys.exit(__doc__)
    docs = ROOT / "docs"
    report.plot(drawn, docs / "benchmarks-gpu.png")
    report.publish(lines, docs / "benchmarks.md", "GPU results", "benchmarks-gpu.png")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
