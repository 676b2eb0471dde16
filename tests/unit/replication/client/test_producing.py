"""A sender meets lost answers, late copies and unclean elections: its leader is a real log in this loop."""

import asyncio
import contextlib
import random
from types import SimpleNamespace

import pyarrow as pa
import pytest

from logstore.env import Env
from logstore.errors import PylogError
from logstore.records.batch import batches, header_at
from logstore.records.encoding import encode
from logstore.records.rows import Rows
from replication.client import producing
from replication.client.metadata import PartitionLeader
from replication.client.partition_queue import IN_FLIGHT, Batch, PartitionQueue, split
from replication.client.producing import Sender
from replication.client.transactions import Pair, Transaction
from replication.errors import ErrorCode, KafkaError, code_of
from replication.model.cluster import TopicPartition
from replication.protocol.messages import PartitionProduced
from tests.support.partition import appended, contents, make
from tests.support.repeats import times

T0 = TopicPartition("t", 0)
FATES = ("answered", "unanswered", "late", "never")
SENDS, ELECTIONS = 40, 4


class Leaders:
    """The leaders of a partition one after the other, as a client sees them; a new one may lack what others have."""

    def __init__(self, log, chance):
        self.log, self.chance = log, chance
        self.number = self.connection = 0
        self.order, self.late_order = asyncio.Lock(), asyncio.Lock()
        self.comes_late = False  # what was sent over the connection that was lost last
        self.weights = chance.choice([(70, 10, 10, 10), (40, 30, 25, 5)])
        self.cut_off, self.tasks = set(), []
        self.seen, self.under_way, self.crowded = set(), [], []

    async def leader(self, tp):
        return PartitionLeader(self.number % 3)

    def forget(self, topics):
        pass

    async def call_leader(self, leader, topics, key, request):
        ((row,),) = (topic.partitions for topic in request.topics)
        header = header_at(row.records)
        stamp = header.producer_epoch, header.base_sequence
        is_again = stamp in self.seen
        self.seen.add(stamp)
        self.under_way.append(is_again)
        if len(self.under_way) > 1 and any(self.under_way):
            self.crowded.append(stamp)
        try:
            return await self.fate(leader, row)
        finally:
            self.under_way.remove(is_again)

    async def fate(self, leader, row):
        number, connection = self.number, self.connection
        async with self.order:
            await self.turns(6)
            if connection == self.connection:
                fate = self.chance.choices(FATES, self.weights)[0]
                self.connection += fate != "answered"
                self.comes_late = fate != "never"
            else:
                self.comes_late = self.comes_late and self.chance.random() < 0.7
                fate = "late" if self.comes_late else "never"
            if fate == "late":
                self.tasks.append(asyncio.create_task(self.late(number, leader, bytes(row.records))))
            elif fate != "never":
                answer = self.answer(*self.appended(number, leader, row.records))
                if fate == "answered":
                    return answer
            raise ConnectionResetError("the connection is lost")

    def answer(self, code, offset):
        found = PartitionProduced(0, code, offset, log_start_offset=self.log.log_start_offset)
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[found])])

    async def turns(self, count_max):
        for _ in range(self.chance.randrange(count_max)):
            await asyncio.sleep(0)

    async def late(self, number, leader, data):
        async with self.late_order:
            await self.turns(30)
            self.appended(number, leader, data)

    def appended(self, number, leader, data):
        if self.number < ELECTIONS and self.chance.random() < 0.05:
            self.elect(unclean=self.chance.random() < 0.7)
        if number != self.number or leader != self.number % 3:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if self.chance.random() < 0.05:
            return ErrorCode.NOT_ENOUGH_REPLICAS, -1
        try:
            return 0, appended(self.log, bytearray(data), leader_epoch=self.number).first_offset
        except PylogError as error:
            return code_of(error), -1

    def elect(self, *, unclean):
        self.number += 1
        if unclean:
            before = contents(self.log)
            self.log.truncate_to(self.chance.randrange(self.log.log_end_offset + 1))
            self.cut_off |= {value for _, value in before[self.log.log_end_offset :]}


def one(value):
    (data,) = encode(Rows(pa.table({"value": [value]}), now_ms=1), batch_bytes=1000, batch_bytes_max=1000)
    return data


@pytest.mark.parametrize("seed", range(times(10, 100)))
def test_what_unclean_elections_cut_is_all_that_is_missing_and_nothing_is_doubled(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(producing, "BACKOFF_MIN_S", 0.001)
    monkeypatch.setattr(producing, "BACKOFF_MAX_S", 0.002)
    outcomes = {}

    async def main(leaders):
        sender = Sender(leaders, (7, 0), timeout_ms=60_000)
        for n in range(SENDS):
            sender.send(T0, one(f"{n}"), n, 1, lambda first, count, outcome: outcomes.update({first: outcome}))
            await leaders.turns(6)
        async with asyncio.timeout(30):
            await sender.room(0)
        await asyncio.gather(*leaders.tasks)
        await sender.close()

    with contextlib.closing(make(tmp_path, Env())) as log:
        leaders = Leaders(log, random.Random(seed))
        asyncio.run(main(leaders))
        found = [int(value) for _, value in contents(log)]
    assert found == sorted(set(found))
    assert leaders.crowded == []  # brokers know few batches again: what is sent again is sent alone
    assert set(range(SENDS)) - set(found) <= {int(value) for value in leaders.cut_off}
    assert all(isinstance(outcome, int) for outcome in outcomes.values())
    assert len(outcomes) == SENDS


@pytest.mark.parametrize(("is_in_doubt", "log_start"), [(False, 9), (True, 9), (True, -1), (True, 2)])
def test_a_batch_that_a_forgetful_leader_may_have_had_fails_and_another_goes_on(is_in_doubt, log_start):
    """A Kafka that retention made forget a producer says 59, also where it has had the batch and deleted it.

    It has not where its log begins at what was acknowledged: an unclean election has cut what came behind.
    """
    in_doubt = [13] if log_start == 2 else [13, 59]
    codes, stamps, outcomes = [0, *(in_doubt if is_in_doubt else []), 59, 0, 0], [], []

    async def call_leader(leader, topics, key, request):
        ((row,),) = (topic.partitions for topic in request.topics)
        ((_, header),) = batches(row.records)
        stamps.append((header.producer_epoch, header.base_sequence))
        if (code := codes.pop(0)) == 13:
            raise ConnectionResetError("nobody knows")
        found = PartitionProduced(0, code, len(stamps), log_start_offset=log_start)
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[found])])

    async def leader(tp):
        return PartitionLeader(1)

    async def main():
        cluster = SimpleNamespace(call_leader=call_leader, leader=leader, forget=lambda topics: None)
        sender = Sender(cluster, (7, 0), timeout_ms=20_000)
        for n in range(3):
            sender.send(T0, one(f"{n}"), n, 1, lambda first, count, outcome: outcomes.append(outcome))
            await sender.room(0)
        await sender.close()

    asyncio.run(main())
    if is_in_doubt and log_start == 2:  # behind offset 1, which was acknowledged
        assert stamps == [(0, 0), (0, 1), (0, 1), (1, 0), (1, 1)]
        assert all(isinstance(outcome, int) for outcome in outcomes)
    elif is_in_doubt:
        assert stamps == [(0, 0), (0, 1), (0, 1), (0, 2), (1, 0)]
        assert isinstance(outcomes[1], KafkaError)
        assert outcomes[1].code is ErrorCode.UNKNOWN_PRODUCER_ID
    else:
        assert stamps == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert outcomes == [1, 3, 4]


def test_a_partition_turns_to_a_new_leader_when_the_old_one_has_answered_all():
    queue = PartitionQueue(T0, 0, leader=1, is_known=True)
    queue.sent.append(object())
    assert queue.turn_to(1)
    assert queue.is_known
    assert not queue.turn_to(2)
    assert (queue.leader, queue.is_known) == (1, True)
    queue.sent.clear()
    assert queue.turn_to(2)
    assert (queue.leader, queue.is_known) == (2, False)


def queue_of(count, **state):
    queue = PartitionQueue(T0, 3, **state)
    queue.waiting.extend(Batch(one(f"{n}"), n, 1, 60.0, lambda *_: None) for n in range(count))
    return queue


def stamps(queue):
    return [(header.producer_epoch, header.base_sequence) for header in (header_at(b.data) for b in queue.sent)]


def test_five_batches_are_under_way_to_a_leader_that_knows_the_producer_and_one_to_any_other():
    for is_known, allowed in ((True, IN_FLIGHT), (False, 1)):
        queue = queue_of(7, is_known=is_known)
        while queue.may_send:
            queue.take(8, is_transactional=False)
        assert stamps(queue) == [(3, n) for n in range(allowed)]


def test_a_batch_that_is_sent_again_goes_alone_and_bears_its_number():
    queue = queue_of(3, is_known=True)
    batch = queue.take(8, is_transactional=False)
    queue.sent.clear()
    batch.error = KafkaError(ErrorCode.NETWORK_EXCEPTION)
    batch.prepare_again()
    queue.waiting.appendleft(batch)
    assert batch.is_in_doubt
    assert queue.may_send
    assert queue.take(8, is_transactional=False) is batch
    assert stamps(queue) == [(3, 0)]
    assert not queue.may_send
    batch.error = None
    assert queue.may_send
    queue.is_rewinding = True
    assert not queue.may_send


def test_a_new_epoch_numbers_all_that_wait_anew():
    queue = queue_of(2)
    queue.waiting.appendleft(queue.take(8, is_transactional=False))
    queue.sent.clear()
    queue.begin_epoch()
    for _ in range(2):
        queue.take(8, is_transactional=True)
    assert stamps(queue) == [(4, 0), (4, 1)]
    assert all(header_at(batch.data).is_transactional for batch in queue.sent)


@pytest.mark.parametrize("how", ["idempotent", "acks=1", "transaction", "too large"])
def test_each_batch_that_leaves_for_a_broker_begins_at_offset_0(how):
    """Also those that an encoder numbered on, and the halves of one that was too large: a real Kafka refuses others."""
    sent, outcomes = [], []
    codes = [ErrorCode.MESSAGE_TOO_LARGE] if how == "too large" else []

    async def call_leader(leader, topics, key, request, **bounds):
        ((row,),) = (topic.partitions for topic in request.topics)
        sent.append(header_at(row.records))
        code = codes.pop() if codes else 0
        found = PartitionProduced(0, code, 0)
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[found])])

    async def leader(tp):
        return PartitionLeader(1)

    async def main():
        cluster = SimpleNamespace(call_leader=call_leader, leader=leader, forget=lambda topics: None)
        made = {"transaction": Transaction("id", Pair(7, 0))} if how == "transaction" else {}
        sender = Sender(
            cluster,
            None if how == "acks=1" else Pair(7, 0),
            acks=1 if how == "acks=1" else -1,
            timeout_ms=20_000,
            transaction=made.get("transaction"),
        )
        sender.added = frozenset({T0})
        rows, first = Rows(pa.table({"value": [b"v" * 400] * 10}), now_ms=1), 0
        for data in encode(rows, batch_bytes=1500, batch_bytes_max=1500):
            for part, count in split(data):
                sender.send(T0, part, first, count, lambda first, count, outcome: outcomes.append(outcome))
                first += count
        assert first == 10
        await sender.room(0)
        await sender.close()

    asyncio.run(main())
    assert len(sent) > 3
    assert [header.base_offset for header in sent] == [0] * len(sent)
    assert all(isinstance(outcome, int) for outcome in outcomes)
