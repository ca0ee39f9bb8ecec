# SPDX-License-Identifier: Apache-2.0
"""The process of one contender: runs it, and measures it when it is asked to.

    python3 -m contenders.child ROW NAME INPUTS ADDRESS DEVICE REPLY_FD PIDS

PIDS: other processes that work for it (a daemon), with commas. DEVICE: "host" for a rehearsal. In: commands on stdin, one JSON object a line, with
the name of a method of Trainer in "do". Out: an answer for each on the descriptor REPLY_FD; the first says that batches come. stdout and stderr are
a log.
"""
import ctypes
import importlib.metadata
import importlib.util
import itertools
import json
import os
import pathlib
import resource
import signal
import sys
import time
import traceback

from . import arrays, images  # noqa: F401 - they fill CONTENDERS
from .base import BATCH, CONTENDERS, SEQUENCE, TOKEN_BATCH, Env, be_quiet

# Distributions whose versions the results name, by the module that brings them.
DISTRIBUTIONS = {"nvidia.dali": "nvidia-dali-cuda130", "spdl.io": "spdl-io", "ffcv": "ffcv", "webdataset": "webdataset"}
PR_SET_PDEATHSIG = 1


def is_installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def version_of(module):
    try:
        return importlib.metadata.version(DISTRIBUTIONS[module])
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


class Trainer:
    """Takes the batches of a contender, and measures. Purpose: each method answers one command."""

    def __init__(self, contender, env, batches, others):
        import feeding
        import psutil
        import torch

        self.feeding, self.psutil, self.torch = feeding, psutil, torch
        self.contender, self.env, self.batches, self.others = contender, env, batches, others

    def cpu_seconds(self):
        """CPU time of this process, its workers and the others."""
        own = self.psutil.Process()
        total = 0.0
        for process in itertools.chain([own], own.children(recursive=True), map(self.psutil.Process, self.others)):
            try:
                total += sum(process.cpu_times()[:2])
            except self.psutil.NoSuchProcess:
                pass
        return total

    def takes(self):
        return self.feeding.takes(self.batches, 8 if self.contender.row == "tokens" else 1)

    def drain(self, settle, seconds):
        """Batches as fast as they come: first for `settle` seconds that do not count, then for `seconds` that do, up to whole bursts."""
        taken, burst = self.takes(), self.contender.burst
        until = time.perf_counter() + settle
        for number in itertools.count(1):
            next(taken)
            if time.perf_counter() >= until and number % burst == 0:
                break
        self.torch.cuda.synchronize()
        cpu, start, samples = self.cpu_seconds(), time.perf_counter(), 0
        for number in itertools.count(1):
            samples += next(taken)
            took = time.perf_counter() - start
            # A contender that takes longer for a burst than for everything else would eat the others' time.
            if (took >= seconds and number % burst == 0) or took > 3 * seconds + 5:
                break
        self.torch.cuda.synchronize()
        took = time.perf_counter() - start
        return {"samples": samples, "batches": number, "took": took, "cpu": self.cpu_seconds() - cpu}

    def paced(self, pace, steps):
        """The share of its speed that a loop of products keeps which takes a batch itself whenever one is due: `pace` images a second."""
        import decode_rates

        self.feeding.tflops(steps // 4, decode_rates.at_pace(self.batches, pace))
        cpu, start = self.cpu_seconds(), time.perf_counter()
        fed = self.feeding.tflops(steps, decode_rates.at_pace(self.batches, pace))
        took = time.perf_counter() - start
        cpu = self.cpu_seconds() - cpu
        return {"kept": fed[0] / self.alone(steps), "cpu_cores": cpu / took}

    def beside(self, pace, steps):
        """The same of a loop that takes no batch, while a thread takes batches on a stream of its own: `pace` a second, or, with None, as they come."""
        fed, rate = self.feeding.tflops_beside(self.takes(), pace, steps)
        return {"kept": fed / self.alone(steps), "images_per_s": rate}

    def alone(self, steps):
        """The loop's speed when it is not fed; the batches that are being made ahead are finished by then."""
        self.feeding.tflops(steps // 4, None)
        return self.feeding.tflops(steps, None)[0]

    def check_jpeg(self):
        """What of some batches can be compared with another decoder's: shape, type, place, mean, deviation; and how many images are different."""
        torch, taken = self.torch, []
        for _ in range(4):
            data, labels = next(self.batches)[:2]
            taken.append((data.clone(), labels.clone().flatten()))
        data, labels = torch.cat([data for data, _ in taken]).float(), torch.cat([labels for _, labels in taken])
        small = data[:, :, ::28, ::28].flatten(1)
        different = len(torch.unique(small, dim=0))
        one = taken[0][0]
        facts = {"shape": list(one.shape), "bytes": one.element_size(), "float": one.dtype.is_floating_point, "device": str(one.device), "labels": list(taken[0][1].shape)}
        facts.update(contiguous=one.is_contiguous(), different=different / len(small), finite=bool(torch.isfinite(data).all()))
        facts.update(mean=data.mean().item(), deviation=data.std().item(), classes=len(torch.unique(labels)), label_mean=labels.float().mean().item())
        return facts

    check_shards = check_jpeg

    def check_arrays(self):
        """Whether samples are those of the files, by their sums and labels."""
        import numpy as np

        torch, source = self.torch, arrays.Arrays(self.env.inputs / "arrays")
        if self.contender.ceiling:
            return {"same": True}
        known, seen = None, set()
        for _ in range(3):
            data, labels = next(self.batches)[:2]
            if tuple(data.shape) != arrays.SHAPE or data.dtype != torch.uint8 or str(data.device) != self.env.device:
                return {"same": False, "got": f"{tuple(data.shape)} {data.dtype} {data.device}"}
            sums = data.flatten(1).sum(1, dtype=torch.int64).cpu().numpy()
            if labels is None:  # files of one sample each, which have none
                if known is None:
                    paths = sorted((self.env.inputs / "npy").iterdir())
                    known = np.array([source.images[number].sum(dtype=np.int64) for number in range(len(paths))])
                good = bool(np.isin(sums, known).all())
            else:
                labels = labels.flatten().cpu().numpy()
                good = all(source.images[label].sum(dtype=np.int64) == found for label, found in zip(labels, sums))
            seen.update(sums.tolist())
            if not good:
                return {"same": False, "got": "sums that are not the file's"}
        return {"same": len(seen) > 2 * BATCH, "got": f"{len(seen)} different samples in 3 batches"}

    def check_tokens(self):
        torch, seen = self.torch, set()
        for _ in range(4):
            x, y = next(self.batches)[:2]
            if not (x.shape == y.shape == (TOKEN_BATCH, SEQUENCE) and x.dtype == y.dtype == torch.int64 and str(x.device) == self.env.device):
                return {"same": False, "got": f"{tuple(x.shape)} {x.dtype} {x.device}"}
            if not torch.equal(x[:, 1:], y[:, :-1]) or x.min().item() < 0 or x.max().item() >= 50257:
                return {"same": False, "got": "y is not x one token later"}
            seen.add(x.sum().item())
        return {"same": len(seen) == 4, "got": f"{len(seen)} different batches of 4"}


def main():
    row, name, inputs, address, device, reply_fd, pids = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    reply = os.fdopen(int(reply_fd), "w", buffering=1)
    host = device == "host"
    env = Env(pathlib.Path(inputs), address, host, "cpu" if host else device, len(os.sched_getaffinity(0)))
    contender = CONTENDERS[row, name]

    def say(**what):
        reply.write(json.dumps(what) + "\n")

    def fail(error):
        traceback.print_exc()
        say(error=f"{type(error).__name__}: {error}"[:400], trace=traceback.format_exc()[-3000:])

    absent = [module for module in contender.needs if not is_installed(module)]
    if absent or (host and contender.on_gpu):
        say(absent=f"{', '.join(absent)} not installed" if absent else "no GPU")
        return
    try:
        be_quiet()
        import pinfeed  # noqa: F401 - it asks the driver for all its queues, which must be before CUDA is initialised, here for every contender
        import torch

        if host:
            from . import host as stand_in

            stand_in.install()
        began = time.perf_counter()
        batches = iter(contender.make(env, **contender.options))
        next(batches)
        torch.cuda.synchronize()
        trainer = Trainer(contender, env, batches, [int(pid) for pid in pids.split(",") if pid])
        say(first_s=round(time.perf_counter() - began, 3), versions={module: version_of(module) for module in contender.needs if module in DISTRIBUTIONS})
    except BaseException as error:
        fail(error)
        os._exit(1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            say(**getattr(trainer, command.pop("do"))(**command))
        except BaseException as error:
            fail(error)
    os._exit(0)  # no contender is asked to end well


if __name__ == "__main__":
    main()
