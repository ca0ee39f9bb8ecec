# SPDX-License-Identifier: Apache-2.0
"""Two ranks of Lightning, which starts the second one. In: a folder; "begin" for three steps and a checkpoint, or "continue" from there to the
end of the second epoch. Out: `<what><rank>.json` with the samples in the order of training and the weight.
"""

import json
import pathlib
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from points import BATCH, Points, lightning_model, lightning_trainer
from torch.utils.data.distributed import DistributedSampler

import pinfeed


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return pinfeed.DataLoader(Points(), BATCH, sampler=DistributedSampler(Points()), num_workers=1)


def main(folder, what):
    torch.set_num_threads(1)
    seen, ranks = [], {"strategy": "ddp", "devices": 2}
    model = lightning_model(seen)
    if what == "begin":
        saves = ModelCheckpoint(folder, "three", every_n_train_steps=3)
        lightning_trainer(folder, max_steps=3, callbacks=[saves], **ranks).fit(model, datamodule=Data())
    else:
        trainer = lightning_trainer(folder, max_epochs=2, enable_checkpointing=False, **ranks)
        trainer.fit(model, datamodule=Data(), ckpt_path=folder / "three.ckpt", weights_only=False)
    (folder / f"{what}{torch.distributed.get_rank()}.json").write_text(json.dumps([seen, model.layer.weight.item()]))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
