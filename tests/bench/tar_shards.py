# SPDX-License-Identifier: Apache-2.0
"""Writes tar shards as WebDataset defines them: for the benchmarks, and for tests."""
import io
import tarfile


def write_shard(path, members, form=tarfile.DEFAULT_FORMAT):
    """members: pairs of a name and bytes."""
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def pack_images(source, folder, shards, progress=lambda shards, _what: shards):
    """Packs the images of class folders, each with its label, the classes mixed. `progress(iterable, description)` shows a bar."""
    classes = sorted(source.iterdir())
    samples = sorted((path.name, label, path) for label, below in enumerate(classes) for path in below.iterdir())
    for shard in progress(range(shards), "making shards"):
        members = []
        for number in range(shard, len(samples), shards):
            _, label, path = samples[number]
            members += [(f"{number:06}.jpg", path.read_bytes()), (f"{number:06}.cls", str(label).encode())]
        write_shard(folder / f"{shard:03}.tar", members)
