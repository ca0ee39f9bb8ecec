# SPDX-License-Identifier: Apache-2.0
"""After all that the tests before did to one daemon, it holds what it held at the start. It is the last file of its pytest run."""

from hardship import await_census, census, eventually


def test_everything_came_back(host):
    await_census(host, host.at_start)
    # gRPC ends its spare threads after a while, but keeps one or two that poll, as it happens; ours are all there.
    eventually(lambda: f"{census(host)} threads, at the start {host.at_start}", lambda: census(host).threads <= host.at_start.threads + 1)
    now = census(host)
    print("at the start:", host.at_start, "\nnow:         ", now)
    # The C library's heaps of threads that ended stay, as do threads' cached stacks: a few maps, not one for each client.
    assert now.maps <= host.at_start.maps + 40
