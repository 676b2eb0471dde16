"""A leader refuses records that bear no id of `_schemas`, which another broker leads, and keeps their order."""

import asyncio
import itertools
import json
import struct
from dataclasses import replace

import pytest

from logstore.records.batch import Record, build
from logstore.records.compression import Codec
from logstore.schemas.subjects import MARK, TOPIC, Registered, Schema, schema_record
from replication.errors import ErrorCode
from replication.model.cluster import NO_LEADER, TopicPartition
from replication.model.metadata import BrokerAddress, PartitionMetadata, PartitionUpdate
from replication.replica.leader import guard, schema_ids
from tests.support.inside import loaded_kernels, storage, write_in_threads
from tests.support.site import T0, Site, on_loop, until, values_of, write_at_once

SCHEMAS = TopicPartition(TOPIC, 0)
VALIDATED = {"value.schema.validation": "true"}


def framed(schema_id, data=b"data"):
    return struct.pack(">bi", 0, schema_id) + data


TURNS = itertools.count(1)  # each is newer metadata


def name_leader(site, broker, leader):
    """Have a broker know who leads `_schemas`."""
    brokers = [BrokerAddress(each.id, "127.0.0.1", each.port) for each in site.brokers.values()]
    state = replace(site.states[SCHEMAS], leader=leader, leader_epoch=next(TURNS))
    update = PartitionUpdate(SCHEMAS, site.topic_ids[TOPIC], PartitionMetadata(state, site.replicas[SCHEMAS]))
    broker.replicas.metadata.update(1, brokers, [update])


async def begun(site, config=VALIDATED):
    """Two brokers: the first leads the topic that is judged, the second `_schemas`."""
    one, two = await site.start(1, 2)
    await site.create(SCHEMAS, replicas=(2,), config={"cleanup.policy": "compact"})
    await site.create(replicas=(1,), config=config)
    for broker in (one, two):
        name_leader(site, broker, 2)
    return one, two


async def register(two, subject, version, schema_id, name="string", *, deleted=False):
    entry = Registered(subject, version, schema_id, Schema("AVRO", json.dumps(name)), deleted)
    key, value = schema_record(entry)
    row = build([Record(0, 1_000, key, value, ((MARK.decode(), b""),))])
    found = await two.replicas.append({SCHEMAS: row}, acks=-1, timeout_ms=60_000)
    assert found[SCHEMAS].error_code is ErrorCode.NONE, found


async def send(one, *values, key=None, **options):
    """Return the code, the rows and what is said of one batch."""
    rows = [Record(i, 1_000, key, value) for i, value in enumerate(values)]
    found = (await one.replicas.append({T0: build(rows, **options)}, acks=-1, timeout_ms=60_000))[T0]
    return found.error_code, found.wrong_rows, found.error_message or ""


@pytest.mark.parametrize("way", ["in the loop", "in a thread", "slowly"])
@pytest.mark.parametrize("codec", Codec)
@on_loop
async def test_records_without_a_registered_id_are_refused_with_their_rows(tmp_path, codec, way, monkeypatch):
    guard.load()
    if way == "slowly":
        for name in ("check", "good_batches", "strange_ids"):
            monkeypatch.setattr(loaded_kernels(), name, None)
        monkeypatch.setattr(guard, "LOOKS_BEFORE", 1 << 60)
    async with Site(tmp_path) as site:
        one, two = await begun(site)
        if way == "in the loop":
            write_at_once(storage(one.replicas).disk)
        elif way == "in a thread":
            write_in_threads(one.replicas)
        await register(two, "orders-value", 1, 1)
        await register(two, "orders-key", 1, 2, "int")
        assert await send(one, framed(1), None, framed(1, b""), codec=codec) == (ErrorCode.NONE, (), "")
        for values, rows, said in (
            ([b"text"], (0,), "its value has no schema id: its first byte is not 0"),
            (
                [framed(1), b"\0\0\0\0", b""],
                (1, 2),
                "record 1 of the batch (and so 1 more): its value has no schema id",
            ),
            ([framed(-1), framed(1)], (0,), "bears id -1, which is none of subject 'orders-value' (1)"),
            ([framed(1), framed(2)], (1,), "bears id 2, which is none of subject 'orders-value' (1)"),
            ([framed(2**31 - 1)] * 3, (0, 1, 2), "bears id 2147483647"),
        ):
            code, wrong, message = await send(one, *values, codec=codec)
            assert (code, wrong) == (ErrorCode.INVALID_RECORD, rows)
            assert said in message
        await register(two, "orders-value", 2, 3, "long")
        assert await send(one, framed(3), framed(1), codec=codec) == (ErrorCode.NONE, (), "")  # a moment later


@on_loop
async def test_the_id_of_a_deleted_version_is_refused_a_second_later(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await begun(site)
        await register(two, "orders-value", 1, 1)
        await register(two, "orders-value", 2, 2, "long")
        assert await send(one, framed(1), framed(2)) == (ErrorCode.NONE, (), "")
        await register(two, "orders-value", 1, 1, deleted=True)
        async with asyncio.timeout(60):
            while (found := await send(one, framed(1)))[0] is ErrorCode.NONE:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)  # a turn of the loop, which some appends do without
        assert "bears id 1, which is none of subject 'orders-value' (2)" in found[2]
        assert (await send(one, framed(2)))[0] is ErrorCode.NONE


@on_loop
async def test_a_subject_without_schemas_takes_nothing_and_says_how_to_register(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await begun(site)
        code, rows, said = await send(one, framed(1))
        assert (code, rows) == (ErrorCode.INVALID_RECORD, (0,))
        assert said.endswith(
            "subject 'orders-value' has no schema: register one with `pylog schemas register orders-value`"
        )
        assert (await send(one, None))[0] is ErrorCode.NONE
        await register(two, "orders-value", 1, 1)
        assert (await send(one, framed(1)))[0] is ErrorCode.NONE


@on_loop
async def test_keys_and_values_have_subjects_of_their_own(tmp_path):
    config = {"key.schema.validation": "true", "value.schema.validation": "true"}
    async with Site(tmp_path) as site:
        one, two = await begun(site, config)
        await register(two, "orders-value", 1, 1)
        await register(two, "orders-key", 1, 2, "int")
        assert (await send(one, framed(1), key=framed(2)))[0] is ErrorCode.NONE
        assert (await send(one, framed(1), key=None))[0] is ErrorCode.NONE
        assert "its key bears id 1" in (await send(one, framed(1), key=framed(1)))[2]
        assert "its value bears id 2" in (await send(one, framed(2), key=framed(2)))[2]


@on_loop
async def test_a_refused_batch_takes_no_sequence_number(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await begun(site)
        await register(two, "orders-value", 1, 1)
        assert (await send(one, framed(1), producer=(7, 0, 0)))[0] is ErrorCode.NONE
        for bad in (b"text", framed(9)):
            assert (await send(one, bad, producer=(7, 0, 1)))[0] is ErrorCode.INVALID_RECORD
        assert (await send(one, framed(1), framed(1), producer=(7, 0, 1)))[0] is ErrorCode.NONE
        assert (await send(one, framed(1), producer=(7, 0, 3)))[0] is ErrorCode.NONE


@on_loop
async def test_batches_behind_one_that_waits_for_a_look_stay_behind_it(tmp_path):
    """Nobody leads `_schemas` for a moment, in which records come whose schema is new."""
    async with Site(tmp_path) as site:
        one, two = await begun(site)
        await register(two, "orders-value", 1, 1)
        assert (await send(one, framed(1, b"0"), producer=(7, 0, 0)))[0] is ErrorCode.NONE
        name_leader(site, one, NO_LEADER)
        await register(two, "orders-value", 2, 2, "long")
        sent = []
        for number in range(1, 5):  # each in a turn of its own, some behind the look's begin
            value = framed(2 if number % 2 else 1, b"%d" % number)
            sent.append(asyncio.ensure_future(send(one, value, producer=(7, 0, number))))
            await until(lambda number=number: len(one.role.held.rows) == number)
        name_leader(site, one, 2)
        assert [(await each)[0] for each in sent] == [ErrorCode.NONE] * 4
        await register(two, "orders-value", 3, 3, "int")
        sent = [send(one, framed(3 if number == 5 else 1, b"%d" % number)) for number in range(5, 8)]  # in one turn
        assert [found[0] for found in await asyncio.gather(*sent)] == [ErrorCode.NONE] * 3
        assert [value[5:] for value in one.stored()] == [b"%d" % number for number in range(8)]


@on_loop
async def test_a_broker_that_has_not_heard_of_the_topic_does_not_say_that_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(schema_ids, "LOOK_S", 0.5)
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,), config=VALIDATED)
        assert (await send(one, framed(1)))[0] is ErrorCode.INVALID_RECORD
        await site.create(SCHEMAS, replicas=(1,), config={"cleanup.policy": "compact"})
        await register(one, "orders-value", 1, 1)
        assert (await send(one, framed(1)))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        name_leader(site, one, 1)
        assert (await send(one, framed(1)))[0] is ErrorCode.NONE


@on_loop
async def test_without_schemas_known_ids_are_taken_and_others_may_come_again(tmp_path, monkeypatch):
    monkeypatch.setattr(schema_ids, "LOOK_S", 0.5)
    async with Site(tmp_path) as site:
        one, two = await begun(site)
        await register(two, "orders-value", 1, 1)
        assert (await send(one, framed(1)))[0] is ErrorCode.NONE
        await two.stop()
        assert (await send(one, framed(1)))[0] is ErrorCode.NONE
        code, _, said = await send(one, framed(2))
        assert (code, code.is_retriable) == (ErrorCode.NOT_ENOUGH_REPLICAS, True)
        assert "_schemas cannot be read now" in said
        assert (await send(one, b"text"))[0] is ErrorCode.INVALID_RECORD
        assert (await send(one, framed(1)))[0] is ErrorCode.NONE
        two = await site.brokers[2].start()
        await site.elect(2, SCHEMAS)
        name_leader(site, one, 2)
        await register(two, "orders-value", 2, 2, "long")
        assert (await send(one, framed(2)))[0] is ErrorCode.NONE


@on_loop
async def test_a_leader_that_is_none_any_more_appends_nothing_that_it_held(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(SCHEMAS, replicas=(2,), config={"cleanup.policy": "compact"})
        await site.create(replicas=(1, 2), config=VALIDATED)
        for broker in (one, two):
            name_leader(site, broker, 2)
        await register(two, "orders-value", 1, 1)
        assert (await send(one, framed(1)))[0] is ErrorCode.NONE
        name_leader(site, one, NO_LEADER)
        held = asyncio.ensure_future(send(one, framed(2, b"held")))
        await until(lambda: one.role.held.rows)
        await site.elect(2)
        await register(two, "orders-value", 2, 2, "long")
        name_leader(site, one, 2)
        assert (await held)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await send(two, framed(2)))[0] is ErrorCode.NONE
        await until(lambda: len(one.stored()) == 2)
        assert one.stored() == two.stored()


@on_loop
async def test_the_setting_acts_on_a_running_topic(tmp_path):
    async with Site(tmp_path) as site:
        one, _ = await begun(site, {})
        assert (await send(one, b"text"))[0] is ErrorCode.NONE
        one.replicas.configure("orders", VALIDATED)
        assert (await send(one, b"text"))[0] is ErrorCode.INVALID_RECORD
        one.replicas.configure("orders", {})
        assert (await send(one, b"text"))[0] is ErrorCode.NONE
        read = await one.consume()
        assert values_of(read.records) == [b"text", b"text"]
