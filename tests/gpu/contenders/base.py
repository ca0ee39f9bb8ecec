# SPDX-License-Identifier: Apache-2.0
"""What all contenders have in common.

A contender makes an endless iterator over batches: tuples (data, labels or None) on the device, ready on the current stream. In: an Env. Out: that
iterator. CONTENDERS has all, in the order of the tables.
"""
import collections
import dataclasses
import pathlib
import queue
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np

BATCH, SIDE = 256, 224
SAMPLE_BYTES = 3 * SIDE * SIDE
TOKEN_BATCH, SEQUENCE = 8, 2048
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
QUEUE_DEPTH = 3  # batches that are made ahead where a loader asks for a number

CONTENDERS = {}


@dataclasses.dataclass(frozen=True)
class Contender:
    """`peer`: whose it is. `burst`: batches that come at a time. `needs`: modules that must be installed. `on_gpu`: it cannot run without one."""

    row: str
    name: str
    peer: str
    make: "callable"
    options: dict
    burst: int = 1
    needs: tuple = ()
    on_gpu: bool = False
    ceiling: bool = False


def contender(row, name, peer, burst=1, needs=(), on_gpu=False, ceiling=False, **options):
    def add(make):
        CONTENDERS[row, name] = Contender(row, name, peer, make, options, burst, needs, on_gpu, ceiling)
        return make

    return add


@dataclasses.dataclass(frozen=True)
class Env:
    """`host`: a rehearsal without a GPU."""

    inputs: pathlib.Path
    address: str
    host: bool
    device: str
    cores: int


class EndlessShuffle:
    """Permutations without end, as a sampler: no loader starts anew after the few batches of a small epoch."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return 1 << 40

    def __iter__(self):
        rng = np.random.default_rng()
        while True:
            yield from rng.permutation(self.count).tolist()


def endless_batches(count, size=BATCH):
    """Arrays of `size` indices, permutation after permutation."""
    rng, rest = np.random.default_rng(), np.empty(0, np.int64)
    while True:
        while len(rest) < size:
            rest = np.concatenate([rest, rng.permutation(count)])
        yield rest[:size]
        rest = rest[size:]


def normaliser(env):
    """uint8 NCHW, or NHWC that was permuted, on the device, to bfloat16 NCHW."""
    import torch

    scale = torch.tensor([1 / (255 * deviation) for deviation in STD], device=env.device).view(1, 3, 1, 1)
    bias = torch.tensor([-mean / deviation for mean, deviation in zip(MEAN, STD)], device=env.device).view(1, 3, 1, 1)
    return lambda images: torch.addcmul(bias, images.float(), scale).to(torch.bfloat16, memory_format=torch.contiguous_format)


def be_quiet(_=None):
    warnings.filterwarnings("ignore")


def data_loader(env, dataset, workers, batch_size=BATCH, collate=None):
    """PyTorch's, as its documentation advises for a GPU. `collate`: the dataset gives whole batches."""
    from torch.utils.data import DataLoader

    more = {"persistent_workers": True, "prefetch_factor": 4, "worker_init_fn": be_quiet} if workers else {}
    return DataLoader(
        dataset, batch_size, sampler=EndlessShuffle(len(dataset)), num_workers=workers, pin_memory=not env.host, drop_last=True, collate_fn=collate, **more
    )


def to_device(env, batches, convert=None):
    """What a training loop does with a pinned batch."""
    for data, labels in batches:
        data, labels = data.to(env.device, non_blocking=True), labels.to(env.device, non_blocking=True)
        yield (data if convert is None else convert(data)), labels


def by_hand(env, fill, parts, threads, indices):
    """What an expert writes: threads fill pinned slots, copies go on a stream of their own, and nobody waits for the GPU except for a slot.

    parts: (shape, dtype) of each tensor. fill(slot, indices) writes a batch into them.
    """
    import torch

    pinned, ahead = not env.host, threads + 2
    free = queue.SimpleQueue()
    for _ in range(ahead + 3):
        free.put([torch.empty(shape, dtype=dtype, pin_memory=pinned) for shape, dtype in parts])
    stream = torch.cuda.Stream()

    def work(chosen):
        slot = free.get()
        fill(slot, chosen)
        with torch.cuda.stream(stream):
            made = [part.to(env.device, non_blocking=True, copy=True) for part in slot]
            copied = torch.cuda.Event()
            copied.record()
        return slot, made, copied

    pool = ThreadPoolExecutor(threads)
    pending = collections.deque(pool.submit(work, next(indices)) for _ in range(ahead))
    copying = collections.deque()
    while True:
        while copying and (len(copying) > 2 or copying[0][1].query()):
            slot, copied = copying.popleft()
            copied.synchronize()
            free.put(slot)
        slot, made, copied = pending.popleft().result()
        pending.append(pool.submit(work, next(indices)))
        copying.append((slot, copied))
        copied.wait()
        for tensor in made:
            tensor.record_stream(torch.cuda.current_stream())
        yield made


def dali_batches(pipe, names):
    """DALI's own iterator for PyTorch, which makes no copy with the executor that is the default."""
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    for parts in DALIGenericIterator(pipe, names, auto_reset=True, size=-1):
        yield parts[0]["data"], parts[0].get("label")


def dali_pipeline(env, threads, **options):
    """The decorator of a DALI pipeline."""
    import torch  # noqa: F401 - first, so that both have one CUDA runtime
    from nvidia.dali import pipeline_def

    device = None if env.host else 0
    return pipeline_def(batch_size=BATCH, num_threads=threads, device_id=device, **{"prefetch_queue_depth": QUEUE_DEPTH, "seed": 1, **options})


def spdl_batches(builder, threads):
    """Runs a pipeline of SPDL for ever."""
    pipeline = builder.add_sink(QUEUE_DEPTH).build(num_threads=threads, max_failures=0)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=60)
