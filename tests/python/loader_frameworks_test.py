# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` in training loops of well-known shapes, with worker processes and a real daemon: each by its own code, with the
import changed.
"""

import gc
import importlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import weakref

import numpy
import pytest
from produced import produced_by

torch = pytest.importorskip("torch")

from loader_datasets import Numbers, all_same  # noqa: E402

import pinfeed  # noqa: E402

pytestmark = [pytest.mark.usefixtures("feeds"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]
TorchLoader = torch.utils.data.DataLoader


# ---- plain loops --------------------------------------------------------------------------------------------------------------------


def point(index):
    return torch.tensor([index / 50, 1.0]), torch.tensor([3 * index / 50 - 1])


def losses_of_training(loader_type):
    torch.manual_seed(5)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = loader_type(Numbers(50, point), batch_size=8, shuffle=True, num_workers=2)
    losses = []
    for _ in range(3):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_a_training_has_the_losses_that_it_has_with_torchs_loader(daemon):
    with produced_by(daemon) as produced:
        losses = losses_of_training(pinfeed.DataLoader)
    assert losses == losses_of_training(TorchLoader)
    assert (produced.feeds, produced.batches) == (3, len(losses)) == (3, 21)


def test_a_validation_runs_in_the_middle_of_an_epoch(daemon):
    train = pinfeed.DataLoader(Numbers(40), 4, num_workers=2)
    validation = pinfeed.DataLoader(Numbers(9), 4, num_workers=1, persistent_workers=True)
    got = []
    with produced_by(daemon) as produced:
        for step, batch in enumerate(train):
            got += batch.tolist()
            if step % 4 == 3:
                assert [value for each in validation for value in each.tolist()] == list(range(9))
    assert got == list(range(40))
    assert (produced.feeds, produced.batches) == (3, 10 + 2 * 3)


def test_a_progress_bar_is_right_from_the_first_batch_on(daemon):
    tqdm = pytest.importorskip("tqdm").tqdm
    written = io.StringIO()
    with produced_by(daemon) as produced:
        bar = tqdm(pinfeed.DataLoader(Numbers(20), 4, num_workers=2), file=written, mininterval=0, miniters=1)
        assert [batch[0].item() for batch in bar] == [0, 4, 8, 12, 16]
    assert (bar.total, bar.n, produced.batches) == (5, 5, 5)
    assert [f"{done}/5 " in written.getvalue() for done in range(6)] == [True] * 6


# ---- ranks, as in pytorch/examples/imagenet -----------------------------------------------------------------------------------------

IMAGENET = """
import json, torch, torch.distributed
import pinfeed

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 45
    def __getitem__(self, index):
        return torch.full((3, 8, 8), float(index)), index

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    dataset = Images()
    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    loader = pinfeed.DataLoader(dataset, batch_size=4, shuffle=(sampler is None), num_workers=2, pin_memory=False, sampler=sampler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 45)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = []
        for images, target in loader:
            assert images[:, 0, 0, 0].tolist() == target.tolist()
            loss = torch.nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(target.tolist())
        epochs.append(seen)
    with open(f"rank{rank}.json", "w") as file:
        json.dump([epochs, next(model.parameters()).sum().item()], file)
"""


def test_two_ranks_see_disjoint_samples(daemon, tmp_path):
    """As torchrun starts them."""
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    (tmp_path / "train.py").write_text(IMAGENET)
    with produced_by(daemon) as produced:
        # With Python 3.11, torchrun of PyTorch 1.13 fails unless it is told where output goes.
        output = ["--redirects", "1", "--tee", "1", "--log_dir", "logs"]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *output, "train.py"]
        ran = subprocess.run(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False)
    if "PyTorch was build without libuv" in ran.stderr:
        pytest.skip("the torchrun of Debian 13 needs a libuv that its PyTorch lacks")
    assert ran.returncode == 0, ran.stderr
    (first, first_weights), (second, second_weights) = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert first_weights == second_weights
    for mine, other in zip(first, second):
        mine, other = (list(itertools.chain.from_iterable(seen)) for seen in (mine, other))
        assert (len(mine), len(other)) == (23, 23) and len(set(mine) & set(other)) <= 1  # the sampler repeats one of the 45
        assert set(mine) | set(other) == set(range(45))
    assert first[0] != first[1]
    assert (produced.feeds, produced.batches) == (4, 2 * 2 * 6)


# ---- tokens -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "train.bin"
    numpy.random.default_rng(7).integers(0, 50000, 5000).astype(numpy.uint16).tofile(path)
    return path


class Windows(torch.utils.data.Dataset):
    """nanoGPT's get_batch for one sample: `length` tokens from any position, and the same one further on."""

    def __init__(self, path, length, step=1):
        self.path, self.length, self.step = path, length, step

    def __len__(self):
        tokens = os.path.getsize(self.path) // 2
        return (tokens - 1 - self.length) // self.step + 1

    def __getitem__(self, index):
        # As in nanoGPT, the file is mapped anew each time, so that its pages do not count as this process's memory.
        data = numpy.memmap(self.path, dtype=numpy.uint16, mode="r")
        start = index * self.step
        x = torch.from_numpy(data[start : start + self.length].astype(numpy.int64))
        y = torch.from_numpy(data[start + 1 : start + 1 + self.length].astype(numpy.int64))
        return x, y


def test_random_windows_of_tokens(daemon, tokens):
    """nanoGPT: any number of steps, each a batch from random positions."""
    dataset, steps = Windows(tokens, 64), 20
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=steps * 12, generator=torch.Generator().manual_seed(1))
    positions = iter(torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=steps * 12, generator=torch.Generator().manual_seed(1)))
    data = numpy.fromfile(tokens, numpy.uint16).astype(numpy.int64)
    with produced_by(daemon) as produced:
        for x, y in pinfeed.DataLoader(dataset, batch_size=12, sampler=sampler, num_workers=2):
            chosen = list(itertools.islice(positions, 12))
            assert (x.shape, x.dtype) == ((12, 64), torch.int64)
            assert numpy.array_equal(x, [data[each : each + 64] for each in chosen])
            assert numpy.array_equal(y, [data[each + 1 : each + 65] for each in chosen])
    assert produced.batches == steps and next(positions, None) is None


class DataLoaderLite:
    """build-nanogpt's loader: the ranks take turns in reading B * T tokens."""

    def __init__(self, tokens, B, T, process_rank, num_processes):
        self.tokens, self.B, self.T, self.num_processes = tokens, B, T, num_processes
        self.current_position = B * T * process_rank

    def next_batch(self):
        B, T = self.B, self.T
        buffer = self.tokens[self.current_position : self.current_position + B * T + 1]
        self.current_position += B * T * self.num_processes
        return buffer[:-1].view(B, T), buffer[1:].view(B, T)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_take_turns_in_consecutive_tokens(daemon, tokens, rank):
    dataset = Windows(tokens, 32, step=32)
    turns = [list(range(first, first + 4)) for first in range(4 * rank, len(dataset) - 3, 8)]
    reference = DataLoaderLite(torch.from_numpy(numpy.fromfile(tokens, numpy.uint16).astype(numpy.int64)), 4, 32, rank, 2)
    with produced_by(daemon) as produced:
        batches = [tuple(batch) for batch in pinfeed.DataLoader(dataset, batch_sampler=turns, num_workers=2)]
    assert all_same(batches, [reference.next_batch() for _ in turns])
    assert produced.batches == len(turns) == 20 - rank


# ---- timm ---------------------------------------------------------------------------------------------------------------------------


class CollateMixup:
    """timm's FastCollateMixup: mixes each image with the one at the mirrored place of the batch."""

    mixup_enabled = True

    def __init__(self, classes):
        self.classes = classes

    def __call__(self, batch):
        images = numpy.stack([image for image, _ in batch]).astype(numpy.float32)
        targets = torch.nn.functional.one_hot(torch.tensor([label for _, label in batch]), self.classes).float()
        share = numpy.float32(numpy.random.beta(0.8, 0.8)) if self.mixup_enabled else numpy.float32(1)
        images = images * share + images[::-1] * (1 - share)
        return torch.from_numpy(images), targets * share.item() + targets.flip(0) * (1 - share.item())


def picture(index):
    return numpy.full((3, 16, 16), index, numpy.uint8), index % 10


def announce(worker):
    info = torch.utils.data.get_worker_info()
    assert info.id == worker and info.num_workers == 2 and isinstance(info.dataset, Numbers)


def test_mixup_in_a_collate_fn_with_persistent_workers(daemon):
    sampler = torch.utils.data.RandomSampler(range(60))
    arguments = {"batch_size": 8, "sampler": sampler, "num_workers": 2, "collate_fn": CollateMixup(10), "worker_init_fn": announce}
    loader = pinfeed.DataLoader(Numbers(60, picture), **arguments, pin_memory=False, drop_last=True, persistent_workers=True)
    shares = set()
    with produced_by(daemon) as produced:
        for _ in range(2):
            count = 0
            for images, targets in loader:
                assert (images.shape, targets.shape) == ((8, 3, 16, 16), (8, 10))
                assert torch.allclose(targets.sum(1), torch.ones(8))
                labels = targets.double() @ torch.arange(10.0).double()  # mixed as the pixels are, which are the labels plus tens
                assert ((images[:, 0, 0, 0] + images.flip(0)[:, 0, 0, 0] - labels - labels.flip(0)) / 10).round(decimals=4).frac().eq(0).all()
                shares.add(targets.max().item())
                count += 1
            assert count == len(loader) == 7
    assert len(shares) > 7
    assert loader.sampler is sampler and loader.batch_size == 8 and len(loader.sampler) == 60 and loader.collate_fn.mixup_enabled
    assert (produced.feeds, produced.batches) == (2, 14)


class RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class MultiEpochsDataLoader(pinfeed.DataLoader):
    """timm's, which replaces the sampler by an endless one behind the class's back, and keeps one iterator."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        if self.batch_sampler is None:
            self.sampler = RepeatSampler(self.sampler)
        else:
            self.batch_sampler = RepeatSampler(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.sampler) if self.batch_sampler is None else len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def test_one_iterator_serves_all_epochs(daemon):
    with produced_by(daemon) as produced:
        loader = MultiEpochsDataLoader(Numbers(10), 4, num_workers=2)
        assert [[batch.tolist() for batch in loader] for _ in range(3)] == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 3
        loader.iterator.close()
    assert produced.feeds == 1 and produced.batches >= 9


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_keeps_its_iterator_ends_its_workers_with_its_last_reference(persistent):
    gc.disable()  # which would find a cycle of loader and iterator, some time
    try:
        loader = MultiEpochsDataLoader(Numbers(10), 4, num_workers=2, persistent_workers=persistent)
        assert next(loader.iterator).tolist() == [0, 1, 2, 3]
        workers = loader.iterator._pool.processes
        assert [worker.is_alive() for worker in workers] == [True, True]
        del loader
        assert [worker.is_alive() for worker in workers] == [False, False]
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_outlives_its_loader(workers):
    loader = MultiEpochsDataLoader(Numbers(10), 4, num_workers=workers)
    alive, iterator = weakref.ref(loader), loader.iterator
    del loader
    assert alive() is None
    assert [next(iterator).tolist() for _ in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]


# ---- reinforcement learning ---------------------------------------------------------------------------------------------------------


class Replay(torch.utils.data.Dataset):
    """A full replay buffer of torchrl's shape: transitions in memory, taken by a list of indices at once."""

    def __init__(self, size):
        self.storage = {"observation": torch.arange(size * 4.0).view(size, 4), "action": torch.arange(size) % 3, "reward": torch.arange(size) / 2}

    def __len__(self):
        return len(self.storage["reward"])

    def __getitems__(self, indices):
        return {name: values[indices] for name, values in self.storage.items()}


def as_they_are(batch):
    return batch


def test_a_replay_buffer_is_sampled_with_replacement(daemon):
    buffer = Replay(500)
    sampler = torch.utils.data.RandomSampler(buffer, replacement=True, num_samples=64 * 30)
    drawn = []
    with produced_by(daemon) as produced:
        for batch in pinfeed.DataLoader(buffer, batch_size=64, sampler=sampler, num_workers=2, collate_fn=as_they_are):
            rows = (batch["reward"] * 2).long()
            assert all_same(batch.items(), buffer.__getitems__(rows).items())
            drawn += rows.tolist()
    assert produced.batches == 30 and len(drawn) == 64 * 30
    assert 450 < len(set(drawn)) <= 500


# ---- NumPy, as for JAX --------------------------------------------------------------------------------------------------------------


def numpy_collate(samples):
    """As in JAX's tutorial of data loading."""
    if isinstance(samples[0], numpy.ndarray):
        return numpy.stack(samples)
    if isinstance(samples[0], (tuple, list)):
        return [numpy_collate(column) for column in zip(*samples)]
    return numpy.array(samples)


class NumpyLoader(pinfeed.DataLoader):
    def __init__(self, dataset, **arguments):
        super().__init__(dataset, collate_fn=numpy_collate, **arguments)


def test_batches_are_numpy_arrays(daemon):
    with produced_by(daemon) as produced:
        batches = list(NumpyLoader(Numbers(30, picture), batch_size=8, shuffle=False, num_workers=2))
    assert produced.batches == len(batches) == 4
    for number, (images, labels) in enumerate(batches):
        expected = range(8 * number, min(8 * number + 8, 30))
        assert type(images) is numpy.ndarray and (images.dtype, labels.dtype) == (numpy.uint8, numpy.int64)
        assert images[:, 2, 15, 15].tolist() == list(expected) and labels.tolist() == [each % 10 for each in expected]


# ---- libraries that test the type ---------------------------------------------------------------------------------------------------

LIBRARY = """
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import DataLoader as SameLoader

class Own(DataLoader):
    def __init__(self, dataset, **arguments):
        super().__init__(dataset, batch_size=2, **arguments)

def orders(loader, epochs):  # as MONAI's engines
    assert SameLoader is DataLoader
    for epoch in range(epochs):
        if isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield [index for batch in loader for index in batch.tolist()]
"""


def test_a_library_that_is_imported_afterwards_has_this_class(tmp_path, monkeypatch):
    (tmp_path / "some_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))

    def orders_of(kind):
        monkeypatch.setattr(torch.utils.data, "DataLoader", kind)
        monkeypatch.setattr(torch.utils.data.dataloader, "DataLoader", kind)
        monkeypatch.delitem(sys.modules, "some_library", raising=False)
        library = importlib.import_module("some_library")
        sampler = torch.utils.data.DistributedSampler(range(12), num_replicas=2, rank=0)
        loaders = [kind(range(12), batch_size=2, sampler=sampler), library.Own(range(12), sampler=sampler, num_workers=2)]
        assert all(isinstance(loader, kind) for loader in loaders)
        return [list(library.orders(loader, 3)) for loader in loaders]

    assert orders_of(pinfeed.DataLoader) == orders_of(TorchLoader)


class Sharded(torch.utils.data.IterableDataset):
    epochs = 0

    def __iter__(self):
        self.epochs += 1
        info = torch.utils.data.get_worker_info()
        return iter(range(100 * self.epochs, 100 * self.epochs + 11)[0 if info is None else info.id :: 1 if info is None else info.num_workers])

    def __len__(self):
        return 11


def with_torchs_iterators(kind):
    """Loaders as torchdata's StatefulDataLoader and litdata's StreamingDataLoader: torch's private iterators, which know of the batches that they give."""
    module = torch.utils.data.dataloader

    class Own(kind):
        def _get_iterator(self):
            if self.num_workers == 0:
                return module._SingleProcessDataLoaderIter(self)
            self.check_worker_number_rationality()
            return module._MultiProcessingDataLoaderIter(self)

        def __del__(self):
            if self._iterator is not None:  # as MosaicML's StreamingDataLoader
                self._iterator._shutdown_workers()

    return Own


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("dataset", [Numbers, Sharded])
def test_a_subclass_may_make_torchs_iterators(dataset, arguments):
    def epochs_of(kind):
        torch.manual_seed(5)
        own = with_torchs_iterators(kind)
        loaders = [own(dataset() if dataset is Sharded else dataset(11), **arguments, **batches) for batches in ({"batch_size": 3}, {"batch_size": None})]
        return [[len(loader), [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]] for loader in loaders for _ in range(3)]

    assert epochs_of(pinfeed.DataLoader) == epochs_of(TorchLoader)


def test_the_position_of_torchs_iterators_is_told_as_unknown():
    loader = with_torchs_iterators(pinfeed.DataLoader)(Numbers(11), 2)
    state = loader.state_dict()
    next(iter(loader))
    with pytest.raises(pinfeed.Error, match="the iterator of Own is torch's, which has no state"):
        loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(pinfeed.Error, match="is torch's, which cannot continue the state that was loaded"):
        iter(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_position_for_torchs_iterators_is_refused(workers):
    class SaveableDataLoader(pinfeed.DataLoader):  # as SpeechBrain's, which has put functions of its own into torch's iterators
        _speechbrain_recovery_skip_to = None

    loader = SaveableDataLoader(Numbers(6), 2, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    loader._speechbrain_recovery_skip_to = 1
    state = loader.state_dict()
    text = r"behind batch 1 of a checkpoint of SpeechBrain, .* _speechbrain_recovery_skip_to .* custom_save_hook.*\(loader, path, \*others\), under the name"
    for _ in range(2):
        with pytest.raises(pinfeed.Error, match=text):
            iter(loader)
    loader._speechbrain_recovery_skip_to = None
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == [[2, 3], [4, 5]]


@pytest.mark.parametrize("dataset", [Numbers, Sharded])
@pytest.mark.parametrize("workers", [0, 2])
def test_iterators_count_what_they_have_given_by_torchs_name(workers, dataset):
    def counts(kind):
        iterator = iter(kind(Numbers(6) if dataset is Numbers else Sharded(), 2, num_workers=workers))
        return [iterator._num_yielded, *((next(iterator, None) is None, iterator._num_yielded) for _ in range(8))]

    assert counts(pinfeed.DataLoader) == counts(TorchLoader)  # SpeechBrain saves it


class Interrupts(torch.utils.data.IterableDataset):
    def __iter__(self):
        signal.raise_signal(signal.SIGINT)
        yield 0


def interrupts(samples):
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "dataset, collate_fn", [(Interrupts(), None), (Sharded(), interrupts), (Numbers(6), interrupts)], ids=["dataset", "collate_fn", "indexed"]
)
def test_they_count_nothing_that_an_interrupt_has_cost(dataset, collate_fn):
    for kind in (pinfeed.DataLoader, TorchLoader):
        iterator = iter(kind(dataset, collate_fn=collate_fn))
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert iterator._num_yielded == 0


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_subclass_may_keep_its_iterator_by_torchs_name(arguments):
    def epochs_of(kind):
        class Peeks(kind):
            def __iter__(self):
                self._iterator = super().__iter__()
                return self

            def __next__(self):
                return next(self._iterator)

        loader = Peeks(Numbers(6), 2, **arguments)
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    assert epochs_of(pinfeed.DataLoader) == epochs_of(TorchLoader)
