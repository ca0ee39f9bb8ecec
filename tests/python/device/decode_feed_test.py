# SPDX-License-Identifier: Apache-2.0
"""Feeds whose images the trainer decodes, with real processes and stand-ins for the CUDA driver and for nvJPEG.

The stand-ins give libjpeg's pixels and the kernel's arithmetic, which without a resize is exactly the workers' own.
"""
import json
import subprocess
import time

import pinfeed
import pytest
from conftest import TOOL
from device_fixtures import daemon, data, host_bytes, nvjpeg, stand_in  # noqa: F401
from device_process import await_unused, finish, start, trainer

NORMAL = [["RandomHorizontalFlip", []], ["RandomVerticalFlip", []], ["Normalize", [[0.5, 0.4, 0.3], [0.2, 0.3, 0.4]]], ["ToDtype", ["bfloat16"]]]


def photos(data, **more):  # noqa: F811
    return {"dataset": str(data / "photos"), "batch_size": 5, "shuffle": True, "transforms": [["RandomCrop", [20]], *NORMAL], **more}


EVERYTHING = {"layout": "HWC", "sample_ids": True, "sample_path": True, "valid": True, "on_bad_sample": "zero"}


@pytest.mark.parametrize("decode, more", [("gpu", {}), ("auto", EVERYTHING), ("auto:500", EVERYTHING)])
def test_the_bytes_are_those_of_the_workers(daemon, data, host_bytes, decode, more):  # noqa: F811
    options = photos(data, **more)
    expected = host_bytes(daemon, 30, options)
    seen, last, errors = finish(trainer(daemon.address, 30, decode=decode, **options))
    assert seen == expected and "decoded by the CPU" not in errors
    assert last["backend"] == "host"
    await_unused(daemon)


def test_a_capture_in_another_thread_is_left_alone(daemon, data, host_bytes):  # noqa: F811
    options = photos(data, **EVERYTHING)
    seen, last, errors = finish(trainer(daemon.address, 8, decode="gpu", env={"PINFEED_STAND_IN_CAPTURING": "elsewhere"}, **options))
    assert seen == host_bytes(daemon, 30, options)[:8] and "WARN" not in errors.upper(), errors


def test_what_was_decided_stands_in_the_status(daemon, data):  # noqa: F811
    running = trainer(daemon.address, 4, decode="auto:300", wait_at=2, name="decoder", **photos(data))
    try:
        for _ in range(2):
            running.stdout.readline()
        assert [feed["decode"] for feed in pinfeed.status(daemon.address)["feeds"]] == ["auto:300"]
    finally:
        finish(running)


def test_ranks_that_feed_gpus_of_one_host_share_its_workers(tmp_path, data, monkeypatch):  # noqa: F811
    """Each gets the share of a rank that has its part of the workers for itself."""

    def opened(workers, gpus, world_size, **more):
        monkeypatch.setenv("PINFEED_STAND_IN_GPUS", str(gpus))
        name = "-".join(map(str, [workers, gpus, world_size, *more.values()]))
        daemon = start(tmp_path / name, data, "--workers", str(workers))  # noqa: F811
        running = trainer(daemon.address, 2, decode="auto", wait_at=1, rank=world_size - 1, world_size=world_size, **photos(data, **more))
        try:
            running.stdout.readline()
            return pinfeed.status(daemon.address)["feeds"][0]
        finally:
            finish(running)
            daemon.stop()

    def decided(*arguments, **more):
        return opened(*arguments, **more)["decode"]

    alone, half = decided(64, 2, 1), decided(32, 2, 1)
    assert int(alone.removeprefix("auto:")) < int(half.removeprefix("auto:")), "more workers decode more"
    assert decided(64, 2, 2) == half
    assert decided(64, 2, 8) == half, "six ranks are on other hosts"
    assert decided(64, 1, 8) == alone
    alone_here = opened(16, 8, 8)  # perhaps
    assert alone_here["decode"] == "auto:1000" and int(alone_here["max_workers"]) == 4, "two workers, for what a GPU decodes"
    for share in ("broadcast", "queue"):
        assert decided(64, 2, 8, share=share, group="g") == alone, "the ranks are hosts"


def bench(daemon, data, *words):  # noqa: F811
    command = [TOOL, "--address", daemon.address, "bench", data / "photos", "--batch-size", 5, "--batches", 3, "--transforms", '[{"center_crop": {"size": [20]}}]']
    done = subprocess.run([*map(str, [*command, *words, "--json"])], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("decode, decided", [("cpu", "cpu"), ("gpu", "gpu"), ("auto:300", "auto:300")])
def test_the_tools_bench_decodes_on_the_gpu(daemon, data, decode, decided):  # noqa: F811
    status, out, err = bench(daemon, data, "--device", 0, "--decode", decode)
    assert status == 0, err
    report = json.loads(out)
    assert report["batches"] == 3 and report["bytes"] == 3 * 5 * (3 * 20 * 20 + 8)
    assert report["feed"]["decode"] == decided


def test_the_tools_bench_refuses_what_is_no_decoder(daemon, data):  # noqa: F811
    for decode in ("tpu", "auto:", "auto:0", "auto:1001", "auto:x", "gpu:5", ""):
        status, _, err = bench(daemon, data, "--device", 0, "--decode", decode)
        assert status == 2 and "is neither cpu, gpu, auto" in err, (decode, err)
    status, _, err = bench(daemon, data, "--decode", "gpu")
    assert status == 2 and "--device 0" in err


def test_engines_that_write_whole_images_only(daemon, data, host_bytes):  # noqa: F811
    """They refuse the parts, and are used all the same: the stand-in decodes no image without them then."""
    options = photos(data)
    seen, _, _ = finish(trainer(daemon.address, 12, decode="gpu", env={"PINFEED_STAND_IN_WHOLE_IMAGES": "1"}, **options))
    assert seen == host_bytes(daemon, 30, options)[:12]


def test_without_nvjpeg_it_is_refused_or_the_cpu(daemon, data, host_bytes, monkeypatch):  # noqa: F811
    monkeypatch.setenv("PINFEED_NVJPEG", "/nowhere/libnvjpeg.so")
    options = photos(data)
    seen, last, errors = finish(trainer(daemon.address, 6, decode="auto", **options))
    assert seen == host_bytes(daemon, 30, options)[:6]
    assert last["backend"] == "vmm-fd" and "images are decoded by the CPU" in errors and "/nowhere" in errors
    refused = trainer(daemon.address, 6, decode="gpu", **options)
    _, said = refused.communicate()
    assert refused.returncode != 0 and "/nowhere/libnvjpeg.so" in said


def test_a_gpu_without_memory_for_it_is_refused_or_the_cpu(daemon, data, host_bytes):  # noqa: F811
    options = photos(data)
    little = {"PINFEED_STAND_IN_BYTES": str(86 << 20)}  # which suffices for a decoder, and not for batches besides
    seen, last, errors = finish(trainer(daemon.address, 6, decode="auto", env=little, **options))
    assert seen == host_bytes(daemon, 30, options)[:6] and last["backend"] == "vmm-fd"
    assert errors.count("images are decoded by the CPU, not by the GPU: allocate ") == 1
    refused = trainer(daemon.address, 6, decode="gpu", env=little, **options)
    _, said = refused.communicate()
    assert refused.returncode != 0 and "smaller batches need less" in said
    await_unused(daemon)


def test_killed_daemon_and_killed_trainer_lose_nothing(tmp_path, data, host_bytes):  # noqa: F811
    first = start(tmp_path / "run", data)
    options = photos(data, decode="gpu", slots=3)
    expected = host_bytes(first, 30, photos(data))[:20]
    running = trainer(first.address, 20, wait_at=5, **options)
    seen = [json.loads(running.stdout.readline()) for _ in range(5)]
    killed = trainer(first.address, 20, wait_at=5, **options)
    for _ in range(5):
        killed.stdout.readline()
    killed.kill()
    killed.communicate()
    first.process.kill()
    first.process.wait(60)
    second = start(tmp_path / "run", data)
    try:
        running.stdin.write("\n")
        running.stdin.flush()
        rest, last, _ = finish(running)
        assert seen + rest == expected and last["reconnects"] == 1
        await_unused(second)
    finally:
        second.stop()


def test_broken_context_is_an_error_and_the_feed_is_left(daemon, data):  # noqa: F811
    began = time.monotonic()
    _, last, _ = finish(trainer(daemon.address, 10, decode="gpu", fault_at=3, **photos(data)))
    assert last["left_s"] < 8 and time.monotonic() - began < 60
    await_unused(daemon)
