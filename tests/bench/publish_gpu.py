#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Puts what tests/gpu/run.sh measured on machines with GPUs into docs/benchmarks.md, as a table and a plot.

    publish_gpu.py "one NVIDIA H200, 16 cores"=results.json ["four of them, 64 cores"=results4.json ...]

Under the name of each machine: a table of its rows, and, in a place of their own, the tables that parts made (slots, costs). A peers.json goes into
its own place, with a plot of its own; one at a time. What the files do not have stays in the page as it is, so a run of some parts alone can be
published. The plot has what no earlier file had.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    import grid
    import peers_report
    import report

    docs = ROOT / "docs"
    lines, tables, drawn, peers = [], [], [], []
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        if not path:
            sys.exit(__doc__)
        contenders, versions = peers_report.read(pathlib.Path(path))
        if contenders:
            peers = [f"**{name}**", "", *peers_report.markdown(contenders, versions)]
            peers_report.plot(contenders, docs / "benchmarks-peers.png")
            continue
        rows, grids = report.read_json(pathlib.Path(path)), grid.read_grids(pathlib.Path(path))
        if rows:
            lines += [f"**{name}**", "", report.table(rows), ""]
        for table in grids:
            tables += [f"**{name}**: {table.title}", "", table.markdown(), ""]
        known = {row.work for row in drawn}
        drawn += [row for row in rows if row.work not in known]
    if not lines and not tables and not peers:
        sys.exit(__doc__)
    if lines:
        report.plot(drawn, docs / "benchmarks-gpu.png")
        report.publish(lines[:-1], docs / "benchmarks.md", "GPU results", "benchmarks-gpu.png")
    if tables:
        report.publish(tables[:-1], docs / "benchmarks.md", "GPU tables", None)
    if peers:
        report.publish(peers, docs / "benchmarks.md", "Peer results", "benchmarks-peers.png")
    print("\n".join(lines + tables + peers))


if __name__ == "__main__":
    main()
