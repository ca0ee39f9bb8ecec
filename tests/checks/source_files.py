# SPDX-License-Identifier: Apache-2.0
"""What belongs to the project: the files git tracks or would track; without git (a source archive), the files that are there."""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = {".c", ".cc", ".cu", ".cuh", ".h", ".hpp"}
SKIPPED_FOLDERS = {"build", ".git", ".cache", "__pycache__", ".pytest_cache", ".hypothesis"}


def all_files():
    """Every regular file of the project, as paths relative to ROOT, sorted."""
    if (ROOT / ".git").exists():
        listing = subprocess.run(
            ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True).stdout
        found = [pathlib.Path(name.decode()) for name in listing.split(b"\0") if name]
    else:
        found = [path.relative_to(ROOT) for path in ROOT.rglob("*")
                 if not SKIPPED_FOLDERS.intersection(path.relative_to(ROOT).parts)]
    return sorted(path for path in set(found) if (ROOT / path).is_file() and not (ROOT / path).is_symlink())


def code_files():
    """The C, C++ and CUDA files."""
    return [path for path in all_files() if path.suffix in CODE]
