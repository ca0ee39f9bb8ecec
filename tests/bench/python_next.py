#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a batch that is ready: the time of next(), with two tensors, over a private daemon.

usage: python_next.py [--framework torch|numpy] [--batches 5000] [--pause 0,1000] [--against FOLDER]

Prints percentiles in microseconds: of next(), and of its steps, each with all those before it, which take turns. `--pause`: microseconds before each
call; a trainer's step pushes the code out of the caches, and then it takes several times as long. `--against`: takes turns with the package
`pinfeed` of another version in that folder, in the same process, and prints next() of both. PINFEED_DAEMON and PINFEED_LIBRARY choose the build, as
always; by default it is build/release.
"""

import argparse
import importlib.util
import pathlib
import sys
import tempfile

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))
import next_steps  # noqa: E402
import pinfeed  # noqa: E402


def import_other(folder):
    """Imports another version of the package beside this one."""
    spec = importlib.util.spec_from_file_location("pinfeed_other", f"{folder}/pinfeed/__init__.py", submodule_search_locations=[f"{folder}/pinfeed"])
    module = importlib.util.module_from_spec(spec)
    sys.modules["pinfeed_other"] = module
    spec.loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="auto")
    parser.add_argument("--batches", type=int, default=5000)
    parser.add_argument("--pause", default="0,1000")
    parser.add_argument("--against")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numpy.save(f"{folder}/image.npy", numpy.zeros((4096, 16384), "u1"))
        numpy.save(f"{folder}/label.npy", numpy.zeros(4096, "i8"))

        def feed(package, address=None):
            return package.open(folder, batch_size=8, framework=arguments.framework, slots=64, drop_last=True, address=address)

        first = feed(pinfeed)
        ways = next_steps.Steps(first, feed(pinfeed, first.address)).ways
        if arguments.against:
            package = import_other(arguments.against)
            other = next_steps.Steps(*(feed(package, first.address) for _ in range(2))).ways
            ways = {"that version": other["next() of the feed"], "this version": ways["next() of the feed"]}
        for pause in map(int, arguments.pause.split(",")):
            print(f"{pause} us between calls")
            print("\n".join(next_steps.table(next_steps.measure(ways, arguments.batches if pause == 0 else arguments.batches // 5, pause))))


if __name__ == "__main__":
    main()
