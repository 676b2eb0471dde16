"""Batches for Spark have the exact schema, and columns to write are checked by name and type."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

import logstore
from datasource.connector.options import read_options
from datasource.connector.reader import BatchReader
from datasource.delta.parquet import OffsetSlice, write_piece
from datasource.delta.storage import TableDirectory
from datasource.schema import COLUMNS, HEADERS, Clamped, Shape, check_write_schema, rows_to_append, spark_schema
from datasource.topics.locations import Location
from logstore import InvalidRecordError
from logstore.records.schema import RECORD_SCHEMA
from tests.support.ddl import schema


def records(count, **columns):
    arrays = {name: pa.nulls(count, RECORD_SCHEMA.field(name).type) for name in RECORD_SCHEMA.names} | columns
    return pa.record_batch(arrays, schema=RECORD_SCHEMA)


@pytest.mark.parametrize("count", [0, 1, 1500, 3])
def test_every_column_has_the_type_that_spark_wants(count):
    wanted = spark_schema((*COLUMNS, HEADERS))
    batch = Shape(wanted).batch(records(count), "orders", 7)
    assert batch.schema.equals(to_arrow_schema(wanted, timezone="UTC"))
    assert batch["topic"].to_pylist() == ["orders"] * count
    assert batch["partition"].to_pylist() == [7] * count
    batch.validate(full=True)


def test_only_what_is_wanted_is_read():
    shape = Shape(schema("Topic string, value binary, offset bigint"))
    assert shape.stored == ["value", "offset"]
    assert shape.batch(records(2).select(shape.stored), "t", 0).schema.names == ["Topic", "value", "offset"]
    assert Shape(schema("partition int")).stored == ["offset"]


def test_times_that_spark_cannot_hold_become_its_first_and_last():
    milliseconds = [0, -1, 1_700_000_000_123, 2**63 - 1, -(2**63) + 1]
    times = pa.array(milliseconds, RECORD_SCHEMA.field("timestamp").type)
    batch = records(5, timestamp=times, offset=pa.array(range(7, 12), pa.int64()))
    shape = Shape(spark_schema(["timestamp"]))
    found = shape.batch(batch, "t", 0)["timestamp"].cast(pa.int64()).to_pylist()
    limit = (2**63 - 1) // 1000 * 1000
    assert found == [0, -1000, 1_700_000_000_123_000, limit, -limit]
    shape.batch(batch, "t", 0)
    assert (shape.clamped.count, shape.clamped.first_offset) == (4, 10)


@pytest.mark.parametrize("columns", [["timestamp"], ["value"], ["offset", "timestamp"]])
def test_times_that_spark_cannot_hold_are_told_once_for_a_partition_that_shows_times(tmp_path, caplog, columns):
    with logstore.open(tmp_path) as store:
        store.create_topic("t", partitions=2)
        for _ in range(3):
            times = pa.array([0, 2**62, 2**62], pa.int64())
            rows = pa.table({"value": ["x"] * 3, "timestamp": times, "partition": pa.array([1] * 3, pa.int32())})
            store.append("t", rows)
        store.append("t", pa.table({"value": ["x"], "partition": pa.array([0], pa.int32())}))
    options = read_options({"path": str(tmp_path), "subscribe": "t"}, streaming=False)
    reader = BatchReader(options, spark_schema(columns))
    for task in reader.partitions():
        list(reader.read(task))
    told = [] if columns == ["value"] else ["t-1: Spark cannot hold the time of 6 records, the first at offset 1: "]
    assert [record.getMessage()[: len(told[0])] for record in caplog.records] == told


def test_times_that_a_table_cannot_hold_are_counted_with_what_is_written(tmp_path):
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("t")
        store.append("t", pa.table({"value": ["x"] * 3, "timestamp": pa.array([0, 0, 2**62], pa.int64())}))
    location = Location(str(tmp_path / "log"))
    piece = OffsetSlice(location=location, topic="t", partition=0, start=0, end=3, table=TableDirectory(tmp_path / "t"))
    assert write_piece(piece).clamped == Clamped(1, 2)


@pytest.mark.parametrize(
    "ddl",
    [
        "value string",
        "VALUE binary, Key string, Topic string, partition int, timestamp timestamp",
        "value varchar(3), partition smallint, headers array<struct<key:string,value:binary>>",
        "key binary, value binary, topic string, offset bigint, timestamp timestamp, timestampType int",
    ],
)
def test_rows_that_can_be_records(ddl):
    check_write_schema(schema(ddl), has_topic=True)


@pytest.mark.parametrize(
    ("ddl", "line"),
    [
        ("key string", "'value' .* is missing"),
        ("value bigint", "string or binary, not bigint"),
        ("value string, partition bigint", "must be int, not bigint"),
        ("value string, headers map<string,binary>", "must be array<struct"),
        ("value string, headers array<struct<k:string,v:binary>>", "must be array<struct"),
        ("value string, timestamp string", "must be timestamp"),
        ("value string, vlaue string", "did you mean 'value'"),
    ],
)
def test_rows_that_cannot(ddl, line):
    with pytest.raises(InvalidRecordError, match=line):
        check_write_schema(schema(ddl), has_topic=True)


def test_a_topic_comes_from_somewhere():
    with pytest.raises(InvalidRecordError, match="option 'topic'"):
        check_write_schema(schema("value string"), has_topic=False)
    check_write_schema(schema("value string, topic string"), has_topic=False)


def test_rows_keep_the_columns_that_the_log_knows():
    batch = pa.record_batch({"Value": ["a"], "OFFSET": [1], "timestampType": [0], "headers": [None]})
    assert rows_to_append([batch, batch], with_headers=False).to_pydict() == {"value": ["a", "a"]}
    assert rows_to_append([batch], with_headers=True).column_names == ["value", "headers"]
