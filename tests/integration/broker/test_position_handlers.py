"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords, as clients say it: over a socket, in every version served."""

from logstore.records.batch import Record, build
from logstore.records.compression import Codec
from replication.errors import ErrorCode
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition
from replication.protocol.apis import ApiKey
from tests.support.data_client import TRANSACTIONAL, client_of, served
from tests.support.partition import appended, ended
from tests.support.site import T0, batch, on_loop


@on_loop
async def test_offsets_by_time_in_every_version(tmp_path):
    async with client_of(tmp_path) as client:
        await client.produce(bytes(batch(b"a", b"b", b"c", codec=Codec.GZIP)))  # at 1000, 1001, 1002
        for version in served(ApiKey.LIST_OFFSETS):
            assert await client.list_offset(-1, version=version) == (0, 3, -1)
            assert await client.list_offset(-2, version=version) == (0, 0, -1)
            assert await client.list_offset(1001, version=version) == (0, 1, 1001)
            assert await client.list_offset(5000, version=version) == (0, -1, -1)
            newest = (0, 2, 1002) if version >= 7 else (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
            assert await client.list_offset(-3, version=version) == newest
            for place, since, offset in ((-4, 8, 0), (-5, 9, -1), (-6, 11, -1)):
                known = (0, offset, -1) if version >= since else (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
                assert await client.list_offset(place, version=version) == known
            for unknown in (-7, -(2**63)):
                assert (await client.list_offset(unknown, version=version))[0] == ErrorCode.UNSUPPORTED_VERSION
        twice = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}] * 2
        body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": twice}]}
        rows = (await client.ask(ApiKey.LIST_OFFSETS, 7, body)).topics[0].partitions
        assert [row.error_code for row in rows] == [ErrorCode.INVALID_REQUEST] * 2


@on_loop
async def test_ends_of_leader_epochs_in_every_version(tmp_path):
    async with client_of(tmp_path) as client:
        await client.produce(bytes(batch(b"a", b"b")))
        await client.site.elect(1)
        await client.produce(bytes(batch(b"c")))
        for version in served(ApiKey.OFFSET_FOR_LEADER_EPOCH):
            for epoch, current, expected in ((0, 1, (0, 0, 2)), (1, -1, (0, 1, 3)), (0, 0, (74, -1, -1))):
                asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
                body = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [asked]}]}
                found = await client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, body)
                row = found.topics[0].partitions[0]
                assert (row.error_code.value, row.leader_epoch, row.end_offset) == expected


@on_loop
async def test_records_are_deleted_in_every_version(tmp_path):
    async with client_of(tmp_path) as client:
        await client.produce(bytes(batch(*[b"x"] * 10)))
        for version, offset in zip(served(ApiKey.DELETE_RECORDS), (3, 2, -1), strict=True):
            asked = [{"partition_index": 0, "offset": offset}, {"partition_index": 9, "offset": 1}]
            body = {"timeout": 1000, "topics": [{"name": "orders", "partitions": asked}]}
            rows = (await client.ask(ApiKey.DELETE_RECORDS, version, body)).topics[0].partitions
            assert (rows[0].error_code.value, rows[0].low_watermark) == (0, {3: 3, 2: 3, -1: 10}[offset])
            assert (rows[1].error_code.value, rows[1].low_watermark) == (3, -1)
        assert (await client.fetch(2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@on_loop
async def test_records_of_internal_topics_are_not_for_clients_to_delete(tmp_path):
    internal = TopicPartition(OFFSETS_TOPIC, 0)
    async with client_of(tmp_path) as client:
        await client.site.create(internal, replicas=(1,))
        assert (await client.site.brokers[1].produce(b"a", tp=internal)).base_offset == 0
        asked = [{"partition_index": 0, "offset": 1}]
        body = {"timeout": 1000, "topics": [{"name": OFFSETS_TOPIC, "partitions": asked}]}
        (row,) = (await client.ask(ApiKey.DELETE_RECORDS, 2, body)).topics[0].partitions
        assert (row.error_code, row.low_watermark) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        assert (await client.fetch(0, tp=internal)).error_code == 0


@on_loop
async def test_the_largest_time_is_that_of_a_marker_where_nothing_is_newer(tmp_path):
    """Kafka answers so, too. A lookup by time finds records only."""
    async with client_of(tmp_path) as client:
        log = client.site.brokers[1].replicas.partition(*T0).replica.log
        appended(log, build([Record(0, 5, None, b"a")], attributes=TRANSACTIONAL, producer=(4, 0, 0)))
        ended(log, 4, 0, commit=True)
        await client.produce(bytes(batch(b"old")))  # at 1000
        newest = log.segments()[-1].max_timestamp_ms
        assert newest > 1000
        assert await client.list_offset(-3) == (0, 1, newest)
        assert await client.list_offset(1001) == (0, -1, -1)
