# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` in Lightning, Accelerate, Hugging Face's Trainer, timm and JAX. The daemon tells that the batches came through it."""

import numpy
import pytest
import torch
from daemon_process import Daemon
from produced import produced_by

import pinfeed

SAMPLES, BATCH = 40, 4

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = Daemon(tmp_path_factory.mktemp("daemon") / "run", "--pool-bytes", "512MiB", "--workers", "2")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def feeds(daemon, monkeypatch):
    monkeypatch.setenv("PINFEED_ADDRESS", daemon.address)


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index


def loader_of_points(**arguments):
    return pinfeed.DataLoader(Points(), batch_size=BATCH, num_workers=2, **arguments)


# ---- Lightning ----------------------------------------------------------------------------------------------------------------------


def lightning_model(seen):
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            values, index = batch
            seen.extend(index.tolist())
            return self.layer(values).mean()

        def validation_step(self, batch, _):
            self.log("validation", self.layer(batch[0]).mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-4)

    return Model()


def lightning_trainer(folder, **arguments):
    import lightning

    return lightning.Trainer(
        accelerator="cpu", default_root_dir=folder, logger=False, enable_progress_bar=False, enable_model_summary=False, **arguments
    )


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
