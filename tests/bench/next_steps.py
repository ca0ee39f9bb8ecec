# SPDX-License-Identifier: Apache-2.0
"""Where the time of next() goes, for a batch that is ready: each step with all those before it, by turns.

In: open feeds. Out: lines of percentiles, in microseconds. Uses what is private in the package, so that no timer stands between two steps.
"""

import time

_READY = 4  # pf_next's PF_DEADLINE_EXCEEDED: not ready
clock = time.perf_counter_ns


def lends(maker):
    """Whether a maker for a GPU gives views of slots."""
    return hasattr(maker, "_places")


class Steps:
    """The ways to take a batch of a feed. Each returns the time until the batch can be used, and until it is given back. Threads: one."""

    def __init__(self, feed, whole):
        """`whole`: the same feed opened once more, for next() alone: the steps of the other take its batches away."""
        self._feed = feed
        self._maker = feed._maker
        self._library = feed._library
        self._whole = whole
        self._iterator = iter(whole)
        self._written = None
        next(iter(feed))  # which reads the layout
        self.ways = {"the library's call": self._call, "an owner of the slot": self._own, "tensors, a Batch": self._make, "next() of the feed": self._next}
        if hasattr(self._maker, "_write") and not lends(self._maker):
            self.ways = {"the library's call": self._call, "a kernel that writes": self._write, "memory for tensors": self._allocate, **self.ways}

    def _take(self):
        """Returns when the call began that gave a batch."""
        feed = self._feed
        while True:
            begin = clock()
            result = self._library.pf_next_info_quick(feed._handle, 0, feed._out_ref, self._maker.info_ref)
            if result == 0:
                return begin
            if result != _READY:
                raise self._library.error(result)

    def _call(self):
        begin = self._take()
        ready = clock()
        out = self._feed._out
        handle, out.value = out.value, None
        self._library.pf_batch_release_quick(handle)
        return ready - begin, clock() - begin

    def _own(self):
        begin = self._take()
        taken = self._maker.take(self._feed._out)
        ready = clock()
        del taken
        return ready - begin, clock() - begin

    def _allocate(self):
        """As `_own`, and memory for the batch, to which nothing is written."""
        begin = self._take()
        taken = self._maker.take(self._feed._out)
        tensors = self._maker._allocate(taken)
        ready = clock()
        del taken, tensors
        return ready - begin, clock() - begin

    def _write(self):
        """Into tensors that are there."""
        maker = self._maker
        begin = self._take()
        if self._written is None:
            self._written = maker.make(maker.take(self._feed._out))
            return self._write()
        out = self._feed._out
        handle, out.value = out.value, None
        result = maker._write(handle, maker._pointers, len(maker._pointers), maker._memory.stream())
        ready = clock()
        self._library.check(result)
        return ready - begin, ready - begin

    def _make(self):
        begin = self._take()
        taken = self._maker.take(self._feed._out)
        batch = self._maker.make(taken)
        ready = clock()
        del batch, taken
        return ready - begin, clock() - begin

    def _next(self):
        while True:
            before = self._whole.wait_seconds
            begin = clock()
            batch = next(self._iterator, None)
            ready = clock()
            if batch is None:
                self._iterator = iter(self._whole)
                continue
            del batch
            if self._whole.wait_seconds == before:
                return ready - begin, clock() - begin


def measure(ways, count, pause_us, after=None):
    """Returns by name two sorted lists of nanoseconds, of `count` calls of each way by turns: until the batch is usable, and with giving it back.
    `pause_us` of waiting, awake, come before each; then a batch is ready, and other things are in the caches. `after` follows each call.
    """
    times = {name: ([], []) for name in ways}
    for _ in range(count):
        for name, way in ways.items():
            until = clock() + 1000 * pause_us
            while clock() < until:
                pass
            for one, took in zip(times[name], way()):
                one.append(took)
            if after is not None:
                after()
    return {name: tuple(map(sorted, both)) for name, both in times.items()}


def quantile(times, share):
    """In microseconds."""
    return times[min(int(share * len(times)), len(times) - 1)] / 1000


def table(times):
    """Lines for people: each step's percentiles, and what it adds to the one before it."""
    width = max(map(len, times))
    lines = [f"{'up to this step':{width}}    p50 us   p99 us    adds   with the slot's return, p50"]
    before = 0.0
    for name, (usable, whole) in times.items():
        p50 = quantile(usable, 0.5)
        lines.append(f"{name:{width}}  {p50:8.2f} {quantile(usable, 0.99):8.1f} {p50 - before:+7.2f}   {quantile(whole, 0.5):8.2f}")
        before = p50
    return lines
