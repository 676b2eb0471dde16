"""docs/decisions: every page has one form and a line in the index; numbers that others name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
INDEX = (ROOT / "docs" / "decisions" / "README.md").read_text()
NUMBERS = {int(page.name[:4]) for page in DECISIONS}


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_the_form_and_is_in_the_index(page):
    text = page.read_text()
    title, status = re.match(r"# (.+)\n\n\*\*Status:\*\* (accepted|superseded .+)\n", text).groups()
    assert re.findall(r"^## (.+)", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    number, words = title.split(". ", 1)
    assert int(number) == int(page.name[:4])
    assert f"- {number}. [{words}]({page.name})" in INDEX
    assert (f"({page.name}) (superseded " in INDEX) == (status != "accepted")


def test_a_number_is_given_once_and_the_index_says_which_were_never_used():
    assert len(NUMBERS) == len(DECISIONS)
    assert re.findall(r"^- (\d+)\.", INDEX, re.MULTILINE) == [str(number) for number in sorted(NUMBERS)]
    assert "was never used: 32 to 35, 43, 46 and some above 62" in INDEX
    assert set(range(1, 63)) - NUMBERS == {32, 33, 34, 35, 43, 46}


def test_decisions_that_code_and_pages_name_by_number_are_there():
    sources = [path for top in ("logstore", "replication", "datasource") for path in (ROOT / top).rglob("*.py")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for path in [*sources, *pages]:
        for number in re.findall(r"[Dd]ecision \[?(\d+)", path.read_text()):
            assert int(number) in NUMBERS, f"{path}: decision {number}"
