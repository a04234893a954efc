"""The documents, and what they have in them: code blocks, code spans, headings, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One document, by its path in the checkout."""

    path: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text()

    @cached_property
    def prose(self) -> str:
        """All but the code blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        """The code blocks in a language."""
        return [text for _, told, text in _FENCE.findall(self.text) if told == language]

    @cached_property
    def spans(self) -> list[str]:
        """What stands between backticks in the prose."""
        return re.findall(r"`([^`\n]+)`", self.prose)

    @cached_property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @cached_property
    def anchors(self) -> set[str]:
        """Where a link can lead to inside of it: headings as GitHub and the site name them."""
        found: set[str] = set()
        for heading in _HEADING.findall(self.prose):
            slug = re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-")
            number = 0
            while (name := f"{slug}-{number}" if number else slug) in found:
                number += 1
            found.add(name)
        return found

    def section(self, heading: str) -> str:
        """What stands below a heading of the second level."""
        _, found, rest = self.text.partition(f"\n## {heading}\n")
        assert found, f"{self.path} has no section {heading!r}"
        return rest.partition("\n## ")[0]

    def __str__(self) -> str:
        return self.path


def read(path: str) -> Page:
    """One of them."""
    return Page(path)


_PLACES = (
    "README.md",
    "CHANGELOG.md",
    "docs/*.md",
    "k8s/README.md",
    "bench/README.md",
    "bench/demo/README.md",
)
PAGES = [Page(str(path.relative_to(ROOT))) for place in _PLACES for path in sorted(ROOT.glob(place))]
