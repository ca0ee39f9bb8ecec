# SPDX-License-Identifier: Apache-2.0
"""Copies the pages of the repository to where mkdocs reads them. Sources and folders that pages link to become pages, too.

    docs/site/stage.py FOLDER
"""
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
HEADERS = ["client/include/pinfeed/pinfeed.h", "client/include/pinfeed/pinfeed.hpp"]
LANGUAGES = {".h": "c", ".hpp": "cpp", ".proto": "protobuf", ".py": "python", ".yml": "yaml", ".json": "json", ".cc": "cpp"}
PYTHON_PAGE = """# Python reference

For those who program in Python. `help(pinfeed.open)` shows the same text.

::: pinfeed
"""


def title(page):
    return page.read_text("utf-8").splitlines()[0].lstrip("# ")


class Site:
    def __init__(self, folder):
        self.folder = folder
        self.done = set()

    def write(self, name, text):
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")

    def add(self, path):
        """Adds a page, picture, source or folder of the repository, once. Returns the name of its page."""
        source = ROOT / path
        name = path if path.suffix in (".md", ".png") else path / "index.md" if source.is_dir() else path.with_name(path.name + ".md")
        if name in self.done:
            return name
        self.done.add(name)
        if path.suffix == ".md":
            self.write(name, self.linked(path, source.read_text("utf-8")))
        elif path.suffix == ".png":
            self.write(name, "")
            shutil.copyfile(source, self.folder / name)
        elif source.is_dir():
            self.write(name, self.listing(path))
        else:
            self.write(name, f"# {path.name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{source.read_text('utf-8')}````\n")
        return name

    def linked(self, path, text):
        """The text with its links turned to pages of the site, which are added."""

        def turned(match):
            target = (ROOT / path.parent / match[2]).resolve().relative_to(ROOT)
            if self.add(target) == target:
                return match[0]
            return match[1] + match[2].rstrip("/") + ("/index.md" if (ROOT / target).is_dir() else ".md") + match[3]

        return LINK.sub(turned, text)

    def listing(self, path):
        pages = [self.add(each.relative_to(ROOT)).relative_to(path) for each in sorted((ROOT / path).iterdir()) if each.is_file()]
        lines = [f"- [{title(ROOT / path / page) if (ROOT / path / page).exists() else page.stem}]({page})" for page in pages]
        return "\n".join([f"# {path}", "", *lines, ""])


def main():
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    site = Site(folder)
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *map(ROOT.joinpath, HEADERS)]:
        site.add(page.relative_to(ROOT))
    site.write("reference/python.md", PYTHON_PAGE)


if __name__ == "__main__":
    main()
