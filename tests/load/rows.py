# SPDX-License-Identifier: Apache-2.0
"""What was measured, as rows of a table: a figure, its limit, whether it held."""

import dataclasses

SPEEDS = ("ms", "%", "calls/s", "a minute", "")  # units of what depends on what else the machine has to do


@dataclasses.dataclass
class Row:
    what: str
    figure: str
    limit: str
    ok: bool
    is_speed: bool = False


def at_most(what, figure, limit, unit, digits=0):
    return Row(what, f"{figure:,.{digits}f} {unit}", f"<= {limit:,g} {unit}", figure <= limit, unit in SPEEDS)


def at_least(what, figure, limit, unit, digits=0):
    return Row(what, f"{figure:,.{digits}f} {unit}", f">= {limit:,g} {unit}", figure >= limit, unit in SPEEDS)


def holds(what, figure, ok=True):
    return Row(what, figure, "", bool(ok))


def print_table(rows):
    cells = [("what", "figure", "limit", "")] + [(row.what, row.figure, row.limit, "ok" if row.ok else "FAILED") for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
