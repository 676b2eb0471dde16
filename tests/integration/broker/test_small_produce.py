"""Produces of one turn of the loop: answered as one by one, in order, in fewer writes."""

import asyncio
import contextlib
import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.env import OsFiles
from logstore.errors import DiskFullError
from logstore.records.batch import HEADER_BYTES, seal
from logstore.records.compression import Codec
from replication.broker.handlers.offsets import PositionHandlers
from replication.broker.handlers.produce import ProduceHandler
from replication.errors import ErrorCode
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition, topic_uuid
from replication.protocol import apis
from replication.protocol.apis import SERVED, ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.support.inside import storage, write_in_threads
from tests.support.peer import Peer, hang_up, serving
from tests.support.repeats import soaked, times
from tests.support.site import T0, Site, batch, coordinators_of, on_loop, until, write_at_once

RUNS = soaked(times(12, 50), 1000)
VERSIONS = st.integers(SERVED[ApiKey.PRODUCE].first, SERVED[ApiKey.PRODUCE].last)
TRANSACTIONAL, CONTROL = 0x10, 0x20


def changed(data, at, value):
    """The batch with another byte there, and the CRC that goes with it."""
    data[at] = value
    seal(data, 0, len(data))
    return bytes(data)


CHANGES = {  # (where, which byte)
    "old format": (16, 1),
    "transactional": (22, TRANSACTIONAL),
    "marker": (22, CONTROL),
    "too many records": (60, 2),
    "future": (35, 0x70),
}
CODECS = {"gzip": Codec.GZIP, "zstd": Codec.ZSTD}


def one_batch(value, how, producer):
    data = batch(value, codec=CODECS.get(how, Codec.NONE), producer=producer)
    if how in CHANGES:
        return changed(data, *CHANGES[how])
    others = {
        "damaged": data[:-1] + b"\7",
        "cut": data[:-3],
        "headless": data[: HEADER_BYTES - 1],
        "twice": data + data,
        "none": b"",
    }
    return bytes(others.get(how, data))


HOW = ("good",) * 8 + (
    *CODECS, *CHANGES, "damaged", "cut", "headless", "twice", "none", "large",
)  # fmt: skip
PRODUCERS = st.one_of(st.just((-1, -1, -1)), st.tuples(st.sampled_from([7, 8]), st.integers(0, 1), st.integers(0, 4)))
SENT = st.fixed_dictionaries(
    {
        "version": VERSIONS,
        "acks": st.sampled_from([-1, -1, 1, 1, 2]),
        "topic": st.sampled_from(["own"] * 8 + ["none", OFFSETS_TOPIC]),
        "partition": st.sampled_from([0, 0, 0, 1, 1, 9]),
        "how": st.sampled_from(HOW),
        "producer": PRODUCERS,
        "both": st.sampled_from([False] * 6 + [True]),  # two partitions in one request
        "asks": st.sampled_from([False] * 4 + [True]),  # for offsets, behind it
    }
)


@contextlib.contextmanager
def running():
    with asyncio.Runner() as runner:
        yield lambda main: runner.run(asyncio.wait_for(main, 60))


@pytest.mark.soak
def test_requests_of_one_turn_are_answered_as_one_by_one(tmp_path):
    """Both ways give the same bytes in the answers, and the same records in the logs, whatever is sent."""
    with running() as run:
        site = Site(tmp_path)
        run(site.__aenter__())
        (one,) = run(site.start(1))
        run(site.create(TopicPartition(OFFSETS_TOPIC, 0), replicas=(1,)))
        numbers = itertools.count()

        @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=RUNS)
        @given(sent=st.lists(SENT, min_size=1, max_size=12))
        def alike(sent):
            number = next(numbers)
            answers, logs = zip(*(run(tried(site, one, f"{way}{number:06}", sent)) for way in "stq"), strict=True)
            assert answers[0] == answers[1] == answers[2]
            assert logs[0] == logs[1] == logs[2]

        alike()
        run(site.__aexit__())


def one_by_one(handler):
    """A handler of each request alone."""

    def produce(works):
        for work in works:
            handler.produce([work])

    return produce


async def tried(site, one, topic, sent):
    """(answers, records) of what is sent at once, over one connection; one by one in a topic that begins with "s".

    One that begins with "q" is on a slow disk: threads write.
    """
    if topic[0] == "q":
        write_in_threads(one.replicas)
    else:
        write_at_once(storage(one.replicas).disk)
    tps = [TopicPartition(topic, n) for n in (0, 1)]
    for tp in tps:
        await site.create(tp, replicas=(1,), config={"message.timestamp.after.max.ms": "1000000"})
    handler = ProduceHandler(one.config, one.replicas, coordinators_of(one).verification)
    turns = handler.turns() if topic[0] != "s" else {ApiKey.PRODUCE: one_by_one(handler)}
    async with serving(PositionHandlers(one.replicas).handlers(), turns=turns) as (_, port):
        peer = await Peer.connect(port)
        frames, asked = [], 0
        for number, each in enumerate(sent):
            value = b"%d" % number * (70_000 if each["how"] == "large" else 1)
            rows = [ProducePartition(each["partition"], one_batch(value, each["how"], each["producer"]))]
            if each["both"]:
                rows.append(ProducePartition(1 - min(1, each["partition"]), bytes(batch(b"other"))))
            name = topic if each["topic"] == "own" else each["topic"]
            topics = (ProduceTopic(name, tuple(rows), topic_uuid(site.topic_ids.get(name))),)
            request = ProduceRequest(each["acks"], 5000, topics)
            frames += apis.encode_request(ApiKey.PRODUCE, each["version"], 2 * number, "me", request)
            if each["asks"]:
                body = {"replica_id": -1, "isolation_level": 0, "topics": [
                    {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]}  # fmt: skip
                frames += apis.encode_request(ApiKey.LIST_OFFSETS, 1, 2 * number + 1, "me", body)
                asked += 1
        peer.writer.writelines(map(bytes, frames))
        found = [await peer.frame() for _ in range(len(sent) + asked)]
        number = topic_uuid(site.topic_ids[topic]).bytes
        answers = [frame.replace(topic.encode(), b"topic").replace(number, b"id") for frame in found]
        return answers, [one.stored(tp) for tp in tps]


def produce(*values, acks, tp=T0, timeout_ms=5000):
    topic = ProduceTopic(tp.topic, (ProducePartition(tp.partition, bytes(batch(*values))),))
    return ApiKey.PRODUCE, 9, ProduceRequest(acks, timeout_ms, (topic,))


def result(frame):
    _, response = apis.decode_response(ApiKey.PRODUCE, 9, memoryview(frame))
    row = response.topics[0].partitions[0]
    return row.error_code, row.base_offset


class Writes(OsFiles):
    """Counts what is written to segments."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def write(self, path, position, data):
        if str(path).endswith(".log"):
            self.sizes.append(len(data))
        super().write(path, position, data)


@on_loop
async def test_batches_that_come_together_are_one_write_and_the_answers_tell_them_apart(tmp_path):
    files = Writes()
    async with Site(tmp_path) as site:
        one = (await site.start(1))[0]
        await site.create(replicas=(1,))
        assert (await one.produce(b"first")).base_offset == 0  # makes the segment
        one.replicas.partitions()[T0].replica.log.env.files.__class__ = Writes
        one.replicas.partitions()[T0].replica.log.env.files.sizes = files.sizes
        peer = await Peer.connect(one.port)
        for number in range(10):
            peer.send(*produce(b"%d" % number, b"more", acks=1 if number % 2 else -1))
        assert [result(await peer.frame()) for _ in range(10)] == [(0, 1 + 2 * n) for n in range(10)]
        assert len(files.sizes) < 10
        assert max(files.sizes) > 2 * len(batch(b"1", b"more"))
        assert one.stored()[1::2] == [b"%d" % n for n in range(10)]
        await hang_up()


@on_loop
async def test_what_is_not_committed_in_time_is_answered_so_and_later_answers_keep_their_order(tmp_path):
    async with Site(tmp_path) as site:
        one = (await site.start(1))[0]
        await site.create(replicas=(1, 2), isr=(1, 2))  # nobody follows
        assert (await one.produce(b"first", acks=1)).base_offset == 0
        peer = await Peer.connect(one.port)
        peer.send(*produce(b"a", acks=-1, timeout_ms=300))
        peer.send(*produce(b"b", acks=1))
        peer.send(ApiKey.PRODUCE, 9, ProduceRequest(-1, 100, (ProduceTopic("none", (
            ProducePartition(0, bytes(batch(b"c"))),)),)))  # fmt: skip
        codes = [result(await peer.frame())[0] for _ in range(3)]
        assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert one.stored() == [b"first", b"a", b"b"]
        await hang_up()


@on_loop
async def test_who_waits_for_a_commit_is_answered_by_it_and_too_few_replicas_append_nothing(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(1, 2), isr=(1, 2))
        await one.produce(b"first")
        peer = await Peer.connect(one.port)
        for number in range(5):
            peer.send(*produce(b"%d" % number, acks=-1, timeout_ms=1000 if number else 30_000))
        assert [result(await peer.frame()) for _ in range(5)] == [(0, 1 + n) for n in range(5)]
        assert two.stored() == one.stored()
        few = TopicPartition("few", 0)
        await site.create(few, replicas=(1,), config={"min.insync.replicas": "2"})
        await one.produce(b"first", acks=1, tp=few)
        peer.send(*produce(b"no", acks=-1, tp=few))
        assert result(await peer.frame())[0] == ErrorCode.NOT_ENOUGH_REPLICAS
        assert one.stored(few) == [b"first"]
        await hang_up()


@on_loop
async def test_a_leader_whose_time_is_over_says_so_to_those_who_wait(tmp_path):
    async with Site(tmp_path) as site:
        one = (await site.start(1))[0]
        await site.create(replicas=(1, 2), isr=(1, 2))
        await one.produce(b"first", acks=1)
        peer = await Peer.connect(one.port)
        peer.send(*produce(b"a", acks=-1))
        await until(lambda: len(one.stored()) == 2)
        one.replicas.partitions()[T0].leave_role()
        assert result(await peer.frame())[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await hang_up()


@pytest.mark.parametrize("is_slow", [False, True])
@on_loop
async def test_a_look_that_finds_the_time_is_over_acknowledges_nothing(tmp_path, is_slow):
    async with Site(tmp_path) as site:
        one = (await site.start(1))[0]
        await site.create(replicas=(1,))
        await one.produce(b"first")
        if is_slow:
            write_in_threads(one.replicas)
        partition = one.replicas.partitions()[T0]
        partition.replica.host = replace(partition.replica.host, look=partition.leave_role)
        peer = await Peer.connect(one.port)
        peer.send(*produce(b"a", acks=1))
        assert result(await peer.frame())[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await storage(one.replicas).disk.call(one.replicas.partitions()[T0].replica.queue, lambda: None)
        assert not is_slow or one.stored() == [b"first"]
        await hang_up()


@on_loop
async def test_an_append_that_finds_no_room_for_the_reserve_is_refused_and_the_next_one_is_taken(tmp_path):
    async with Site(tmp_path) as site:
        one = (await site.start(1))[0]
        await site.create(replicas=(1,))
        await one.produce(b"first")
        write_in_threads(one.replicas)
        replica = one.replicas.partitions()[T0].replica
        right = replica.host

        def keep_reserve():
            raise DiskFullError("no room", path="", reason="full")

        replica.host = replace(right, keep_reserve=keep_reserve)
        peer = await Peer.connect(one.port)
        peer.send(*produce(b"a", acks=1))
        assert result(await peer.frame())[0] == ErrorCode.KAFKA_STORAGE_ERROR
        replica.host = right
        peer.send(*produce(b"b", acks=1))
        assert result(await peer.frame()) == (ErrorCode.NONE, 1)
        assert one.stored() == [b"first", b"b"]
        await hang_up()


@on_loop
async def test_what_a_slow_disk_holds_up_is_answered_in_time_and_appended_in_order(tmp_path):
    async with Site(tmp_path) as site:
        one = (await site.start(1))[0]
        await site.create(replicas=(1,))
        await one.produce(b"first")
        disk, held = storage(one.replicas).disk, []
        disk.begin_write = lambda queue: False
        disk.submit = lambda queue, job: held.append((queue, job))
        peer = await Peer.connect(one.port)
        peer.send(*produce(b"a", acks=-1, timeout_ms=200))
        peer.send(*produce(b"b", acks=1, timeout_ms=200))
        assert result(await peer.frame())[0] == ErrorCode.REQUEST_TIMED_OUT
        assert one.stored() == [b"first"]
        del disk.submit
        for queue, job in held:
            disk.submit(queue, job)
        assert result(await peer.frame()) == (ErrorCode.NONE, 2)
        assert one.stored() == [b"first", b"a", b"b"]
        await hang_up()


@pytest.mark.parametrize("acks", [1, -1])
@on_loop
async def test_a_client_that_hangs_up_at_once_disturbs_nobody(tmp_path, acks):
    async with Site(tmp_path) as site:
        one = (await site.start(1))[0]
        await site.create(replicas=(1,))
        for _ in range(5):
            peer = await Peer.connect(one.port)
            for _ in range(20):
                peer.send(*produce(b"x", acks=acks))
            await peer.writer.drain()
            peer.close()
        other = await Peer.connect(one.port)
        other.send(*produce(b"last", acks=acks))
        assert result(await other.frame())[0] == ErrorCode.NONE
        assert b"last" in one.stored()
        await hang_up()
