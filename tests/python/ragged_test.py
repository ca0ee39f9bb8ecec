# SPDX-License-Identifier: Apache-2.0
"""Fields whose samples have different numbers of rows: texts, lists and paths, packed and padded."""

import json
import math
import pickle

import numpy
import pytest
import torch
from PIL import Image

import pinfeed

pytestmark = pytest.mark.usefixtures("feeds")

# Lengths 0 and 1, text of several bytes a character, and a list that is empty.
CAPTIONS = ["", "a", "Grüße aus 東京", "x" * 300, "a cat on a mat", "🙂"] + [f"caption {n}" * (n % 7) for n in range(31)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A manifest without images, and its rows."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [
        {"id": n, "caption": caption, "tags": list(range(n % 5)), "scores": [n / 4 + k for k in range(n % 3)]} for n, caption in enumerate(CAPTIONS)
    ]
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path, rows


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name in ("cat/1.png", "cat/deep/a very long name for a cat.png", "dog/ümlaut.png", "dog/9.png", "dog/8.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_packed_rows_are_those_of_the_samples(texts, framework):
    path, rows = texts
    seen = []
    with pinfeed.open(path, batch_size=8, shuffle=True, epochs=1, framework=framework) as feed:
        for batch in feed:
            assert isinstance(batch.caption, pinfeed.Ragged) and len(batch.caption) == len(batch.id)
            ids = batch.id.tolist()
            assert batch.caption.decode() == [rows[n]["caption"] for n in ids]
            assert batch.tags.tolist() == [rows[n]["tags"] for n in ids]
            assert batch.scores.tolist() == [rows[n]["scores"] for n in ids]
            assert [str(field.values.dtype).split(".")[-1] for field in (batch.caption, batch.tags, batch.scores)] == ["uint8", "int64", "float64"]
            seen += ids
    assert sorted(seen) == list(range(len(rows)))


def test_a_ragged_field_is_a_sequence(texts):
    path, rows = texts
    with pinfeed.open(path, batch_size=len(rows), epochs=1, framework="numpy") as feed:
        (batch,) = feed
    tags = batch["tags"]
    assert len(tags) == len(rows) and tags.lengths.tolist() == [n % 5 for n in range(len(rows))]
    assert tags[-1].tolist() == rows[-1]["tags"] and [tag.tolist() for tag in tags[2:9:3]] == [rows[n]["tags"] for n in (2, 5, 8)]
    assert [tag.tolist() for tag in tags] == tags.tolist()
    assert torch.utils.data._utils.collate.default_convert(tags) is tags  # a DataLoader around the feed leaves it whole
    for index in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            tags[index]
    for index in (numpy.int64(4), numpy.uint8(4), numpy.asarray(4), torch.tensor(4), numpy.int32(4 - len(rows))):
        assert tags[index].tolist() == rows[4]["tags"]
    mask = [True] + [False] * (len(rows) - 1)
    for index in ([0, 1], (0,), mask, numpy.asarray(mask), numpy.asarray([1]), torch.tensor([1]), True, numpy.bool_(True), torch.tensor(True), 1.0, "a", None):
        with pytest.raises(TypeError, match="one integer or slice, not by .*for i in indices"):
            tags[index]
    with pytest.raises(TypeError, match="decode"):
        tags.decode()
    again = pickle.loads(pickle.dumps(tags))
    assert again.tolist() == tags.tolist()
    raw = batch.raw["tags"]
    assert raw.shape == (len(tags.values),) and (numpy.asarray(raw) == tags.values).all()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_boxes_are_rows_of_four(tmp_path, framework):
    boxes = [[[n, k, n + k, 0.5] for k in range(n % 4)] for n in range(11)]
    (tmp_path / "boxes.jsonl").write_text("".join(json.dumps({"boxes": of_one}) + "\n" for of_one in boxes))
    with pinfeed.open(tmp_path / "boxes.jsonl", batch_size=6, epochs=1, framework=framework) as feed:
        fields = [batch.boxes for batch in feed]
    assert [rows for field in fields for rows in field.tolist()] == boxes and fields[0][0].shape == (0, 4)
    assert fields[0].to_padded(value=-1).shape == (6, 3, 4) and fields[0].to_padded(value=-1)[1].tolist() == boxes[1] + [[-1] * 4] * 2
    with pinfeed.open(tmp_path / "boxes.jsonl", batch_size=6, epochs=1, framework=framework, pad={"boxes": 3}) as feed:
        batch = next(iter(feed))
        assert tuple(batch.boxes.shape) == (6, 3, 4) and batch.boxes_length.tolist() == [n % 4 for n in range(6)]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_to_padded(texts, framework):
    path, rows = texts
    with pinfeed.open(path, batch_size=len(rows), epochs=1, framework=framework) as feed:
        (batch,) = feed
    padded = batch.tags.to_padded(rows=6, value=-1)
    assert tuple(padded.shape) == (len(rows), 6) and padded.tolist() == [row["tags"] + [-1] * (6 - len(row["tags"])) for row in rows]
    assert batch.tags.to_padded().shape[1] == 4
    with pytest.raises(ValueError, match="rows=3: a sample of this batch has 4 rows"):
        batch.tags.to_padded(rows=3)
    for wrong in (-1, 5.5, "6", True):
        with pytest.raises(ValueError, match=f"rows={wrong!r}: it is not a whole number"):
            batch.tags.to_padded(rows=wrong)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_to_padded_changes_no_value_silently(texts, framework):
    path, rows = texts
    with pinfeed.open(path, batch_size=len(rows), epochs=1, framework=framework) as feed:
        (batch,) = feed
    for field, value in (("tags", -1.5), ("tags", float("nan")), ("tags", float("inf")), ("tags", 2**63), ("caption", -1), ("caption", 256)):
        with pytest.raises(ValueError, match="the field's dtype is .*which holds whole numbers from"):
            batch[field].to_padded(value=value)
    assert batch.tags.to_padded(value=numpy.float32(-2.0))[0, 0] == -2 and batch.caption.to_padded(value=255)[0, 0] == 255
    assert batch.scores.to_padded(value=-1.5)[0, 0] == -1.5 and math.isnan(batch.scores.to_padded(value=float("nan"))[0, 0])
    with pytest.raises(ValueError, match="which holds numbers up to"):
        batch.scores.to_padded(value=10**400)
    if framework == "torch":
        with pytest.raises(ValueError, match="float16, which holds numbers up to 65504"):
            batch.scores.to(torch.float16).to_padded(value=1e9)


def test_to_nested_needs_a_torch_that_has_it(texts):
    path, rows = texts
    with pinfeed.open(path, batch_size=4, epochs=1, framework="torch") as feed:
        tags = next(iter(feed)).tags
    if hasattr(torch.nested, "nested_tensor_from_jagged"):
        assert [row.tolist() for row in tags.to_nested().unbind()] == tags.tolist()
    else:
        with pytest.raises(pinfeed.Error, match="to_padded"):
            tags.to_nested()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_pad_gives_a_tensor_and_its_lengths(texts, framework):
    path, rows = texts
    with pinfeed.open(path, batch_size=5, shuffle=True, epochs=2, framework=framework, pad={"caption": 300, "tags": 4}) as feed:
        for batch in feed:
            assert tuple(batch.caption.shape) == (len(batch.id), 300) and tuple(batch.tags.shape) == (len(batch.id), 4)
            for n, caption, length, tags, count in zip(batch.id, batch.caption, batch.caption_length, batch.tags, batch.tags_length):
                text = rows[int(n)]["caption"].encode()
                assert bytes(caption.tolist()) == text.ljust(300, b"\0") and int(length) == len(text)
                assert tags.tolist() == rows[int(n)]["tags"] + [0] * (4 - int(count)) and int(count) == len(rows[int(n)]["tags"])
            assert isinstance(batch.scores, pinfeed.Ragged)


def test_a_sample_longer_than_its_pad_is_bad(texts):
    path, rows = texts
    with pytest.raises(pinfeed.Error, match=r"field 'caption' has 300 rows, and pad 299"):
        with pinfeed.open(path, batch_size=len(rows), epochs=1, pad={"caption": 299}) as feed:
            list(feed)
    with pinfeed.open(path, batch_size=len(rows), epochs=1, framework="numpy", pad={"caption": 299}, on_bad_sample="skip") as feed:
        (batch,) = feed
        assert batch.skipped == 1 and batch.id.tolist() == [n for n in range(len(rows)) if n != 3]
        assert batch.tags.tolist() == [row["tags"] for row in rows if row["id"] != 3]
        assert batch.scores.tolist() == [row["scores"] for row in rows if row["id"] != 3]
    with pinfeed.open(path, batch_size=len(rows), epochs=1, framework="numpy", pad={"caption": 299}, on_bad_sample="zero", valid=True) as feed:
        (batch,) = feed
        assert batch.valid.tolist() == [n != 3 for n in range(len(rows))]
        assert batch.tags.tolist() == [row["tags"] if row["id"] != 3 else [] for row in rows] and batch.caption_length[3] == 0


def test_sample_path(images):
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))
    crop = pinfeed.CenterCrop(8)
    with pinfeed.open(images, batch_size=2, shuffle=True, epochs=1, sample_path=True, sample_ids=True, transforms=crop) as feed:
        seen = {}
        for batch in feed:
            assert batch._fields == ("image", "label", "sample_path", "sample_id")
            seen.update(zip(batch.sample_id.tolist(), batch.sample_path.decode()))
            assert [name.split("/")[0] for name in batch.sample_path.decode()] == [feed.dataset.classes[label] for label in batch.label]
    assert sorted(seen.values()) == names
    with pinfeed.open(images, batch_size=5, epochs=1, transforms=crop) as feed:
        assert next(iter(feed))._fields == ("image", "label")
    with pinfeed.open(images, batch_size=5, epochs=1, fields=["sample_path", "label"]) as feed:
        batch = next(iter(feed))
        assert batch._fields == ("sample_path", "label") and sorted(batch.sample_path.decode()) == names
    with pinfeed.open(images, batch_size=5, epochs=1, sample_path=True, pad={"sample_path": 64}, transforms=crop) as feed:
        batch = next(iter(feed))
        assert batch.sample_path.shape == (5, 64) and batch._fields[-1] == "sample_path_length"


def test_sample_path_of_a_manifest(images):
    rows = [{"file_name": str(path.relative_to(images)), "text": path.stem} for path in sorted(images.rglob("*.png"))]
    manifest = images / "meta.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pinfeed.open(manifest, batch_size=5, epochs=1, sample_path=True, transforms=pinfeed.CenterCrop(8)) as feed:
        (batch,) = feed
        assert batch._fields == ("image", "text", "sample_path")
        assert batch.sample_path.decode() == [row["file_name"] for row in rows] and batch.text.decode() == [row["text"] for row in rows]


@pytest.mark.parametrize("output", ["dict", "tuple"])
def test_outputs_keep_ragged_fields(texts, output):
    path, rows = texts
    with pinfeed.open(path, batch_size=3, epochs=1, output=output) as feed:
        batch = next(iter(feed))
        caption = batch["caption"] if output == "dict" else batch[0]  # columns of JSON come by name
        assert caption.decode() == [row["caption"] for row in rows[:3]]


def test_fields_move_to_a_device(texts):
    path, rows = texts
    for framework in ("numpy", "torch"):
        with pinfeed.open(path, batch_size=3, epochs=1, framework=framework, fields=["caption", "tags"]) as feed:
            batch = next(iter(feed))
            assert batch.to("cpu").caption.decode() == [row["caption"] for row in rows[:3]]
            if framework == "torch":
                assert batch.tags.to(torch.float32).tolist() == [row["tags"] for row in rows[:3]]
            else:
                with pytest.raises(TypeError, match='framework="torch"'):
                    batch.to("cuda")


def test_members_may_name_their_pads_in_any_order(texts):
    path, _ = texts
    options = {"batch_size": 8, "share": "broadcast", "group": "pads"}
    with pinfeed.open(path, pad={"caption": 300, "tags": 4}, **options) as one, pinfeed.open(path, pad={"tags": 4, "caption": 300}, **options) as other:
        assert one.fingerprint == other.fingerprint
    with pinfeed.open(path, pad={"caption": 300}, **options), pytest.raises(pinfeed.Error, match="differs in pad"):
        pinfeed.open(path, pad={"caption": 301}, **options)


def test_the_column_of_the_images_may_be_named_as_their_paths(images):
    (images / "named.jsonl").write_text(json.dumps({"sample_path": "cat/1.png"}) + "\n")
    with pinfeed.open(images / "named.jsonl", batch_size=1, image="sample_path", sample_path=True, epochs=1, transforms=pinfeed.CenterCrop(4)) as feed:
        assert next(iter(feed)).sample_path.decode() == ["cat/1.png"]


def test_texts_beside_images_are_no_masks(images):
    (images / "rows.jsonl").write_text(json.dumps({"file_name": "cat/1.png", "text": "a"}) + "\n")
    with pytest.raises(pinfeed.Error, match="masks: field 'text' holds texts or rows whose number differs"):
        pinfeed.open(images / "rows.jsonl", batch_size=1, masks=["text"], transforms=pinfeed.CenterCrop(4)).close()


def test_members_of_a_group_get_the_same_rows(texts):
    path, rows = texts
    with pinfeed.open(path, batch_size=8, epochs=1, share="broadcast", group="ragged", framework="numpy") as feed:
        assert [text for batch in feed for text in batch.caption.decode()] == [row["caption"] for row in rows]


def test_a_column_named_as_the_extents_of_another_is_refused(tmp_path):
    (tmp_path / "names.csv").write_text("x,x.extents\nab,2\nc,3\n")
    with pytest.raises(pinfeed.Error, match=r"fields: .*'x\.extents' tells where the rows of the field 'x' lie.*rename one of the two, or select fields without one"):
        pinfeed.open(tmp_path / "names.csv", batch_size=1).close()
    for arguments in ({"fields": ["x"]}, {"fields": ["x.extents"]}, {"pad": {"x": 2}}):
        with pinfeed.open(tmp_path / "names.csv", batch_size=2, epochs=1, **arguments) as feed:
            assert set(next(iter(feed)).keys()) <= {"x", "x.extents", "x_length"}


def test_packed_memory_that_does_not_fit_names_its_field(texts):
    path, _ = texts
    with pytest.raises(
        pinfeed.ResourceExhaustedError,
        match=r"pool_bytes.*the field 'caption' takes 80 GiB: its longest sample has 300 rows, 300 bytes, .*room for 286331153 such samples.*smaller batch_size",
    ):
        pinfeed.open(path, batch_size=286331153).close()
    with pytest.raises(pinfeed.ResourceExhaustedError) as refused:  # no field of rows is to blame
        pinfeed.open(path, batch_size=2**31, fields=["id"]).close()
    assert "longest sample" not in str(refused.value)


def test_pad_tells_why_a_column_is_left_out(tmp_path):
    (tmp_path / "gaps.csv").write_text("id,n\n1,2\n2,\n")
    with pytest.raises(pinfeed.Error, match="pad: 'n' is not available as a field: line 3 has no value for it"):
        pinfeed.open(tmp_path / "gaps.csv", batch_size=1, pad={"n": 3}).close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pad": {"id": 3}}, "pad: field 'id' has no rows whose number differs"),
        ({"pad": {"nothing": 3}}, "pad: a sample has no field 'nothing'"),
        ({"pad": {"tags": 0}}, r"pad\['tags'\]"),
        ({"pad": 3}, "pad: 3"),
        ({"pad": {"caption": 2**32 - 1}}, "pool_bytes"),
        ({"sample_path": True}, "sample_path: the samples of the dataset .* are no files of their own"),
        ({"fields": ["captoin"]}, "has no field 'captoin'"),
        ({"fields": []}, "fields"),
        ({"masks": ["caption"]}, None),
    ],
)
def test_what_cannot_be_is_refused(texts, arguments, message):
    path, _ = texts
    if message is None:
        arguments, message = {**arguments, "transforms": pinfeed.CenterCrop(2)}, "image"
    with pytest.raises(pinfeed.Error, match=message):
        pinfeed.open(path, batch_size=4, **arguments).close()
