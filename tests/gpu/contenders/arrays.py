# SPDX-License-Identifier: Apache-2.0
"""Arrays (uint8, 3 x 224 x 224) and tokens (pairs of int64) out of the page cache to the device, shuffled: each contender's way.

In: "arrays", "npy" (a file for each of some of the arrays) and "tokens.bin" of the inputs. Out: batches of base.BATCH or base.TOKEN_BATCH.
"""
import pathlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .base import (
    BATCH,
    SEQUENCE,
    SIDE,
    TOKEN_BATCH,
    by_hand,
    contender,
    dali_batches,
    dali_pipeline,
    data_loader,
    endless_batches,
    spdl_batches,
    to_device,
)

DALI = ("nvidia.dali",)
SHAPE = (BATCH, 3, SIDE, SIDE)


class Arrays:
    def __init__(self, folder):
        self.images = np.load(folder / "image.npy", mmap_mode="r")
        self.labels = np.load(folder / "label.npy")

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def batch(self, indices):
        import torch

        return torch.from_numpy(np.take(self.images, indices, 0)), torch.from_numpy(self.labels[indices])


class WholeBatches(Arrays):
    """The DataLoader finds `__getitems__`, and asks for all samples of a batch at once."""

    __getitems__ = Arrays.batch


def as_it_is(batch):
    return batch


@contender("arrays", "pinfeed, slots lent", "pinfeed", zero_copy=True)
@contender("arrays", "pinfeed", "pinfeed")
def pinfeed_arrays(env, **options):
    import feeding

    return feeding.endless(feeding.open_feed(env.address, env.inputs, "arrays", device=None if env.host else env.device, backend="auto", **options))


@contender("arrays", "DALI external_source, 8 processes", "DALI", burst=8, needs=DALI)
def dali_external(env):
    pipeline = dali_pipeline(env, 4, py_num_workers=8, py_start_method="spawn")
    from nvidia.dali import fn

    @pipeline
    def pipe():
        source = DaliBatches(str(env.inputs / "arrays"))
        images, labels = fn.external_source(source, num_outputs=2, batch=True, parallel=True, batch_info=True, prefetch_queue_depth=8)
        return (images, labels) if env.host else (images.gpu(), labels.gpu())

    made = pipe()
    made.start_py_workers()
    return dali_batches(made, ["data", "label"])


class DaliBatches:
    """For worker processes: batch after batch, out of the mapped file."""

    def __init__(self, folder):
        self.folder, self.dataset, self.epoch, self.order = folder, None, None, None

    def __call__(self, info):
        if self.dataset is None:
            self.dataset = Arrays(pathlib.Path(self.folder))
        count = len(self.dataset)
        epoch, first = divmod(info.iteration, count // BATCH)
        if epoch != self.epoch:
            self.epoch, self.order = epoch, np.random.default_rng(epoch).permutation(count)
        indices = self.order[first * BATCH : (first + 1) * BATCH]
        return np.take(self.dataset.images, indices, 0), self.dataset.labels[indices].reshape(-1, 1)


@contender("arrays", "DALI readers.numpy, a file a sample", "DALI", needs=DALI)
def dali_numpy(env):
    pipeline = dali_pipeline(env, env.cores)
    from nvidia.dali import fn

    @pipeline
    def pipe():
        images = fn.readers.numpy(file_root=str(env.inputs / "npy"), file_filter="*.npy", random_shuffle=True, initial_fill=1024, cache_header_information=True)
        return images if env.host else images.gpu()

    return dali_batches(pipe(), ["data"])


@contender("arrays", "by hand: 16 threads, pinned slots", "by hand", burst=16, threads=16)
def arrays_by_hand(env, threads):
    import torch

    dataset = Arrays(env.inputs / "arrays")

    def fill(slot, indices):
        np.take(dataset.images, indices, 0, slot[0].numpy(), "clip")
        np.take(dataset.labels, indices, 0, slot[1].numpy(), "clip")

    return by_hand(env, fill, [(SHAPE, torch.uint8), ((BATCH,), torch.int64)], threads, endless_batches(len(dataset)))


@contender("arrays", "SPDL, 8 threads", "SPDL", burst=8, needs=("spdl.io", "spdl.pipeline"))
def spdl_arrays(env):
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    dataset = Arrays(env.inputs / "arrays")
    builder = PipelineBuilder().add_source(endless_batches(len(dataset))).pipe(dataset.batch, concurrency=8)
    if not env.host:
        builder = builder.pipe(spdl.io.transfer_tensor_h2d, executor=ThreadPoolExecutor(1))
    return spdl_batches(builder, 8)


@contender("arrays", "DataLoader, 8 workers", "DataLoader", burst=8, workers=8)
@contender("arrays", "DataLoader, 8 workers, __getitems__", "DataLoader", burst=8, workers=8, whole=True)
def dataloader_arrays(env, workers, whole=False):
    dataset = (WholeBatches if whole else Arrays)(env.inputs / "arrays")
    return to_device(env, iter(data_loader(env, dataset, workers, collate=as_it_is if whole else None)))


@contender("arrays", "ceiling: one pinned batch, copied again and again", "", ceiling=True)
def copies(env):
    import torch

    batch = torch.empty(SHAPE, dtype=torch.uint8, pin_memory=not env.host)
    while True:
        yield batch.to(env.device, non_blocking=True, copy=True), None


class Tokens:
    def __init__(self, path):
        self.tokens = np.memmap(path, "<u2", "r")

    def __len__(self):
        return (len(self.tokens) - 1) // SEQUENCE

    def __getitem__(self, index):
        import torch

        both = torch.from_numpy(self.tokens[index * SEQUENCE : index * SEQUENCE + SEQUENCE + 1].astype(np.int64))
        return both[:-1], both[1:]


@contender("tokens", "pinfeed", "pinfeed")
def pinfeed_tokens(env):
    import feeding

    return feeding.endless(feeding.open_feed(env.address, env.inputs, "tokens", device=None if env.host else env.device, backend="auto"))


@contender("tokens", "by hand: 4 threads, pinned slots", "by hand", threads=4)
@contender("tokens", "by hand: 1 thread, pinned slots", "by hand", threads=1)
def tokens_by_hand(env, threads):
    import torch

    windows = np.lib.stride_tricks.sliding_window_view(Tokens(env.inputs / "tokens.bin").tokens, SEQUENCE + 1)[::SEQUENCE]

    def fill(slot, indices):
        slot[0].numpy()[...] = windows[indices]

    parts = [((TOKEN_BATCH, SEQUENCE + 1), torch.int64)]
    for (both,) in by_hand(env, fill, parts, threads, endless_batches(len(windows), TOKEN_BATCH)):
        yield both[:, :-1], both[:, 1:]


@contender("tokens", "get_batch of nanoGPT", "nanoGPT")
def get_batch(env):
    """As in its train.py."""
    import torch

    while True:
        tokens = np.memmap(env.inputs / "tokens.bin", "<u2", "r")
        at = torch.randint(len(tokens) - SEQUENCE, (TOKEN_BATCH,))
        x = torch.stack([torch.from_numpy(tokens[i : i + SEQUENCE].astype(np.int64)) for i in at])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + SEQUENCE].astype(np.int64)) for i in at])
        if not env.host:
            x, y = x.pin_memory(), y.pin_memory()
        yield x.to(env.device, non_blocking=True), y.to(env.device, non_blocking=True)


@contender("tokens", "DataLoader, 8 workers", "DataLoader", burst=8, workers=8)
@contender("tokens", "DataLoader, 4 workers", "DataLoader", burst=4, workers=4)
@contender("tokens", "DataLoader, 0 workers", "DataLoader", workers=0)
def dataloader_tokens(env, workers):
    return to_device(env, iter(data_loader(env, Tokens(env.inputs / "tokens.bin"), workers, TOKEN_BATCH)))
