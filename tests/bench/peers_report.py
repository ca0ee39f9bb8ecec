# SPDX-License-Identifier: Apache-2.0
"""What peers.py (tests/gpu) measured of each loader: figures, tables, a plot, and the budgets. In: turns, or a peers.json. Out: JSON, Markdown, a picture."""
import dataclasses
import json
import statistics

import report
from report import number

ROWS = {
    "jpeg": ("JPEG 500x375 to RandomResizedCrop 224, flip, normalise, 16 bits on the GPU, batch 256", "images/s"),
    "shards": ("the same images in tar shards, in the same way", "images/s"),
    "arrays": ("arrays, uint8 3x224x224, to the GPU, batch 256", "GB/s"),
    "tokens": ("tokens, 8 x 2,048 to int64 on the GPU", "batches/s"),
}
GPU, CPU, AUTO = (f"pinfeed, decode={where}" for where in ("gpu", "cpu", "auto"))
PACE = 3200  # images a second
FREE = "as they come"
COLOURS = {"pinfeed": report.COLOURS["pinfeed"], "": report.COLOURS["ceiling"]}


@dataclasses.dataclass
class Result:
    """One contender. `turns`: its rate and its CPU seconds for 1,000 images (batches of tokens) in each. `absent`: why it did not run. `failed`: how it
    failed. `paced`, `beside`: what a trainer kept of its speed, by the images/s asked for; `beside` with the images/s that came.
    """

    row: str
    contender: str
    peer: str
    turns: "list[list[float]]" = dataclasses.field(default_factory=list)
    absent: str = ""
    failed: str = ""
    check: str = ""
    versions: "dict[str, str]" = dataclasses.field(default_factory=dict)
    paced: "dict[str, list[float]]" = dataclasses.field(default_factory=dict)
    beside: "dict[str, list[list[float]]]" = dataclasses.field(default_factory=dict)

    @property
    def rate(self):
        return statistics.median(rate for rate, _ in self.turns) if self.turns else None

    @property
    def cpu(self):
        return statistics.median(cpu for _, cpu in self.turns) if self.turns else None

    def kept_at_pace(self):
        kept = self.paced.get(str(PACE))
        return statistics.median(kept) if kept else None

    def drained(self, pace=FREE):
        """(share kept, images/s), medians; (None, None) when that was not measured."""
        found = self.beside.get(str(pace))
        return tuple(statistics.median(values) for values in zip(*found)) if found else (None, None)

    def as_json(self):
        return dataclasses.asdict(self)


def read(path):
    """(results, versions) of a peers.json; ([], {}) of another file."""
    entries = json.loads(path.read_text())
    fields = {field.name for field in dataclasses.fields(Result)}
    versions = {}
    for entry in entries:
        versions.update(entry.get("machine", {}))
    return [Result(**{name: entry[name] for name in fields}) for entry in entries if "contender" in entry], versions


@dataclasses.dataclass
class Machine:
    """What it was measured on, and with."""

    facts: "dict[str, str]"

    def as_json(self):
        return {"machine": self.facts}


def best(results, row, peer=None):
    """The fastest that are not pinfeed's, or of one peer; None where nothing ran."""
    ran = [one for one in results if one.row == row and one.turns and (one.peer == peer if peer else one.peer not in ("", "pinfeed"))]
    return max(ran, key=lambda one: one.rate, default=None)


def of(results, contender, row="jpeg"):
    """That contender's result if it ran, else None."""
    return next((one for one in results if (one.row, one.contender) == (row, contender) and one.turns), None)


def budgets(results):
    """Rows of a report: what was promised beside the peers, and whether it is so. What was not measured is left out."""
    rows = []

    def add(work, value, unit, budget, met, less=False):
        rows.append(report.Row(work, value, unit, budget=budget, met=met, less_is_better=less, drawn=False))

    gpu, cpu, auto, dali = of(results, GPU), of(results, CPU), of(results, AUTO), best(results, "jpeg", "DALI")
    if gpu and dali:
        add("JPEG, decode=gpu, beside DALI's best", gpu.rate / dali.rate, "times", ">= 1.3", gpu.rate >= 1.3 * dali.rate)
    if gpu:
        add("CPU time for 1,000 images, decode=gpu", gpu.cpu, "s", "<= 0.15", gpu.cpu <= 0.15, less=True)
    if gpu and cpu and auto:
        least = 0.9 * (gpu.rate + 14 / 16 * cpu.rate)
        add("JPEG, decode=auto", auto.rate, "images/s", f">= {number(least)}: 0.9 (gpu + 14/16 cpu)", auto.rate >= least)
    if gpu and dali and None not in (gpu.kept_at_pace(), dali.kept_at_pace()):
        kept, theirs = gpu.kept_at_pace(), dali.kept_at_pace()
        add(f"the trainer keeps at {PACE:,} images/s, decode=gpu", 100 * kept, "%", f"> {100 * theirs:.1f}: beside DALI", kept > theirs)
    if gpu and dali and dali.drained()[0] is not None:
        theirs, rate = dali.drained()
        kept, got = gpu.drained("DALI's")
        if kept is not None:
            met = kept > theirs and got >= 0.98 * rate
            add(f"the trainer keeps at DALI's {number(rate)} images/s, decode=gpu (got {number(got)})", 100 * kept, "%", f"> {100 * theirs:.1f}", met)
        most = max((got for kept, got in map(gpu.drained, gpu.beside) if kept >= theirs), default=0.0)
        add(f"images/s that leave the trainer DALI's {100 * theirs:.1f}%, decode=gpu", most, "images/s", f"> {number(rate)}", most > rate)
    for row in ("shards", "arrays", "tokens"):
        ours, theirs = best(results, row, "pinfeed"), best(results, row)
        if ours and theirs:
            add(f"{row}, beside the best peer ({theirs.contender})", ours.rate / theirs.rate, "times", "> 1", ours.rate > theirs.rate)
    return rows


def table(results, row):
    """Markdown of a row's contenders, the fastest first; those that did not run last."""
    title, unit = ROWS[row]
    head = ["contender", unit, "least to most", "of the best peer", "CPU s for 1,000"]
    if row == "jpeg":
        head += [f"the trainer keeps at {PACE:,}/s", "it keeps, all batches taken beside it", "images/s then"]
    head.append("checked")
    top = best(results, row)
    lines = []
    for one in sorted((one for one in results if one.row == row), key=lambda one: -(one.rate or 0)):
        if not one.turns:
            lines.append([one.contender, "FAILED" if one.failed else one.absent or "not run", *[""] * (len(head) - 3), one.check])
            continue
        rates = [rate for rate, _ in one.turns]
        line = [
            one.contender, number(one.rate), f"{number(min(rates))} to {number(max(rates))}", f"{one.rate / top.rate:.2f}x" if top else "-",
            "-" if one.cpu is None or one.peer == "" else f"{one.cpu:.3f}",
        ]  # fmt: skip
        if row == "jpeg":
            kept, got = one.drained()
            line += ["-" if share is None else f"{share:.1%}" for share in (one.kept_at_pace(), kept)] + [number(got)]
        lines.append([*line, "FAILED later" if one.failed else one.check])
    rule = ["---", *["---:"] * (len(head) - 2), "---"]
    return f"**{title}**", "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def markdown(results, machine):
    """Lines: the machine, a table of each row, the budgets."""
    lines = [", ".join(f"{name} {value}" for name, value in machine.items())] if machine else []
    for row in ROWS:
        if any(one.row == row for one in results):
            lines += ["", *"\n\n".join(table(results, row)).split("\n")]
    kept = budgets(results)
    if kept:
        lines += ["", "**Budgets**", "", "| what | value | unit | budget | met |", "|---|---:|---|---|---|"]
        lines += [f"| {row.work} | {number(row.value)} | {row.unit} | {row.budget} | {'yes' if row.met else '**no**'} |" for row in kept]
    return lines


def plot(results, path):
    """A panel for each row's rates, and one for the CPU time of images."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = []
    for row, (title, unit) in ROWS.items():
        ran = sorted((one for one in results if one.row == row and one.turns), key=lambda one: -one.rate)
        if ran:
            panels.append((f"{title}: {unit}", [(one.contender, one.rate, one.peer) for one in ran]))
        if ran and row == "jpeg":
            measured = [(one.contender, one.cpu, one.peer) for one in sorted(ran, key=lambda one: one.cpu) if one.peer]
            panels.append(("the same: CPU seconds for 1,000 images, less is better", measured))
    heights = [1.5 + len(bars) for _, bars in panels]
    figure, all_axes = pyplot.subplots(
        len(panels), 1, figsize=(10, 0.26 * sum(heights) + 0.4), layout="constrained", squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axes, (title, bars) in zip(all_axes[:, 0], panels):
        for at, (_, value, peer) in enumerate(bars):
            axes.barh(at, value, 0.8, color=COLOURS.get(peer, report.COLOURS["DataLoader"]))
            axes.annotate(number(value), (value, at), (3, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=8)
        axes.set_title(title, fontsize=9, loc="right")  # long ones reach over the names
        axes.set_xlim(0, 1.12 * max(value for _, value, _ in bars))
        axes.invert_yaxis()
        axes.tick_params(axis="x", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
