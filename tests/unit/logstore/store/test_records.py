"""Rows into a topic and out again: what is stored, where, in which order, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logstore
from logstore import (
    InvalidRecordError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    OffsetRange,
    RecordTooLargeError,
)
from logstore.records.schema import RECORD_SCHEMA
from tests.unit.logstore.store.conftest import rows


def values_of(store: logstore.LogStore, topic: str, partition: int = 0) -> list[bytes | None]:
    return store.read(topic, partition=partition).read_all()["value"].to_pylist()  # type: ignore[no-any-return]


def test_rows_come_back_as_they_went_in(store: logstore.LogStore) -> None:
    store.create_topic("t")
    table = pa.table(
        {
            "key": pa.array([b"k", None, b""]),
            "value": pa.array(["v", "", None]),
            "timestamp": pa.array([1, None, 3], pa.timestamp("ms")),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    assert store.append("t", table) == {0: OffsetRange(0, 3)}
    back = store.read("t", partition=0).read_all()
    assert back.schema == RECORD_SCHEMA
    assert back["key"].to_pylist() == [b"k", None, b""]
    assert back["value"].to_pylist() == [b"v", b"", None]
    assert back["offset"].to_pylist() == [0, 1, 2]
    assert back["timestamp"].cast(pa.int64())[0].as_py() == 1
    assert back["timestamp"].cast(pa.int64())[1].as_py() > 1_700_000_000_000
    assert back["headers"].to_pylist() == [
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        None,
        None,
    ]


def test_an_empty_table_appends_nothing(store: logstore.LogStore) -> None:
    store.create_topic("t")
    assert store.append("t", rows([]).slice(0, 0).cast(pa.schema([("value", pa.string())]))) == {}
    assert store.read("t", partition=0).read_all().num_rows == 0


@settings(max_examples=25, deadline=None)
@given(keys=st.lists(st.one_of(st.none(), st.binary(max_size=4)), max_size=60), partitions=st.integers(1, 5))
def test_every_row_is_there_once_and_rows_of_a_key_keep_their_order(
    tmp_path_factory: pytest.TempPathFactory, keys: list[bytes | None], partitions: int
) -> None:
    with logstore.open(tmp_path_factory.mktemp("s")) as store:
        store.create_topic("t", partitions=partitions)
        numbers = [b"%d" % i for i in range(len(keys))]
        store.append("t", pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(numbers, pa.binary())}))
        found = [store.read("t", partition=p).read_all() for p in range(partitions)]
        everything = [
            (k, int(v)) for t in found for k, v in zip(t["key"].to_pylist(), t["value"].to_pylist(), strict=True)
        ]
        assert sorted(n for _, n in everything) == list(range(len(keys)))
        assert sorted(everything, key=lambda kn: kn[1]) == [(k, n) for n, k in enumerate(keys)]
        for table in found:
            order = [int(v) for v in table["value"].to_pylist()]
            assert order == sorted(order)
        for key in set(keys) - {None}:
            assert sum(key in t["key"].to_pylist() for t in found) == 1


def test_an_explicit_partition_wins_over_the_key(store: logstore.LogStore) -> None:
    store.create_topic("t", partitions=3)
    done = store.append("t", rows(["a", "b", "c"], key=["k", "k", "k"], partition=pa.array([2, 0, 2], pa.int32())))
    assert done == {0: OffsetRange(0, 1), 2: OffsetRange(0, 2)}
    assert values_of(store, "t", 2) == [b"a", b"c"]


@pytest.mark.parametrize("partition", [3, -1])
def test_a_partition_that_is_not_there_is_refused_before_anything_is_written(
    store: logstore.LogStore, partition: int
) -> None:
    store.create_topic("t", partitions=3)
    with pytest.raises(InvalidRequestError, match=str(partition)):
        store.append("t", rows(["a", "b"], partition=pa.array([0, partition], pa.int32())))
    assert sum(r.count for r in store.offsets("t").values()) == 0


@pytest.mark.parametrize(
    ("table", "hint"),
    [
        (pa.table({"key": ["k"]}), "value"),
        (pa.table({"value": [1]}), "value"),
        (pa.table({"value": ["v"], "key": [1.5]}), "key"),
        (pa.table({"value": ["v"], "timestamp": ["noon"]}), "timestamp"),
        (pa.table({"value": ["v"], "headers": ["h"]}), "headers"),
        (pa.table({"value": ["v"], "partition": ["0"]}), "partition"),
        (pa.table({"value": ["v"], "valeu": ["0"]}), "valeu"),
    ],
)
def test_a_column_that_cannot_be_stored_is_named(store: logstore.LogStore, table: pa.Table, hint: str) -> None:
    store.create_topic("t")
    with pytest.raises(InvalidRecordError, match=hint):
        store.append("t", table)
    assert store.offsets("t")[0].count == 0


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ms")])
def test_a_time_before_1970_is_refused_and_minus_one_is_none(store: logstore.LogStore, kind: pa.DataType) -> None:
    store.create_topic("t")
    with pytest.raises(InvalidRecordError, match="row 2: timestamp -2 ms is before 1970") as caught:
        store.append("t", rows(["a", "b", "c"], timestamp=pa.array([0, -1, -2], kind)))
    assert caught.value.row == 2
    assert store.offsets("t")[0].count == 0
    store.append("t", rows(["a", "b"], timestamp=pa.array([0, -1], kind)))
    back = store.read("t", partition=0).read_all()["timestamp"].cast(pa.int64())
    assert back.to_pylist() == [0, -1]


def test_a_record_that_is_too_large_is_refused_before_anything_is_written(store: logstore.LogStore) -> None:
    store.create_topic("t", partitions=2, config={"max.message.bytes": 1000})
    table = rows(["small", "x" * 2000], partition=pa.array([0, 1], pa.int32()))
    with pytest.raises(RecordTooLargeError, match=r"row 1.*max\.message\.bytes") as caught:
        store.append("t", table)
    assert caught.value.limit_bytes == 1000
    assert sum(r.count for r in store.offsets("t").values()) == 0


def test_a_compacted_topic_needs_keys(store: logstore.LogStore) -> None:
    store.create_topic("t", config={"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError, match=r"row 1.*key.*compact"):
        store.append("t", rows(["a", "b"], key=["k", None]))
    with pytest.raises(InvalidRecordError, match="key"):
        store.append("t", rows(["a"]))
    store.append("t", rows(["a", None], key=["k", "k"]))


def test_max_message_bytes_bounds_every_batch(store: logstore.LogStore) -> None:
    store.create_topic("t", config={"max.message.bytes": 500, "segment.bytes": 1_000_000})
    store.append("t", rows(["x" * 90] * 100))
    sizes = [size for size, _ in _batches(store)]
    assert sum(n for _, n in _batches(store)) == 100
    assert max(sizes) <= 500


def test_a_batch_never_exceeds_the_segment(store: logstore.LogStore) -> None:
    store.create_topic("t", config={"segment.bytes": 400})
    store.append("t", rows(["x" * 90] * 100))
    assert all(s.size_bytes <= 400 for s in store.log("t", 0).segments())
    assert len(values_of(store, "t")) == 100


def _batches(store: logstore.LogStore) -> list[tuple[int, int]]:
    from logstore.records.batch import batches

    found = []
    for segment in store.log("t", 0).segments():
        found += [(header.size_bytes, header.count) for _, header in batches(Path(segment.path).read_bytes())]
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_codec_of_the_topic_wins_over_that_of_the_writer(store: logstore.LogStore, codec: str) -> None:
    from logstore.records.batch import header_at

    store.create_topic("chosen", config={"compression.type": "uncompressed" if codec == "none" else codec})
    store.create_topic("free")
    for topic, asked in (("chosen", "gzip" if codec != "gzip" else "lz4"), ("free", codec)):
        store.append(topic, rows(["x" * 100] * 10), compression=asked)
        raw = Path(store.log(topic, 0).segments()[0].path).read_bytes()
        assert header_at(raw).codec.name.lower() == codec
        assert values_of(store, topic) == [b"x" * 100] * 10


def test_log_append_time_replaces_the_writers_timestamps(store: logstore.LogStore) -> None:
    store.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    store.append("t", rows(["v"], timestamp=pa.array([5], pa.int64())))
    table = store.read("t", partition=0).read_all()
    assert table["timestampType"].to_pylist() == [1]
    assert table["timestamp"].cast(pa.int64())[0].as_py() > 1_700_000_000_000


def test_a_range_of_offsets_is_read_exactly(store: logstore.LogStore) -> None:
    store.create_topic("t")
    for start in range(0, 100, 7):
        store.append("t", rows([str(i) for i in range(start, start + 7)]))
    for start, end in [(0, 0), (0, 1), (5, 9), (6, 8), (50, 105), (105, 105)]:
        table = store.read("t", partition=0, start=start, end=end).read_all()
        assert table["offset"].to_pylist() == list(range(start, end))


def test_batches_are_about_as_large_as_asked_for(store: logstore.LogStore) -> None:
    store.create_topic("t", config={"max.message.bytes": 20_000})
    store.append("t", rows(["x" * 1000] * 1000))
    counts = {}
    for batch_bytes in (0, 100_000, 4_000_000):
        batches = list(store.read("t", partition=0, batch_bytes=batch_bytes))
        assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(1000))
        counts[batch_bytes] = max(batch.num_rows for batch in batches)
    assert counts[0] < 20
    assert 80 < counts[100_000] < 100 < counts[4_000_000]


@pytest.mark.parametrize(("start", "end"), [(-1, 1), (0, 4), (4, 4)])
def test_offsets_out_of_range_say_what_there_is(store: logstore.LogStore, start: int, end: int) -> None:
    store.create_topic("t")
    store.append("t", rows(["a", "b", "c"]))
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0, which holds offsets 0 to 3"):
        store.read("t", partition=0, start=start, end=end)


def test_only_the_columns_asked_for_are_read(store: logstore.LogStore) -> None:
    store.create_topic("t")
    store.append("t", rows(["a"]))
    reader = store.read("t", partition=0, columns=["offset", "value"])
    assert reader.schema.names == ["offset", "value"]
    assert reader.read_all().to_pylist() == [{"offset": 0, "value": b"a"}]
    with pytest.raises(InvalidRequestError, match="no column 'valeu'; did you mean 'value'"):
        store.read("t", partition=0, columns=["valeu"])


def test_offsets_for_times_find_the_first_record_at_or_after(store: logstore.LogStore) -> None:
    store.create_topic("t", partitions=2)
    store.append(
        "t",
        rows(["a", "b", "c"], timestamp=pa.array([10, 20, 30], pa.int64()), partition=pa.array([0, 0, 0])),
    )
    found = {ms: store.offsets_for_times("t", {0: ms})[0] for ms in (0, 10, 11, 30, 31)}
    assert {ms: hit and (hit.offset, hit.timestamp_ms) for ms, hit in found.items()} == {
        0: (0, 10),
        10: (0, 10),
        11: (1, 20),
        30: (2, 30),
        31: None,
    }
    assert store.offsets_for_times("t", 20)[1] is None


def test_tail_starts_at_the_end_unless_told_otherwise(store: logstore.LogStore) -> None:
    store.create_topic("t")
    store.append("t", rows(["old"]))
    assert [b["value"].to_pylist() for b in store.tail("t", start="earliest", timeout_ms=0)] == [[b"old"]]
    assert list(store.tail("t", timeout_ms=0)) == []
    with pytest.raises(InvalidRequestError, match="start='newest'"):
        next(store.tail("t", start="newest"))  # type: ignore[arg-type]


def test_tail_yields_what_comes_after_it_began(store: logstore.LogStore) -> None:
    store.create_topic("t")
    store.append("t", rows(["a"]))
    tail = store.tail("t", start={0: 0}, timeout_ms=0)
    first = next(tail)
    assert (first["partition"].to_pylist(), first["value"].to_pylist()) == ([0], [b"a"])
    store.append("t", rows(["b"]))
    store.alter_topic("t", partitions=2)
    store.append("t", rows(["c"], partition=pa.array([1], pa.int32())))
    assert [(b["partition"][0].as_py(), b["value"][0].as_py()) for b in tail] == [(0, b"b"), (1, b"c")]


def test_closing_makes_appends_durable_and_marks_a_clean_end(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", rows(["a"]))
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert "t 0 1" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = logstore.open(tmp_path)
    store.close()
    store.close()
    with pytest.raises(InvalidRequestError, match="is closed"):
        store.topics()
