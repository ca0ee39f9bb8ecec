# SPDX-License-Identifier: Apache-2.0
"""Tells from the daemon's side which batches came through a feed that producers fill."""

import contextlib
import re

import pinfeed


class Produced:
    """What the daemon did while a `with produced_by(daemon)` ran: `batches` of feeds with producers, and `feeds`, their number."""

    batches = 0
    feeds = 0


@contextlib.contextmanager
def produced_by(daemon):
    """Counts complete epochs exactly: producers make no batch beyond the last one. Of an epoch that is left early, also those made ahead."""
    before, place = _totals(daemon), len(daemon.log())
    result = Produced()
    yield result
    after = _totals(daemon)
    result.feeds, result.batches = (new - old for new, old in zip(after, before))
    log = daemon.log()[place:]
    opened = dict(re.findall(r"session (\d+) .*: opened on feed (\d+),", log))
    produced = {opened[session] for session in re.findall(r"session (\d+) .*: a producer attached", log)}
    assert len(produced) == result.feeds, "a feed without producers"


def _totals(daemon):
    status = pinfeed.status(daemon.address)
    return int(status["feeds_opened"]), int(status["batches"])
