# SPDX-License-Identifier: Apache-2.0
"""The memory of a batch that a worker hands to the trainer: layout, references, exceptions, damage.

Long because: it holds both sides of that layout to each other, kind by kind.
"""

import decimal
import gc
import io
import mmap
import os
import pickle
import signal
import weakref

import numpy
import pytest

import pinfeed
from pinfeed._worker import batch_memory
from pinfeed._worker.batch_memory import ALIGNMENT, END, HEADER_BYTES, BatchTooLarge, BatchWriter, read_batch

SIZE = 1 << 16


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def slot(size=SIZE):
    """Zeroed memory of a slot, aligned as the daemon's, as an array."""
    raw = numpy.zeros(size + 512, numpy.uint8)
    begin = -raw.ctypes.data % 512
    return raw[begin : begin + size]


def written(batch, size=SIZE):
    memory = slot(size)
    BatchWriter(memoryview(memory)).finish(batch)
    return memory


def needed_by(batch, memory=None):
    writer = BatchWriter(memory)
    writer.finish(batch)
    return writer.needed


def carried(batch):
    return read_batch(written(batch))


def lies_in(array, memory):
    address = array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data
    return 0 <= address - memory.ctypes.data < memory.nbytes


class Custom:
    def __init__(self, value):
        self.value = value


def test_an_object_without_tensors_arrives_equal():
    batch = {"text": "ä", "raw": b"\0\xff", "nothing": None, "numbers": [1, 2.5, True], "set": {1, 2}, "nested": ({"a": []}, ())}
    assert carried(batch) == batch


def test_an_object_of_a_users_class_arrives_with_its_tensors():
    read = carried(Custom(numpy.arange(3)))
    assert type(read) is Custom and read.value.tolist() == [0, 1, 2]


def test_an_object_without_a_pickle_raises_what_pickle_raises_and_leaves_the_slot_invalid():
    memory = slot()
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        BatchWriter(memoryview(memory)).finish(lambda: None)
    with pytest.raises(pinfeed.Error, match="the worker did not finish it"):
        read_batch(memory)


ARRAYS = [numpy.arange(24).astype(kind).reshape(2, 3, 4) for kind in "? i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 g F D >i4 >f8 M8[ns] m8[s]".split()] + [
    numpy.array(7.5),
    numpy.zeros((3, 0, 2), "f4"),
    numpy.array(["a", "bcd"]),
    numpy.array([b"a", b"bcd"]),
    numpy.zeros(3, "S0"),
    numpy.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
    numpy.arange(6)[::-2],
    numpy.broadcast_to(numpy.arange(3), (2, 3)),
    numpy.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    numpy.array([{"a": 1}, None], object),
    numpy.ma.array([1, 2], mask=[True, False]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{type(array).__name__}-{array.dtype}-{array.shape}")
def test_every_array_arrives_equal(array):
    read = carried({"x": array})["x"]
    assert type(read) is type(array) and read.dtype == array.dtype and read.shape == array.shape
    assert read.tolist() == array.tolist() and read.flags.writeable
    assert read.flags.f_contiguous == array.flags.f_contiguous or not array.flags.f_contiguous


def test_arrays_of_numbers_are_views_of_the_slot_that_begin_at_multiples_of_the_alignment():
    memory = written([numpy.arange(5), numpy.ones((3, 3), "f4"), numpy.array(1.0)])
    for array in read_batch(memory):
        assert lies_in(array, memory) and (array.ctypes.data - memory.ctypes.data) % ALIGNMENT == 0


def test_tensors_inside_an_array_of_objects_and_attributes_are_views_too():
    inner = numpy.arange(4)
    memory = written([numpy.array([inner, None], object), Custom(inner)])
    outer, custom = read_batch(memory)
    assert lies_in(outer[0], memory) and outer[0] is custom.value


def test_an_allocated_array_is_not_copied():
    memory = slot()
    writer = BatchWriter(memoryview(memory))
    array = writer.allocate((4, 3), "f4")
    array[:] = numpy.arange(12).reshape(4, 3)
    before = writer._used
    writer.finish({"all": array, "row": array[1], "column": array[:, 2], "again": array})
    assert lies_in(array, memory) and writer._content_offset == before
    read = read_batch(memory)
    assert read["all"].ctypes.data == array.ctypes.data and read["row"].ctypes.data == array[1].ctypes.data
    assert read["column"].tolist() == [2, 5, 8, 11] and read["column"].ctypes.data == array[:, 2].ctypes.data
    assert read["again"] is read["all"]


def test_an_array_that_occurs_twice_is_copied_once():
    array = numpy.zeros(10000, numpy.uint8)
    assert needed_by([array, array, {"x": array}]) < 2 * array.nbytes
    first, second, third = carried([array, array, {"x": array}])
    assert first is second is third["x"]


def test_an_array_of_an_earlier_batch_of_the_same_slot_is_copied():
    memory = slot()
    kept = BatchWriter(memoryview(memory)).allocate((100,), "i8")
    kept[:] = numpy.arange(100)
    assert needed_by([kept], memoryview(memory)) > HEADER_BYTES + kept.nbytes
    assert read_batch(memory)[0].tolist() == list(range(100))


def test_memory_for_python_objects_is_refused():
    with pytest.raises(TypeError, match="references to Python objects"):
        BatchWriter().allocate((1,), object)


@pytest.mark.parametrize("memory", [b"\0" * 100, bytearray(10), numpy.zeros((2, 64), numpy.uint8), numpy.zeros(200, numpy.uint8)[::2]])
def test_memory_that_cannot_hold_a_batch_is_refused(memory):
    with pytest.raises(ValueError, match="writable contiguous bytes"):
        BatchWriter(memoryview(memory))


@pytest.mark.parametrize("memory", [numpy.zeros(100, numpy.int8), numpy.zeros((2, 100), numpy.uint8), numpy.zeros(200, numpy.uint8)[::2]])
def test_memory_of_another_form_is_not_read(memory):
    with pytest.raises(TypeError, match="contiguous array of uint8"):
        read_batch(memory)


# Too large, dry batches, replay.


def test_a_batch_that_does_not_fit_tells_what_it_needs_and_fits_exactly_there():
    batch = [numpy.arange(100), "text", numpy.arange(1000)]
    with pytest.raises(BatchTooLarge) as caught:
        written(batch, 4096)
    assert caught.value.needed == needed_by(batch)
    with pytest.raises(BatchTooLarge):
        written(batch, caught.value.needed - 1)
    assert read_batch(written(batch, caught.value.needed))[2].tolist() == batch[2].tolist()


def test_a_slot_has_no_batch_after_one_that_did_not_fit():
    memory = written("the batch before", 4096)
    with pytest.raises(BatchTooLarge):
        BatchWriter(memoryview(memory)).finish(numpy.arange(1000))
    with pytest.raises(pinfeed.Error, match="the worker did not finish it"):
        read_batch(memory)


def batch_of(writer):
    """A batch of arrays that were allocated, views of them and others."""
    arrays = [writer.allocate((extent,), "i4") for extent in (10, 0, 500, 3)]
    for number, array in enumerate(arrays):
        array[:] = numpy.arange(len(array)) + 1000 * number
    return {"arrays": arrays, "part": arrays[2][17:], "other": numpy.arange(7), "text": "x"}


def check_batch(batch):
    assert [array.tolist() for array in batch["arrays"]] == [list(range(10)), [], list(range(2000, 2500)), [3000, 3001, 3002]]
    assert batch["part"].tolist() == list(range(2017, 2500)) and batch["other"].tolist() == list(range(7)) and batch["text"] == "x"


@pytest.mark.parametrize("capacity", [None, HEADER_BYTES, 200, 2200, 2400])
def test_a_batch_in_private_memory_is_replayed_into_a_slot(capacity):
    """Also a batch that lies partly in a slot that was too small for it."""
    writer = BatchWriter(None if capacity is None else memoryview(slot(capacity)))
    batch = batch_of(writer)
    if capacity is None:
        writer.finish(batch)
    else:
        with pytest.raises(BatchTooLarge) as caught:
            writer.finish(batch)
        assert caught.value.needed == writer.needed
    memory = slot(writer.needed)
    writer.replay(memoryview(memory))
    check_batch(read_batch(memory))
    reference = slot()
    other = BatchWriter(memoryview(reference))
    other.finish(batch_of(other))
    assert other.needed == writer.needed
    check_batch(read_batch(reference))


def test_a_replay_needs_a_finished_batch_and_enough_memory():
    writer = BatchWriter()
    with pytest.raises(ValueError, match="call finish first"):
        writer.replay(memoryview(slot()))
    writer.finish(numpy.arange(100))
    small = written("the batch before", writer.needed - 1)
    with pytest.raises(BatchTooLarge):
        writer.replay(memoryview(small))
    with pytest.raises(pinfeed.Error):
        read_batch(small)


def test_a_batch_that_fits_can_be_replayed_too():
    writer = BatchWriter(memoryview(slot()))
    writer.finish(batch_of(writer))
    memory = slot()
    writer.replay(memoryview(memory))
    check_batch(read_batch(memory))


# Torch tensors.

NAMES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()


@pytest.mark.parametrize("as_tensor", [False, True], ids=["array", "tensor"])
@pytest.mark.parametrize("name", NAMES)
def test_tensors_of_every_dtype_are_views_of_an_array_or_a_tensor(torch, name, as_tensor):
    tensor = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, name))
    batch = [tensor, tensor[1, 2, 3].clone(), tensor[:0].clone(), tensor.permute(2, 0, 1), tensor[:, ::2]]
    memory = written(batch)
    read = read_batch(torch.from_numpy(memory) if as_tensor else memory)
    for before, after in zip(batch, read):
        assert type(after) is torch.Tensor and after.dtype == before.dtype and after.shape == before.shape and torch.equal(after, before)
        assert lies_in(after, memory) or not after.numel()
    assert read[3].stride() == batch[3].stride()


def test_what_the_trainer_writes_to_a_tensor_lies_in_the_slot(torch):
    memory = written([torch.zeros(3, dtype=torch.uint8), torch.ones(2, dtype=torch.bfloat16)])
    first, second = read_batch(memory)
    first += 5
    second += 1
    again = read_batch(memory)
    assert again[0].tolist() == [5, 5, 5] and again[1].tolist() == [2, 2]


def test_an_allocated_tensor_and_its_views_are_not_copied(torch):
    memory = slot()
    writer = BatchWriter(memoryview(memory))
    tensor = torch.from_numpy(writer.allocate((2, 3, 4), "i2"))
    tensor[:] = torch.arange(24).reshape(2, 3, 4)
    before = writer._used
    views = [tensor, tensor[1], tensor.permute(2, 1, 0), tensor[:, 1:, ::2], tensor.view(torch.bfloat16), tensor.numpy()]
    writer.finish(views)
    assert writer._content_offset == before
    for view, read in zip(views, read_batch(memory)):
        assert type(read) is type(view) and read.dtype == view.dtype and read.tolist() == view.tolist()
        address = [array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data for array in (view, read)]
        assert address[0] == address[1]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 1, 1)])
def test_a_tensor_in_the_channels_last_format_keeps_it(torch, shape):
    tensor = torch.rand(shape).to(memory_format=torch.channels_last)
    read = carried(tensor)
    assert read.stride() == tensor.stride() and torch.equal(read, tensor)


def test_expanded_and_conjugate_tensors_arrive_equal(torch):
    expanded = torch.arange(3).expand(4, 3)
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    read = carried([expanded, conjugate, conjugate.imag])
    assert torch.equal(read[0], expanded) and torch.equal(read[1], conjugate) and torch.equal(read[2], conjugate.imag)


def test_gradients_are_required_of_leaves_and_refused_of_results(torch):
    leaf = torch.ones(2, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(3))
    read = carried([leaf, parameter, torch.ones(1)])
    assert [tensor.requires_grad for tensor in read] == [True, True, False]
    assert type(read[1]) is torch.nn.Parameter and read[1].tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="call detach"):
        carried(leaf * 2)


def test_sparse_and_quantized_tensors_arrive_equal(torch):
    sparse = torch.eye(3).to_sparse()
    quantized = torch.quantize_per_tensor(torch.tensor([0.1, 0.5]), 0.1, 0, torch.quint8)
    memory = written([sparse, quantized])
    read = read_batch(memory)
    assert read[0].is_sparse and torch.equal(read[0].to_dense(), sparse.to_dense()) and lies_in(read[0]._values(), memory)
    assert torch.equal(read[1].int_repr(), quantized.int_repr()) and read[1].q_scale() == quantized.q_scale()


def test_a_tensor_on_another_device_is_refused_with_advice(torch):
    class Device:
        type = "cuda"

        def __str__(self):
            return "cuda:1"

    class Tensor(torch.Tensor):
        device = Device()

    with pytest.raises(TypeError, match=r"tensor on cuda:1.*in the trainer"):
        BatchWriter().finish(torch.ones(2).as_subclass(Tensor))


def subclass_of(torch):
    """An importable subclass of Tensor, as torchvision's are."""
    kind = globals().get("Boxes")
    if kind is None:
        kind = globals()["Boxes"] = type("Boxes", (torch.Tensor,), {"__module__": __name__, "__qualname__": "Boxes"})
    return kind


def test_a_subclass_is_a_view_and_keeps_its_attributes(torch):
    boxes = torch.arange(8.0).reshape(2, 4).as_subclass(subclass_of(torch))
    boxes.format = "XYXY"
    memory = written({"boxes": boxes})
    read = read_batch(memory)["boxes"]
    assert type(read) is subclass_of(torch) and read.format == "XYXY" and read.tolist() == boxes.tolist()
    assert lies_in(read, memory)


def test_a_saved_tensor_has_its_own_bytes_only(torch):
    small, _ = carried([torch.ones(2), torch.zeros(10000)])
    stream = io.BytesIO()
    torch.save(small, stream)
    assert len(stream.getvalue()) < 4000


# Lifetime.


def test_every_array_keeps_the_memory():
    memory = written([numpy.arange(3), numpy.arange(4)]).copy()
    alive = weakref.ref(memory)
    first, second = read_batch(memory)
    del memory, first
    gc.collect()
    assert alive() is not None and second.tolist() == [0, 1, 2, 3]
    part = second[1:]
    del second
    gc.collect()
    assert alive() is not None
    del part
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("as_tensor", [False, True], ids=["array", "tensor"])
def test_every_tensor_keeps_the_memory(torch, as_tensor):
    array = written([torch.arange(3), torch.arange(4.0).bfloat16(), torch.arange(6).reshape(2, 3).t()]).copy()
    alive = weakref.ref(array)
    memory = torch.from_numpy(array) if as_tensor else array
    tensors = read_batch(memory)
    del array, memory
    while tensors:
        last = tensors.pop().view(-1)[:1] if len(tensors) < 3 else tensors.pop()
        gc.collect()
        assert alive() is not None
    del last
    gc.collect()
    assert alive() is None


def test_arrays_over_read_only_memory_are_read_only():
    read = read_batch(numpy.frombuffer(memoryview(written(numpy.arange(3))).toreadonly(), numpy.uint8))
    assert read.tolist() == [0, 1, 2]
    with pytest.raises(ValueError):
        read.flags.writeable = True


# The end, and exceptions.


def test_the_end_is_a_sentinel():
    memory = written("a longer batch before")
    writer = BatchWriter(memoryview(memory))
    writer.finish_end()
    assert writer.needed == HEADER_BYTES
    assert read_batch(memory) is END and "end" in repr(END)


class NeedsTwo(Exception):
    def __init__(self, path, line):
        super().__init__(path, line)


class Forgetful(Exception):
    def __init__(self, text):
        super().__init__("nothing to see")


class Named(Exception):
    message = ""

    def __init__(self, *, message):
        super().__init__(message)


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


def raised(error, worker=3, size=SIZE, before=()):
    """The exception that the trainer gets for one that a dataset raised."""
    memory = slot(size)
    writer = BatchWriter(memoryview(memory))
    for extent in before:
        writer.allocate((extent,), "u1")
    try:
        raise error
    except BaseException as caught:
        writer.finish_error(caught, worker)
    with pytest.raises(Exception) as info:
        read_batch(memory)
    return info.value


@pytest.mark.parametrize(
    "error, kind",
    [
        (ValueError("bad sample"), ValueError),
        (FileNotFoundError(2, "no file", "a.jpg"), FileNotFoundError),
        (KeyError("label"), KeyError),
        (pinfeed.NotFoundError(pinfeed.Code.NOT_FOUND, "no such dataset"), pinfeed.NotFoundError),
        (Named(message="named"), Named),
        (NeedsTwo("a", 1), RuntimeError),
        (Forgetful("lost"), RuntimeError),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), RuntimeError),
        (StopIteration("would end the epoch"), RuntimeError),
        (SystemExit(2), RuntimeError),
        (KeyboardInterrupt(), RuntimeError),
        (type("Local", (Exception,), {})("not importable"), RuntimeError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_an_exception_has_its_type_if_possible_and_the_workers_traceback(error, kind):
    caught = raised(error, worker=7)
    text = str(caught)
    assert type(caught) is kind and caught.__cause__ is None and caught.__suppress_context__
    assert text.startswith(f"{type(error).__name__} in pinfeed worker 7") and "\nTraceback (most recent call last):\n" in text
    assert "raise error" in text and str(error).strip("'") in text
    if isinstance(caught, pinfeed.Error):
        assert caught.code == error.code


def test_the_first_line_of_a_message_tells_what_failed():
    assert str(raised(ValueError("bad sample"))).splitlines()[0] == "ValueError in pinfeed worker 3: bad sample"
    refused = pinfeed.ResourceExhaustedError(pinfeed.Code.RESOURCE_EXHAUSTED, "too large")
    assert str(raised(refused)).splitlines()[0] == "ResourceExhaustedError in pinfeed worker 3: too large"
    assert str(raised(KeyError("label"))).splitlines()[0] == "KeyError in pinfeed worker 3: 'label'"


def test_an_exception_whose_text_fails_still_arrives():
    assert "Unprintable in pinfeed worker 3" in str(raised(Unprintable()))


def test_surrogates_in_a_message_arrive_escaped():
    assert r"\udcff" in str(raised(ValueError("bad name \udcff")))


def test_an_exception_replaces_what_was_allocated_and_fits_by_losing_its_middle():
    caught = raised(ValueError("x" * 100000 + " the end"), size=1024, before=(900, 5000))
    text = str(caught)
    assert type(caught) is ValueError and text.startswith("ValueError in pinfeed worker 3: xxx") and text.endswith("xxx the end\n")
    assert "cut to fit" in text


def test_an_exception_of_a_dry_batch_is_replayed():
    writer = BatchWriter()
    writer.allocate((1000,), "f8")
    writer.finish_error(ValueError("bad sample"), 1)
    memory = slot(writer.needed)
    writer.replay(memoryview(memory))
    with pytest.raises(ValueError, match="in pinfeed worker 1: bad sample"):
        read_batch(memory)


def test_a_class_that_the_trainer_lacks_is_told():
    memory = slot()
    globals()["Vanishing"] = type("Vanishing", (), {"__module__": __name__})
    BatchWriter(memoryview(memory)).finish(globals()["Vanishing"]())
    del globals()["Vanishing"]
    with pytest.raises(pinfeed.Error, match="Vanishing.*must be importable"):
        read_batch(memory)


# Damage.


def test_every_damaged_bit_of_the_header_and_the_pickle_is_an_error():
    memory = slot(1024)
    writer = BatchWriter(memoryview(memory))
    writer.finish({"x": numpy.arange(5), "y": ["text", 1]})
    for position in [*range(HEADER_BYTES), *range(writer._content_offset, writer.needed)]:
        for bit in range(8):
            memory[position] ^= 1 << bit
            with pytest.raises(pinfeed.Error, match="no valid batch") as caught:
                read_batch(memory)
            assert caught.value.code == pinfeed.Code.INTERNAL
            memory[position] ^= 1 << bit
    assert read_batch(memory)["y"] == ["text", 1]


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, 100])
def test_memory_that_ends_early_is_an_error(size):
    memory = written({"x": numpy.arange(5)})
    with pytest.raises(pinfeed.Error, match="no valid batch"):
        read_batch(memory[:size])


def test_another_version_is_an_error_that_says_so(monkeypatch):
    memory = written(1)
    monkeypatch.setattr(batch_memory, "_VERSION", 4)
    with pytest.raises(pinfeed.Error, match="has version 3, and this package reads version 4"):
        read_batch(memory)


class Forged:
    def __init__(self, method, *arguments):
        self.reduced = getattr(batch_memory._Reader, method), arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("offset, length", [(0, 8), (HEADER_BYTES - 1, 8), (-8, 8), (HEADER_BYTES, -1), (HEADER_BYTES, SIZE), (SIZE, 8), (2**70, 8)])
@pytest.mark.parametrize("method", ["array", "tensor"])
def test_references_out_of_the_data_are_errors(torch, method, offset, length):
    dtype = {"array": ("<f8", (1,), None), "tensor": ("float64", (1,), None, False)}[method]
    memory = written([numpy.arange(100), Forged(method, offset, length, *dtype)])
    with pytest.raises(pinfeed.Error, match="outside of the data"):
        read_batch(memory)


@pytest.mark.parametrize("strides", [None, (8,), (-8,), (2**62,)])
@pytest.mark.parametrize("method", ["array", "tensor"])
def test_references_with_a_shape_beyond_the_slot_are_errors(torch, method, strides):
    dtype = {"array": ("<f8", (10**9,), strides), "tensor": ("float64", (10**9,), strides, False)}[method]
    memory = written([numpy.arange(100), Forged(method, HEADER_BYTES, 8, *dtype)])
    with pytest.raises(pinfeed.Error):
        read_batch(memory)


# Two processes.


def in_child(memory, work):
    """Runs `work` in a forked process, and returns how that ended."""
    child = os.fork()
    if not child:
        try:
            work(memory)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_the_trainer_reads_what_a_worker_process_wrote():
    with mmap.mmap(-1, SIZE) as shared:

        def work(memory):
            writer = BatchWriter(memory)
            array = writer.allocate((5,), "i4")
            array[:] = range(5)
            writer.finish({"x": array, "pid": os.getpid()})

        view = memoryview(shared)
        assert in_child(view, work) == 0
        read = read_batch(numpy.frombuffer(view, numpy.uint8))
        assert read["x"].tolist() == list(range(5)) and read["pid"] != os.getpid()
        read = None
        view.release()


class KillsItsProcess:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_while_it_writes_leaves_no_batch():
    with mmap.mmap(-1, SIZE) as shared:
        view = memoryview(shared)
        BatchWriter(view).finish("the batch before")
        assert in_child(view, lambda memory: BatchWriter(memory).finish([numpy.arange(10), KillsItsProcess()])) == signal.SIGKILL
        array = numpy.frombuffer(view, numpy.uint8)
        with pytest.raises(pinfeed.Error, match="the worker did not finish it"):
            read_batch(array)
        del array
        view.release()


def test_a_decimal_and_other_library_objects_arrive_equal():
    batch = [decimal.Decimal("1.5"), numpy.float32(2.5), range(3), complex(1, 2)]
    assert carried(batch) == batch


def test_tensors_without_elements_are_moved_too(torch):
    moved = read_batch(written({"boxes": torch.ones(2, 0, 4), "label": torch.ones(2)}), lambda tensor: tensor.to("meta"))
    assert {name: (tensor.device.type, tuple(tensor.shape)) for name, tensor in moved.items()} == {"boxes": ("meta", (2, 0, 4)), "label": ("meta", (2,))}
