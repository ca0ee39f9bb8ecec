# SPDX-License-Identifier: Apache-2.0
"""A feed as a loader of Hugging Face Accelerate's: in one process, and in two that share a dataset."""
import json
import os
import socket
import subprocess
import sys

import accelerate
import numpy
import pytest
import torch

import pinfeed
import pinfeed.accelerate

SAMPLES, BATCH = 22, 4  # 6 batches; of two ranks 3, the last of 6 samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    numpy.save(path / "id.npy", numpy.arange(SAMPLES))
    numpy.save(path / "x.npy", numpy.arange(SAMPLES, dtype=numpy.float32)[:, None])
    return path


@pytest.fixture
def feed(folder):
    with pinfeed.open(folder, batch_size=BATCH) as one:
        yield one


def ids(loader):
    return [batch.id.tolist() for batch in loader]


EPOCH = [list(range(first, min(first + BATCH, SAMPLES))) for first in range(0, SAMPLES, BATCH)]


def test_prepare_takes_it_as_it_is(feed):
    accelerator = accelerate.Accelerator()
    made = pinfeed.accelerate.Loader(feed)
    model, loader = accelerator.prepare(torch.nn.Linear(1, 1), made)
    assert loader is made and isinstance(loader, torch.utils.data.DataLoader) and accelerator._dataloaders == [loader]
    assert (len(loader), loader.batch_size, loader.total_batch_size, len(loader.dataset)) == (6, BATCH, BATCH, SAMPLES)
    assert [ids(loader) for _ in range(2)] == [EPOCH] * 2
    assert next(iter(loader)).id.device == accelerator.device


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_the_last_step_of_gradient_accumulation(feed, steps):
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=steps)
    model = torch.nn.Linear(1, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), pinfeed.accelerate.Loader(feed))
    for _ in range(2):
        synced = []
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch.x).mean())
                synced.append(accelerator.sync_gradients)
                optimizer.step()
                optimizer.zero_grad()
        assert synced == [number % steps == 0 or number == 6 for number in range(1, 7)]


def test_a_loop_that_is_left_leaves_no_loader_behind(feed):
    accelerator = accelerate.Accelerator()
    loader = accelerator.prepare(pinfeed.accelerate.Loader(feed))
    for _ in loader:
        break
    assert not accelerator.gradient_state.in_dataloader
    assert ids(loader) == EPOCH and not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("skipped", [0, 2, 5])
def test_first_batches_are_skipped(feed, skipped):
    accelerator = accelerate.Accelerator()
    loader = accelerator.prepare(pinfeed.accelerate.Loader(feed))
    rest = accelerator.skip_first_batches(loader, skipped)
    got, last = [], []
    for batch in rest:
        got.append(batch.id.tolist())
        last.append(accelerator.gradient_state.end_of_dataloader)
    assert got == EPOCH[skipped:]
    assert last == [False] * (len(got) - 1) + [True]


def test_the_epoch_is_chosen_by_set_epoch(folder):
    with pinfeed.open(folder, batch_size=BATCH, shuffle=True) as feed, pinfeed.open(folder, batch_size=BATCH, shuffle=True) as plain:
        loader = accelerate.Accelerator().prepare(pinfeed.accelerate.Loader(feed))
        epochs = [ids(plain) for _ in range(3)]
        loader.set_epoch(2)
        assert (loader.iteration, ids(loader)) == (2, epochs[2])
        loader.set_epoch(1)
        assert ids(loader) == epochs[1]


def test_the_position_is_saved_and_loaded(folder, tmp_path):
    def prepared(feed):
        accelerator = accelerate.Accelerator()
        return accelerator, accelerator.prepare(pinfeed.accelerate.Loader(feed))

    with pinfeed.open(folder, batch_size=BATCH, shuffle=True) as feed:
        accelerator, loader = prepared(feed)
        ids(loader)
        batches = iter(loader)
        got = [next(batches).id.tolist() for _ in range(2)]
        accelerator.save_state(str(tmp_path / "state"))
        expected = [batch.id.tolist() for batch in batches], ids(loader)
    accelerator.free_memory()
    with pinfeed.open(folder, batch_size=BATCH, shuffle=True) as feed:
        accelerator, loader = prepared(feed)
        accelerator.load_state(str(tmp_path / "state"))
        assert (ids(loader), ids(loader)) == expected and len(got + expected[0]) == 6


def test_what_cannot_be_is_refused(folder, feed):
    loader = pinfeed.accelerate.Loader(feed)
    loader.batch_sampler.even_batches = True
    with pytest.raises(pinfeed.InvalidArgumentError, match="even_batches: False is not possible"):
        loader.batch_sampler.even_batches = False
    with pinfeed.open(folder, batch_size=BATCH, framework="numpy") as arrays:
        with pytest.raises(pinfeed.InvalidArgumentError, match='the feed has numpy\'s: open it with framework="torch"'):
            pinfeed.accelerate.Loader(arrays)


def test_a_feed_without_its_loader_is_told_of_once(feed, caplog):
    accelerator = accelerate.Accelerator()
    assert accelerator.prepare(feed) is feed
    for _ in range(2):
        assert ids(feed) == EPOCH
    (warning,) = [record.message for record in caplog.records if record.name == "pinfeed"]
    assert "Pass pinfeed.accelerate.Loader(feed) to prepare()" in warning
    caplog.clear()
    with pinfeed.open(feed._spec["dataset"]["path"], batch_size=BATCH) as other:
        ids(accelerator.prepare(pinfeed.accelerate.Loader(other)))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


RANK = """
import json, sys
import accelerate, torch
import pinfeed, pinfeed.accelerate
if not hasattr(torch.cpu, "device_count"):  # Debian's PyTorch is older than what Accelerate wants for several processes without GPUs
    torch.cpu.device_count, torch.cpu.set_device = lambda: 1, lambda device: None
accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
feed = pinfeed.open(sys.argv[1], batch_size=4, shuffle=True)
model = torch.nn.Linear(1, 1)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), pinfeed.accelerate.Loader(feed))
gathered, synced = [], []
for _ in range(2):
    gathered.append([])
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch.x).mean())
            synced.append(accelerator.sync_gradients)
            optimizer.step()
            optimizer.zero_grad()
        gathered[-1] += accelerator.gather_for_metrics(batch.id).tolist()
rest = [accelerator.gather(batch.id).tolist() for batch in accelerator.skip_first_batches(loader, 2)]
print(json.dumps([feed.rank_source, len(loader), gathered, synced, rest]))
"""


def test_two_ranks_count_each_sample_once(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder)],
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    results = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert results[0] == results[1]
    source, length, gathered, synced, rest = results[0]
    assert (source, length) == ("torch.distributed", 3)
    for epoch in gathered:
        assert sorted(epoch) == list(range(SAMPLES))
    assert gathered[0] != gathered[1] and synced == [False, True, True] * 2
    assert [len(batch) for batch in rest] == [6]
