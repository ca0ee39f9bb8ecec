# SPDX-License-Identifier: Apache-2.0
"""A dataset for the tests here, and a model and a trainer of Lightning for it."""

import lightning
import torch

SAMPLES, BATCH = 40, 4


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index


def lightning_model(seen):
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
    return lightning.Trainer(
        accelerator="cpu", default_root_dir=folder, logger=False, enable_progress_bar=False, enable_model_summary=False, **arguments
    )
