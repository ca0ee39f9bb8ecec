# SPDX-License-Identifier: Apache-2.0
"""Samples that cannot be read, against a real daemon: what the trainer then gets, in every field and on every rank."""

import logging

import numpy
import pytest
from PIL import Image

import pinfeed

SIDE = 6


@pytest.fixture
def pictures(tmp_path):
    """Twelve pictures of two classes, one colour each: sample i is i + 1 all over. `spoil` makes some of them unreadable."""
    names = []
    for number in range(12):
        folder = tmp_path / ("a" if number < 4 else "b")
        folder.mkdir(exist_ok=True)
        names.append(folder / f"{number:02}.png")
        Image.new("RGB", (SIDE, SIDE), (number + 1,) * 3).save(names[-1])

    def spoil(*numbers):
        for number in numbers:
            names[number].write_bytes(names[number].read_bytes()[:40])
        return tmp_path

    return spoil


OPTIONS = dict(batch_size=4, transforms=[pinfeed.Resize((SIDE, SIDE))], sample_ids=True, valid=True)


def values(tensor):
    return numpy.asarray(tensor).tolist()


@pytest.mark.parametrize("options", [{"framework": "numpy"}, {"framework": "torch"}, {"framework": "numpy", "zero_copy": False}])
def test_a_zeroed_sample_is_zero_in_every_field(feeds, pictures, options):
    if options["framework"] == "torch":
        pytest.importorskip("torch")
    with pinfeed.open(pictures(0, 5, 6), on_bad_sample="zero", epochs=1, **OPTIONS, **options) as feed:
        batches = list(map(dict, (zip(batch._fields, batch) for batch in feed)))
    assert [values(batch["valid"]) for batch in batches] == [[False, True, True, True], [True, False, False, True], [True] * 4]
    assert str(batches[0]["valid"].dtype).endswith("bool")
    assert [values(batch["label"]) for batch in batches] == [[0, 0, 0, 0], [1, 0, 0, 1], [1] * 4]
    assert [values(batch["sample_id"]) for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    colours = [numpy.asarray(batch["image"]).reshape(4, -1) for batch in batches]
    assert all((image == image[:, :1]).all() for image in colours)
    assert [image[:, 0].tolist() for image in colours] == [[0, 2, 3, 4], [5, 0, 0, 8], [9, 10, 11, 12]]


def test_valid_is_a_tensor_of_every_feed_that_asks(feeds, pictures, arrays, tmp_path_factory):
    with pinfeed.open(pictures(5), on_bad_sample="skip", epochs=1, framework="numpy", **OPTIONS) as feed:
        assert [batch.valid.tolist() for batch in feed] == [[True] * 4, [True] * 3, [True] * 4]
    with pinfeed.open(arrays, batch_size=4, valid=True, framework="numpy", epochs=1) as feed:
        assert all(batch._fields[-1] == "valid" and batch.valid.all() for batch in feed)
    own = tmp_path_factory.mktemp("own")
    numpy.save(own / "valid.npy", numpy.arange(4))
    with pytest.raises(pinfeed.InvalidArgumentError, match="valid: the dataset has a field 'valid' of its own; leave valid out, or rename the field"):
        pinfeed.open(own, batch_size=4, valid=True, framework="numpy")


@pytest.mark.parametrize("options", [{"framework": "numpy"}, {"framework": "torch"}, {"framework": "torch", "zero_copy": False}, {"framework": "numpy", "layout": "HWC"}])
def test_an_empty_batch_is_a_batch(feeds, pictures, caplog, options):
    """The very first one, from which the package learns the layout, and the last one of the epoch."""
    if options["framework"] == "torch":
        pytest.importorskip("torch")
    folder = pictures(0, 1, 2, 3, 6, 8, 9, 10, 11)
    with caplog.at_level(logging.WARNING, "pinfeed"), pinfeed.open(folder, on_bad_sample="skip", epochs=2, **OPTIONS, **options) as feed:
        assert len(feed) == 3
        for _ in range(2):
            batches = list(feed)
            assert [(len(batch.label), batch.skipped, batch.last_of_epoch) for batch in batches] == [(0, 4, False), (3, 1, False), (0, 4, True)]
            image = (SIDE, SIDE, 3) if "layout" in options else (3, SIDE, SIDE)
            assert [tuple(tensor.shape) for tensor in batches[0]] == [(0, *image), (0,), (0,), (0,)]
            assert [str(tensor.dtype).split(".")[-1] for tensor in batches[2]] == ["uint8", "int64", "int64", "bool"]
            assert values(batches[1].label) == [1, 1, 1] and values(batches[1].sample_id) == [4, 5, 7]
            raw = batches[0].raw["image"]
            assert raw.shape == (0, *image) and raw.nbytes == 0 and numpy.asarray(raw).shape == raw.shape
            batches = batch = None
    warned = [record.getMessage() for record in caplog.records if "is empty" in record.getMessage()]
    assert len(warned) == 1 and "batch 0 of epoch 0 is empty: all its 4 samples are bad" in warned[0]
    assert "NaN" in warned[0] and "on_bad_sample zero with valid" in warned[0]


@pytest.mark.parametrize("what", ["skip", "zero"])
def test_the_trainers_log_tells_how_many_there_are(feeds, pictures, caplog, what):
    with caplog.at_level(logging.WARNING, "pinfeed"), pinfeed.open(pictures(0, 5, 6, 11), on_bad_sample=what, epochs=1, framework="numpy", **OPTIONS) as feed:
        assert len(list(feed)) == 3
    first, last = [record.getMessage() for record in caplog.records]
    made = {"skip": "left out of the batches", "zero": "made zeros"}[what]
    assert first.startswith(f"1 bad sample, up to batch 0 of epoch 0, {made}") and last.startswith(f"4 bad samples, up to batch 2 of epoch 0, {made}")


def test_a_run_resumes_behind_an_empty_batch(feeds, pictures):
    folder = pictures(4, 5, 6, 7)
    with pinfeed.open(folder, on_bad_sample="skip", framework="numpy", **OPTIONS) as feed:
        states = []
        for batch in feed:
            states.append((batch.index, feed.state_dict()))
    assert [index for index, _ in states] == [0, 1, 2]
    for index, state in states:
        with pinfeed.open(folder, on_bad_sample="skip", framework="numpy", state=state, **OPTIONS) as feed:
            assert [batch.index for batch in feed] == list(range(index + 1, 3))


@pytest.mark.parametrize("bad", [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (2, 3), ()])
def test_ranks_get_equally_many_batches(feeds, pictures, bad):
    folder = pictures(*bad)
    seen = []
    for rank in (0, 1):
        with pinfeed.open(folder, on_bad_sample="skip", epochs=1, rank=rank, world_size=2, framework="numpy", **{**OPTIONS, "batch_size": 2}) as feed:
            batches = [(batch.index, batch.last_of_epoch, batch.sample_id.tolist()) for batch in feed]
        assert [(index, last) for index, last, _ in batches] == [(0, False), (1, False), (2, True)]
        seen += sum((ids for _, _, ids in batches), [])
    assert sorted(seen) == sorted(set(range(12)) - set(bad))


@pytest.mark.parametrize("choice", ["skip", "zero"])
def test_an_epoch_without_a_good_sample_is_an_error(feeds, pictures, choice):
    with pinfeed.open(pictures(*range(12)), on_bad_sample=choice, framework="numpy", **OPTIONS) as feed:
        with pytest.raises(pinfeed.DataLossError, match=rf"on_bad_sample {choice}: a whole epoch \(3 batches\) had no good sample"):
            for _ in range(2):
                for _ in feed:
                    pass


@pytest.mark.parametrize("share", ["broadcast", "queue"])
def test_groups_get_empty_batches_too(feeds, pictures, share):
    options = dict(on_bad_sample="skip", epochs=1, framework="numpy", share=share, group=f"bad-{share}", **OPTIONS)
    with pinfeed.open(pictures(4, 5, 6, 7), **options) as feed:
        assert [(batch.index, len(batch.label)) for batch in feed] == [(0, 4), (1, 0), (2, 4)]
