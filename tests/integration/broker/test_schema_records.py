"""The leader of `_schemas` judges each record by its own log, and no id is handed out twice."""

import json

from logstore.records.batch import TRANSACTIONAL, Record, build
from logstore.schemas.subjects import (
    MARK,
    TOPIC,
    Registered,
    Schema,
    Subjects,
    config_record,
    schema_record,
)
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from tests.support.site import PATIENT, Site, on_loop, until

SCHEMAS = TopicPartition(TOPIC, 0)
OURS = ((MARK.decode(), b""),)
NOOP = (b'{"keytype":"NOOP","magic":0}', None)


def text(name):
    return Schema("AVRO", json.dumps(name))


def version(subject, number, schema_id, name):
    return schema_record(Registered(subject, number, schema_id, text(name)))


async def propose(broker, *records, headers=OURS, acks=-1, **options):
    """Append these records as one batch; return the code, the refused rows, and what was said."""
    rows = [Record(i, 1_000, key, value, headers) for i, (key, value) in enumerate(records)]
    found = await broker.replicas.append({SCHEMAS: build(rows, **options)}, acks=acks, timeout_ms=60_000)
    return found[SCHEMAS].error_code, found[SCHEMAS].wrong_rows, found[SCHEMAS].error_message or ""


GOOD = (ErrorCode.NONE, (), "")


def ids(broker):
    return [json.loads(value)["id"] for value in broker.stored(SCHEMAS)]


async def with_schemas(site, replicas=(1,), *, started=None, **properties):
    brokers = await site.start(*(started or replicas), **properties)
    await site.create(SCHEMAS, replicas=replicas, config={"cleanup.policy": "compact"})
    return brokers


@on_loop
async def test_a_record_that_contradicts_the_log_is_refused_with_its_row_and_the_reason(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await with_schemas(site)
        assert await propose(one, version("s", 1, 1, "a")) == GOOD
        code, rows, said = await propose(one, version("t", 1, 1, "b"))
        assert (code, rows) == (ErrorCode.INVALID_RECORD, (0,))
        assert said.endswith("record 0 of the batch: id 1 is not that of this schema, 2")
        code, rows, said = await propose(one, version("t", 1, 2, "b"), version("u", 2, 3, "c"))
        assert (code, rows) == (ErrorCode.INVALID_RECORD, (1,))
        assert "version 2 of subject 'u' is not the next, 1" in said
        assert await propose(one, version("t", 1, 2, "c")) == GOOD  # the batch before left nothing of it
        assert await propose(one, version("t", 1, 2, "c")) == GOOD  # the same again, as after a lost answer
        assert await propose(one, config_record(None, "NONE")) == GOOD
        assert (await propose(one, (b"x", b"y")))[2].endswith("no record of _schemas: its key is no JSON object")
        code, _, said = await propose(one, version("t", 2, 3, "d"), attributes=TRANSACTIONAL, producer=(7, 0, 0))
        assert (code, said.endswith("it is of a transaction")) == (ErrorCode.INVALID_RECORD, True)


@on_loop
async def test_every_leader_judges_by_its_own_log(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await with_schemas(site, (1, 2))
        assert await propose(one, version("s", 1, 1, "a")) == GOOD
        await site.elect(2, SCHEMAS)
        assert (await propose(one, version("t", 1, 2, "b")))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await propose(two, version("t", 1, 1, "b")))[0] == ErrorCode.INVALID_RECORD
        assert await propose(two, version("t", 1, 2, "b")) == GOOD
        await site.elect(1, SCHEMAS)
        assert (await propose(one, version("u", 1, 2, "c")))[0] == ErrorCode.INVALID_RECORD
        assert await propose(one, version("u", 1, 3, "c")) == GOOD
        await until(lambda: ids(one) == ids(two) == [1, 2, 3])


@on_loop
async def test_what_a_leader_loses_is_not_counted_when_it_leads_again(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await with_schemas(site, (1, 2), **PATIENT)
        assert await propose(one, version("s", 1, 1, "a")) == GOOD
        await site.elect(2, SCHEMAS, isr=(1, 2))
        await two.stop()
        await site.elect(1, SCHEMAS, isr=(1,))
        assert await propose(one, version("t", 1, 2, "b"), acks=1) == GOOD
        two = await site.brokers[2].start()
        await site.elect(2, SCHEMAS, isr=(2,))  # uncleanly: it has not got that
        await until(lambda: ids(one) == [1])
        assert await propose(two, version("u", 1, 2, "c"), acks=1) == GOOD
        await until(lambda: ids(one) == [1, 2])
        await site.elect(1, SCHEMAS, isr=(1, 2))
        assert "id 2 is not that of this schema, 3" in (await propose(one, version("t", 1, 2, "b")))[2]


@on_loop
async def test_a_batch_that_was_appended_before_does_not_count_again(tmp_path):
    """A producer sends a deletion again, whose answer was lost, after another one registered the version anew."""
    async with Site(tmp_path) as site:
        (one,) = await with_schemas(site)
        state = Subjects()
        for number, record in enumerate([version("s", 1, 1, "a"), config_record(None, "NONE")]):
            assert await propose(one, record, producer=(7, 0, number)) == GOOD
            state.apply(*record, is_ours=True)
        (deleted,) = state.to_delete("s", 1)
        state.apply(*deleted, is_ours=True)
        gone = state.to_remove("s", 1)
        assert await propose(one, deleted, producer=(7, 0, 2)) == GOOD
        assert await propose(one, *gone, producer=(7, 0, 3)) == GOOD
        assert "id 1 is not that of this schema, 2" in (await propose(one, version("s", 1, 1, "b")))[2]
        assert await propose(one, version("s", 1, 2, "b")) == GOOD
        assert await propose(one, *gone, producer=(7, 0, 3)) == GOOD
        assert "subject 's' has another version 1" in (await propose(one, version("s", 1, 3, "c")))[2]


@on_loop
async def test_a_topic_has_writers_of_one_kind(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await with_schemas(site)
        assert await propose(one, NOOP, (b"any", b"thing"), headers=()) == GOOD
        assert await propose(one, version("s", 1, 7, "a"), headers=()) == GOOD
        assert "register through its address" in (await propose(one, version("t", 1, 8, "b")))[2]
    async with Site(tmp_path / "ours") as site:
        (one,) = await with_schemas(site)
        assert await propose(one, version("s", 1, 1, "a")) == GOOD
        assert "pylog hands out the ids" in (await propose(one, NOOP, headers=()))[2]


@on_loop
async def test_what_is_not_committed_yet_counts(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await with_schemas(site, (1, 2), started=(1,), **PATIENT)
        assert await propose(one, version("s", 1, 1, "a"), acks=1) == GOOD
        assert one.replicas.partitions()[SCHEMAS].role.high_watermark == 0
        assert (await propose(one, version("t", 1, 1, "b"), acks=1))[0] == ErrorCode.INVALID_RECORD
