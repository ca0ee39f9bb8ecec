# SPDX-License-Identifier: Apache-2.0
"""Feeds whose images the GPU decodes, batch by batch beside the same feeds of the workers.

    decode_feeds.py ADDRESS INPUTS      (run.sh calls it)

In: a daemon, and the folder that make_inputs.py filled. Out: a line for each check; the exit status is 1 when one failed.
"""
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import traceback

import pinfeed
import torch
from feeding import endless

DEVICE = os.environ.get("DEVICE", "cuda:0")
BATCH = 96
MEAN_LEVELS, NEAR_LEVELS, NEAR_SHARE = 1.5, 8, 0.999  # docs/transforms.md

address, inputs = sys.argv[1], pathlib.Path(sys.argv[2])
photos = inputs / "jpeg"


def open_feed(decode, dataset=photos, **options):
    arguments = dict(
        batch_size=BATCH, shuffle=True, seed=7, device=DEVICE, address=address, rank=0, world_size=1, decode=decode, sample_ids=True, sample_path=True,
        transforms=[pinfeed.RandomResizedCrop(224), pinfeed.RandomHorizontalFlip(), pinfeed.RandomVerticalFlip()],
    )  # fmt: skip
    return pinfeed.open(dataset, **{**arguments, **options})


class Difference:
    """Of uint8 pixels of the GPU and of the workers."""

    def __init__(self):
        self.sum, self.near, self.count, self.worst = 0.0, 0, 0, 0.0

    def add(self, one, other):
        levels = (one.int() - other.int()).abs()
        self.sum += levels.sum().item()
        self.near += (levels <= NEAR_LEVELS).sum().item()
        self.count += levels.numel()
        self.worst = max(self.worst, levels.flatten(1).float().mean(1).max().item())

    def check(self):
        mean, near = self.sum / self.count, self.near / self.count
        assert mean <= MEAN_LEVELS and near >= NEAR_SHARE, f"mean {mean:.3f}, near {near:.5f}"
        return f"mean difference {mean:.3f} levels, {near:.3%} within {NEAR_LEVELS}, worst image {self.worst:.2f}"


def compare(one, other, batches, difference):
    """Takes from both; everything but the pixels is equal."""
    for number, (a, b) in enumerate(zip(one, other)):
        assert a.image.shape == b.image.shape and a.image.device == b.image.device
        assert torch.equal(a.label, b.label) and torch.equal(a.sample_id, b.sample_id)
        assert a.sample_path.decode() == b.sample_path.decode()
        difference.add(a.image, b.image)
        if number + 1 == batches:
            return
    raise AssertionError(f"a feed ended before {batches} batches")


def pixels_and_everything_else():
    said = []
    for options in (
        {},
        {"layout": "HWC", "transforms": [pinfeed.Resize(256), pinfeed.CenterCrop((224, 200))]},
        {"transforms": [pinfeed.RandomResizedCrop((121, 99), interpolation="bicubic"), pinfeed.RandomHorizontalFlip()]},
        {"transforms": [pinfeed.RandomCrop(200), pinfeed.Grayscale()]},
        {"transforms": [pinfeed.Resize((97, 101), interpolation="lanczos"), pinfeed.RandomVerticalFlip()], "drop_last": True},
    ):
        difference = Difference()
        with open_feed("gpu", **options) as gpu, open_feed("cpu", **options) as cpu:
            assert (gpu.decode, cpu.decode) == ("gpu", "cpu") and "nvJPEG" in gpu.decoder, gpu.decoder
            compare(gpu, cpu, 20, difference)
        said.append(difference.check())
    return "; ".join(said)


def whole_epochs():
    difference = Difference()
    with open_feed("gpu", epochs=2) as gpu, open_feed("cpu", epochs=2) as cpu:
        for _ in range(2):
            compare(gpu, cpu, len(gpu), difference)
    return difference.check()


def auto():
    with open_feed("auto") as feed:
        decided = feed.decode
    assert decided.startswith("auto:"), decided
    difference = Difference()
    with open_feed("auto:500") as feed, open_feed("cpu") as cpu:
        assert feed.decode == "auto:500"
        compare(feed, cpu, 20, difference)
    return f"{decided}; at 500: {difference.check()}"


def resumes_in_the_middle():
    with open_feed("auto:700") as feed:
        batches = iter(feed)
        for _ in range(5):
            next(batches)
        state = feed.state_dict()
        expected = [next(batches) for _ in range(6)]
        feed.load_state_dict(state)
        again = [batch for _, batch in zip(range(6), feed)]
    with open_feed(None, state=state) as feed:
        assert feed.decode == "auto:700"
        resumed = [batch for _, batch in zip(range(6), feed)]
    for batches in (again, resumed):
        for a, b in zip(batches, expected):
            assert torch.equal(a.image, b.image) and torch.equal(a.sample_id, b.sample_id)
    for decode in ("cpu", "gpu"):
        try:
            open_feed(decode, state=state).close()
        except pinfeed.InvalidArgumentError as error:
            assert "auto:700" in str(error), error
        else:
            raise AssertionError(f"a state of auto:700 was resumed with {decode}")
    open_feed("gpu", state=state, any_decoder=True).close()
    return "the same pixels, and no others without leave"


def two_trainers_of_a_broadcast():
    difference = Difference()
    options = dict(share="broadcast", group="decode", group_size=2)
    with open_feed("gpu", **options) as one, open_feed("gpu", **options) as other, open_feed("cpu") as cpu:
        for _, a, b, c in zip(range(20), one, other, cpu):
            assert torch.equal(a.image, b.image) and torch.equal(a.label, c.label)
            difference.add(a.image, c.image)
    return difference.check()


def images_a_second(feeds, seconds=4):
    """Of each feed, all of them at once."""
    taken = [0] * len(feeds)
    end = time.monotonic() + seconds

    def take(number, feed):
        with contextlib.suppress(pinfeed.DeadlineExceededError):  # one that is ahead waits for the other, which has ended
            for batch in endless(feed):
                taken[number] += len(batch.image)
                if time.monotonic() > end:
                    return

    threads = [threading.Thread(target=take, args=item) for item in enumerate(feeds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    return "/".join(f"{count / seconds:,.0f}" for count in taken)


def one_decodes_for_two():
    """Two trainers of one broadcast, beside two feeds and one."""
    options = dict(timeout=10, sample_path=False, transforms=[pinfeed.RandomResizedCrop(224), pinfeed.RandomHorizontalFlip()])
    said = []
    for name, more in (("broadcast", [dict(share="broadcast", group="rate", group_size=2)] * 2), ("two feeds", [{}, {}]), ("one feed", [{}])):
        with contextlib.ExitStack() as stack:
            feeds = [stack.enter_context(open_feed("gpu", **options, **one)) for one in more]
            said.append(f"{name}: {images_a_second(feeds)} images/s")
    return "; ".join(said)


def readers_that_are_late():
    """Batches that are read 100 ms after they were queued, while the next ones are decoded."""
    with open_feed("gpu") as feed, open_feed("gpu") as prompt:
        batches, expected = endless(feed), endless(prompt)
        stream = torch.cuda.Stream()
        for _ in range(20):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(150_000_000)
                late = [next(batches).image for _ in range(3)]
            stream.synchronize()
            for image in late:
                assert torch.equal(image, next(expected).image)
    return "as if they were read at once"


def capture_is_refused():
    with open_feed("gpu") as feed, open_feed("gpu") as expected:
        batches = iter(feed)
        next(batches)
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                next(batches)
        except pinfeed.Error as error:
            assert "captured" in str(error), error
        else:
            raise AssertionError("a batch was written to a graph")
        image = next(batches).image
        others = iter(expected)
        next(others)
        assert torch.equal(image, next(others).image)
    return "with a reason, and nothing is lost"


def capture_elsewhere():
    """A graph that is captured meanwhile, in global mode, stays valid."""
    value = torch.zeros(1 << 20, device=DEVICE)
    with open_feed("gpu") as feed:
        batches = iter(feed)
        next(batches)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            for _ in range(200):
                value.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        assert value[0].item() == 200
        for _ in range(10):
            next(batches)
    return "valid"


def damaged_files():
    """Damage in the pixels' data, which libjpeg only warns of: no batch is lost, and others are not harmed."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "class"
        root.mkdir()
        chosen = sorted(photos.rglob("*.jpg"))[:BATCH]
        for number, file in enumerate(chosen):
            shutil.copy(file, root / f"{number:04}.jpg")
            if number % 8 == 3:
                data = bytearray(file.read_bytes())
                for place in range(4000, len(data) - 100, 997):
                    if 0xFF not in data[place - 1 : place + 2]:
                        data[place] ^= 0x10 if data[place] ^ 0x10 != 0xFF else 0x20
                (root / f"{number:04}.jpg").write_bytes(data)
        options = dict(dataset=folder, shuffle=False, on_bad_sample="zero", valid=True, transforms=[pinfeed.Resize((224, 224))])
        difference, refused = Difference(), 0
        with open_feed("gpu", **options) as gpu, open_feed("cpu", **options) as cpu:
            a, b = next(iter(gpu)), next(iter(cpu))
        good = torch.tensor([number % 8 != 3 for number in range(BATCH)], device=DEVICE)
        difference.add(a.image[good], b.image[good])
        assert a.valid[good].all() and torch.equal(a.sample_id, b.sample_id)
        refused = int((~a.valid).sum())
        assert not a.image[~a.valid].any() and not a.label[~a.valid].any()
    return f"{refused} of {int((~good).sum())} damaged files were zeroed; the others: {difference.check()}"


def with_markers(data, jfif, adobe, ids):
    """A copy of a baseline JPEG file of three components: with or without JFIF's marker, with Adobe's of this transform, with these ids."""
    out, at = bytearray(data[:2]), 2
    if adobe is not None:
        out += b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([adobe])
    while True:
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        segment = bytearray(data[at : at + 2 + length])
        first, step = {0xC0: (10, 3), 0xDA: (5, 2)}.get(kind, (0, 0))
        for number in range(3 if step else 0):
            segment[first + step * number] = ids[number]
        if jfif or kind != 0xE0:
            out += segment
        at += 2 + length
        if kind == 0xDA:
            return bytes(out) + data[at:]


def colours_of_every_marker():
    """libjpeg takes a file's colours from these markers and ids; what it takes for RGB the workers decode."""
    variants = [(jfif, adobe, ids) for jfif in (True, False) for adobe in (None, 0, 1) for ids in ((1, 2, 3), (0, 1, 2), (82, 71, 66), (7, 8, 9))]
    photo = next(file for file in sorted(photos.rglob("*.jpg")) if b"\xff\xc0\x00\x11" in file.read_bytes()).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "class"
        root.mkdir()
        for number, variant in enumerate(variants):
            (root / f"{number:02}.jpg").write_bytes(with_markers(photo, *variant))
        options = dict(dataset=folder, shuffle=False, batch_size=len(variants), transforms=[pinfeed.Resize((224, 224))])
        with open_feed("gpu", **options) as gpu, open_feed("cpu", **options) as cpu:
            a, b = next(iter(gpu)), next(iter(cpu))
        levels = (a.image.int() - b.image.int()).abs().flatten(1).float().mean(1).tolist()
    wrong = {variant: round(level, 1) for variant, level in zip(variants, levels) if level > 2 * MEAN_LEVELS}
    assert not wrong, f"(JFIF, Adobe's transform, ids): levels: {wrong}"
    return f"{len(variants)} files, worst {max(levels):.2f} levels"


def refusals():
    for expected, options in (
        ("skip", dict(on_bad_sample="skip")),
        ("zero_copy", dict(zero_copy=True)),
        ("Pad", dict(transforms=[pinfeed.Pad(4), pinfeed.Resize((64, 64))])),
        ("backend", dict(backend="vmm-fd")),
    ):
        try:
            open_feed("gpu", **options).close()
        except pinfeed.Error as error:
            assert expected in str(error), error
        else:
            raise AssertionError(f"{options} was accepted")
    return "each with its reason"


def main():
    torch.cuda.set_device(DEVICE)
    print(f"{torch.cuda.get_device_name(DEVICE)}, torch {torch.__version__}")
    failed = []
    for check in (
        pixels_and_everything_else, whole_epochs, auto, resumes_in_the_middle, two_trainers_of_a_broadcast, one_decodes_for_two, readers_that_are_late, capture_is_refused,
        capture_elsewhere, damaged_files, colours_of_every_marker, refusals,
    ):  # fmt: skip
        name = check.__name__.replace("_", " ")
        try:
            print(f"{name}: {check()}", flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    free = torch.cuda.mem_get_info(0)[0]
    for _ in range(3):
        with open_feed("gpu") as feed:
            next(iter(feed))
    torch.cuda.synchronize()
    lost = (free - torch.cuda.mem_get_info(0)[0]) / 2**20
    print(f"memory of the GPU lost over three feeds: {lost:.0f} MiB", flush=True)
    if lost > 64:
        failed.append("memory")
    if failed:
        sys.exit(f"decode_feeds.py: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
