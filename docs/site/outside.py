"""Hooks of mkdocs: puts the documents that live beside what they describe into the site.

The same links work in a checkout and on the site. What a link names is looked up as in the checkout; if it
is a page of the site the link leads there, and if it is none (a folder, a script) only its text stays.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from markdown import Extension
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from markdown import Markdown
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
OUTSIDE = ("CHANGELOG.md", "bench/README.md", "bench/demo/README.md", "k8s/README.md")
"""Pages from elsewhere, by their place in the checkout, which is also that in the site."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


class _ListsOfGitHub(Extension):
    """Python-Markdown takes four blanks for the inside of a list; two are enough on GitHub."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - its name
        md.tab_length = 2
        md.build_parser()  # whose parts have read the length by now


def on_config(config: MkDocsConfig) -> None:
    """Read lists alike. First of all extensions, since the parser is built anew."""
    config.markdown_extensions.insert(0, _ListsOfGitHub())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    for page in OUTSIDE:
        files.append(File.generated(config, page, abs_src_path=str(ROOT / page)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links lead to pages of the site."""
    source = page.file.src_uri
    here = source if source in OUTSIDE else DOCS + source

    def rewritten(link: re.Match[str]) -> str:
        image, text, target, anchor = link.groups()
        if "://" in target:
            return link[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        place = there.removeprefix(DOCS)
        if files.get_file_from_path(place) is None or (place == there and place not in OUTSIDE):
            return text
        return f"{image}[{text}]({_relative(place, source)}{anchor or ''})"

    return _LINK.sub(rewritten, markdown)


def _relative(target: str, source: str) -> str:
    return posixpath.relpath(target, PurePosixPath(source).parent)
