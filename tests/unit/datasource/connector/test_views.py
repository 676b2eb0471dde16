"""Which topics become views, and what is refused before Spark is asked."""

from __future__ import annotations

import pytest

import logstore
from datasource.connector.options import read_options, write_options
from datasource.connector.views import chosen
from datasource.topics.locations import Location, location_at
from logstore import InvalidConfigError, InvalidRequestError, UnknownTopicError
from logstore.schemas.subjects import TOPIC


@pytest.fixture
def source(tmp_path):
    with logstore.open(tmp_path) as store:
        for name in ("orders", "orders.eu", "Orders.EU", "__mine", TOPIC, "_mine"):
            store.create_topic(name)
    return Location(str(tmp_path)).read()


def test_topics_are_chosen_by_names_and_patterns_and_internal_ones_only_if_they_are_meant(source):
    assert chosen(source, ["ord*", "orders"]) == ["orders", "orders.eu"]
    assert chosen(source, ["*.EU", "__*"]) == ["Orders.EU", "__mine"]
    assert chosen(source, ["*m*"]) == ["_mine"]
    assert chosen(source, [TOPIC + "*"]) == chosen(source, [TOPIC]) == [TOPIC]
    with pytest.raises(UnknownTopicError, match="'order'"):
        chosen(source, ["order"])


def test_two_topics_that_sql_does_not_tell_apart_are_refused(source):
    with pytest.raises(InvalidRequestError, match=r"'Orders\.EU' and 'orders\.eu'"):
        chosen(source, ["*"])


@pytest.mark.parametrize(
    ("place", "location"),
    [
        ("/data/log", Location("/data/log")),
        ("/data/log:9092", Location("/data/log:9092")),
        ("a:9092", Location(bootstrap="a:9092")),
        ("a:9092, [::1]:9093", Location(bootstrap="a:9092, [::1]:9093")),
    ],
)
def test_a_place_is_a_directory_or_a_cluster(place, location):
    assert location_at(place) == location


def test_options_of_one_topic_for_both_are_checked_in_each_use_and_others_are_not():
    both = {"path": "p", "subscribe": "t", "topic": "t", "includeTiered": "true", "exactlyOnce": "false"}
    assert read_options(both, streaming=False).include_tiered
    assert not write_options(both).exactly_once
    with pytest.raises(InvalidConfigError, match="'topic' has no meaning in a batch read"):
        read_options(both | {"topic": "u"}, streaming=False)
    with pytest.raises(InvalidConfigError, match="did you mean 'exactlyOnce'"):
        write_options(both | {"exactlyOne": "true"})
