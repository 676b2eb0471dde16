"""A batch of a right CRC that cannot be decoded fails a query by name, or is left out and counted as lost."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import logstore
from datasource.connector.source import PylogDataSource
from datasource.delta.parquet import OffsetSlice, converted
from datasource.delta.storage import TableDirectory
from datasource.errors import DataLossError
from datasource.schema import Clamped
from datasource.topics.locations import Location
from tests.support.ddl import schema
from tests.support.poison import POISON, put


@pytest.fixture
def path(tmp_path) -> str:
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("t")
        store.append("t", pa.table({"value": [b"a", b"b"]}))
        put(store.log("t", 0), POISON["fewer records than it says"])
        store.append("t", pa.table({"value": [b"c"]}))
    return str(tmp_path / "log")


def values(reader, tasks) -> list[bytes]:
    return [row["value"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_query_fails_with_the_offsets_or_goes_on_behind_them(path, is_stream, caplog):
    def read(fail: str) -> list[bytes]:
        source = PylogDataSource(
            {"path": path, "subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": fail}
        )
        if not is_stream:
            reader = source.reader(schema("value binary"))
            return values(reader, reader.partitions())
        stream = source.streamReader(schema("value binary"))
        start = stream.initialOffset()
        return values(stream, stream.partitions(start, stream.latestOffset(start, ReadAllAvailable())))

    with pytest.raises(DataLossError, match=r"offsets 2 to 6.*read on from offset 7.*failOnDataLoss=false"):
        read("true")
    assert read("false") == [b"a", b"b", b"c"]
    assert len([line for line in caplog.messages if "offsets 2 to 6" in line]) == 1


def test_tiering_leaves_it_out_and_names_it(path, caplog):
    piece = OffsetSlice(
        location=Location(path=path), topic="t", partition=0, start=0, end=8, table=TableDirectory(Path(path))
    )
    found = [row["value"] for rows, _ in converted(piece, Clamped()) for row in rows.to_pylist()]
    assert found == [b"a", b"b", b"c"]
    assert len([line for line in caplog.messages if "not in the table" in line and "offsets 2 to 6" in line]) == 1
