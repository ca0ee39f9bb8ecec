# SPDX-License-Identifier: Apache-2.0
"""default_collate, beside that of PyTorch, through the memory of a batch.

Long because: each kind of value is a test of the one promise that batches are PyTorch's.
"""

import collections
import collections.abc
import dataclasses
import os
import pathlib
import random
import subprocess
import sys
import warnings
from typing import Any, NamedTuple

import numpy
import pytest

torch = pytest.importorskip("torch")

import pinfeed  # noqa: E402
from pinfeed._worker.batch_memory import BatchWriter, read_batch  # noqa: E402
from pinfeed._base.checks import Checks  # noqa: E402
from pinfeed._worker.collate import default_collate  # noqa: E402
from pinfeed._worker.rows import rows_of  # noqa: E402

from torch.utils.data import default_collate as torch_collate  # noqa: E402

SIZE = 1 << 20


class Slot:
    """Memory, the writer of one batch into it, and a count of what was allocated."""

    def __init__(self):
        self.memory = numpy.zeros(SIZE, numpy.uint8)
        self.writer = BatchWriter(memoryview(self.memory))
        self.allocated = []

    def allocate(self, shape, dtype):
        self.allocated.append(self.writer.allocate(shape, dtype))
        return self.allocated[-1]

    def carry(self, samples):
        """Collates, writes and reads."""
        self.writer.finish(default_collate(samples, self.allocate))
        return read_batch(self.memory)


def collated(samples):
    return Slot().carry(samples)


def refused(samples):
    with pytest.raises((RuntimeError, TypeError)) as caught:
        default_collate(samples, Slot().allocate)
    return caught.value


def expect_same(ours, theirs):
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert torch.equal(torch.isnan(ours), torch.isnan(theirs))
        assert torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs)) if theirs.is_floating_point() else torch.equal(ours, theirs)
    elif isinstance(theirs, collections.abc.Mapping):
        assert list(ours) == list(theirs)
        for key in theirs:
            expect_same(ours[key], theirs[key])
    elif isinstance(theirs, collections.abc.Sequence) and not isinstance(theirs, (str, bytes)):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs):
            expect_same(mine, other)
    else:
        assert ours == theirs


class Point(NamedTuple):
    x: Any
    y: Any


class Record(dict):
    pass


class Row(list):
    pass


class Entries(collections.UserDict):
    def __init__(self, split, items):
        super().__init__(items)
        self.split = split


class Items(collections.UserList):
    note = "of the class"


class View(collections.abc.Mapping):
    """A mapping that is no dict, and is made of one argument."""

    def __init__(self, items):
        self.items_ = dict(items)

    def __getitem__(self, key):
        return self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


class Fixed(View):
    """A mapping whose constructor takes other arguments."""

    def __init__(self, a, b):
        super().__init__({"a": a, "b": b})


T = torch.tensor
CASES = {
    "ints": [1, 2, -3],
    "one": [5],
    "bools": [True, False],
    "bools and ints": [True, 2],
    "ints and bools": [2, True],
    "ints and floats": [1, 2.5],
    "floats": [1.5, float("nan"), float("inf")],
    "floats, ints and bools": [1.5, 2, True],
    "floats and NumPy's": [1.0, numpy.float32(2)],
    "float and tensor": [1.0, T(2.0)],
    "NumPy float32": [numpy.float32(1), numpy.float32(2)],
    "NumPy float64": [numpy.float64(1), numpy.float64(2)],
    "NumPy float64 and float": [numpy.float64(1), 2.0],
    "NumPy bool": [numpy.bool_(True), numpy.bool_(False)],
    "NumPy ints": [numpy.int16(1), numpy.int16(-2)],
    "NumPy mixed": [numpy.float32(1), numpy.float64(2)],
    "NumPy complex": [numpy.complex64(1j), numpy.complex64(2)],
    "strings": ["a", "bc"],
    "bytes": [b"a", b"bc"],
    "strings and None": ["a", None],
    "NumPy strings": [numpy.str_("a"), numpy.str_("b")],
    "tensors": [torch.arange(6).reshape(2, 3), torch.arange(6, 12).reshape(2, 3)],
    "tensors without dimensions": [T(1.5), T(2.5)],
    "empty tensors": [torch.zeros(2, 0, 3), torch.zeros(2, 0, 3)],
    "non-contiguous tensors": [torch.arange(6).reshape(2, 3).t(), torch.arange(3 * 20).reshape(3, 20)[:, ::10]],
    "expanded tensors": [T([1]).expand(3), T([1, 2, 3])],
    "tensors of two dtypes": [torch.full((2,), 1e300, dtype=torch.float64), torch.ones(2)],
    "tensors of int and float": [torch.ones(2, dtype=torch.int64), torch.full((2,), 0.5)],
    "conjugate tensors": [T([1 + 2j]).conj(), T([3 - 1j])],
    "a frozen parameter": [torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.zeros(2)],
    "arrays": [numpy.arange(6.0).reshape(2, 3), numpy.ones((2, 3))],
    "arrays without dimensions": [numpy.array(1.5), numpy.array(2.5)],
    "empty arrays": [numpy.zeros((0, 3), "f4")] * 2,
    "transposed arrays": [numpy.arange(6).reshape(2, 3).T, numpy.arange(6, 12).reshape(3, 2)],
    "arrays of two dtypes": [numpy.ones(2, "i8"), numpy.full(2, 0.5, "f4")],
    "array and tensor": [numpy.ones(2), T([3.0, 4.0], dtype=torch.float64)],
    "dict": [{"a": 1, "b": "x"}, {"b": "y", "a": 2}],
    "empty dict": [{}, {}],
    "ordered dict": [collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=3, a=4)],
    "dict subclass": [Record(a=1), Record(a=2)],
    "keys that are no strings": [{1: 2, (3,): 4}, {1: 5, (3,): 6}],
    "tuple": [(1, "a", 2.5), (2, "b", 3.5)],
    "empty tuple": [(), ()],
    "list": [[1, "a"], [2, "b"]],
    "list subclass": [Row([1, 2]), Row([3, 4])],
    "list and tuple": [[1, 2], (3, 4)],
    "list and tensor": [[1, 2], T([3, 4])],
    "range": [range(2), range(2)],
    "deque": [collections.deque([1, 2]), collections.deque([3, 4])],
    "named tuple": [Point(1, {"z": T([1.0])}), Point(2, {"z": T([2.0])})],
    "nested": [{"image": (torch.zeros(3, 4, dtype=torch.uint8), [numpy.ones(2, "f4")]), "meta": [{"id": i, "name": f"n{i}"}]} for i in range(5)],
}


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_that_of_torch(name):
    expect_same(collated(CASES[name]), torch_collate(CASES[name]))


def test_counters_are_collated_as_the_mappings_that_they_are():
    # Not compared with torch: its newer releases add the first sample's counts to the batch.
    counters = [collections.Counter("aab"), collections.Counter("abb")]
    batch = collated(counters)
    assert type(batch) is collections.Counter
    expect_same(dict(batch), torch_collate(list(map(dict, counters))))


NAMES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_tensors_of_every_dtype_are_stacked_in_the_slot(name, shape):
    samples = [torch.full(shape, value).to(getattr(torch, name)) for value in (1, 0, 2)]
    slot = Slot()
    batch = default_collate(samples, slot.allocate)
    assert batch.dtype == samples[0].dtype and torch.equal(batch, torch.stack(samples))
    assert [array.ctypes.data for array in slot.allocated] == [batch.data_ptr()] or not batch.numel()


@pytest.mark.parametrize("kind", ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "F", "D", ">i4", ">f8"])
def test_arrays_of_every_dtype_are_stacked_in_the_slot(kind):
    samples = [numpy.arange(6).astype(kind).reshape(2, 3), numpy.ones((2, 3), kind)]
    slot = Slot()
    batch = default_collate(samples, slot.allocate)
    assert batch.dtype == torch.from_numpy(numpy.zeros(1, kind.strip(">"))).dtype
    assert batch.numpy().tolist() == numpy.stack(samples).tolist() and [array.ctypes.data for array in slot.allocated] == [batch.data_ptr()]


def random_leaf(source):
    shape = tuple(source.choices(range(4), k=source.randrange(3)))
    number = source.randrange(100)
    return source.choice(
        [
            lambda: number,
            lambda: number / 8,
            lambda: bool(number % 2),
            lambda: f"text {number}",
            lambda: bytes([number]),
            lambda: numpy.int32(number),
            lambda: torch.full(shape, number),
            lambda: torch.full(shape, number / 8).to(torch.bfloat16),
            lambda: numpy.full(shape, number, "f4"),
        ]
    )


def random_structure(source, depth):
    """A function that makes samples of one structure."""
    if depth == 0 or source.random() < 0.3:
        return random_leaf(source)
    members = [random_structure(source, depth - 1) for _ in range(source.randrange(1, 4))]
    return source.choice(
        [
            lambda: [make() for make in members],
            lambda: tuple(make() for make in members),
            lambda: {f"key {number}": make() for number, make in enumerate(members)},
            lambda: Record({number: make() for number, make in enumerate(members)}),
            lambda: Point(members[0](), members[-1]()),
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_structures_are_those_of_torch(seed):
    source = random.Random(seed)
    make = random_structure(source, 4)
    samples = [make() for _ in range(source.randrange(1, 6))]
    expect_same(collated(samples), torch_collate(samples))


def test_a_batch_is_copied_once():
    """What is stacked lies in the slot, and `finish` puts nothing beside it."""
    samples = [{"image": torch.full((8, 8), i, dtype=torch.uint8), "box": numpy.ones(4, "f4"), "label": i, "weight": 0.5} for i in range(10)]
    slot = Slot()
    batch = default_collate(samples, slot.allocate)
    before = slot.writer._used
    slot.writer.finish(batch)
    assert slot.writer._content_offset == before
    read = read_batch(slot.memory)
    addresses = [array.ctypes.data for array in slot.allocated]
    assert [read[key].data_ptr() for key in samples[0]] == [batch[key].data_ptr() for key in samples[0]] == addresses


def test_a_batch_that_was_collated_in_private_memory_is_replayed():
    samples = [torch.full((1000,), i) for i in range(10)]
    writer = BatchWriter()
    writer.finish(default_collate(samples, writer.allocate))
    memory = numpy.zeros(writer.needed, numpy.uint8)
    writer.replay(memoryview(memory))
    assert torch.equal(read_batch(memory), torch.stack(samples))


# Where we differ from torch.


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Any
    label: Any
    made: Any = dataclasses.field(default=None, init=False)

    def __post_init__(self):
        assert not isinstance(self.label, torch.Tensor), "a constructor that takes samples only"


def test_a_dataclass_becomes_one_of_batches():
    samples = [Sample(torch.full((2,), i), i) for i in range(3)]
    batch = collated(samples)
    assert type(batch) is Sample and batch.image.tolist() == [[0, 0], [1, 1], [2, 2]] and batch.label.tolist() == [0, 1, 2] and batch.made is None
    assert samples[0].label == 0


def test_none_in_all_samples_is_none_and_in_some_is_refused():
    assert collated([{"mask": None}, {"mask": None}]) == {"mask": None}
    error = refused([{"mask": None}, {"mask": 1}])
    assert type(error) is TypeError and "sample['mask'] is NoneType in sample 0 of the batch, and int in sample 1" in str(error)


def test_a_defaultdict_stays_one_and_invents_no_values():
    samples = [collections.defaultdict(list, a=1), collections.defaultdict(list, a=2)]
    batch = collated(samples)
    assert type(batch) is collections.defaultdict and batch.default_factory is list and batch["a"].tolist() == [1, 2]
    assert "lacks the keys 'a'" in str(refused([collections.defaultdict(int, a=1), collections.defaultdict(int, b=2)]))


def test_subclasses_keep_their_attributes_and_samples_are_unchanged():
    samples = [Record(a=1), Row([3])]
    for sample in samples:
        sample.note = "kept"
    record, row = collated([samples[:1], samples[:1]])[0], collated([samples[1], samples[1]])
    assert type(record) is Record and record.note == row.note == "kept" and row[0].tolist() == [3, 3]
    assert samples[0] == {"a": 1} and samples[1] == [3]


def test_wrappers_keep_their_attributes_with_workers_too():
    """As transformers' BatchEncoding, whose constructor takes more than its items."""
    entries = collated([Entries("train", {"a": 1}), Entries("train", {"a": 2})])
    assert type(entries) is Entries and entries.split == "train" and entries["a"].tolist() == [1, 2]
    first = Items([3])
    first.note = "of the sample"
    items = collated([first, first])
    assert type(items) is Items and items.note == first.note and items[0].tolist() == [3, 3] and first == [3]


def test_a_mapping_that_is_no_dict_keeps_its_type_where_possible():
    view = default_collate([View({"a": 1}), View({"a": 2})], Slot().allocate)
    assert type(view) is View and view["a"].tolist() == [1, 2]
    expect_same(default_collate([Fixed(1, 2), Fixed(3, 4)], Slot().allocate), {"a": T([1, 3]), "b": T([2, 4])})


def test_bytearrays_are_a_list():
    assert collated([bytearray(b"ab")]) == [bytearray(b"ab")]


def test_arrays_with_negative_strides_are_stacked():
    assert collated([numpy.arange(3)[::-1], numpy.arange(3)]).tolist() == [[2, 1, 0], [0, 1, 2]]
    assert collated([numpy.arange(3)[::-1], numpy.arange(3.0)]).tolist() == [[2, 1, 0], [0, 1, 2]]


def test_subclasses_of_arrays_and_tensors_give_what_torch_gives():
    memmap_like = numpy.arange(4).view(type("Array", (numpy.ndarray,), {}))
    expect_same(collated([memmap_like, memmap_like]), torch_collate([memmap_like, memmap_like]))

    class Boxes(torch.Tensor):
        pass

    boxes = torch.ones(2, 4).as_subclass(Boxes)
    slot = Slot()
    batch = default_collate([boxes, boxes], slot.allocate)
    assert type(batch) is type(torch_collate([boxes, boxes])) is Boxes and batch.data_ptr() == slot.allocated[0].ctypes.data


def test_sparse_and_quantized_tensors_are_stacked():
    sparse = torch.eye(2).to_sparse()
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    assert torch.equal(collated([sparse, sparse]).to_dense(), torch.stack([torch.eye(2)] * 2))
    assert torch.equal(collated([quantized, quantized]).dequantize(), torch.stack([quantized, quantized]).dequantize())


# Rows of different lengths.


def with_rows(samples, ragged=None, pad=None):
    checks = Checks()
    rows = rows_of(checks, ragged, pad)
    checks.raise_faults()
    slot = Slot()
    slot.writer.finish(default_collate(samples, slot.allocate, rows))
    return read_batch(slot.memory), slot


@pytest.mark.parametrize("make", [torch.tensor, numpy.array, list], ids=["tensor", "array", "list"])
def test_rows_of_different_lengths_are_ragged_or_padded(make):
    samples = [{"tokens": make([1, 2, 3]), "id": 7}, {"tokens": make([4]), "id": 8}]
    batch, slot = with_rows(samples, ragged="tokens")
    assert [rows.tolist() for rows in batch["tokens"]] == [[1, 2, 3], [4]] and batch["id"].tolist() == [7, 8]
    assert batch["tokens"].values.dtype == torch.int64 and batch["tokens"].to_padded(value=-1).tolist() == [[1, 2, 3], [4, -1, -1]]
    assert any(numpy.shares_memory(slot.memory, each) for each in [batch["tokens"].values.numpy()])
    batch, _ = with_rows(samples, pad={"tokens": -1})
    assert batch["tokens"].tolist() == [[1, 2, 3], [4, -1, -1]] and batch["tokens_length"].tolist() == [3, 1]
    assert batch["id"].tolist() == [7, 8] and list(batch) == ["tokens", "tokens_length", "id"]


def test_floats_of_lists_are_those_of_python():
    samples = [{"at": [1732800000.5, 1e40]}, {"at": [0.1]}]
    batch, _ = with_rows(samples, ragged="at")
    assert [rows.tolist() for rows in batch["at"]] == [[1732800000.5, 1e40], [0.1]]
    batch, _ = with_rows(samples, pad={"at": 0})
    assert batch["at"].tolist() == [[1732800000.5, 1e40], [0.1, 0]]


def test_rows_of_several_dtypes_or_with_gradients_are_refused():
    for rows in ({"ragged": True}, {"pad": 0}):
        with pytest.raises(TypeError, match="is torch.float64 in sample 0 of the batch, and torch.float16 in sample 1: convert it"):
            with_rows([[70000.0, 1.0], torch.ones(1, dtype=torch.float16)], **rows)
        with pytest.raises(RuntimeError, match="tensors at sample require gradients.*detach"):
            with_rows([torch.ones(1), torch.ones(2, requires_grad=True)], **rows)


@pytest.mark.parametrize("kind", [collections.OrderedDict, lambda sample: collections.defaultdict(int, sample)], ids=["OrderedDict", "defaultdict"])
def test_other_dicts_have_the_lengths_too(kind):
    batch, _ = with_rows([kind({"tokens": [1, 2]}), kind({"tokens": [3]})], pad={"tokens": 0})
    assert batch["tokens_length"].tolist() == [2, 1] and type(batch) is type(kind({}))


def test_rows_of_packed_records_are_rows():
    records = numpy.zeros(3, [("a", "f8"), ("b", "i4")])
    records["a"] = [1, 2, 3]
    batch, _ = with_rows([{"a": records["a"]}, {"a": records["a"][:1]}], ragged="a")
    assert [rows.tolist() for rows in batch["a"]] == [[1, 2, 3], [1]]


def test_tensors_without_values_are_refused_beside_others():
    with pytest.raises(TypeError, match="meta device"):
        collated([torch.ones(2), torch.ones(2, device="meta")])


def test_all_dimensions_are_padded_and_only_the_first_is_ragged():
    samples = [(torch.ones(2, 3, dtype=torch.bfloat16), 0), (torch.ones(1, 4, dtype=torch.bfloat16), 1)]
    padded, labels = with_rows(samples, pad=0)[0]
    assert padded.dtype == torch.bfloat16 and padded.shape == (2, 2, 4) and padded.sum() == 10 and labels.tolist() == [0, 1]
    with pytest.raises(RuntimeError, match=r"sample\[0\] has shape \[2, 3\] in sample 0 of the batch, and \[1, 4\] in sample 1"):
        with_rows(samples, ragged=0)
    boxes = with_rows([(torch.zeros(count, 4), 0) for count in (2, 0, 1)], ragged=[0])[0][0]
    assert [len(rows) for rows in boxes] == [2, 0, 1] and boxes.values.shape == (3, 4)


def test_names_reach_into_a_sample():
    samples = [{"a": {"x": [1.5], "y": torch.zeros(2)}, "ab": torch.zeros(2)}, {"a": {"x": [], "y": torch.zeros(3)}, "ab": torch.zeros(2)}]
    batch = with_rows(samples, ragged=["a"])[0]
    assert [rows.tolist() for rows in batch["a"]["x"]] == [[1.5], []] and len(batch["a"]["y"].values) == 5 and batch["ab"].shape == (2, 2)
    everything = with_rows(samples, ragged=True)[0]
    assert [rows.tolist() for rows in everything["ab"]] == [[0, 0], [0, 0]]


def test_ragged_goes_before_pad_and_others_are_unchanged():
    samples = [{"a": [1], "b": [1], "c": "text"}, {"a": [1, 2], "b": [1, 2], "c": "more"}]
    batch = with_rows(samples, ragged="a", pad=0)[0]
    assert len(batch["a"]) == 2 and batch["b"].tolist() == [[1, 0], [1, 2]] and batch["c"] == ["text", "more"] and "a_length" not in batch


@pytest.mark.parametrize(
    "samples, arguments, words",
    [
        ([{"a": [1]}, {"a": "no"}], {"pad": 0}, "sample['a'] is str in sample 1 of the batch: it has no rows"),
        ([{"a": torch.zeros(1)}, {"a": torch.zeros(1, dtype=torch.int64)}], {"pad": 0}, "is torch.float32 in sample 0 of the batch, and torch.int64 in sample 1"),
        ([{"a": torch.zeros(1)}, {"a": torch.zeros(1, 1)}], {"pad": 0}, "they differ in the number of dimensions"),
        ([{"a": torch.zeros(1, dtype=torch.uint8)}, {"a": torch.zeros(2, dtype=torch.uint8)}], {"pad": -1}, "sample['a']: pad=-1: the field's dtype is uint8, which holds whole numbers from 0 to 255"),
        ([], {"pad": "x"}, "pad: 'x' is not a number"),
        ([], {"pad": {"a": None}}, "pad['a']: None is not a number"),
        ([], {"ragged": 1.5}, "ragged: 1.5 is not True"),
        ([], {"ragged": ["b", "a"], "pad": {"a": 0, "c": 0}}, "pad: ['a'] in ragged, too"),
        ([], {"ragged": True, "pad": 0}, "pad: ragged=True leaves no field to pad"),
    ],
)
def test_rows_that_do_not_fit_are_errors(samples, arguments, words):
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        with_rows(samples, **arguments)
    assert words in str(caught.value)


# Errors.


def test_tensors_that_require_gradients_are_refused_as_by_torchs_workers():
    grad = torch.ones(2, requires_grad=True)
    error = refused([{"x": torch.ones(2)}, {"x": grad}])
    assert type(error) is RuntimeError and "sample['x'] require gradients" in str(error) and "detach()" in str(error)
    with torch.no_grad():
        assert collated([grad, grad]).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("make", [torch.zeros, numpy.zeros], ids=["tensor", "array"])
def test_different_shapes_name_the_place_the_samples_and_the_shapes(make):
    error = refused([{"image": [make((2, 3))]}] * 2 + [{"image": [make((2, 4))]}] + [{"image": [make((3,))]}] * 6)
    assert type(error) is RuntimeError
    assert "at sample['image'][0] have different shapes" in str(error) and "collate_fn" in str(error)
    assert "[2, 3] in samples 0, 1; [2, 4] in sample 2; [3] in samples 3, 4, 5, 6 and 2 more" in str(error)


def test_shapes_with_the_same_number_of_elements_are_different():
    assert "different shapes" in str(refused([numpy.zeros((2, 3)), numpy.zeros((3, 2))]))
    assert "different shapes" in str(refused([numpy.zeros((1, 3)), numpy.zeros((2, 3)), numpy.zeros((0, 3))]))
    assert "different shapes" in str(refused([numpy.zeros(2, "f4"), numpy.zeros(3, "f8")]))


@pytest.mark.parametrize(
    "samples, words",
    [
        ([{"a": 1}, {"a": 2, "b": 3}], "sample 1 has the keys 'b', which sample 0 lacks"),
        ([{"a": 1, "b": 3}, {"a": 2, "b": 3}, {"a": 2}], "sample 2 lacks the keys 'b' of sample 0"),
        ([{"x": {"a": 1}}, {"x": {"b": 2}}], "sample['x'] has different keys in the samples of the batch: sample 1 lacks the keys 'a' of sample 0 and has"),
        ([View({"a": 1}), View({"b": 1})], "lacks the keys 'a'"),
        ([(1, 2), (1, 2), (1,)], "sample has 2 items in sample 0 of the batch, and 1 in sample 2"),
        ([Point([1], 2), Point([1, 2], 2)], "sample.x has 1 items in sample 0 of the batch, and 2 in sample 1"),
        ([2**63, 1], "the values at sample (int) cannot be one tensor"),
        ([1.0, 10**400], "the values at sample (float, int) cannot be one tensor"),
        ([numpy.zeros(2), [1, 2, 3]], "different shapes"),
        ([torch.eye(2).to_sparse(), torch.eye(3)], "torch.stack failed for the tensors at sample"),
    ],
)
def test_samples_that_do_not_match_are_errors_at_run_time(samples, words):
    error = refused(samples)
    assert type(error) is RuntimeError and words in str(error)


def test_lists_of_numbers_of_different_lengths_are_told_of_ragged_and_pad():
    """As the token ids of Hugging Face's datasets. Other sequences cannot be rows, nor can the sample itself be named."""
    tokens = refused([{"ids": [7]}, {"ids": [7, 8]}])
    assert "sample['ids'] has 1 items in sample 0 of the batch, and 2 in sample 1" in str(tokens) and "name them in ragged= or pad=" in str(tokens)
    for samples in ([[7], [7, 8]], [{"ids": (7,)}, {"ids": (7, 8)}], [{"ids": ["a"]}, {"ids": ["a", "b"]}]):
        assert str(refused(samples)).endswith("in the dataset, or give the loader a collate_fn")


@pytest.mark.parametrize(
    "samples, words",
    [
        ([(pathlib.Path("a"), 1)], ".PosixPath at sample[0]"),
        ([{"z": 1j}], "has complex at sample['z']"),
        ([{1}], "has set at sample"),
        ([numpy.datetime64("2020-01-01")], "has numpy.datetime64 at sample"),
        ([numpy.timedelta64(1, "s")], "has numpy.timedelta64 at sample"),
        ([numpy.array(["a"])], "an array of dtype <U1 at sample"),
        ([numpy.ones(2), numpy.array([None, 1])], "sample 1 of the batch has an array of dtype object at sample"),
        ([numpy.zeros(2, "g")], "float128"),
        ([{"a": 1}, [1]], "sample is dict in sample 0 of the batch, and list in sample 1"),
        ([[1], {"a": 1}], "sample is list in sample 0 of the batch, and dict in sample 1"),
        ([[1], {1}], "sample is list in sample 0 of the batch, and set in sample 1"),
        ([["a"], "b"], "sample is list in sample 0 of the batch, and str in sample 1"),
        ([[1], 1], "sample is list in sample 0 of the batch, and int in sample 1"),
        ([Sample(1, 2), 3], "Sample in sample 0 of the batch, and int in sample 1"),
        ([torch.ones(2), None], "sample is torch.Tensor in sample 0 of the batch, and NoneType in sample 1"),
        ([torch.ones(2), numpy.ones(2)], "numpy.ndarray in sample 1"),
        ([1.0, None], "the values at sample (NoneType, float) cannot be one tensor"),
        ([1, "a"], "the values at sample (int, str) cannot be one tensor"),
        ([numpy.ones(1), None], "the values at sample cannot be one tensor"),
    ],
)
def test_values_of_other_types_are_refused(samples, words):
    error = refused(samples)
    assert type(error) is TypeError and words in str(error) and "collate_fn" in str(error)


def test_packed_sequences_are_refused_with_advice():
    packed = torch.nn.utils.rnn.pack_sequence([torch.arange(3.0)])
    error = refused([(packed, 1)] * 2)
    assert type(error) is TypeError and "samples have a PackedSequence at sample[0]" in str(error) and "in a collate_fn" in str(error)


def test_an_image_of_pillow_is_refused_with_advice():
    image = pytest.importorskip("PIL.Image").new("RGB", (2, 2))
    error = refused([{"image": (image, 1)}] * 2)
    assert type(error) is TypeError and "PIL.Image.Image at sample['image'][0]" in str(error) and "pil_to_tensor" in str(error)
    assert "pinfeed.EncodedImage(path)" in str(error) and "collate_fn" in str(error)


def test_what_torchs_function_refuses_in_the_calling_thread_is_told_as_by_a_worker():
    image = pytest.importorskip("PIL.Image").new("RGB", (2, 2))
    different = [{"a": torch.ones(2)}, {"a": torch.ones(3)}]
    for samples, kind, words in (
        ([{"image": image}] * 2, TypeError, r"PIL.Image.Image at sample\['image'\].*pinfeed.EncodedImage"),
        (different, RuntimeError, r"the tensors at sample\['a'\] have different shapes.*ragged="),
    ):
        with pytest.raises(kind, match=words) as told:
            next(iter(pinfeed.DataLoader(samples, 2)))
        with pytest.raises(kind) as theirs:
            torch_collate(samples)
        assert str(told.value.__cause__) == str(theirs.value)
    with pytest.raises(KeyError, match="'a'"):  # another type here
        next(iter(pinfeed.DataLoader([{"a": 1}, {"b": 1}], 2)))
    with pytest.raises(RuntimeError, match="^own$"):
        next(iter(pinfeed.DataLoader(different, 2, collate_fn=own_error)))


def own_error(samples):
    raise RuntimeError("own")


def test_a_tensor_on_another_device_is_refused():
    class Device:
        type = "cuda"

    class Tensor(torch.Tensor):
        device = Device()

    error = refused([torch.ones(2).as_subclass(Tensor)])
    assert type(error) is TypeError and "move the batch in the trainer" in str(error)


def test_a_batch_without_samples_is_an_error():
    with pytest.raises(ValueError, match="no samples"):
        default_collate([], Slot().allocate)


def test_nothing_warns():
    """As torch does for read-only arrays and for results that it resizes."""
    array = numpy.arange(3.0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collated([{"a": array, "b": torch.zeros(2, 0), "c": T(1)}] * 2)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import dataclasses, numpy
from pinfeed._worker.batch_memory import BatchWriter, read_batch
from pinfeed._worker.collate import default_collate
samples = [{"a": numpy.full((2, 3), i, "f4"), "b": i, "c": i / 2, "d": bool(i), "e": "x", "f": numpy.int16(i), "g": (numpy.ones(2, "i4"), None)} for i in range(3)]
memory = numpy.zeros(4096, numpy.uint8)
writer = BatchWriter(memoryview(memory))
writer.finish(default_collate(samples, writer.allocate))
batch = read_batch(memory)
assert {key: (type(value).__name__, str(getattr(value, "dtype", ""))) for key, value in batch.items()} == {
    "a": ("ndarray", "float32"), "b": ("ndarray", "int64"), "c": ("ndarray", "float64"), "d": ("ndarray", "bool"), "e": ("list", ""),
    "f": ("ndarray", "int16"), "g": ("list", "")}, batch
assert batch["a"].shape == (3, 2, 3) and batch["a"][2].tolist() == [[2, 2, 2]] * 2 and batch["b"].tolist() == [0, 1, 2]
assert batch["g"][0].dtype == "int32" and batch["g"][1] is None
mixed = default_collate([numpy.ones(2, "i4"), numpy.full(2, 0.5)], writer.allocate)
assert mixed.dtype == "float64" and default_collate([1, 2.5], writer.allocate).tolist() == [1, 2.5]
for bad in ([1, "a"], [1.0, None], [numpy.ones(2), None], [object()]):
    try:
        default_collate(bad, writer.allocate)
    except TypeError as error:
        assert "collate_fn" in str(error)
    else:
        raise AssertionError(bad)
for rounded in ([2**63 + 1, 1], [numpy.full(2, 2**63 + 1, "u8"), numpy.ones(2, "i8")]):
    try:
        default_collate(rounded, writer.allocate)
    except (TypeError, RuntimeError) as error:
        assert "would change" in str(error)
    else:
        raise AssertionError(rounded)
"""


def test_without_torch_tensors_are_numpy_arrays():
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, env=os.environ, timeout=120)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("rows", [{"ragged": ["a"]}, {"pad": {"a": 0}}])
def test_without_workers_an_error_of_rows_names_the_field_that_is_wrong(rows):
    samples = [{"a": torch.ones(length), "b": torch.ones(length)} for length in (2, 3)]
    with pytest.raises(RuntimeError, match=r"sample\['b'\]"):
        next(iter(pinfeed.DataLoader(samples, 2, **rows)))


class AttrDict(dict):
    """Its items are its attributes, too."""

    def __init__(self, *items, **more):
        super().__init__(*items, **more)
        self.__dict__ = self


def attributes(index):
    return AttrDict(x=torch.tensor(index), y=index)


def test_attributes_that_stand_for_items_are_the_batchs():
    batch = collated([attributes(index) for index in range(4)])
    assert type(batch) is AttrDict
    assert batch.x.tolist() == batch["x"].tolist() == batch.y.tolist() == [0, 1, 2, 3]


def test_samples_may_come_in_an_array():
    assert collated(numpy.arange(4)).tolist() == [0, 1, 2, 3]
    assert collated(numpy.arange(6).reshape(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
