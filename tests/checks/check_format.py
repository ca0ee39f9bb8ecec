# SPDX-License-Identifier: Apache-2.0
"""Compares every C and C++ source with .clang-format; --fix rewrites them instead."""
import argparse
import os
import re
import subprocess
import sys

from source_files import ROOT, code_files

CLANG_FORMAT = os.environ.get("CLANG_FORMAT", "clang-format-14")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="rewrite the files")
    fix = parser.parse_args().fix
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
