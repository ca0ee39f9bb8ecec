# SPDX-License-Identifier: Apache-2.0
"""Counts lines and sentences of a Markdown page. As a program, prints the figures of the pages that it is given."""
import dataclasses
import pathlib
import re
import sys

LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
BULLET = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[A-Z\d(\"\[])")


@dataclasses.dataclass
class Figures:
    """`sentences` are of running text, `cells` those of tables; links and code count as their text and as one word."""

    longest_line: int
    sentences: list
    cells: list

    @property
    def mean_words(self):
        return sum(map(words, self.sentences)) / max(len(self.sentences), 1)

    @property
    def longest_sentence(self):
        return max([*self.sentences, *self.cells], key=words, default="")


def words(sentence):
    return len(sentence.split())


def split(paragraph):
    plain = LINK.sub(r"\1", re.sub(r"`[^`]*`", "Code", paragraph))
    plain = re.sub(r"^\s*\*\*[^*]+\.\*\*", "", plain).replace("**", "")  # without a heading at the start of the line
    return [each for each in SENTENCE_END.split(plain.strip()) if words(each) > 1]


def measure(text):
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    text = re.sub(r"<!-- ([\w ]+): begin -->.*?<!-- \1: end -->", "", text, flags=re.S)  # a program writes these parts
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    longest, paragraphs, cells = 0, [[]], []
    for line in text.splitlines():
        if line.startswith("|"):
            paragraphs.append([])
            cells += re.split(r"\s\|\s", re.sub(r"`[^`]*`", "Code", line).strip("| "))
            continue
        longest = max(longest, len(re.sub(r"\]\([^)\s]*\)", "]", line)))
        if not line.strip() or line.startswith("#") or BULLET.match(line):
            paragraphs.append([])
        if not line.startswith("#"):
            paragraphs[-1].append(BULLET.sub("", line).strip())
    return Figures(
        longest_line=longest,
        sentences=[each for paragraph in paragraphs for each in split(" ".join(paragraph))],
        cells=[each for cell in cells for each in split(cell)],
    )


def main():
    for page in sys.argv[1:]:
        figures = measure(pathlib.Path(page).read_text("utf-8"))
        longest = figures.longest_sentence
        print(f"{page}: longest line {figures.longest_line}, {len(figures.sentences)} sentences, mean {figures.mean_words:.1f} words", end="")
        print(f", longest {words(longest)}: {longest}" if words(longest) > 35 else f", longest {words(longest)}")
        for each in sorted({*figures.sentences, *figures.cells}, key=words, reverse=True):
            if words(each) > 35 and each != longest:
                print(f"    {words(each)}: {each}")


if __name__ == "__main__":
    main()
