# SPDX-License-Identifier: Apache-2.0
"""`to_device`, `to_host` and `pinned_empty` on a GPU that is the stand-in driver's.

Long because: each way to lay out a source is a test of the promise that the result is what `.to()` gives.
"""
import array
import collections
import dataclasses
import gc
import io
import operator
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import stand_in_streams  # noqa: E402 - torch may be missing
from stand_in_streams import driver  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._copies import block as _block  # noqa: E402
from pinfeed._copies import copier as _copier, to_device, to_host  # noqa: E402
from pinfeed._feed.batch import batch_class  # noqa: E402

PACKED = to_device.PACKED_BYTES


@pytest.fixture(scope="module")
def copier():
    kept = pytest.MonkeyPatch()
    kept.setattr(_copier, "make_streams", stand_in_streams.Streams)
    kept.setattr(_copier, "_copiers", {})
    yield _copier.copier(0)
    kept.undo()


@pytest.fixture
def streams(copier):
    copier.streams.await_all()
    copier.streams.log.clear()
    copier.streams.allocated.clear()
    yield copier.streams
    copier.streams.await_all()


def moved(streams, tree, **options):
    """What is on the GPU when all has arrived."""
    result = pinfeed.to_device(tree, 0, **options)
    streams.await_all()
    return result


def same(tensor, source):
    return tensor.dtype == source.dtype and tensor.shape == source.shape and bits(tensor) == bits(source) and tensor.data_ptr() != source.data_ptr()


def noise(*shape, dtype=torch.float32):
    raw = torch.randint(0, 256, (int(np.prod(shape, dtype=int)) * torch.empty(0, dtype=dtype).element_size(),), dtype=torch.uint8)
    return (raw % 2).bool().reshape(shape) if dtype is torch.bool else raw.view(dtype).reshape(shape)


def bits(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy().tobytes()


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("pack", [True, False])
def test_every_dtype_and_shape_arrives_bit_for_bit(streams, pack):
    shapes = [(), (0,), (1,), (3, 0, 2), (7,), (5, 3), (2, 3, 4, 5), (3, 9001)]
    sources = [noise(*shape, dtype=dtype) for dtype in DTYPES for shape in shapes]
    for result, source in zip(moved(streams, sources, pack=pack), sources):
        assert result.dtype == source.dtype and result.shape == source.shape
        assert bits(result) == bits(source)
        assert result.data_ptr() != source.data_ptr() or not source.numel()


def test_large_tensors_pass_through_the_ring_in_pieces(streams):
    sources = [noise(5_000_001, dtype=torch.uint8) for _ in range(16)]  # more than the ring holds
    assert all(map(torch.equal, moved(streams, sources), sources))


def test_sources_may_change_when_the_call_has_returned(streams):
    small, large = noise(1000, dtype=torch.uint8), noise(3_000_000, dtype=torch.uint8)
    was = [small.clone(), large.clone()]
    streams.keep_busy()
    result = pinfeed.to_device([small, large], 0, non_blocking=True)
    small.zero_(), large.zero_()
    streams.await_all()
    assert all(map(torch.equal, result, was))


# Structure


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: object
    name: str = "a"
    later: object = dataclasses.field(init=False, default=None)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """As transformers' outputs: a mapping of the fields that are not None."""

    loss: object = None
    logits: object = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                super().__setitem__(field.name, getattr(self, field.name))

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __reduce__(self):
        return type(self), (self.loss, self.logits)


class Several(tuple):
    """Its constructor takes its items one by one."""

    def __new__(cls, *items):
        return super().__new__(cls, items)


class Keyed(dict):
    """A user's mapping with an attribute."""


class KeyedSet(set):
    """Its constructor may take anything."""


def test_containers_keep_their_types(streams):
    tensor = noise(4)
    keyed = Keyed(x=tensor)
    keyed.note = "kept"
    sample = Sample(tensor)
    object.__setattr__(sample, "later", [tensor])
    tree = {
        "list": [tensor, 1, "text", None, 2.5, b"raw"],
        "tuple": (tensor, (tensor,)),
        "pair": Pair(tensor, {}),
        "sample": sample,
        "deque": collections.deque([tensor, 3], maxlen=4),
        "ordered": collections.OrderedDict([("b", tensor), ("a", 1)]),
        "default": collections.defaultdict(list, {1: tensor}),
        "keyed": keyed,
        "set": {1, 2},
        "empty": [[], (), {}],
    }
    result = moved(streams, tree)
    assert [type(value) for value in result.values()] == [type(value) for value in tree.values()] and list(result) == list(tree)
    assert result["list"][1:] == tree["list"][1:] and same(result["list"][0], tensor)
    assert type(result["tuple"][1]) is tuple and result["pair"].second == {}
    assert result["sample"].name == "a" and result["sample"].later[0] is result["sample"].image and sample.image is tensor
    assert result["deque"].maxlen == 4 and list(result["ordered"]) == ["b", "a"]
    assert result["default"].default_factory is list and result["keyed"].note == "kept" and result["keyed"]["x"] is result["list"][0]
    assert result["set"] is tree["set"] and result["empty"] == tree["empty"]


def test_fields_of_a_dataclass_that_is_a_mapping_stay_where_they_are(streams):
    output = Output(logits=noise(4))
    result = moved(streams, output)
    assert type(result) is Output and list(result) == ["logits"] and result.loss is None
    assert same(result.logits, output.logits) and result["logits"] is result.logits and result.logits is not output.logits


def test_sets_of_tensors_are_moved(streams):
    tensors = {noise(4), noise(5)}
    result = moved(streams, [tensors, frozenset(tensors)])
    assert type(result[0]) is set and result[1] == result[0] and result[0].isdisjoint(tensors)
    assert sorted(map(len, result[0])) == [4, 5]
    kept = [KeyedSet({1}), {"a": 1}.items(), {"a": 1}.values()]
    assert all(map(operator.is_, moved(streams, [*kept, noise(3)]), kept))
    with pytest.raises(pinfeed.InvalidArgumentError, match="a KeyedSet in the tree cannot be made anew .*: give a dict or a list"):
        pinfeed.to_device(KeyedSet({noise(3)}), 0)
    with pytest.raises(pinfeed.InvalidArgumentError, match="a dict_values in the tree cannot be made anew .*: give a dict or a list"):
        pinfeed.to_device({"a": noise(3)}.values(), 0)


def test_tuples_are_made_anew_as_they_are_or_refused(streams):
    place = os.stat("/")
    result = moved(streams, [place, Several(1, 2), noise(3)])
    assert result[0] is place and result[1] == (1, 2)
    with pytest.raises(pinfeed.InvalidArgumentError, match="a Several in the tree cannot be made anew .*: give a dict or a list"):
        pinfeed.to_device([Several(noise(3), 1)], 0)


def test_a_batch_keeps_its_attributes(streams):
    batch = batch_class(["image", "label"])(noise(4, 3), noise(4, dtype=torch.int64))
    batch.epoch, batch.index, batch._slot = 3, 7, object()
    result = moved(streams, batch)
    assert type(result) is type(batch) and (result.epoch, result.index) == (3, 7) and "_slot" not in result.__dict__
    assert same(result.image, batch.image) and same(result["label"], batch["label"])


def test_objects_with_a_method_to_are_asked(streams):
    class Graph:
        def to(self, device):
            self.asked = device
            return self

    graph = Graph()
    assert moved(streams, [graph, noise(3)])[0] is graph and graph.asked == streams.device


def test_a_tensor_that_occurs_twice_is_copied_once(streams):
    tensor, array = noise(4), np.arange(5)
    result = moved(streams, {"a": tensor, "b": [tensor, array, array]})
    assert result["a"] is result["b"][0] and result["b"][1] is result["b"][2]
    assert streams.allocated == [1024]


def test_what_holds_no_tensor_comes_back_as_it_is(streams):
    names = np.array(["a", "bc"], dtype=np.dtypes.StringDType() if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType") else None)
    tree = ["text", 5, None, {"names": names, "objects": np.array([{}, None])}]
    result = moved(streams, tree)
    assert result[:3] == tree[:3] and result[3]["names"] is names and not streams.allocated


# Sources


ARRAYS = [
    np.arange(24).reshape(2, 3, 4)[::-1, :, ::-2],
    np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(7.5),
    np.zeros((3, 0, 2), np.float32),
    np.broadcast_to(np.arange(3), (4, 3)),
    np.arange(10)[3:8:2],
    np.arange(4, dtype=">i4"),
    np.arange(4, dtype=">f8").astype(">c16"),
    np.array([True, False]),
    np.arange(100_000)[::-1],
]


@pytest.mark.parametrize("array", ARRAYS, ids=range(len(ARRAYS)))
def test_arrays_of_any_order_arrive(streams, array):
    result = moved(streams, [array])[0]
    assert tuple(result.shape) == array.shape and result.tolist() == array.tolist()


def test_read_only_arrays_and_mapped_files_arrive(streams, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(50_000))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    frozen = np.arange(5)
    frozen.flags.writeable = False
    assert [one.tolist() for one in moved(streams, (mapped, frozen))] == [mapped.tolist(), frozen.tolist()]


def test_tensors_with_gaps_orders_and_lazy_bits_arrive(streams):
    base = noise(6, 4, 5)
    waves = torch.complex(noise(3, 4).nan_to_num(), torch.ones(3, 4))
    sources = [
        base.transpose(0, 2),
        base[::2, 1:],
        base[:, :1].expand(6, 3, 5),
        torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.zeros(2, 1, 4, 5).to(memory_format=torch.channels_last),
        noise(300, 400).t(),
        noise(300, 400)[:, ::2],
        waves.conj(),
        waves.conj().imag,
        waves.real,
    ]
    for result, source in zip(moved(streams, sources), sources):
        assert result.shape == source.shape and result.stride() == source.clone().stride() and not result.is_conj() and not result.is_neg()
        assert bits(result) == bits(source)


def test_a_tensor_that_needs_a_gradient_is_moved_by_torch(streams):
    weight = torch.nn.Parameter(torch.ones(3))
    assert moved(streams, [weight])[0] is weight  # torch's `to`: the stand-in's GPU is torch's CPU
    with torch.no_grad():
        result = moved(streams, [weight])[0]
    assert type(result) is torch.Tensor and not result.requires_grad and result.tolist() == [1, 1, 1] and result.data_ptr() != weight.data_ptr()


def test_other_layouts_and_subclasses_move_by_their_own_to(streams):
    class Tagged(torch.Tensor):
        pass

    sparse, quantized = torch.eye(3).to_sparse(), torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.quint8)
    nested, tagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), torch.ones(2).as_subclass(Tagged)
    sources = [sparse, torch.ones(1), quantized, nested, tagged]
    result = moved(streams, sources)
    assert all(one is source for one, source in zip(result, sources) if source is not sources[1]) and result[1].tolist() == [1]


@pytest.mark.parametrize(
    "tree, message",
    [
        (np.array(["2020-01-01"], "M8[D]"), "an array of datetime64.* has a dtype that PyTorch .* lacks"),
        ([np.zeros((2, 3), np.longdouble)], r"float128 with shape \[2, 3\] has a dtype"),
        ({"a": np.zeros(2, [("x", "i4")])}, "has a dtype that PyTorch"),
        (np.ma.masked_array([1, 2], [True, False]), r"masked.*filled\(\)"),
        ([torch.nn.Linear(1, 1)], "Linear is a module, not data"),
    ],
)
def test_what_cannot_be_moved_is_refused(streams, tree, message):
    with pytest.raises(pinfeed.InvalidArgumentError, match=message):
        pinfeed.to_device(tree, 0)


class LazyMapping(collections.abc.Mapping):
    """Loads each value when it is asked for, and is made from a file, as numpy.load's."""

    def __init__(self, path):
        self.path = path

    def __getitem__(self, key):
        return np.full(4, len(key))

    def __iter__(self):
        return iter(["a", "bc"])

    def __len__(self):
        return 2


class FromAnything(LazyMapping):
    def __init__(self, members):
        self.members = members

    def __getitem__(self, key):
        return self.members[key] if isinstance(self.members, dict) else super().__getitem__(key)


def test_a_mapping_that_makes_its_values_when_asked_is_moved_or_refused(streams):
    assert {key: value.tolist() for key, value in moved(streams, FromAnything("file")).items()} == {"a": [1] * 4, "bc": [2] * 4}
    npz = io.BytesIO()
    np.savez(npz, a=np.arange(3))
    npz.seek(0)
    with pytest.raises(pinfeed.InvalidArgumentError, match="a NpzFile in the tree cannot be made anew .*give a dict"):
        pinfeed.to_device({"x": np.load(npz)}, 0)


class KeepsItsItems(collections.abc.MutableMapping):
    """In an attribute, which copies of it share."""

    def __init__(self, items=()):
        self.items_of_it = dict(items)

    def __getitem__(self, key):
        return self.items_of_it[key]

    def __setitem__(self, key, value):
        self.items_of_it[key] = value

    def __delitem__(self, key):
        del self.items_of_it[key]

    def __iter__(self):
        return iter(self.items_of_it)

    def __len__(self):
        return len(self.items_of_it)


class Named(KeepsItsItems):
    def __init__(self, name, **items):
        super().__init__(items)
        self.name = name


def test_the_callers_tree_stays_as_it_is(streams):
    for source in (KeepsItsItems({"a": np.arange(3)}), Named("b", a=np.arange(3))):
        result = moved(streams, source)
        assert type(result) is type(source) and result["a"].tolist() == [0, 1, 2] and type(source["a"]) is np.ndarray
    assert result.name == "b"
    assert list(moved(streams, {"n": array.array("d", [1.5]), "x": np.arange(3)})["n"]) == [1.5]


def test_arrays_of_other_libraries_are_refused(streams):
    class Array:
        def __dlpack__(self):
            raise AssertionError

    with pytest.raises(pinfeed.InvalidArgumentError, match=r"Array in the tree is an array of another library: give torch.from_dlpack\(\)"):
        pinfeed.to_device([Array()], 0)
    with pytest.raises(pinfeed.InvalidArgumentError, match="another library"):
        pinfeed.to_host([Array()])


def test_a_container_that_contains_itself_is_refused(streams):
    tree = [noise(2)]
    tree.append({"again": tree})
    with pytest.raises(pinfeed.InvalidArgumentError, match="a list in the tree contains itself"):
        pinfeed.to_device(tree, 0)


@pytest.mark.parametrize("device", [None, "mps", "cuda:x", -1, True, 2.5, torch.device("meta"), []])
def test_what_names_no_gpu_is_refused(streams, device):
    with pytest.raises(pinfeed.InvalidArgumentError, match="device"):
        pinfeed.to_device([noise(2)], device)


def test_a_gpu_that_is_not_there_is_refused(streams):
    with pytest.raises(pinfeed.InvalidArgumentError) as refused:
        pinfeed.to_device([noise(2)], "cuda:7")
    assert str(refused.value) == "to_device: device='cuda:7': there is no GPU 7; this process sees 1 (CUDA_VISIBLE_DEVICES may hide some). With device=\"cpu\", tensors stay in the host's memory"


def test_on_the_cpu_nothing_is_copied_that_is_there(streams):
    tensor, array = noise(3), np.arange(4.0)
    backwards = np.arange(3)[::-1]
    result = pinfeed.to_device([tensor, array, backwards, "x"], "cpu")
    assert result[0] is tensor and result[1].data_ptr() == array.ctypes.data and result[2].tolist() == [2, 1, 0] and result[3] == "x"


def test_on_the_cpu_arrays_whose_type_torch_does_not_know_are_taken_by_their_name():
    if hasattr(torch, "uint64"):
        assert pinfeed.to_device(np.arange(3, dtype="Q"), "cpu").tolist() == [0, 1, 2]
    assert pinfeed.to_device(np.arange(3, dtype="q"), "cpu").tolist() == [0, 1, 2]
    extended = pytest.importorskip("ml_dtypes")
    if hasattr(torch, "float8_e5m2"):  # whose kind is that of NumPy's own, unlike bfloat16's
        result = pinfeed.to_device(np.arange(3).astype(extended.float8_e5m2), "cpu")
        assert result.dtype is torch.float8_e5m2 and result.float().tolist() == [0, 1, 2]


# Packing


def test_small_tensors_share_one_allocation(streams):
    sources = [noise(1024) for _ in range(10)] + [torch.tensor(3), noise(5, dtype=torch.bool)]
    result = moved(streams, sources)
    assert streams.allocated == [10 * 4096 + 512 + 512]
    assert len({one.storage().data_ptr() for one in result}) == 1 and all(one.data_ptr() % 512 == 0 for one in result)
    streams.allocated.clear()
    result = moved(streams, sources, pack=False)
    assert sorted(streams.allocated) == sorted(source.numel() * source.element_size() for source in sources)
    assert all(map(same, result, sources))


def test_many_small_tensors_of_one_shape_are_gathered(streams):
    sources = [noise(4, 128) for _ in range(40)]
    sources[5] = torch.nn.Parameter(noise(4, 128), requires_grad=False)
    expected = [bits(source) for source in sources]
    result = moved(streams, sources)
    assert streams.allocated == [40 * 2048] and [bits(one) for one in result] == expected
    assert all(one.is_contiguous() and one.data_ptr() % 512 == 0 for one in result)
    version = result[1]._version
    result[0].add_(1)
    assert result[1]._version == version and not result[1]._is_view()


def named():
    if not hasattr(torch.Tensor, "refine_names"):
        pytest.skip("this torch has no named tensors")
    return noise(4, 128).refine_names("a", "b")


def unnamed(tensor):
    return tensor.rename(None) if hasattr(tensor, "names") else tensor


@pytest.mark.parametrize(
    "other",
    [
        lambda: noise(4, 128, dtype=torch.int32),
        lambda: noise(4, 128, dtype=torch.bfloat16),
        lambda: noise(128, 4),
        lambda: noise(512),
        lambda: noise(0),
        lambda: noise(128, 4).t(),
        lambda: noise(4, 1, 16, 8).to(memory_format=torch.channels_last),
        lambda: noise(4, 128).requires_grad_(),
        lambda: torch.nn.Parameter(noise(4, 128)),
        lambda: noise(4, 128).to_sparse(),
        lambda: torch.empty(4, 128, device="meta"),
        named,
    ],
)
def test_one_of_another_kind_among_many_small_tensors_stays_as_it_is(streams, other):
    sources = [noise(4, 128) for _ in range(20)]
    odd = other()
    sources.insert(7, odd)
    try:
        result = pinfeed.to_device(sources, 0)
    except (RuntimeError, NotImplementedError) as error:  # torch's own, for a tensor without data
        assert "meta" in str(error)
        return
    streams.await_all()
    assert [bits(one) for number, one in enumerate(result) if number != 7] == [bits(one) for number, one in enumerate(sources) if number != 7]
    there = result[7]
    assert there.stride() == odd.stride() if odd.layout is torch.strided else True
    assert (there.dtype, there.shape, there.layout, there.requires_grad) == (odd.dtype, odd.shape, odd.layout, odd.requires_grad)
    assert getattr(there, "names", None) == getattr(odd, "names", None)
    if odd.layout is torch.strided:
        assert bits(unnamed(there)) == bits(unnamed(odd))


def test_tensors_from_the_size_of_a_packed_one_on_have_memory_of_their_own(streams):
    moved(streams, [noise(PACKED, dtype=torch.uint8), noise(PACKED - 1, dtype=torch.uint8)])
    assert streams.allocated == [PACKED, PACKED]


def test_packed_tensors_do_not_depend_on_each_other(streams):
    result = moved(streams, [noise(3).nan_to_num() for _ in range(4)] + [torch.tensor(1.5), torch.tensor([2.5])])
    assert not any(one._is_view() or one.requires_grad for one in result)
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * result[0]).sum()
    before = result[0].clone()
    result[1].add_(1)  # would spoil the gradient if they shared a version
    result[2].mul_(weight)
    loss.backward()
    assert weight.grad.tolist() == before.tolist() and result[2].grad_fn is not None and result[3].grad_fn is None
    result[4].unsqueeze_(0)
    assert result[4].shape == (1,) and same(result[3], result[3].clone())


def test_torch_saves_the_whole_allocation_of_a_packed_tensor_and_its_clone_alone(streams):
    first = moved(streams, [noise(1024) for _ in range(100)])[0]

    def saved(tensor):
        file = io.BytesIO()
        torch.save(tensor, file)
        return len(file.getvalue())

    assert 100 * 4096 < saved(first) < 101 * 4096 + 2048
    assert 4096 < saved(first.clone()) < 2 * 4096
    loaded = io.BytesIO()
    torch.save(first, loaded)
    loaded.seek(0)
    assert bits(torch.load(loaded)) == bits(first)


def test_a_packed_tensor_keeps_the_memory_when_the_others_are_gone(streams):
    sources = [noise(1000).nan_to_num() for _ in range(20)]
    kept = moved(streams, sources)[7]
    gc.collect()
    moved(streams, [torch.zeros(1000) for _ in range(20)])
    assert torch.equal(kept, sources[7])


def test_slices_that_autograd_would_know_are_not_used():
    """The promise of _block, whichever way this torch keeps it."""
    block = torch.zeros(2048, dtype=torch.uint8)
    first, second = _block.carve(torch, block, torch.float32, (2, 2), 512, 1024, 2)
    version = second._version
    first.add_(1)
    assert second._version == version and not first._is_view() and block[512:528].view(torch.float32).tolist() == [1, 1, 1, 1]
    assert second.data_ptr() - first.data_ptr() == 1024 and second.tolist() == [[0, 0], [0, 0]]


def test_torchs_default_device_is_not_that_of_page_locked_memory():
    asked = []
    streams = _copier.TorchStreams.__new__(_copier.TorchStreams)
    streams._empty = lambda shape, **options: asked.append(options)
    streams.host_empty((3,), torch.float32)
    assert asked[0]["device"] == "cpu" and asked[0]["pin_memory"]  # torch refuses it where set_default_device("cuda") put it


# Streams


def test_an_idle_stream_gets_the_copies_itself(streams):
    moved(streams, [noise(3), noise(50_000)])
    assert streams.log == [("empty", streams.caller)] * 2


def test_beside_a_busy_stream_the_copies_go_on_another_which_it_waits_for(streams):
    streams.keep_busy()
    source = noise(50_000)
    result = pinfeed.to_device([noise(3), source], 0)
    assert streams.log == [("empty", streams.side)] * 2 + [("join", 2)]
    with streams.within():
        assert driver.cuStreamQuery(streams.caller_handle()) == 600  # it has not waited
        stand_in_streams.check(driver.cuStreamSynchronize(streams.side_handle()))
    assert bits(result[1]) == bits(source)


def test_one_small_tensor_is_copied_by_torch_unless_the_stream_is_busy(streams):
    """As nothing is quicker; but it would wait for what the stream has to do."""
    moved(streams, torch.ones(3))  # the GPU is known by its name from now on
    streams.log.clear()
    source = noise(1000)
    assert bits(moved(streams, source)) == bits(source) and streams.log == [("to", True)]
    streams.keep_busy()
    assert bits(moved(streams, source)) == bits(source) and streams.log[1:] == [("empty", streams.side), ("join", 1)]
    large = noise(300_000)
    assert bits(moved(streams, large)) == bits(large) and ("to", True) not in streams.log[1:]


@pytest.fixture
def page_locked(streams):
    array = np.random.default_rng(1).integers(0, 256, 8 << 20, np.uint8)
    with streams.within():
        stand_in_streams.check(driver.cuMemHostRegister_v2(stand_in_streams.pointer(array), stand_in_streams.size(array), 1))
    yield array
    streams.await_all()
    with streams.within():
        stand_in_streams.check(driver.cuMemHostUnregister(stand_in_streams.pointer(array)))


def test_a_page_locked_source_has_been_read_when_the_call_returns(copier, streams, page_locked):
    result = pinfeed.to_device(page_locked, 0)
    assert not copier._kept and result.numpy().tobytes() == page_locked.tobytes()  # without a wait


def test_a_page_locked_source_is_kept_until_it_has_been_read(copier, streams, page_locked):
    part = page_locked[: 1 << 20]
    streams.keep_busy()
    streams.side, was = streams.caller, streams.side  # so that the copy waits
    try:
        result = pinfeed.to_device([part], 0, non_blocking=True)
        assert len(copier._kept) == 1 and any(one is part for one in copier._kept[0][1][0])
        streams.await_all()
        assert result[0].numpy().tobytes() == part.tobytes()
    finally:
        streams.side = was
    pinfeed.to_device([noise(2)], 0)
    copier.let_go()
    assert not copier._kept


def test_a_small_page_locked_source_is_kept_too_where_torch_cannot_tell_whose_it_is(copier, streams, page_locked):
    pinfeed.to_device([noise(2)], 0)
    small = torch.from_numpy(page_locked[:1024])
    small_is_pinned = torch.Tensor.is_pinned
    torch.Tensor.is_pinned = lambda tensor: True
    try:
        result = pinfeed.to_device(small, torch.device("cuda", 0), non_blocking=True)
        again = pinfeed.to_device(small, torch.device("cuda", 0), non_blocking=True)
    finally:
        torch.Tensor.is_pinned = small_is_pinned
    streams.await_all()
    assert result.numpy().tobytes() == again.numpy().tobytes() == page_locked[:1024].tobytes()


def test_page_locked_copies_begin_while_others_are_prepared(copier, streams, page_locked, monkeypatch):
    monkeypatch.setattr(_copier, "_BEGIN_BYTES", 1 << 20)
    monkeypatch.setattr(to_device, "_STEP_BYTES", 1 << 20)
    counts = []
    begin = copier.begin
    monkeypatch.setattr(copier, "begin", lambda rows, stream: counts.append(len(rows)) or begin(rows, stream))
    locked = [page_locked[number << 20 : (number + 1) << 20] for number in range(4)]
    pageable = [noise(700_000, dtype=torch.uint8) for _ in range(5)]
    results = moved(streams, [*locked, *pageable])
    assert all(bits(one) == bits(torch.as_tensor(source)) for one, source in zip(results, [*locked, *pageable]))
    assert counts == [1, 1, 1, 1, 2, 3]  # the first that had to be waited for was the last to begin early
    with pytest.raises(ZeroDivisionError):
        with _copier.Sending(copier, streams.caller) as sending:
            target = streams.empty((1 << 20,), torch.uint8)
            sending.add([page_locked.ctypes.data], 1 << 20, [target.data_ptr()], 1 << 20)
            1 / 0  # noqa: B018 - as an allocation that fails
    assert target.numpy().tobytes() == locked[0].tobytes()  # without a wait


def test_threads_may_call_at_once(streams):
    faults = []

    def run(number):
        generator = np.random.default_rng(number)
        try:
            for _ in range(5):
                sources = [generator.integers(0, 256, size, np.uint8) for size in (10, 5000, 100_000, 2_000_000)]
                results = pinfeed.to_device(sources, 0)
                streams.await_all()
                assert all(one.numpy().tobytes() == source.tobytes() for one, source in zip(results, sources))
        except BaseException as error:  # noqa: BLE001 - shown by the test
            faults.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_a_forked_child_is_refused(streams):
    moved(streams, [noise(3)])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pinfeed.to_device([torch.ones(3)], 0)
        except pinfeed.Error as error:
            os.write(writer, f"{error.code.name}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert "FAILED_PRECONDITION: this copier belongs to the parent process" in said.read()
    os.waitpid(child, 0)


def in_another_process(body, **environment):
    """What a process says that has a GPU of the stand-in driver, under other settings of it."""
    code = f"import torch, pinfeed, stand_in_streams\nfrom pinfeed._copies import copier\ncopier.make_streams = stand_in_streams.Streams\n{body}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}, capture_output=True, text=True, timeout=100, check=False
    )
    return done.stdout + done.stderr


def test_a_capture_is_refused():
    said = in_another_process(
        """
from pinfeed._copies import to_host
to_host.gpu_of = lambda tensor: 0
for function in (lambda: pinfeed.to_device(torch.ones(3), 0), lambda: pinfeed.to_host(torch.ones(3)), lambda: pinfeed.to_device(torch.ones(3), 0)):
    try:
        function()
    except pinfeed.Error as error:
        print(error.code.name, error)
""",
        PINFEED_STAND_IN_CAPTURING="here",
    )
    assert [line.split(":")[0] for line in said.splitlines()] == ["FAILED_PRECONDITION to_device", "FAILED_PRECONDITION to_host", "FAILED_PRECONDITION to_device"], said


def test_without_a_driver_the_error_says_so():
    code = "import torch, pinfeed\nfor call in (lambda: pinfeed.to_device(torch.ones(3), 0), lambda: pinfeed.pinned_empty(3)):\n    try: call()\n    except pinfeed.UnavailableError as error: print(error)"
    environment = {**os.environ, "LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all("CUDA" in line for line in lines), done.stdout + done.stderr
    assert lines[0].startswith("to_device: device=0: ") and lines[0].endswith(". With device=\"cpu\", tensors stay in the host's memory"), lines[0]
    assert lines[1].startswith("pinned_empty needs a GPU: ") and lines[1].endswith(". torch.empty gives memory that is not page-locked"), lines[1]
    advice = {"libcuda": "; install NVIDIA's driver, or start the container with its GPUs (--gpus all). ", "NO_DEVICE": "; nvidia-smi shows whether the driver works, and CUDA_VISIBLE_DEVICES may hide GPUs. "}
    assert all(any(reason in line and text in line for reason, text in advice.items()) for line in lines), lines


# To the host


@pytest.fixture
def all_on_gpu(monkeypatch, streams):
    monkeypatch.setattr(to_host, "gpu_of", lambda tensor: 0)
    return streams


def test_tensors_come_back(all_on_gpu):
    sources = {"a": [noise(1000), noise(3, 5).t()], "b": (noise(4, dtype=torch.bfloat16), "text", 5), "c": torch.tensor(7, requires_grad=False)}
    copy = pinfeed.to_host(sources)
    result = copy.result()
    assert copy.done() and result is copy.result() and copy._sources is None
    assert same(result["a"][0], sources["a"][0]) and result["a"][1].is_contiguous() and bits(result["a"][1]) == bits(sources["a"][1])
    assert result["b"][1:] == ("text", 5) and result["c"].item() == 7


def test_results_can_be_had_only_once_they_have_arrived(all_on_gpu):
    all_on_gpu.keep_busy()
    copy = pinfeed.to_host([noise(10)])
    assert "under way" in repr(copy) and not copy.done() and not [name for name in dir(copy) if not name.startswith("_") and name not in ("done", "result", "wait")]
    for ask in (copy.result, copy.wait):
        with pytest.raises(pinfeed.DeadlineExceededError, match="did not arrive within 0.001 s"):
            ask(timeout=0.001)
    assert copy.wait(60) is None and copy.done() and "arrived" in repr(copy)


def test_copies_beside_the_stream_keep_their_sources(all_on_gpu):
    source = noise(10)
    all_on_gpu.keep_busy(3)
    copy = pinfeed.to_host([source], non_blocking=True)
    assert ("fork", 1) in all_on_gpu.log and copy._sources[0].data_ptr() == source.data_ptr()
    assert bits(copy.result()[0]) == bits(source)


def test_what_is_on_no_gpu_stays():
    tensor, array = noise(3), np.arange(3)
    assert all(one is other for one, other in zip(pinfeed.to_host([tensor, array, "x"]).result(), [tensor, array, "x"]))


# Page-locked memory


def test_memory_for_fast_copies_has_the_shape_and_dtype_asked_for(streams):
    for dtype, expected in (("float32", torch.float32), (torch.bfloat16, torch.bfloat16), (np.uint8, torch.uint8), (np.dtype("int64"), torch.int64)):
        made = pinfeed.pinned_empty((2, 3), dtype)
        assert made.shape == (2, 3) and made.dtype == expected
    for wrong in ("float31", None, np.longdouble, "device", 5):
        with pytest.raises(pinfeed.InvalidArgumentError, match="pinned_empty: dtype="):
            pinfeed.pinned_empty(3, wrong)
