# SPDX-License-Identifier: Apache-2.0
"""`pinfeed.DataLoader` when a signal handler raises inside of `next`: no batch is lost, and none comes twice."""

import os
import sys

import pytest

torch = pytest.importorskip("torch")

from loader_datasets import Numbers  # noqa: E402

import pinfeed  # noqa: E402

pytestmark = [pytest.mark.usefixtures("feeds"), pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]

PACKAGE = os.path.dirname(pinfeed.__file__)
FILES = {os.path.join(PACKAGE, name) for name in ("_loader/worker_iterator.py", "_loader/iterator.py", "_loader/produced_feed.py", "_worker/batch_memory.py", "_worker/lanes.py")}


class Interrupted(Exception):
    pass


class Interruption:
    """Raises `error` at event number `place`, as a signal handler would: when a function of FILES begins, or where one has called a function in C."""

    def __init__(self, place, error):
        self.place, self.error, self.over = place, error, False

    def __call__(self, frame, event, argument):
        if event not in ("call", "c_return") or frame.f_code.co_filename not in FILES:
            return
        self.place -= 1
        if self.place < 0:
            self.over = True
            sys.setprofile(None)
            raise self.error

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted])
@pytest.mark.parametrize("seeding", ["sample", "worker"])
def test_no_batch_is_lost_or_comes_twice_wherever_a_signal_handler_raises(seeding, error):
    loader = pinfeed.DataLoader(Numbers(12), num_workers=2, seeding=seeding)
    iterator = iter(loader)
    seen, places = [next(iterator).item()], 0
    while len(seen) < 12:  # each batch comes after calls that are interrupted at one more place each time, until one is not
        interruption = Interruption(places, error("by a signal handler"))
        before = loader.state_dict()
        try:
            with interruption:
                batch = next(iterator).item()
        except error:
            after = loader.state_dict()
            assert (after["batches"], after["lanes"]) == (before["batches"], before["lanes"])
            places += 1
            continue
        assert not interruption.over, "the exception was swallowed"
        seen.append(batch)
        places = 0
    assert seen == list(range(12))
    assert next(iterator, None) is None
