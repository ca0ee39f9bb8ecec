# SPDX-License-Identifier: Apache-2.0
"""Equal feeds that want more than the workers can do get equal shares."""

import contextlib
import time

from clients import Trainers
from place import IMAGES, nothing_left
from rows import at_least, holds


def jain(shares):
    """The fairness index of R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination (DEC-TR-301, 1984): 1 when all
    are equal, 1/n when one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def run(place):
    feeds, processes, seconds = (12, 4, 4) if place.short else (50, 10, 60)
    with place.daemon("--pool-bytes", "1GiB", "--dataset-cache", "0") as daemon:
        with contextlib.ExitStack() as stack:
            houses = [stack.enter_context(Trainers(daemon, place.images, feeds=feeds // processes, samples=IMAGES, crop=96)) for _ in range(processes)]
            for house in houses:
                house.await_open()
            while any(batches == 0 for house in houses for batches, _ in house.tell()):
                time.sleep(0.05)
            before = [batches for house in houses for batches, _ in house.tell()]
            time.sleep(seconds)  # what is measured
            shares = [batches - had for had, (batches, _) in zip(before, (each for house in houses for each in house.tell()))]
        yield at_least(f"Jain's index of {feeds} equal feeds of images on 2 workers", jain(shares), 0.95, "", 3)
        yield holds(f"  batches of 8 in {seconds} s: least, mean, most", f"{min(shares)}, {sum(shares) / feeds:.0f}, {max(shares)}")
        yield nothing_left(daemon, f"{feeds} feeds")
