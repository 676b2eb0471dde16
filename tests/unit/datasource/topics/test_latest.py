"""A partition as a table of latest values is what a dictionary of its records holds, however it is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from datasource.connector.source import PylogDataSource
from datasource.delta.tiered_topics import TieredTopics
from datasource.jobs import tiering
from datasource.topics.interface import PartitionRange
from datasource.topics.latest import Ranged
from datasource.topics.locations import Location
from logstore.errors import InvalidRequestError
from logstore.records.latest import LatestValues
from tests.support.repeats import times

CONFIG = {"segment.bytes": "3000", "max.message.bytes": "3000"}
COLUMNS = ("key", "value", "offset")

KEYS = st.sampled_from([None, *(f"key-{n}" for n in range(9)), "k" * 700, "l" * 700])
VALUES = st.none() | st.sampled_from(["", "v", "value" * 30])
APPENDS = st.lists(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=12), max_size=14)


class Memory:
    """A partition in memory, as if compressed to a third; `reads` counts the records that were read with values."""

    def __init__(self, appends) -> None:
        self.batches, self.end, self.reads = [], 0, 0
        for append in appends:
            keys, values = zip(*append, strict=True)
            columns = [
                pa.array(keys, pa.string()).cast(pa.binary()),
                pa.array(values, pa.string()).cast(pa.binary()),
                pa.array(range(self.end, self.end + len(append)), pa.int64()),
            ]
            self.batches.append(pa.RecordBatch.from_arrays(columns, COLUMNS))
            self.end += len(append)

    def read(self, r, columns):
        for batch in self.batches:
            first = batch.column("offset")[0].as_py()
            low, high = max(r.start - first, 0), min(r.end - first, batch.num_rows)
            if low < high:
                self.reads += (high - low) * ("value" in columns)
                yield batch.slice(low, high - low).select(list(columns))

    def size_bytes(self, r) -> int:
        return sum(batch.nbytes for batch in self.read(r, COLUMNS[::2])) // 3

    def offset_before_bytes(self, r, max_bytes: int) -> int:
        start, size = r.end, 0
        for batch in reversed(self.batches):
            first = batch.column("offset")[0].as_py()
            if first < r.end and size < max_bytes:
                start, size = first, size + batch.nbytes // 3
        return max(start, r.start)


def stored(path: Path, appends, **config: str) -> PartitionRange:
    """A topic `t` of these records; return all of it."""
    with logstore.open(path) as store:
        store.create_topic("t", config=CONFIG | config, if_not_exists=True)
        for append in appends:
            store.append("t", [{"key": key, "value": value} for key, value in append])
        extent = store.offsets("t")[0]
    return PartitionRange("t", 0, extent.start, extent.end)


def naive(batches) -> list[tuple]:
    """The last record of each key in these, unless it has no value."""
    last = {key: (key, value, offset) for key, value, offset in rows(batches) if key is not None}
    return sorted((row for row in last.values() if row[1] is not None), key=lambda row: row[2])


def rows(batches) -> list[tuple]:
    return [tuple(row[name] for name in COLUMNS) for batch in batches for row in batch.to_pylist()]


def latest(topics, r: PartitionRange, **bounds: int) -> tuple[list[tuple], LatestValues]:
    reader = LatestValues(Ranged(topics, r, topics.read), **bounds)
    found = [row for batch in reader.rows(r.start, r.end, COLUMNS) for row in rows([batch])]
    assert len({row[2] for row in found}) == len(found)
    return sorted(found, key=lambda row: row[2]), reader


@given(
    appends=APPENDS,
    piece_bytes=st.sampled_from([1, 400, 1 << 20]),
    held_bytes=st.sampled_from([0, 300, 1 << 20]),
    keys_bytes=st.sampled_from([9_300, 1 << 20]),
    data=st.data(),
)
def test_it_is_what_a_dictionary_holds(appends, piece_bytes, held_bytes, keys_bytes, data):
    topics = Memory(appends)
    r = PartitionRange("t", 0, data.draw(st.integers(0, topics.end)), topics.end)
    r = replace(r, end=data.draw(st.integers(r.start, topics.end)))  # the table as of then
    found, reader = latest(topics, r, piece_bytes=piece_bytes, held_bytes=held_bytes, keys_bytes=keys_bytes)
    assert found == naive(topics.read(r, COLUMNS))
    assert reader.keyless == sum(key is None for key, _, _ in rows(topics.read(r, COLUMNS)))


def test_keys_that_do_not_fit_come_in_rounds_and_each_row_is_yielded_once():
    """Memory for a sixth of the keys, in pieces of about twenty."""
    wanted = [(f"key-{n % 900:06d}" if n % 100 else None, f"{n}") for n in range(1000)]
    topics = Memory([wanted[n : n + 20] for n in range(0, 1000, 20)])
    r = PartitionRange("t", 0, 0, topics.end)
    found, reader = latest(topics, r, piece_bytes=300, keys_bytes=8192 + 32 * 150)
    assert found == naive(topics.read(r, COLUMNS))
    assert (len(found), reader.keyless) == (891, 10)


def test_keys_without_room_are_refused_in_one_line():
    with pytest.raises(InvalidRequestError, match=r"t-0 \[0, 1\): the keys do not fit .* without 'view'"):
        latest(Memory([[("k" * 2000, "v")]]), PartitionRange("t", 0, 0, 1), keys_bytes=8192 + 1000)


@pytest.mark.parametrize(
    ("held_bytes", "fewest", "most"), [(1 << 20, 1000, 1000), (15_000, 1050, 1350), (0, 1000, 1000)]
)
def test_a_value_is_read_once_but_for_the_first_pieces_if_those_are_larger_than_they_look(held_bytes, fewest, most):
    topics = Memory([[(f"{n}-{i}", "value" * 20) for i in range(10)] for n in range(100)])
    ranged = Ranged(topics, PartitionRange("t", 0, 0, 1000), topics.read)
    reader = LatestValues(ranged, held_bytes=held_bytes, piece_bytes=10_000)
    assert sum(batch.num_rows for batch in reader.rows(0, 1000, COLUMNS)) == 1000
    assert fewest <= topics.reads <= most


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=times(5, 50))
@given(appends=APPENDS, codec=st.sampled_from(["uncompressed", "zstd"]), piece_bytes=st.sampled_from([1, 400, 1 << 20]))
def test_a_directory_is_read_from_its_end_compacted_or_not(tmp_path_factory, appends, codec, piece_bytes):
    path = tmp_path_factory.mktemp("latest")
    r = stored(path, appends, **{"compression.type": codec, "min.cleanable.dirty.ratio": "0"})
    topics = Location(str(path)).read()
    found, _ = latest(topics, r, piece_bytes=piece_bytes)
    assert found == naive(topics.read(r, COLUMNS))
    with logstore.open(path) as store:
        store.alter_topic("t", config={"cleanup.policy": "compact"})
        store.log("t", 0).roll()
        store.compact("t", 0)
    assert latest(topics, r, piece_bytes=piece_bytes)[0] == found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=times(3, 30))
@given(old=APPENDS, both=APPENDS, new=APPENDS, held_bytes=st.sampled_from([0, 1 << 20]))
def test_older_values_come_from_the_table(tmp_path_factory, old, both, new, held_bytes):
    """Some records are in the table alone, some in table and log, some in the log alone."""
    path = tmp_path_factory.mktemp("latest")
    cut = stored(path, old).end
    stored(path, both)
    tiering.rows(None, path=str(path))
    r = replace(stored(path, new), start=0)
    with logstore.open(path) as store:
        store.delete_records("t", {0: cut})
    topics = TieredTopics(Location(str(path)), fail_on_data_loss=True)
    found, _ = latest(topics, r, piece_bytes=500, held_bytes=held_bytes)
    assert found == naive(topics.read(r, COLUMNS))
    assert len(rows(topics.read(r, COLUMNS))) == r.end


def test_a_table_is_cut_where_a_file_begins_and_the_log_where_a_batch_does(tmp_path):
    for n in range(2):
        table = stored(tmp_path, [[(f"{n}-{i}", "v")] for i in range(10)])
        tiering.rows(None, path=str(tmp_path))
    r = stored(tmp_path, [[("new", "v")] * 5] * 2)
    topics = TieredTopics(Location(str(tmp_path)), fail_on_data_loss=True)
    cuts = [r.end]
    while cuts[-1] > 0:
        cuts.append(topics.offset_before_bytes(replace(r, end=cuts[-1]), 1))
    assert cuts == [30, 25, 20, 10, 0]
    assert topics.offset_before_bytes(replace(table, start=5), 1 << 20) == 5
    assert topics.offset_before_bytes(replace(table, start=12), 1) == 12


def test_uncommitted_values_are_not_there_unless_they_are_asked_for(tmp_path):
    stored(tmp_path, [[("a", "1"), ("b", "1")]])
    with logstore.open(tmp_path) as store:
        transaction = store.transactions.begin("job", 1)
        store.append("t", [{"key": "a", "value": "2"}, {"key": "b", "value": None}], transaction=transaction)

        def seen(isolation: str) -> list[tuple]:
            options = {"path": str(tmp_path), "subscribe": "t", "view": "latest", "isolation": isolation}
            source = PylogDataSource(options | {"columns": "key,value,offset"})
            reader = source.reader(source.schema())
            return [row for task in reader.partitions() for row in rows(reader.read(task))]

        assert seen("read_committed") == [(b"a", b"1", 0), (b"b", b"1", 1)]
        assert seen("read_uncommitted") == [(b"a", b"2", 2)]
        transaction.abort("a test")
        assert seen("read_committed") == [(b"a", b"1", 0), (b"b", b"1", 1)]
