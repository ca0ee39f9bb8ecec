# SPDX-License-Identifier: Apache-2.0
"""Batchers of arrays for the tests, with a model on a thread that answers."""

import contextlib
import threading

import numpy as np

import pinfeed

ARRAY = ("float32", (3,))
TIMEOUT = 60


def array(value):
    return np.full(3, value, np.float32)


class Model(threading.Thread):
    """Answers the requests of each batch with what `answers` makes of their inputs, until the batcher is closed."""

    def __init__(self, batcher, answers):
        super().__init__()
        self.batcher, self.answers = batcher, answers
        self.start()

    def run(self):
        with contextlib.suppress(pinfeed.Error):  # it was closed
            for batch in self.batcher:
                batch.answer(self.answers(batch.inputs))


@contextlib.contextmanager
def serving(answers, **defaults):
    """Yields a function that opens batchers, with a model unless `model=False`. Closes them all."""
    opened = []

    def make(name, model=True, input=ARRAY, **options):
        batcher = pinfeed.Batcher(name, input=input, framework="numpy", **{**defaults, **options})
        opened.append((batcher, Model(batcher, answers) if model else None))
        return batcher

    yield make
    for batcher, model in opened:
        batcher.close()
        if model is not None:
            model.join(TIMEOUT)
            assert not model.is_alive()
    opened.clear()
