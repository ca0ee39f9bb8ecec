# SPDX-License-Identifier: Apache-2.0
"""One process with feeds on every GPU at once, whichever is PyTorch's current one: each gets what the host gets.

    every_gpu.py ADDRESS INPUTS      (run.sh calls it)

In: a daemon, and the folder that make_inputs.py filled. Out: a line for each check; the exit status is 1 when one failed.
"""
import contextlib
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pinfeed
import torch
from feeding import MEAN, STD, endless

GPUS = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
BATCHES, BATCH, SAMPLES = 24, 32, 1000
CYCLES = 20_000_000  # some 10 ms
NORMAL = [pinfeed.RandomHorizontalFlip(), pinfeed.Normalize(MEAN, STD), pinfeed.ToDtype("bfloat16")]
failed = 0


def check(what, function, *arguments):
    global failed
    try:
        print(f"ok    {what}: {function(*arguments)}", flush=True)
    except Exception as error:  # the others are made all the same
        failed += 1
        print(f"FAIL  {what}: {type(error).__name__}: {error}", flush=True)


def open_feed(dataset, device, **options):
    common = dict(batch_size=BATCH, shuffle=True, seed=3, address=address, rank=0, world_size=1, timeout=60)
    return pinfeed.open(dataset, **{**common, "device": device, **options})


def side_by_side(dataset, host, **options):
    """Feeds on all GPUs, and on the host if `host`, take turns; another GPU is the current one at each batch."""
    with contextlib.ExitStack() as stack:
        devices = GPUS + [None] * host
        of_host = {"resident": False, "decode": "cpu", "backend": "auto"}
        feeds = [stack.enter_context(open_feed(dataset, device, **(options if device else {**options, **of_host}))) for device in devices]
        for number, batches in zip(range(BATCHES), zip(*map(endless, feeds))):
            torch.cuda.set_device(number % len(GPUS))
            expected = [tensor.cpu() for tensor in batches[-1]]
            for device, batch in zip(GPUS, batches):
                for tensor, wanted in zip(batch, expected):
                    assert str(tensor.device) == device, f"{tensor.device}, not {device}"
                    assert torch.equal(tensor.cpu(), wanted), f"batch {number} of {device} is not that of {devices[-1] or 'the host'}"
    return f"{BATCHES} batches of {len(feeds)} feeds"


def late_streams(dataset, backend):
    """Each GPU's trainer works on a stream of its own that is far behind."""
    images = torch.from_numpy(np.load(dataset / "image.npy"))
    sums, streams = [], [torch.cuda.Stream(device) for device in GPUS]
    torch.cuda.set_device(0)
    with contextlib.ExitStack() as stack:
        feeds = [stack.enter_context(open_feed(dataset, device, backend=backend, slots=3)) for device in GPUS]
        for _, batches in zip(range(BATCHES), zip(*feeds)):
            batches = list(batches)
            for stream in streams:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(CYCLES)
            for stream, (image, label) in zip(streams, batches):
                stream.wait_stream(torch.cuda.current_stream(stream.device))
                with torch.cuda.stream(stream):
                    sums.append((image.long().sum((1, 2, 3)), label.clone()))
                image.record_stream(stream)
                label.record_stream(stream)
            batches.clear()
            del image, label
        for stream in streams:
            stream.synchronize()
    for there, label in sums:
        assert torch.equal(there.cpu(), images[label.cpu()].long().sum((1, 2, 3)))
    return f"{len(sums)} batches"


def threads(dataset):
    """A thread for each GPU, as one process that trains on several has them."""
    images = torch.from_numpy(np.load(dataset / "image.npy"))
    seen = {}

    def train(device):
        torch.cuda.set_device(device)
        with open_feed(dataset, "cuda", epochs=2) as feed:  # PyTorch's current GPU
            on = {str(image.device) for image, _ in feed}
            ids = torch.cat([label for image, label in feed if torch.equal(image.cpu(), images[label.cpu()])])
        seen[device] = on == {device} and sorted(ids.tolist()) == list(range(SAMPLES))

    running = [threading.Thread(target=train, args=(device,)) for device in GPUS]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert seen == dict.fromkeys(GPUS, True), seen
    return f"{len(running)} threads, two epochs"


class Numbers:
    def __len__(self):
        return BATCHES * BATCH

    def __getitem__(self, index):
        return torch.full((64, 1000), index, dtype=torch.int32), {"half": torch.full((3,), index, dtype=torch.float16), "name": str(index)}


def loaders():
    """A DataLoader for each GPU, while the other one is the current one."""
    running = [iter(pinfeed.DataLoader(Numbers(), BATCH, num_workers=1, device=device)) for device in GPUS]
    for number in range(BATCHES):
        torch.cuda.set_device(number % len(GPUS))
        wanted = torch.arange(number * BATCH, (number + 1) * BATCH, dtype=torch.int32)
        for device, batches in zip(GPUS, running):
            image, rest = next(batches)
            assert str(image.device) == str(rest["half"].device) == device
            assert torch.equal(image.cpu(), wanted[:, None, None].expand(BATCH, 64, 1000)) and rest["name"] == [str(i) for i in wanted.tolist()]
            assert torch.equal(rest["half"].cpu(), wanted.half()[:, None].expand(BATCH, 3))
    assert all(next(batches, None) is None for batches in running)
    return f"{BATCHES} batches each"


def copies():
    """to_device onto each GPU, from the host and from each other GPU, on streams that are behind."""
    count = 0
    for device, current in itertools.product(GPUS, GPUS):
        torch.cuda.set_device(current)
        stream = torch.cuda.Stream(device)
        for origin in ["cpu", *GPUS]:
            batch = {"a": [torch.arange(1 << 20).to(origin) + number for number in range(4)], "b": torch.randn(3, 5).to(origin), "c": "text"}
            for gpu in GPUS:
                torch.cuda.synchronize(gpu)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(CYCLES)
                there = pinfeed.to_device(batch, device)
                moved = [tensor + 1 for tensor in there["a"]]
            stream.synchronize()
            assert all(str(tensor.device) == device for tensor in moved) and there["c"] == "text"
            assert torch.equal(there["b"].cpu(), batch["b"].cpu())
            for number, tensor in enumerate(moved):
                assert torch.equal(tensor.cpu(), torch.arange(1 << 20) + number + 1), f"{origin} to {device}, {current} the current one"
            count += 1
    torch.cuda.set_device(0)
    return f"{count} ways"


def batchers():
    """A batcher's consumer for each GPU."""
    array = ("float32", (16,))
    for sign, device in enumerate(GPUS, 1):
        torch.cuda.set_device(GPUS[-sign])
        name = f"every_gpu{sign}"
        with pinfeed.Batcher(name, input=array, device=device, framework="torch", max_batch=4, max_delay=0.001, address=address) as batcher:

            def answer():
                with contextlib.suppress(pinfeed.UnavailableError, pinfeed.Error):
                    for batch in batcher:
                        assert str(batch.inputs.device) == device
                        batch.answer(batch.inputs[:, :1] * sign)

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            with pinfeed.BatcherClient(name, address=address) as client:
                futures = [client.submit(np.full(array[1], value, array[0])) for value in range(40)]
                assert [float(np.frombuffer(future.result(60), np.float32)[0]) for future in futures] == [value * sign for value in range(40)]
    torch.cuda.set_device(0)
    return f"{len(GPUS)} batchers"


VISIBLE = """
import sys, numpy as np, pinfeed, torch
address, data = sys.argv[1:]
images = torch.from_numpy(np.load(data + "/image.npy"))
copied = lambda: {gpu["uuid"]: int(gpu["copied_bytes"]) for gpu in pinfeed.status(address)["gpus"]}
for number in range(torch.cuda.device_count()):
    before = copied()
    with pinfeed.open(data, batch_size=100, shuffle=True, device=number, address=address, rank=0, world_size=1) as feed:
        for image, label in feed:
            assert image.device.index == number and torch.equal(image.cpu(), images[label.cpu()])
    print(*(uuid for uuid, count in copied().items() if count != before[uuid]))
"""


def visible(dataset):
    """GPUs that are renumbered, or hidden, by CUDA_VISIBLE_DEVICES."""
    every = [f"GPU-{torch.cuda.get_device_properties(device).uuid}" for device in GPUS]
    for names, wanted in (("1,0", [every[1], every[0]]), ("1", [every[1]]), (every[1], [every[1]])):
        command = [sys.executable, "-c", VISIBLE, address, str(dataset)]
        answer = subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": names}, capture_output=True, text=True, timeout=120)
        assert answer.returncode == 0, answer.stderr[-600:]
        assert answer.stdout.split() == wanted, f"{names}: {answer.stdout.split()}, not {wanted}"
    return "renumbered, hidden, by UUID"


RANK = """
import os, sys, pinfeed, torch
import torch.distributed as dist
address, data = sys.argv[1:]
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
ids = []
with pinfeed.open(data, batch_size=25, shuffle=True, device="cuda", address=address, epochs=1) as feed:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3 * 64 * 64, 2).cuda())
    for image, label in feed:
        model(image.flatten(1).float()).sum().backward()
        everywhere = [torch.empty_like(label) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, label)
        ids += torch.cat(everywhere).tolist()
assert sorted(ids) == list(range(1000)), f"{len(ids)} samples, {len(set(ids))} of them different"
dist.destroy_process_group()
print("good", flush=True)
"""


def ranks(dataset, folder):
    """torchrun, a process for each GPU: DistributedDataParallel over NCCL, the rank taken from the environment."""
    script = folder / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={len(GPUS)}", script, address, dataset]
    answer = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=200)
    assert answer.returncode == 0 and answer.stdout.count("good") == len(GPUS), (answer.stdout + answer.stderr)[-900:]
    return f"{len(GPUS)} ranks"


address, inputs = sys.argv[1], pathlib.Path(sys.argv[2])


def main():
    if len(GPUS) < 2:
        print("one GPU: nothing to compare")
        return 0
    with tempfile.TemporaryDirectory(prefix="every_gpu") as name:
        folder = pathlib.Path(name)
        data = folder / "arrays"
        data.mkdir()
        np.save(data / "image.npy", np.random.default_rng(0).integers(0, 256, (SAMPLES, 3, 64, 64), np.uint8))
        np.save(data / "label.npy", np.arange(SAMPLES))
        tokens = {"sequence_length": 512}
        crops = {"transforms": [pinfeed.RandomResizedCrop(96), pinfeed.RandomHorizontalFlip()], "sample_ids": True}
        for backend in ("vmm-fd", "cuda-ipc"):
            check(f"arrays, {backend}", lambda backend=backend: side_by_side(data, True, backend=backend))
            check(f"arrays, normalised, {backend}", lambda backend=backend: side_by_side(data, True, transforms=NORMAL, backend=backend))
            check(f"late streams, {backend}", late_streams, data, backend)
        check("tokens", lambda: side_by_side(inputs / "tokens.bin", True, **tokens))
        check("resident", lambda: side_by_side(data, True, resident=True, transforms=[pinfeed.RandomCrop(64, padding=4), *NORMAL]))
        check("images of the workers", lambda: side_by_side(inputs / "jpeg", True, **crops))
        check("images of the GPUs", lambda: side_by_side(inputs / "jpeg", False, decode="gpu", **crops))
        check("images of both", lambda: side_by_side(inputs / "jpeg", False, decode="auto:500", **crops))
        check("threads", threads, data)
        check("DataLoader", loaders)
        check("to_device", copies)
        check("Batcher", batchers)
        check("CUDA_VISIBLE_DEVICES", visible, data)
        check("torchrun", ranks, data, folder)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
