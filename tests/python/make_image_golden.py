#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Golden images for image_golden_test. In: a directory and a part (decode, resize, chain or mask). Out: image files, what Pillow and torchvision
make of them as raw bytes, and a manifest with one case a line.

Nothing is stored in the repository: the answers are those of the Pillow and torchvision that are installed.
"""
import io
import pathlib
import struct
import sys
import zlib

import numpy as np
from PIL import Image, ImageOps

OUT = pathlib.Path(sys.argv[1])
RNG = np.random.default_rng(7)
LINES = []


def picture(width, height):
    """Smooth areas, edges and noise, as photographs have them."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    channels = [127 + 120 * np.sin(x / 23 + c) * np.cos(y / (31 + 5 * c)) for c in range(3)]
    pixels = np.stack(channels, axis=-1)
    pixels[(x // 40 + y // 30) % 3 == 0] *= 0.5
    pixels += RNG.normal(0, 8, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def displayed(data):
    with Image.open(io.BytesIO(data)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def write(name, data):
    (OUT / name).write_bytes(data)
    return name


def case_decode(name, data, expected=None):
    image = displayed(data) if expected is None else expected
    write(name, data)
    write(name + ".rgb", image.tobytes())
    LINES.append(f"decode {name} {image.width} {image.height}")


def case_as_pillow(name, data, reason):
    try:
        expected = displayed(data)
    except OSError:
        case_reject(name, data, reason)
    else:
        case_decode(name, data, expected)


def case_reject(name, data, reason, pillow=True):
    if pillow:
        try:
            displayed(data)
        except (OSError, SyntaxError, ValueError):
            pass
        else:
            raise AssertionError(f"Pillow accepts {name}: it is no case of rejection")
    write(name, data)
    LINES.append(f"reject {name} {reason}")


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def packed_rows(samples, depth):
    """Rows of samples (height, width * channels) as PNG stores them, each behind a filter byte 0."""
    rows = []
    for row in samples:
        if depth == 16:
            body = row.astype(">u2").tobytes()
        elif depth == 8:
            body = row.astype(np.uint8).tobytes()
        else:
            bits = "".join(format(int(v), f"0{depth}b") for v in row)
            bits += "0" * (-len(bits) % 8)
            body = bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))
        rows.append(b"\0" + body)
    return b"".join(rows)


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def raw_png(width, height, colour, depth, interlaced, trns):
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    entries = min(200, 1 << depth)
    samples = RNG.integers(0, entries if colour == 3 else 1 << depth, (height, width, channels))
    if interlaced:
        passes = [samples[y::dy, x::dx] for x, y, dx, dy in ADAM7]
    else:
        passes = [samples]
    body = b"".join(packed_rows(p.reshape(p.shape[0], -1), depth) for p in passes if p.size)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced)))
    if colour == 3:
        data += chunk(b"PLTE", RNG.integers(0, 256, 3 * entries).astype(np.uint8).tobytes())
    if trns:
        first = [int(v) for v in samples[0, 0]]
        data += chunk(b"tRNS", {0: lambda: struct.pack(">H", first[0]), 2: lambda: struct.pack(">HHH", *first),
                                3: lambda: bytes(range(entries))}[colour]())
    return data + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b""), samples


def png_modes():
    for colour, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)), (6, (8, 16))):
        for depth in depths:
            for interlaced in (False, True):
                for trns in (False, True) if colour in (0, 2, 3) else (False,):
                    data, samples = raw_png(37, 21, colour, depth, interlaced, trns)
                    expected = None
                    if colour == 0 and depth == 16:  # Pillow clips at 255 here; pinfeed takes the high byte, as of 16-bit colour
                        grey = (samples[:, :, 0] >> 8).astype(np.uint8)
                        expected = Image.fromarray(grey).convert("RGB")
                    case_decode(f"png_{colour}_{depth}_{int(interlaced)}_{int(trns)}.png", data, expected)


def webp():
    for width, height in ((500, 375), (123, 77), (1, 1), (17, 33), (8, 300)):
        image = picture(width, height)
        with_alpha = image.copy()
        with_alpha.putalpha(Image.fromarray(RNG.integers(0, 256, (height, width), dtype=np.uint8)))
        for lossless in (False, True):
            case_decode(f"webp_{width}x{height}_{int(lossless)}.webp", encoded(image, "WEBP", lossless=lossless))
            # exact: otherwise the encoder clears the colours of transparent pixels.
            case_decode(f"webp_alpha_{width}x{height}_{int(lossless)}.webp", encoded(with_alpha, "WEBP", lossless=lossless, exact=True))
    for orientation in range(1, 10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        case_decode(f"turned_{orientation}.webp", encoded(picture(70, 45), "WEBP", exif=exif.tobytes()))
    case_decode("longest_sides.webp", encoded(picture(16383, 3), "WEBP"))
    for lossless in (False, True):
        data = encoded(picture(200, 150), "WEBP", lossless=lossless)
        for i in range(40):
            at = int(RNG.integers(30, len(data) - 20))
            case_as_pillow(f"sector_{int(lossless)}_{i}.webp", data[:at] + RNG.bytes(8) + data[at + 8:], "WebP")
            case_reject(f"cut_{int(lossless)}_{i}.webp", data[:int(RNG.integers(12, len(data) - 1))], "WebP")
        case_reject(f"wrong_size_{int(lossless)}.webp", data[:4] + struct.pack("<I", 20) + data[8:], "WebP")
        exif = Image.Exif()
        exif[0x0112] = 6
        data = encoded(picture(70, 45), "WEBP", lossless=lossless, exif=exif.tobytes())
        begin, end = data.index(b"VP8L" if lossless else b"VP8 ") + 8, data.index(b"EXIF")
        for i in range(60):
            flipped = bytearray(data)
            flipped[int(RNG.integers(begin, end))] ^= 1 << int(RNG.integers(8))
            case_as_pillow(f"flipped_{int(lossless)}_{i}.webp", bytes(flipped), "WebP")
        size = len(data) - end - 8
        case_reject(f"cut_exif_{int(lossless)}.webp", data[:4] + struct.pack("<I", len(data) - 18) + data[8:-10], "WebP")
        case_reject(f"large_exif_{int(lossless)}.webp", data[:end + 4] + struct.pack("<I", size + 99) + data[end + 8:], "WebP")
    frames = encoded(picture(30, 20), "WEBP", save_all=True, append_images=[picture(30, 20)], duration=100)
    case_reject("animation.webp", frames, "animation", pillow=False)


def decode():
    for width, height in ((500, 375), (123, 77), (1, 1), (16, 16), (17, 33), (8, 300)):
        image = picture(width, height)
        for subsampling in (0, 1, 2):
            for progressive in (False, True):
                data = encoded(image, "JPEG", quality=90, subsampling=subsampling, progressive=progressive)
                case_decode(f"rgb_{width}x{height}_{subsampling}_{int(progressive)}.jpg", data)
        case_decode(f"grey_{width}x{height}.jpg", encoded(image.convert("L"), "JPEG", quality=75))
        case_decode(f"filtered_{width}x{height}.png", encoded(image, "PNG"))
    cmyk = encoded(picture(90, 60).convert("CMYK"), "JPEG", quality=90)
    case_decode("cmyk.jpg", cmyk)
    adobe = cmyk.index(b"Adobe")
    case_decode("ycck.jpg", cmyk[:adobe + 11] + b"\2" + cmyk[adobe + 12:])
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        case_decode(f"turned_{orientation}.jpg", encoded(picture(70, 45), "JPEG", quality=90, exif=exif.tobytes()))
        case_decode(f"turned_{orientation}.png", encoded(picture(45, 70), "PNG", exif=exif.tobytes()))
    exif[0x0112] = 9
    case_decode("turned_9.jpg", encoded(picture(70, 45), "JPEG", exif=exif.tobytes()))
    little = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    case_decode("turned_little_endian.jpg", encoded(picture(70, 45), "JPEG", exif=little))
    late = encoded(picture(45, 70), "PNG")
    case_decode("turned_late.png", late[:-12] + chunk(b"eXIf", little[6:]) + late[-12:])
    png_modes()
    webp()

    jpeg = encoded(picture(200, 150), "JPEG", quality=90)
    case_decode("garbage_behind.jpg", jpeg + b"\0" * 100000)
    scan = jpeg.index(b"\xff\xda")
    case_decode("garbage_before_marker.jpg", jpeg[:scan] + b"\0\0" + jpeg[scan:])
    damaged = bytearray(jpeg)
    damaged[scan + 3000] ^= 0x10
    case_decode("damaged.jpg", bytes(damaged))
    # Something else where pixels should be: libjpeg stops there, and the rest is gray if it reaches the end of the image.
    middle = scan + 3000
    for marker in range(1, 255):
        case_as_pillow(f"stray_{marker:02x}.jpg", jpeg[:middle] + bytes([0xFF, marker]) + jpeg[middle + 2:], "JPEG")
    case_reject("another_file.jpg", jpeg[:middle] + encoded(picture(90, 60), "JPEG"), "SOI")
    for i in range(100):
        sector = int(RNG.integers(scan + 20, len(jpeg) - 600))
        case_as_pillow(f"sector_{i}.jpg", jpeg[:sector] + RNG.bytes(512) + jpeg[sector + 512:], "JPEG")
    for i in range(24):
        cut = int(RNG.integers(4, len(jpeg) - 1)) if i else len(jpeg) - 2
        case_reject(f"cut_{i}.jpg", jpeg[:cut], "truncated")
    progressive = encoded(picture(200, 150), "JPEG", quality=90, progressive=True)
    case_reject("cut_progressive.jpg", progressive[:len(progressive) // 2], "truncated")
    cut_off = encoded(picture(200, 150), "PNG")
    case_reject("cut.png", cut_off[:len(cut_off) // 2], "PNG")
    case_reject("cut_header.png", cut_off[:20], "PNG")
    wrong = bytearray(cut_off)
    wrong[-13] ^= 1  # the checksum of the last IDAT
    case_reject("checksum.png", bytes(wrong), "PNG", pillow=False)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    case_reject("bomb.png", b"\x89PNG\r\n\x1a\n" + header + cut_off[33:], "268435456", pillow=False)
    for name, sides in (("wide.png", (1 << 28, 1)), ("tall.png", (1, 65501))):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", *sides, 8, 2, 0, 0, 0))
        case_reject(name, b"\x89PNG\r\n\x1a\n" + header + cut_off[33:], "65500", pillow=False)
    for name, sides in (("widest.png", (65500, 1)), ("tallest.png", (1, 65500))):
        case_decode(name, encoded(picture(*sides), "PNG"))
    frame = jpeg.index(b"\xff\xc0")
    huge = jpeg[:frame + 5] + struct.pack(">HH", 60000, 60000) + jpeg[frame + 9:]
    case_reject("bomb.jpg", huge, "268435456", pillow=False)
    case_reject("flat.jpg", jpeg[:frame + 5] + struct.pack(">HH", 0, 100) + jpeg[frame + 9:], "JPEG")
    flat = chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 5, 8, 2, 0, 0, 0))
    case_reject("flat.png", b"\x89PNG\r\n\x1a\n" + flat + cut_off[33:], "PNG", pillow=False)
    case_reject("empty.jpg", b"", "empty")
    case_reject("text.jpg", b"<html>404</html>", "neither")
    case_reject("gif.png", encoded(picture(9, 9).convert("P"), "GIF"), "neither", pillow=False)
    case_reject("magic_only.jpg", b"\xff\xd8\xff", "truncated")


def resize():
    for index, (width, height) in enumerate(((500, 375), (64, 48), (7, 5), (1, 40), (40, 1), (1201, 900))):
        image = picture(width, height)
        name = write(f"picture_{index}.png", encoded(image, "PNG"))
        targets = [(224, 224), (256, 341), (width, 30), (31, height), (1, 1), (width + 1, height), (64, 64), (3, 97)]
        for number, (to_width, to_height) in enumerate(targets):
            box = (0, 0, width, height)
            if number % 2:
                x, y = int(RNG.integers(0, width)), int(RNG.integers(0, height))
                box = (x, y, int(RNG.integers(x, width)) + 1, int(RNG.integers(y, height)) + 1)
            for filter in ("NEAREST", "BILINEAR", "BICUBIC", "LANCZOS"):
                resized = image.crop(box).resize((to_width, to_height), getattr(Image, filter))
                golden = write(f"resized_{index}_{number}_{filter}.rgb", resized.tobytes())
                LINES.append(f"resize {name} {box[0]} {box[1]} {box[2] - box[0]} {box[3] - box[1]} {to_width} {to_height} {filter} {golden}")


def chain():
    import torch
    from torchvision import transforms as tv

    NEAREST = tv.InterpolationMode.NEAREST
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    normalize = [tv.ToTensor(), tv.Normalize(mean, std)]
    chains = {
        "val": [tv.Resize(256), tv.CenterCrop(224), *normalize],
        "pad": [tv.CenterCrop((401, 333)), *normalize],
        "crop_then_larger_crop": [tv.CenterCrop((51, 40)), tv.CenterCrop((90, 91)), *normalize],
        "larger_crop_then_crop": [tv.CenterCrop((600, 611)), tv.CenterCrop((90, 91)), *normalize],
        "two_resizes": [tv.Resize((50, 60)), tv.Resize((90, 80)), *normalize],
        "pad_then_resize": [tv.CenterCrop((600, 611)), tv.Resize((100, 90)), *normalize],
        "bytes": [tv.Resize((60, 71)), tv.PILToTensor()],
        "pad_color": [tv.Pad((3, 5), fill=(10, 200, 30)), tv.CenterCrop((600, 611)), tv.Resize((60, 71)), tv.PILToTensor()],
        "pad_reflect": [tv.Pad((70, 30, 20, 9), padding_mode="reflect"), tv.CenterCrop((57, 130)), tv.PILToTensor()],
        "pads": [
            tv.Pad(5, padding_mode="edge"),
            tv.Grayscale(3),
            tv.Pad(4, fill=(9, 80, 7)),
            tv.Pad(300, padding_mode="symmetric"),
            tv.CenterCrop((30, 600)),
            *normalize,
        ],
        "nearest": [tv.RandomHorizontalFlip(1.0), tv.Resize((250, 250), NEAREST), tv.PILToTensor()],
        "upside_down_nearest": [tv.RandomVerticalFlip(1.0), tv.Resize((50, 40), NEAREST), tv.PILToTensor()],
        "random_crops": [  # of which there is but one
            tv.Resize((40, 50)),
            tv.RandomCrop((44, 56), padding=(3, 2), fill=9),
            tv.Resize((60, 60)),
            tv.RandomResizedCrop(30, scale=(1, 1), ratio=(1, 1), interpolation=tv.InterpolationMode.BICUBIC),
            tv.PILToTensor(),
        ],
        "gray": [tv.Resize((60, 71)), tv.Grayscale(), tv.PILToTensor()],
        "gray_then_resize": [tv.CenterCrop((401, 333)), tv.Grayscale(3), tv.Resize((60, 71)), tv.Resize((50, 50)), *normalize],
        "upside_down": [tv.RandomVerticalFlip(1.0), tv.CenterCrop((51, 40)), tv.Resize((30, 33)), tv.PILToTensor()],
        "half": [tv.Resize((60, 71)), *normalize, tv.ConvertImageDtype(torch.float16)],
        "bfloat": [tv.Resize((60, 71)), *normalize, tv.ConvertImageDtype(torch.bfloat16)],
    }
    for index, (width, height) in enumerate(((500, 375), (375, 501), (100, 57))):
        data = encoded(picture(width, height), "JPEG", quality=90)
        name = write(f"picture_{index}.jpg", data)
        image = displayed(data)
        for key, steps in chains.items():
            tensor = tv.Compose(steps)(image).contiguous()
            golden = write(f"chain_{index}_{key}.bin", tensor.view(torch.uint8).numpy().tobytes())
            LINES.append(f"chain {key} {name} {golden}")


def mask():
    """Masks as torchvision.transforms.v2 treats a tv_tensors.Mask: these functions on tensors, NEAREST where it resizes."""
    import torch
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    def resize(mask, height, width):
        if mask.dtype in (torch.uint8, torch.float32, torch.float64):
            return F.resize(mask, [height, width], InterpolationMode.NEAREST)
        return F.resize(mask.to(torch.float32), [height, width], InterpolationMode.NEAREST).to(mask.dtype)  # as v2 does

    def pad(mode):
        return lambda mask, height, width: F.pad(mask, [width, height], padding_mode=mode)

    steps = {"resize": resize, "pad": pad("constant"), "edge": pad("edge"), "reflect": pad("reflect"), "symmetric": pad("symmetric"), "crop": lambda mask, height, width: F.center_crop(mask, [height, width]), "flip": F.hflip, "vflip": F.vflip}
    chains = [[("resize", height, width)] for height, width in ((1, 1), (7, 8), (13, 17), (14, 18), (20, 16), (33, 51), (60, 95), (224, 223))]
    chains += [
        [("flip",)],
        [("crop", 7, 10)],
        [("crop", 40, 33), ("flip",)],
        [("flip",), ("resize", 8, 10)],
        [("resize", 8, 10), ("flip",)],
        [("flip",), ("crop", 12, 12), ("resize", 7, 5), ("flip",), ("resize", 20, 9)],
        [("edge", 3, 5), ("pad", 2, 1), ("reflect", 9, 7), ("crop", 44, 60)],
        [("crop", 11, 15), ("symmetric", 5, 6), ("flip",), ("pad", 2, 3), ("pad", 1, 1), ("resize", 9, 14)],
        [("vflip",), ("crop", 12, 11), ("resize", 7, 5), ("vflip",), ("flip",), ("resize", 20, 9)],
        [("resize", 30, 31), ("crop", 9, 14), ("flip",), ("resize", 31, 40), ("crop", 50, 30)],
    ]
    height, width = 20, 32
    # Whole numbers that every type here holds, but no two neighbours alike.
    values = torch.from_numpy((np.arange(2 * height * width) * 37 % 113).reshape(2, height, width))
    for kind in ("uint8", "int8", "int16", "int32", "int64", "float32", "float64"):
        source = values.to(getattr(torch, kind))
        name = write(f"mask_{kind}.bin", source.numpy().tobytes())
        for number, chain in enumerate(chains):
            tensor = source
            for step, *sides in chain:
                tensor = steps[step](tensor, *sides)
            golden = write(f"mask_{kind}_{number}.bin", tensor.contiguous().numpy().tobytes())
            text = ",".join(":".join(map(str, step)) for step in chain)
            LINES.append(f"mask {kind} {name} {height} {width} {text} {golden}")


Image.MAX_IMAGE_PIXELS = None
{"decode": decode, "resize": resize, "chain": chain, "mask": mask}[sys.argv[2]]()
(OUT / "manifest").write_text("\n".join(LINES) + "\n")
