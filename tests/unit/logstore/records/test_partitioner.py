import warnings

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRecordError, InvalidRequestError
from logstore.records.partitioner import PARTITIONERS, group_by_partition, partition_ids, partition_of
from logstore.records.rows import Rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own imports
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2

KEYS = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
ALL = 2**31 - 1  # so many partitions that the hash itself is the partition, but for the largest

# Known results of Java's Utils.murmur2, from Kafka's own tests.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def ids(partitions, *, keys=None, n=None, **options):
    columns = {"value": pa.nulls(len(keys) if keys is not None else n)}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    return partition_ids(Rows(pa.table(columns), now_ms=0), partitions, **options).tolist()


@given(KEYS, st.integers(1, 1000))
def test_murmur3_is_that_of_mmh3(keys, partitions):
    expected = [(mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF) % partitions for key in keys]
    assert ids(partitions, keys=keys) == expected


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()])
@pytest.mark.parametrize("key", ["", "a", "käse", "x" * 100])
def test_a_row_on_its_own_goes_where_it_goes_among_others(kind, key):
    column = pa.array([key, None, key, "b"], pa.string()).cast(kind)
    table = pa.table({"key": column, "value": ["x"] * 4})
    together = partition_ids(Rows(table, now_ms=0), 7).tolist()
    alone = [partition_ids(Rows(table.slice(row, 1), now_ms=0), 7, start=row).tolist()[0] for row in range(4)]
    assert alone == together
    assert together[0] == partition_of(key.encode(), 7)


@given(KEYS, st.integers(1, 1000))
def test_murmur2_is_that_of_other_clients(keys, partitions):
    found = ids(partitions, keys=keys, partitioner="murmur2")
    assert found == [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert found == [(kafka_python_murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]


def test_murmur2_gives_what_java_gives():
    expected = [(hashed & 0x7FFFFFFF) % ALL for hashed in JAVA.values()]
    assert ids(ALL, keys=list(JAVA), partitioner="murmur2") == expected


def test_rows_without_a_key_take_turns():
    assert ids(3, n=7) == [0, 1, 2, 0, 1, 2, 0]
    assert ids(3, n=4, start=2) == [2, 0, 1, 2]
    keys = [None, b"a", None, b"a"]
    found = ids(4, keys=keys, start=1)
    assert (found[0], found[2]) == (1, 3)
    assert found[1] == found[3] == (mmh3.hash(b"a", 0, signed=False) & 0x7FFFFFFF) % 4


def test_an_empty_key_is_a_key():
    assert ids(7, keys=[b"", b""], start=3) == [0, 0]  # murmur3 of nothing is 0


def test_round_robin_and_sticky_ignore_keys():
    assert ids(3, keys=[b"a"] * 4, partitioner="round_robin", start=1) == [1, 2, 0, 1]
    assert ids(3, keys=[b"a", b"b"], partitioner="sticky", start=5) == [2, 2]
    assert ids(3, n=2, partitioner="sticky", start=2**70) == [2**70 % 3] * 2


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint16()])
def test_a_named_partition_wins(kind):
    table = pa.table({"key": [b"a", b"a", b"a"], "partition": pa.array([3, None, 0], kind)})
    hashed = (mmh3.hash(b"a", 0, signed=False) & 0x7FFFFFFF) % 4
    for data in (table, pa.concat_tables([table.slice(0, 1), table.slice(1)]), table.to_batches()[0]):
        assert partition_ids(Rows(data, now_ms=0), 4).tolist() == [3, hashed, 0]
    full = table.drop_columns("key").to_batches()[0].take(pa.array([0, 2, 0])).slice(1)
    assert partition_ids(Rows(full, now_ms=0), 4).tolist() == [0, 3]
    assert partition_ids(Rows(full.slice(2), now_ms=0), 4).tolist() == []
    without = table.set_column(1, "partition", pa.nulls(3))
    assert partition_ids(Rows(without, now_ms=0), 4).tolist() == [hashed] * 3


@pytest.mark.parametrize("wrong", [-1, 4, 2**31, 2**40])
def test_a_partition_that_is_not_there_is_refused(wrong):
    table = pa.table({"value": [b"a", b"b", b"c"], "partition": pa.array([0, None, wrong])})
    with pytest.raises(InvalidRecordError, match=f"partition {wrong} in row 2: the topic has partitions 0 to 3"):
        partition_ids(Rows(table, now_ms=0), 4)


def test_columns_of_a_wrong_kind_are_refused():
    with pytest.raises(InvalidRecordError, match="'partition' is string"):
        partition_ids(Rows(pa.table({"partition": ["1"]}), now_ms=0), 4)
    with pytest.raises(InvalidRecordError, match="'key' is int64"):
        partition_ids(Rows(pa.table({"key": [1]}), now_ms=0), 4)


def test_an_unknown_partitioner_lists_the_near():
    with pytest.raises(InvalidRequestError, match="unknown partitioner 'murmur'; did you mean"):
        ids(3, n=1, partitioner="murmur")


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_no_rows_are_no_trouble(partitioner):
    assert ids(3, keys=[], partitioner=partitioner) == []
    assert group_by_partition(np.array([], dtype=np.int32), 3) == []


@given(st.lists(st.integers(0, 5), max_size=50))
def test_groups_hold_every_row_once_in_order(chosen):
    groups = group_by_partition(np.array(chosen, dtype=np.int32), 6)
    assert [p for p, _ in groups] == sorted(set(chosen))
    assert {p: rows.tolist() for p, rows in groups} == {p: [i for i, q in enumerate(chosen) if q == p] for p in chosen}
