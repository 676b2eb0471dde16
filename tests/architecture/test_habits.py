"""Habits of tests and of prose: old uses may stay, and no more come. See `tests.measures`."""

from tests import measures

# Tests know the product by its public names; `tests/support/inside.py` has the ways in that several share. The bugs
# that the simulation must find are planted by private names, and do not count.
PRIVATE_USES_MAX = 107
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


def test_every_sentence_of_a_docstring_begins_with_its_subject_or_its_verb():
    """The product has none that begins with What, Who, Whoever, As or Of."""
    assert measures.unclear_sentences(measures.sources().values()) == []
