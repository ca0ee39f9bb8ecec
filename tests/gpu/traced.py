# SPDX-License-Identifier: Apache-2.0
"""Traces a training loop on a GPU and says how much of the copies goes on under the trainer's steps.

    traced.py ADDRESS INPUTS OUT      (run.sh calls it; writes OUT/trace-lent.json, OUT/trace-owned.json for ui.perfetto.dev)
"""
import collections
import json
import pathlib
import subprocess
import sys
import threading

from feeding import HERE, STEPS, endless, open_feed, tflops


def overlap(span, others):
    """How much of the span the others cover; they do not overlap each other."""
    begin, end = span
    return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in others)


def main():
    address, inputs, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    for name, options in (("lent", {"zero_copy": True}), ("owned", {})):
        path = out / f"trace-{name}.json"
        with open_feed(address, inputs, "arrays", **options) as feed:
            loop = threading.Thread(target=tflops, args=(STEPS, endless(feed)))
            loop.start()
            # Some steps later, so that the loop runs as it will.
            threading.Event().wait(1)
            subprocess.run([HERE / "bin" / "pinfeed", "--address", address, "trace", "--seconds", "1", "-o", path], check=True)
            loop.join()
        spans = collections.defaultdict(list)
        for event in json.loads(path.read_text())["traceEvents"]:
            if event["ph"] == "X":
                spans[event["cat"], event["pid"]].append((event["ts"], event["ts"] + event["dur"]))
        steps = next(spans[key] for key in spans if key[0] == "step")
        copies = next(spans[key] for key in spans if key == ("copy", 1))  # on the copy engine's row
        inside = [span for span in copies if span[0] >= steps[0][0] and span[1] <= steps[-1][1]]
        copied = sum(end - begin for begin, end in inside)
        hidden = sum(overlap(span, steps) for span in inside)
        waited = sum(end - begin for key in spans if key[0] == "wait" for begin, end in spans[key])
        print(f"{name}: {len(steps)} steps, {len(inside)} copies of {copied / len(inside) / 1e3:.3f} ms, {hidden / copied:.1%} of them under a step; waits {waited / 1e3:.1f} ms")


main()
