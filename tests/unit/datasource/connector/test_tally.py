"""Misfits of a stream are counted once each, however often its tasks run, in the offsets of its batches."""

import pyarrow as pa
import pytest

import logstore
from datasource.connector.offsets import Misfits
from datasource.connector.places import MISFITS
from datasource.connector.tally import total
from tests.support.queries import Query

BATCH = Misfits(stream="s", batch=3)


def told(start, end, misfits, **more):
    found = {"stream": "s", "batch": 3, "topic": "t", "partition": 0, "start": start, "end": end, "misfits": misfits}
    return found | more


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], 0),
        ([told(0, 10, 1), told(10, 20, 2), told(0, 10, 4, partition=1), told(0, 10, 8, topic="u")], 15),
        ([told(0, 10, 1), told(0, 10, 1)], 1),  # two attempts of a task
        ([told(0, 10, 1), told(0, 10, 2, batch=2), told(0, 10, 4, stream="other")], 1),
        ([told(0, 10, 1), told(10, 20, 2), told(0, 20, 3)], 3),  # planned again, and cut otherwise
        ([told(0, 20, 3), told(0, 12, 1), told(12, 20, 2)], 3),
    ],
)
def test_each_offset_counts_once(counts, expected):
    assert total(counts, BATCH) == expected


@pytest.fixture
def path(tmp_path):
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("orders", partitions=2)
    return str(tmp_path / "log")


def append(path, *values, partition=0):
    with logstore.open(path) as store:
        store.append(
            "orders", pa.table({"value": list(values), "partition": pa.array([partition] * len(values), pa.int32())})
        )


@pytest.mark.parametrize(
    "options", [{"mode": "DROPMALFORMED"}, {"mode": "PERMISSIVE"}, {"dlq.topic": "dlq", "dlq.name": "n"}]
)
def test_an_empty_batch_tells_the_count_of_the_last_one_and_a_restart_goes_on(path, options):
    append(path, '{"n":1}', "bad", "{")
    append(path, "worse", partition=1)
    query = Query({"path": path}, **options)
    rows = [1] if "mode" not in options or options["mode"] == "DROPMALFORMED" else [1, None, None, None]
    assert query.trigger() == rows
    assert query.count == 0
    assert query.trigger() == []
    assert query.count == 3
    assert query.trigger() is None
    query.restart()
    assert query.trigger() is None
    append(path, "bad", '{"n":2}')
    query.restart()
    assert [n for n in query.trigger() if n] == [2]
    query.restart()  # the driver dies before the count is known
    assert query.trigger() == []
    assert query.count == 4
    append(path, '{"n":3}')
    query.restart()
    assert query.trigger() == [3]
    assert query.trigger() is None
    assert query.count == 4


def test_a_batch_with_records_tells_it_at_no_cost_of_another(path):
    append(path, "bad")
    query = Query({"path": path}, mode="DROPMALFORMED")
    assert query.trigger() == []
    append(path, '{"n":1}')
    query.restart()
    assert query.trigger() == [1]
    assert query.count == 1


def test_without_misfits_there_is_no_topic_of_counts_and_failfast_counts_nothing(path):
    append(path, '{"n":1}')
    for options, counts in (({}, False), ({"mode": "DROPMALFORMED"}, True)):
        query = Query({"path": path}, **options)
        assert query.trigger() == [1]
        assert query.trigger() is None
        assert ("misfits" in query.ends[-1]) is counts
    with logstore.open(path, mode="r") as store:
        assert MISFITS not in [topic.name for topic in store.topics()]


def test_a_pattern_does_not_read_the_counts(path):
    append(path, "bad")
    query = Query({"path": path}, mode="DROPMALFORMED", subscribePattern=".*")
    assert query.trigger() == query.trigger() == []
    query.restart()
    assert query.trigger() is None
    assert list(query.ends[-1]["offsets"]) == ["orders"]


def test_a_topic_of_counts_that_is_deleted_under_a_stream_is_made_again(path):
    append(path, "bad")
    append(path, "bad", partition=1)
    query = Query({"path": path}, mode="DROPMALFORMED")
    assert query.trigger() == query.trigger() == []
    with logstore.open(path) as store:
        store.delete_topic(MISFITS)
    append(path, "bad")
    query.restart()
    assert query.trigger() == query.trigger() == []
    assert query.count == 3


def test_counts_that_cannot_be_told_are_a_line_and_the_rows_are_there(path, caplog):
    append(path, "bad", '{"n":1}')
    with logstore.open(path) as store:
        store.create_topic(MISFITS, config={"max.message.bytes": 80})
    query = Query({"path": path}, mode="DROPMALFORMED")
    assert query.trigger() == [1]
    assert query.trigger() is None
    assert "orders-0: 1 records that do not fit are not counted: " in caplog.text
