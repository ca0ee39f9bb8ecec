# SPDX-License-Identifier: Apache-2.0
"""After all that the tests before did to one daemon, it holds what it held at the start. It is the last file of its pytest run."""

import os

from hardship import READERS, await_census, census, eventually, readers

CPUS = os.cpu_count() or 1
# The pools of gRPC 1.51, by the 15 letters that the kernel keeps of a thread's name, and how large each may be at rest. The synchronous
# server waits for calls with one thread or two (its defaults of MIN_POLLERS and MAX_POLLERS), as the last calls left it; an executor
# that was busy once keeps up to two threads for each CPU; the event engine keeps one for each CPU, at least 2, and one that works; another thread
# watches timers while one runs what is due.
GRPC_POOLS = {"grpcpp_sync_ser": 2, "default-executo": 2 * CPUS, "resolver-execut": 2 * CPUS, "event_engine": max(2, CPUS) + 1, "grpc_global_tim": 1 + CPUS}


def same_threads(now, then):
    """Every thread is back, by name, but for how many there are in gRPC's pools, and for the readers: none, or one of each."""
    fit = all(1 <= now.get(name, 0) <= at_most for name, at_most in GRPC_POOLS.items()) and readers(now) in (0, len(READERS))
    others = [{name: count for name, count in threads.items() if name not in READERS} for threads in (now, then)]
    return fit and {**others[0], **GRPC_POOLS} == {**others[1], **GRPC_POOLS}


def test_everything_came_back(host):
    await_census(host, host.at_start)
    eventually(lambda: f"{census(host)}, at the start {host.at_start}", lambda: same_threads(census(host).threads, host.at_start.threads))
    now = census(host)
    print("at the start:", host.at_start, "\nnow:         ", now)
    # The C library's heaps of threads that ended stay, as do threads' cached stacks: a few maps, not one for each client.
    assert now.maps <= host.at_start.maps + 40
