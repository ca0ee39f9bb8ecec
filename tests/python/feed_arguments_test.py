# SPDX-License-Identifier: Apache-2.0
"""Arguments that cannot be: each is refused here, before anything is sent, by name, with its value and what is accepted."""

import pathlib

import numpy
import pytest

import pinfeed

REFUSED = [
    ({"dataset": ""}, "dataset: '' is not the path of a dataset or the name of one"),
    ({"dataset": None}, "dataset: None is not the path"),
    ({"dataset": b"/data"}, "dataset: b'/data' is not the path"),
    ({"dataset": "/data/caf\udce9"}, "dataset: '/data/caf\\udce9' is not valid UTF-8, as what is sent to the daemon must be"),
    ({"dataset": pathlib.Path("/caf\udce9")}, "dataset: '/caf\\udce9' is not valid UTF-8"),
    ({"dataset": "train\ud800"}, "dataset: 'train\\ud800' is not valid UTF-8"),
    ({"dataset": "/data/a\0b"}, "dataset: '/data/a\\x00b' is not possible: it holds a NUL character"),
    ({"batch_size": 0}, "batch_size: 0 is not a whole number from 1 to 4294967295"),
    ({"batch_size": -1}, "batch_size: -1 is not a whole number"),
    ({"batch_size": 2.5}, "batch_size: 2.5 is not a whole number"),
    ({"batch_size": "4"}, "batch_size: '4' is not a whole number"),
    ({"batch_size": None}, "batch_size: None is not a whole number"),
    ({"batch_size": True}, "batch_size: True is not a whole number"),
    ({"batch_size": numpy.array(True)}, "batch_size: array(True) is not a whole number from 1"),
    ({"batch_size": 2**40}, "batch_size: 1099511627776 is not a whole number"),
    ({"batch_size": numpy.arange(2)}, "batch_size: array([0, 1]) is not a whole number"),
    ({"seed": -1}, "seed: -1 is not a whole number from 0 to 18446744073709551615"),
    ({"seed": 2**64}, "seed: 18446744073709551616 is not"),
    ({"seed": None}, "seed: None is not a whole number"),
    ({"shuffle": "no"}, "shuffle: 'no' is not True or False"),
    ({"shuffle": 2}, "shuffle: 2 is not True or False"),
    ({"drop_last": 0.5}, "drop_last: 0.5 is not True or False"),
    ({"sample_ids": []}, "sample_ids: [] is not True or False"),
    ({"valid": "all"}, "valid: 'all' is not True or False"),
    ({"masks": 3}, "masks: 3 is not the name of a field or a list of such names"),
    ({"masks": ["mask", 3]}, "masks: ['mask', 3] is not the name of a field or a list of such names"),
    ({"masks": [""]}, "masks: [''] is not the name of a field"),
    ({"fields": {"image"}}, "fields: {'image'} is not the name of a field or a list of such names"),
    ({"fields": iter(())}, "fields: <tuple_iterator"),
    ({"transforms": {pinfeed.Resize(8)}}, "transforms: {Resize("),
    ({"fields_unchanged": b"depth"}, "fields_unchanged: b'depth' is not the name of a field"),
    ({"fields_unchanged": ["a\udce9"]}, "fields_unchanged: 'a\\udce9' is not valid UTF-8"),
    ({"epochs": 0}, "epochs: 0 is not a whole number from 1 to 18446744073709551615, or None for no end"),
    ({"rank": -1, "world_size": 2}, "rank: -1 is not a whole number from 0"),
    ({"rank": "0", "world_size": 2}, "rank: '0' is not a whole number"),
    ({"rank": 2, "world_size": 2}, "rank: 2 is not below the world_size of 2 (both from arguments)"),
    ({"rank": 0, "world_size": 0}, "world_size: 0 is not a whole number from 1"),
    ({"rank": 1}, "rank, world_size: give both or neither; world_size is None"),
    ({"world_size": 1}, "rank, world_size: give both or neither; rank is None"),
    ({"format": 3}, "format: 3 is not a string"),
    ({"sequence_length": 0}, "sequence_length: 0 is not a whole number from 1"),
    ({"stride": 1.0}, "stride: 1.0 is not a whole number from 1 to 4294967295, or None for sequence_length"),
    ({"token_dtype": "int64"}, "token_dtype: 'int64' is not \"uint16\" or \"uint32\""),
    ({"token_dtype": numpy.dtype(">u2")}, "token_dtype: dtype('>u2') is uint16 in the other byte order than this machine's; write the tokens anew: numpy.fromfile("),
    ({"token_dtype": ">u4"}, "token_dtype: '>u4' is uint32 in the other byte order"),
    ({"token_dtype": "u8"}, "token_dtype: 'u8' is not \"uint16\" or \"uint32\""),
    ({"token_dtype": ">i2"}, "token_dtype: '>i2' is not \"uint16\" or \"uint32\""),
    ({"token_dtype": object}, "token_dtype: <class 'object'> is not"),
    ({"layout": "chw "}, "layout: 'chw ' is none of 'CHW', 'HWC'"),
    ({"layout": "NHWC"}, "layout: 'NHWC' is none of 'CHW', 'HWC'"),
    ({"layout": None}, "layout: None is none of 'CHW', 'HWC'"),
    ({"on_bad_sample": "retry"}, "on_bad_sample: 'retry' is none of 'fail', 'skip', 'zero'"),
    ({"slots": 2}, "slots: 2 is not a whole number from 3 to 64, or None for the daemon's default"),
    ({"share": "all", "group": "g"}, "share: 'all' is none of 'broadcast', 'queue'"),
    ({"share": "queue"}, "group: share='queue' needs the group's name"),
    ({"share": "queue", "group": "g", "group_size": 0}, "group_size: 0 is not a whole number from 1"),
    ({"group": "g"}, "group: 'g' applies only with share="),
    ({"group_size": 2}, "group_size: 2 applies only with share="),
    ({"framework": "jax"}, "framework: 'jax' is none of 'auto', 'torch', 'cupy', 'numpy'"),
    ({"zero_copy": "yes"}, "zero_copy: 'yes' is not True or False"),
    ({"zero_copy": True, "share": "queue", "group": "g"}, "zero_copy: True needs group_size in a group"),
    ({"name": "x" * 129}, "name: 'xxx"),
    ({"name": 7}, "name: 7 is not a string of 1 to 128 bytes"),
    ({"name": "a\udce9"}, "name: 'a\\udce9' is not valid UTF-8"),
    ({"name": "a\0b"}, "name: 'a\\x00b' is not possible: it holds a NUL character"),
    ({"share": "queue", "group": "\ud800"}, "group: '\\ud800' is not valid UTF-8"),
    ({"format": "np\udce9"}, "format: 'np\\udce9' is not valid UTF-8"),
    ({"address": "/run/a.sock\0b"}, "address: '/run/a.sock\\x00b' is not the path of the daemon's socket"),
    ({"address": "/run/\ud800"}, "address: '/run/\\ud800' is not the path"),
    ({"address": b"/run/a.sock"}, "address: b'/run/a.sock' is not the path"),
    ({"address": 7}, "address: 7 is not the path of the daemon's socket"),
    ({"timeout": "1"}, "timeout: '1' is not a number of seconds, from 0 to 1e9, or None for no limit"),
    ({"timeout": float("nan")}, "timeout: nan is not a number of seconds"),
    ({"open_timeout": None}, "open_timeout: None is not a number of seconds, from 0.001 to 1e9"),
    ({"open_timeout": 0}, "open_timeout: 0 is not a number of seconds, from 0.001 to 1e9"),
    ({"reconnect_timeout": -1}, "reconnect_timeout: -1 is not a number of seconds, from 0 to 1e9, or None for no limit"),
    ({"reconnect_timeout": float("inf")}, "reconnect_timeout: inf is not a number of seconds"),
]

CENTRE = "transforms[0] center_crop.size: "
CROP = "transforms[0] random_resized_crop."
REFUSED_TRANSFORMS = [
    (pinfeed.Resize("big"), "transforms[0] resize.size: 'big' is not what Resize takes: pixels from 1 to 65500, as one number (the shorter side) or"),
    (pinfeed.Resize(-3), "transforms[0] resize.size: -3 is not what Resize takes"),
    (pinfeed.Resize(2.5), "transforms[0] resize.size: 2.5 is not"),
    (pinfeed.Resize(None), "transforms[0] resize.size: None is not"),
    (pinfeed.CenterCrop(0), CENTRE + "0 is not what CenterCrop takes: pixels from 1 to 65500, as one number (a square) or (height, width)"),
    (pinfeed.CenterCrop((1, 2, 3)), CENTRE + "(1, 2, 3) is not"),
    (pinfeed.CenterCrop([]), CENTRE + "() is not"),
    (pinfeed.CenterCrop((8, 65501)), CENTRE + "(8, 65501) is not"),
    (pinfeed.CenterCrop((8, True)), CENTRE + "(8, True) is not"),
    (pinfeed.RandomResizedCrop(8, scale=(0.5, 2)), CROP + "scale: (0.5, 2) is not two shares of the area, 0 < least <= greatest <= 1"),
    (pinfeed.RandomResizedCrop(8, scale=0.5), CROP + "scale: 0.5 is not"),
    (pinfeed.RandomResizedCrop(8, ratio=(2, 1)), CROP + "ratio: (2, 1) is not two ratios of width to height, 0 < least <= greatest"),
    (pinfeed.RandomResizedCrop(8, ratio=(1, float("inf"))), CROP + "ratio: (1, inf) is not"),
    (pinfeed.RandomHorizontalFlip(float("nan")), "transforms[0] random_horizontal_flip.p: nan is not a probability from 0 to 1"),
    (pinfeed.RandomHorizontalFlip(1.5), "transforms[0] random_horizontal_flip.p: 1.5 is not"),
    (pinfeed.RandomHorizontalFlip("often"), "transforms[0] random_horizontal_flip.p: 'often' is not"),
    (pinfeed.Normalize("a", 1), "transforms[0] normalize.mean: 'a' is not one number, or one a channel"),
    (pinfeed.Normalize(0, 0), "transforms[0] normalize.std: 0 is not one number above 0"),
    (pinfeed.Normalize([1, 2, 3], [1, 1]), "transforms[0] normalize.std: (1, 1) has 2 values where mean has 3"),
    (pinfeed.ToDtype("int32"), "transforms[0] to_dtype.dtype: 'int32' is not what ToDtype takes: uint8, float32, float16, bfloat16"),
    (pinfeed.ToDtype(numpy.dtype(">f4")), "transforms[0] to_dtype.dtype: dtype('>f4') is float32 in the other byte order"),
    (pinfeed.ToDtype(">f2"), 'transforms[0] to_dtype.dtype: \'>f2\' is float16 in the other byte order than this machine\'s; tensors come in this machine\'s: ToDtype("float16")'),
    (pinfeed.ToDtype(None), "transforms[0] to_dtype.dtype: None is not"),
    (pinfeed.ToDtype("uint8", scale="x"), "transforms[0] to_dtype.scale: 'x' is not True or False"),
    (pinfeed.Resize, "transforms: Resize is a class, not a transform: give an object of it, Resize(...)"),
    (object(), "transforms: object: the daemon has no such transform"),
    ("resize", "transforms: 'resize' is not a transform: give objects, such as pinfeed.RandomResizedCrop(224)"),
    (None, "transforms: NoneType: the daemon has no such transform (None)"),
]


def refusal(fake, options):
    with pytest.raises(pinfeed.InvalidArgumentError) as caught:
        fake(**options)
    assert caught.value.code == pinfeed.Code.INVALID_ARGUMENT and isinstance(caught.value, ValueError)
    assert fake.spec_text() == "", "it was sent all the same"
    return str(caught.value)


@pytest.mark.parametrize("options, message", REFUSED)
def test_arguments(fake, options, message):
    text = refusal(fake, options)
    assert text.startswith(message) and len(text) < 300 and text.count("\n") == 0


@pytest.mark.parametrize("transform, message", REFUSED_TRANSFORMS)
def test_transforms(fake, transform, message):
    text = refusal(fake, {"transforms": [transform]})
    assert text.startswith(message) and text.count("\n") == 0


@pytest.mark.parametrize("transforms", ["resize", b"resize", {"resize": 3}])
def test_what_is_no_sequence_of_transforms(fake, transforms):
    assert f"transforms: {transforms!r} is not a transform or a sequence of them" in refusal(fake, {"transforms": transforms})
    assert "give an object of it, CenterCrop(...)" in refusal(fake, {"transforms": pinfeed.CenterCrop})


def test_one_error_lists_every_fault_a_line(fake):
    options = {"batch_size": -1, "seed": "x", "layout": 3, "slots": 1, "transforms": [pinfeed.ToDtype("uint8"), pinfeed.RandomResizedCrop(0, scale=1)]}
    lines = refusal(fake, options).splitlines()
    names = ["batch_size", "seed", "transforms[1] random_resized_crop.size", "transforms[1] random_resized_crop.scale", "layout", "slots"]
    assert [line.split(":")[0] for line in lines] == names


def test_values_of_other_types_that_mean_the_same(fake):
    torch = pytest.importorskip("torch")
    numbers = {"batch_size": numpy.uint8(4), "seed": torch.tensor(3), "epochs": numpy.int64(2), "slots": numpy.array(5), "timeout": numpy.float32(2)}
    flags = {"shuffle": numpy.bool_(True), "drop_last": 1, "sample_ids": None}
    mean, std = torch.tensor([0.5, 0.25]), numpy.array([1, 2])
    transforms = [pinfeed.Resize(numpy.array([3, 4])), pinfeed.Normalize(mean, std)]
    fake(pathlib.Path("/data"), layout="hwc", on_bad_sample="SKIP", transforms=transforms, **numbers, **flags)
    spec = fake.spec()
    assert {name: spec[name] for name in ("batch_size", "seed", "epochs", "slots")} == {"batch_size": 4, "seed": 3, "epochs": 2, "slots": 5}
    assert (spec["order"], spec["drop_last"], spec["sample_ids"], spec["image_layout"], spec["on_bad_sample"]) == ("SHUFFLE", True, False, "HWC", "SKIP")
    assert spec["transforms"] == [{"resize": {"size": [3, 4]}}, {"normalize": {"mean": [0.5, 0.25], "std": [1, 2]}}]


def test_an_epoch_that_is_none(fake):
    feed = fake()
    for value in (-1, 1.5, "1", None, 2**63, 2**64 - 1, 2**64):
        with pytest.raises(pinfeed.InvalidArgumentError, match=f"epoch: {value!r} is not a whole number from 0 to 9223372036854775807"):
            feed.set_epoch(value)
    state = feed.state_dict()
    with pytest.raises(pinfeed.InvalidArgumentError, match="epoch: 18446744073709551615 is not a whole number from 0"):
        feed.load_state_dict({**state, "epoch": 2**64 - 1})


@pytest.mark.parametrize("address", ["/run/a.sock\0b", "/run/\ud800", b"/run/a.sock", 7])
@pytest.mark.parametrize("ask", [pinfeed.status, pinfeed.datasets])
def test_an_address_that_is_none(fake, ask, address):
    with pytest.raises(pinfeed.InvalidArgumentError) as caught:
        ask(address)
    assert str(caught.value).startswith(f"address: {address!r} is not the path of the daemon's socket")
