# SPDX-License-Identifier: Apache-2.0
"""Who reads the status by name, the tool and the live page, asks for figures that there are. The tool's columns bear their names."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = (ROOT / "proto/pinfeed/v1/feeder.proto").read_text("utf-8")
STATUS = PROTO[PROTO.index("message GetStatusRequest"):PROTO.index("message ListDatasetsRequest")]
FIELDS = set(re.findall(r"^  (?:repeated )?\w+ (\w+) = \d+;", STATUS, re.M))
READERS = "status top_screen bound_on hung_line doctor_host".split()
# A slot's letter and number, which the script makes, and the path of the page.
NO_FIGURES = {"letter", "slot", "json"}


def test_the_columns_of_the_tool_are_figures():
    source = (ROOT / "client/cli/status.cc").read_text("utf-8")
    tables = [set(re.findall(r'"(\w+)"', names)) for names in re.findall(r"PrintTable\(\{(.*?)\}", source, re.S)]
    tables.append({name.lower() for name in re.findall(r'"(\w+)"', re.search(r"table\.Add\(\{(.*?)\}", source)[1])})
    assert len(tables) == 5 and all(tables)
    assert set.union(*tables) - FIELDS == {"feed", "session", "user"}  # their ids
    assert set(re.findall(r'\b(?:Cell|of)\((?:\w+, )?"(\w+)"', source)) | set(re.findall(r'\bof\("\w+", "(\w+)"', source)) <= FIELDS


@pytest.mark.parametrize("name", READERS)
def test_the_tool_asks_for_figures_that_there_are(name):
    source = (ROOT / f"client/cli/{name}.cc").read_text("utf-8")
    asked = set(re.findall(r'(?:Uint|Double|Text|List)Field\([^()]+, "(\w+)"\)|find\("(\w+)"\)|UintRate\([^()]+, "(\w+)"', source))
    asked = {word for words in asked for word in words if word}
    assert asked <= FIELDS and asked


def test_the_live_page_asks_for_figures_that_json_has():
    page = (ROOT / "server/metrics/live.html").read_text("utf-8")
    rows = (ROOT / "server/metrics/figures.cc").read_text("utf-8")
    shown = set(re.findall(r'^    \{"(\w+)",\s*k\w+,\s*k(?!Message\b|Metric\b)\w+,', rows, re.M))
    asked = set(re.findall(r"\b(?:now|last|status|feed|session|gpu|each|fresh)\.(\w+)\b(?!\()", page))
    assert len(asked) > 30 and asked - NO_FIGURES <= shown
