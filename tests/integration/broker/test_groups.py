"""The coordinator of groups over real logs: it answers once it has read what is committed, while it leads."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from logstore.records.batch import Record, build
from replication.coordination import nodes, topics
from replication.coordination.tree import ConnectionLossError, ensure_path
from replication.coordinators import terms
from replication.coordinators.groups import deleted_topics
from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic.state import Phase
from replication.coordinators.groups.offsets.events import Commit
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.records import offset_key, offset_value
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition
from replication.model.metadata import BrokerAddress, PartitionMetadata, PartitionUpdate
from tests.support.repeats import only_long
from tests.support.site import PATIENT, Site, coordinators_of, on_loop, until
from tests.support.waits import stays

OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
T0 = TopicPartition("orders", 0)


class Coordinators:
    """A site whose brokers keep groups; the test is controller and clients."""

    def __init__(self, site):
        self.site = site
        self.groups, self.coordinators = {}, {}
        self.topic_id = None

    async def start(self, *numbers, **properties):
        defaults = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1}
        await self.site.start(*numbers, **{**defaults, **properties})
        for number in numbers:
            broker = self.site.brokers[number]
            self.coordinators[number] = coordinators_of(broker)
            self.groups[number] = self.coordinators[number].groups
            self.groups[number].begin()

    async def create(self, replicas, **options):
        await self.site.create(OFFSETS, replicas=replicas, **options)
        self.tell_metadata()

    async def elect(self, leader, **options):
        await self.site.elect(leader, OFFSETS, **options)
        self.tell_metadata()

    def tell_metadata(self):
        state, replicas = self.site.states[OFFSETS], self.site.replicas[OFFSETS]
        update = PartitionUpdate(OFFSETS, self.site.topic_ids[OFFSETS_TOPIC], PartitionMetadata(state, replicas))
        for broker in self.site.brokers.values():
            addresses = [BrokerAddress(number, "127.0.0.1", b.port) for number, b in self.site.brokers.items()]
            broker.replicas.metadata.update(1, addresses, [update])

    async def loaded(self, number, group="g"):
        """The group as soon as this broker answers for it."""
        while True:
            try:
                return self.groups[number].group(group)
            except KafkaError as error:
                if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
                await asyncio.sleep(0.01)

    async def commit(self, number, offset, group="g", tp=T0, **options):
        return await self.groups[number].ask(
            group,
            lambda request: Commit(request=request, offsets={tp: Committed(offset, -1, "", 1)}, **options),
        )

    async def join(self, number, name, *, member_id=None, group="g", **options):
        defaults = {"session_timeout_ms": 20_000, "rebalance_timeout_ms": 20_000}
        return await self.groups[number].ask(
            group,
            lambda request: events.Join(
                request=request,
                member_id=member_id or "",
                fresh_id=self.groups[number].member_id(name),
                protocol_type="consumer",
                protocols=(("range", b"\0\0\0\0\0\0"),),
                **{**defaults, **options},
            ),
        )

    async def sync(self, number, joined, **options):
        return await self.groups[number].ask(
            "g",
            lambda request: events.Sync(
                request=request, member_id=joined.member_id, generation=joined.generation, **options
            ),
        )


@asynccontextmanager
async def coordinators(path, *numbers, **properties):
    async with Site(path) as site:
        made = Coordinators(site)
        try:
            await made.start(*numbers, **properties)
            for name in ("orders", "other"):
                await ensure_path(site.tree, nodes.topic_path(name))
            yield made
        finally:
            for groups in made.groups.values():
                groups.end()


def code_of(call):
    with pytest.raises(KafkaError) as found:
        call()
    return found.value.code


async def answered(call):
    """The result of the call, once this process is not in doubt after it stood still on a busy machine."""
    while True:
        try:
            return call()
        except KafkaError:
            await asyncio.sleep(0.1)


@on_loop
@only_long("many groups")
async def test_nobody_is_answered_before_everything_is_read(tmp_path):
    """(R28) Not with "no offset", which would send consumers back to the start."""
    async with coordinators(tmp_path, 1) as all_:
        await all_.site.create(OFFSETS, replicas=[1])
        rows = [
            Record(n, 1, offset_key(f"group-{n}", T0), offset_value(Committed(n, -1, "", 1))) for n in range(20_000)
        ]
        for at in range(0, len(rows), 1000):
            part = [row._replace(offset=row.offset - at) for row in rows[at : at + 1000]]
            await all_.site.brokers[1].replicas.append({OFFSETS: build(part)}, acks=-1, timeout_ms=5000)
        all_.tell_metadata()
        groups = all_.groups[1]
        refusals = 0
        while groups.terms.term(0).loading is not None:
            assert code_of(lambda: groups.group("group-7")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert code_of(groups.groups) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            with pytest.raises(KafkaError):
                await all_.commit(1, 1, "group-7")
            refusals += 1
            await asyncio.sleep(0.001)
        assert refusals > 1
        assert (await answered(lambda: groups.group("group-7"))).offsets.committed[T0].offset == 7
        assert len(groups.groups()) == 20_000


@on_loop
async def test_a_commit_is_answered_when_it_is_stored_and_found_by_the_next_coordinator(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        assert (await all_.commit(1, 41)).error is ErrorCode.NONE
        assert (await all_.commit(1, 42)).error is ErrorCode.NONE
        again = coordinators_of(all_.site.brokers[1]).groups
        again.begin()
        await asyncio.sleep(0)
        await until(lambda: not again.terms.term(0).loading)
        assert (await answered(lambda: again.group("g"))).offsets.committed[T0].offset == 42
        again.end()


@on_loop
async def test_what_is_not_committed_by_the_replicas_is_not_answered_from(tmp_path):
    """(R28) The follower does not fetch: the record is in the leader's log, and may yet be lost."""
    async with coordinators(tmp_path, 1, 2, **{"offsets.commit.timeout.ms": 200}) as all_:
        await all_.create([1, 2])
        stays_away = all_.site.brokers[2].replicas
        await all_.loaded(1)
        stays_away.disconnect()
        answer = await all_.commit(1, 42)
        assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert all_.groups[1].group("g") is None


@on_loop
async def test_members_and_offsets_are_there_in_the_next_term(tmp_path):
    """The generation goes on; what was parked in the former term is told that it is over."""
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        joined = await all_.join(1, "a")
        synced = await all_.sync(1, joined, assignments={joined.member_id: b"all of it"})
        assert synced.assignment == b"all of it"
        done = await all_.commit(1, 5, member_id=joined.member_id, generation=joined.generation)
        assert done.error is ErrorCode.NONE
        parked = asyncio.create_task(all_.join(1, "b"))
        await until(lambda: all_.groups[1].group("g").phase is Phase.PREPARING)
        await all_.elect(-1)
        assert code_of(lambda: all_.groups[1].group("g")) is ErrorCode.NOT_COORDINATOR
        await all_.elect(1)
        group = await all_.loaded(1)
        assert (await parked).error is ErrorCode.NOT_COORDINATOR
        assert (group.phase, group.generation) == (Phase.STABLE, joined.generation)
        assert group.members[joined.member_id].assignment == b"all of it"
        assert group.offsets.committed[T0].offset == 5
        done = await all_.commit(1, 6, member_id=joined.member_id, generation=joined.generation)
        assert done.error is ErrorCode.NONE


@on_loop
async def test_members_and_offsets_move_to_another_broker_and_back(tmp_path):
    async with coordinators(tmp_path, 1, 2) as all_:
        await all_.create([1, 2])
        await all_.loaded(1)
        await until(lambda: code_of(lambda: all_.groups[2].group("g")) is ErrorCode.NOT_COORDINATOR)
        joined = await all_.join(1, "a")
        await all_.sync(1, joined, assignments={joined.member_id: b"all of it"})
        member = {"member_id": joined.member_id, "generation": joined.generation}
        assert (await all_.commit(1, 5, **member)).error is ErrorCode.NONE
        parked = asyncio.create_task(all_.join(1, "b"))
        await until(lambda: all_.groups[1].group("g").phase is Phase.PREPARING)
        await all_.elect(2)
        assert (await parked).error is ErrorCode.NOT_COORDINATOR
        assert code_of(lambda: all_.groups[1].group("g")) is ErrorCode.NOT_COORDINATOR
        group = await all_.loaded(2)
        assert (group.phase, group.generation) == (Phase.STABLE, joined.generation)
        assert group.members[joined.member_id].assignment == b"all of it"
        assert group.offsets.committed[T0].offset == 5
        assert (await all_.commit(2, 6, **member)).error is ErrorCode.NONE
        await all_.elect(1)
        assert (await all_.loaded(1)).offsets.committed[T0].offset == 6


@on_loop
async def test_a_broker_knows_for_a_while_that_names_are_moving(tmp_path, monkeypatch):
    """Clients that ask it for offsets then are asked to repeat the request: see OffsetFetch."""
    monkeypatch.setattr(terms, "MOVING_MS", 400)
    async with coordinators(tmp_path, 1, 2) as all_:
        one, two = all_.groups[1].terms, all_.groups[2].terms
        assert two.is_moving("g"), "it has only begun, and has been told nothing"
        await all_.create([1, 2])
        await all_.loaded(1)
        await until(lambda: not two.is_moving("g"))
        async with all_.site.brokers[2].replicas.requests.changing:
            assert two.is_moving("g"), "a controller tells it something"
        await all_.elect(2)
        assert one.is_moving("g")
        await all_.loaded(2)
        await until(lambda: not one.is_moving("g"))
        await all_.site.elect(1, OFFSETS)
        await until(lambda: code_of(lambda: all_.groups[2].group("g")) is ErrorCode.NOT_COORDINATOR)
        assert two.is_moving("g"), "the metadata say that it leads"


@on_loop
async def test_the_next_coordinator_waits_until_it_knows_what_is_committed(tmp_path):
    """(R28) Its high watermark is behind, and the other replica in sync does not fetch: for now it cannot know."""
    async with coordinators(tmp_path, 1, 2, **{"replica.lag.time.max.ms": 2000}) as all_:
        await all_.create([1, 2])
        await all_.loaded(1)
        assert (await all_.commit(1, 5)).error is ErrorCode.NONE
        all_.groups.pop(1).end()
        await all_.site.brokers.pop(1).stop()
        replica = all_.site.brokers[2].replicas.partition(*OFFSETS)
        await all_.elect(2, isr=[2, 1])
        # The answer with the last high watermark is lost.
        replica.leader.state = replica.leader.state._replace(high_watermark=0)
        await stays(lambda: code_of(lambda: all_.groups[2].group("g")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0.4)
        assert (await all_.loaded(2)).offsets.committed[T0].offset == 5, "once the other is not in sync any more"


@on_loop
async def test_a_new_epoch_of_the_same_leader_disturbs_nobody(tmp_path):
    """A follower died, say: who waits goes on waiting, and nothing is loaded again."""
    async with coordinators(tmp_path, 1, 2) as all_:
        await all_.create([1, 2])
        await all_.loaded(1)
        first = await all_.join(1, "a")
        parked = asyncio.create_task(all_.join(1, "b"))
        await until(lambda: all_.groups[1].group("g").phase is Phase.PREPARING)
        term = all_.groups[1].terms.term(0)
        await all_.elect(1, isr=[1])
        assert all_.groups[1].group("g").phase is Phase.PREPARING
        again = await all_.join(1, "a", member_id=first.member_id)
        second = await parked
        assert (second.error, second.generation) == (ErrorCode.NONE, again.generation)
        synced = await all_.sync(1, again, assignments={second.member_id: b"half"})
        assert synced.error is ErrorCode.NONE
        assert all_.groups[1].terms.term(0) is term


@on_loop
async def test_a_session_that_ends_takes_the_groups_along(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        await all_.join(1, "a")
        parked = asyncio.create_task(all_.join(1, "b"))
        await asyncio.sleep(0)
        all_.site.brokers[1].replicas.disconnect()
        assert code_of(lambda: all_.groups[1].group("g")) is ErrorCode.NOT_COORDINATOR
        assert (await parked).error is ErrorCode.NOT_COORDINATOR


@on_loop
async def test_a_broker_that_stood_still_tells_nothing_before_it_can_know_whether_it_leads(tmp_path):
    """(R28) It was stopped, say, and the groups are another's now; the news is still on its way."""
    async with coordinators(tmp_path, 1, **{"zookeeper.session.timeout.ms": 600}) as all_:
        await all_.create([1])
        await all_.loaded(1)
        await all_.commit(1, 5)
        time.sleep(0.3)  # noqa: ASYNC251  that is what it is about
        assert code_of(lambda: all_.groups[1].group("g")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await all_.loaded(1)).offsets.committed[T0].offset == 5


@on_loop
async def test_silent_members_are_expelled_by_the_clock(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        joined = await all_.join(1, "a", session_timeout_ms=100)
        await all_.sync(1, joined)
        await until(lambda: all_.groups[1].group("g").phase is Phase.EMPTY, within_s=5)
        assert not all_.groups[1].group("g").members


@on_loop
async def test_offsets_of_a_topic_that_is_gone_or_recreated_go(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        metadata = all_.site.brokers[1].replicas.metadata
        state = all_.site.states[OFFSETS]

        def tell(topic_id):
            metadata.update(1, [], [PartitionUpdate(T0, topic_id, PartitionMetadata(state, (1,)))])

        tell("id-1")
        await all_.commit(1, 5)
        await all_.commit(1, 6, tp=TopicPartition("other", 0))
        tell("id-2")
        await until(lambda: T0 not in all_.groups[1].group("g").offsets.committed)
        assert [tp.topic for tp in all_.groups[1].group("g").offsets.committed] == ["other"]


@on_loop
async def test_a_topic_that_is_recreated_while_offsets_are_read_leaves_none(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        await all_.site.create(OFFSETS, replicas=[1])
        tps = [TopicPartition("other", n) for n in range(20_000)]
        for at in range(0, len(tps), 1000):
            keys = [offset_key("g", tp) for tp in (*tps[at : at + 1000], T0)]
            rows = [Record(n, 1, key, offset_value(Committed(5, -1, "", 1))) for n, key in enumerate(keys)]
            await all_.site.brokers[1].replicas.append({OFFSETS: build(rows)}, acks=-1, timeout_ms=5000)
        metadata = all_.site.brokers[1].replicas.metadata
        topic = PartitionUpdate(T0, "id-1", PartitionMetadata(all_.site.states[OFFSETS], (1,)))
        metadata.update(1, [], [topic])
        all_.tell_metadata()
        assert all_.groups[1].terms.term(0).loading is not None
        metadata.update(1, [], [topic._replace(topic_id="id-2")])
        assert all_.groups[1].terms.term(0).loading is not None
        await all_.loaded(1)
        await until(lambda: T0 not in all_.groups[1].group("g").offsets.committed)
        assert len(all_.groups[1].group("g").offsets.committed) == len(tps)


@on_loop
async def test_offsets_of_a_topic_that_went_while_nobody_kept_the_group_go(tmp_path, monkeypatch):
    """The tree says what is gone, to a broker that knows the cluster: it may not have heard of a topic that is new."""
    asked = []

    async def find_missing(tree, names):
        asked.append((metadata.is_initialized, set(names)))
        if len(asked) == 1:
            raise ConnectionLossError
        return await topics.find_missing(tree, names)

    async def ask_again():
        count = len(asked)
        await until(lambda: len(asked) > count + 1)

    monkeypatch.setattr(deleted_topics, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(deleted_topics, "find_missing", find_missing)
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        await all_.commit(1, 5)
        await all_.commit(1, 6, tp=TopicPartition("other", 0))
        await all_.elect(-1)
        metadata = all_.site.brokers[1].replicas.metadata
        metadata.is_initialized = False
        await all_.site.tree.delete(nodes.topic_path("orders"))
        await all_.elect(1)
        term = all_.groups[1].terms.term(0)
        await until(lambda: term.loading is None)
        metadata.is_initialized = True
        group = await all_.loaded(1)
        assert {tp.topic for tp in group.offsets.committed} == {"orders", "other"}
        await until(lambda: T0 not in all_.groups[1].group("g").offsets.committed)
        assert asked[:2] == [(True, {"orders", "other"})] * 2
        await all_.commit(1, 3)  # of a later topic of that name
        await ask_again()
        assert asked[-1] == (True, {"other"})
        assert {tp.topic for tp in all_.groups[1].group("g").offsets.committed} == {"orders", "other"}


@on_loop
async def test_an_offset_that_is_stored_though_its_commit_was_refused_goes_with_its_topic(tmp_path, monkeypatch):
    """The coordinator does not have it to delete it; the next one reads it."""
    monkeypatch.setattr(deleted_topics, "LOOK_AGAIN_S", 0.05)
    async with coordinators(tmp_path, 1, 2, **PATIENT, offsets_commit_timeout_ms=1000) as all_:
        await all_.create([1, 2])
        await all_.loaded(1)
        all_.site.brokers[2].replicas.disconnect()
        assert (await all_.commit(1, 5)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert all_.groups[1].group("g") is None
        await all_.elect(-1)
        await all_.elect(1, isr=(1,))
        assert T0 in (await all_.loaded(1)).offsets.committed
        await all_.site.tree.delete(nodes.topic_path("orders"))
        await until(lambda: all_.groups[1].group("g") is None)


@on_loop
async def test_a_group_that_nobody_wanted_anything_of_leaves_nothing_behind(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        for n in range(100):
            answer = await all_.join(1, "a", group=f"g{n}", session_timeout_ms=2_000_000_000)
            assert answer.error is ErrorCode.INVALID_SESSION_TIMEOUT
        assert all_.groups[1].groups() == []
