# SPDX-License-Identifier: Apache-2.0
"""clang-tidy, and with it clang's thread-safety check, over every file of ours that a build compiles. Every finding is an error.

In: a build directory with compile_commands.json, built with ninja (which knows what each object included). Out: findings on the terminal; exit 1
if there is any. A file that passed is not looked at again until its command, it, something it includes, .clang-tidy or clang-tidy changes: the
hash of all these is kept in <build>/tidy-cache.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

from source_files import ROOT, code_files

CLANG_TIDY = os.environ.get("CLANG_TIDY", "clang-tidy")
HEADERS = f"^{ROOT}/(common|proto|server|client|tests)/.*"
EXTRA = ["--extra-arg=-Wthread-safety", "--extra-arg=-Wno-unknown-warning-option"]


class Digests:
    """Content hashes of files, each read once."""

    def __init__(self):
        self._known = {}

    def of(self, path):
        if path not in self._known:
            try:
                self._known[path] = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
            except OSError:
                self._known[path] = None
        return self._known[path]


def our_commands(build):
    """The compile commands of tracked files; generated and third-party code is not ours to mend."""
    ours = {str(ROOT / path) for path in code_files()}
    seen = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"] in ours and entry["file"] not in seen:
            seen.add(entry["file"])
            yield entry


def dependencies(build):
    """What ninja recorded: object file -> the files its compilation read, as absolute paths."""
    listing = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], check=True, capture_output=True, text=True).stdout
    found, current = {}, None
    for line in listing.splitlines():
        if line.startswith("    "):
            current.append(os.path.normpath(build / line.strip()))
        elif ": #deps" in line:
            current = found.setdefault(line.split(": #deps")[0], []) if "(VALID)" in line else []
    return found


def object_of(entry):
    words = shlex.split(entry["command"])
    return words[words.index("-o") + 1] if "-o" in words else None


def cache_key(entry, read_files, configuration, digests):
    """A name for exactly this check, or None when it is not known what the file includes."""
    if not read_files:
        return None
    parts = [configuration, entry["command"], digests.of(entry["file"])]
    for path in sorted(set(read_files)):
        digest = digests.of(path)
        if digest is None:
            return None
        parts.append(f"{path} {digest}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def check(entry, build):
    started = time.monotonic()
    run = subprocess.run([CLANG_TIDY, "--quiet", "-p", str(build), f"--header-filter={HEADERS}", *EXTRA, entry["file"]],
                         capture_output=True, text=True, check=False)
    # stderr holds only counts of suppressed warnings, unless clang-tidy itself fails.
    text = run.stdout + (run.stderr if run.returncode and not run.stdout else "")
    return run.returncode == 0, text, time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="a build directory")
    parser.add_argument("files", nargs="*", help="only files whose path holds one of these words")
    parser.add_argument("-j", type=int, default=os.cpu_count(), dest="jobs")
    arguments = parser.parse_intermixed_args()
    build = arguments.build.resolve()
    cache = build / "tidy-cache"
    cache.mkdir(exist_ok=True)

    digests = Digests()
    version = subprocess.run([CLANG_TIDY, "--version"], check=True, capture_output=True, text=True).stdout
    configurations = "".join(f"{path} {digests.of(path)}" for path in sorted(ROOT.rglob(".clang-tidy")))
    configuration = "\n".join([version, configurations, *EXTRA])
    read_files = dependencies(build)

    waiting = []
    for entry in our_commands(build):
        if arguments.files and not any(word in entry["file"] for word in arguments.files):
            continue
        key = cache_key(entry, read_files.get(object_of(entry)), configuration, digests)
        if key is None or not (cache / key).exists():
            waiting.append((key, entry))
    failed, seconds = 0, 0.0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        running = {pool.submit(check, entry, build): (key, entry) for key, entry in waiting}
        for done in concurrent.futures.as_completed(running):
            key, entry = running[done]
            passed, text, took = done.result()
            seconds += took
            if passed and key is not None:
                (cache / key).touch()
            if not passed:
                failed += 1
                print(text, flush=True)
            name = os.path.relpath(entry["file"], ROOT)
            print(f"{'ok    ' if passed else 'FAILED'} {took:5.1f} s {name}", flush=True)
    print(f"clang-tidy: {len(waiting) - failed} passed, {failed} failed, {seconds:.0f} s of processor time; "
          "files that had passed before were left out")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
