"""`LogStore.read` of a whole topic."""

import polars as pl
import pytest

import logstore
from logstore import InvalidRequestError, UnknownTopicError
from logstore.records.schema import RECORD_SCHEMA


@pytest.fixture
def store(tmp_path):
    with logstore.open(tmp_path / "data") as opened:
        opened.create_topic("t", partitions=3)
        opened.append("t", {"value": [f"v{n}" for n in range(7)], "partition": [0, 2, 0, 2, 2, 0, 2]})
        yield opened


def test_all_partitions_are_read_one_after_the_other(store):
    found = store.read("t", columns=["offset", "value"]).read_all()
    assert found.schema.names == ["partition", "offset", "value"]
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (0, 0, b"v0"),
        (0, 1, b"v2"),
        (0, 2, b"v5"),
        (2, 0, b"v1"),
        (2, 1, b"v3"),
        (2, 2, b"v4"),
        (2, 3, b"v6"),
    ]


def test_what_is_appended_after_the_call_is_not_read(store):
    reader = store.read("t")
    store.append("t", {"value": "late", "partition": 0})
    assert reader.read_all().num_rows == 7


def test_an_empty_topic_has_its_columns_and_libraries_take_it(store):
    store.create_topic("empty", partitions=2)
    assert store.read("empty").schema.names == ["partition", *RECORD_SCHEMA.names]
    assert pl.DataFrame(store.read("empty").read_all()).height == 0
    assert pl.DataFrame(store.read("t").read_all()).height == 7


def test_offsets_need_a_partition(store):
    for bounds in ({"start": 1}, {"end": 1}, {"start": 0, "end": 1}):
        with pytest.raises(InvalidRequestError, match="offsets of one partition: say which, by partition=0"):
            store.read("t", **bounds)


def test_a_topic_that_is_not_there_is_an_error_at_once(store):
    with pytest.raises(UnknownTopicError, match="nosuch"):
        store.read("nosuch")
