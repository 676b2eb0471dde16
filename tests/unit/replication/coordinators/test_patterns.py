"""Patterns of clients: they match whole names, in linear time, and what is none is refused."""

import pytest

from replication.coordinators.patterns import PATTERN_CHARS_MAX, matching
from replication.errors import ErrorCode, KafkaError

NAMES = ["orders", "orders-2", "ORDERS", "a\nb", ""]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-2"]),
        ("(?i)orders", ["orders", "ORDERS"]),
        ("orders|ORDERS", ["orders", "ORDERS"]),
        ("a.b", []),
        ("a(?s).b", ["a\nb"]),
        ("", [""]),
    ],
)
def test_a_pattern_matches_whole_names(pattern, found):
    assert list(matching(pattern, NAMES)) == found


@pytest.mark.parametrize("pattern", ["(", "a)(b", "a)|(?:.*", "*", "(?=a)", "a{2000}", "a" * (PATTERN_CHARS_MAX + 1)])
def test_what_is_no_pattern_or_too_long_is_refused(pattern):
    with pytest.raises(KafkaError) as refused:
        matching(pattern, NAMES)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_that_others_try_in_exponential_time_is_matched_at_once():
    assert matching("(a|aa)+" * 50 + "c", ["a" * 30_000 + "b"]) == ()
