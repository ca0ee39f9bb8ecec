# SPDX-License-Identifier: Apache-2.0
"""Image files at the edge of their formats: pinfeed reads those that Pillow reads, with its pixels, and turns them as it does."""

import io
import struct
import warnings
import zlib

import numpy
import pinfeed
import pytest
from PIL import Image, ImageOps

SIDE = 24
RAW_PROFILE = b"Raw profile type exif"
XMP = b"XML:com.adobe.xmp"


def picture(seed, colours=256):
    return numpy.random.default_rng(seed).integers(0, colours, (SIDE, SIDE, 3), numpy.uint8)


def jpeg(**options):
    out = io.BytesIO()
    Image.fromarray(picture(1)).save(out, "jpeg", quality=90, **options)
    return out.getvalue()


def segment(marker, data, length=None):
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2 if length is None else length) + data


def chunk(name, data, checksum=None):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data) if checksum is None else checksum)


def png(depth=8, kind=2, before=b"", behind=b"", end=chunk(b"IEND", b"")):
    channels = {0: 1, 2: 3, 3: 1}[kind]
    rows = numpy.random.default_rng(2).integers(0, 256, (SIDE, SIDE * channels * depth // 8), numpy.uint8)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", pixels[:100]) + chunk(b"IDAT", pixels[100:]) + behind + end


# ---- what says how an image is turned -----------------------------------------------------------------------------------------------

# The types of TIFF that hold numbers, with what struct calls them.
FORMATS = {1: "B", 2: "c", 3: "H", 4: "I", 5: "II", 6: "b", 7: "c", 8: "h", 9: "i", 10: "ii", 11: "f", 12: "d", 13: "I", 16: "Q", 14: "I", 17: "I"}


def tiff(*tags, endian="<", header=None, offset=8):
    """Each tag: (number, type, values). Values that do not fit lie behind the directory."""
    body, extra = b"", b""
    for number, kind, values in tags:
        data = b"".join(struct.pack(endian + FORMATS[kind], *(value if isinstance(value, tuple) else (value,))) for value in values)
        if len(data) > 4:
            place = 8 + 2 + 12 * len(tags) + 4 + len(extra)
            extra += data
            data = struct.pack(endian + "I", place)
        body += struct.pack(endian + "HHI", number, kind, len(values)) + data.ljust(4, b"\0")
    header = header or (b"II*\0" if endian == "<" else b"MM\0*")
    return header + struct.pack(endian + "I", offset) + struct.pack(endian + "H", len(tags)) + body + bytes(4) + extra


ORIENTATION = 0x0112
BLOCKS = {f"{name}_{value}": tiff((ORIENTATION, 3, [value]), endian=endian) for name, endian in (("little", "<"), ("big", ">")) for value in range(10)}
for endian in "<>":
    for kind in (3, 4, 6, 8, 9, 11, 12, 13, 14, 16, 17):
        for values in ([6], [6, 8], [8, 6, 3, 1, 1]):
            BLOCKS[f"type_{kind}_{len(values)}_{ord(endian)}"] = tiff((ORIENTATION, kind, values), endian=endian)
    for kind in (6, 8, 9, 11):
        BLOCKS[f"negative_{kind}_{ord(endian)}"] = tiff((ORIENTATION, kind, [-6]), endian=endian)
    BLOCKS[f"fraction_{ord(endian)}"] = tiff((ORIENTATION, 11, [6.5]), endian=endian)
    for kind in (5, 10):
        for number, value in enumerate(((6, 1), (12, 2), (6, 0), (13, 2), (0, 0))):
            BLOCKS[f"rational_{kind}_{number}_{ord(endian)}"] = tiff((ORIENTATION, kind, [value]), endian=endian)
    BLOCKS[f"byte_{ord(endian)}"] = tiff((ORIENTATION, 1, [6]), endian=endian)
    BLOCKS[f"text_{ord(endian)}"] = tiff((ORIENTATION, 2, [b"6", b"\0"]), endian=endian)
BLOCKS |= {
    "none": tiff((0x010F, 3, [7])),
    "empty": tiff((ORIENTATION, 3, [])),
    "twice": tiff((ORIENTATION, 3, [6]), (ORIENTATION, 3, [8])),
    "twice_empty": tiff((ORIENTATION, 3, [6]), (ORIENTATION, 3, [])),
    "cut": tiff((ORIENTATION, 3, [6]), (ORIENTATION, 3, [8]))[:-14],
    "cut_value": tiff((ORIENTATION, 3, [6]), (0x010E, 3, [1] * 9), (ORIENTATION, 3, [8]))[:-8],
    "far": tiff((ORIENTATION, 3, [6]), offset=1 << 31),
    "mm*": tiff((ORIENTATION, 3, [6]), endian=">", header=b"MM*\0"),
    "ii*": tiff((ORIENTATION, 3, [6]), header=b"II\0*"),
    "mm+": tiff((ORIENTATION, 3, [6]), endian=">", header=b"MM\0+"),
}  # fmt: skip
SIX, EIGHT = BLOCKS["little_6"], BLOCKS["big_8"]


def raw_profile(block, name=b"exif"):
    data = (b"Exif\0\0" + block).hex().encode()
    return b"\n" + name + b"\n      %d\n" % (len(data) // 2) + b"\n".join(data[i : i + 72] for i in range(0, len(data), 72)) + b"\n"


def texts(name, text):
    """In the three kinds of chunks, plain and compressed."""
    yield chunk(b"tEXt", name + b"\0" + text)
    yield chunk(b"zTXt", name + b"\0\0" + zlib.compress(text))
    yield chunk(b"iTXt", name + b"\0\0\0en\0\0" + text)
    yield chunk(b"iTXt", name + b"\0\1\0en\0\0" + zlib.compress(text))


def turned_files():
    whole = jpeg()
    for name, block in BLOCKS.items():
        yield f"exif_{name}.jpg", whole[:2] + segment(0xE1, b"Exif\0\0" + block) + whole[2:]
        yield f"exif_{name}.png", png(before=chunk(b"eXIf", block))
    for name, found in (("before", {"before": chunk(b"eXIf", SIX)}), ("behind", {"behind": chunk(b"eXIf", SIX)}), ("end", {"end": chunk(b"IEND", b"") + chunk(b"eXIf", SIX)})):
        yield f"place_{name}.png", png(**found)
    yield "place_both.png", png(before=chunk(b"eXIf", SIX), behind=chunk(b"eXIf", EIGHT))
    yield "place_before_twice.png", png(before=chunk(b"eXIf", SIX) + chunk(b"eXIf", EIGHT))
    yield "place_empty_then_xmp.png", png(before=chunk(b"eXIf", b"") + chunk(b"iTXt", XMP + b'\0\0\0\0\0tiff:Orientation="6"'))
    yield "place_first_segment.jpg", whole[:2] + segment(0xE1, b"Exif\0\0" + SIX) + segment(0xE1, b"Exif\0\0" + EIGHT) + whole[2:]
    yield "place_xmp_segment.jpg", whole[:2] + segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0 tiff:Orientation="6"') + whole[2:]
    yield "place_behind_the_end.jpg", whole + segment(0xE1, b"Exif\0\0" + SIX)
    yield "place_between_end.jpg", whole[:-2] + segment(0xE1, b"Exif\0\0" + SIX) + whole[-2:]
    for number, text in enumerate(texts(RAW_PROFILE, raw_profile(SIX))):
        yield f"profile_{number}.png", png(before=text)
        yield f"profile_behind_{number}.png", png(behind=text)
        yield f"profile_and_exif_{number}.png", png(before=text + chunk(b"eXIf", EIGHT))
    yield "profile_twice.png", png(before=chunk(b"tEXt", RAW_PROFILE + b"\0" + raw_profile(SIX)) + chunk(b"tEXt", RAW_PROFILE + b"\0" + raw_profile(EIGHT)))
    yield "profile_damaged.png", png(before=chunk(b"zTXt", RAW_PROFILE + b"\0\0" + zlib.compress(raw_profile(SIX))[:-4] + b"abcd"))
    yield "profile_short.png", png(before=chunk(b"zTXt", RAW_PROFILE + b"\0\0" + zlib.compress(raw_profile(SIX))[:-4]))
    xmp = '<x:xmpmeta xmlns:x="adobe:ns:meta/">%s</x:xmpmeta>'
    for number, text in enumerate(('tiff:Orientation="6"', "<tiff:Orientation>8</tiff:Orientation>", 'tiff:Orientation="9"', "tiff:Orientation='6'", 'tiff:Orientation="x" tiff:Orientation="3"', "tiff:Orientation", 'é tiff:Orientation="6"')):
        for kind, found in enumerate(texts(XMP, (xmp % text).encode())):
            yield f"xmp_{number}_{kind}.png", png(before=found)
            yield f"xmp_behind_{number}_{kind}.png", png(behind=found)
    yield "xmp_and_exif.png", png(before=chunk(b"eXIf", EIGHT) + next(texts(XMP, b'tiff:Orientation="6"')))
    yield "xmp_and_other_exif.png", png(before=chunk(b"eXIf", BLOCKS["none"]) + next(texts(XMP, b'tiff:Orientation="6"')))
    yield "xmp_behind_other_exif.png", png(before=chunk(b"eXIf", BLOCKS["none"]), behind=next(texts(XMP, b'tiff:Orientation="6"')))
    yield "xmp_no_utf8.png", png(before=chunk(b"iTXt", XMP + b'\0\0\0\0\0\xff tiff:Orientation="6"'))


# ---- what is damaged, or only odd ---------------------------------------------------------------------------------------------------


def odd_files():
    for name, whole in (("whole", jpeg()), ("progressive", jpeg(progressive=True)), ("restarts", jpeg(restart_marker_rows=1))):
        yield f"jpeg_{name}.jpg", whole
        for nulls in (0, 1, 2, 3, 8, 64, 100, 70_000):
            yield f"jpeg_{name}_{nulls}_for_the_end.jpg", whole[:-2] + bytes(nulls)
        yield f"jpeg_{name}_text_for_the_end.jpg", whole[:-2] + b"a text that stands behind"
        yield f"jpeg_{name}_segment_for_the_end.jpg", whole[:-2] + bytes(8) + b"\xff\xe3\xff\xff"
        for cut in (0.5, 0.8):
            yield f"jpeg_{name}_{cut}.jpg", whole[: int(len(whole) * cut)]
            yield f"jpeg_{name}_{cut}_nulls.jpg", whole[: int(len(whole) * cut)] + bytes(60)
            yield f"jpeg_{name}_{cut}_end.jpg", whole[: int(len(whole) * cut)] + b"\xff\xd9"
        for marker in (0xE0, 0xE1, 0xE5, 0xEE, 0xEF, 0xFE):
            for length in (0, 1, 2):
                yield f"jpeg_{name}_{marker}_{length}.jpg", whole[:2] + segment(marker, b"", length) + whole[2:]
    text = b"Title\0of the picture"
    yield "png_no_end.png", png(end=b"")
    yield "png_end_without_checksum.png", png(end=b"\0\0\0\0IEND")
    yield "png_end_with_a_wrong_checksum.png", png(end=chunk(b"IEND", b"", 1))
    yield "png_half_an_end.png", png(end=b"\0\0\0\0IE")
    for where in ("before", "behind"):
        yield f"png_text_{where}.png", png(**{where: chunk(b"tEXt", text)})
        yield f"png_wrong_checksum_{where}.png", png(**{where: chunk(b"tEXt", text, 1)})
        yield f"png_empty_exif_{where}.png", png(**{where: chunk(b"eXIf", b"")})
        yield f"png_unknown_{where}.png", png(**{where: chunk(b"abCd", text)})
    yield "png_text_cut.png", png(behind=chunk(b"tEXt", text)[:-8], end=b"")
    yield "png_text_checksum_cut.png", png(behind=chunk(b"tEXt", text)[:-2], end=b"")
    yield "png_no_chunk_behind.png", png(behind=chunk(b"t\xffXt", text))
    yield "png_pixels_again.png", png(behind=chunk(b"tEXt", text) + chunk(b"IDAT", b"more"))
    yield "png_empty_pixels_first.png", png(before=chunk(b"IDAT", b""))
    yield "png_junk_behind_the_end.png", png() + b"junk" * 20
    for depth in (1, 2, 4, 8):
        for colours in (0, 1, 2, 3, 4, 5, 16, 17, 200, 255, 256, 257):
            yield f"png_palette_{depth}_{colours}.png", png(depth, 3, chunk(b"PLTE", picture(colours).tobytes()[: 3 * colours]))
        yield f"png_palette_{depth}_none.png", png(depth, 3)
        yield f"png_palette_{depth}_odd.png", png(depth, 3, chunk(b"PLTE", bytes(range(7))))
        yield f"png_palette_{depth}_twice.png", png(depth, 3, chunk(b"PLTE", bytes(range(9))) + chunk(b"PLTE", bytes(range(20, 26))))
        yield f"png_palette_{depth}_behind.png", png(depth, 3, chunk(b"PLTE", bytes(range(9))), chunk(b"PLTE", bytes(range(20, 26))))
    yield "png_palette_of_rgb.png", png(8, 2, chunk(b"PLTE", bytes(9)))


def by_pillow(path, oriented):
    """The pixels as Pillow 11 reads them; None when it refuses the file.

    Pillow 9.4 shows colours that a palette lacks as grey, not black, and reads orientations before it loads.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(path) as image:
                image.load()
                if image.mode == "P":
                    colours = (image.palette.palette if path.suffix == ".png" and b"PLTE" in path.read_bytes() else b"").ljust(768, b"\0")
                    image = Image.fromarray(numpy.frombuffer(colours, numpy.uint8).reshape(-1, 3)[numpy.asarray(image)])
                return numpy.asarray((ImageOps.exif_transpose(image) if oriented else image).convert("RGB"))
        except (OSError, SyntaxError, ValueError):
            return None


def by_pinfeed(folder, count, **options):
    """The pixels of each file that was given, by its number."""
    got = {}
    with pinfeed.open(folder, batch_size=16, transforms=[pinfeed.Resize((SIDE, SIDE))], layout="hwc", sample_ids=True, on_bad_sample="skip", framework="numpy", epochs=1, **options) as feed:
        for batch in feed:
            got |= {int(number): image.copy() for number, image in zip(batch.sample_id, batch.image)}
        assert feed.dataset_size == count
    return got


@pytest.mark.parametrize("oriented", [True, False])
@pytest.mark.parametrize("files", [turned_files, odd_files])
def test_files_are_as_pillow_reads_them(feeds, tmp_path, files, oriented):
    (tmp_path / "all").mkdir()
    names = []
    for name, data in files():
        (tmp_path / "all" / name).write_bytes(data)
        names.append(name)
    names.sort()
    got = by_pinfeed(tmp_path, len(names), **({} if oriented else {"exif_orientation": False}))
    differing = []
    for number, name in enumerate(names):
        expected = by_pillow(tmp_path / "all" / name, oriented)
        if expected is None or number not in got:
            if (expected is None) != (number not in got):
                differing.append(f"{name}: {'only pinfeed' if expected is None else 'only Pillow'} reads it")
        elif not numpy.array_equal(got[number], expected):
            differing.append(f"{name}: other pixels")
    assert not differing, "\n".join(differing)
    if files is turned_files:
        upright = [numpy.array_equal(got[number], by_pillow(tmp_path / "all" / name, False)) for number, name in enumerate(names) if number in got]
        assert all(upright) if not oriented else 40 < upright.count(False)
