# SPDX-License-Identifier: Apache-2.0
"""Tables that list images: read by pinfeedd, beside what csv, json and Pillow say of the same files."""

import csv
import json
import warnings

import numpy
import pytest
from PIL import Image

import pinfeed

pytestmark = pytest.mark.usefixtures("feeds")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A folder of images, flat and below each other, and what a table says of them."""
    folder = tmp_path_factory.mktemp("manifest")
    made = []
    for number in range(23):
        name = f"deep/{number}.png" if number % 3 == 0 else f"image {number}.png"
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(numpy.full((4, 6, 3), number * 10, "u1")).save(folder / name)
        made.append({"file_name": name, "label": ["zebra", "cat", "Dog"][number % 3], "age": number - 5, "weight": number / 8, "note": f"n{number}"})
    return folder, made


def write(folder, name, rows):
    with open(folder / name, "w", newline="", encoding="utf-8") as file:
        if name.endswith(".jsonl"):
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, rows[0].keys(), delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writeheader()
            writer.writerows(rows)
    return folder / name


@pytest.mark.parametrize("name", ["list.jsonl", "list.csv", "list.tsv"])
def test_every_row_is_a_sample(rows, name):
    folder, made = rows
    path = write(folder, name, made)
    classes = sorted({row["label"] for row in made})
    seen = []
    with pinfeed.open(path, batch_size=5, shuffle=True, epochs=1, sample_ids=True, framework="numpy", transforms=pinfeed.CenterCrop((4, 6))) as feed:
        assert feed.dataset.classes == classes and len(feed.dataset) == len(made)
        assert feed.dataset.targets == [classes.index(row["label"]) for row in made]
        for batch in feed:
            assert set(batch.keys()) == {"image", "label", "age", "weight", "note", "sample_id"}
            assert (batch.label.dtype, batch.age.dtype, batch.weight.dtype) == ("int64", "int64", "float64")
            for i, number in enumerate(batch.sample_id):
                row = made[number]
                assert batch.note.decode()[i] == row["note"]
                assert (classes[batch.label[i]], batch.age[i], batch.weight[i]) == (row["label"], row["age"], row["weight"])
                assert (numpy.moveaxis(batch.image[i], 0, -1) == numpy.asarray(Image.open(folder / row["file_name"]))).all()
                seen.append(number)
    assert sorted(seen) == list(range(len(made)))


@pytest.mark.filterwarnings("ignore::pinfeed.ColumnsLeftOutWarning")
def test_columns_by_their_names(rows):
    folder, made = rows
    path = write(folder, "named.csv", [{"path": row["file_name"], "y": row["age"], "label": row["weight"]} for row in made])
    with pinfeed.open(path, batch_size=len(made), image="path", label="y", epochs=1, framework="numpy", transforms=pinfeed.CenterCrop(4)) as feed:
        (batch,) = feed
        assert batch.label.tolist() == [row["age"] for row in made] and set(batch.keys()) == {"image", "label"}
    with pinfeed.open(path, batch_size=len(made), image="path", label="label", epochs=1, framework="numpy", transforms=pinfeed.CenterCrop(4)) as feed:
        (batch,) = feed
        assert batch.label.tolist() == [row["weight"] for row in made] and batch.y.tolist() == [row["age"] for row in made]


def test_hugging_faces_metadata(rows, tmp_path):
    _, made = rows
    for row in made:
        name = row["file_name"].replace("/", "-")
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    write(tmp_path, "metadata.jsonl", [{**row, "file_name": row["file_name"].replace("/", "-")} for row in made])
    with pinfeed.open(tmp_path, batch_size=4, epochs=1, framework="numpy", transforms=pinfeed.CenterCrop(4)) as feed:
        assert len(feed.dataset) == len(made)
        assert sum(len(batch.label) for batch in feed) == len(made)


def test_what_cannot_be_is_refused(rows, tmp_path):
    folder, made = rows
    with pytest.raises(pinfeed.InvalidArgumentError, match=r"line 3 of .*the row has 1 values, but there are 2 columns"):
        (tmp_path / "bad.csv").write_text("a,b\n1,2\n3\n")
        pinfeed.open(tmp_path / "bad.csv", batch_size=1)
    with pytest.raises(pinfeed.InvalidArgumentError, match="has '..' in it"):
        (tmp_path / "out.csv").write_text("file_name\n../a.jpg\n")
        pinfeed.open(tmp_path / "out.csv", batch_size=1, transforms=pinfeed.CenterCrop(2))
    with pytest.raises(pinfeed.InvalidArgumentError, match="dataset.image: is for the format manifest only"):
        pinfeed.open(folder, batch_size=1, format="image_folder", image="x")
    with pytest.raises(pinfeed.InvalidArgumentError, match="image: 3 is not a string"):
        pinfeed.open(folder, batch_size=1, image=3)


def test_columns_that_are_left_out_are_told_once(rows, tmp_path):
    folder, _ = rows
    (tmp_path / "gaps.csv").write_text(",n,gaps,text\n0,1,2,a\n1,2,,\n")
    path = tmp_path / "gaps.csv"
    said = r"of .*gaps\.csv, 2 columns are not in the batches: '': its name must be text .*; 'gaps': line 3 has no value for it.*fields=\["
    with pytest.warns(pinfeed.ColumnsLeftOutWarning, match=said) as told:
        feed = pinfeed.open(path, batch_size=1, epochs=2)
        with feed:
            state = feed.state_dict()
            for batch in feed:
                assert set(batch.keys()) == {"n", "text"}
            feed.load_state_dict(state)  # another session of the same feed
            assert len(list(feed)) == 2
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(pinfeed.ColumnsLeftOutWarning):
            pinfeed.open(path, batch_size=1)
        pinfeed.open(path, batch_size=1, fields=["text"]).close()
        pinfeed.open(write(folder, "whole.csv", [{"n": 1, "text": "a"}]), batch_size=1).close()
    wide = ",".join(f"column{n}" for n in range(30))
    (tmp_path / "wide.csv").write_text(f"n,{wide}\n1{',' * 30}\n")
    with pytest.warns(pinfeed.ColumnsLeftOutWarning, match=r"30 columns .*'column19': .*; and 10 more\."):
        pinfeed.open(tmp_path / "wide.csv", batch_size=1).close()


def test_a_missing_image_is_a_bad_sample(rows, tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    write(tmp_path, "list.csv", [{"file_name": name, "label": 1} for name in ("a.png", "gone.png", "a.png")])
    path = tmp_path / "list.csv"
    with pinfeed.open(path, batch_size=3, epochs=1, on_bad_sample="skip", transforms=pinfeed.CenterCrop(4)) as feed:
        assert [len(batch.label) for batch in feed] == [2]
    with pinfeed.open(path, batch_size=3, epochs=1, transforms=pinfeed.CenterCrop(4)) as feed:
        with pytest.raises(pinfeed.Error, match=r"gone\.png"):
            next(iter(feed))
