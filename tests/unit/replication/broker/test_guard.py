"""The guard of a leader looks into the records of a batch, in bounded memory."""

import tracemalloc

import pytest

from logstore.config import LogConfig
from logstore.errors import InvalidRecordError
from logstore.records.batch import Record, build
from logstore.records.compression import Codec
from replication.errors import InvalidRecordsError
from replication.replica.leader import guard

MIB = 1024 * 1024
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """What is measured here is not the memory of loading them."""
    check(batch((b"k", b"v", ())))


def check(data):
    guard.check(bytearray(data), COMPACTED, 1_000)


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
    with pytest.raises(InvalidRecordsError) as found:
        check(batch(*rows, codec=codec))
    assert found.value.rows == (1, 3)
    check(batch(rows[0], rows[2], codec=codec))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_explodes_is_refused_in_bounded_memory(codec):
    data = batch((b"k", bytes(2 * guard.EXPANDED_BYTES_MAX), ()), codec=codec)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecordError):
            check(data)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2.1 * guard.EXPANDED_BYTES_MAX + 12 * len(data)


def test_very_many_small_records_cost_no_object_each():
    data = batch(*[(b"", b"", ())] * 5_000, codec=Codec.GZIP)
    tracemalloc.start()
    try:
        check(data)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < MIB // 4


def test_an_error_names_only_so_many_records():
    with pytest.raises(InvalidRecordsError) as found:
        check(batch(*[(None, b"", ())] * 3000))
    assert len(found.value.rows) == 1000
