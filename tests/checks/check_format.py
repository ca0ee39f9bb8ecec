# SPDX-License-Identifier: Apache-2.0
"""Compares every C and C++ source with .clang-format; --fix rewrites them instead.

Releases of clang-format differ in what they make of one .clang-format. The sources follow the one of Debian 12; any other is refused, and the
check is skipped (status 77).
"""
import argparse
import os
import re
import subprocess
import sys

from source_files import ROOT, code_files

CLANG_FORMAT = os.environ.get("CLANG_FORMAT", "clang-format")

RELEASE = 14
SKIPPED = 77  # what CTest takes for a skipped test


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fix", action="store_true", help="rewrite the files")
    fix = parser.parse_args().fix
    version = subprocess.run([CLANG_FORMAT, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    if f"version {RELEASE}." not in version:
        print(f"not compared: the sources are formatted by clang-format {RELEASE} (Debian 12), and this is {version}")
        return SKIPPED
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    run = subprocess.run([CLANG_FORMAT, "--style=file", *mode, *map(str, code_files())], cwd=ROOT, check=False,
                         stderr=subprocess.PIPE, text=True)
    faults = dict.fromkeys(match.group(1) for match in re.finditer(r"^([^\s:]+:\d+):\d+: error: code should be clang-formatted",
                                                                  run.stderr, re.MULTILINE))
    first_in_file = {place.rsplit(":", 1)[0]: place for place in reversed(faults)}
    for place in sorted(first_in_file.values()):
        print(f"{place}: not as .clang-format says; `make format` rewrites it")
    if run.returncode != 0 and not faults:
        print(run.stderr, file=sys.stderr)
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
