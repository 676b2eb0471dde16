"""A leader takes no batch that readers could not read: the same answers whichever way a Produce takes."""

import re
from pathlib import Path

import pytest

from logstore.records.batch import header_at
from logstore.records.compression import Codec
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.replica.leader import guard
from tests.support.data_client import client_of
from tests.support.hostile_batches import CASES, T_MS, bomb, raw_batch, record
from tests.support.inside import loaded_kernels, storage, write_in_threads
from tests.support.site import batch, on_loop, values_of, write_at_once

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
CONFIG = {
    "plain": {},
    "compact": {"cleanup.policy": "compact"},
    "append time": {"message.timestamp.type": "LogAppendTime"},
}
TOPICS = {kind: TopicPartition(kind.replace(" ", "-"), 0) for kind in CONFIG}


async def made(client):
    for kind, tp in TOPICS.items():
        await client.site.create(tp, replicas=(1,), config=CONFIG[kind])


@pytest.mark.parametrize("way", ["alone, in the loop", "alone, in a thread", "with another partition", "slowly"])
@on_loop
async def test_only_batches_that_can_be_read_are_taken(tmp_path, way, monkeypatch):
    """`slowly`: while the kernels are loaded, or compiled."""
    guard.load()
    if way == "slowly":
        monkeypatch.setattr(loaded_kernels(), "check", None)
        monkeypatch.setattr(guard, "_kernel", lambda records: None)
    async with client_of(tmp_path) as client:
        await made(client)
        if way == "alone, in the loop":
            write_at_once(storage(client.site.brokers[1].replicas).disk)
        elif way == "alone, in a thread":
            write_in_threads(client.site.brokers[1].replicas)
        ends = dict.fromkeys(CONFIG, 0)
        for name, case in CASES.items():
            tp, data = TOPICS[case.kind], None if case.data is None else bytes(case.data)
            if way == "with another partition":
                other = TOPICS["compact" if case.kind == "plain" else "plain"]
                answer = await client.produce_many({tp: data, other: bytes(raw_batch(record(key=b"k")))})
                found = next(topic.partitions[0] for topic in answer.topics if topic.name == tp.topic)
                ends["compact" if case.kind == "plain" else "plain"] += 1
            else:
                found = await client.produce(data, tp=tp)
            assert found.error_code == case.code, name
            assert bool(found.error_message) == (case.code is not ErrorCode.NONE), name
            if case.rows is not None:
                assert tuple(error.batch_index for error in found.record_errors) == case.rows, name
            ends[case.kind] += header_at(data).count if found.error_code == 0 else 0
            assert found.error_code or found.base_offset >= 0, name
        for kind, tp in TOPICS.items():
            read = await client.fetch(0, tp=tp)
            assert read.high_watermark == ends[kind] == len(values_of(read.records))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("told_ms", [T_MS - 5, T_MS + 99])
@on_loop
async def test_the_largest_timestamp_in_a_header_is_corrected(tmp_path, codec, told_ms):
    from logstore.records.compression import compress

    content = record(time_delta=7) + record(1, time_delta=3)
    lying = raw_batch(bytes(compress(codec, content)), 2, attributes=codec, times=(T_MS, told_ms))
    async with client_of(tmp_path) as client:
        assert (await client.produce(bytes(lying))).error_code == 0
        read = await client.fetch(0)
        assert header_at(read.records).max_timestamp == T_MS + 7
        assert len(values_of(read.records)) == 2  # with a right CRC


@on_loop
async def test_each_record_has_a_time_that_the_topic_allows_or_none(tmp_path):
    async with client_of(tmp_path) as client:
        tp = TopicPartition("timely", 0)
        hour = 3_600_000
        await client.site.create(tp, replicas=(1,), config={"message.timestamp.before.max.ms": str(hour)})
        now = client.site.brokers[1].env.clock.now_ms()
        late = raw_batch(record() + record(1, time_delta=-2 * hour) + record(2), 3, times=(now, None))
        found = await client.produce(bytes(late), tp=tp)
        assert (found.error_code, [row.batch_index for row in found.record_errors]) == (
            ErrorCode.INVALID_TIMESTAMP, [1],
        )  # fmt: skip
        assert (await client.produce(bytes(raw_batch(record(), times=(-1, None))), tp=tp)).error_code == 0


@on_loop
async def test_a_batch_that_expands_beyond_reason_is_refused_and_others_go_on(tmp_path):
    async with client_of(tmp_path) as client:
        found = await client.produce(bytes(bomb()))
        assert found.error_code == ErrorCode.INVALID_RECORD
        assert "more than 6" in found.error_message
        assert (await client.produce(bytes(batch(b"next")))).base_offset == 0


def test_the_page_names_the_batches_to_which_a_real_kafka_answers_otherwise():
    table = PAGE.read_text().partition("| Batch | ours | Kafka's |")[2].partition("\n\n")[0]
    said = {
        name: (int(ours), kafka) for name, ours, kafka in re.findall(r"^\| (.+?) \| (\d+) \| (.+?) \|", table, re.M)
    }
    differ = {name: case for name, case in CASES.items() if case.kafka != "same"}
    codes = {name: "no answer" if case.kafka is None else str(int(case.kafka)) for name, case in differ.items()}
    assert said == {name: (int(case.code), codes[name]) for name, case in differ.items()}
