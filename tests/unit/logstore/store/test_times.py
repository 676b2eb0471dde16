"""Where a time may be given, a datetime with a time zone may; one without is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pytest

import logstore
from logstore import InvalidConfigError, InvalidRecordError, InvalidRequestError
from tests.unit.logstore.store.conftest import rows

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)


def at(minutes: int) -> datetime:
    return NOON + timedelta(minutes=minutes)


@pytest.fixture
def filled(store: logstore.LogStore) -> logstore.LogStore:
    store.create_topic("t", partitions=3)
    for minutes, partition in [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]:
        store.append("t", {"value": str(minutes), "partition": partition, "timestamp": at(minutes)})
    return store


def values(batches: object) -> list[str]:
    return sorted(value.decode() for batch in batches for value in batch["value"].to_pylist())  # type: ignore[attr-defined]


def test_a_range_of_time_is_read_from_all_partitions(filled: logstore.LogStore) -> None:
    assert values(filled.read("t", start=at(1))) == ["1", "2", "3", "4"]
    assert values(filled.read("t", start=at(1), end=at(4))) == ["1", "2", "3"]
    assert values(filled.read("t", end=NOON)) == []
    assert values(filled.read("t", partition=0, start=at(1), end=3)) == ["2", "4"]
    with pytest.raises(InvalidRequestError, match="is behind"):
        filled.read("t", start=at(3), end=at(1))
    with pytest.raises(InvalidRequestError, match="by partition=0, or give times"):
        filled.read("t", start=1, end=at(4))


def test_a_tail_starts_at_a_time_and_at_the_end_where_nothing_is_so_late(filled: logstore.LogStore) -> None:
    tails = {minutes: filled.tail("t", start=at(minutes), timeout_ms=0) for minutes in (0, 3, 9)}
    one = filled.tail("t", start={0: at(3), 1: 1}, timeout_ms=0)
    filled.append("t", rows(["new"], partition=[2]))
    assert {minutes: values(tail) for minutes, tail in tails.items()} == {
        0: ["0", "1", "2", "3", "4", "new"],
        3: ["3", "4", "new"],
        9: ["new"],
    }
    assert values(one) == ["3", "4", "new"]


def test_offsets_are_found_by_a_datetime(filled: logstore.LogStore) -> None:
    found = filled.offsets_for_times("t", at(3))
    assert [found[p] and found[p].offset for p in range(3)] == [2, 1, None]  # type: ignore[union-attr]
    assert filled.offsets_for_times("t", {1: at(1)})[1].offset == 0  # type: ignore[union-attr]
    with pytest.raises(
        InvalidRequestError, match="times='noon': must be a whole number of milliseconds, or a datetime"
    ):
        filled.offsets_for_times("t", "noon")  # type: ignore[arg-type]


def test_a_record_keeps_the_moment_of_its_datetime_whatever_the_zone(filled: logstore.LogStore) -> None:
    tokyo = at(9).astimezone(datetime.strptime("+0900", "%z").tzinfo)
    filled.append("t", [{"value": "a", "timestamp": tokyo}, {"value": "b", "timestamp": at(9)}])
    assert filled.read("t", start=at(9)).read_all()["timestamp"].to_pylist() == [at(9)] * 2


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.read("t", start=NAIVE),
        lambda store: store.read("t", partition=0, end=NAIVE),
        lambda store: store.tail("t", start=NAIVE),
        lambda store: store.tail("t", start={0: NAIVE}),
        lambda store: store.offsets_for_times("t", NAIVE),
        lambda store: store.offsets_for_times("t", {0: NAIVE}),
    ],
)
def test_a_datetime_without_a_zone_is_refused(filled: logstore.LogStore, call: Callable[[object], object]) -> None:
    with pytest.raises(InvalidRequestError, match=r"=2026-01-02T12:00:00: a datetime needs a time zone"):
        call(filled)


@pytest.mark.parametrize(
    "data",
    [
        {"value": "a", "timestamp": NAIVE},
        {"value": ["a", "b"], "timestamp": [NOON, NAIVE]},
        [{"value": "a"}, {"value": "b", "timestamp": NAIVE}],
    ],
)
def test_a_record_without_a_zone_is_refused_with_its_row(filled: logstore.LogStore, data: object) -> None:
    with pytest.raises(InvalidRecordError, match=r"^row [01]: timestamp=2026-.*needs a time zone"):
        filled.append("t", data)  # type: ignore[arg-type]
    assert sum(each.count for each in filled.offsets("t").values()) == 5


def test_a_length_of_time_is_a_setting_in_milliseconds(store: logstore.LogStore) -> None:
    info = store.create_topic("t", config={"retention.ms": timedelta(days=7), "segment.ms": 5})
    assert info.overrides == {"retention.ms": "604800000", "segment.ms": "5"}
    with pytest.raises(InvalidConfigError, match=r"retention\.bytes=7 days.*only settings whose names end in \.ms"):
        store.alter_topic("t", config={"retention.bytes": timedelta(days=7)})


def test_an_empty_topic_has_its_columns_in_every_library(store: logstore.LogStore) -> None:
    store.create_topic("t", partitions=2)
    for reader in (store.read("t"), store.read("t", partition=1), store.read("t", columns=["key", "offset"])):
        names = reader.schema.names
        frame = pl.from_arrow(reader)
        assert isinstance(frame, pl.DataFrame)
        assert (frame.columns, frame.height) == (names, 0)
    empty = store.read("t")
    assert duckdb.sql('SELECT count(*), max("offset") FROM empty').fetchall() == [(0, None)]
    assert empty is not None
    assert len(store.read("t").read_pandas()) == 0


def test_what_is_shown_of_an_object_says_what_it_is(filled: logstore.LogStore) -> None:
    path = str(filled.path)
    assert repr(filled) == f"LogStore({path!r})"
    with logstore.open(filled.path, mode="r") as reader:
        assert repr(reader) == f"LogStore({path!r}, read-only)"
    assert repr(reader) == f"LogStore({path!r}, read-only, closed)"
    assert repr(filled.topic("t")) == "TopicDescription('t', partitions=3)"
    info = filled.alter_topic("t", config={"retention.ms": 5})
    assert repr(info) == "TopicDescription('t', partitions=3, config={'retention.ms': '5'})"
    assert repr(info.config) == "LogConfig(retention_ms=5)"
    assert repr(filled.transaction("daily", batch_id=7)) == "Transaction('daily', batch_id=7)"
