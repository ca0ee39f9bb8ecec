# SPDX-License-Identifier: Apache-2.0
"""Debian packages and a tarball of the build, looked at by lintian and by use: the tarball is unpacked somewhere and works from there.

    tests/checks/check_packages.py CPACK BUILD_FOLDER
"""
import os
import pathlib
import sys
import tarfile
import tempfile

from check_install import run, use_tree

PACKAGES = {"pinfeed", "libpinfeed0", "libpinfeed-dev", "python3-pinfeed"}


def check_overrides(folder):
    """Every override is there for a reason, written above it."""
    for file in folder.glob("*/lintian-overrides"):
        before = ""
        for line in file.read_text().splitlines()[1:]:
            if not line.startswith("#") and not before.startswith("#"):
                sys.exit(f"{file}: {line}: no comment above says why")
            before = line


def main():
    cpack, build = sys.argv[1:]
    root = pathlib.Path(__file__).resolve().parents[2]
    check_overrides(root / "deploy" / "debian")
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "made"
        run(cpack, "--config", pathlib.Path(build) / "CPackConfig.cmake", "-B", made)
        packages = sorted(made.glob("*.deb"))
        names = {path.name.split("_")[0] for path in packages}
        if names != PACKAGES:
            sys.exit(f"these packages were made: {sorted(names)}, not {sorted(PACKAGES)}")
        root_only = ["--allow-root"] if os.geteuid() == 0 else []
        said = run("lintian", "--no-cfg", *root_only, "--fail-on", "error,warning", "--info", *packages)
        if "unused-override" in said or "mismatched-override" in said:
            sys.exit(said)
        (archive,) = made.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(pathlib.Path(folder) / "somewhere")
        (tree,) = (pathlib.Path(folder) / "somewhere").iterdir()
        use_tree(tree)
    return 0


if __name__ == "__main__":
    sys.exit(main())
