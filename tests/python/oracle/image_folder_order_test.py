# SPDX-License-Identifier: Apache-2.0
"""Class folders and files have the order, the labels and the names that torchvision's ImageFolder gives them."""

import os

import pinfeed
import pytest
from daemon_process import Daemon
from PIL import Image
from torchvision.datasets import ImageFolder

# Of every length in UTF-8, on either side of where surrogates sort, and no UTF-8 at all: alone, cut short, overlong, a surrogate, too large.
NAMES = [
    b"a", b"Z", b"~", b"a b", b"a-b", b"a.b", b"\\xe9", b"\xc3\xa9", b"e\xcc\x81", b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbd",
    b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\x80", b"\xe9", b"\xff", b"caf\xe9", b"caf\xc3", b"caf\xc3A", b"caf\xc3\xa9", b"\xe2\x82", b"\xe2\x82\xac",
    b"\xc0\xaf", b"\xed\xa0\x80", b"\xed\xb2\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xe2\x82a", b"\xf0\x9f\x98\x80",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = os.fsencode(tmp_path_factory.mktemp("names") / "train")
    for number, label in enumerate(NAMES):
        # A few of the names in each class, as files and as folders with files.
        for k, name in enumerate(NAMES[number:] + NAMES[:number]):
            folder = b"/".join((root, label, name)) if k % 3 else b"/".join((root, label))
            os.makedirs(folder, exist_ok=True)
            Image.new("RGB", (1, 1), (number, k, 0)).save(os.fsdecode(folder + b"/" + name + (b".PNG" if k % 2 else b".png")), "png")
            if k > 8:
                break
    return os.fsdecode(root)


def test_order_labels_and_names_are_torchvisions(feeds, root):
    expected = ImageFolder(root)
    assert len(expected.classes) == len(NAMES) and expected.classes != sorted(expected.classes, key=os.fsencode)
    colours = [(*expected[index][0].getpixel((0, 0)), expected[index][1]) for index in range(len(expected))]
    with pinfeed.open(root, batch_size=7, transforms=[pinfeed.Resize((1, 1))], framework="numpy", epochs=1) as feed:
        assert feed.classes == expected.classes
        got = [(*(int(value) for value in image.reshape(3)), int(label)) for batch in feed for image, label in zip(batch.image, batch.label)]
    assert got == colours


def test_no_name_is_listed_twice(root, tmp_path):
    """Lists are text: bytes are escaped there, and names that look like escaped ones, too."""
    config = tmp_path / "config.toml"
    config.write_text(f'[datasets.names]\npath = "{root}"\n')
    named = Daemon(tmp_path / "run", "--config", str(config), "--pool-bytes", "64MiB")
    try:
        (listed,) = pinfeed.datasets(named.address)["datasets"]
    finally:
        named.stop()
    assert len(set(listed["classes"])) == len(NAMES)
    assert {"\\xe9", "\\\\xe9", "caf\\xe9", "caf\u00e9"} <= set(listed["classes"])
