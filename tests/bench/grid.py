# SPDX-License-Identifier: Apache-2.0
"""Tables of figures that were measured by turns: medians, with the least and the most. In: figures, or a results.json. Out: JSON, Markdown."""
import dataclasses
import json
import statistics

from report import number


@dataclasses.dataclass
class Cell:
    """One figure. `share`: of what was measured beside it in the same turn, a median, too. `added`: it is a difference."""

    median: float
    low: float
    high: float
    unit: str
    share: "float | None" = None
    added: bool = False

    def __str__(self):
        low, middle, high = (("+" if self.added and value > 0 else "") + number(value) for value in (self.low, self.median, self.high))
        share = "" if self.share is None else f" = {self.share:.1%}"
        return f"{middle} ({low} to {high}) {self.unit}{share}"


def cell(values, unit, of=None, added=False):
    """Of one figure a turn. `of`: what each is a share of."""
    share = None if of is None else statistics.median(value / whole for value, whole in zip(values, of, strict=True))
    return Cell(statistics.median(values), min(values), max(values), unit, share, added)


@dataclasses.dataclass
class Grid:
    """A table. `head`: the name of the first column, which has what a line is about, and of the others; a cell may be None."""

    title: str
    head: "list[str]"
    lines: "list[tuple[str, list[Cell | None]]]" = dataclasses.field(default_factory=list)

    def as_json(self):
        lines = [{"of": name, "cells": [one and dataclasses.asdict(one) for one in cells]} for name, cells in self.lines]
        return {"table": self.title, "head": self.head, "lines": lines}

    def markdown(self):
        rows = [self.head, ["---"] * len(self.head)]
        rows += [[name, *("-" if one is None else str(one) for one in cells)] for name, cells in self.lines]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def read_grids(path):
    """The tables that report.write_json wrote among the rows."""
    found = []
    for entry in json.loads(path.read_text()):
        if "table" in entry:
            lines = [(line["of"], [one and Cell(**one) for one in line["cells"]]) for line in entry["lines"]]
            found.append(Grid(entry["table"], entry["head"], lines))
    return found
