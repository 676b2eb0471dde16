"""Habits of tests and of prose: old uses may stay, and no more come. See `tests.measures`."""

from tests import measures
from tests.measures import ROOT

# Tests know the product by its public names; `tests/support/inside.py` has the ways in that several share. The bugs
# that the simulation must find are planted by private names, and do not count.
PRIVATE_USES_MAX = 93
# A sleep waits for a condition, within a `while`. Those that remain are what a test is about: a disk that is slow, a
# session that runs out, an answer that never comes, a kill at a moment of chance.
FIXED_SLEEPS_MAX = 51


def test_tests_use_no_more_private_names_of_the_product():
    uses = measures.private_uses(measures.sources())
    for file in [file for file in uses if file.startswith("tests/sim/")]:
        del uses[file]
    assert uses.total() <= PRIVATE_USES_MAX, uses.most_common()


def test_no_more_tests_sleep_for_a_fixed_time():
    found = measures.fixed_sleeps()
    assert found.total() <= FIXED_SLEEPS_MAX, found.most_common()


def test_every_sentence_begins_with_its_subject_or_its_verb():
    """None begins with What, Who, Whoever, As or Of: in docstrings and comments, of tests too, and in pages."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    assert measures.unclear_sentences([*measures.sources().values(), *(ROOT / "tests").rglob("*.py"), *pages]) == []


def test_a_sentence_is_found_wherever_it_stands(tmp_path):
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(
        "# What a heading is\n\nFirst. *What* it is.\n\n- As an item\n- An item. (Of two.)\n\n"
        "| a | b |\n|---|---|\n| Who | 1 |\n\n```text\nWhat code is\n```\nThe last:\nWhoever reads.\n"
    )
    code = '"""What."""\n\n% First, as a whole.\n% Of it.\nx = 1  % As a number\ny = "% What text is"\n'
    module.write_text(code.replace("%", "#"))
    found = [line.partition(": ")[2] for line in measures.unclear_sentences([page, module])]
    assert found == [
        "*What* it is.",
        "As an item",
        "(Of two.)",
        "Who",
        "Whoever reads.",
        "What.",
        "Of it.",
        "As a number",
    ]
