"""A directory's topics are read and appended to as columns: those that the caller names, or the topic's own."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import logstore
from logstore.errors import InvalidRecordError, InvalidRequestError
from logstore.schemas.misfits import MisfitError, UnwritableError
from logstore.schemas.registry import UnknownSchemaError

SCHEMA = "user string, amount decimal(10,2), at timestamp"
NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)
ADA, BOB = (
    {"user": "Ada", "amount": Decimal("12.50"), "at": NOON},
    {"user": "Bob", "amount": Decimal("0.01"), "at": None},
)


@pytest.fixture
def store(tmp_path):
    with logstore.open(tmp_path) as opened:
        opened.create_topic("orders", partitions=2)
        yield opened


def test_columns_are_appended_and_read(store):
    store.append("orders", [ADA, BOB], schema=SCHEMA, key_fields="user")
    found = store.read("orders", schema=SCHEMA, key_fields="user").read_all()
    assert sorted(found.to_pylist(), key=lambda row: row["user"]) == [ADA, BOB]
    stored = store.read("orders").read_all().to_pylist()
    assert {row["key"]: row["value"] for row in stored} == {
        b"Ada": b'{"user":"Ada","amount":12.50,"at":"2024-01-31T12:00:00.000000Z"}',
        b"Bob": b'{"user":"Bob","amount":0.01}',
    }


def test_metadata_places_and_columns_are_chosen(store):
    store.append("orders", pa.table({"user": ["a", "b"], "_partition": [1, 0]}), schema=SCHEMA)
    found = store.read("orders", columns=["_partition", "user", "_topic"], schema=SCHEMA, metadata=True).read_all()
    assert found.to_pylist() == [
        {"_partition": 0, "user": "b", "_topic": "orders"},
        {"_partition": 1, "user": "a", "_topic": "orders"},
    ]
    one = store.read("orders", partition=1, start=0, end=1, schema=SCHEMA, metadata=True).read_all()
    assert one.column("_partition").to_pylist() == [1]
    assert store.read("orders", partition=1, start=1, schema=SCHEMA).read_all().schema.names == ["user", "amount", "at"]
    with pytest.raises(InvalidRequestError, match="no column 'usr'; did you mean 'user'"):
        store.read("orders", columns=["usr"], schema=SCHEMA)


def test_a_table_that_was_read_is_appended_elsewhere_as_it_is(store):
    store.create_topic("copy", partitions=2)
    store.append("orders", [{"key": b"k", "value": b'{"user":"a"}', "headers": [{"key": "h", "value": b"x"}]}])
    store.append("orders", [{"key": b"l", "value": None}])
    store.append("copy", store.read("orders", schema=SCHEMA, metadata=True).read_all(), schema=SCHEMA)
    stored = [store.read(topic).read_all().drop_columns("offset") for topic in ("orders", "copy")]
    assert stored[0].equals(stored[1])


def test_the_topics_own_columns(store):
    store.create_topic("typed", schema=SCHEMA, key_schema="user string", key_format="json")
    store.append("typed", [ADA], typed=True)
    assert store.read("typed", typed=True).read_all().to_pylist() == [ADA]
    assert store.read("typed").read_all().column("key").to_pylist() == [b'{"user":"Ada"}']
    store.append("typed", {"value": b"{"})
    found = store.read("typed", typed=True, mode="PERMISSIVE").read_all()
    assert found.column("_corrupt_record").to_pylist() == [None, "{"]
    with pytest.raises(UnknownSchemaError, match=r"topic 'orders' has no columns of its own: .*, or their columns by"):
        store.read("orders", typed=True)


def test_misfits_fail_with_their_place_or_are_dropped(store):
    store.append("orders", {"value": [b'{"user":"a"}', b'{"user":1}', b'{"user":"c"}'], "partition": [1, 1, 1]})
    with pytest.raises(MisfitError, match=r"orders-1 at offset 1: value: user: 1 is no string"):
        store.read("orders", schema=SCHEMA).read_all()
    found = store.read("orders", schema=SCHEMA, mode="DROPMALFORMED").read_all()
    assert found.column("user").to_pylist() == ["a", "c"]


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([{"user": "a"}, {"user": 7}], UnwritableError, "row 1: user: '7' is no string"),
        ([{"amount": Decimal("1.555")}], UnwritableError, r"row 0: amount: '1.555' is no decimal\(10,2\)"),
        ([{"at": datetime(2024, 1, 1)}], UnwritableError, "row 0: at: a datetime needs a time zone"),  # noqa: DTZ001
        ([{"usr": "a"}], InvalidRecordError, "the topic has no column 'usr'; did you mean 'user'"),
        ({"user": ["a", "b"], "at": [NOON]}, InvalidRecordError, "columns of different lengths"),
        (7, InvalidRecordError, "data is a int"),
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_appended(store, rows, kind, message):
    with pytest.raises(kind, match=message):
        store.append("orders", rows, schema=SCHEMA)
    assert store.read("orders").read_all().num_rows == 0


@pytest.mark.parametrize(
    "rows",
    [
        {"n": 1, "tags": ["x"]},
        [{"n": 1, "tags": ["x"]}],
        {"n": [1], "tags": [["x"]]},
        pa.table({"n": [1], "tags": [["x"]]}),
    ],
    ids=str,
)
def test_rows_come_as_a_table_a_dict_or_a_list(store, rows):
    store.append("orders", rows, schema="n int, tags array<string>")
    assert store.read("orders", columns=["value"]).read_all().column("value").to_pylist() == [b'{"n":1,"tags":["x"]}']


def test_numbers_of_python_are_not_cut(store):
    with pytest.raises(UnwritableError, match=r"row 0: n: 1\.5 does not fit int"):
        store.append("orders", [{"n": 1.5}], schema="n int")
