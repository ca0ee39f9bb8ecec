# SPDX-License-Identifier: Apache-2.0
"""From measured rows to JSON, a table, a plot and docs/benchmarks.md."""
import dataclasses
import json
import os
import pathlib
import platform
import re
import subprocess

COLOURS = {"DataLoader": "#9aa5b1", "pinfeed": "#1f6feb", "ceiling": "#e3b341"}


@dataclasses.dataclass
class Row:
    """One line of the result. `budget` says in words what `met` is about."""

    work: str
    value: float
    unit: str
    dataloader: "float | None" = None
    ceiling: "float | None" = None
    budget: str = ""
    met: "bool | None" = None
    less_is_better: bool = False
    drawn: bool = True

    @property
    def vs_dataloader(self):
        """How many times better than the DataLoader."""
        if self.dataloader is None:
            return None
        return self.dataloader / self.value if self.less_is_better else self.value / self.dataloader

    @property
    def vs_ceiling(self):
        """The share of what the machine gives."""
        if self.ceiling is None:
            return None
        return self.ceiling / self.value if self.less_is_better else self.value / self.ceiling

    def as_json(self):
        names = ("work", "value", "unit", "dataloader", "ceiling", "vs_dataloader", "vs_ceiling", "budget", "met", "less_is_better", "drawn")
        values = {name: getattr(self, name) for name in names}
        return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in values.items()}


def write_json(rows, path):
    path.write_text("[\n" + ",\n".join("  " + json.dumps(row.as_json()) for row in rows) + "\n]\n")


def read_json(path):
    """Rows that write_json wrote. Tables (grid.py) are left out."""
    fields = {field.name for field in dataclasses.fields(Row)}
    return [Row(**{name: value for name, value in row.items() if name in fields}) for row in json.loads(path.read_text()) if "work" in row]


def number(value):
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def table(rows):
    """Markdown, which is also readable on a terminal."""
    cells = [["work", "pinfeed", "unit", "DataLoader", "ceiling", "vs DataLoader", "of ceiling", "budget", "met"]]
    for row in rows:
        times = "-" if row.vs_dataloader is None else f"{number(row.vs_dataloader)}x"
        share = "-" if row.vs_ceiling is None else f"{row.vs_ceiling:.0%}"
        met = "-" if row.met is None else "yes" if row.met else "**no**"
        cells.append([row.work, number(row.value), row.unit, number(row.dataloader), number(row.ceiling), times, share, row.budget or "-", met])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    text_columns = (0, 2, 7, 8)
    lines = []
    for line in cells:
        padded = [cell.ljust(width) if column in text_columns else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths))]
        lines.append("| " + " | ".join(padded) + " |")
    rule = ["-" * width if column in text_columns else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join(lines)


def others_cpu_share():
    """How much of the processors is in use now, while this process only waits."""
    import psutil

    return psutil.cpu_percent(2) / 100


def hardware(others):
    """The machine and the versions, without what would name the machine. `others`: what others_cpu_share gave before the start."""
    import numpy
    import torch
    import torchvision

    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", cpu, re.MULTILINE)
    kind = "virtual machine" if re.search(r"^flags\s*:.*\bhypervisor\b", cpu, re.MULTILINE) else "machine"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    compiler = subprocess.run(["c++", "-dumpfullversion"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    libjpeg = subprocess.run(["pkg-config", "--modversion", "libjpeg"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return [
        f"- {len(os.sched_getaffinity(0))} cores of an {model.group(1).strip() if model else platform.machine()} {kind}, {memory:.0f} GiB of memory",
        f"- Linux {'.'.join(platform.release().split('.')[:2])}, g++ {compiler}, libjpeg-turbo {libjpeg}",
        f"- Other programs used {others:.0%} of the processors when the run began" + (": too much for these figures to count" if others > 0.1 else ""),
        f"- Python {platform.python_version()}, PyTorch {torch.__version__}, torchvision {torchvision.__version__}, NumPy {numpy.__version__}",
    ]


def publish(lines, page, place="results", picture="benchmarks.png"):
    """Puts lines (machines, tables) and a picture, if there is one, between the markers of a place in a Markdown page."""
    begin, end = f"<!-- {place}: begin -->", f"<!-- {place}: end -->"
    text = page.read_text()
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    body = ["", *lines, *(["", f"![Results as a chart]({picture})"] if picture else []), ""]
    page.write_text(head + begin + "\n".join(body) + end + tail)


def plot(rows, path):
    """Rows of one unit share a panel; a bar each for the DataLoader, pinfeed and the ceiling."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [row for row in rows if row.drawn]
    panels = [[row for row in drawn if row.unit == unit] for unit in dict.fromkeys(row.unit for row in drawn)]
    heights = [0.4 + sum(0.6 + len(_bars(row)) for row in panel) for panel in panels]
    figure, all_axes = pyplot.subplots(
        len(panels), 1, figsize=(9, 0.5 + 0.22 * sum(heights) + 0.55 * len(panels)), layout="constrained", squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    for axes, panel in zip(all_axes[:, 0], panels):
        ticks, at = [], 0.0
        values = [value for row in panel for _, value in _bars(row)]
        wide = max(values) > 100 * min(values)
        for row in panel:
            bars = _bars(row)
            ticks.append((at + (len(bars) - 1) / 2, row.work.replace(" (", "\n(")))
            for name, value in bars:
                axes.barh(at, value, 0.9, color=COLOURS[name])
                axes.annotate(number(value), (value, at), (3, 0), textcoords="offset points", va="center", fontsize=8)
                at += 1
            at += 0.6
        axes.set_yticks([tick for tick, _ in ticks], [work for _, work in ticks], fontsize=8)
        axes.set_xlabel(panel[0].unit + (", less is better" if panel[0].less_is_better else "") + (", log scale" if wide else ""), fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
        if wide:
            axes.set_xscale("log")
        axes.set_xlim(min(values) / 3 if wide else 0, max(values) * (2 if wide else 1.1))
        axes.set_ylim(at - 1, -0.7)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    all_axes[0, 0].legend(handles, COLOURS, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(row):
    return [(name, value) for name, value in (("DataLoader", row.dataloader), ("pinfeed", row.value), ("ceiling", row.ceiling)) if value is not None]
