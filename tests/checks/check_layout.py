# SPDX-License-Identifier: Apache-2.0
"""Structure that a compiler does not see: who may include whom, licence lines, file sizes, words that must not be committed.

Prints one line a fault, "path:line: what is wrong", and fails if there is any.
"""
import pathlib
import re
import sys

from source_files import CODE, ROOT, all_files

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
IMPORT = re.compile(r"\s*from (\.\.?)(_\w+)?(?:\.\w+)? import")
# A file of the folder includes its own folder and those named here; a subfolder without a line of its own belongs to the one above it.
INCLUDABLE = {
    "common/base": "",
    "common/wire": "",
    "common/os": "common/base",
    "common/tls": "common/base",
    "common/cuda": "common/base",
    "common/spec": "common/base common/wire",
    "proto": "common/base common/os common/spec common/wire",
    "client/include": "",
    "client/kernels": "common",
    "client/copies": "common",
    "client/cli": "common",
    "client/quick": "common/base",
    "client/src/base": "common client/include",
    "client/src/link": "common proto client/include client/src/base",
    "client/src/gpu": "common client/kernels client/src/base client/src/link",
    "client/src/memory": "common client/src/link client/src/gpu",
    "client/src/decode": "common client/kernels client/src/base client/src/link client/src/gpu client/src/memory",
    "client/src/session": "common client/src/base client/src/link client/src/gpu client/src/memory client/src/decode",
    "client/src/feed": "common proto client/src/base client/src/link client/src/decode client/src/session",
    "client/src/api": "common client/include client/copies client/src",
    "client/src": "client/copies client/src",
    "server/memory": "common",
    "server/memory/gpu": "common server/memory",
    "server/storage": "common server/memory",
    "server/dataset": "common server/storage server/memory",
    "server/order": "common",
    "server/image": "common server/memory",
    "server/transform": "common server/dataset server/order server/image",
    "server/cache": "common server/storage server/dataset server/order server/image server/transform server/memory",
    "server/trace": "common server/order server/memory",
    "server/loading": "common server/dataset server/order server/image server/transform server/cache server/memory server/trace",
    "server/feed": "common server/order server/loading server/memory server/trace",
    "server/net": "common",
    "server/metrics": "common server/cache server/loading server/feed server/memory server/net",
    "server/session": "common proto server/dataset server/order server/cache server/loading server/feed server/memory server/net server/metrics",
    "server/config": "common server/dataset",
    "server/rpc": "common proto server/config server/dataset server/transform server/trace server/net server/metrics server/session",
    "server/daemon": "common server",
    "server": "common server/config server/daemon",
}
# The same for the folders of the Python package, whose modules import each other relatively.
PYTHON = "client/python/pinfeed"
IMPORTABLE = {
    "_base": "",
    "_feed": "_base",
    "_worker": "_base _feed",
    "_loader": "_base _feed _worker",
    "_copies": "_base _feed",
    "_batcher": "_base _feed",
}
# The core: what ThreadSanitizer, fuzzers and simulation reach. It knows neither the wire nor the GPU.
CORE = ("common/", "server/storage/", "server/dataset/", "server/order/", "server/image/", "server/transform/", "server/memory/",
        "server/cache/", "server/trace/", "server/loading/", "server/feed/")
OUTSIDE_CORE = ("common/cuda/", "common/tls/", "server/memory/gpu/")
CORE_FORBIDDEN = ("grpc", "google/protobuf", "pinfeed/v1/", "proto/", "cuda", "common/cuda/", "common/tls/", "nv", "openssl/")
# Files whose place at the top of `server/` is meant.
SERVER_FILES = {"server/main.cc", "server/CMakeLists.txt"}
SPDX = "SPDX-License-Identifier: Apache-2.0"
SPDX_SUFFIXES = CODE | {".py", ".sh", ".cmake", ".proto", ".toml", ".ini", ".service", ".socket", ".yaml", ".yml"}
SPDX_NAMES = {"CMakeLists.txt", "Makefile", "Dockerfile"}
LINE_LIMITS = {".cc": 400, ".c": 400, ".cu": 400, ".h": 250, ".hpp": 250, ".cuh": 250}
LIMIT_EXCUSE = "Long because:"
# Assembled, so that this file does not contain what it forbids.
LATER_WORDS = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + r"X)\b")
PRIVATE_PATHS = re.compile(r"(?<![\w.$}])/(" + "|".join(("wo" + "rk", "fa" + "rm", "ro" + "ot")) + r")/[\w.]")
# Threads start in the first. The others detach one: that hangs at storage, that hangs at another user's file, and that ends the process.
THREAD_FILE = "common/os/start_thread.h"
THREAD_FILES = (THREAD_FILE, "common/os/foreign_fds.cc", "server/daemon/abandonable_thread.cc", "client/src/base/end_with_process.cc")
BARE_THREAD = re.compile(r"\bstd::j?thread\s*[({]|\bstd::j?thread \w+[({]|pthread_setname_np|\.detach\(\)")
DISABLED_CODE = re.compile(r"^\s*#\s*if\s+0\b")


def folder_of(path):
    """The deepest folder of INCLUDABLE that holds `path`; None for others, such as tests."""
    for parent in pathlib.PurePosixPath(path).parents:
        if str(parent) in INCLUDABLE:
            return str(parent)
    return None


def include_faults(path, line):
    """The faults of one line of a C or C++ file as messages."""
    match = INCLUDE.match(line)
    if not match:
        return
    target = match.group(1)
    here, there = folder_of(path), folder_of(target)
    if here and target.startswith("server/") and not there:
        yield f"{target} is in no folder that INCLUDABLE of check_layout.py knows"
    allowed = INCLUDABLE.get(here, "").split()
    if here and there and there != here and not any(there == name or there.startswith(name + "/") for name in allowed):
        yield f"{here}/ must not include {target}: INCLUDABLE of check_layout.py names what it may"
    elif path.startswith("server/") and target.startswith("pinfeed/pinfeed."):
        yield f"server/ must not include {target}"
    elif path.startswith(CORE) and not path.startswith(OUTSIDE_CORE) and target.startswith(CORE_FORBIDDEN):
        yield f"the core must not include {target} (gRPC, protobuf, OpenSSL and CUDA stay outside it)"
    if target.startswith("../") or "/../" in target:
        yield f"include {target} from the top of the tree"


def import_faults(path, line):
    """The faults of one line of a module of the Python package as messages."""
    match = IMPORT.match(line)
    here = pathlib.PurePosixPath(path).parent
    if not match or str(here.parent) != PYTHON or match[1] == ".":
        return
    there = match[2]
    if there and there not in IMPORTABLE.get(here.name, "").split():
        yield f"{here.name}/ must not import from {there}/: IMPORTABLE of check_layout.py names what it may"


def file_faults(path, text):
    """Yields (line number, message) for every fault of one file; `path` is relative and has forward slashes."""
    name = pathlib.PurePosixPath(path)
    lines = text.splitlines()
    if name.suffix in SPDX_SUFFIXES or name.name in SPDX_NAMES or lines[:1] and lines[0].startswith("#!"):
        if not any(SPDX in line for line in lines[:2]):
            yield 1, f"the first line (the second after #!) must say {SPDX}"
    if str(name.parent) == "server" and path not in SERVER_FILES:
        yield 1, "belongs into a folder of server/"
    limit = LINE_LIMITS.get(name.suffix)
    if limit and len(lines) > limit and LIMIT_EXCUSE not in text:
        yield limit, f'{len(lines)} lines where {limit} are the limit: split it, or write a comment line "{LIMIT_EXCUSE} ..."'
    for number, line in enumerate(lines, 1):
        if LATER_WORDS.search(line):
            yield number, "work left for later is an issue, not a comment"
        if PRIVATE_PATHS.search(line):
            yield number, "an absolute path of somebody's machine"
        if name.suffix == ".py":
            for message in import_faults(path, line):
                yield number, message
        if name.suffix in CODE:
            if folder_of(path) and path not in THREAD_FILES and BARE_THREAD.search(line):
                yield number, f"start threads by {THREAD_FILE}, which names them; none is detached"
            if DISABLED_CODE.match(line):
                yield number, "disabled code: delete it"
            for message in include_faults(path, line):
                yield number, message


def main():
    faults = 0
    for path in all_files():
        if path.name == "LICENSE":
            continue
        data = (ROOT / path).read_bytes()
        if b"\0" in data:
            continue  # pictures, fuzz corpora
        for number, message in file_faults(path.as_posix(), data.decode("utf-8", "replace")):
            print(f"{path}:{number}: {message}")
            faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
