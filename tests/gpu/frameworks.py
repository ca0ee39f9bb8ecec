# SPDX-License-Identifier: Apache-2.0
"""Feeds under the frameworks' own ways with a GPU: side streams, graphs, DLPack. In: a daemon's address. Out: a line a check.

    frameworks.py ADDRESS OUT

Makes small data of its own, so the daemon must be allowed to read /tmp. A framework that is not installed is said to be missing, loudly; a
check that fails, or one that could not be made, is exit status 1. Writes OUT/frameworks.json.
"""
import importlib.util
import itertools
import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take the GPU for itself

import numpy as np  # noqa: E402
import pinfeed  # noqa: E402

SAMPLES, SHAPE, BATCH = 512, (3, 64, 64), 32
BACKENDS = ("vmm-fd", "cuda-ipc")
rows = []


def check(name, function, *arguments):
    try:
        seen = function(*arguments)
        rows.append({"check": name, "seen": seen, "holds": True})
    except ModuleNotFoundError as error:
        rows.append({"check": name, "seen": f"not made: {error}", "holds": None})
    except Exception as error:  # the others are made all the same
        rows.append({"check": name, "seen": f"{type(error).__name__}: {error}"[:300], "holds": False})
    last = rows[-1]
    print({True: "ok  ", False: "FAIL", None: "SKIP"}[last["holds"]], f"{name:72}", last["seen"], flush=True)


def need(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"{module} is not installed")


class Feeds:
    def __init__(self, address, data, images):
        self.address, self.data, self.images = address, data, images

    def open(self, backend, framework, **more):
        where = {"device": 0, "backend": backend, "framework": framework, "rank": 0, "world_size": 1}
        return pinfeed.open(str(self.data), batch_size=BATCH, shuffle=True, seed=1, slots=3, address=self.address, timeout=60, **where, **more)

    def sums(self, labels):
        return self.images[labels].astype(np.int64).sum(axis=(1, 2, 3))


def equal(what, seen, wanted):
    if not np.array_equal(np.asarray(seen), wanted):
        raise AssertionError(f"{what}: {np.count_nonzero(np.asarray(seen) != wanted)} of {wanted.size} values are wrong")


def torch_side_stream(feeds, backend, zero_copy):
    """Taken and used on a stream that is far behind: slots go back in its order, not before."""
    need("torch")
    import torch

    side = torch.cuda.Stream()
    kept = []
    with feeds.open(backend, "torch", zero_copy=zero_copy) as feed, torch.cuda.stream(side):
        for images, labels in itertools.islice(feed, 12):
            torch.cuda._sleep(20_000_000)  # some 10 ms, in which the daemon would fill the slot anew if it could
            kept.append((images.long().sum(dim=(1, 2, 3)), labels.clone()))
            del images, labels
        side.synchronize()
    for sums, labels in kept:
        equal("sums", sums.cpu().numpy(), feeds.sums(labels.cpu().numpy()))
    return f"{len(kept)} batches"


def torch_other_stream(feeds, backend):
    """Taken on the current stream, used on another one that waits for it."""
    need("torch")
    import torch

    other = torch.cuda.Stream()
    kept = []
    with feeds.open(backend, "torch") as feed:
        for images, labels in itertools.islice(feed, 12):
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                torch.cuda._sleep(5_000_000)
                kept.append((images.long().sum(dim=(1, 2, 3)), labels.clone()))
            images.record_stream(other)
            labels.record_stream(other)
            del images, labels
        other.synchronize()
    for sums, labels in kept:
        equal("sums", sums.cpu().numpy(), feeds.sums(labels.cpu().numpy()))
    return f"{len(kept)} batches"


def torch_graph(feeds, backend):
    """A consumer of a fixed buffer is captured once; each batch is copied into the buffer and the graph replayed."""
    need("torch")
    import torch

    with feeds.open(backend, "torch", drop_last=True) as feed:
        batches = iter(feed)
        images, labels = next(batches)
        fixed = images.clone()
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            fixed.long().sum(dim=(1, 2, 3))
        torch.cuda.current_stream().wait_stream(warm)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            sums = fixed.long().sum(dim=(1, 2, 3))
        replays = 0
        while replays < 12:
            fixed.copy_(images)
            graph.replay()
            equal("sums", sums.cpu().numpy(), feeds.sums(labels.cpu().numpy()))
            replays += 1
            images, labels = next(batches)
    return f"{replays} replays"


def cupy_owned(feeds, backend):
    need("cupy")
    import cupy

    side = cupy.cuda.Stream(non_blocking=True)
    kept = []
    with feeds.open(backend, "cupy") as feed, side:
        for images, labels in itertools.islice(feed, 12):
            kept.append((images.astype(cupy.int64).sum(axis=(1, 2, 3)), labels.copy()))
        side.synchronize()
    for sums, labels in kept:
        equal("sums", cupy.asnumpy(sums), feeds.sums(cupy.asnumpy(labels)))
    return f"{len(kept)} batches on a stream of CuPy's"


def cupy_lent(feeds, backend):
    """cupy.from_dlpack over the slots themselves; CuPy gives its stream."""
    need("cupy")
    import cupy

    with feeds.open(backend, "cupy", zero_copy=True) as feed:
        count = 0
        for batch in itertools.islice(feed, 9):
            images = cupy.from_dlpack(batch.raw["image"])
            sums = cupy.asnumpy(images.astype(cupy.int64).sum(axis=(1, 2, 3)))
            equal("sums", sums, feeds.sums(cupy.asnumpy(cupy.from_dlpack(batch.raw["label"]))))
            count += 1
            del images, batch
    return f"{count} batches"


def stream_arguments(feeds, backend):
    """Every value that the array API standard allows for `stream`."""
    need("torch")
    import torch

    with feeds.open(backend, "torch", zero_copy=True) as feed:
        batch = next(iter(feed))
        streams = {"None": None, "legacy": 1, "per-thread": 2, "-1": -1, "own": torch.cuda.Stream().cuda_stream}
        labels = batch.label.cpu().numpy()
        for name, stream in streams.items():
            for version in (None, (1, 0)):
                capsule = batch.raw["image"].__dlpack__(stream=stream, max_version=version)
                images = torch.utils.dlpack.from_dlpack(capsule) if version is None else None
                if images is not None:
                    equal(f"stream {name}", images.long().sum(dim=(1, 2, 3)).cpu().numpy(), feeds.sums(labels))
                del capsule, images
        del batch
    return ", ".join(streams)


def jax_from_torch(feeds, backend):
    """JAX over the tensors that a feed wrote for torch."""
    need("jax", "torch")
    import jax
    import jax.numpy as jnp
    import torch

    if jax.default_backend() not in ("gpu", "cuda"):
        raise ModuleNotFoundError(f"JAX has no GPU here, only {jax.default_backend()}")
    with feeds.open(backend, "torch") as feed:
        count = 0
        for images, labels in itertools.islice(feed, 9):
            torch.cuda.set_device(images.device)  # torch exports tensors of the current GPU only, and JAX's start makes the last one current
            array = jax.dlpack.from_dlpack(images)
            sums = np.asarray(jnp.sum(array.astype(jnp.int32), axis=(1, 2, 3)))
            equal("sums", sums, feeds.sums(labels.cpu().numpy()))
            count += 1
    return f"{count} batches"


def jax_lent(feeds, backend):
    """JAX over the slots themselves: it calls __dlpack__ with a stream of its own."""
    need("jax", "torch")
    import jax
    import jax.numpy as jnp

    if jax.default_backend() not in ("gpu", "cuda"):
        raise ModuleNotFoundError(f"JAX has no GPU here, only {jax.default_backend()}")
    with feeds.open(backend, "torch", zero_copy=True) as feed:
        count = 0
        for batch in itertools.islice(feed, 9):
            array = jax.dlpack.from_dlpack(batch.raw["image"])
            sums = np.asarray(jnp.sum(array.astype(jnp.int32), axis=(1, 2, 3)))  # waits: JAX's stream is not the feed's
            equal("sums", sums, feeds.sums(batch.label.cpu().numpy()))
            count += 1
            del array, batch
    return f"{count} batches"


def ragged_rows(feeds, backend, framework):
    """Packed rows in the order of the samples, as lists, texts, padded and nested, on a side stream that is far behind."""
    need(framework)
    path = feeds.data / "ragged.jsonl"
    rows = [{"id": n, "tags": list(range(n % 9)), "text": f"text {n} " * (n % 5)} for n in range(SAMPLES)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = {"device": 0, "backend": backend, "framework": framework, "rank": 0, "world_size": 1}
    nested = 0
    with pinfeed.open(path, batch_size=BATCH, shuffle=True, epochs=1, address=feeds.address, timeout=60, **where) as feed:
        for batch in feed:
            if framework == "torch":
                import torch

                torch.cuda._sleep(10_000_000)
                assert batch.tags.values.is_cuda
                jagged = batch.tags.to_nested()
                assert jagged.is_nested and jagged.layout == torch.jagged
                nested += 1
            padded = batch.tags.to_padded(rows=8, value=-1)
            ids = [int(n) for n in batch.id]
            equal("texts", batch.text.decode(), np.asarray([rows[n]["text"] for n in ids]))
            equal("padded", padded.get() if hasattr(padded, "get") else padded.cpu(), np.asarray([rows[n]["tags"] + [-1] * (8 - n % 9) for n in ids]))
            if nested:
                assert [part.tolist() for part in jagged.unbind()] == batch.tags.tolist() == [rows[n]["tags"] for n in ids]
    return f"{SAMPLES} samples, {nested} nested tensors"


def main():
    address, out = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="pinfeed-frameworks-", dir="/tmp") as folder:
        data = pathlib.Path(folder)
        images = np.random.default_rng(0).integers(0, 256, (SAMPLES, *SHAPE), np.uint8)
        np.save(data / "image.npy", images)
        np.save(data / "label.npy", np.arange(SAMPLES, dtype=np.int64))
        os.chmod(folder, 0o755)
        feeds = Feeds(address, data, images)
        for backend in BACKENDS:
            check(f"{backend}: torch, taken and used on a side stream", torch_side_stream, feeds, backend, False)
            check(f"{backend}: torch, slots lent on a side stream", torch_side_stream, feeds, backend, True)
            check(f"{backend}: torch, used on another stream than taken on", torch_other_stream, feeds, backend)
            check(f"{backend}: torch, CUDA graph over a fixed buffer", torch_graph, feeds, backend)
            check(f"{backend}: torch, packed rows", ragged_rows, feeds, backend, "torch")
            check(f"{backend}: CuPy, packed rows", ragged_rows, feeds, backend, "cupy")
            check(f"{backend}: CuPy, arrays of its own", cupy_owned, feeds, backend)
            check(f"{backend}: CuPy over lent slots by DLPack", cupy_lent, feeds, backend)
            check(f"{backend}: DLPack, every stream argument", stream_arguments, feeds, backend)
            check(f"{backend}: JAX over torch tensors by DLPack", jax_from_torch, feeds, backend)
            check(f"{backend}: JAX over lent slots by DLPack", jax_lent, feeds, backend)
    (out / "frameworks.json").write_text(json.dumps(rows, indent=1))
    return 0 if all(one["holds"] is not False for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
