"""A controller's latest word counts, and its earlier words are over."""

import asyncio
from dataclasses import replace

import pytest

from replication.coordination import nodes, topics
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition, topic_id_of, topic_uuid
from replication.protocol import interbroker as ib
from replication.replica import requests
from tests.support.inside import note_state_changes, storage
from tests.support.site import T0, Site, batch, on_loop, until


def update(broker, *names, controller_epoch=1):
    """A word about the cluster: these topics, of one partition."""
    states = tuple(
        ib.UpdateMetadataTopic(
            topic_name=topic,
            topic_id=topic_uuid(topic[0] * 22),
            partition_states=(
                ib.UpdateMetadataPartition(
                    partition_index=0,
                    controller_epoch=controller_epoch,
                    leader=1,
                    leader_epoch=0,
                    isr=(1,),
                    zk_version=0,
                    replicas=(1,),
                ),
            ),
        )
        for topic in names
    )
    return ib.UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=controller_epoch,
        broker_epoch=broker.epoch,
        topic_states=states,
        live_brokers=(),
    )


@on_loop
async def test_the_cluster_is_known_with_the_first_request_that_is_not_full(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "UPDATE_PARTITIONS_MAX", 2)
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        metadata = one.replicas.metadata
        metadata.is_initialized = False
        told = []
        for names in (("a", "b"), ("c", "d"), ()):
            await one.replicas.requests.obey(update(one, *names))
            told.append(metadata.is_initialized)
        assert told == [False, False, True]


@on_loop
async def test_a_topic_that_was_deleted_while_nobody_told_this_broker_is_not_known_any_more(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        metadata = one.replicas.metadata
        await one.replicas.requests.obey(update(one, "a", "b"))
        await one.replicas.requests.obey(update(one, "c"))
        assert set(metadata.topics()) == {"a", "b", "c"}
        one.epoch += 1  # its session ended, and it has another
        one.replicas.disconnect()
        assert set(metadata.topics()) == {"a", "b", "c"}
        one.replicas.connect(one.tree, one.epoch)
        await one.replicas.requests.obey(update(one, "a", "c"))
        assert set(metadata.topics()) == {"a", "c"}
        await site.begin_term(2)
        await one.replicas.requests.obey(update(one, "c", controller_epoch=2))  # the former one died over it
        assert set(metadata.topics()) == {"c"}
        await one.replicas.requests.obey(update(one, "d", controller_epoch=2))
        assert set(metadata.topics()) == {"c", "d"}


@on_loop
async def test_a_topic_that_its_controller_cannot_tell_of_is_known_on_as_long_as_it_is_in_the_tree(tmp_path):
    """Its nodes were written by hand, say. Groups would forget what they have committed in it."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        metadata = one.replicas.metadata
        await topics.create_topic(site.tree, "a", topic_id_of(topic_uuid("a" * 22)), {0: (1,)}, {})
        await site.tree.set(nodes.topic_path("a"), b"{ not json")
        await one.replicas.requests.obey(update(one, "a", "b"))
        await site.begin_term(2)
        await one.replicas.requests.obey(update(one, controller_epoch=2))
        assert set(metadata.topics()) == {"a"}
        await topics.mark_deleted(site.tree, "a")
        await site.begin_term(3)
        await one.replicas.requests.obey(update(one, controller_epoch=3))
        assert set(metadata.topics()) == set()


@on_loop
async def test_a_topic_recreated_has_nothing_of_the_settings_of_the_former_one(tmp_path):
    """Every broker hears of all settings; who had no replica of a topic does not hear of its end."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        one.replicas.configure("orders", {"max.message.bytes": "1000", "retention.ms": "1"})
        await site.create(replicas=(1,), config={"retention.ms": "7000"})
        config = one.replicas.partitions()[T0].replica.config
        assert (config.max_message_bytes, config.retention_ms) == (1_048_588, 7000)


@pytest.mark.parametrize("settings", [b"{ not json", nodes.encode_config({"retention.ms": "for ever"})])
@on_loop
async def test_no_record_goes_by_settings_that_nobody_understands(tmp_path, settings):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,), config={"retention.ms": "-1"})
        await one.stop()
        await site.tree.set(nodes.topic_config_path("orders"), settings)
        await one.start()
        config = one.replicas.partitions()[T0].replica.config
        assert not config.expires
        assert not config.is_compacted


@on_loop
async def test_records_are_deleted_while_others_are_appended(tmp_path):
    """An append that went with it has an older log start."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        is_over = False

        async def produce():
            while not is_over:
                await one.replicas.append({T0: batch(b"a" * 100)}, acks=1, timeout_ms=5000)
                await asyncio.sleep(0)  # on a quick disk the append is done without a turn of the loop

        producers = [asyncio.ensure_future(produce()) for _ in range(5)]
        partition = one.replicas.partition(*T0)
        try:
            for _ in range(20):
                before = partition.high_watermark
                await until(lambda before=before: partition.high_watermark > before)
                wanted = max(partition.high_watermark - 3, 0)
                deleted = await one.replicas.delete_records(TopicPartition(*T0), wanted, timeout_ms=1000)
                assert deleted.error_code is ErrorCode.NONE
                assert partition.replica.start >= wanted
        finally:
            is_over = True
            await asyncio.gather(*producers)


@on_loop
async def test_a_partition_that_is_not_this_brokers_is_passed_over_with_a_line(tmp_path):
    async with Site(tmp_path) as site:
        one, _ = await site.start(1, 2)
        await site.create(replicas=(2, 3))
        said = []
        note_state_changes(one.replicas, said.append)
        assert await site.tell(1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [(line.level, line.message.partition(" for partition ")[2]) for line in said][1:] == [
            ("WARN", "[orders,0] as itself is not in assigned replica list 2,3")
        ]
        assert T0 not in one.replicas.partitions()


@on_loop
async def test_a_replica_that_takes_no_role_says_why_in_the_log_of_changes(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(2, 1))
        said = []
        for broker in (one, two):
            note_state_changes(broker.replicas, said.append)

        def errors():
            return [line.message.partition(" with correlation")[0] for line in said if line.level == "ERROR"]

        storage(one.replicas).dir.topic_ids.clear()  # its directory is gone
        counted = replace(site.states[T0], isr=(2, 1), leader_epoch=1)
        assert await site.tell(1, state=counted) == ErrorCode.KAFKA_STORAGE_ERROR
        assert errors() == ["Broker 1 skipped the become-follower state change"]
        assert "for partition [orders,0]: " in said[-1].message
        assert "its directory is gone" in said[-1].message

        async def fail(*_):
            raise OSError("no disk")

        two.replicas.partition(*T0).lead = fail
        assert await site.tell(2, state=counted) != ErrorCode.NONE
        assert errors()[1:] == ["Broker 2 skipped the become-leader state change"]
        assert said[-1].message.endswith(": no disk")
