"""Patterns of clients: they match whole names, in linear time, and what is none is refused."""

import asyncio

import pytest

from replication.coordinators.groups import topic_patterns
from replication.coordinators.groups.topic_patterns import TopicPatterns
from replication.coordinators.patterns import PATTERN_CHARS_MAX, matching
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import LeaderAndIsr, TopicPartition
from replication.model.metadata import Metadata, PartitionMetadata, PartitionUpdate
from tests.support.site import on_loop

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


def add(known, topic):
    state = LeaderAndIsr(1, 0, (1,), 1, 0)
    known.update(1, (), [PartitionUpdate(TopicPartition(topic, 0), None, PartitionMetadata(state, (1,)))])


@on_loop
async def test_topics_of_an_expression_are_found_once_for_all_who_ask_until_names_change(monkeypatch):
    searches = []

    def counted(pattern, names):
        searches.append((pattern, names))
        return matching(pattern, names)

    monkeypatch.setattr(topic_patterns, "matching", counted)
    known = Metadata()
    patterns = TopicPatterns(known)
    add(known, "orders")
    first = asyncio.create_task(patterns.matched("or.*"))
    await asyncio.sleep(0)
    first.cancel()  # its client went away
    assert await asyncio.gather(*(patterns.matched("or.*") for _ in range(3))) == [("orders",)] * 3
    for _ in range(2):
        with pytest.raises(KafkaError, match="`\\(` is not a valid regular expression"):
            await patterns.matched("(")
    assert searches == [("or.*", ["orders"]), ("(", ["orders"])]
    add(known, "origins")
    assert await patterns.matched("or.*") == ("orders", "origins")


def test_a_pattern_that_others_try_in_exponential_time_is_matched_at_once():
    assert matching("(a|aa)+" * 50 + "c", ["a" * 30_000 + "b"]) == ()
