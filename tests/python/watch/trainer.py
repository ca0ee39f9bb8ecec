# SPDX-License-Identifier: Apache-2.0
"""A trainer to look at.    trainer.py ADDRESS DATA NAME OPTIONS

Reads numbers from stdin, one a line: takes so many batches, and says "took" and their samples; -1: goes on until the next line or the end
of stdin, with pauses of "step_s" if OPTIONS have it. Holds the last batch it took. Leaves at the end of stdin. OPTIONS: keyword arguments of
pinfeed.open, as JSON.
"""
import json
import select
import sys

import pinfeed


def main():
    address, data, name, options = sys.argv[1:]
    options = json.loads(options)
    step_s = options.pop("step_s", 0)
    transforms = [pinfeed.RandomResizedCrop(32), pinfeed.ToDtype("float32")] if options.pop("images", False) else []
    with pinfeed.open(data, address=address, name=name, transforms=transforms, framework="numpy", **options) as feed:
        batches = (batch for _ in iter(int, 1) for batch in feed)  # epoch after epoch
        held = None
        for line in iter(sys.stdin.readline, ""):
            count, samples = int(line), 0
            if count < 0:
                while not select.select([sys.stdin], [], [], step_s)[0]:
                    held = next(batches)
            for _ in range(max(0, count)):
                held = next(batches)
                samples += len(held[0] if isinstance(held, (tuple, list)) else held)
            print("took", samples, flush=True)
        del held


if __name__ == "__main__":
    main()
