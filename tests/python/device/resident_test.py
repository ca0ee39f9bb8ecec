# SPDX-License-Identifier: Apache-2.0
"""Samples that are resident on a GPU, with real processes and the stand-in for the CUDA driver: batches must have the bytes of the host."""
import json
import os
import re
import signal
import time

import numpy as np
import pinfeed
import pytest
from device_fixtures import daemon, data, host_bytes, stand_in  # noqa: F401
from device_process import finish, gpu, start, trainer, used
from withstand.hardship import eventually

NORMAL = [["Normalize", [[0.5, 0.4, 0.3], [0.2, 0.3, 0.4]]], ["ToDtype", ["bfloat16"]]]
FLIPS = [["RandomHorizontalFlip", []], ["RandomVerticalFlip", [0.3]]]
CROP = ["RandomCrop", [14, 4]]  # with padding


@pytest.fixture(scope="module", autouse=True)
def rows(data):  # noqa: F811
    random = np.random.default_rng(1)
    random.integers(0, 60000, 20000, np.uint16).tofile(data / "tokens.bin")
    (data / "grey").mkdir()
    np.save(data / "grey" / "image.npy", random.integers(0, 256, (50, 17, 19, 1), np.uint8))
    np.save(data / "grey" / "weight.npy", random.random((50, 5, 3), np.float32))
    time.sleep(2.1)  # feeds share what did not change in the last 2 s before it is opened


def spec(data, **more):  # noqa: F811
    return {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True, "seed": 3, "transforms": [*FLIPS, CROP, *NORMAL], **more}


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": "arrays", "transforms": []},
        {"dataset": "arrays", "transforms": [], "batch_size": 100, "sample_ids": True, "valid": True},
        {"dataset": "arrays"},
        {"dataset": "arrays", "layout": "HWC", "transforms": [CROP, *FLIPS, *NORMAL]},
        {"dataset": "arrays", "transforms": [["CenterCrop", [13]], *FLIPS, ["ToDtype", ["float32", True]]]},
        {"dataset": "arrays", "transforms": [["RandomHorizontalFlip", []], ["CenterCrop", [[9, 30]]]]},
        {"dataset": "arrays", "transforms": [["RandomHorizontalFlip", [1.0]], ["RandomCrop", [[16, 20], [1, 2, 3, 0], False, [7, 8, 9]]], FLIPS[0]]},
        {"dataset": "arrays", "transforms": [["RandomCrop", [40, 15, True, 0, "reflect"]], *FLIPS, *NORMAL]},
        {"dataset": "arrays", "transforms": [["RandomVerticalFlip", []], ["RandomCrop", [12, 3, False, 0, "symmetric"]]], "layout": "HWC"},
        {"dataset": "arrays", "transforms": [["RandomVerticalFlip", []], ["RandomCrop", [20, 9, False, 0, "edge"]]], "drop_last": True, "batch_size": 33},
        {"dataset": "arrays", "transforms": [["Resize", [[10, 12]]], ["RandomHorizontalFlip", []], ["Grayscale", [1]]], "refused": "transforms\\[2\\] grayscale"},
        {"dataset": "arrays", "transforms": [["Grayscale", [1]], ["RandomHorizontalFlip", []]]},
        {"dataset": "grey", "transforms": []},
        {"dataset": "grey", "transforms": [["RandomHorizontalFlip", []], ["RandomCrop", [16]], ["ToDtype", ["float16", True]]]},
        {"dataset": "large", "batch_size": 20, "sample_ids": True, "fields_unchanged": ["mask"], "transforms": [["RandomHorizontalFlip", []]]},
        {"dataset": "photos", "batch_size": 5, "sample_ids": True, "transforms": [["Resize", [[9, 8]]], ["RandomHorizontalFlip", []], *NORMAL]},
        {"dataset": "photos", "batch_size": 5, "sample_path": True, "pad": {"sample_path": 40}, "transforms": [["CenterCrop", [32]], ["RandomCrop", [20]]]},
        {"dataset": "tokens.bin", "sequence_length": 32, "transforms": []},
    ],
)
def test_the_bytes_are_those_of_the_host(daemon, data, host_bytes, options):  # noqa: F811
    options = spec(data, **{**options, "dataset": str(data / options["dataset"])})
    refused = options.pop("refused", None)
    batches = 40
    if refused:
        _, errors = trainer(daemon.address, 1, resident=True, **options).communicate(timeout=60)
        assert re.search(refused, errors), errors
        return
    expected = host_bytes(daemon, batches, options)
    copies = None
    for resident in (True, "auto"):  # the second finds the samples of the first
        seen, last, errors = finish(trainer(daemon.address, batches, resident=resident, **options))
        assert seen == expected and last["backend"] == "host" and "not kept" not in errors
        assert used(daemon) > 0
        assert copies in (None, int(gpu(daemon)["copies"])), "loaded once"
        copies = int(gpu(daemon)["copies"])


@pytest.mark.parametrize("how", ["skip", "zero", "fail"])
def test_bad_samples_are_what_they_are_without(daemon, data, how):  # noqa: F811
    broken = [data / "photos" / "class0" / f"broken{n}.jpg" for n in range(5)]
    for path in broken:
        path.write_bytes(b"no image")
    try:
        options = spec(data, dataset=str(data / "photos"), batch_size=6, on_bad_sample=how, sample_ids=True, valid=True)
        options["transforms"] = [["Resize", [[20, 20]]], *options["transforms"]]
        outcomes = []
        for more in ({"host": True}, {"resident": True}):
            process = trainer(daemon.address, 30, **options, **more)
            if how == "fail":
                out, errors = process.communicate(timeout=60)
                outcomes.append((out, [line for line in errors.splitlines() if line.startswith("pinfeed.")]))
                assert process.returncode != 0 and "broken" in errors
            else:
                outcomes.append(finish(process)[0])
        assert outcomes[0] == outcomes[1]
    finally:
        for path in broken:
            path.unlink()


def test_trainers_share_the_samples_and_one_is_killed(daemon, data, host_bytes):  # noqa: F811
    """They differ in all that is done to the samples for a batch."""
    first = trainer(daemon.address, 10**6, resident=True, **spec(data))
    assert first.stdout.readline()
    alone = used(daemon)
    other = spec(data, seed=9, batch_size=11, transforms=[["RandomHorizontalFlip", []], ["ToDtype", ["float32", True]]])
    second = trainer(daemon.address, 60, wait_at=5, resident=True, **other)
    seen = [json.loads(second.stdout.readline()) for _ in range(5)]
    assert used(daemon) == alone > 0
    shown = pinfeed.status(daemon.address)["feeds"]
    assert [int(feed["resident_bytes"]) for feed in shown] == [alone, alone] and not any(feed["resident_loading"] for feed in shown)
    first.kill()
    first.communicate()
    rest, last, _ = finish(second)
    assert seen + rest == host_bytes(daemon, 60, other)


def test_a_killed_trainer_whose_child_has_the_gpu_keeps_only_the_charge(daemon, data):  # noqa: F811
    process = trainer(daemon.address, 10**6, resident=True, **spec(data))
    assert process.stdout.readline()
    process.kill()
    process.communicate()
    assert finish(trainer(daemon.address, 30, resident=True, **spec(data)))[0]
    assert "0 bad samples" in daemon.log() and daemon.log().count("are resident on GPU") == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("resident", [True, "auto"])
def test_a_restarted_daemon_costs_no_batch(tmp_path, data, how, resident):  # noqa: F811
    options = spec(data, resident=resident)
    first = start(tmp_path / "run", data)
    expected, _, _ = finish(trainer(first.address, 100, **options))
    process = trainer(first.address, 100, wait_at=50, **options)
    seen = [json.loads(process.stdout.readline()) for _ in range(10)]
    first.process.send_signal(how)
    first.process.wait(60)
    second = start(tmp_path / "run", data)
    rest, last, _ = finish(process)
    assert seen + rest == expected and last == {"backend": "host", "reconnects": 1}
    second.stop()


def test_a_trainer_that_is_ahead_of_its_gpu_waits_for_it_in_next(daemon, data):  # noqa: F811
    """Where other threads run, and its timeout holds. The writing itself never waits."""
    ahead = trainer(daemon.address, 0, run_ahead=64, timeout=0.05, resident=True, **spec(data))
    ((said,), _, _) = finish(ahead)
    assert "the GPU has yet to execute what its stream had before" in said["refused"]
    lines, _, _ = finish(trainer(daemon.address, 65, resident=True, **spec(data)))
    assert said["crc"] == [line["crc"] for line in lines]


def test_a_group_gets_every_batch(daemon, data, host_bytes):  # noqa: F811
    options = spec(data)
    group = {"share": "broadcast", "group": "g", "group_size": 2, "resident": True}
    members = [trainer(daemon.address, 40, **options, **group) for _ in range(2)]
    for member in members:
        assert finish(member)[0] == host_bytes(daemon, 40, options)


def test_samples_without_a_feed_give_way_and_go(daemon, data):  # noqa: F811
    """They stay for a while; a feed that needs their memory gets it at once."""
    large = {"dataset": str(data / "large"), "batch_size": 20, "fields_unchanged": ["mask"], "transforms": []}
    finish(trainer(daemon.address, 3, resident=True, **large))
    kept = used(daemon)
    assert kept > 60 * 1_000_000
    # Of 192 MiB: 6 slots of 24 MB do not fit beside the samples.
    finish(trainer(daemon.address, 3, slots=6, **large))
    eventually(lambda: used(daemon), lambda: used(daemon) == 0)


def test_what_does_not_fit_is_refused_with_the_sizes(tmp_path, data):  # noqa: F811
    small = start(tmp_path / "run", data, "--gpu-bytes", "64MiB")
    options = {"dataset": str(data / "large"), "batch_size": 2, "slots": 3, "fields_unchanged": ["mask"], "transforms": [["RandomHorizontalFlip", []]]}
    _, errors = trainer(small.address, 1, resident=True, **options).communicate(timeout=60)
    assert "ResourceExhaustedError" in errors and "resident: the samples cannot be kept on the GPU: 60 samples of together " in errors and "gpu_bytes" in errors, errors
    process = trainer(small.address, 30, resident="auto", wait_at=1, **options)
    assert process.stdout.readline()
    (feed,) = pinfeed.status(small.address)["feeds"]
    assert "more than half of the" in feed["resident_note"] and int(feed["resident_bytes"]) == 0
    _, last, errors = finish(process)
    assert last["backend"] == "vmm-fd" and "samples are not kept on the GPU: the samples take " in errors
    # One that takes more than half is possible if it is required.
    half = {"dataset": str(data / "large"), "batch_size": 20, "fields": ["image"], "transforms": [["CenterCrop", [[460, 460]]]]}
    assert "more than half" in finish(trainer(small.address, 3, resident="auto", slots=3, **{**half, "batch_size": 5}))[2]
    finish(trainer(small.address, 3, resident=True, **half))
    small.stop()


@pytest.mark.parametrize(
    "more, why",
    [
        ({"transforms": [["RandomResizedCrop", [13]]]}, "no fixed size before the first random transform|transforms\\[0\\] random_resized_crop"),
        ({"transforms": [CROP, ["RandomCrop", [9]]]}, "transforms\\[1\\] random_crop"),
        ({"dataset": "photos", "transforms": [CROP]}, "no fixed size before the first random transform"),
        ({"dataset": "large", "masks": ["mask"], "transforms": FLIPS}, "masks are not resident"),
        ({"dataset": "ragged.jsonl", "transforms": []}, "different numbers of rows; give it a fixed shape \\(pad\\)"),
        ({"backend": "cuda-ipc"}, "only the backend VMM_FD gives"),
        ({"backend": "host"}, "only the backend VMM_FD gives"),
        ({"host": True}, "needs a device"),
        ({"zero_copy": True}, "the slots have lists of samples"),
        ({"dataset": "photos", "decode": "gpu", "transforms": [["CenterCrop", [20]]]}, "the decode must be CPU"),
        ({"resident": "always"}, '"auto", True or False'),
    ],
)
def test_what_cannot_be_resident_is_refused_or_done_without(daemon, data, more, why):  # noqa: F811
    options = spec(data, **{"resident": True, **more})
    options["dataset"] = str(data / more.get("dataset", "arrays"))
    process = trainer(daemon.address, 1, **options)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert re.search(why, errors), errors
    # With the backend "host", the trainer needs PyTorch proper.
    if options["resident"] is not True or options.get("zero_copy") or "decode" in more or more.get("backend") == "host":
        return
    without = {**options, "resident": False}
    seen, _, errors = finish(trainer(daemon.address, 5, **{**options, "resident": "auto"}))
    assert seen == finish(trainer(daemon.address, 5, **without))[0]
    assert "not kept on the GPU" in errors


def test_memory_that_a_client_cannot_map(daemon, data, host_bytes):  # noqa: F811
    broken = {"PINFEED_STAND_IN_FAIL": "cuMemImportFromShareableHandle:1:101"}
    _, errors = trainer(daemon.address, 1, env=broken, resident=True, **spec(data)).communicate(timeout=60)
    assert "resident samples: " in errors and "CUDA_ERROR_INVALID_DEVICE" in errors, errors
    seen, last, errors = finish(trainer(daemon.address, 20, env=broken, resident="auto", **spec(data)))
    assert seen == host_bytes(daemon, 20, spec(data)) and "the client cannot map them" in errors


def test_changed_files_are_loaded_anew(daemon, data, tmp_path):  # noqa: F811
    folder = data / "changing"
    folder.mkdir(exist_ok=True)
    options = {"dataset": str(folder), "batch_size": 10, "transforms": []}
    outcomes = []
    for value in (1, 2):
        np.save(folder / "new.npy", np.full((100, 50), value, np.int32))
        os.replace(folder / "new.npy", folder / "value.npy")
        outcomes.append(finish(trainer(daemon.address, 10, resident=True, **options))[0])
        assert outcomes[-1] == finish(trainer(daemon.address, 10, host=True, **options))[0]
    assert outcomes[0] != outcomes[1]
