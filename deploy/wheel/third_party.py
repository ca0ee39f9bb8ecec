# SPDX-License-Identifier: Apache-2.0
"""Lists the third-party code in the wheel's library, with versions and licences.

    third_party.py BUILD_FOLDER DEPS_FOLDER > THIRD_PARTY

In: the library's link map and the headers that ninja recorded; Debian's package database; the prefix and lists of
dependencies.sh. Out: the list. On stderr, with status 1: a file that no package holds, and a library of ours that was
linked outside its isolated object. With --packages it prints the binary packages instead, "PACKAGE VERSION" lines.
"""
import pathlib
import re
import subprocess
import sys

# They hold no code for the result: the C library and the kernel stay outside it, and libgcc's exceptions are the system's.
OUTSIDE = {"libc6-dev", "linux-libc-dev", "libgcc-12-dev"}
OWN_LIBRARY = re.compile(r"libpinfeed_(?!proto_generated|kernels)\w+\.a$")
CUDA = re.compile(r"/cuda[\w.-]*(/|\.h$)|/crt/")  # the toolkit's declarations, of which no code comes


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def used_files(build):
    """The archives that the library was linked from, and the headers that its objects were compiled from."""
    link_map = (build / "deploy/wheel/libpinfeed.link").read_text()
    archives = set(re.findall(r"(/?[\w./+-]+\.a)\(", link_map))
    headers = {line.strip() for line in output("ninja", "-C", str(build), "-t", "deps").splitlines() if line.startswith("    /")}
    return {str((build / name).resolve()) for name in archives | headers}


def packages_of(paths):
    """{package: version} of Debian's packages that hold the files, and a list of the files that none holds."""
    answer = subprocess.run(["dpkg-query", "-S", *paths], check=False, capture_output=True, text=True).stdout  # 1: not all are known
    holders = {name: holder.split(":")[0] for holder, _, name in (line.rpartition(": ") for line in answer.splitlines())}
    names = {holder for holder in holders.values()} - OUTSIDE
    form = "${Package} ${Version}\n"
    return dict(line.split() for line in output("dpkg-query", "-W", "-f", form, *sorted(names)).splitlines()), set(paths) - set(holders)


def main():
    build, deps = (pathlib.Path(name).resolve() for name in sys.argv[-2:])
    files = {name for name in used_files(build) if not name.startswith(str(deps))}
    source = pathlib.Path(__file__).resolve().parents[2]
    faults = sorted(name for name in files if OWN_LIBRARY.search(name))
    files = {name for name in files if not name.startswith(str(source))}
    packages, unknown = packages_of(sorted(files))
    faults += sorted(name for name in unknown if not CUDA.search(name))
    for name in faults:
        print(f"third_party: {name} is in the library, but no package and no isolated object accounts for it", file=sys.stderr)
    if sys.argv[1] == "--packages":
        print("\n".join(f"{name} {version}" for name, version in sorted(packages.items())))
        return 1 if faults else 0
    built = dict(line.split() for line in (deps / "sources").read_text().splitlines())
    parts = {f"{name} {version}": (deps / "licences" / name) for name, version in built.items()}
    parts |= {f"{name} {version}": pathlib.Path("/usr/share/doc") / name / "copyright" for name, version in packages.items()}
    print("Code of others in this package, by Debian's names: sources built by deploy/wheel/dependencies.sh, and packages of Debian 12.")
    print("The text of the Apache License 2.0, which some of them refer to, is the LICENSE beside this package's metadata.\n")
    print("\n".join(f"  {title}" for title in sorted(parts)))
    for title, licence in sorted(parts.items()):
        print(f"\n{'=' * 78}\n{title}\n{'=' * 78}\n\n{licence.read_text(encoding='utf-8', errors='replace').strip()}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
