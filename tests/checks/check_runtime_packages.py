# SPDX-License-Identifier: Apache-2.0
"""What the built programs load must be what `deploy/install-deps run` installs. In: that script, the programs. Debian only."""
import os
import re
import subprocess
import sys

# Every Debian system has these, or gets them with any C++ library.
ALWAYS_THERE = {"libc6", "libgcc-s1", "libstdc++6"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(program):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", program))


def packages_of(paths):
    """{path: package}, by one question: each costs a reading of the whole database, which knows a file by the name it was installed
    under, which may lack or have /usr."""
    names = {}
    for path in paths:
        real = os.path.realpath(path)
        names[path] = [path, real, real.removeprefix("/usr"), "/usr" + path]
    question = sorted({name for each in names.values() for name in each})
    answer = subprocess.run(["dpkg-query", "-S", *question], check=False, capture_output=True, text=True).stdout  # 1: not all are known
    holders = {name: holder.split(":")[0] for holder, _, name in (line.rpartition(": ") for line in answer.splitlines())}
    return {path: next((holders[name] for name in each if name in holders), None) for path, each in names.items()}


def main():
    installer, *programs = sys.argv[1:]
    own = {os.path.basename(os.path.realpath(program)).split(".so")[0] for program in programs}
    listed = set(output(installer, "--list", "run").split())
    places = dict(re.findall(r"^\s+(\S+) \(.*x86-64.*\) => (\S+)$", output("/sbin/ldconfig", "-p"), flags=re.MULTILINE))
    loads = {program: needed(program) for program in programs}
    packages = packages_of({places[library] for libraries in loads.values() for library in libraries if library in places})
    used, faults = set(), 0
    for program, libraries in loads.items():
        for library in libraries:
            if library.split(".so")[0] in own:
                continue
            package = packages.get(places.get(library))
            if package is None:
                print(f"{program}: loads {library}, which no installed package holds")
                faults += 1
            elif package not in ALWAYS_THERE:
                used.add(package)
                if package not in listed:
                    print(f"{program}: loads {library} of {package}, which 'install-deps run' does not name")
                    faults += 1
    for package in sorted(listed - used):
        print(f"install-deps: the set 'run' names {package}, which nothing loads")
    return 1 if faults or listed - used else 0


if __name__ == "__main__":
    sys.exit(main())
