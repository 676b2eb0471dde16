"""A dead letter is the record as it came, and says where it came from, why, and how often."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas.misfits import STORED, dead_letters, tries_of

NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def record(offset, key, value, **headers):
    pairs = [{"key": name.replace("_", "."), "value": text} for name, text in headers.items()]
    return {"key": key, "value": value, "offset": offset, "timestamp": NOON, "timestampType": 0, "headers": pairs}


def letters(*rows, reasons):
    records = pa.RecordBatch.from_pylist(list(rows), RECORD_SCHEMA).select(list(STORED))
    return dead_letters(records, reasons, topic="orders", partition=3, name="audit", query="q1", now_ms=5)


def test_it_is_the_record_as_it_came_with_the_facts_in_headers():
    found = letters(
        record(7, b"k", b"{}"), record(8, b"\xff", b"{\xfe", trace=b"\x01", dlq=None), reasons={1: "cut off"}
    )
    assert found.schema.names == ["key", "value", "headers", "timestamp"]
    [row] = found.to_pylist()
    assert row["key"] == b"audit|orders|3|8"
    assert row["value"] == b"{\xfe"
    assert row["timestamp"] == datetime.fromtimestamp(0.005, UTC)
    assert [(header["key"], header["value"]) for header in row["headers"]] == [
        ("trace", b"\x01"),
        ("dlq", None),
        ("dlq.reason", b"cut off"),
        ("dlq.topic", b"orders"),
        ("dlq.partition", b"3"),
        ("dlq.offset", b"8"),
        ("dlq.timestamp", str(NOON_MS).encode()),
        ("dlq.query", b"q1"),
        ("dlq.tries", b"1"),
        ("dlq.key", b"\xff"),
    ]


def test_a_record_without_a_key_has_no_header_for_it_and_rows_are_in_order():
    rows = [record(i, None, None) for i in range(4)]
    found = letters(*rows, reasons={3: "c", 0: "a"})
    assert found.column("key").to_pylist() == [b"audit|orders|3|0", b"audit|orders|3|3"]
    assert "dlq.key" not in [header["key"] for header in found.column("headers")[0].as_py()]


def test_one_without_a_value_is_no_tombstone_and_says_so_in_a_header():
    found = letters(record(0, b"k", None), record(1, b"k", b"", dlq_value=b"null"), reasons={0: "key", 1: "value"})
    assert found.column("value").to_pylist() == [b"", b""]
    said = [[pair["value"] for pair in pairs if pair["key"] == "dlq.value"] for pairs in found["headers"].to_pylist()]
    assert said == [[b"null"], []]


def test_one_that_was_sent_again_counts_its_tries_and_has_each_fact_once():
    [row] = letters(record(9, b"k", b"{", dlq_tries=b"2", dlq_reason=b"old", own=b"x"), reasons={0: "new"}).to_pylist()
    headers = [(header["key"], header["value"]) for header in row["headers"]]
    assert headers[0] == ("own", b"x")
    assert [value for name, value in headers if name == "dlq.tries"] == [b"3"]
    assert [value for name, value in headers if name == "dlq.reason"] == [b"new"]


@pytest.mark.parametrize("value", [None, b"", b"-1", b"x", b"1" * 10, "²".encode()])
def test_tries_that_are_no_number_are_none(value):
    assert tries_of([("dlq.tries", value)]) == 0


def test_no_misfits_are_no_letters():
    assert letters(record(1, b"k", b"{}"), reasons={}).num_rows == 0
