# SPDX-License-Identifier: Apache-2.0
"""Headers of .npy files: pinfeed reads those of numbers that NumPy reads, with its values, and refuses those that it refuses."""

import io
import itertools
import struct
import tokenize

import numpy
import pinfeed
import pytest

NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
CODES = ["b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16", *"?bBhHiIlLqQefdFD"]
DESCRIPTIONS = ["".join(both) for both in itertools.product(["", "<", ">", "=", "|"], [*NAMES, *CODES])]
BAD_DESCRIPTIONS = ["", "<", "f3", "<b2", "i3", "f4 ", " f4", "<f", "@f4", "float33", "c4", "fl", "=", "<<f4", "u"]  # "n" is one of NumPy 2's only
SHAPES = ["(3, 2)", "(3,2,)", "(03, 2)", "(3, 02)", "(00, 2)", "(3L, 2L)", "(03L, 2)", "(3)", "(6)", "(6,)", "(3, 2", "[3, 2]", "(3, -2)", "(3., 2)", "(3,, 2)", "(,)", "('3', 2)", "( 3\n, 2)", "(3 2)"]
KEYS = ["'descr'", "u'descr'", "U'descr'", "b'descr'", "u 'descr'", "'Descr'", "uu'descr'", "'descr ", "descr"]


def file_of(header, data, version=1):
    text = (header + "\n").encode("latin1")
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def by_numpy(raw):
    try:
        array = numpy.load(io.BytesIO(raw), max_header_size=1 << 20)
    except (ValueError, TypeError, SyntaxError, OSError, EOFError, tokenize.TokenError):
        return None
    return array if array.ndim and array.size else None  # pinfeed's own rules: samples to count, and some


def by_pinfeed(path):
    try:
        with pinfeed.open(path, batch_size=100, framework="numpy", epochs=1) as feed:
            return numpy.concatenate([batch[0] for batch in feed])
    except pinfeed.InvalidArgumentError:
        return None


def compare(tmp_path, header, data, version=1):
    raw = file_of(header, data, version)
    (tmp_path / "x.npy").write_bytes(raw)
    expected, got = by_numpy(raw), by_pinfeed(tmp_path / "x.npy")
    assert (expected is None) == (got is None), f"{header!r} (version {version}): only {'pinfeed' if expected is None else 'NumPy'} reads it"
    if expected is not None:
        assert got.dtype == expected.dtype.newbyteorder("=") and got.tobytes() == expected.astype(got.dtype).tobytes(), header
    return got is not None


def test_descriptions(feeds, tmp_path):
    read = 0
    for description in DESCRIPTIONS + BAD_DESCRIPTIONS:
        try:
            size = numpy.dtype(description).itemsize
        except TypeError:
            size = 4
        data = (b"\0\1" * 48)[: 6 * size]
        read += compare(tmp_path, f"{{'descr': '{description}', 'fortran_order': False, 'shape': (3, 2)}}", data)
    assert read >= len(NAMES) + 5 * len(CODES)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_shapes_and_keys(feeds, tmp_path, version):
    data = numpy.arange(6, dtype="<f4").tobytes()
    for shape in SHAPES:
        compare(tmp_path, f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}", data, version)
    for key in KEYS:
        compare(tmp_path, f"{{{key}: '<f4', 'fortran_order': False, 'shape': (3, 2)}}", data, version)
        compare(tmp_path, f"{{{key}: u'<f4', 'fortran_order': True, 'shape': (3, 2)}}", data, version)
