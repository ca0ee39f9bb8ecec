# SPDX-License-Identifier: Apache-2.0
"""JPEG files in class folders or tar shards, to random crops of 224 x 224 on the device, mirrored by chance, normalised, 16 bits a value: each
contender's way.

In: the folders "jpeg" and "shards" of the inputs. Out: batches of base.BATCH.
"""
import collections
import math
import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor

from .base import (
    BATCH,
    MEAN,
    QUEUE_DEPTH,
    SIDE,
    STD,
    be_quiet,
    contender,
    dali_batches,
    dali_pipeline,
    data_loader,
    endless_batches,
    normaliser,
    spdl_batches,
    to_device,
)

AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
DALI = ("nvidia.dali",)


def shard_paths(env):
    return [str(path) for path in sorted((env.inputs / "shards").iterdir())]


# Decorators apply from the last to the first, so the last line comes first in the tables.
@contender("shards", "pinfeed, decode=auto", "pinfeed", on_gpu=True, decode="auto", kind="shards")
@contender("shards", "pinfeed, decode=gpu", "pinfeed", on_gpu=True, decode="gpu", kind="shards")
@contender("shards", "pinfeed, decode=cpu", "pinfeed", decode="cpu", kind="shards")
@contender("jpeg", "pinfeed, decode=auto", "pinfeed", on_gpu=True, decode="auto")
@contender("jpeg", "pinfeed, decode=gpu", "pinfeed", on_gpu=True, decode="gpu")
@contender("jpeg", "pinfeed, decode=cpu", "pinfeed", decode="cpu")
def pinfeed_images(env, decode, kind="jpeg"):
    import feeding

    more = {"device": None, "backend": "auto"} if env.host else {"device": env.device, "backend": "auto"}
    return feeding.endless(feeding.open_feed(env.address, env.inputs, kind, decode=decode, **more))


@contender("jpeg", "DALI mixed, crop while decoding, hardware load 0.65 (its default)", "DALI", needs=DALI, load=0.65)
@contender("jpeg", "DALI mixed, crop while decoding, hardware load 1.0", "DALI", needs=DALI, load=1.0)
@contender("jpeg", "DALI mixed, whole image, hardware load 1.0, queue depth 2 (its default)", "DALI", needs=DALI, load=1.0, whole=True, depth=2)
@contender("jpeg", "DALI mixed, whole image, hardware load 1.0, 4 threads", "DALI", needs=DALI, load=1.0, whole=True, threads=4)
@contender("jpeg", "DALI mixed, whole image, hardware load 1.0", "DALI", needs=DALI, load=1.0, whole=True)
@contender("shards", "DALI readers.webdataset, mixed, whole image, hardware load 1.0, 4 threads", "DALI", needs=DALI, load=1.0, whole=True, threads=4, shards=True)
def dali_images(env, load, whole=False, threads=None, depth=QUEUE_DEPTH, shards=False):
    pipeline = dali_pipeline(env, threads or env.cores, prefetch_queue_depth=depth)
    from nvidia.dali import fn, types

    device = "cpu" if env.host else "mixed"
    hardware = {} if env.host else {"hw_decoder_load": load}

    @pipeline
    def pipe():
        order = {"random_shuffle": True, "initial_fill": 2048, "name": "reader"}
        if shards:
            files, labels = fn.readers.webdataset(paths=shard_paths(env), ext=["jpg", "cls"], missing_component_behavior="error", **order)
            labels = labels - ord("0")  # texts of one digit
        else:
            files, labels = fn.readers.file(file_root=str(env.inputs / "jpeg"), **order)
        if whole:
            images = fn.decoders.image(files, device=device, output_type=types.RGB, **hardware)
            images = fn.random_resized_crop(
                images, size=[SIDE, SIDE], random_area=AREA, random_aspect_ratio=ASPECT, interp_type=types.INTERP_LINEAR, antialias=True
            )
        else:
            images = fn.decoders.image_random_crop(files, device=device, output_type=types.RGB, random_area=AREA, random_aspect_ratio=ASPECT, **hardware)
            images = fn.resize(images, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.crop_mirror_normalize(
            images, dtype=types.FLOAT16, output_layout="CHW", mean=[255 * mean for mean in MEAN], std=[255 * deviation for deviation in STD],
            mirror=fn.random.coin_flip(probability=0.5),
        )  # fmt: skip
        return images, labels if env.host else labels.gpu()

    return dali_batches(pipe(), ["data", "label"])


class Photos:
    """Decoded, cropped and mirrored by the processor, uint8: by torchvision's decoder, or by Pillow."""

    def __init__(self, root, pillow=False):
        try:
            from torchvision.transforms import v2 as transforms
        except ImportError:  # old releases, in rehearsals
            from torchvision import transforms

        self.files = [(str(path), label) for label, folder in enumerate(sorted(root.iterdir())) for path in sorted(folder.iterdir())]
        self.pillow = pillow
        self.crop = transforms.RandomResizedCrop(SIDE, AREA, ASPECT, transforms.InterpolationMode.BILINEAR, antialias=True)
        self.flip = transforms.RandomHorizontalFlip()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        import torchvision.io

        path, label = self.files[index]
        if self.pillow:
            from PIL import Image
            from torchvision.transforms import functional

            with open(path, "rb") as file:
                return functional.pil_to_tensor(self.flip(self.crop(Image.open(file).convert("RGB")))), label
        data = torchvision.io.read_file(path)
        return self.flip(self.crop(torchvision.io.decode_jpeg(data, mode=torchvision.io.ImageReadMode.RGB))), label


@contender("jpeg", "DataLoader, 16 workers, Pillow", "DataLoader", burst=16, workers=16, pillow=True)
@contender("jpeg", "DataLoader, 16 workers, torchvision's decoder", "DataLoader", burst=16, workers=16)
def dataloader_images(env, workers, pillow=False):
    batches = iter(data_loader(env, Photos(env.inputs / "jpeg", pillow), workers))  # before CUDA is initialised here
    return to_device(env, batches, normaliser(env))


@contender("shards", "webdataset, 16 workers, torchvision's decoder", "webdataset", burst=16, needs=("webdataset",), workers=16)
def webdataset_images(env, workers):
    """As its documentation advises for training: shards drawn without end, and a buffer of samples in each worker, which makes whole batches."""
    import torch
    import torchvision.io
    import webdataset

    photos = Photos(env.inputs / "jpeg")

    def decode(data):
        image = torchvision.io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=torchvision.io.ImageReadMode.RGB)
        return photos.flip(photos.crop(image))

    samples = webdataset.WebDataset(shard_paths(env), resampled=True).shuffle(1000).to_tuple("jpg", "cls").map_tuple(decode, int)
    loader = webdataset.WebLoader(samples.batched(BATCH), batch_size=None, num_workers=workers, pin_memory=not env.host, prefetch_factor=4, worker_init_fn=be_quiet)
    pairs = ((images, torch.as_tensor(labels)) for images, labels in loader)
    return to_device(env, pairs, normaliser(env))


def random_crop(width, height, rng):
    """As torchvision's RandomResizedCrop chooses: left, top, width, height."""
    for _ in range(10):
        area = width * height * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


@contender("jpeg", "SPDL, 16 threads", "SPDL", burst=16, needs=("spdl.io", "spdl.pipeline"))
def spdl_images(env):
    """The pipeline of SPDL's examples (images of a batch in a thread, copies by a thread of their own), its filter made anew for each crop."""
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder

    files, local = Photos(env.inputs / "jpeg").files, threading.local()

    def decode(indices):
        rng = local.__dict__.setdefault("rng", random.Random(threading.get_ident()))
        frames = []
        for index in indices:
            packets = spdl.io.demux_image(files[index][0])
            left, top, width, height = random_crop(packets.codec.width, packets.codec.height, rng)
            mirror = ",hflip" if rng.random() < 0.5 else ""
            steps = f"crop={width}:{height}:{left}:{top},scale={SIDE}:{SIDE}:flags=bilinear{mirror},format=pix_fmts=rgb24"
            frames.append(spdl.io.decode_packets(packets, filter_desc=steps))
        return spdl.io.to_torch(spdl.io.convert_frames(frames)), torch.tensor([files[index][1] for index in indices])

    builder = PipelineBuilder().add_source(batch.tolist() for batch in endless_batches(len(files))).pipe(decode, concurrency=env.cores)
    if not env.host:
        builder = builder.pipe(spdl.io.transfer_tensor_h2d, executor=ThreadPoolExecutor(1))
    normal = normaliser(env)
    for images, labels in spdl_batches(builder, env.cores):
        yield normal(images.permute(0, 3, 1, 2)), labels


@contender("jpeg", "torchvision decode_jpeg on the GPU, roi_align", "torchvision", on_gpu=True)
def torchvision_images(env):
    """nvJPEG by torchvision, a batch at a time, on a thread and stream of its own; others read the files. All images here have one size."""
    import torch
    import torchvision.io
    from torchvision.ops import roi_align

    files, normal = Photos(env.inputs / "jpeg").files, normaliser(env)
    readers, ready, stream, rng = ThreadPoolExecutor(4), queue.Queue(QUEUE_DEPTH), torch.cuda.Stream(), random.Random(1)

    def read(indices):
        return [torchvision.io.read_file(files[index][0]) for index in indices], torch.tensor([files[index][1] for index in indices])

    def decode(sources, labels):
        images = torch.stack(torchvision.io.decode_jpeg(sources, mode=torchvision.io.ImageReadMode.RGB, device=env.device)).half()
        boxes = []
        for number in range(len(images)):
            left, top, width, height = random_crop(images.shape[3], images.shape[2], rng)
            boxes.append((number, left, top, left + width, top + height))
        boxes = torch.tensor(boxes, dtype=images.dtype).to(env.device)
        images = roi_align(images, boxes, (SIDE, SIDE), sampling_ratio=2, aligned=True)
        mirrored = (torch.rand(len(images), device=env.device) < 0.5).view(-1, 1, 1, 1)
        return normal(torch.where(mirrored, images.flip(3), images)), labels.to(env.device)

    def work():
        try:
            indices = endless_batches(len(files))
            pending = collections.deque(readers.submit(read, next(indices)) for _ in range(4))
            while True:
                batch = pending.popleft().result()
                pending.append(readers.submit(read, next(indices)))
                with torch.cuda.stream(stream):
                    made = decode(*batch)
                    event = torch.cuda.Event()
                    event.record()
                ready.put((made, event))
        except BaseException as error:
            ready.put((error, None))

    threading.Thread(target=work, daemon=True).start()
    while True:
        made, event = ready.get()
        if event is None:
            raise made
        event.wait()
        for tensor in made:
            tensor.record_stream(torch.cuda.current_stream())
        yield made


@contender("jpeg", "FFCV, 16 workers", "FFCV", needs=("ffcv",))
def ffcv_images(env):
    """Its ImageNet example over a file of JPEG images. Written from its documentation: no wheel of it exists."""
    import numpy as np
    import torch
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToDevice, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from torchvision.datasets import ImageFolder

    path = env.inputs / "jpeg.beton"
    if not path.exists():
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
        DatasetWriter(str(path), fields, num_workers=env.cores).from_indexed_dataset(ImageFolder(str(env.inputs / "jpeg")))
    device, mean, deviation = torch.device(env.device), np.array(MEAN) * 255, np.array(STD) * 255
    steps = {
        "image": [
            RandomResizedCropRGBImageDecoder((SIDE, SIDE), AREA, ASPECT), RandomHorizontalFlip(), ToTensor(), ToDevice(device, non_blocking=True),
            ToTorchImage(), NormalizeImage(mean, deviation, np.float16),
        ],
        "label": [IntDecoder(), ToTensor(), Squeeze(), ToDevice(device, non_blocking=True)],
    }  # fmt: skip
    loader = Loader(str(path), batch_size=BATCH, num_workers=env.cores, order=OrderOption.RANDOM, os_cache=True, drop_last=True, pipelines=steps)
    while True:
        yield from loader
