"""Both directions against decoders and encoders that others wrote: kafka-python and aiokafka."""

import warnings
from types import SimpleNamespace

import aiokafka.record.default_records as aiokafka_records
import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaMemoryRecords
from hypothesis import given, settings

from logstore.records import arrow, batch, encoding
from logstore.records.compression import Codec
from logstore.records.rows import Rows
from tests.support.records import numbered, record_lists, records_of, table_of
from tests.support.repeats import times

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own imports
    import kafka.record.default_records as kafka_records
    from kafka.record import MemoryRecords as KafkaMemoryRecords

PEERS = {
    "kafka-python": SimpleNamespace(builder=kafka_records.DefaultRecordBatchBuilder, reader=KafkaMemoryRecords),
    "aiokafka": SimpleNamespace(builder=aiokafka_records.DefaultRecordBatchBuilder, reader=AiokafkaMemoryRecords),
}

both = pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
every_codec = pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)


def peer_encode(peer, records, codec, *, transactional=False, producer=(-1, -1, -1)):
    builder = peer.builder(2, int(codec), transactional, *producer, 1 << 30)
    for r in records:
        builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers))
    return bytes(builder.build())


def peer_decode(peer, data):
    reader, records = peer.reader(bytes(data)), []
    while reader.has_next():
        found = reader.next_batch()
        assert found.validate_crc()
        records += [
            batch.Record(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers)) for r in found
        ]
    return records


def decode_all(data):
    return records_of(arrow.decode(data, start=0, end=2**63 - 1))


@both
@every_codec
@settings(max_examples=times(15, 40))
@given(records=record_lists())
def test_we_read_what_they_write(peer, codec, records):
    data = peer_encode(peer, records, codec)
    assert list(batch.records(data)) == records
    assert decode_all(data) == records


@both
@every_codec
@settings(max_examples=times(15, 40))
@given(records=record_lists())
def test_they_read_what_we_write(peer, codec, records):
    assert peer_decode(peer, batch.build(records, codec=codec)) == records
    buffers = encoding.encode(Rows(table_of(records), now_ms=0), codec=codec, batch_bytes_max=20_000, batch_bytes=5_000)
    assert peer_decode(peer, b"".join(buffers)) == records


@both
def test_they_agree_on_every_byte_of_an_uncompressed_batch(peer):
    records = numbered(40)
    (ours,) = encoding.encode(Rows(table_of(records), now_ms=0), batch_bytes_max=1 << 20)
    theirs = bytearray(peer_encode(peer, records, Codec.NONE))
    batch.stamp(theirs, 0, 0, -1)  # they leave 0 in the leader epoch, where -1 stands for none
    assert bytes(ours) == bytes(theirs)
    assert bytes(batch.build(records)) == bytes(theirs)


@both
def test_batches_of_producers_keep_their_identity(peer):
    data = peer_encode(peer, numbered(3), Codec.NONE, transactional=True, producer=(77, 5, 123))
    header = batch.header_at(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 5, 123)
    assert header.is_transactional
    assert decode_all(data) == numbered(3)


@both
def test_they_see_the_append_time(peer):
    (data,) = encoding.encode(Rows(table_of(numbered(3)), now_ms=0), codec=Codec.GZIP, batch_bytes_max=1 << 20)
    batch.stamp_append_time(data, 0, 4242)
    assert [r.timestamp for r in peer_decode(peer, data)] == [4242] * 3
    assert [r.timestamp for r in decode_all(data)] == [4242] * 3
