# SPDX-License-Identifier: Apache-2.0
"""Links static libraries of ours to one object, and makes its names of the namespace pinfeed local to it.

    isolate.py OUTPUT.o LIBRARY.a ...

What stays global: the C interface, the main functions of the programs, the messages of the protocol (pinfeed::v1, registered
once in a process), and what others' headers make, such as templates of the standard library.
"""
import pathlib
import re
import subprocess
import sys

OWN_NAME = re.compile(r"\bpinfeed::(?!v1::)")
ENTRIES = {"pinfeed::DaemonMain(int, char**)", "pinfeed::ToolMain(int, char**)"}


def defined(path, *options):
    listing = subprocess.run(["nm", "--no-sort", "--defined-only", "--extern-only", *options, path], check=True, capture_output=True, text=True).stdout
    return [line.split(maxsplit=2)[2] for line in listing.splitlines() if line]


def main():
    output, *libraries = sys.argv[1:]
    # Without section groups: the last linker would keep one object's copy of a group, and with it that object's local names.
    subprocess.run(["ld.bfd", "-r", "--force-group-allocation", "-o", output, "--whole-archive", *libraries], check=True)
    names = zip(defined(output), defined(output, "--demangle"))
    own = [name for name, meaning in names if OWN_NAME.search(meaning) and meaning not in ENTRIES]
    listed = pathlib.Path(output).with_suffix(".local")
    listed.write_text("\n".join(own) + "\n")
    subprocess.run(["objcopy", f"--localize-symbols={listed}", output], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
