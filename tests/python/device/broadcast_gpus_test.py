# SPDX-License-Identifier: Apache-2.0
"""One broadcast to trainers on several GPUs: in turns, one fetches a piece of a batch from the host and the others from that one."""
import json
import threading

import pinfeed
import pytest
from device_fixtures import data, host_bytes, stand_in  # noqa: F401
from device_process import await_unused, finish, start, trainer

NORMAL = [["RandomHorizontalFlip", []], ["Normalize", [[0.5, 0.4, 0.3], [0.2, 0.3, 0.4]]], ["ToDtype", ["bfloat16"]]]


@pytest.fixture
def daemon(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_GPUS", "4")
    running = start(tmp_path / "run", data)
    yield running
    running.stop()


def broadcast(daemon, gpus, batches=40, **options):
    """What the trainers on those GPUs saw."""
    group = {"share": "broadcast", "group": "g", "group_size": len(gpus), "backend": "vmm-fd"}
    trainers = [trainer(daemon.address, batches, gpu=gpu, **{**group, **options}) for gpu in gpus]
    return [finish(process)[0] for process in trainers]


def gpus_of(daemon):
    return pinfeed.status(daemon.address)["gpus"]


@pytest.mark.parametrize("gpus", [[0, 1], [2, 0, 3], [0, 1, 2, 3], [1, 1, 3]])
@pytest.mark.parametrize("batch_size, transforms", [(7, NORMAL), (1, []), (64, [])])
def test_every_trainer_sees_the_bytes_of_the_host(daemon, data, host_bytes, gpus, batch_size, transforms):
    options = {"dataset": str(data / "arrays"), "batch_size": batch_size, "shuffle": True, "transforms": transforms}
    expected = host_bytes(daemon, 40, options)
    for seen in broadcast(daemon, gpus, **options):
        assert seen == expected
    await_unused(daemon)


@pytest.mark.parametrize("gpus", [[0, 0], [0, 1]])
def test_a_refused_seek_leaves_a_trainer_where_it_was(daemon, data, host_bytes, gpus):
    """The new session is attached, and maps the same memory once more, before the old one goes."""
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True, "transforms": NORMAL}
    expected = host_bytes(daemon, 40, options)
    for seen in broadcast(daemon, gpus, refused_at=10, **options):
        assert seen == expected
    await_unused(daemon)


@pytest.mark.parametrize("dataset, batch_size, sample_bytes", [("arrays", 64, 3 * 16 * 20 + 8), ("large", 20, 4 * 500 * 600 + 8 + 2)])
def test_a_batch_crosses_the_links_to_the_host_once(daemon, data, dataset, batch_size, sample_bytes):
    wanted = 30 if dataset == "arrays" else 10
    broadcast(daemon, [0, 1, 2, 3], batches=wanted, dataset=str(data / dataset), batch_size=batch_size)
    await_unused(daemon)  # nothing is copied any more
    copied = [int(gpu["copied_bytes"]) for gpu in gpus_of(daemon)]
    peers = [int(gpu["peer_copied_bytes"]) for gpu in gpus_of(daemon)]
    batches = sum(copied) / (batch_size * sample_bytes)
    assert wanted <= batches <= wanted + 30 and min(copied) > 0
    assert max(copied) < 1.5 * min(copied), "in turns"
    assert sum(peers) == 3 * sum(copied)


def test_a_batch_of_several_pieces_is_whole_on_every_gpu(daemon, data, host_bytes):
    options = {"dataset": str(data / "large"), "batch_size": 20, "shuffle": True, "transforms": NORMAL, "masks": ["mask"]}
    expected = host_bytes(daemon, 5, options)
    assert broadcast(daemon, [0, 1, 2], batches=5, **options) == [expected] * 3


def test_gpus_that_cannot_reach_each_other_fetch_everything_from_the_host(tmp_path, data, host_bytes, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_GPUS", "2")
    monkeypatch.setenv("PINFEED_STAND_IN_PEERS", "0")
    running = start(tmp_path / "run", data)
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True}
    expected = host_bytes(running, 40, options)
    assert broadcast(running, [0, 1], **options) == [expected, expected]
    assert "cannot read the memory of GPU" in running.log()
    assert all(int(gpu["peer_copied_bytes"]) == 0 for gpu in gpus_of(running))
    running.stop()


def test_a_late_member_must_be_on_a_gpu_of_the_group(daemon, data):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "share": "broadcast", "group": "g", "group_size": 2, "backend": "vmm-fd"}
    members = [trainer(daemon.address, 10**6, gpu=gpu, **options) for gpu in (0, 1)]
    for member in members:
        assert member.stdout.readline()
        threading.Thread(target=member.stdout.read, daemon=True).start()  # a group waits for who cannot print
    _, errors = trainer(daemon.address, 1, gpu=2, **options).communicate(timeout=60)
    assert "the group is already running on GPU-" in errors
    members[1].kill()
    members[1].wait()
    late = trainer(daemon.address, 5, gpu=1, **options)
    assert len(finish(late)[0]) == 5
    members[0].kill()
    members[0].wait()


def test_memory_for_a_member_that_is_never_served_goes_with_it(daemon, data, host_bytes):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "shuffle": True}
    expected = host_bytes(daemon, 40, options)
    group = {"share": "broadcast", "group": "g", "group_size": 3, "backend": "vmm-fd", **options}
    in_use = lambda: [int(gpu["arena_used_bytes"]) > 0 for gpu in gpus_of(daemon)]  # noqa: E731
    members = [trainer(daemon.address, 40, gpu=0, **group)]
    while in_use() != [True, False, False, False]:
        assert members[0].poll() is None
    lost = trainer(daemon.address, 40, gpu=1, **group)
    while in_use() != [True, True, False, False]:
        assert lost.poll() is None
    lost.kill()
    lost.communicate()
    while in_use() != [True, False, False, False]:
        assert members[0].poll() is None
    members += [trainer(daemon.address, 40, gpu=gpu, **group) for gpu in (2, 2)]
    assert [finish(member)[0] for member in members] == [expected] * 3
    assert [int(gpu["copied_bytes"]) > 0 for gpu in gpus_of(daemon)] == [True, False, True, False]


def test_a_queue_stays_on_one_gpu(daemon, data):
    options = {"dataset": str(data / "arrays"), "batch_size": 7, "share": "queue", "group": "q", "group_size": 2, "backend": "vmm-fd"}
    first = trainer(daemon.address, 10**6, gpu=0, **options)
    while not pinfeed.status(daemon.address)["feeds"]:
        assert first.poll() is None
    _, errors = trainer(daemon.address, 1, gpu=1, **options).communicate(timeout=60)
    assert "only a broadcast group can use several GPUs" in errors
    first.kill()
    first.communicate()


def test_a_gpu_that_breaks_costs_no_batch_of_any_member(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PINFEED_STAND_IN_GPUS", "2")
    options = {"dataset": str(data / "arrays"), "batch_size": 64, "shuffle": True}
    monkeypatch.setenv("PINFEED_STAND_IN_FAIL", "cuMemcpyDtoDAsync:40")
    first = start(tmp_path / "run", data)
    monkeypatch.delenv("PINFEED_STAND_IN_FAIL")
    group = {"share": "broadcast", "group": "g", "group_size": 2, "backend": "vmm-fd"}
    members = [trainer(first.address, 100, gpu=gpu, **{**group, **options}) for gpu in (0, 1)]
    assert first.process.wait(60) == 1, first.log()
    second = start(tmp_path / "run", data)
    expected = finish(trainer(second.address, 100, **options))[0]
    for member in members:
        seen, last, _ = finish(member)
        assert last["reconnects"] == 1 and seen == expected, json.dumps(last)
    second.stop()
