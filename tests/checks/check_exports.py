# SPDX-License-Identifier: Apache-2.0
"""The shared library exports the functions that its C header declares, and nothing else: whatever else it exported would clash in the host program.

    check_exports.py LIBRARY HEADER [OTHER_NAME ...]
"""
import pathlib
import re
import subprocess
import sys


def exported(library):
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    symbols = (line.split()[1:] for line in listing.splitlines())
    return {name.split("@")[0] for kind, name in symbols if kind != "A"}  # A: the names of symbol versions


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", pathlib.Path(header).read_text(), flags=re.DOTALL)
    return set(re.findall(r"^[^#\n]*?\b(pf_\w+)\s*\([^*]", text, flags=re.MULTILINE))


def main():
    library, header, *others = sys.argv[1:]
    inside, promised = exported(library), declared(header) | set(others)
    for name in sorted(inside - promised):
        print(f"{library}: exports {name}, which {header} does not declare")
    for name in sorted(promised - inside):
        print(f"{library}: lacks {name}, which {header} declares")
    if not promised:
        print(f"{header}: no declaration found")
    return 0 if promised and inside == promised else 1


if __name__ == "__main__":
    sys.exit(main())
