"""docs/decisions: every decision has one form and a line in the index; numbers that others name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
INDEX = (ROOT / "docs" / "decisions" / "README.md").read_text()
PAGES_MAX = 60
DIARY_LINES_MAX = 25  # of 102 to 118, which were benchmark diaries once

DECISION = re.compile(r"^#{1,2} (\d+)\. (.+)\n\n(?:\*\*Status:\*\* (.+)\n\n)?((?:(?!#{1,2} \d).*\n)*)", re.MULTILINE)
FOUND = {int(number): (page, *rest) for page in PAGES for number, *rest in DECISION.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_its_subject_and_is_named_after_its_first_decision(page):
    text = page.read_text()
    numbers = [int(number) for number, *_ in DECISION.findall(text)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == int(page.name[:4])
    headings = re.findall(r"^# (.+)", text, re.MULTILINE)
    assert len(headings) == 1
    assert re.match(r"\d", headings[0]) is None or len(numbers) == 1


@pytest.mark.parametrize("number", sorted(FOUND))
def test_a_decision_has_the_form_and_is_in_the_index(number):
    page, words, status, text = FOUND[number]
    alone = page.read_text().startswith(f"# {number}.")
    form = r"^## (\w+)$" if alone else r"^\*\*(Context|Decision|Consequences)\.\*\*"
    assert re.findall(form, text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert re.fullmatch("accepted|superseded .+" if alone else "|superseded .+", status)
    anchor = "" if alone else "#" + re.sub(r"[^\w\- ]", "", f"{number}. {words}".lower()).replace(" ", "-")
    assert f"- {number}. [{words}]({page.name}{anchor})" in INDEX
    assert (f"({page.name}{anchor}) (superseded " in INDEX) == status.startswith("superseded")


def test_there_are_few_pages_and_a_number_that_was_measured_is_on_the_page_of_benchmarks():
    assert len(PAGES) <= PAGES_MAX
    for number in range(102, 119):
        assert len(FOUND[number][-1].strip().splitlines()) <= DIARY_LINES_MAX, number


def test_a_number_is_given_once_and_the_index_says_which_were_never_used():
    assert len(FOUND) == sum(len(DECISION.findall(page.read_text())) for page in PAGES)
    assert re.findall(r"^- (\d+)\.", INDEX, re.MULTILINE) == [str(number) for number in sorted(FOUND)]
    assert "was never used: 32 to 35, 43, 46\nand some above 62" in INDEX
    assert set(range(1, 63)) - set(FOUND) == {32, 33, 34, 35, 43, 46}


def test_decisions_that_code_and_pages_name_by_number_are_there():
    sources = [
        path for top in ("logstore", "replication", "datasource", "tests") for path in (ROOT / top).rglob("*.py")
    ]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for path in [*sources, *pages]:
        for number in re.findall(r"[Dd]ecision\s\[?(\d+)", path.read_text()):
            assert int(number) in FOUND, f"{path}: decision {number}"
