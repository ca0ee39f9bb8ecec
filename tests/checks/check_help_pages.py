# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completion against the programs: every command and long flag of --help is in them, and man finds nothing to say.

    tests/checks/check_help_pages.py PINFEED PINFEEDD FOLDER_OF_THE_PAGES
"""
import os
import pathlib
import re
import subprocess
import sys

# What bash offers for the words of a command line, of which the last is begun.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_pinfeed
printf '%s\\n' "${COMPREPLY[@]}"
"""


def output(*command, **environment):
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})


def flags_of(*program):
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", "\n".join(re.findall(r"^  -.*", output(*program, "--help").stdout, re.M))))


def main():
    tool, daemon, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    commands = re.findall(r"^  (\w+) ", output(tool, "--help").stdout.split("Subcommands:")[1], re.M)
    assert "status" in commands and "bench" in commands

    def pages(name):
        shown = output("man", "--warnings", "--local-file", str(folder / name), MANWIDTH="200", MAN_KEEP_FORMATTING="", LC_ALL="C.UTF-8", MANROFFOPT="")
        assert not shown.stderr, shown.stderr
        return shown.stdout

    def offered(*words):
        return set(output("bash", "-c", COMPLETE, "bash", str(folder / "pinfeed.bash"), *words).stdout.split())

    page = pages("pinfeed.1")
    assert flags_of(tool) | {"--address"} <= set(re.findall(r"--[a-z-]+", page))
    assert set(commands) <= offered("pinfeed", "")
    assert offered("pinfeed", "--ad") == {"--address"}
    for command in commands:
        flags = flags_of(tool, command)
        assert "--help" in flags and f"pinfeed {command}" in page
        assert flags - {"--help"} <= set(re.findall(r"--[a-z-]+", page.split(f"pinfeed {command} ")[1].split("\n   pinfeed ")[0])), command
        assert flags | {"--address"} <= offered("pinfeed", "--address", "here", command, "--"), command
        assert offered("pinfeed", command[:-1]) == {command}
    assert flags_of(daemon) <= set(re.findall(r"--[a-z-]+", pages("pinfeedd.8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
