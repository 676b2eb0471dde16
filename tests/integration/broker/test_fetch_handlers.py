"""Fetch, as clients say it: over a socket, in every version that is served."""

import asyncio
import gc
import itertools

from logstore.records.batch import Record, build
from replication.broker.handlers.fetch import FetchHandlers
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey
from replication.protocol.messages import (
    Aborted,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    Isolation,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from replication.replica.leader.rows import Row
from replication.replica.leader.sessions import FetchSession
from tests.support.data_client import T1, TRANSACTIONAL, Client, client_of
from tests.support.partition import appended, ended
from tests.support.site import T0, batch, on_loop, until, values_of
from tests.support.waits import stays
from tests.unit.replication.network.test_bounds import slow_reader


@on_loop
async def test_no_session_is_kept_and_a_stale_one_is_said_to_be_unknown(tmp_path):
    async with client_of(tmp_path) as client:
        await client.produce(bytes(batch(b"a")))
        for epoch in (-1, 0):
            answer = await client.fetch_many({T0: 0}, session_epoch=epoch)
            assert (answer.error_code, answer.session_id, len(answer.topics)) == (0, 0, 1)
        answer = await client.fetch_many({}, session_id=77, session_epoch=3)
        assert (answer.error_code, answer.topics) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())


@on_loop
async def test_errors_of_one_partition_hide_no_data_of_another_and_let_nobody_wait(tmp_path):
    async with client_of(tmp_path) as client:
        await client.produce(bytes(batch(b"a")), tp=T1)
        client.site.topic_ids["none"] = client.site.topic_ids["orders"][::-1]
        for version in (12, 13):
            wanted = {TopicPartition("none", 0): 0, T0: 99, T1: 0}
            answer = await client.fetch_many(wanted, version=version, max_wait_ms=60_000, min_bytes=10**6)
            codes = sorted(row.error_code for topic in answer.topics for row in topic.partitions)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes == sorted([0, ErrorCode.OFFSET_OUT_OF_RANGE, unknown])


@on_loop
async def test_what_is_answered_at_once_is_what_any_fetch_gets(tmp_path, monkeypatch):
    """One partition answers alike to any request, and with a transaction in the log, too."""
    fetch_one = FetchHandlers._fetch_one
    ways = {"at once": fetch_one, "in steps": lambda *_: None}
    async with client_of(tmp_path) as client:
        log = client.site.brokers[1].replicas.partition(*T0).replica.log
        for size in (10, 5000, 100):
            await client.produce(bytes(batch(*[bytes(size)] * 3)))
        for is_transactional in (False, True):
            if is_transactional:
                appended(log, build([Record(0, 0, None, b"open")], attributes=TRANSACTIONAL, producer=(4, 0, 0)))
            known = 0
            for version, offset, isolation, options, epoch in itertools.product(
                (10, 11, 12, 13, 16),
                (-1, 0, 1, 5, 9, 99),
                Isolation,
                ({}, {"each_bytes": 1}, {"max_bytes": 400}, {"each_bytes": -1}, {"max_bytes": 0}, {"min_bytes": 300}),
                (-1, 0, 7),
            ):
                request = client.fetch_request({T0: offset}, version, isolation=isolation, **options)
                (topic,) = request.topics
                asked = topic.partitions[0]._replace(current_leader_epoch=epoch)
                request = request._replace(topics=(topic._replace(partitions=(asked,)),))
                found = {}
                for name, way in ways.items():
                    monkeypatch.setattr(FetchHandlers, fetch_one.__name__, way)
                    found[name] = told(await client.ask(ApiKey.FETCH, version, request))
                assert found["at once"] == found["in steps"]
                known += bool(found["at once"][0].records)
            assert known > 200


def told(answer):
    """Its partitions, with bytes that can be compared."""
    return [row._replace(records=bytes(row.records)) for topic in answer.topics for row in topic.partitions]


@on_loop
async def test_the_first_batch_comes_however_large_and_the_rest_keeps_to_the_bytes(tmp_path):
    """(KIP-74)"""
    async with client_of(tmp_path) as client:
        for tp in (T0, T1):
            for _ in range(3):
                await client.produce(bytes(batch(bytes(100_000))), tp=tp)
        sizes = await sizes_of(client, {T0: 0, T1: 0}, max_bytes=1)
        assert sizes == [1, 0]
        assert await sizes_of(client, {T1: 0, T0: 0}, max_bytes=1) == [1, 0]
        assert await sizes_of(client, {T0: 3, T1: 0}, max_bytes=1) == [0, 1]  # the first that has any
        assert await sizes_of(client, {T0: 0, T1: 0}, max_bytes=250_000) == [2, 0]
        assert await sizes_of(client, {T0: 0, T1: 0}, max_bytes=350_000) == [3, 0]
        assert await sizes_of(client, {T0: 0, T1: 0}, each_bytes=150_000) == [1, 1]
        assert await sizes_of(client, {T0: 0, T1: 0}, each_bytes=0) == [1, 1]


async def sizes_of(client, offsets, **options):
    answer = await client.fetch_many(offsets, **options)
    return [len(values_of(row.records)) for topic in answer.topics for row in topic.partitions]


@on_loop
async def test_readers_who_do_not_read_cost_a_bounded_amount_of_memory(tmp_path, monkeypatch):
    """Answers of up to fetch.max.bytes each, for clients that never take them."""
    monkeypatch.setattr("replication.network.work.UNSENT_BYTES_MAX", 20 << 20)
    async with client_of(tmp_path) as client:
        for _ in range(10):
            await client.produce(bytes(batch(bytes(1_000_000))))
        port = client.writer.get_extra_info("peername")[1]
        deaf = [await slow_reader(port) for _ in range(40)]
        for peer in deaf:
            peer.send(ApiKey.FETCH, 11, client.fetch_request({T0: 0}, 11, each_bytes=1 << 30))
        server = client.server
        await until(lambda: server.admission.unsent_bytes > 10 << 20)
        await stays(lambda: server.admission.unsent_bytes < 100 << 20, 0.5)  # and not 400 MB
        assert len(values_of((await client.fetch(0)).records)) >= 1  # others are served, a batch at a time
        for peer in deaf:
            peer.close()
        await until(lambda: server.admission.unsent_bytes == 0)
        assert len(values_of((await client.fetch(0, each_bytes=1 << 30)).records)) > 1


@on_loop
async def test_a_partition_asked_for_many_times_is_read_once(tmp_path):
    async with client_of(tmp_path) as client:
        await client.produce(bytes(batch(bytes(100_000))))
        asked = FetchTopic("orders", None, (FetchPartition(0, 0, 1 << 20),) * 5000)
        answer = await client.ask(ApiKey.FETCH, 11, FetchRequest(0, 1, (asked, asked)))
        assert [len(topic.partitions) for topic in answer.topics] == [1]


@on_loop
async def test_the_records_of_an_answer_wait_for_no_collector_of_garbage(tmp_path):
    async with client_of(tmp_path) as client:
        await client.produce(bytes(batch(b"x")))
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert (await client.fetch_many({T0: 0, T1: 0})).topics
                assert (await client.fetch_many({T0: 1, T1: 0}, max_wait_ms=20)).topics  # it waits
            await asyncio.sleep(0)  # the connection has let go of the request
            # Not by isinstance: it asks what a weak proxy of another test stands for, which may be gone.
            assert not [each for each in gc.get_objects() if type(each) in (Row, FetchSession)]
        finally:
            gc.enable()


@on_loop
async def test_a_parked_fetch_gets_what_comes(tmp_path):
    async with client_of(tmp_path) as client:
        other = (await Client.connect(client.writer.get_extra_info("peername")[1])).keep(client.site)
        waiting = asyncio.ensure_future(client.fetch(0, max_wait_ms=30_000))
        await stays(lambda: not waiting.done(), 0.05)
        await other.produce(bytes(batch(b"news")), acks=1)
        assert values_of((await waiting).records) == [b"news"]


@on_loop
async def test_who_reads_committed_data_is_told_what_was_aborted(tmp_path):
    async with client_of(tmp_path) as client:
        log = client.site.brokers[1].replicas.partition(*T0).replica.log
        for number, value in enumerate((b"aborted", b"open")):
            producer = (40 + number, 0, 0)
            records = build([Record(0, 0, None, value)], attributes=TRANSACTIONAL, producer=producer)
            appended(log, records)
            if value == b"aborted":
                ended(log, 40, 0, commit=False)
        await client.produce(bytes(batch(b"plain")))
        committed = await client.fetch(0, isolation=Isolation.READ_COMMITTED)
        assert committed.aborted == (Aborted(40, 0),)
        assert (committed.last_stable_offset, committed.high_watermark) == (2, 4)
        assert values_of(committed.records)[0] == b"aborted"
        assert b"open" not in values_of(committed.records)
        everything = await client.fetch(0)
        assert everything.aborted is None
        assert b"open" in values_of(everything.records)


@on_loop
async def test_every_fetch_tells_where_a_transaction_is_open(tmp_path):
    """Whatever the isolation, and at the log's end, too, where nothing is read; at once, waiting, after a restart."""
    async with client_of(tmp_path) as client:
        (one,) = client.site.brokers.values()
        log = one.replicas.partition(*T0).replica.log
        await client.produce(bytes(batch(b"plain", b"plain")))
        appended(log, build([Record(0, 0, None, b"open")], attributes=TRANSACTIONAL, producer=(4, 0, 0)))
        await client.produce(bytes(batch(b"plain")))
        for is_looked_up in (False, True):
            if is_looked_up:  # nobody has asked for the producers since the log was opened
                log._tracker.forget()
            for version, isolation, offset, wait_ms in itertools.product((10, 12, 16), Isolation, (0, 3, 4), (0, 10)):
                found = await client.fetch(offset, version=version, isolation=isolation, max_wait_ms=wait_ms)
                assert (found.last_stable_offset, found.high_watermark) == (2, 4)
        ended(log, 4, 0, commit=True)
        await client.produce(bytes(batch(b"plain")))
        for isolation, offset in itertools.product(Isolation, (0, 6)):
            assert (await client.fetch(offset, isolation=isolation)).last_stable_offset == 6


@on_loop
async def test_who_asks_the_wrong_broker_is_told_the_right_one(tmp_path):
    async with client_of(tmp_path, brokers=(1, 2)) as client:
        client.site.replicas[T0] = (1, 2)
        await client.site.elect(2)
        await client.inform()
        produced = await client.ask(ApiKey.PRODUCE, 10, ProduceRequest(1, 100, (
            ProduceTopic("orders", (ProducePartition(0, bytes(batch(b"a"))),)),)))  # fmt: skip
        fetched = await client.fetch_many({T0: 0}, version=16)
        for answer in (produced, fetched):
            row = answer.topics[0].partitions[0]
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert row.current_leader == (2, 1)
            assert [(node.node_id, node.port) for node in answer.node_endpoints] == [(2, 1002)]
