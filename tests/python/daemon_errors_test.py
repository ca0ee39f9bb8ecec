# SPDX-License-Identifier: Apache-2.0
"""What goes wrong when a feed is opened or read, said in full, by a real daemon."""

import json
import struct

import numpy
import pytest
from withstand.hardship import eventually

import pinfeed
from pinfeed._base import abi


@pytest.mark.parametrize(
    "options, code, words",
    [
        (dict(dataset="/no/such/place"), "NOT_FOUND", "/no/such/place"),
        (dict(dataset="no-such-name"), "NOT_FOUND", "no-such-name"),
        (dict(dataset="a\nname"), "INVALID_ARGUMENT", "dataset.name"),
        (dict(dataset=""), "INVALID_ARGUMENT", "dataset"),
        (dict(dataset="s3://bucket/train"), "INVALID_ARGUMENT", "this host's file system"),
        (dict(batch_size=0), "INVALID_ARGUMENT", "batch_size"),
        (dict(batch_size=-1), "INVALID_ARGUMENT", "batch_size"),
        (dict(batch_size=2**40), "INVALID_ARGUMENT", "batch_size"),
        (dict(seed=-1), "INVALID_ARGUMENT", "seed"),
        (dict(rank=2, world_size=2), "INVALID_ARGUMENT", "rank"),
        (dict(rank=-1, world_size=2), "INVALID_ARGUMENT", "rank"),
        (dict(batch_size=65, drop_last=True), "INVALID_ARGUMENT", "batch_size"),
        (dict(slots=1), "INVALID_ARGUMENT", "slots"),
        (dict(slots=1000), "INVALID_ARGUMENT", "slots"),
        (dict(format="parquet"), "INVALID_ARGUMENT", "parquet"),
        (dict(transforms=[pinfeed.Resize(None)]), "INVALID_ARGUMENT", "resize.size"),
        (dict(transforms=[pinfeed.Resize(8, max_size=0)]), "INVALID_ARGUMENT", "resize.max_size"),
        (dict(transforms=[pinfeed.CenterCrop(-3)]), "INVALID_ARGUMENT", "size"),
        (dict(transforms=[pinfeed.CenterCrop(0)]), "INVALID_ARGUMENT", "center_crop"),
        (dict(transforms=[pinfeed.CenterCrop((1, 2, 3))]), "INVALID_ARGUMENT", "center_crop"),
        (dict(transforms=[pinfeed.RandomHorizontalFlip(float("nan"))]), "INVALID_ARGUMENT", "random_horizontal_flip"),
        (dict(transforms=[pinfeed.Normalize([0], [0])]), "INVALID_ARGUMENT", "std"),
        (dict(transforms=[pinfeed.ToDtype("complex64")]), "INVALID_ARGUMENT", "to_dtype"),
        (dict(name="x" * 1000), "INVALID_ARGUMENT", "name: 'xxx"),
        (dict(share="queue"), "INVALID_ARGUMENT", "group"),
        (dict(address="/no/such/socket"), "UNAVAILABLE", "/no/such/socket"),
        (dict(address="/" + "x" * 200), "INVALID_ARGUMENT", "bytes"),
    ],
)
def test_errors_name_what_is_wrong(feeds, arrays, options, code, words):
    options = {"dataset": arrays, "batch_size": 4, "framework": "numpy", **options}
    with pytest.raises(pinfeed.Error) as caught:
        pinfeed.open(options.pop("dataset"), **options).close()
    assert caught.value.code.name == code, str(caught.value)
    assert words in str(caught.value)
    # A user's text must not forge lines.
    assert "a\nname" not in str(caught.value)


def test_one_error_lists_every_fault(feeds, arrays):
    with pytest.raises(pinfeed.InvalidArgumentError) as caught:
        pinfeed.open(arrays, batch_size=0, rank=3, world_size=2, slots=1, transforms=[pinfeed.CenterCrop(0)])
    for field in ("batch_size", "rank", "slots", "transforms"):
        assert field in str(caught.value)


def test_transforms_on_what_is_no_image(feeds, arrays):
    with pytest.raises(pinfeed.InvalidArgumentError, match="(?i)transform"):
        pinfeed.open(arrays, batch_size=4, transforms=[pinfeed.CenterCrop(2)])


def lying_npy(path, shape, descr="<f8", data=b"\0" * 64):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)


@pytest.mark.parametrize(
    "shape, descr",
    [
        ("(1000000000, 1000)", "<f8"),
        ("(4611686018427387904, 4611686018427387904)", "<f8"),
        ("(18446744073709551616,)", "<f8"),
        ("(-1,)", "<f8"),
        ("(9,)", "<f8"),
        ("()", "<f8"),
        ("(8,)", "|O"),
        ("(8,)", "<f99"),
        ("(8", "<f8"),
    ],
)
def test_a_header_that_lies_is_refused(feeds, tmp_path, shape, descr):
    lying_npy(tmp_path / "lie.npy", shape, descr)
    with pytest.raises(pinfeed.Error, match="lie.npy") as caught:
        pinfeed.open(tmp_path / "lie.npy", batch_size=1)
    assert caught.value.code in (pinfeed.Code.INVALID_ARGUMENT, pinfeed.Code.DATA_LOSS, pinfeed.Code.UNIMPLEMENTED), str(caught.value)


def test_bad_images(daemon, feeds, tmp_path):
    from PIL import Image

    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(4):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / label / f"{number}.png")
    (tmp_path / "b" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nand no more")
    options = dict(batch_size=4, transforms=[pinfeed.Resize((8, 8))], framework="numpy", epochs=1)
    with pinfeed.open(tmp_path, **options) as feed:
        with pytest.raises(pinfeed.DataLossError, match=r"1.png(.|\n)*on_bad_sample|on_bad_sample(.|\n)*1.png"):
            for _ in feed:
                pass
    with pinfeed.open(tmp_path, on_bad_sample="skip", **options) as feed:
        batches = [(batch.label.tolist(), batch.skipped) for batch in feed]
        assert batches == [([0, 0, 0, 0], 0), ([1, 1, 1], 1)]
    with pinfeed.open(tmp_path, on_bad_sample="zero", **options) as feed:
        red = [batch.image[:, 0, 0, 0].tolist() for batch in feed]
        assert red == [[0, 1, 2, 3], [0, 0, 2, 3]]
    # The log names the file also when the feeds are gone; the one that failed has its error there.
    eventually("the failure is logged", lambda: any("failed: " in line and str(tmp_path) in line for line in daemon.log().splitlines()))
    lines = [line for line in daemon.log().splitlines() if str(tmp_path) in line]
    assert sum("bad sample 5: " in line and "1.png" in line and "warning" in line for line in lines) == 2, lines
    assert sum("failed: " in line and "1.png" in line for line in lines) == 1, lines


def test_a_state_of_another_order_is_refused(feeds, arrays):
    def open_feed(shuffle, seed=0, batch_size=4, rank=0, world_size=1):
        return pinfeed.open(arrays, batch_size=batch_size, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size, framework="numpy")

    for shuffle, words in ((True, "order: the state is of a shuffled feed, this one is sequential"), (False, "of a sequential feed, this one is shuffled")):
        with open_feed(shuffle) as feed, open_feed(not shuffle) as other:
            for moved in range(2):  # at the start of the epoch, and within it
                with pytest.raises(pinfeed.InvalidArgumentError, match=words):
                    other.load_state_dict(json.loads(json.dumps(feed.state_dict())))
                next(iter(feed))
            assert len(list(other)) == len(other)  # it stays where it was
    with open_feed(True, seed=1) as feed, open_feed(True, seed=2) as other:
        with pytest.raises(pinfeed.InvalidArgumentError, match="seed: the state is of a feed shuffled with seed 1, this one has seed 2"):
            other.load_state_dict(feed.state_dict())
    with open_feed(True) as feed, open_feed(True, batch_size=3) as other:
        next(iter(feed))
        with pytest.raises(pinfeed.InvalidArgumentError, match="position 4 is not a boundary.*batch_size"):
            other.load_state_dict(feed.state_dict())
    # What may change: the seed of a feed that does not shuffle, and the world size with the same global batch.
    with open_feed(False, seed=1) as feed, open_feed(False, seed=2, batch_size=2, rank=1, world_size=2) as other:
        next(iter(feed))
        other.load_state_dict(feed.state_dict())
        assert next(iter(other)).id.tolist() == [6, 7]


def test_a_state_of_the_first_version_is_refused_where_its_order_differs(feeds, arrays):
    def older(state):
        return dict(state, cursor=dict(state["cursor"], version=1))

    def open_feed(shuffle=True, **options):
        return pinfeed.open(arrays, batch_size=4, shuffle=shuffle, framework="numpy", **options)

    with open_feed() as feed:
        start = feed.state_dict()
        assert start["cursor"]["version"] == 2
        running = iter(feed)
        next(running)
        within = feed.state_dict()
        assert within["cursor"]["version"] == 2
        with pytest.raises(pinfeed.InvalidArgumentError, match=r"(?s)an earlier pinfeed .*rest of epoch 0 .*set_epoch\(0\)"):
            feed.load_state_dict(older(within))
        with pytest.raises(pinfeed.InvalidArgumentError, match="version: 3 is none of the versions 1 to 2"):
            feed.load_state_dict(dict(within, cursor=dict(within["cursor"], version=3)))
        rest = [batch.id.tolist() for batch in running]
        assert len(rest) == len(feed) - 1  # it stays where it was
        whole = [batch.id.tolist() for batch in feed]  # epoch 1
    with open_feed(state=older(within | {"epoch_ended": True, "cursor": within["cursor"] | {"position": "64"}})) as feed:
        assert feed.state_dict()["cursor"]["version"] == 2
        assert list(feed) == []  # the rest of epoch 0
        assert [batch.id.tolist() for batch in feed] == whole
    with open_feed(state=older(start)) as feed:
        assert [batch.id.tolist() for batch in feed][1:] == rest
    with open_feed(shuffle=False) as feed:
        next(iter(feed))
        state = older(feed.state_dict())
    with open_feed(shuffle=False, state=state) as feed:
        assert next(iter(feed)).id.tolist() == [4, 5, 6, 7]


def test_classes_of_a_path(feeds, arrays, tmp_path):
    from PIL import Image

    for name in ("dog", "cat", "caf\u00e9"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    with pinfeed.open(tmp_path, batch_size=1, transforms=[pinfeed.Resize((8, 8))], framework="numpy") as feed:
        assert feed.classes == ["caf\u00e9", "cat", "dog"]
    with pinfeed.open(arrays, batch_size=1, framework="numpy") as feed:
        assert feed.classes == []


def test_a_state_of_other_data_is_refused(feeds, arrays, tmp_path):
    numpy.save(tmp_path / "other.npy", numpy.arange(7))
    with pinfeed.open(arrays, batch_size=4, shuffle=True, framework="numpy") as feed, pinfeed.open(tmp_path, batch_size=4, framework="numpy") as other:
        next(iter(feed))
        with pytest.raises(pinfeed.Error, match="cursor"):
            other.load_state_dict(feed.state_dict())
    with pinfeed.open(arrays, batch_size=4, shuffle=True, seed=1, framework="numpy") as reseeded:
        state = dict(reseeded.state_dict())
        state["cursor"] = dict(state["cursor"], seed="7", position="4")
        with pytest.raises(pinfeed.InvalidArgumentError, match="seed"):
            reseeded.load_state_dict(state)


def test_an_open_that_a_signal_interrupted_leaves_no_feed(feeds, arrays, monkeypatch):
    library = abi.load()
    open_ = library.pf_open

    def interrupted(options, handle):
        assert open_(options, handle) == 0
        raise KeyboardInterrupt  # as from a signal handler, which runs when the function returns

    monkeypatch.setattr(library, "pf_open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pinfeed.open(arrays, batch_size=8)
    eventually("no feed is left", lambda: not pinfeed.status()["feeds"], 10)
