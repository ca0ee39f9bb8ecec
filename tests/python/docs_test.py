# SPDX-License-Identifier: Apache-2.0
"""The documents tell the truth where a program can see it: links, paths, names of tests, settings and examples, and they stay readable."""
import os
import pathlib
import re
import subprocess
import tomllib

import prose
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PINFEED_BUILD_DIR", ROOT / "build" / "release"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TEXT = {page: page.read_text("utf-8") for page in PAGES}
# Pages whose lines and sentences are held short.
PROSE = ["CONTRIBUTING.md", "README.md", "SECURITY.md"] + [
    f"docs/{name}.md"
    for name in "architecture batcher benchmarks cli configuration containers copies cpp dataloader getting-started glossary guarantees install looking-inside protocol resident runbook service transforms".split()
]
SOURCES = re.compile(r"`((?:common|proto|server|client|tests|docs|deploy|examples)/[\w./-]*)`")


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXT[page]):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() or (anchor and anchor not in anchors(goal.read_text("utf-8"))):
            wrong.append(target)
    wrong += [path for path in SOURCES.findall(TEXT[page]) if not (ROOT / path).exists()]
    assert not wrong


def operations():
    """The operations of the message Transform, as in {"random_crop": "RandomCrop"}."""
    proto = (ROOT / "proto/pinfeed/v1/feeder.proto").read_text("utf-8")
    oneof = re.search(r"message Transform \{\s*oneof op \{(.*?)\}", proto, re.S)
    return {name: message for message, name in re.findall(r"(\w+) (\w+) = \d+;", oneof[1])}


@pytest.mark.parametrize("name", operations())
def test_a_transform_is_in_the_places_that_contributing_names(name):
    def text(path):
        return (ROOT / path).read_text("utf-8")

    message = operations()[name]
    for path, expected in {
        f"server/transform/ops/{name}.cc": f"Parse{message}(",
        "server/transform/ops/registry.cc": f'{{"{name}", Parse{message}}}',
        "client/python/pinfeed/transforms.py": f"class {message}(Transform)",
        "client/python/pinfeed/__init__.py": f'"{message}"',
        "docs/transforms.md": f"| `{message}` |",
        "tests/unit/image/image_golden_test.cc": f"{message}{{",
        "tests/python/make_image_golden.py": f"tv.{'ToTensor' if message == 'ToDtype' else message}(",
        "tests/unit/transform/feed_spec_check_test.cc": f"{message}{{",
        "tests/python/transforms_test.py": f"pinfeed.{message}(",
    }.items():
        assert expected in text(path), f"{path} does not name {message}"


def test_a_dataset_format_is_in_the_places_that_contributing_names():
    def text(path):
        return (ROOT / path).read_text("utf-8")

    sources = {path.stem: path.read_text("utf-8") for path in (ROOT / "server/dataset/formats").glob("*.cc")}
    formats = [name for name, source in sources.items() if "public DatasetFormat" in source]
    assert len(formats) > 3
    for name in formats:
        function = "".join(word.capitalize() for word in name.split("_")) + "Format()"
        assert function in text("server/dataset/formats/registry.h") and f"&{function}" in text("server/dataset/formats/registry.cc"), name
        assert f"| `{name}` |" in text("docs/configuration.md"), name
        assert f'"{name}"' in text("tests/unit/dataset/remote_storage_test.cc"), name
        for option in re.findall(r'"(\w+)"', "".join(re.findall(r"kOptions\[\] = \{(.*?)\}", sources[name]))):
            for path, expected in {
                "proto/pinfeed/v1/feeder.proto": rf" {option} = \d+;",
                "client/python/pinfeed/_feed/open.py": rf"^    {option}: ",
                "docs/configuration.md": f"`{option}`",
            }.items():
                assert re.search(expected, text(path), re.M), f"{path} does not name {option} of {name}"


def known_tests():
    """The names by which pages may call tests: Suite.Case, Suite.*, tests/a_test.py::test_b."""
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*_test.*") if path.suffix in (".c", ".cc", ".py"))
    known = {f"{suite}.{case}" for suite, case in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", sources, re.M)}
    known |= {f"{suite}.*" for suite in {name.split(".")[0] for name in known}}
    for path in (ROOT / "tests" / "python").glob("**/*_test.py"):
        known |= {f"{path.relative_to(ROOT)}::{name}" for name in re.findall(r"^def (test_\w+)\(", path.read_text("utf-8"), re.M)}
    return known


def test_the_tests_that_hold_the_invariants_exist():
    known = known_tests()
    section = TEXT[ROOT / "docs" / "architecture.md"].split("## Invariants")[1].split("\n## ")[0]
    named = re.findall(r"`(\w+Test\.[\w*]+)`", section)
    assert len(named) > 10 and not [name for name in named if name not in known]


def locks(text):
    """The mutexes of a C++ file's classes, as `Class::mutex_`: a class is the latest one that begins further left."""
    found, classes = [], []
    for line in text.splitlines():
        begun = re.match(r"( *)(?:class|struct) (?:PF_\w+\(.*?\) |alignas\(.*?\) )?(?:\w+::)*(\w+)[^;]*\{", line)
        member = re.match(r"( *)(?:mutable )?Mutex (\w+);", line)
        if begun:
            classes.append(begun.groups())
        elif member:
            found += [f"{name}::{member[2]}" for indent, name in classes if len(indent) < len(member[1])][-1:]
    return found


def test_the_architecture_names_all_threads_and_locks():
    code = [path.read_text("utf-8") for part in ("common", "server", "client") for kind in ("h", "cc", "py") for path in sorted(ROOT.glob(f"{part}/**/*.{kind}"))]
    threads = re.findall(r'(?:StartThread\(\s*|threading\.Thread\(.*name=)"([\w-]+)"', "\n".join(code))
    mutexes = [lock for text in code for lock in locks(text)]
    page = TEXT[ROOT / "docs" / "architecture.md"]
    assert len(threads) > 10 and not [name for name in threads if f"`{name}" not in page]
    assert len(mutexes) > 60 and not [name for name in mutexes if not re.search(rf"[`:]{name}`", page)]


def test_the_tests_that_show_what_is_claimed_of_security_exist():
    known = known_tests()
    page = TEXT[ROOT / "SECURITY.md"]
    named = re.findall(r"`(\w+Test\.[\w*]+|tests/[\w/]+\.py::\w+)`", page)
    assert len(named) > 30 and not [name for name in named if name not in known]
    claims = [line for part in ("read", "cannot do") for line in page.split(f"{part}\n", 1)[1].split("\n## ")[0].split("\n- **")[1:]]
    assert len(claims) > 8
    for claim in claims:  # that each names what shows it
        assert re.search(r"`(?:\w+Test\.[\w*]+|tests/[\w/]+\.(?:py|cc)(?:::\w+)?)`", claim), claim


def test_the_settings_are_the_daemons():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", TEXT[ROOT / "docs" / "configuration.md"].split("## Datasets")[0], re.M)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PINFEED_")}
    printed = subprocess.run([BUILD / "server" / "pinfeedd", "--print-config"], env=environment, check=True, capture_output=True, text=True).stdout
    defaults = tomllib.loads(printed)
    assert [name for name, _ in rows] == list(defaults)
    for name, default in rows:
        value = defaults[name]
        if isinstance(value, str) and value.endswith("ms"):
            value = f"{int(value[:-2]) / 1000:g}s"
        if name == "socket_mode":
            value = f"0o{value:o}"
        if value not in ("", []):  # told in words
            assert default.strip("`").strip('"') == str(value), name


@pytest.mark.parametrize("language, name, compiler", [("c", "first.c", "cc"), ("cpp", "first.cc", "g++")])
def test_the_examples_compile_as_their_page_says_and_report_errors(language, name, compiler, tmp_path):
    page = TEXT[ROOT / "docs" / "cpp.md"]
    (example,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)
    (line,) = re.findall(rf"^{re.escape(compiler)} .*{re.escape(name)} .*-Iclient/include.*$", page, re.M)
    (tmp_path / name).write_text(example, "utf-8")
    (tmp_path / "client").symlink_to(ROOT / "client")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "release").symlink_to(BUILD)
    subprocess.run(["sh", "-c", f"{line} -Wall -Wextra -Werror"], cwd=tmp_path, check=True)
    environment = {**os.environ, "PINFEED_ADDRESS": str(tmp_path / "none.sock")}
    ran = subprocess.run([tmp_path / "first"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and "is the daemon running?" in ran.stderr


def test_the_readme_is_short():
    assert len(TEXT[ROOT / "README.md"].splitlines()) <= 130


def test_the_site_has_every_page():
    nav = set(re.findall(r"([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M))
    assert {str(page.relative_to(ROOT)) for page in PAGES if "decisions" not in page.parts} <= nav


def test_the_figures_of_the_readme_are_those_of_the_benchmarks():
    """The benchmarks write their results into their own page; the README repeats some."""
    rows = re.findall(r"^\| .* \| ([\d.,]+) \S+ \| ([\d.,]+) \S+ \| ([\d.]+x) \|$", TEXT[ROOT / "README.md"], re.M)
    assert len(rows) == 4
    measured = [re.split(r"\s*\|\s*", line) for line in TEXT[ROOT / "docs" / "benchmarks.md"].splitlines() if line.startswith("|")]
    for pinfeed, loader, factor in rows:
        assert [cells for cells in measured if {pinfeed, loader, factor} <= set(cells)], (pinfeed, loader, factor)


def test_every_row_about_the_loader_names_a_test():
    page = TEXT[ROOT / "docs/dataloader.md"]
    rows = [line for line in page.splitlines() if line.startswith("| ") and "test |" not in line]
    written = "".join(path.read_text("utf-8") for path in (ROOT / "tests/python").glob("loader_*_test.py"))
    written += "".join((ROOT / "tests/python" / name).read_text("utf-8") for name in ("loader_test.py", "loader_state_test.py", "producer_protocol_test.py"))
    tests = set(re.findall(r"^def (test_\w+)\(", written, re.M))
    assert len(rows) > 50
    assert [row for row in rows if not (named := re.findall(r"`(test_\w+)`", row)) or not set(named) <= tests] == []


@pytest.mark.parametrize("name", PROSE)
def test_a_page_says_whom_it_is_for_and_reads_easily(name):
    text = TEXT[ROOT / name]
    figures = prose.measure(text)
    assert [each for each in text.split("\n\n")[1:3] if each.startswith("For ")], "the page does not begin with whom it is for"
    assert figures.longest_line <= 120
    assert figures.mean_words < 16
    assert prose.words(figures.longest_sentence) <= 35, figures.longest_sentence


def test_lines_and_sentences_are_counted():
    figures = prose.measure("# A heading\n\n" + "word " * 9 + "end. Two\nlines [of text](a/very/long/path.md).\n\n| a cell | b |\n|---|---|\n\n```\n" + "x" * 200 + "\n```\n<!-- results: begin -->\n" + "x" * 200 + "\n<!-- results: end -->\n")
    assert figures.longest_line == 53
    assert figures.sentences == ["word " * 9 + "end.", "Two lines of text."] and figures.mean_words == 7
    assert figures.cells == ["a cell"] and figures.longest_sentence == figures.sentences[0]
