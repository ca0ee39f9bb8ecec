# SPDX-License-Identifier: Apache-2.0
"""The structure check must find each fault it is there for, and nothing in a clean file."""
import sys
import unittest

from check_layout import IMPORTABLE, INCLUDABLE, LIMIT_EXCUSE, PYTHON, ROOT, file_faults

LICENSED = "// SPDX-License-Identifier: Apache-2.0\n"


def messages(path, text):
    return [message for _, message in file_faults(path, text)]


class FileFaultsTest(unittest.TestCase):
    def test_clean_file(self):
        self.assertEqual(messages("server/session/a.cc", LICENSED + '#include "common/base/status.h"\n#include <grpcpp/grpcpp.h>\n'), [])
        self.assertEqual(messages("deploy/run", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"), [])

    def test_includes_against_the_direction(self):
        for path, target in [("server/feed/a.cc", "client/src/feed/b.h"), ("client/src/feed/a.cc", "server/feed/b.h"), ("common/os/a.h", "proto/convert.h"),
                             ("common/os/a.h", "server/feed/b.h"), ("proto/a.cc", "client/src/feed/b.h"), ("common/os/a.h", "../server/b.h"),
                             ("common/base/a.h", "common/os/b.h"), ("server/loading/a.h", "server/feed/b.h"), ("server/feed/a.h", "server/b.h"),
                             ("server/loading/a.cc", "grpcpp/grpcpp.h"), ("server/dataset/a.cc", "pinfeed/v1/feeder.pb.h"),
                             ("server/memory/a.cc", "cuda_runtime.h"), ("common/os/a.cc", "google/protobuf/message.h"),
                             ("server/memory/a.cc", "common/cuda/stream.h"),
                             ("client/src/session/a.cc", "client/src/feed/b.h"), ("client/src/a.h", "client/cli/b.h")]:
            with self.subTest(path=path, target=target):
                self.assertEqual(len(messages(path, f'{LICENSED}#include "{target}"\n')), 1)
                self.assertEqual(len(messages(path, f"{LICENSED}  #  include <{target}>\n")), 1)

    def test_cuda_files_may_use_cuda(self):
        self.assertEqual(messages("server/memory/gpu/cuda_arena.cc", LICENSED + "#include <cuda_runtime.h>\n"), [])

    def test_no_folder_includes_one_that_includes_it(self):
        folders = list(INCLUDABLE)
        for index, folder in enumerate(folders):
            for name in INCLUDABLE[folder].split():
                with self.subTest(folder=folder, includes=name):
                    self.assertTrue(name in ("common", "client/src", "server") or name in folders[:index])

    def test_imports_against_the_direction(self):
        licensed = "# SPDX-License-Identifier: Apache-2.0\n"
        for module, line, faults in [("_feed/a.py", "from .._loader.share import Share", 1), ("_feed/a.py", "    from .._loader import share", 1),
                                     ("_new/a.py", "from .._base import abi", 1), ("_loader/a.py", "from .._feed.open import open_spec", 0),
                                     ("_feed/a.py", "from ..transforms import Pad", 0), ("_feed/a.py", "from .open import open_spec", 0),
                                     ("__init__.py", "from ._loader.share import Share", 0)]:
            with self.subTest(module=module, line=line):
                self.assertEqual(len(messages(f"{PYTHON}/{module}", f"{licensed}{line}\n")), faults)
        self.assertEqual({path.parent.name for path in (ROOT / PYTHON).glob("*/__init__.py")}, set(IMPORTABLE))

    def test_loose_files_of_the_server(self):
        self.assertEqual(len(messages("server/extra.h", LICENSED)), 1)
        self.assertEqual(messages("server/main.cc", LICENSED), [])

    def test_threads_start_in_one_place(self):
        for line in ("std::thread thread([] {});", "thread_ = std::thread([] {});", "::pthread_setname_np(t, name);", "thread.detach();"):
            with self.subTest(line=line):
                self.assertEqual(len(messages("server/net/a.cc", f"{LICENSED}{line}\n")), 1)
        self.assertEqual(messages("server/net/a.cc", LICENSED + "std::thread thread_;\n"), [])

    def test_missing_licence_line(self):
        for path, text in [("a.cc", "int x;\n"), ("CMakeLists.txt", "project(x)\n"), ("deploy/run", "#!/bin/sh\n"), ("a.py", "")]:
            with self.subTest(path=path):
                self.assertEqual(len(messages(path, text)), 1)

    def test_long_files_need_an_excuse(self):
        body = "int x;\n" * 300
        self.assertEqual(len(messages("common/a.h", LICENSED + body)), 1)
        self.assertEqual(messages("common/a.h", f"{LICENSED}// {LIMIT_EXCUSE} one table.\n{body}"), [])
        self.assertEqual(messages("common/a.cc", LICENSED + body), [])

    def test_words_and_paths(self):
        for line in ["// TO" + "DO: later", "# FIX" + "ME", "see /wo" + "rk/notes", 'open("/ro' + 'ot/.cache/x")', "#if " + "0"]:
            with self.subTest(line=line):
                self.assertEqual(len(messages("common/a.cc", f"{LICENSED}{line}\n")), 1)
        self.assertEqual(messages("common/a.cc", LICENSED + "// work/ and $HOME/wo" + "rk/x and a/wo" + "rk/b are no such paths\n"), [])


if __name__ == "__main__":
    sys.exit(unittest.main())
