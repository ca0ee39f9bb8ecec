# SPDX-License-Identifier: Apache-2.0
"""Compares every C and C++ source with .clang-format; --fix rewrites them instead."""
import argparse
import os
import subprocess
import sys

from source_files import ROOT, code_files

CLANG_FORMAT = os.environ.get("CLANG_FORMAT", "clang-format-14")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="rewrite the files")
    mode = ["-i"] if parser.parse_args().fix else ["--dry-run", "-Werror"]
    return subprocess.run([CLANG_FORMAT, "--style=file", *mode, *map(str, code_files())], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
