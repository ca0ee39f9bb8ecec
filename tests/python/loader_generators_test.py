# SPDX-License-Identifier: Apache-2.0
"""Datasets and collate functions that keep random number generators of their own, beside torch's DataLoader."""

import collections
import functools
import logging
import multiprocessing
import random
import time
import unittest.mock
import warnings

import numpy
import pytest

torch = pytest.importorskip("torch")

from loader_datasets import Numbers, seeded  # noqa: E402

import pinfeed  # noqa: E402
from pinfeed._worker.kept_generators import find_kept_generator  # noqa: E402

TorchLoader = torch.utils.data.DataLoader

pytestmark = [pytest.mark.usefixtures("nothing_is_left", "feeds"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]


def draw(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator).item()
    return generator.random() if hasattr(generator, "random") else generator.random_sample()


class Keeps(Numbers):
    def __init__(self, generator, count=24):
        super().__init__(count, None)
        self.generator = generator

    def __getitem__(self, index):
        return index, draw(self.generator), random.random()


class Compose:
    """As Albumentations 2 has it: its generators are also those of its transforms."""

    def __init__(self, seed):
        self.random_generator, self.py_random = numpy.random.default_rng(seed), random.Random(seed)

    def __call__(self, sample):
        return sample, draw(self.random_generator), draw(self.py_random)


class Transformed(Numbers):
    def __init__(self, transform):
        super().__init__(30, None)
        self.transform = transform

    def __getitem__(self, index):
        time.sleep(0.05 * (index == 2))  # meanwhile a worker that is free makes what this one would have made
        return self.transform(index)


class Masking:
    """As a collator of Transformers with a seed: each worker makes its generator with the first batch."""

    generator = None

    def __call__(self, samples):
        if self.generator is None:
            self.generator = seeded(torch.utils.data.get_worker_info().id)
        return torch.tensor(samples), torch.rand((), generator=self.generator)


of_module = numpy.random.default_rng(0)


def of_this_module(sample):
    return noisy(sample)


def noisy(sample):
    return sample, draw(of_module)


def enclosing(generator):
    return lambda samples: [torch.tensor([sample, draw(generator)]) for sample in samples]


def together(samples, *, generator):
    return torch.tensor([[sample, draw(generator)] for sample in samples])


def augmented():
    return torch.utils.data.Subset(torch.utils.data.ConcatDataset([Transformed(Compose(0))]), range(1, 25))


def values(loader):
    return [[torch.as_tensor(column).tolist() for column in batch] for batch in loader]


CASES = {
    "random": lambda: {"dataset": Keeps(random.Random(0))},
    "Generator": lambda: {"dataset": Keeps(numpy.random.default_rng(0))},
    "RandomState": lambda: {"dataset": Keeps(numpy.random.RandomState(0))},
    "torch": lambda: {"dataset": Keeps(seeded())},
    "transform": lambda: {"dataset": augmented()},
    "module": lambda: {"dataset": Numbers(24, of_this_module)},
    "partial": lambda: {"dataset": Numbers(24), "collate_fn": functools.partial(together, generator=random.Random(0))},
    "closure": lambda: {"dataset": Numbers(24), "collate_fn": enclosing(random.Random(0))},
}


@pytest.mark.parametrize("case", CASES)
def test_generators_that_a_dataset_keeps_give_torchs_numbers(case):
    arguments = {"batch_size": 2, "num_workers": 3, "persistent_workers": case in ("random", "transform")}
    torch.manual_seed(1)
    ours = pinfeed.DataLoader(**CASES[case](), **arguments)
    given = [values(ours) for _ in range(2)]
    torch.manual_seed(1)
    theirs = TorchLoader(**CASES[case](), **arguments)
    assert given == [values(theirs) for _ in range(2)]


def test_the_same_with_workers_that_are_not_forked():
    def given(kind):
        torch.manual_seed(1)
        dataset = torch.utils.data.ConcatDataset([Keeps(numpy.random.default_rng(0), 12), Keeps(random.Random(0), 12)])
        return values(kind(dataset, batch_size=1, num_workers=2, multiprocessing_context="forkserver"))

    assert given(pinfeed.DataLoader) == given(TorchLoader)


def test_a_generator_that_comes_behind_the_constructor_is_found_too():
    given = []
    for kind in (pinfeed.DataLoader, TorchLoader):
        torch.manual_seed(1)
        dataset = Transformed(torch.tensor)
        loader = kind(dataset, num_workers=0, batch_size=2)
        assert len(list(loader)) == 15
        loader.prefetch_factor = 2
        loader.num_workers = 3
        dataset.transform = Compose(0)
        given.append(values(loader))
    assert given[0] == given[1]


def told(loader):
    """Returns what warnings say of a loader's generators."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = loader()
        for _ in range(2):
            list(loader)
    return [str(each.message) for each in caught if "random number generator" in str(each.message)]


def test_a_generator_is_told_where_workers_cannot_take_turns():
    for arguments in ({"retry_after": 60}, {"share": "broadcast", "group": "generators", "group_size": 1}):
        name = next(iter(arguments))
        (text,) = told(lambda: pinfeed.DataLoader(augmented(), num_workers=2, **arguments))
        assert "DataLoader: dataset.dataset.datasets[0].transform.random_generator is a random number generator" in text
        assert "differ from run to run" in text and f"Omit {name}" in text and 'seeding="sample" ends this warning' in text
        assert told(lambda: pinfeed.DataLoader(augmented(), num_workers=2, seeding="sample", **arguments)) == []


def test_a_state_of_another_number_of_workers_continues_with_the_seeding_that_the_error_names():
    loader = pinfeed.DataLoader(augmented(), num_workers=2)
    next(iter(loader))
    other = pinfeed.DataLoader(augmented(), num_workers=3)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(pinfeed.InvalidArgumentError, match='cannot continue an epoch of 2 workers.*or seeding="sample", which continues with other random numbers'):
        iter(other)
    other = pinfeed.DataLoader(augmented(), num_workers=3, seeding="sample")
    with pytest.warns(UserWarning, match="random transforms draw other numbers"):
        other.load_state_dict(loader.state_dict())
    assert [batch[0].item() for batch in other] == list(range(2, 25))
    next(iter(other))
    with pytest.warns(UserWarning, match="random transforms draw other numbers"):
        loader.load_state_dict(other.state_dict())
    with pytest.raises(pinfeed.InvalidArgumentError, match='or seeding="sample"; a state of num_workers=0 continues with other random numbers$'):
        iter(loader)


@pytest.mark.parametrize("numpys", [False, True])
def test_a_generator_that_a_worker_makes_is_told(numpys):
    def loader(**seeding):
        if numpys:
            return pinfeed.DataLoader(Numbers(8, Lazy()), num_workers=2, **seeding)
        return pinfeed.DataLoader(Numbers(8), num_workers=2, collate_fn=Masking(), **seeding)

    (text,) = told(loader)
    assert ("dataset.make.generator" if numpys else "collate_fn.generator") + " is a random number generator" in text and 'Give seeding="worker"' in text
    assert told(lambda: loader(seeding="worker")) == told(lambda: loader(seeding="sample")) == []


class Lazy:
    generator = None

    def __call__(self, index):
        if self.generator is None:
            self.generator = numpy.random.default_rng(torch.utils.data.get_worker_info().id)
        return index, draw(self.generator)


# ---- what is looked at --------------------------------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("unset", "generator")

    def __init__(self):
        self.generator = random.Random(0)


class OfClass:
    generator = random.Random(0)


class Named(collections.namedtuple("Named", "one two")):
    pass


class OfModule:
    def __call__(self, sample):
        return of_this_module(sample)


class CallsItsBase(OfModule):
    def __call__(self, sample):
        return super().__call__(sample)


def defaults(sample, generator=random.Random(0)):
    return draw(generator)


@pytest.mark.parametrize(
    "value, place",
    [
        (Slotted(), ".generator"),
        (OfClass(), ".generator"),
        ({"a": [1, (2, Slotted())]}, "['a'][1][1].generator"),
        (Named(1, Slotted()), "[1].generator"),
        (collections.OrderedDict(a=Slotted()), "['a'].generator"),
        (Slotted().generator.random, ""),
        (defaults, ".__defaults__[0]"),
        (CallsItsBase(), ".__call__.of_this_module.noisy.of_module"),
        (Compose(0).__call__, ".random_generator"),
    ],
)
def test_where_generators_are_found(value, place):
    assert find_kept_generator(dataset=Numbers(1, value)) == f"dataset.make{place}"


class Untouchable:
    """Nothing of it may run."""

    def __getattribute__(self, name):
        raise AssertionError(name)

    __getattr__ = __iter__ = __len__ = __eq__ = __bool__ = __hash__ = __getattribute__

    @property
    def generator(self):
        raise AssertionError("a property")


class UntouchableDict(dict):
    __getattribute__ = __iter__ = __len__ = __getitem__ = items = values = keys = Untouchable.__getattribute__


class UntouchableClass(type):
    __getattribute__ = __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = Untouchable.__getattribute__


class OfUntouchableClass(metaclass=UntouchableClass):
    pass


class UntouchableProperty(property):
    __getattribute__ = Untouchable.__getattribute__


class HasOddMembers:
    __getitem__ = UntouchableProperty(of_this_module)


def test_nothing_of_the_users_runs_and_cycles_end():
    odd = object.__new__(OfUntouchableClass), type("HasNumber", (), {1: 2})()
    assert find_kept_generator(dataset=HasOddMembers()) == "dataset.__getitem__.noisy.of_module"
    dataset = Numbers(1, [Untouchable(), UntouchableDict(a=1), odd])
    dataset.variables = Numbers(1)
    dataset.variables.__dict__ = UntouchableDict(a=1)
    dataset.cycle = [dataset]
    with unittest.mock.patch("random.random", return_value=0.5):
        assert find_kept_generator(dataset=dataset) == ""
    dict.__setitem__(dataset.make[1], "b", random.Random(0))
    assert find_kept_generator(dataset=dataset) == "dataset.make[1]['b']"


def test_generators_that_are_seeded_or_that_draw_names_are_not_meant():
    lock = multiprocessing.Lock()
    names = logging.getLogger("generators"), multiprocessing.Queue(), lock, lock._semlock
    ours = random.random, random.SystemRandom(), numpy.random.rand, numpy.random.mtrand._rand, torch.default_generator
    assert find_kept_generator(dataset=Numbers(1, [names, ours])) == ""


def test_transforms_are_found_beside_many_annotations():
    """As torchvision's CocoDetection has them."""
    annotations = {number: {"id": number, "bbox": [0, 0, 1, 1], "segmentation": [[0, 1, 2, 3]], **dict.fromkeys("abcdef", 0)} for number in range(1000)}
    tables = [annotations, [{**each} for each in annotations.values()], {number: [{**each}] for number, each in annotations.items()}]
    transforms = Numbers(1, [Untouchable(), Compose(0)])
    dataset = torch.utils.data.Subset(Numbers(1, [Numbers(1, table) for table in tables] + [Numbers(1, transforms)]), range(1))
    assert find_kept_generator(dataset=dataset) == "dataset.dataset.make[3].make.make[1].random_generator"


class Record:
    def __init__(self):
        self.box, self.size, self.tags = Numbers(4), Numbers(2), [0] * 20
        self.more = dict.fromkeys("abcdefghij", 0)


@pytest.mark.parametrize("records", [list, dict])
def test_functions_and_classes_are_found_beside_many_records(records):
    made = [Record() for _ in range(1000)]
    table = made if records is list else dict(enumerate(made))
    dataset = Numbers(1, OfModule())
    dataset.records = table
    dataset = torch.utils.data.Subset(dataset, range(1))
    assert find_kept_generator(dataset=dataset) == "dataset.dataset.make.__call__.of_this_module.noisy.of_module"


def test_large_datasets_take_no_time():
    paths = [(f"{number}.jpg", {"boxes": [[0, 0, 1, 1]]}) for number in range(200_000)]
    dataset = torch.utils.data.Subset(Numbers(1, [paths, dict(enumerate(paths)), [[[Compose] * 200] * 200] * 200]), range(10))
    dataset.model = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(1000))
    begun = time.process_time()
    assert find_kept_generator(dataset=dataset) == ""
    assert time.process_time() - begun < 0.2  # some milliseconds; all of it would take seconds
