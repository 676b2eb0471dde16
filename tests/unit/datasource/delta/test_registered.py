"""Columns of a registered schema beside the bytes: nothing is lost, and later versions add theirs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import logstore
from datasource.connector.source import PylogDataSource
from datasource.jobs import tiering
from logstore.schemas.declared import schema_from

COLUMNS = "user string NOT NULL, amount decimal(10,2)"


@pytest.fixture
def orders(tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
    return tmp_path


def append(path, *values) -> None:
    with logstore.open(path) as store:
        store.append("orders", {"value": pa.array([v if v is None else v.encode() for v in values], pa.binary())})


def tier(path, **options: str) -> dict[str, object]:
    (row,) = tiering.rows(None, path=str(path), topics="orders", **options)
    return row


def register(path, columns: str, kind: str = "json") -> None:
    with logstore.open(path) as store:
        store.schemas.register("orders-value", schema_from(columns, kind))


def table(path) -> DeltaTable:
    return DeltaTable(path / "tiered" / "orders")


def columns_of(path) -> list[str]:
    """The versions whose columns were added."""
    return [entry["pylog.columnsOf"] for entry in reversed(table(path).history()) if "pylog.columnsOf" in entry]


def rows(path) -> list[dict[str, object]]:
    """The rows as any reader of Delta sees them."""
    found = table(path).to_pyarrow_table().sort_by("offset").to_pylist()
    return [{name: row[name] for name in row if name not in ("topic", "timestamp", "date", "headers")} for row in found]


def test_a_topic_that_was_tiered_as_bytes_gets_columns_and_loses_nothing(orders):
    append(orders, '{"user":"ada","amount":1.5}')
    assert tier(orders)["records"] == 1
    register(orders, COLUMNS)
    append(orders, '{"user":"bob","amount":"2.25"}', "no JSON", None, '{"amount":3}', '{"user":"dan"}')
    done = tier(orders, schema="registered")
    assert (done["status"], done["records"], done["bad"]) == ("tiered", 5, 2)
    found = rows(orders)
    assert [row["value"] for row in found] == [
        b'{"user":"ada","amount":1.5}', b'{"user":"bob","amount":"2.25"}', b"no JSON", None, b'{"amount":3}',
        b'{"user":"dan"}',
    ]  # fmt: skip
    assert [(row["user"], row["amount"] and str(row["amount"])) for row in found] == [
        (None, None), ("bob", "2.25"), (None, None), (None, None), (None, None), ("dan", None)
    ]  # fmt: skip
    assert columns_of(orders) == ["orders-value version 1, id 1"]


def test_later_runs_follow_the_schema_and_a_new_version_adds_its_columns(orders):
    append(orders, '{"user":"ada"}')
    assert tier(orders, schema="Registered")["note"] == "no schema is registered: values are bytes"
    register(orders, COLUMNS)
    append(orders, '{"user":"bob","amount":1}')
    tier(orders)
    register(orders, f"{COLUMNS}, at timestamp, Key string, tags array<string>, local timestamp_ntz")
    append(
        orders, '{"user":"cyd","at":"2026-11-29T12:00:00Z","Key":"k","tags":["a","b"],"local":"2026-01-01T00:00:00"}'
    )
    done = tier(orders)
    assert (done["status"], done["bad"], done["note"]) == ("tiered", 0, None)
    found = rows(orders)
    assert [row["user"] for row in found] == [None, "bob", "cyd"]
    assert (found[2]["value_Key"], found[2]["tags"], found[1]["tags"]) == ("k", ["a", "b"], None)
    assert columns_of(orders) == ["orders-value version 1, id 1", "orders-value version 2, id 2"]
    version = table(orders).version()
    assert tier(orders)["status"] == "nothing to do"
    assert table(orders).version() == version


def test_avro_of_any_version_becomes_columns(orders):
    first, second = "user string, amount double", "user string, amount double, city string"
    for columns in (first, second):
        register(orders, columns, "avro")
        with logstore.open(orders) as store:
            row = {"user": ["ada"], "amount": [1.5]} | ({"city": ["Oslo"]} if columns == second else {})
            store.append("orders", pa.table(row), typed=True)
    append(orders, "no Avro")
    assert tier(orders, schema="registered")["bad"] == 1
    assert [(row["user"], row["amount"], row["city"]) for row in rows(orders)] == [
        ("ada", 1.5, None), ("ada", 1.5, "Oslo"), (None, None, None)
    ]  # fmt: skip


def test_a_column_of_another_type_is_refused_and_another_table_takes_it(orders):
    register(orders, COLUMNS)
    append(orders, '{"user":"ada","amount":1}')
    tier(orders, schema="registered")
    with logstore.open(orders) as store:
        store.schemas.set_level("NONE", "orders-value")
    register(orders, "user string, amount string")
    append(orders, '{"user":"ada","amount":"much"}')
    done = tier(orders)
    assert (done["status"], done["records"]) == ("failed", 0)
    assert "column 'amount' is string in orders-value version 2, id 2, and 'amount' decimal(10,2)" in done["note"]
    assert len(rows(orders)) == 1


def test_a_table_of_parsed_values_alone_is_refused(orders):
    append(orders, '{"user":"ada"}')
    tier(orders, schema="user string")
    register(orders, "user string")
    append(orders, '{"user":"bob"}')
    assert "the table has no column 'value' of records" in tier(orders, schema="registered")["note"]


def test_one_schema_reads_the_table_and_the_log(orders):
    register(orders, COLUMNS)
    append(orders, '{"user":"ada","amount":1}')
    tier(orders, schema="registered")
    append(orders, '{"user":"bob","amount":2}')
    with logstore.open(orders) as store:
        store.delete_records("orders", {0: 1})
    source = PylogDataSource({"path": str(orders), "subscribe": "orders", "includeTiered": "true", "typed": "true"})
    reader = source.reader(source.schema())
    found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert [(row["user"], str(row["amount"])) for row in found] == [("ada", "1.00"), ("bob", "2.00")]
