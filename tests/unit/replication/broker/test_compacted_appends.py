"""What is looked at in records on their way into a compacted topic: their keys, in bounded memory."""

import tracemalloc

import pytest

from logstore.errors import InvalidRecordError
from logstore.records.batch import Record, build
from logstore.records.compression import Codec
from replication.errors import KeylessRecordsError
from replication.replica.leader.leader import _check_keys

MIB = 1024 * 1024


def batch(*rows, codec=Codec.NONE):
    return bytes(
        build(
            [Record(n, 1_000, key, value, headers) for n, (key, value, headers) in enumerate(rows)],
            codec=codec,
        )
    )


@pytest.mark.parametrize("codec", Codec)
def test_records_without_a_key_are_named_whatever_stands_around_them(codec):
    rows = [(b"k", b"v", ()), (None, b"v", (("h", b"x"), ("g", None))), (b"", None, ()), (None, None, ())]
    with pytest.raises(KeylessRecordsError) as found:
        _check_keys(batch(*rows, codec=codec))
    assert found.value.rows == (1, 3)
    _check_keys(batch(rows[0], rows[2], codec=codec))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_explodes_is_refused_in_bounded_memory(codec):
    data = batch((b"k", bytes(80 * MIB), ()), codec=codec)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecordError):
            _check_keys(data)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 50 * MIB + 6 * len(data)


def test_very_many_small_records_cost_no_object_each():
    data = batch(*[(b"", b"", ())] * 5_000, codec=Codec.GZIP)
    tracemalloc.start()
    try:
        _check_keys(data)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < MIB // 4


def test_an_error_names_only_so_many_records():
    with pytest.raises(KeylessRecordsError) as found:
        _check_keys(batch(*[(None, b"", ())] * 3000))
    assert len(found.value.rows) == 1000
