# SPDX-License-Identifier: Apache-2.0
"""Bad input gives one clear error that names it, by the tool, the C interface and Python alike; and the daemon serves on.

No error waits for a client's timeout: what a timeout says does not name the culprit. How long each took is printed.
The daemon runs as a user without rights, so that a file can be unreadable also where root runs the tests.
"""

import ctypes
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import tempfile
import time
import zlib

import numpy
import pinfeed
import pinfeed._feed.batch_maker
import pytest
from hardship import start_daemon

TOOL = pathlib.Path(os.environ["PINFEED_LIBRARY"]).parent / "cli" / "pinfeed"
NOBODY = 65534
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def place():
    """A folder that everybody can enter: pytest's own are the user's alone."""
    with tempfile.TemporaryDirectory(prefix="pinfeed-bad-") as folder:
        os.chmod(folder, 0o755)
        for name in ("data", "outside"):
            (pathlib.Path(folder) / name).mkdir()
        yield pathlib.Path(folder)


@pytest.fixture(scope="module")
def serving(place):
    """A daemon whose root is place/data, with a pool of 64 MiB, as nobody if we are root."""
    with pytest.MonkeyPatch.context() as patch:
        # A copy that nobody can run: the build may lie in root's home.
        patch.setenv("PINFEED_DAEMON", shutil.copy(os.environ["PINFEED_DAEMON"], place / "pinfeedd"))
        daemon = start_daemon(place / "run", user=NOBODY if os.geteuid() == 0 else None, roots=place / "data", pool="64MiB")
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def good(place):
    folder = place / "data" / "good"
    images(folder, 6)
    return folder


def images(folder, count):
    from PIL import Image

    (folder / "cat").mkdir(parents=True)
    for number in range(count):
        noise = numpy.random.default_rng(number).integers(0, 256, (24, 32, 3), numpy.uint8)
        Image.fromarray(noise).save(folder / "cat" / f"{number}.jpg", quality=90)


# ---- three ways to ask --------------------------------------------------------------------------------------------------------------


def by_python(address, spec):
    """The error's text; None when everything could be read."""
    options = {key: spec[key] for key in spec if key not in ("dataset", "on_bad_sample")}
    options["transforms"] = [pinfeed.Resize((16, 16)) if "resize" in one else pinfeed.CenterCrop(one["center_crop"]["size"]) for one in spec.get("transforms", [])]
    try:
        with pinfeed.open(spec["dataset"]["path"], address=address, framework="numpy", timeout=TIMEOUT_S, on_bad_sample=spec.get("on_bad_sample", "FAIL"), **options) as feed:
            for _ in feed:
                pass
    except pinfeed.Error as error:
        return str(error)


def by_bench(address, spec):
    done = subprocess.run([TOOL, "--address", address, "bench", "--seconds", str(TIMEOUT_S), "--spec", json.dumps(spec)], capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    return done.stderr if done.returncode else None


class OpenOptions(ctypes.Structure):
    """pf_open_options of pinfeed.h."""

    _fields_ = [("size", ctypes.c_size_t), *((name, ctypes.c_char_p) for name in ("address", "spec", "cursor", "client_name")), ("open_ms", ctypes.c_int64), ("reconnect_ms", ctypes.c_int64)]


def by_c(address, spec):
    library = ctypes.CDLL(os.environ["PINFEED_LIBRARY"])
    library.pf_last_error.restype = ctypes.c_char_p
    options, feed, batch = OpenOptions(), ctypes.c_void_p(), ctypes.c_void_p()
    library.pf_open_options_init(ctypes.byref(options), ctypes.c_size_t(ctypes.sizeof(options)))
    options.address, options.spec = address.encode(), json.dumps(spec).encode()
    result = library.pf_open(ctypes.byref(options), ctypes.byref(feed))
    while result == 0 and (result := library.pf_next(feed, ctypes.c_int64(TIMEOUT_S * 1000), ctypes.byref(batch))) == 0:
        library.pf_batch_release(batch)
    text = None if result == 11 else library.pf_last_error().decode()  # PF_OUT_OF_RANGE: the last epoch is over
    library.pf_close(feed)
    return text


WAYS = {"python": by_python, "c": by_c, "bench": by_bench}


# ---- what is wrong ------------------------------------------------------------------------------------------------------------------


def broken(place, what):
    """A folder of good images, and the path of what will be made the bad one of them."""
    folder = place / "data" / what
    shutil.rmtree(folder, ignore_errors=True)
    images(folder, 6)
    return folder, folder / "cat" / "3.jpg"


def truncated(place):
    folder, bad = broken(place, "truncated")
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    return {"path": folder}, "3.jpg"


def no_image(place):
    folder, bad = broken(place, "no_image")
    bad.write_text("I am a letter.\n" * 20)
    return {"path": folder}, "3.jpg"


def empty_file(place):
    folder, bad = broken(place, "empty_file")
    bad.write_bytes(b"")
    return {"path": folder}, "3.jpg"


def unreadable(place):
    folder, bad = broken(place, "unreadable")
    bad.chmod(0)
    return {"path": folder}, "3.jpg"


def newlines(place):
    folder, bad = broken(place, "newlines")
    bad.unlink()
    (bad.parent / "3\nERROR forged\x1b[31m.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    return {"path": folder}, r"3\nERROR forged"


def too_wide(place):
    """A PNG of no more pixels than any may have, all in one row."""
    folder, bad = broken(place, "too_wide")
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", 1 << 28, 1, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(1000)), b"IEND"]
    bad.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in chunks))
    return {"path": folder}, "its width is over the limit of 65500"


BAD_SAMPLES = [truncated, no_image, empty_file, unreadable, newlines, too_wide]


def empty_folder(place):
    (place / "data" / "empty").mkdir(exist_ok=True)
    return {"path": place / "data" / "empty"}, "empty"


def missing(place):
    return {"path": place / "data" / "no-such-folder"}, "no-such-folder"


def unreadable_folder(place):
    folder, _ = broken(place, "closed")
    (folder / "cat").chmod(0)
    return {"path": folder}, "cat"


def lying_npy(place):
    path = place / "data" / "lying.npy"
    numpy.save(path, numpy.zeros((1000, 8)))
    path.write_bytes(path.read_bytes()[:2000])
    return {"path": path}, "lying.npy"


def outside(place):
    numpy.save(place / "outside" / "x.npy", numpy.zeros((10, 8)))
    return {"path": place / "outside"}, "outside"


def dots(place):
    return {"path": f"{place}/data/../outside"}, "outside"


def escaping(place):
    outside(place)
    link = place / "data" / "link"
    if not link.is_symlink():
        link.symlink_to(place / "outside")
    return {"path": link}, "data/link"


BAD_DATASETS = [empty_folder, missing, unreadable_folder, lying_npy, outside, dots, escaping]

BAD_SPECS = {
    "batch larger than the pool": (dict(batch_size=100_000), "pool"),
    "batch_size 0": (dict(batch_size=0), "batch_size"),
    "rank": (dict(rank=2, world_size=2), "rank"),
    "slots": (dict(slots=2), "slots"),
    "negative crop": (dict(transforms=[{"center_crop": {"size": [-3]}}]), "size"),
    "zero crop": (dict(transforms=[{"center_crop": {"size": [0]}}]), "transforms[0] center_crop.size"),
    "crop of three": (dict(transforms=[{"center_crop": {"size": [1, 2, 3]}}]), "transforms[0] center_crop.size"),
}


def ask(way, address, spec):
    begin = time.monotonic()
    text = WAYS[way](address, spec)
    print(f"{way}: {time.monotonic() - begin:.2f} s")
    return text


def check_error(text, name):
    """One clear text: it names the culprit, nothing in it can forge a line or a colour, and it is said once."""
    assert text and name in text, text
    line = text.strip()
    assert "\n" not in line and line.isprintable(), repr(text)
    assert len(line) < 1000 and line.count(name) <= 2, text


def check_good(address, good):
    spec = {"dataset": {"path": str(good)}, "batch_size": 4, "epochs": 1, "transforms": [{"resize": {"size": [16, 16]}}]}
    assert by_c(address, spec) is None


def spec_for(dataset, **options):
    return {"dataset": {"path": str(dataset["path"])}, "batch_size": 2, "epochs": 1, "transforms": [{"resize": {"size": [16, 16]}}], **options}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", BAD_SAMPLES, ids=lambda make: make.__name__)
def test_bad_samples(serving, place, good, make, way):
    dataset, name = make(place)
    check_error(ask(way, serving.address, spec_for(dataset)), name)
    check_good(serving.address, good)
    for choice in ("SKIP", "ZERO"):
        assert ask(way, serving.address, spec_for(dataset, on_bad_sample=choice)) is None


def test_a_sample_without_memory(tmp_path):
    """Its file is of 1 GiB, of which the daemon cannot have a half."""
    (tmp_path / "data").mkdir()
    folder, bad = broken(tmp_path, "memoryless")
    os.truncate(bad, 1 << 30)
    # One malloc arena: each reserves 64 MiB of address space, and how many threads make one before the limit is set is the scheduler's choice.
    daemon = start_daemon(tmp_path / "run", pool="64MiB", under=("env", "MALLOC_ARENA_MAX=1"))
    pid = daemon.process.pid
    mapped = next(int(line.split()[1]) << 10 for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmSize"))
    resource.prlimit(pid, resource.RLIMIT_AS, (mapped + (512 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    text = by_python(daemon.address, spec_for({"path": folder}))
    check_error(text, "3.jpg")
    assert "no memory" in text
    assert by_python(daemon.address, spec_for({"path": folder}, on_bad_sample="SKIP")) is None
    daemon.stop()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", BAD_DATASETS, ids=lambda make: make.__name__)
def test_bad_datasets(serving, place, good, make, way):
    dataset, name = make(place)
    spec = spec_for(dataset)
    del spec["transforms"]
    check_error(ask(way, serving.address, spec), name)
    check_good(serving.address, good)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", BAD_SPECS)
def test_bad_specs(serving, good, what, way):
    options, name = BAD_SPECS[what]
    check_error(ask(way, serving.address, spec_for({"path": good}, **options)), name)
    check_good(serving.address, good)


@pytest.mark.parametrize("way", ["c", "bench"])  # Python's transforms are classes
@pytest.mark.parametrize("member", ["transforms", "spec"])
def test_unknown_names(serving, good, member, way):
    options = {"transforms": [{"solarize": {"p": 1}}]} if member == "transforms" else {"solarize": True}
    check_error(ask(way, serving.address, spec_for({"path": good}, **options)), "solarize")
    check_good(serving.address, good)


def test_an_unknown_transform_in_python(serving, good):
    with pytest.raises((pinfeed.Error, TypeError), match="object"):
        pinfeed.open(good, batch_size=2, address=serving.address, transforms=[object()])


def peek(address, path):
    """peek takes no spec."""
    done = subprocess.run([TOOL, "--address", address, "peek", str(path)], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=pathlib.Path(address).parent)
    return done.stderr if done.returncode else None


@pytest.mark.parametrize("make", BAD_DATASETS, ids=lambda make: make.__name__)
def test_peek(serving, place, good, make):
    dataset, name = make(place)
    check_error(peek(serving.address, dataset["path"]), name)
    assert peek(serving.address, good) is None


@pytest.mark.parametrize("choice", ["fail", "skip", "zero"])
@pytest.mark.parametrize("change", ["vanish", "shrink", "become a folder"])
def test_files_that_change_after_opening(serving, place, good, change, choice, monkeypatch):
    monkeypatch.setattr(pinfeed._feed.batch_maker, "SMALL_BYTES", 0)  # else the first batch is a copy
    folder, bad = broken(place, "changing")
    options = dict(batch_size=1, epochs=1, slots=3, address=serving.address, framework="numpy", transforms=[pinfeed.Resize((16, 16))], timeout=TIMEOUT_S)
    with pinfeed.open(folder, on_bad_sample=choice, sample_ids=True, **options) as feed:
        batches = iter(feed)
        first = next(batches)  # holds one of three slots, so sample 3 is not read before this is given back
        if change == "shrink":
            bad.write_bytes(bad.read_bytes()[:100])
        else:
            bad.unlink()
        if change == "become a folder":
            bad.mkdir()
        if choice == "fail":
            with pytest.raises(pinfeed.Error) as caught:
                while True:
                    first = next(batches)
            check_error(str(caught.value), "3.jpg")
            del first, caught  # the error's traceback would keep the batch
        else:
            del first
            rest = [(batch.sample_id.tolist(), bool(batch.image.any())) for batch in batches]
            others = [([number], True) for number in (1, 2, 4, 5)]
            assert rest == [*others[:2], ([] if choice == "skip" else [3], False), *others[2:]]
    check_good(serving.address, good)
