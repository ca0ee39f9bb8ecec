# SPDX-License-Identifier: Apache-2.0
"""Where the time of next() goes on a GPU, for a batch that is ready, beside the least that PyTorch does for one.

  latency.py ADDRESS INPUTS      (run.sh calls it)

What comes in: a daemon, the inputs of make_inputs.py, and in before/ the package of an earlier version, if pack.sh was told to pack one. What goes out:
tables of percentiles in microseconds; with before/, those of both versions by turns.
"""
import importlib.util
import pathlib
import sys

import next_steps
import pinfeed
import torch
from feeding import DEVICE, HERE, open_feed
from pinfeed._feed import device

PAUSE_US = 2000
COUNT = 400


def earlier_version():
    folder = HERE / "before" / "pinfeed"
    if not folder.exists():
        return None
    spec = importlib.util.spec_from_file_location("pinfeed_before", folder / "__init__.py", submodule_search_locations=[str(folder)])
    module = importlib.util.module_from_spec(spec)
    sys.modules["pinfeed_before"] = module
    spec.loader.exec_module(module)
    return module


def timed(function):
    def way():
        begin = next_steps.clock()
        made = function()
        ready = next_steps.clock()
        del made
        return ready - begin, next_steps.clock() - begin

    return way


def ways_of_torch(batch):
    """The least that PyTorch itself does for such a batch: its tensors made, one kernel launched; and its tensors made as the client makes them."""
    shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in batch]
    quick = device.torch_memory(0).empty
    return {
        "torch.empty for each, a kernel": timed(lambda: [torch.empty(shape, dtype=dtype, device=DEVICE) for shape, dtype in shapes][0].zero_()),
        "torch.empty for each": timed(lambda: [torch.empty(shape, dtype=dtype, device=DEVICE) for shape, dtype in shapes]),
        "the client's memory for each": timed(lambda: [quick(shape, dtype) for shape, dtype in shapes]),
    }


def main():
    address, inputs = sys.argv[1], pathlib.Path(sys.argv[2])
    before = earlier_version()
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, memory by {device.torch_memory(0).empty.__name__}()")
    for kind in ("arrays", "tokens"):
        for zero_copy in (None, True):
            options = {"zero_copy": True} if zero_copy else {}
            try:
                feeds = [open_feed(address, inputs, kind, **options) for _ in range(2)]
                made = ways_of_torch(next(iter(feeds[1])))  # a feed has one iterator at a time
                steps = next_steps.Steps(*feeds)
            except pinfeed.InvalidArgumentError as error:  # tokens are widened by the kernel
                print(f"{kind}, zero_copy={zero_copy}: {error}")
                continue
            ways = {**made, **steps.ways}
            for pause, count in ((PAUSE_US, COUNT), (0, 10 * COUNT)):
                print(f"\n{kind}, zero_copy={zero_copy}, {pause} us between calls")
                print("\n".join(next_steps.table(next_steps.measure(ways, count, pause, torch.cuda.synchronize))), flush=True)
            for feed in feeds:
                feed.close()
    if before is not None:
        compare(address, inputs, before)


def compare(address, inputs, before):
    """Both versions by turns."""
    this = sys.modules["pinfeed"]
    for kind in ("arrays", "tokens"):
        for options in ({}, {"zero_copy": True}) if kind == "arrays" else ({},):
            ways = {}
            for name, package in (("before", before), ("this version", this)):
                sys.modules["feeding"].pinfeed = package
                ways[name] = next_steps.Steps(*(open_feed(address, inputs, kind, **options) for _ in range(2))).ways["next() of the feed"]
            sys.modules["feeding"].pinfeed = this
            for pause, count in ((PAUSE_US, 2 * COUNT), (0, 10 * COUNT)):
                print(f"\n{kind}, {options}, {pause} us between calls, by turns")
                print("\n".join(next_steps.table(next_steps.measure(ways, count, pause, torch.cuda.synchronize))), flush=True)


if __name__ == "__main__":
    main()
