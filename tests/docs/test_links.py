"""Where the links of the documents lead."""

from __future__ import annotations

import pytest
import yaml

from tests.docs.pages import PAGES, ROOT, Page


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_inside_leads_somewhere(page: Page) -> None:
    for link in page.links:
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = ((ROOT / page.path).parent / target).resolve() if target else ROOT / page.path
        assert path.exists(), link
        if anchor:
            there = Page(str(path.relative_to(ROOT.resolve())))
            assert anchor in there.anchors, f"{link}; there are {sorted(there.anchors)}"


def test_every_page_is_in_the_site() -> None:
    # Not loaded as YAML: one of the values is a Python object, of a package that only the site needs.
    text = (ROOT / "mkdocs.yml").read_text()
    listed = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    pages = [
        page for part in listed for page in (next(iter(part.values())) if isinstance(part, dict) else [part])
    ]
    wanted = [page.path.removeprefix("docs/") for page in PAGES if page.path != "README.md"]
    assert sorted(pages) == sorted(wanted)
