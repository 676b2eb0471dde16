"""Produce, Fetch and what is asked of offsets, as clients say it: over a socket, in every version that is served."""

import asyncio
import contextlib
import gc
import itertools
import struct

import pytest

from logstore.records.batch import Record, build
from logstore.records.compression import Codec
from logstore.records.marker import end_marker
from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.broker_epochs import WrongEpochs
from replication.broker.handlers.fetch import FetchHandlers
from replication.broker.handlers.offsets import PositionHandlers
from replication.broker.handlers.produce import ProduceHandler
from replication.errors import ErrorCode
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition, topic_uuid
from replication.protocol import interbroker as ib
from replication.protocol.apis import SERVED, ApiKey
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
from tests.support.partition import appended, ended
from tests.support.peer import Peer, serving
from tests.support.site import T0, Site, batch, coordinators_of, on_loop, until, values_of
from tests.support.waits import stays
from tests.unit.replication.network.test_bounds import slow_reader

T1 = TopicPartition("orders", 1)
TRANSACTIONAL = 0x10


class Client(Peer):
    """One connection to a broker of the site, and requests with few words."""

    def keep(self, site):
        self.site = site
        return self

    async def inform(self):
        """Tell broker 1 what the controller knows."""
        topics = {}
        for tp, state in self.site.states.items():
            row = ib.UpdateMetadataPartition(
                partition_index=tp.partition, controller_epoch=1, leader=state.leader, zk_version=state.version,
                leader_epoch=state.leader_epoch, isr=state.isr, replicas=self.site.replicas[tp],
            )  # fmt: skip
            topics.setdefault(tp.topic, []).append(row)
        nodes = [
            ib.UpdateMetadataBroker(id=number, endpoints=(
                ib.UpdateMetadataEndpoint(port=1000 + number, host="127.0.0.1", listener="PLAINTEXT"),))
            for number in self.site.brokers
        ]  # fmt: skip
        one = self.site.brokers[1]
        await one.replicas.requests.obey(ib.UpdateMetadataRequest(
            controller_id=0, controller_epoch=1, broker_epoch=one.epoch, live_brokers=tuple(nodes),
            topic_states=tuple(
                ib.UpdateMetadataTopic(
                    topic_name=name, topic_id=topic_uuid(self.site.topic_ids[name]), partition_states=tuple(rows)
                ) for name, rows in topics.items()
            ),
        ))  # fmt: skip

    async def produce(self, records, *, tp=T0, acks=-1, version=9, **fields):
        (topic,) = (await self.produce_many({tp: records}, acks=acks, version=version, **fields)).topics
        return topic.partitions[0]

    async def produce_many(self, records, *, acks=-1, version=9, **fields):
        topics = tuple(
            ProduceTopic(topic, (ProducePartition(p, data),), topic_uuid(self.site.topic_ids.get(topic)))
            for (topic, p), data in records.items()
        )
        return await self.ask(ApiKey.PRODUCE, version, ProduceRequest(acks, 5000, topics, **fields))

    def fetch_request(self, offsets, version, *, max_wait_ms=0, min_bytes=1, each_bytes=1 << 20, **fields):
        topics = []
        for (topic, partition), offset in offsets.items():
            number = topic_uuid(self.site.topic_ids[topic]) if version >= 13 else None
            asked = FetchPartition(partition, offset, each_bytes)
            topics.append(FetchTopic(None if version >= 13 else topic, number, (asked,)))
        return FetchRequest(max_wait_ms, min_bytes, tuple(topics), **fields)

    async def fetch_many(self, offsets, *, version=12, **options):
        request = self.fetch_request(offsets, version, **options)
        return await self.ask(ApiKey.FETCH, version, request)

    async def fetch(self, offset=0, *, tp=T0, **options):
        (topic,) = (await self.fetch_many({tp: offset}, **options)).topics
        return topic.partitions[0]

    async def list_offset(self, timestamp, *, version=7, **fields):
        asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        topics = [{"name": "orders", "partitions": [asked]}]
        body = {"replica_id": -1, "isolation_level": 0, "timeout": 0, "topics": topics}
        found = (await self.ask(ApiKey.LIST_OFFSETS, version, body | fields)).topics[0].partitions[0]
        return found.error_code.value, found.offset, found.timestamp


@contextlib.asynccontextmanager
async def client_of(tmp_path, *, brokers=(1,), **config):
    """A client of broker 1, which leads two partitions of `orders`."""
    async with Site(tmp_path) as site:
        one = (await site.start(*brokers, **config))[0]
        for tp in (T0, T1):
            await site.create(tp, replicas=(1,))
        coordinators = coordinators_of(one)
        handlers = {
            **FetchHandlers(one.config, one.replicas, WrongEpochs()).handlers(),
            **PositionHandlers(one.replicas).handlers(),
            **coordinators.handlers(FeatureLevel()),
        }
        produce = ProduceHandler(one.config, one.replicas, coordinators.verification)
        turns = {**produce.turns(), **coordinators.turns()}
        async with serving(handlers, turns=turns) as (server, port):
            client = (await Client.connect(port)).keep(site)
            client.server = server
            await client.inform()
            yield client


def served(key):
    return range(SERVED[key].first, SERVED[key].last + 1)


# -------------------------------------------------------------------- produce


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


# ---------------------------------------------------------------------- fetch


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


# ------------------------------------------------------------------ positions


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
