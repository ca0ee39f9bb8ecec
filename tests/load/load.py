#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How much the daemon bears: many sessions, many opens, many calls, slow and silent clients, no descriptors, no memory.

In: a build of the `release` preset. Out: a line while each theme runs, then a table of what was measured; status 1 when a limit was missed. All of it goes
over Unix sockets and loopback. `tests/load/load.py --only churn --seconds 60` runs a part.
"""
import argparse
import importlib
import os
import pathlib
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
THEMES = ("sessions", "churn", "fairness", "calls", "slow", "half_open", "attacks", "descriptors", "memory")
OTHERS_MAY_HAVE = 0.25  # of the processors, for speeds to count in the short form


def say(text):
    print(f"load: {text}", flush=True)


def run_theme(name, place, row):
    """The rows of a theme; when it fails, of what held until then, and why it failed."""
    theme = importlib.import_module(name)
    say(f"{name}: {theme.__doc__.splitlines()[0]}")
    began, rows = time.monotonic(), []
    try:
        rows.extend(theme.run(place))
    except Exception as error:  # of whatever kind: the other themes are tried all the same
        traceback.print_exc()
        rows.append(row(f"{name} failed", repr(error)[:100], "", False))
    say(f"{name}: {'ok' if all(each.ok for each in rows) else 'FAILED'} after {time.monotonic() - began:.0f} s")
    return rows


def others_s():
    """Seconds of processor time that all but this process and its ended children have had since the machine started: /proc/stat, proc(5)."""
    user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def run_short(name, place, row):
    """The theme's rows; measured anew, at most twice, when nothing but speeds missed their limits. Those of a machine whose processors others had
    are shown, and are no fault: once is enough."""
    for again in (True, True, False):
        began, others = time.monotonic(), others_s()
        rows = run_theme(name, place, row)
        share = (others_s() - others) / (time.monotonic() - began) / os.cpu_count()
        missed = [each for each in rows if not each.ok]
        if not missed or not again or share > OTHERS_MAY_HAVE or not all(each.is_speed for each in missed):
            break
    for each in missed:
        if each.is_speed and share > OTHERS_MAY_HAVE:
            each.ok, each.limit = True, f"{each.limit}, missed beside others that had {share:.0%} of the processors"
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release", help="a build of the release preset")
    parser.add_argument("--seconds", type=float, default=600, help="how long feeds are opened and closed (600)")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes, with fewer of everything")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(THEMES), help="some of: " + ",".join(THEMES))
    arguments = parser.parse_args()
    unknown = set(arguments.only) - set(THEMES)
    if unknown:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; there are {', '.join(THEMES)}")

    build = arguments.build_dir.resolve()
    os.environ["PINFEED_LIBRARY"] = str(build / "client" / "libpinfeed.so")
    os.environ["PINFEED_DAEMON"] = str(build / "server" / "pinfeedd")
    folders = [str(ROOT / folder) for folder in ("client/python", "tests/load", "tests/python", "tests/python/withstand")]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(build / "tests" / "pycache")  # nothing is written beside the sources
    sys.path[:0] = folders
    from place import Place
    from rows import Row, print_table

    rows = []
    with tempfile.TemporaryDirectory(prefix="pinfeed-load-") as scratch:
        place = Place(scratch, arguments.short, 5 if arguments.short else arguments.seconds, say)
        for name in arguments.only:
            rows.extend((run_short if arguments.short else run_theme)(name, place, Row))
    print_table(rows)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
