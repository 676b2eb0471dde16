"""Positions and leader epochs: a leader in this loop whose log another one has cut, or not."""

import asyncio
import contextlib
import uuid

import pytest

from logstore.errors import CorruptLogError, PylogError, UnreadableBatchError
from logstore.records.batch import Record, build, stamp
from replication.client import nearest
from replication.client.cluster import Cluster
from replication.client.fetching import TruncatedError, list_offsets
from replication.client.metadata import PartitionLeader
from replication.client.nearest import ReadReplicas
from replication.client.reading import PartitionReader, Position
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchResponse, Isolation, PartitionFetched, TopicFetched
from tests.support.peer import run, serving, until
from tests.support.poison import POISON

T0 = TopicPartition("t", 0)
FENCED, OUT_OF_RANGE, UNKNOWN_TOPIC_ID = 74, 1, 100
LEADER_NOT_AVAILABLE, NOT_LEADER = 5, 6


class Leader:
    """Leads `t-0` in `epoch`, with the records [start, end), and says that those of earlier epochs end at `part`."""

    def __init__(self, epoch, start, end, part):
        self.epoch, self.start, self.end, self.part = epoch, start, end, part
        self.port, self.asked = 0, []
        self.topic_id = uuid.UUID(int=1)

    def handlers(self):
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.epoch_end,
            ApiKey.FETCH: self.fetch,
        }

    async def metadata(self, context, body):
        broker = {"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}
        row = {"error_code": 0, "partition_index": 0, "leader_id": 1, "leader_epoch": self.epoch}
        nodes = {"replica_nodes": [1], "isr_nodes": [1], "offline_replicas": []}
        topic = {
            "error_code": 0,
            "name": "t",
            "topic_id": self.topic_id,
            "is_internal": False,
            "partitions": [row | nodes],
        }
        return {"cluster_id": "c", "controller_id": 1, "brokers": [broker], "topics": [topic]}

    async def list_offsets(self, context, body):
        (asked,) = body.topics[0].partitions
        offset = self.start if asked.timestamp == -2 else self.end
        row = {
            "partition_index": 0,
            "error_code": 0,
            "timestamp": -1,
            "offset": offset,
            "leader_epoch": self.epoch,
        }
        return {"topics": [{"name": "t", "partitions": [row]}]}

    async def epoch_end(self, context, body):
        (asked,) = body.topics[0].partitions
        self.asked.append(asked.leader_epoch)
        end = self.part if asked.leader_epoch >= 0 else -1
        row = {"partition": 0, "error_code": 0, "leader_epoch": asked.leader_epoch, "end_offset": end}
        return {"topics": [{"topic": "t", "partitions": [row]}]}

    async def fetch(self, context, body):
        ((_, topic_id, (asked,)),) = body.topics
        found, at = PartitionFetched(0, 0, self.end), asked.fetch_offset
        if topic_id != self.topic_id:
            found = PartitionFetched(0, UNKNOWN_TOPIC_ID)
        elif asked.current_leader_epoch != self.epoch:
            found = PartitionFetched(0, FENCED)
        elif not self.start <= at <= self.end:
            found = PartitionFetched(0, OUT_OF_RANGE)
        elif at == self.end:
            await asyncio.sleep(0.05)
        else:
            rows = [Record(n, 1, None, b"%d" % n) for n in range(at, self.end)]
            found = found._replace(records=build(rows, leader_epoch=self.epoch))
        return FetchResponse([TopicFetched("t", body.topics[0].topic_id, [found])])


async def taken(reader):
    """The values until there are no more for a while, and the error that ended them."""
    found, quiet = [], 0
    while quiet < 8:  # a busy machine takes its time
        try:
            rows = reader.take()
        except TruncatedError as error:
            return found, error
        quiet = 0 if rows is not None else quiet + 1
        found += [] if rows is None else [int(value) for value in rows["value"].to_pylist()]
        await asyncio.sleep(0.1 if rows is None else 0)
    return found, None


def reading(leader, begin, then=None, *, is_ahead=False):
    """The records that are `taken` from a position on; with `then`, those after `then(reader)`, too.

    `is_ahead`: at first nothing is taken, but some is fetched.
    """

    async def main():
        async with serving(leader.handlers()) as (_, port):
            leader.port = port
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=5000)
            reader = PartitionReader(cluster, Isolation.READ_UNCOMMITTED, "earliest", asyncio.Event())
            await reader.add({T0: begin})
            if is_ahead:
                await until(lambda: reader._ahead[T0])
            done.append([] if is_ahead else await taken(reader))
            if then is not None:
                then(reader)
                if is_ahead:
                    await until(lambda: reader._cut or reader._next(T0).leader_epoch == leader.epoch)
                done.append(await taken(reader))
            await reader.close()
            cluster.close()

    done = []
    run(main())
    return done


class DamagedOnce(Leader):
    """Each record is a batch; a bit of that of offset 5 is wrong in the first answer."""

    is_sound = False

    async def fetch(self, context, body):
        found = await super().fetch(context, body)
        row, data = found.topics[0].partitions[0], bytearray()
        for n in range(body.topics[0].partitions[0].fetch_offset, self.end) if row.records else ():
            data += build([Record(n, 1, None, b"%d" % n)], leader_epoch=self.epoch)
            data[-1] ^= n == 5 and not self.is_sound
        self.is_sound |= bool(data)
        return FetchResponse([TopicFetched("t", body.topics[0].topic_id, [row._replace(records=data)])])


def test_what_came_damaged_is_told_and_read_again():
    told, found = [], []

    async def main():
        leader = DamagedOnce(7, 0, 10, 8)
        async with serving(leader.handlers()) as (_, port):
            leader.port = port
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=5000)
            reader = PartitionReader(cluster, Isolation.READ_UNCOMMITTED, "earliest", asyncio.Event())
            await reader.add({T0: Position(0)})

            def is_read():
                try:
                    rows = reader.take()
                except CorruptLogError as error:
                    told.append((error.reason, reader.positions[T0].offset))
                else:
                    found.extend(map(int, rows["value"].to_pylist()) if rows is not None else ())
                return bool(found) and found[-1] == 9

            await until(is_read)
            await reader.close()
            cluster.close()

    run(main())
    assert found == list(range(10))
    assert told == [("the CRC-32C is wrong", 5)]


class PoisonedLeader(Leader):
    """Each record is a batch; that of offset 5 cannot be decoded."""

    async def fetch(self, context, body):
        found = await super().fetch(context, body)
        row = found.topics[0].partitions[0]
        if not row.records:
            return found
        data = bytearray()
        for n in range(body.topics[0].partitions[0].fetch_offset, self.end):
            one = build([Record(n, 1, None, b"%d" % n)], leader_epoch=self.epoch)
            if n == 5:
                one = bytearray(POISON["garbage"])
                stamp(one, 0, n, self.epoch)
            data += one
        return FetchResponse([TopicFetched("t", body.topics[0].topic_id, [row._replace(records=data)])])


def test_a_batch_that_cannot_be_decoded_is_told_once_and_what_follows_is_read():
    told = []

    class Noting(PartitionReader):
        def take(self):
            try:
                return super().take()
            except UnreadableBatchError as error:
                told.append((error.base_offset, error.next_offset, self.positions[T0].offset))
                return None

    async def main():
        leader = PoisonedLeader(7, 0, 10, 8)
        async with serving(leader.handlers()) as (_, port):
            leader.port = port
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=5000)
            reader = Noting(cluster, Isolation.READ_UNCOMMITTED, "earliest", asyncio.Event())
            await reader.add({T0: Position(0)})
            found, _ = await taken(reader)
            await reader.close()
            cluster.close()
            return found

    done = []

    async def noted():
        done.append(await main())

    run(noted())
    assert done == [[0, 1, 2, 3, 4, 6, 7, 8, 9]]
    assert told == [(5, 6, 6)]


@pytest.mark.parametrize(
    ("committed", "start", "part", "lost"),
    [
        (Position(5, 3), 0, 8, None),  # the new leader has what was read
        (Position(5, 3), 0, 5, None),
        (Position(5, 3), 0, 4, (4, 5)),
        (Position(5, 3), 0, -1, (0, 5)),  # it has nothing of the old leaders
        (Position(5, 3), 5, -1, None),  # retention has taken it
        (Position(5), 0, 4, None),  # nobody knows
        (Position(5, 7), 0, 4, None),  # of this leader
    ],
)
def test_a_position_is_believed_when_the_leader_has_what_was_read(committed, start, part, lost):
    leader = Leader(7, start, 10, part)
    ((found, error),) = reading(leader, committed)
    assert (error and (error.start, error.end)) == lost
    assert found == ([] if lost else [5, 6, 7, 8, 9])
    assert leader.asked == ([3] if committed.leader_epoch == 3 else [])


@pytest.mark.parametrize("end", [12, 8])
def test_a_cut_below_what_was_read_is_told_until_the_reader_is_moved(end):
    """Whether the new log is longer or shorter than the old one."""
    leader = Leader(3, 0, 10, 6)

    def elect(reader):
        assert reader.positions[T0] == Position(10, 3)
        leader.epoch, leader.end = 4, end

    (before, nothing), (after, error) = reading(leader, Position(0), elect)
    assert (before, nothing, after) == (list(range(10)), None, [])
    assert (error.tp, error.start, error.end) == (T0, 6, 10)

    (_, first), (after, error) = reading(
        Leader(4, 0, end, 6), Position(10, 3), lambda reader: reader.seek(T0, Position(6))
    )
    assert (first.start, first.end, error) == (6, 10, None)
    assert after == list(range(6, end))


@pytest.mark.parametrize(("begin", "lost"), [(Position(3), None), (Position(7, 3), (6, 7))])
def test_what_was_fetched_ahead_and_not_handed_out_is_fetched_again(begin, lost):
    leader = Leader(3, 0, 10, 6)

    def elect(reader):
        leader.epoch, leader.end = 4, 12

    _, (found, error) = reading(leader, begin, elect, is_ahead=True)
    assert (error and (error.start, error.end)) == lost
    assert found == ([] if lost else list(range(3, 12)))


@pytest.mark.parametrize("end", [0, 10])
def test_a_topic_that_was_made_again_is_told_if_something_was_read(end):
    leader = Leader(3, 0, end, 0)

    def make_again(reader):
        leader.topic_id, leader.epoch, leader.end = uuid.UUID(int=2), 0, 20

    (before, _), (after, error) = reading(leader, Position(0), make_again)
    assert before == list(range(end))
    assert (error and (error.start, error.end)) == ((0, 10) if end else None)
    assert after == ([] if end else list(range(20)))


def test_only_the_partition_whose_near_replica_failed_goes_without_a_rack():
    async def main():
        replicas, t1, leader = ReadReplicas("near"), TopicPartition("t", 1), PartitionLeader(1, 7)
        for tp in (T0, t1):
            replicas.note(tp, leader, 2)
        replicas.failed([T0])
        assert [replicas.of(tp, leader) for tp in (T0, t1)] == [1, 2]
        assert [replicas.rack(tps) for tps in ([T0], [t1], [t1, T0])] == ["", "near", ""]
        replicas.failed([t1, T0])  # nothing is named for the second one: its time goes on
        latest = asyncio.get_running_loop().time() + nearest.LEADERS_ONLY_S
        until_ms = replicas.leaders_until
        assert until_ms[T0] < until_ms[t1] <= latest

    run(main())


def test_a_call_takes_no_longer_than_its_time_however_late_a_broker_stops_to_answer():
    """For 1.2 s it refuses what may succeed later, then it hangs: the time of the last attempt is what is left."""

    class Hanging(Leader):
        async def late(self):
            if asyncio.get_running_loop().time() - begin > 1.2:
                await asyncio.sleep(60)

        async def metadata(self, context, body):
            found = await super().metadata(context, body)
            if body.topics and body.topics[0].name == "electing":
                await self.late()
                found["topics"][0] |= {
                    "name": "electing",
                    "error_code": LEADER_NOT_AVAILABLE,
                    "partitions": [],
                }
            return found

        async def list_offsets(self, context, body):
            context.park()
            await self.late()
            row = {
                "partition_index": 0,
                "error_code": NOT_LEADER,
                "timestamp": -1,
                "offset": -1,
                "leader_epoch": 7,
            }
            return {"topics": [{"name": "t", "partitions": [row]}]}

    async def main():
        nonlocal begin
        async with contextlib.AsyncExitStack() as stack:
            calls = []
            for ask in (lambda c: c.topic("electing"), lambda c: list_offsets(c, {T0: 5})):
                leader = Hanging(7, 0, 10, 8)
                _, leader.port = await stack.enter_async_context(serving(leader.handlers()))
                cluster = await stack.enter_async_context(Cluster(f"127.0.0.1:{leader.port}", timeout_ms=2000))
                await cluster.topic("t")
                calls.append((ask, cluster))
            begin = asyncio.get_running_loop().time()
            return await asyncio.gather(*(timed(ask(c)) for ask, c in calls))

    async def timed(call):
        with pytest.raises(PylogError):
            await call
        return asyncio.get_running_loop().time() - begin

    begin = 0.0
    assert max(run(main())) < 2.9
