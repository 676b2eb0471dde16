"""Produce, and the ids of producers, as clients say it: over a socket, in every version that is served."""

import asyncio
import struct

import pytest

from logstore.records.batch import Record, build
from logstore.records.compression import Codec
from logstore.records.marker import end_marker
from replication.broker.feature_level import FeatureLevel
from replication.errors import ErrorCode
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition
from replication.protocol.apis import ApiKey
from replication.protocol.messages import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from tests.support.data_client import T1, TRANSACTIONAL, Client, client_of, served
from tests.support.peer import serving
from tests.support.site import T0, Site, batch, coordinators_of, on_loop, values_of


@on_loop
async def test_every_version_of_produce_and_fetch_carries_the_same_bytes(tmp_path):
    async with client_of(tmp_path) as client:
        for number, version in enumerate(served(ApiKey.PRODUCE)):
            answer = await client.produce(bytes(batch(b"v%d" % version)), version=version, acks=1)
            assert (answer.error_code, answer.base_offset) == (0, number)
            assert answer.log_start_offset == (0 if version >= 5 else -1)
        expected = [b"v%d" % version for version in served(ApiKey.PRODUCE)]
        first = await client.fetch(0)
        for version in served(ApiKey.FETCH):
            found = await client.fetch(0, version=version)
            assert (found.error_code, found.high_watermark) == (0, len(expected))
            assert bytes(found.records) == bytes(first.records)
        assert values_of(first.records) == expected


def _with_crc_wrong(data):
    data[-1] ^= 1
    return data


def _with_magic(data, magic):
    data[16] = magic
    return data


BROKEN = {
    "two batches": (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
    "no batch": (b"", ErrorCode.INVALID_RECORD),
    "null": (None, ErrorCode.INVALID_RECORD),
    "half a batch": (batch(b"abc")[:-1], ErrorCode.INVALID_RECORD),
    "bytes behind the batch": (batch(b"abc") + b"x", ErrorCode.INVALID_RECORD),
    "old format": (_with_magic(batch(b"a"), 1), ErrorCode.INVALID_RECORD),
    "newer format": (_with_magic(batch(b"a"), 3), ErrorCode.CORRUPT_MESSAGE),
    "wrong checksum": (_with_crc_wrong(batch(b"a")), ErrorCode.CORRUPT_MESSAGE),
    "transactional": (
        build([Record(0, 0, None, b"")], attributes=TRANSACTIONAL, producer=(1, 0, 0)),
        ErrorCode.INVALID_TXN_STATE,
    ),
    "too large": (batch(bytes(1_100_000)), ErrorCode.MESSAGE_TOO_LARGE),
    "unknown codec": (build([Record(0, 0, None, b"")], attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
}


@on_loop
async def test_what_cannot_be_stored_is_refused_with_its_code_and_other_partitions_go_on(tmp_path):
    async with client_of(tmp_path) as client:
        for number, (records, code) in enumerate(BROKEN.values()):
            data = None if records is None else bytes(records)
            answer = await client.produce_many({T0: data, T1: bytes(batch(b"good"))})
            bad, good = (topic.partitions[0] for topic in answer.topics)
            assert (bad.error_code, bad.base_offset) == (code, -1)
            assert bad.error_message
            assert (good.error_code, good.base_offset) == (0, number)
        assert (await client.fetch(0)).high_watermark == 0


@pytest.mark.parametrize("size", [1, 400_000])
@on_loop
async def test_a_base_offset_other_than_0_is_counted_and_taken_or_with_the_setting_refused(tmp_path, caplog, size):
    """Both ways of a Produce, and in a request of many partitions: a real Kafka refuses it."""
    records = bytes(build([Record(5, 1_000, None, bytes(size))]))
    for strict in ("true", "false"):
        async with client_of(tmp_path / strict, produce_base_offset_strict=strict) as client:
            alone = await client.produce(records)
            first, second = (await client.produce_many({T0: records, T1: records})).topics
            codes = [answer.error_code for answer in (alone, first.partitions[0], second.partitions[0])]
            assert codes == [ErrorCode.INVALID_RECORD if strict == "true" else 0] * 3
            counted = client.site.brokers[1].replicas.counters.nonzero_base_offsets
            assert counted == (0 if strict == "true" else 3)
            assert (await client.fetch(0)).high_watermark == (0 if strict == "true" else 2)
    assert sum("with base offset 5" in line for line in caplog.messages) == 1


@on_loop
async def test_clients_do_not_write_to_internal_topics_and_other_topics_of_the_request_go_on(tmp_path):
    internal = TopicPartition(OFFSETS_TOPIC, 0)
    async with client_of(tmp_path) as client:
        await client.site.create(internal, replicas=(1,))
        for number, version in enumerate(served(ApiKey.PRODUCE)):
            asked = {internal: bytes(batch(b"no group")), T0: bytes(batch(b"good"))}
            answer = await client.produce_many(asked, version=version)
            refused, good = (topic.partitions[0] for topic in answer.topics)
            assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
            assert (refused.error_message or "").startswith(OFFSETS_TOPIC) == (version >= 8)
            assert (good.error_code, good.base_offset) == (0, number)
        assert (await client.fetch(0, tp=internal)).high_watermark == 0
        client.send(ApiKey.PRODUCE, 9, ProduceRequest(0, 5000, (
            ProduceTopic(OFFSETS_TOPIC, (ProducePartition(0, bytes(batch(b"unsaid"))),)),
        )))  # fmt: skip
        assert await client.is_closed()  # with acks=0 nobody can be told


@on_loop
async def test_a_compacted_topic_takes_no_record_without_a_key_and_says_which_ones_have_none(tmp_path):
    async with client_of(tmp_path) as client:
        compacted = TopicPartition("kept", 0)
        await client.site.create(compacted, replicas=(1,), config={"cleanup.policy": "compact"})
        rows = [Record(row, 1000, key, b"v") for row, key in enumerate((b"k", None, b"k", None))]
        for codec in (Codec.NONE, Codec.LZ4):
            refused = await client.produce(bytes(build(rows, codec=codec)), tp=compacted)
            assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
            assert [error.batch_index for error in refused.record_errors] == [1, 3]
        assert (await client.produce(bytes(build(rows[::2][:1])), tp=compacted)).base_offset == 0


@on_loop
async def test_zstd_is_for_versions_that_know_it(tmp_path):
    async with client_of(tmp_path) as client:
        records = bytes(batch(b"packed" * 100, codec=Codec.ZSTD))
        refused = await client.produce(records, version=6)
        assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert (await client.produce(records, version=7)).error_code == 0
        assert (await client.fetch(version=9)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert bytes((await client.fetch(version=10)).records)


@on_loop
async def test_a_partition_named_twice_is_refused_in_both_places(tmp_path):
    async with client_of(tmp_path) as client:
        twice = tuple(ProducePartition(0, bytes(batch(b"a"))) for _ in range(2))
        request = ProduceRequest(1, 100, (ProduceTopic("orders", twice),))
        answer = await client.ask(ApiKey.PRODUCE, 7, request)
        assert [row.error_code for row in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2
        assert (await client.fetch(0)).high_watermark == 0


@on_loop
async def test_unknown_partitions_wrong_acks_and_transactions(tmp_path):
    async with client_of(tmp_path) as client:
        good = bytes(batch(b"a"))
        unknown = await client.produce(good, tp=TopicPartition("none", 0))
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await client.produce(good, acks=2)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
        records = bytes(build([Record(0, 0, None, b"")], attributes=TRANSACTIONAL, producer=(1, 0, 0)))
        assert (await client.produce(records)).error_code == ErrorCode.INVALID_TXN_STATE
        marker = bytes(end_marker((1, 0), commit=True, coordinator_epoch=0, now_ms=1))
        unnumbered = records[:53] + b"\xff" * 4 + records[57:]
        for refused, code in ((marker, ErrorCode.INVALID_RECORD), (unnumbered, ErrorCode.INVALID_TXN_STATE)):
            answer = await client.produce(refused, transactional_id="t")
            assert answer.error_code == code


@on_loop
async def test_acks_0_gets_no_answer_and_a_closed_connection_if_it_fails(tmp_path):
    async with client_of(tmp_path) as client:
        request = ProduceRequest(0, 100, (ProduceTopic("orders", (ProducePartition(0, bytes(batch(b"a"))),)),))
        for _ in range(3):
            client.send(ApiKey.PRODUCE, 7, request)
        found = await client.fetch(0)  # its answer comes first: those before it get none
        assert values_of(found.records) == [b"a"] * 3
        client.send(ApiKey.PRODUCE, 7, request._replace(topics=(request.topics[0]._replace(name="none"),)))
        assert await client.is_closed()


@on_loop
async def test_produces_in_flight_together_are_appended_in_order(tmp_path):
    async with client_of(tmp_path) as client:
        for number in range(40):
            records = bytes(batch(b"%d" % number, producer=(7, 0, number)))
            request = ProduceRequest(-1, 5000, (ProduceTopic("orders", (ProducePartition(0, records),)),))
            client.send(ApiKey.PRODUCE, 9, request)
        for _ in range(40):
            assert await client.answered() is not None
        assert values_of((await client.fetch(0)).records) == [b"%d" % number for number in range(40)]


@on_loop
async def test_idempotent_repeats_are_answered_with_the_first_offset_and_gaps_refused(tmp_path):
    async with client_of(tmp_path) as client:
        for first, expected in ((0, 0), (1, 1), (0, 0)):
            answer = await client.produce(bytes(batch(b"a", producer=(9, 0, first))))
            assert (answer.error_code, answer.base_offset) == (0, expected)
        gap = await client.produce(bytes(batch(b"a", producer=(9, 0, 5))))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await client.produce(bytes(batch(b"a", producer=(9, 1, 0))))
        old = await client.produce(bytes(batch(b"a", producer=(9, 0, 2))))
        assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@on_loop
async def test_the_second_batch_of_a_producer_is_not_taken_before_its_first(tmp_path):
    """librdkafka may send it first to a new leader, and takes its success for that of the first one, too."""
    async with client_of(tmp_path) as client:
        second, first = (bytes(batch(b"%d" % at, producer=(9, 0, at))) for at in (1, 0))
        early = await client.produce(second)
        assert (early.error_code, early.log_start_offset) == (ErrorCode.UNKNOWN_PRODUCER_ID, 0)
        for data in (first, second):
            assert (await client.produce(data)).error_code == 0
        assert values_of((await client.fetch(0)).records) == [b"0", b"1"]


@on_loop
async def test_producer_ids_are_given_once_over_brokers_and_restarts(tmp_path):
    async with client_of(tmp_path, brokers=(1, 2)) as client:
        given = []
        for broker in client.site.brokers.values():
            for _ in range(2):  # each time as if the broker had started anew
                async with serving(coordinators_of(broker).handlers(FeatureLevel())) as (_, port):
                    asking = [await Client.connect(port) for _ in range(3)]
                    for version in served(ApiKey.INIT_PRODUCER_ID):
                        for answer in await asyncio.gather(*(init(peer, version) for peer in asking)):
                            assert (answer.error_code.value, answer.producer_epoch) == (0, 0)
                            given.append(answer.producer_id)
        assert len(given) == len(set(given)) == 84


@pytest.mark.parametrize("ids", [1000, 2500])
def test_blocks_of_producer_ids_follow_each_other(tmp_path, ids):
    @on_loop
    async def main():
        from replication.coordination.producer_ids import FIRST_ID, ProducerIds

        async with Site(tmp_path) as site:
            giver = ProducerIds(1, lambda: site.tree)
            assert [await giver.next_id() for _ in range(ids)] == list(range(FIRST_ID, FIRST_ID + ids))

    main()


async def init(client, version, transactional_id=None):
    body = {"transactional_id": transactional_id, "transaction_timeout": 1000}
    body |= {"producer_id": -1, "producer_epoch": -1}
    return await client.ask(ApiKey.INIT_PRODUCER_ID, version, body)


def test_the_batches_of_this_file_are_what_they_say():
    assert struct.unpack_from(">b", BROKEN["old format"][0], 16) == (1,)
