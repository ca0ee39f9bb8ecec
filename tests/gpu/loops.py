# SPDX-License-Identifier: Apache-2.0
"""Feeds in the loops of others: Lightning's Trainer (resuming in mid-epoch, ranks that are known late) and torchvision's v2 masks.

  loops.py ADDRESS FOLDER

What comes in: a daemon that may read FOLDER. What goes out: a line for each promise; exit status 1 when one is broken.
"""
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy
import torch

import pinfeed

SAMPLES, BATCH, EPOCHS = 60, 4, 3


def make_data(folder):
    folder.mkdir(parents=True, exist_ok=True)
    numpy.save(folder / "id.npy", numpy.arange(SAMPLES))
    numpy.save(folder / "x.npy", numpy.arange(SAMPLES, dtype=numpy.float32)[:, None])


def fit(address, folder, seen, save_after=None, checkpoint=None, to=None, **options):
    """Trains; what every step got goes to `seen`. `save_after`: writes a checkpoint `to` a file after so many steps, and stops."""
    import pytorch_lightning as lightning

    feed = pinfeed.open(folder, batch_size=BATCH, shuffle=True, seed=3, address=address)

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            seen.append([self.global_rank, self.current_epoch, batch[0].tolist()])
            return self.layer(batch[1]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def on_train_batch_end(self, *_):
            if len(seen) == save_after:
                self.trainer.save_checkpoint(to)

    trainer = lightning.Trainer(
        max_epochs=EPOCHS, max_steps=-1 if save_after is None else save_after, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, **options,
    )  # fmt: skip
    trainer.fit(Model(), feed, ckpt_path=checkpoint)
    feed.close()


def lightning_resumes(address, folder):
    """By Lightning's own checkpoint, which has the state of every loader that gives one."""
    whole, first, rest = [], [], []
    fit(address, folder, whole)
    stop, file = SAMPLES // BATCH + 4, folder.parent / "amid the second epoch.ckpt"
    fit(address, folder, first, save_after=stop, to=file)
    fit(address, folder, rest, checkpoint=file)
    ids = [[step[2] for step in part] for part in (whole, first, rest)]
    assert ids[1] + ids[2] == ids[0], (len(ids[1]), len(ids[2]), ids[2][:2], ids[0][stop : stop + 2])
    return f"{len(ids[0])} steps, stopped after {stop}"


def lightning_shards(address, folder):
    command = [sys.executable, __file__, "--rank-of-two", address, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [json.loads(line) for path in sorted(folder.parent.glob("rank-*.json")) for line in path.read_text().splitlines()]
    for epoch in range(EPOCHS):
        ids = [number for _, at, batch in steps if at == epoch for number in batch]
        assert len(ids) == SAMPLES and set(ids) == set(range(SAMPLES)), (epoch, len(ids), len(set(ids)))
    assert {rank for rank, _, _ in steps} == {0, 1}
    return f"{len(steps)} steps of two ranks, each sample once an epoch"


def one_of_two(address, folder):
    """Lightning starts the second process itself, so the feed is opened before it is known which rank this is."""
    seen = []
    fit(address, folder, seen, strategy="ddp", devices=2)
    (folder.parent / f"rank-{seen[0][0]}.json").write_text("".join(json.dumps(step) + "\n" for step in seen))


def masks_of_v2(address, folder):
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    random = numpy.random.default_rng(5)
    image = random.integers(0, 255, (16, 37, 53, 3), dtype=numpy.uint8)
    mask = random.integers(0, 9, (16, 37, 53), dtype=numpy.int64)
    folder = folder.parent / "masks"
    folder.mkdir(exist_ok=True)
    numpy.save(folder / "image.npy", image)
    numpy.save(folder / "mask.npy", mask)
    for steps in ([v2.Resize((24, 40))], [v2.Resize((91, 64)), v2.CenterCrop(48)], [v2.CenterCrop((60, 20)), v2.RandomHorizontalFlip(1.0)]):
        wanted = v2.Compose(steps)(tv_tensors.Mask(torch.from_numpy(mask)))
        with pinfeed.open(folder, batch_size=16, transforms=steps, masks="mask", address=address, epochs=1) as feed:
            got = next(iter(feed)).mask
        assert torch.equal(got, torch.as_tensor(wanted)), steps
    return "3 chains, every mask equal"


def main():
    if sys.argv[1] == "--rank-of-two":
        return one_of_two(sys.argv[2], pathlib.Path(sys.argv[3]))
    address, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    failed = False
    with tempfile.TemporaryDirectory(dir=folder) as place:
        data = pathlib.Path(place) / "data"
        make_data(data)
        for name, check in (
            ("Lightning goes on in mid-epoch", lightning_resumes),
            ("Lightning's ranks, known after the feed was opened", lightning_shards),
            ("torchvision v2's masks", masks_of_v2),
        ):
            try:
                with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    told = check(address, data)
                print(f"ok   {name:<60} {told}", flush=True)
            except Exception as error:
                failed = True
                print(f"FAIL {name:<60} {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
