"""Records of a later release in internal topics: unknown types stay, a value that cannot be read ends the load."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from logstore.records import compaction  # noqa: F401  its kernels: to load or compile them takes longer than any test
from logstore.records.batch import Record, batches, build, records
from replication.broker import internal_topics
from replication.coordinators.groups.classic.events import DeleteGroup
from replication.coordinators.groups.offsets.events import Commit
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.records import offset_key, offset_value
from replication.coordinators.transactions.machine.events import Initialize
from replication.coordinators.transactions.machine.records import key_of, value_of
from replication.coordinators.transactions.machine.state import Phase, Transaction
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from replication.model.metadata import BrokerAddress, PartitionMetadata, PartitionUpdate
from tests.support.site import Site, coordinators_of, on_loop, until

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "500", "min.cleanable.dirty.ratio": "0"}
QUICK = {"log.cleaner.backoff.ms": 100, "group.initial.rebalance.delay.ms": 0}
T0 = TopicPartition("orders", 0)
# Types of Kafka 4.4 that we do not serve, and one that nobody has yet.
LATER = {b"\0\x11\0\x01g": b"\0\0of a group", b"\0\x11\0\x01h": b"\0\0", b"\0\x09\0\x01g": b"\0\0m", b"\x01\0": b"x"}


class Coordinated:
    """A broker that leads the only partition of an internal topic; the test is the controller, and a later release."""

    def __init__(self, site, broker, tp):
        self.site, self.broker, self.tp = site, broker, tp
        self.coordinators = coordinators_of(broker)
        of_groups = tp.topic == OFFSETS_TOPIC
        self.coordinator = self.coordinators.groups if of_groups else self.coordinators.transactions

    async def append(self, rows):
        made = build([Record(number, 1, key, value) for number, (key, value) in enumerate(rows)])
        (found,) = (await self.broker.replicas.append({self.tp: made}, acks=-1, timeout_ms=5000, is_own=True)).values()
        assert found.error_code is ErrorCode.NONE

    def begin(self):
        state, replicas = self.site.states[self.tp], self.site.replicas[self.tp]
        update = PartitionUpdate(self.tp, self.site.topic_ids[self.tp.topic], PartitionMetadata(state, replicas))
        orders = PartitionUpdate(T0, "A" * 22, PartitionMetadata(state, replicas))
        self.broker.replicas.metadata.update(1, [BrokerAddress(1, "127.0.0.1", self.broker.port)], [update, orders])
        self.coordinator.begin()

    async def asked(self, call):
        """Return the answer, once there is one."""
        while True:
            try:
                return await call()
            except KafkaError as error:
                if error.code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                    raise
                await asyncio.sleep(0.01)

    @property
    def log(self):
        return self.broker.replicas.partitions()[self.tp].replica.log

    def latest(self):
        """Return the last value of each key in the log."""
        return {row.key: row.value for row in rows_of(self.log)}

    async def lead_again(self):
        await self.site.elect(-1, self.tp)
        self.coordinator.terms.look()
        await self.site.elect(1, self.tp)
        self.coordinator.terms.look()


@asynccontextmanager
async def coordinated(path, topic, **config):
    async with Site(path) as site:
        tp = TopicPartition(topic, 0)
        (broker,) = await site.start(1, **QUICK)
        await site.create(T0, replicas=[1])
        await site.create(tp, replicas=[1], config=config)
        made = Coordinated(site, broker, tp)
        try:
            yield made
        finally:
            made.coordinators.end()


def lines_about(caplog, words):
    return [each.getMessage() for each in caplog.records if words in each.getMessage()]


@on_loop
async def test_types_that_groups_do_not_know_are_skipped_with_a_line_each_and_outlive_commits_deletions_and_compaction(
    tmp_path, caplog
):
    async with coordinated(tmp_path, OFFSETS_TOPIC, **COMPACTED) as one:
        await one.append([(key, b"\0\0former") for key in LATER])
        await one.append([*LATER.items(), (offset_key("g", T0), offset_value(Committed(5)))])
        one.begin()
        groups = one.coordinator
        assert (await one.asked(lambda: commit(groups, 6))).error is ErrorCode.NONE
        assert sorted(lines_about(caplog, "stay and are skipped")) == [
            "tp=__consumer_offsets-0 records=1 of key version 256 stay and are skipped: a later release wrote them",
            "tp=__consumer_offsets-0 records=1 of key version 9 stay and are skipped: a later release wrote them",
            "tp=__consumer_offsets-0 records=2 of key version 17 stay and are skipped: a later release wrote them",
        ]
        size = one.log.log_end_offset
        for offset in range(7, 40):
            await commit(groups, offset)
        deleted = await groups.ask("g", DeleteGroup)
        assert deleted.error is ErrorCode.NONE
        for _ in range(30):  # segments behind the deletion, so that it is compacted, too
            await commit(groups, 1, "another")
        await until(lambda: len([row for row in rows_of(one.log) if row.offset < size]) <= len(LATER))
        found = one.latest()
        assert {key: found[key] for key in LATER} == LATER
        assert found.get(offset_key("g", T0)) is None


def rows_of(log):
    """Return the records of every segment."""
    rows, offset = [], log.log_start_offset
    while data := log.read(offset, max_bytes=1 << 24).data:
        for at, header in batches(data):
            rows.extend(records(data, at))
            offset = header.last_offset + 1
    return rows


def commit(groups, offset, group="g"):
    return groups.ask(group, lambda request: Commit(request=request, offsets={T0: Committed(offset, -1, "", 1)}))


@on_loop
async def test_an_offset_of_a_later_version_is_neither_absent_nor_overwritten(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(internal_topics, "DAMAGE_RETRY_S", 0.05)
    later = b"\0\x09of a later release"
    async with coordinated(tmp_path, OFFSETS_TOPIC) as one:
        key = offset_key("g", T0)
        await one.append([(key, offset_value(Committed(5))), (key, later)])
        one.begin()
        words = "tp=__consumer_offsets-0 cannot be loaded: the record at offset 1 cannot be read (offset version 9)"
        await until(lambda: len(lines_about(caplog, words)) > 1)
        for ask in (lambda: one.coordinator.group("g"), lambda: one.coordinator.group("another")):
            with pytest.raises(KafkaError) as refused:
                ask()
            assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(KafkaError):
            await commit(one.coordinator, 7)
        assert one.latest() == {key: later}
        # A broker of the later release led it in between, and stored what this one reads.
        await one.append([(key, offset_value(Committed(9)))])
        await one.lead_again()
        assert (await one.asked(lambda: commit(one.coordinator, 10, "other"))).error is ErrorCode.NONE
        assert one.coordinator.group("g").offsets.committed[T0].offset == 9


@on_loop
async def test_types_that_transactions_do_not_know_are_skipped_and_a_value_of_a_later_version_is_not_overwritten(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(internal_topics, "DAMAGE_RETRY_S", 0.05)
    async with coordinated(tmp_path, TRANSACTIONS_TOPIC) as one:
        known = Transaction(id="t", phase=Phase.EMPTY, producer_id=7, producer_epoch=3, timeout_ms=1000)
        await one.append([*LATER.items(), (key_of("t"), value_of(known)), (key_of("u"), b"\0\x09later")])
        one.begin()
        words = "tp=__transaction_state-0 cannot be loaded: the record at offset 5 cannot be read (value version 9)"
        await until(lambda: lines_about(caplog, words))
        with pytest.raises(KafkaError) as refused:
            one.coordinator.transaction("t")
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await one.append([(key_of("u"), None)])
        await one.lead_again()

        def initialize():
            return one.coordinator.ask("t", lambda request: Initialize(request=request, fresh_id=99, timeout_ms=1000))

        begun = await one.asked(initialize)
        assert (begun.producer_id, begun.producer_epoch) == (7, 4)
        assert len(lines_about(caplog, "stay and are skipped")) == 3
        assert {key: value for key, value in one.latest().items() if key in LATER} == LATER
