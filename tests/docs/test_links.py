"""Links between the pages lead to a page, and to a heading of it."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of headings, and those that a page sets itself."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"<[^>]*>", "", line) for line in re.findall(r"^#+ +(.*)", text, re.MULTILINE)]
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


def test_every_link_of_a_page_leads_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), (page, link)
            assert not anchor or anchor in anchors(target), (page, link)


def test_every_file_that_a_page_names_is_there():
    for page in PAGES:
        for path in re.findall(r"`((?:logstore|replication|datasource|tests|docs|conf)/[\w./-]+)", page.read_text()):
            assert (ROOT / path).exists(), (page, path)
