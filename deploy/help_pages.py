# SPDX-License-Identifier: Apache-2.0
"""Manual pages and bash completion from what the programs say of themselves.

    deploy/help_pages.py PINFEED PINFEEDD FOLDER

What goes out: FOLDER/pinfeed.1, pinfeedd.8 and pinfeed.bash.
"""
import pathlib
import re
import subprocess
import sys
from typing import Dict, List, NamedTuple, Tuple

FILES = {
    "pinfeed": [("/run/pinfeed/pinfeed.sock", "The socket of the service, used when neither --address nor $PINFEED_ADDRESS names another.")],
    "pinfeedd": [
        ("/etc/pinfeed/pinfeed.toml", "The settings of the service."),
        ("/run/pinfeed", "The sockets of the service."),
    ],
}
SIGNALS = [
    ("SIGTERM, SIGINT", "Drain: publish what is begun, wait for clients to leave, end. A second one ends at once."),
    ("SIGHUP", "Load the configuration again, all of it or nothing. The log says what changed, and what waits for a restart."),
]


class Help(NamedTuple):
    """One --help of CLI11's: text before the options, the usage, (names, text) by section, text behind them."""

    about: List[str]
    usage: str
    sections: Dict[str, List[Tuple[str, str]]]
    footer: List[str]


def read_help(command: List[str]) -> Help:
    text = subprocess.run([*command, "--help"], check=True, capture_output=True, text=True).stdout
    about: List[str] = []
    usage = ""
    sections: Dict[str, List[Tuple[str, str]]] = {}
    footer: List[str] = []
    section = None
    for line in text.splitlines():
        if line.startswith("Usage: "):
            usage = line[len("Usage: ") :]
        elif re.fullmatch(r"\w+:", line):
            section = sections.setdefault(line[:-1], [])
        elif section is None:
            about += [line] if line else []
        elif line.startswith("  ") and line[2] != " ":
            names, _, said = line.strip().partition("  ")
            section.append((names, said.strip()))
        elif line.startswith("  "):
            names, said = section[-1]
            section[-1] = (names, f"{said} {line.strip()}".strip())
        elif line:
            footer.append(line)
    assert usage and sections.get("Options"), f"{command}: --help has another form than CLI11's: {text}"
    return Help(about, usage, sections, footer)


def escape(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def entries(items: List[Tuple[str, str]]) -> List[str]:
    lines = []
    for names, said in items:
        lines += [".TP", f".B {escape(names)}", escape(said) or "\\&"]
    return lines


def man_page(name: str, number: int, version: str, top: Help, commands: Dict[str, Help], see: str) -> str:
    about = " ".join(top.about).split(". Each", 1)
    summary = about[0].rstrip(".").replace(f"{name} ", "", 1)
    lines = ['.\\" SPDX-License-Identifier: Apache-2.0', f'.TH {name.upper()} {number} "" "pinfeed {version}"', ".SH NAME"]
    lines += [f"{name} \\- {escape(summary[0].lower() + summary[1:])}", ".SH SYNOPSIS", f".B {escape(top.usage)}", ".SH DESCRIPTION"]
    lines += [escape(" ".join(top.about))]
    lines += [".SH OPTIONS", *entries(top.sections["Options"])]
    if commands:
        lines.append(".SH COMMANDS")
    for command, said in commands.items():
        lines += [f".SS {escape(said.usage)}", escape(" ".join(said.about))]
        lines += entries(said.sections.get("Positionals", []) + [item for item in said.sections["Options"] if "--help" not in item[0]])
    if name == "pinfeedd":
        lines += [".SH SIGNALS", *entries(SIGNALS)]
    lines += [".SH EXIT STATUS", escape(" ".join(top.footer) or "0: ended as asked. 1: could not start now, or a GPU broke. 2: the configuration is wrong, in itself or for this host.")]
    lines += [".SH FILES", *entries(FILES[name]), ".SH SEE ALSO", f".BR {see}"]
    return "\n".join(lines) + "\n"


def long_flags(said: Help) -> List[str]:
    return [flag for names, _ in said.sections["Options"] for flag in re.findall(r"--[a-z][a-z-]*", names)]


def completion(top: Help, commands: Dict[str, Help]) -> str:
    cases = "\n".join(f"    {name}) flags='{' '.join(long_flags(said))}' ;;" for name, said in commands.items())
    return f"""# SPDX-License-Identifier: Apache-2.0
# bash completion of pinfeed: commands, their options, files.
_pinfeed() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command='' flags='' each
  for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $each in
      {'|'.join(commands)}) command=$each; break ;;
    esac
  done
  case $command in
{cases}
    *) flags='{' '.join(commands)}' ;;
  esac
  if [[ $word == -* && -z $command ]]; then
    flags=
  fi
  if [[ $word == -* || -z $command ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$flags {' '.join(long_flags(top))}" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -o filenames -F _pinfeed pinfeed
"""


def main() -> int:
    tool, daemon, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([daemon, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    top = read_help([tool])
    commands = {name: read_help([tool, name]) for name, _ in top.sections["Subcommands"]}
    (folder / "pinfeed.1").write_text(man_page("pinfeed", 1, version, top, commands, "pinfeedd (8)"))
    (folder / "pinfeedd.8").write_text(man_page("pinfeedd", 8, version, read_help([daemon]), {}, "pinfeed (1)"))
    (folder / "pinfeed.bash").write_text(completion(top, commands))
    return 0


if __name__ == "__main__":
    sys.exit(main())
