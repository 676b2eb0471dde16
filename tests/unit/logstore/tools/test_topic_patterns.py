"""Topics by name or by regular expression."""

import pytest

from logstore.errors import InvalidRequestError
from logstore.tools.topic_patterns import deletable, matching

NAMES = ["__consumer_offsets", "orders", "orders.v1", "orders_v1", "payments"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("orders", ["orders"]),
        ("orders.v1", ["orders.v1"]),  # a name, and not the pattern that it could be
        ("order", []),
        ("orders.*", ["orders", "orders.v1", "orders_v1"]),
        ("orders[.]v1", ["orders.v1"]),
        ("orders|payments", ["orders", "payments"]),
        ("payments, orders", ["orders", "payments"]),
        ("o[a-z]{2,5}s,pay.+", ["orders", "payments"]),
        ("rders.*", []),  # whole names
        (".*", NAMES),
    ],
)
def test_a_name_means_one_topic_and_a_pattern_all_whose_whole_names_match(text, found):
    assert matching(text, NAMES) == found


def test_a_pattern_deletes_no_internal_topic_and_a_name_does():
    assert deletable(".*", NAMES) == NAMES[1:]
    assert deletable("__consumer_offsets", NAMES) == NAMES[:1]


def test_what_is_no_regular_expression_is_refused():
    with pytest.raises(InvalidRequestError, match=r"^'ord\(' is not a regular expression: missing \)"):
        matching("ord(", NAMES)
