# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` with a GPU: right bytes whatever the streams do, and nothing that stays behind.

  loader.py

What comes in: the build, by PINFEED_DAEMON and PINFEED_LIBRARY. What goes out: a line for each promise; exit status 1 when one is broken.
"""
import gc
import io
import os
import sys
import warnings

import torch
from PIL import Image

import pinfeed

DEVICE = torch.device(os.environ.get("DEVICE", "cuda:0"))
CYCLES = 200_000_000  # some 0.1 s
BATCH, SIDE = 16, 256
broken = 0


class Squares:
    """Sample i: an image of which every element is a function of i, and what cannot be on a GPU."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.arange(SIDE * SIDE, dtype=torch.int32).reshape(SIDE, SIDE) + index
        return {"image": image, "half": torch.full((3,), index, dtype=torch.bfloat16), "name": f"sample {index}", "label": index}


class UsesCuda(Squares):
    """Sample BATCH of it has been on the GPU."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return {**sample, "image": sample["image"].to(DEVICE).cpu()} if index == BATCH else sample


def expected(number):
    ids = torch.arange(number * BATCH, (number + 1) * BATCH, dtype=torch.int32, device=DEVICE)
    return torch.arange(SIDE * SIDE, dtype=torch.int32, device=DEVICE).reshape(1, SIDE, SIDE) + ids.reshape(-1, 1, 1)


def check(what, right):
    global broken
    broken += not right
    print(f"{'ok' if right else 'BROKEN'}  {what}", flush=True)


def same(batch, number):
    ids = list(range(number * BATCH, (number + 1) * BATCH))
    return (
        batch["image"].device == DEVICE
        and torch.equal(batch["image"], expected(number))
        and batch["half"].dtype == torch.bfloat16
        and batch["half"][:, 0].tolist() == torch.tensor(ids, dtype=torch.bfloat16).tolist()
        and batch["name"] == [f"sample {index}" for index in ids]
        and batch["label"].tolist() == ids
    )


def loader(batches, **arguments):
    return pinfeed.DataLoader(Squares(batches * BATCH), BATCH, num_workers=3, device=DEVICE, **arguments)


def page_locked():
    """Whether the GPU reads the workers' memory itself: asks the driver about the slot of a batch."""
    iterator = iter(loader(4))
    next(iterator)
    iterator._copies.close()
    seen = []
    read = iterator._copies.read
    iterator._copies.read = lambda memory, images: (seen.append(memory.is_pinned()), read(memory, images))[1]
    next(iterator)
    return seen == [True]


def after_cuda_was_initialised(method):
    """What the first three batches of workers are that start after a kernel of this process has run, and what they raise."""
    assert int(torch.ones(1, device=DEVICE)) == 1
    arguments = {"num_workers": 2, "multiprocessing_context": method}
    iterator, results = iter(pinfeed.DataLoader(UsesCuda(3 * BATCH), BATCH, device=DEVICE, **arguments)), []
    for number in range(3):
        try:
            results.append(same(next(iterator), number))
        except RuntimeError as error:
            results.append("Cannot re-initialize CUDA in forked subprocess" in str(error))
            results.append("raised")
    return results


class Photos:
    """Images for the daemon to decode, and their numbers."""

    def __init__(self):
        self.files = []
        for number in range(BATCH):
            buffer = io.BytesIO()
            Image.effect_noise((300 + number, 200), 40).convert("RGB").save(buffer, "JPEG")
            self.files.append(buffer.getvalue())

    def __len__(self):
        return 20 * BATCH

    def __getitem__(self, index):
        return pinfeed.EncodedImage(self.files[index % BATCH]), index


def photos(dataset, device):
    torch.manual_seed(2)
    transforms = [pinfeed.RandomResizedCrop(SIDE), pinfeed.ToDtype("bfloat16", scale=True)]
    return iter(pinfeed.DataLoader(dataset, BATCH, num_workers=3, device=device, transforms=transforms))


def images_are_those_of_the_host():
    """Whether images that the daemon decodes reach the GPU, although the stream of copies is late and batches are dropped."""
    dataset = Photos()
    iterator, right = photos(dataset, DEVICE), True
    for number, (images, labels) in enumerate(photos(dataset, None)):
        if number % 6 == 0:
            with torch.cuda.stream(iterator._copies._stream):
                torch.cuda._sleep(CYCLES)
        there, numbers = next(iterator)
        right &= there.device == DEVICE and there.dtype == torch.bfloat16 and torch.equal(there.cpu(), images) and torch.equal(numbers.cpu(), labels)
    return right and next(iterator, None) is None


def gpus_that_are_not_there():
    """Whether the errors name the call, the GPU and how many there are."""
    texts = []
    for call in (lambda: iter(pinfeed.DataLoader(Squares(BATCH), BATCH, num_workers=1, device=99)), lambda: pinfeed.to_device(torch.ones(3), "cuda:99")):
        try:
            call()
        except pinfeed.InvalidArgumentError as error:
            texts.append(str(error))
    begins = ('DataLoader: device="cuda:99": there is no GPU 99; this process sees ', "to_device: device='cuda:99': there is no GPU 99; this process sees ")
    return len(texts) == 2 and all(text.startswith(begin) for text, begin in zip(texts, begins))


def main():
    torch.cuda.set_device(DEVICE)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    check("workers forked after CUDA was initialised, a sample that uses it", after_cuda_was_initialised("fork") == [True, True, "raised", True])
    check("the same with workers that are spawned", after_cuda_was_initialised("spawn") == [True] * 3)
    check("GPUs that are not there are refused", gpus_that_are_not_there())
    check("batches on the GPU, in order", [same(batch, number) for number, batch in enumerate(loader(40))] == [True] * 40)
    check("without workers too", [same(batch, n) for n, batch in enumerate(pinfeed.DataLoader(Squares(4 * BATCH), BATCH, device=DEVICE.index))] == [True] * 4)
    check("the slots are page-locked", page_locked())
    check("images that the daemon decodes", images_are_those_of_the_host())

    # The copies wait behind a busy stream: no slot may be filled again before they have read it.
    iterator, right = iter(loader(60)), True
    kept = []
    for number in range(60):
        if number % 6 == 0:
            with torch.cuda.stream(iterator._copies._stream):
                torch.cuda._sleep(CYCLES)
        kept.append(next(iterator))
        if len(kept) > 8:
            right &= same(kept.pop(0), number - 8)
    right &= all(same(batch, 60 - len(kept) + n) for n, batch in enumerate(kept))
    check("a delayed stream of copies", right and next(iterator, None) is None)
    kept.clear()

    # The trainer's stream is late, and tensors are dropped before it has used them.
    late, sums = torch.cuda.Stream(), []
    with torch.cuda.stream(late):
        for batch in loader(40):
            torch.cuda._sleep(CYCLES // 10)
            sums.append(batch["image"].sum())
            del batch
    late.synchronize()
    check("tensors that are dropped before a late stream has used them", [int(s) == int(expected(n).sum()) for n, s in enumerate(sums)] == [True] * 40)

    # Page-locked batches in the host's memory: copies that are still waiting read what the loader gave, not what comes after it.
    moved, late, right = [], torch.cuda.Stream(), True
    with torch.cuda.stream(late):
        for number, batch in enumerate(pinfeed.DataLoader(Squares(60 * BATCH), BATCH, num_workers=3, pin_memory=True)):
            right &= batch["image"].is_pinned() and batch["half"].is_pinned()
            if number % 6 == 0:
                torch.cuda._sleep(CYCLES)
            moved.append(batch["image"].to(DEVICE, non_blocking=True))
            del batch
    late.synchronize()
    check("page-locked batches that are dropped before they are copied", right and [torch.equal(m, expected(n)) for n, m in enumerate(moved)] == [True] * 60)

    del sums, moved
    for _ in range(3):
        next(iter(loader(10)))
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    check("nothing on the GPU stays behind", torch.cuda.memory_allocated() < 1 << 20)
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
