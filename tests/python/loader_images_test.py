# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.EncodedImage` in the samples of a `pinfeed.DataLoader`: the daemon decodes and transforms the images, as in a feed of `open`.

Long because: each kind of sample that may have images is a test, beside the same images in a feed.
"""

import collections
import io
import itertools
import os
import pathlib
import pickle
import re
import signal
import threading

import numpy
import pytest
from daemon_process import Daemon

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from loader_datasets import Numbers, all_same  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._worker.collate import default_collate  # noqa: E402
from pinfeed._worker.encoded import BatchImages  # noqa: E402

pytestmark = [pytest.mark.usefixtures("feeds"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]

COUNT = 20
RANDOM = [pinfeed.RandomResizedCrop(24), pinfeed.RandomHorizontalFlip(), pinfeed.ToDtype("float32", scale=True)]
Pair = collections.namedtuple("Pair", "left right")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of images of two classes, whose order is that of their names."""
    folder = tmp_path_factory.mktemp("photos")
    generator = numpy.random.default_rng(2)
    for number in range(COUNT):
        pixels = generator.integers(0, 256, (4 + number % 3, 5, 3), numpy.uint8)
        path = folder / ("a" if number < COUNT // 2 else "b") / f"{number:02}.{'png' if number % 5 == 4 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).resize((50 + number, 40), Image.BILINEAR).save(path)
    return folder


class Photos:
    """`make(index, path)` of each file."""

    def __init__(self, folder, make):
        self.paths = sorted(map(str, pathlib.Path(folder).glob("*/*")))
        self.make = make

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.make(index, self.paths[index])


def by_path(index, path):
    return pinfeed.EncodedImage(path), index


def by_bytes(index, path):
    return pinfeed.EncodedImage(pathlib.Path(path).read_bytes()), index


def mixed(index, path):
    return {
        "views": Pair(pinfeed.EncodedImage(path), pinfeed.EncodedImage(numpy.fromfile(path, numpy.uint8))),
        "label": index % 3,
        "name": os.path.basename(path),
        "box": numpy.full(4, index, numpy.float32),
    }


def fragile(index, path):
    """One file is cut, one is missing, and one is no image."""
    data = pathlib.Path(path).read_bytes()
    if index == 3:
        return pinfeed.EncodedImage(data[: len(data) // 2]), index
    return pinfeed.EncodedImage("/nonexistent/x.jpg" if index == 9 else b"<html>" if index == 12 else data), index


def loader(photos, make=by_path, batch_size=4, num_workers=2, transforms=RANDOM, **arguments):
    return pinfeed.DataLoader(Photos(photos, make), batch_size, num_workers=num_workers, transforms=transforms, timeout=60, **arguments)


def by_open(photos, seed, transforms=RANDOM):
    """The images of the files, as a feed gives them in epoch 0."""
    with pinfeed.open(photos, batch_size=COUNT, shuffle=False, seed=seed, transforms=transforms, timeout=60) as feed:
        return next(iter(feed))[0].clone()


def seeded(make_loader):
    """The batches of an epoch, and its seed."""
    iterator = iter(make_loader)
    seed = iterator._epoch.seed
    return list(iterator), seed


# ---- pixels -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [by_path, by_bytes])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_images_are_those_of_open(photos, make, dtype):
    transforms = [*RANDOM[:2], pinfeed.ToDtype(dtype, scale=True)]
    batches, seed = seeded(loader(photos, make, transforms=transforms))
    images = torch.cat([batch[0] for batch in batches])
    assert images.dtype == getattr(torch, dtype) and images.shape == (COUNT, 3, 24, 24)
    assert torch.equal(images, by_open(photos, seed, transforms))
    assert torch.cat([batch[1] for batch in batches]).tolist() == list(range(COUNT))


def test_transforms_of_torchvision_are_taken(photos):
    transforms = pytest.importorskip("torchvision.transforms")
    given = transforms.Compose([transforms.Resize(30), transforms.CenterCrop(28), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
    images = torch.cat([batch[0] for batch in loader(photos, transforms=given)])
    assert images.dtype == torch.float32 and images.shape == (COUNT, 3, 28, 28)
    assert torch.equal(images, by_open(photos, 0, given))


def test_batches_do_not_depend_on_the_workers_and_epochs_differ(photos):
    epochs = []
    for workers in (1, 4):
        torch.manual_seed(3)
        each = loader(photos, mixed, 3, workers, shuffle=True, persistent_workers=True)
        epochs.append([list(each) for _ in range(2)])
    assert all_same(epochs[0][0], epochs[1][0]) and all_same(epochs[0][1], epochs[1][1])
    assert not all_same(epochs[0][0], epochs[0][1])


def test_images_of_a_sample_draw_numbers_of_their_own(photos):
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="each of a sample's 2 images draws a crop and flip of its own"):
        batches, seed = seeded(loader(photos, mixed))
    left, right = (torch.cat([batch["views"][side] for batch in batches]) for side in (0, 1))
    assert torch.equal(left, by_open(photos, seed)) and not torch.equal(left, right)
    assert type(batches[0]["views"]) is Pair
    assert [name for batch in batches for name in batch["name"]] == [os.path.basename(path) for path in Photos(photos, mixed).paths]
    assert torch.cat([batch["label"] for batch in batches]).tolist() == [index % 3 for index in range(COUNT)]
    assert torch.cat([batch["box"] for batch in batches])[:, 2].tolist() == list(range(COUNT))


def test_an_index_that_repeats_in_a_batch_draws_other_numbers(photos):
    ((images, indices),) = pinfeed.DataLoader(Photos(photos, by_path), batch_sampler=[[5, 5, 6]], num_workers=1, transforms=RANDOM)
    assert indices.tolist() == [5, 5, 6] and not torch.equal(images[0], images[1])


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, photos):
        self.photos = photos

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return (self.photos[index] for index in range(info.id, len(self.photos), info.num_workers))


def test_an_iterable_dataset_has_images(photos):
    torch.manual_seed(1)
    epochs = []
    for _ in range(2):
        torch.manual_seed(1)
        epochs.append(list(pinfeed.DataLoader(Stream(Photos(photos, by_bytes)), 4, num_workers=2, transforms=RANDOM)))
    assert all_same(*epochs)
    assert sorted(index for batch in epochs[0] for index in batch[1].tolist()) == list(range(COUNT))
    assert {batch[0].shape[1:] for batch in epochs[0]} == {(3, 24, 24)}


@pytest.mark.parametrize("of_worker", [(0, 8), (1, 8), (8, 0)])
def test_a_worker_without_a_batch_says_nothing_of_the_others(photos, of_worker):
    class Some(Stream):
        def __iter__(self):
            return itertools.islice(super().__iter__(), of_worker[torch.utils.data.get_worker_info().id])

    batches = list(pinfeed.DataLoader(Some(Photos(photos, by_path)), 4, num_workers=2, drop_last=True, transforms=RANDOM, multiprocessing_context="fork"))
    assert [batch[0].shape for batch in batches] == [(4, 3, 24, 24)] * 2


def test_a_state_continues_with_the_same_images(photos):
    torch.manual_seed(4)
    first = loader(photos, shuffle=True, batch_size=3)
    iterator = iter(first)
    begun = [next(iterator) for _ in range(3)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    rest = list(iterator)
    other = loader(photos, shuffle=True, batch_size=3)
    other.load_state_dict(state)
    assert all_same(other, rest)
    assert len(begun) + len(rest) == 7


@pytest.mark.parametrize("made", [str, bytes, bytearray, memoryview, pathlib.Path])
def test_an_encoded_image_is_a_path_or_bytes(made, monkeypatch):
    monkeypatch.chdir("/usr")
    image = pinfeed.EncodedImage(made("lib") if made in (str, pathlib.Path) else made(b"lib"))
    assert repr(image) == ("EncodedImage('/usr/lib')" if made in (str, pathlib.Path) else "EncodedImage(<3 bytes>)")
    assert repr(pickle.loads(pickle.dumps(image))) == repr(image)


@pytest.mark.parametrize("wrong, error", [(3, TypeError), (None, TypeError), (["a"], TypeError), ("", ValueError), (b"", ValueError)])
def test_what_is_no_image_is_refused(wrong, error):
    with pytest.raises(error, match="EncodedImage|path or the bytes"):
        pinfeed.EncodedImage(wrong)


# ---- memory -------------------------------------------------------------------------------------------------------------------------


def test_all_batches_may_be_kept_and_changed(photos):
    large = [pinfeed.Resize([96, 96])]
    batches = list(loader(photos, by_bytes, transforms=large, batch_size=4))
    for batch in batches:
        batch[0].zero_()
    assert torch.equal(torch.cat([batch[0] for batch in loader(photos, transforms=large)]), by_open(photos, 0, large))
    assert batches[0][0].is_contiguous() and sum(int(batch[0].sum()) for batch in batches) == 0


def test_a_state_file_of_a_batch_has_its_images_only(photos):
    *_, last = loader(photos, transforms=[pinfeed.Resize([96, 96])], batch_size=8)
    buffer = io.BytesIO()
    torch.save(last[0], buffer)
    assert last[0].shape == (4, 3, 96, 96) and len(buffer.getvalue()) < 5 * 3 * 96 * 96


def growing(index, path):
    data = pathlib.Path(path).read_bytes()
    return pinfeed.EncodedImage(data + bytes(300_000 if index == 14 else 0)), index


def test_files_beyond_the_size_of_the_first_batchs_name_their_index(photos):
    iterator = iter(loader(photos, growing))
    for _ in range(3):
        next(iterator)
    with pytest.raises(pinfeed.ResourceExhaustedError, match=r"(?s)batch 3 of indices \[12, 13, 14, 15\].*30\d{4} bytes and is of index 14. Give max_encoded_"):
        next(iterator)
    assert next(iterator)[1].tolist() == [16, 17, 18, 19]
    batches, seed = seeded(loader(photos, growing, max_encoded_bytes=400_000))
    assert torch.equal(torch.cat([batch[0] for batch in batches]), by_open(photos, seed))


def test_more_images_than_the_first_batch_lets_expect_are_an_error(photos):
    sampler = [[0, 1], [2, 3, 4, 5, 6, 7], [8, 9]]
    iterator = iter(pinfeed.DataLoader(Photos(photos, by_path), batch_sampler=sampler, num_workers=1, transforms=RANDOM))
    assert next(iterator)[1].tolist() == [0, 1]
    with pytest.raises(pinfeed.ResourceExhaustedError, match="batch 1: the batch has 6 encoded images, and the feed has places for 2; .*give the loader a batch_size"):
        next(iterator)
    assert next(iterator)[1].tolist() == [8, 9]


def test_a_short_batch_says_what_a_whole_one_needs(photos):
    def wide(index, path):
        return pinfeed.EncodedImage(path), numpy.full(50000, index)

    def resumed(samples):
        return pinfeed.DataLoader(
            torch.utils.data.Subset(Photos(photos, wide), range(samples)), 4, num_workers=1, transforms=RANDOM, timeout=60
        )

    before = resumed(17)
    iterator = iter(before)
    for _ in range(4):
        next(iterator)
    after = resumed(17)
    after.load_state_dict(before.state_dict())
    assert [len(batch[1]) for batch in after] == [1]
    assert [batch[1][:, -1].tolist() for batch in after] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16]]


def test_a_batch_size_beyond_the_dataset_takes_no_memory(photos):
    batches, seed = seeded(loader(photos, batch_size=1_000_000))
    assert torch.equal(batches[0][0], by_open(photos, seed))


def test_advice_for_a_batch_whose_other_fields_are_too_large_leads_to_one_that_fits(photos):
    def ragged(index, path):
        return pinfeed.EncodedImage(pathlib.Path(path).read_bytes()), numpy.full((100000 if index == 9 else 10,), index)

    def batches(**arguments):
        return list(loader(photos, ragged, batch_size=1, **arguments))

    with pytest.raises(pinfeed.ResourceExhaustedError) as refusal:
        batches()
    assert "max_encoded_bytes" not in str(refusal.value) and "paths" not in str(refusal.value)
    assert "\n" not in str(refusal.value), "nothing but the message"
    advice = dict(re.findall(r"(max_\w+_bytes)=(\d+)", str(refusal.value)))
    assert [len(batch[1][0]) for batch in batches(**{name: int(value) for name, value in advice.items()})][9] == 100000


# ---- errors -------------------------------------------------------------------------------------------------------------------------


def test_an_image_that_cannot_be_used_costs_its_batch_only(photos):
    iterator = iter(loader(photos, fragile))
    for error, text in (
        (pinfeed.DataLossError, "batch 0: sample 3: "),
        (None, [4, 5, 6, 7]),
        (FileNotFoundError, "batch 2: .*sample 9: .*/nonexistent/x.jpg"),
        (pinfeed.Error, "batch 3: sample 12: "),
        (None, [16, 17, 18, 19]),
    ):
        if error is None:
            assert next(iterator)[1].tolist() == text
        else:
            with pytest.raises(error, match=text):
                next(iterator)


def test_an_error_of_a_long_path_has_its_begin_and_the_reason(photos):
    long = f"/{'b/' * 1500}x.jpg"
    with pytest.raises(FileNotFoundError, match=r"sample 0: open '/b/b.*b/.* \[...\] .*b/x.jpg': No such file or directory"):
        next(iter(pinfeed.DataLoader(Numbers(4, lambda index: pinfeed.EncodedImage(long)), 2, num_workers=1, transforms=RANDOM)))


def test_bad_images_may_be_zeros(photos, caplog):
    batches, seed = seeded(loader(photos, fragile, on_bad_sample="zero"))
    images, expected = torch.cat([batch[0] for batch in batches]), by_open(photos, seed)
    expected[[3, 9, 12]] = 0
    assert torch.equal(images, expected)
    assert "batch 2 has zeros for an image that cannot be used" in caplog.text and "/nonexistent/x.jpg" in caplog.text


def test_paths_lead_below_the_allowed_roots_only(photos, tmp_path, monkeypatch):
    (tmp_path / "allowed").mkdir()
    running = Daemon(tmp_path / "run", "--allowed-roots", str(tmp_path / "allowed"), "--workers", "1")
    monkeypatch.setenv("PINFEED_ADDRESS", running.address)
    try:
        with pytest.raises(PermissionError, match="batch 0: .*sample 0: .*00.jpg.* is below none of the allowed roots"):
            next(iter(loader(photos)))
        (tmp_path / "allowed" / "link.jpg").symlink_to(Photos(photos, by_path).paths[0])
        with pytest.raises(PermissionError, match="a symbolic link in it leaves the allowed root"):
            next(iter(pinfeed.DataLoader(Numbers(4, lambda index: pinfeed.EncodedImage(tmp_path / "allowed" / "link.jpg")), 2, num_workers=1, transforms=RANDOM)))
        assert len(list(loader(photos, by_bytes))) == 5
    finally:
        running.stop()


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"num_workers": 0}, "transforms: .*needs num_workers > 0"),
        ({"collate_fn": list}, "transforms: .*omit collate_fn"),
        ({"batch_size": None}, "transforms: .*give a batch_size"),
        ({"on_bad_sample": "skip"}, "on_bad_sample: 'skip' is not possible in a DataLoader"),
        ({"on_bad_sample": "what"}, "on_bad_sample: 'what' is not"),
        ({"transforms": "resize"}, "transforms: 'resize' is not a transform"),
        ({"max_encoded_bytes": 0}, "max_encoded_bytes: 0 is not"),
        ({"transforms": None, "max_encoded_bytes": 5}, "max_encoded_bytes: 5 is about pinfeed.EncodedImage, which needs transforms="),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, text):
    given = {"batch_size": 2, "num_workers": 1, "transforms": RANDOM, **arguments}
    with pytest.raises(ValueError, match=text):
        pinfeed.DataLoader(Numbers(4), **given)


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 0}, {"collate_fn": list}, {"collate_fn": list, "num_workers": 0}, {"batch_size": None}])
def test_images_that_nothing_decodes_are_refused(photos, arguments):
    given = {"batch_size": 2, "num_workers": 1, **arguments}
    with pytest.raises(TypeError, match="pinfeed.EncodedImage.*omit collate_fn, and give a batch_size and transforms="):
        next(iter(pinfeed.DataLoader(Photos(photos, by_path), **given)))


def test_transforms_must_give_one_shape_and_need_images(photos):
    with pytest.raises(ValueError, match="transforms: image sizes vary"):
        next(iter(loader(photos, transforms=[pinfeed.ToDtype("float32", scale=True)])))
    with pytest.raises(ValueError, match="transforms: they apply to pinfeed.EncodedImage, and no sample of the first batch has one"):
        next(iter(pinfeed.DataLoader(Numbers(4), 2, num_workers=1, transforms=RANDOM)))


@pytest.mark.parametrize(
    "first, other, words",
    [
        (pinfeed.EncodedImage(b"image"), 1, r"pinfeed\.EncodedImage in sample 0 of the batch, and int in sample 2"),
        (1, pinfeed.EncodedImage(b"image"), r"int in sample 0 of the batch, and pinfeed\.EncodedImage in sample 2"),
        (numpy.zeros(2), pinfeed.EncodedImage(b"image"), r"numpy\.ndarray in sample 0 of the batch, and pinfeed\.EncodedImage in sample 2"),
    ],
)
def test_samples_with_and_without_images_do_not_mix(first, other, words):
    samples = [(each, 0) for each in (first, first, other, first)]
    with pytest.raises(TypeError, match=rf"sample\[0\] is {words}: return the same type for every sample$"):
        default_collate(samples, numpy.empty, images=BatchImages(0, None, len(samples)))


# ---- processes ----------------------------------------------------------------------------------------------------------------------


def place(index, path):
    return pinfeed.EncodedImage(path), index, os.getpid()


def test_a_killed_worker_costs_no_image(photos):
    dataset = Photos(photos, place)
    order = list(range(COUNT)) * 5
    iterator = iter(pinfeed.DataLoader(dataset, 2, sampler=order, num_workers=2, transforms=RANDOM, timeout=60))
    expected = by_open(photos, iterator._epoch.seed)
    for number, (images, indices, pids) in enumerate(iterator):
        assert torch.equal(images, expected[indices])
        if number in (3, 20):
            os.kill(int(pids[0]), signal.SIGKILL)
    assert number == 49


def test_a_batch_that_goes_to_another_worker_is_the_same(photos):
    reader, writer = os.pipe()

    def hangs(index, path):
        if index == 6 and os.read(reader, 1) == b"h":
            os.read(reader, 1)  # until the test ends
        return by_path(index, path)

    os.write(writer, b"hg")  # the first worker of the batch hangs, the second one goes on
    os.set_blocking(writer, False)
    batches, seed = seeded(loader(photos, hangs, retry_after=0.3, multiprocessing_context="fork"))
    assert torch.equal(torch.cat([batch[0] for batch in batches]), by_open(photos, seed))
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("seeding", ["sample", "worker"])
def test_a_restarted_daemon_costs_no_image(photos, tmp_path, monkeypatch, seeding):
    running = Daemon(tmp_path / "run", "--allowed-roots", "/", "--workers", "1")
    monkeypatch.setenv("PINFEED_ADDRESS", running.address)
    order = list(range(COUNT)) * 3
    iterator = iter(pinfeed.DataLoader(Photos(photos, by_bytes), 2, sampler=order, num_workers=2, transforms=RANDOM, timeout=60, seeding=seeding))
    expected = by_open(photos, iterator._epoch.seed)
    begun = [next(iterator) for _ in range(4)]
    running.process.kill()
    running.process.wait(60)
    running = Daemon(tmp_path / "run", "--allowed-roots", "/", "--workers", "1")
    try:
        batches = begun + list(iterator)
        assert len(batches) == 30
        for images, indices in batches:
            assert torch.equal(images, expected[indices])
    finally:
        iterator.close()
        running.stop()


def test_members_of_a_group_get_the_same_images(photos):
    loaders = [
        pinfeed.DataLoader(
            Photos(photos, by_bytes), 4, num_workers=1, transforms=RANDOM, share="broadcast", group="images", group_size=2, timeout=60,
            generator=torch.Generator().manual_seed(3),
        )
        for _ in range(2)
    ]  # fmt: skip
    iterators = [iter(each) for each in loaders]
    got = [None, None]

    def take(number):
        got[number] = list(iterators[number])

    threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all_same(*got)
    assert torch.equal(torch.cat([batch[0] for batch in got[0]]), by_open(photos, iterators[0]._epoch.seed))
