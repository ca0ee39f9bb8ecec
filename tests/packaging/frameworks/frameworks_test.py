# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` in Lightning, Accelerate, Hugging Face's Trainer, timm, JAX, torchdata, tensordict and torchrl. The daemon tells that the
batches came through it.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import example_datasets_test
import numpy
import pytest
import torch
from daemon_process import Daemon
from points import BATCH, SAMPLES, Points, lightning_model, lightning_trainer
from produced import produced_by

import pinfeed

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = Daemon(tmp_path_factory.mktemp("daemon") / "run", "--pool-bytes", "512MiB", "--workers", "2")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def feeds(daemon, monkeypatch):
    monkeypatch.setenv("PINFEED_ADDRESS", daemon.address)


def loader_of_points(**arguments):
    return pinfeed.DataLoader(Points(), batch_size=BATCH, num_workers=2, **arguments)


# ---- Lightning ----------------------------------------------------------------------------------------------------------------------


def test_lightning_fits_and_validates(daemon, tmp_path):
    seen = []
    trainer = lightning_trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0, enable_checkpointing=False)
    with produced_by(daemon) as produced:
        trainer.fit(lightning_model(seen), loader_of_points(shuffle=True), loader_of_points())
    assert sorted(seen) == sorted([*range(SAMPLES)] * 2) and seen[:SAMPLES] != seen[SAMPLES:]
    assert produced.batches == 4 * SAMPLES // BATCH


def test_lightning_continues_in_the_middle_of_an_epoch(daemon, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    torch.manual_seed(2)
    before, after = [], []
    saves = ModelCheckpoint(tmp_path, "six", every_n_train_steps=6)
    lightning_trainer(tmp_path, max_steps=6, callbacks=[saves]).fit(lightning_model(before), loader_of_points(shuffle=True))
    with produced_by(daemon) as produced:
        lightning_trainer(tmp_path, max_epochs=1, enable_checkpointing=False).fit(
            lightning_model(after), loader_of_points(shuffle=True), ckpt_path=tmp_path / "six.ckpt", weights_only=False
        )
    assert len(before) == 6 * BATCH and sorted(before + after) == list(range(SAMPLES))
    assert produced.batches == SAMPLES // BATCH - 6


def test_two_ranks_of_lightning_continue_in_the_middle_of_an_epoch(daemon, tmp_path):
    def run(what):
        """Returns what each rank has seen."""
        command = [sys.executable, pathlib.Path(__file__).with_name("lightning_ranks.py"), tmp_path, what]
        ran = subprocess.run(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr
        (first, weight), (second, other) = (json.loads((tmp_path / f"{what}{rank}.json").read_text()) for rank in range(2))
        assert weight == other
        return first, second

    before = run("begin")
    with produced_by(daemon) as produced:
        after = run("continue")
    rest = SAMPLES // 2 - 3 * BATCH
    assert [len(seen) for seen in (*before, *after)] == [3 * BATCH] * 2 + [rest + SAMPLES // 2] * 2
    assert sorted(before[0] + before[1] + after[0][:rest] + after[1][:rest]) == list(range(SAMPLES))
    assert sorted(after[0][rest:] + after[1][rest:]) == list(range(SAMPLES))
    assert after[0][rest:] != before[0] + after[0][:rest]
    assert (produced.feeds, produced.batches) == (4, 2 * (rest + SAMPLES // 2) // BATCH)


# ---- Hugging Face -------------------------------------------------------------------------------------------------------------------


def test_accelerate_leaves_the_loader_as_it_is(daemon):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    made = loader_of_points(shuffle=True)
    model = torch.nn.Linear(1, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-4), made)
    seen = []
    with produced_by(daemon) as produced:
        for values, index in loader:
            accelerator.backward(model(values).mean())
            optimizer.step()
            optimizer.zero_grad()
            seen += index.tolist()
    assert loader is made and sorted(seen) == list(range(SAMPLES)) and produced.batches == SAMPLES // BATCH


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        length = 1 + index % 7
        return {"input_ids": [2 + index % 5] * length, "attention_mask": [1] * length, "labels": index % 2}


def test_the_trainer_of_hugging_face_with_a_padding_collator(daemon, tmp_path):
    import tokenizers
    import transformers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    shapes = set()

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return pinfeed.DataLoader(
                self.train_dataset, self.args.per_device_train_batch_size, shuffle=True, num_workers=2, collate_fn=self.data_collator
            )

        def compute_loss(self, model, inputs, *arguments, **named):
            shapes.add(tuple(inputs["input_ids"].shape))
            return super().compute_loss(model, inputs, *arguments, **named)

    config = transformers.BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, max_position_embeddings=8
    )
    trainer = Trainer(
        model=transformers.BertForSequenceClassification(config),
        args=transformers.TrainingArguments(
            tmp_path, num_train_epochs=2, per_device_train_batch_size=BATCH, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True
        ),
        train_dataset=Texts(),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    with produced_by(daemon) as produced:
        trainer.train()
    assert trainer.state.global_step == 2 * SAMPLES // BATCH == produced.batches
    assert {rows for rows, _ in shapes} == {BATCH} and len(shapes) > 1


# ---- timm and JAX -------------------------------------------------------------------------------------------------------------------


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return numpy.full((3, 16, 16), index, numpy.uint8), index % 10


@pytest.mark.parametrize("persistent", [False, True])
def test_timms_collators(daemon, persistent):
    import timm.data

    collate = timm.data.FastCollateMixup(mixup_alpha=0.8, num_classes=10)
    loader = pinfeed.DataLoader(Pictures(), 8, shuffle=True, num_workers=2, collate_fn=collate, drop_last=True, persistent_workers=persistent)
    with produced_by(daemon) as produced:
        for images, targets in [batch for _ in range(2) for batch in loader]:
            assert (images.shape, images.dtype, targets.shape) == ((8, 3, 16, 16), torch.uint8, (8, 10))
            assert torch.allclose(targets.sum(1), torch.ones(8), atol=1e-3)
    assert produced.batches == 2 * SAMPLES // 8


def numpy_of(samples):
    return [numpy.stack(column) for column in zip(*samples)]


def test_jax_trains_on_numpy_batches(daemon):
    import jax

    @jax.jit
    def mean(images):
        return images.astype("float32").mean(axis=(1, 2, 3))

    seen = []
    with produced_by(daemon) as produced:
        for images, _ in pinfeed.DataLoader(Pictures(), BATCH, num_workers=2, collate_fn=numpy_of):
            assert isinstance(images, numpy.ndarray)
            seen += mean(images).tolist()
    assert seen == list(range(SAMPLES)) and produced.batches == SAMPLES // BATCH


# ---- torchdata ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [1, SAMPLES // BATCH])
def test_a_state_continues_where_that_of_torchdata_does(daemon, taken):
    """At an epoch's end, too. Shuffled, torchdata has another order than torch."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def epochs_after(kind):
        stopped, resumed = (kind(Points(), BATCH, num_workers=2) for _ in range(2))
        iterator = iter(stopped)
        for _ in range(taken):
            next(iterator)
        resumed.load_state_dict(stopped.state_dict())
        return [[index.tolist() for _, index in resumed] for _ in range(2)]

    expected = epochs_after(StatefulDataLoader)
    assert [len(epoch) for epoch in expected] == [SAMPLES // BATCH - taken, SAMPLES // BATCH]
    with produced_by(daemon) as produced:
        assert epochs_after(pinfeed.DataLoader) == expected
    assert produced.batches >= 2 * SAMPLES // BATCH


# ---- tensordict and torchrl ---------------------------------------------------------------------------------------------------------


def transition(index):
    from tensordict import TensorDict

    return TensorDict({"observation": torch.full((4,), float(index)), "next": {"reward": torch.tensor([index / 2])}, "action": torch.tensor(index % 3)})


class Transitions(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return transition(index)


def as_it_is(batch):
    return batch


def assert_transitions(batch, indices):
    assert type(batch).__name__ == "TensorDict" and batch.batch_size == (len(indices),)
    assert (batch == torch.stack([transition(index) for index in indices])).all()


def test_tensordicts_are_stacked(daemon):
    with produced_by(daemon) as produced:
        batches = list(pinfeed.DataLoader(Transitions(), BATCH, num_workers=2, collate_fn=torch.stack))
    for number, batch in enumerate(batches):
        assert_transitions(batch, range(number * BATCH, (number + 1) * BATCH))
    assert produced.batches == len(batches) == SAMPLES // BATCH


def test_a_tensordict_is_a_dataset_that_is_asked_for_whole_batches(daemon, tmp_path):
    stored = torch.stack(list(map(transition, range(SAMPLES)))).memmap(tmp_path)
    with produced_by(daemon) as produced:
        batches = list(pinfeed.DataLoader(stored, BATCH, num_workers=2, collate_fn=as_it_is))
    for number, batch in enumerate(batches):
        assert_transitions(batch, range(number * BATCH, (number + 1) * BATCH))
    assert produced.batches == len(batches) == SAMPLES // BATCH


def test_a_replay_buffer_of_torchrl_is_sampled_with_replacement(daemon, tmp_path):
    from torchrl.data import LazyMemmapStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyMemmapStorage(SAMPLES, scratch_dir=tmp_path))
    buffer.extend(torch.stack(list(map(transition, range(SAMPLES)))))
    sampler, drawn = torch.utils.data.RandomSampler(buffer, replacement=True, num_samples=10 * SAMPLES), set()
    with produced_by(daemon) as produced:
        for batch in pinfeed.DataLoader(buffer, BATCH, sampler=sampler, num_workers=2, collate_fn=torch.stack):
            indices = batch["observation"][:, 0].int().tolist()
            assert_transitions(batch, indices)
            drawn.update(indices)
    assert produced.batches == 10 * SAMPLES // BATCH and len(drawn) > SAMPLES // 2


# ---- examples -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", example_datasets_test.EXAMPLES)
def test_the_tests_of_examples_beside_this_one_lack_nothing(example):
    importlib.import_module(example_datasets_test.EXAMPLES[example][1])
