# SPDX-License-Identifier: Apache-2.0
"""deploy/wheel/isolate.py: programs that use one name for different things share a library, and still share what must be once."""

import ctypes
import pathlib
import subprocess
import sys

ISOLATE = pathlib.Path(__file__).parents[2] / "deploy" / "wheel" / "isolate.py"
# What both have in common: a type of one name that differs, others' templates, and a message of the protocol.
COMMON = """
#include <memory>
#include <vector>
namespace others {
template <typename T> int Calls() { static int calls = 0; return ++calls; }
}
namespace pinfeed {
namespace v1 { struct Message { virtual ~Message() = default; virtual int Id() { return 7; } }; }
struct Feed { virtual ~Feed(); virtual int Size(); char bytes[SIZE]; };
Feed::~Feed() = default;
int Feed::Size() { return SIZE; }
int Answer(int what) {
  std::vector<std::unique_ptr<Feed>> feeds;
  feeds.push_back(std::make_unique<Feed>());
  if (what == 0) return feeds.back()->Size() + v1::Message().Id();
  return what == 1 ? others::Calls<Feed>() : others::Calls<v1::Message>();
}
}
"""
CLIENT = COMMON + 'extern "C" int pf_answer(int what) { return pinfeed::Answer(what); }'
DAEMON = COMMON + "namespace pinfeed { int DaemonMain(int what, char**) { return Answer(what); } }"
ENTRY = """
namespace pinfeed { int DaemonMain(int, char**); }
extern "C" int pf_answer(int);
extern "C" [[gnu::visibility("default")]] int client(int what) { return pf_answer(what); }
extern "C" [[gnu::visibility("default")]] int daemon_(int what) { return pinfeed::DaemonMain(what, nullptr); }
"""


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, timeout=120).stdout


def compiled(folder, name, code, *options):
    (folder / f"{name}.cc").write_text(code)
    run("g++", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", *options, "-c", folder / f"{name}.cc", "-o", folder / f"{name}.o")
    return folder / f"{name}.o"


def isolated(folder, name, code, size):
    run("ar", "rcs", folder / f"lib{name}.a", compiled(folder, name, code, f"-DSIZE={size}"))
    run(sys.executable, ISOLATE, folder / f"only_{name}.o", folder / f"lib{name}.a")
    return folder / f"only_{name}.o"


def test_names_of_one_program_do_not_reach_another(tmp_path):
    objects = [isolated(tmp_path, "client", CLIENT, 16), isolated(tmp_path, "daemon", DAEMON, 400)]
    library = tmp_path / "library.so"
    run("g++", "-shared", "-Wl,--gc-sections,--no-undefined", "-o", library, compiled(tmp_path, "entry", ENTRY), *objects)
    loaded = ctypes.CDLL(str(library))
    assert [loaded.client(0), loaded.daemon_(0)] == [16 + 7, 400 + 7]
    assert [loaded.client(1), loaded.daemon_(1)] == [1, 1], "a template of others' over a type of one's own is one's own"
    assert [loaded.client(2), loaded.daemon_(2)] == [1, 2], "what is made of the protocol's messages is shared"
    names = run("nm", "--demangle", "--defined-only", "--extern-only", *objects)
    assert "pf_answer" in names and "pinfeed::DaemonMain(int, char**)" in names and "pinfeed::v1::Message" in names
    assert not [line for line in names.splitlines() if "pinfeed::Feed" in line or "pinfeed::Answer" in line]
