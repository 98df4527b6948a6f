"""Links between pages lead to files and headings that exist, on GitHub as in the manual."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (".", "docs", "benchmarks", "experiments", "experiments/*")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def headings(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = page.read_text("utf-8")
    included = re.search(r"^```\{include\} (\S+)$", text, re.MULTILINE)
    if included:
        return headings(page.parent / included[1])
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page, text):
    """Return the links of a page that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):  # an address
            continue
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        if not place.exists() or (anchor and anchor not in headings(place)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_lead_somewhere(page):
    assert not broken(page, page.read_text("utf-8"))


def test_a_link_that_leads_nowhere_is_found():
    page = ROOT / "docs/faq.md"
    text = (
        "[a](concepts.md#what-is-exact) [b](concepts.md#what-was-exact) [c](concept.md)"
    )
    assert broken(page, text) == ["concepts.md#what-was-exact", "concept.md"]
