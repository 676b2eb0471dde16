"""Commits that are stored as they come, and heartbeats that are only noted: as if each had been asked for."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from logstore.records.batch import batches, records
from logstore.records.keyed import build_keyed
from replication.coordinators.groups.batches import Commit
from replication.coordinators.groups.classic.state import Phase
from replication.coordinators.groups.offsets import events
from replication.coordinators.groups.offsets.state import NO_TIME, Committed, NewOffset
from replication.coordinators.groups.records import OFFSET_KEY, offset_key, offset_value
from replication.coordinators.terms import Written
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from tests.integration.broker.test_groups import OFFSETS, T0, coordinators
from tests.support.inside import storage, write_in_threads
from tests.support.peer import Answers
from tests.support.site import PATIENT, coordinators_of, on_loop, until, write_at_once

T1, OTHER = TopicPartition("orders", 1), TopicPartition("other", 0)
ASK = "ask"


def commit(group, offsets, member_id="", generation=-1, text=""):
    new = {tp: NewOffset(offset, -1, text, 1, NO_TIME) for tp, offset in offsets.items()}
    return Commit(group, member_id, generation, None, new)


def offsets_of(groups, name):
    return {tp: stored.offset for tp, stored in groups.group(name).offsets.committed.items()}


def is_loaded(groups, name):
    """The partition that keeps the group is loaded, and the number of such partitions is known."""
    with suppress(KafkaError):
        groups.group(name)
        return True
    return False


async def ready(all_, *replicas):
    """The broker leads, and has written in this leader epoch: the first append of one is the disk thread's."""
    await all_.create(list(replicas))
    await all_.loaded(1)
    assert (await all_.commit(1, 0, "first")).error is ErrorCode.NONE
    return all_.groups[1]


class Outcomes:
    """The outcomes of commits that are handled together: an error, None while it is on its way; ASK: it is to be asked
    for.
    """

    def __init__(self, groups, asked):
        stored = groups.commit_each(asked, self.tell)
        self.codes = [{True: ErrorCode.NONE, False: ASK}.get(done, done) for done in stored]

    def tell(self, place, error):
        assert self.codes[place] is None, "each is told once"
        self.codes[place] = error

    async def all(self):
        await until(lambda: None not in self.codes, within_s=15)
        return self.codes


async def store(groups, asked):
    assert set(await Outcomes(groups, asked).all()) == {ErrorCode.NONE}


def log_of(all_, number=1):
    log = all_.site.brokers[number].replicas.partitions()[OFFSETS].replica.log
    data = log.read(log.log_start_offset, max_bytes=1 << 20).data if log.log_end_offset else b""
    return [(header, list(records(data, at))) for at, header in batches(data)]


@on_loop
async def test_commits_that_come_together_are_one_batch_and_found_by_the_next_coordinator(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        groups = await ready(all_, 1)
        asked = [commit("g", {T0: 1, T1: 2}), commit("h", {T0: 3}), commit("g", {T0: 4})]
        await store(groups, asked)
        assert offsets_of(groups, "g") == {T0: 4, T1: 2}
        assert offsets_of(groups, "h") == {T0: 3}
        (_, (_, rows)) = log_of(all_)
        assert [(row.key, row.value) for row in rows] == [
            (offset_key(name, tp), offset_value(Committed(offset, -1, "", 1)))
            for name, tp, offset in (("g", T0, 1), ("g", T1, 2), ("h", T0, 3), ("g", T0, 4))
        ]
        assert groups.group("g").offsets.committed[T0].position == 4
        assert groups.group("h").offsets.committed[T0].position == 3
        again = coordinators_of(all_.site.brokers[1]).groups
        again.begin()
        await until(lambda: is_loaded(again, "g"))
        assert offsets_of(again, "g") == offsets_of(groups, "g")
        assert offsets_of(again, "h") == offsets_of(groups, "h")
        again.end()


@on_loop
async def test_commits_of_several_replicas_are_one_batch_and_seen_once_they_are_committed(tmp_path):
    async with coordinators(tmp_path, 1, 2) as all_:
        groups = await ready(all_, 1, 2)
        found = Outcomes(groups, [commit("g", {T0: 1, T1: 2}), commit("h", {T0: 3}), commit("g", {T0: 4})])
        assert found.codes == [None] * 3
        assert groups.group("g").offsets.committed == {}
        assert set(groups.group("g").offsets.in_flight.values()) == {(T0, T1), (T0,)}
        assert set(await found.all()) == {ErrorCode.NONE}
        assert (offsets_of(groups, "g"), offsets_of(groups, "h")) == ({T0: 4, T1: 2}, {T0: 3})
        assert not groups.group("g").offsets.in_flight
        assert groups.group("g").offsets.committed[T0].position == 4
        assert len(log_of(all_)) == 2
        await until(lambda: log_of(all_, 2) == log_of(all_, 1))
        await all_.elect(2)
        assert {tp: each.offset for tp, each in (await all_.loaded(2)).offsets.committed.items()} == {T0: 4, T1: 2}


@on_loop
async def test_a_slow_disk_gets_them_together_too(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        groups = await ready(all_, 1)
        write_in_threads(all_.site.brokers[1].replicas)
        found = Outcomes(groups, [commit("g", {T0: 1}), commit("h", {T0: 3}), commit("g", {T0: 4})])
        assert found.codes == [None] * 3
        assert set(await found.all()) == {ErrorCode.NONE}
        assert (offsets_of(groups, "g"), offsets_of(groups, "h")) == ({T0: 4}, {T0: 3})
        assert len(log_of(all_)) == 2


@pytest.mark.parametrize("is_slow", [False, True])
@on_loop
async def test_of_one_turn_each_gets_its_own_answer(tmp_path, is_slow):
    async with coordinators(tmp_path, 1) as all_:
        groups = await ready(all_, 1)
        replicas = all_.site.brokers[1].replicas
        if is_slow:
            write_in_threads(replicas)
        else:
            write_at_once(storage(replicas).disk)
        origin, works = Answers(), []
        for number, (group, generation) in enumerate((("g", -1), ("h", 7), ("i", -1), ("g", -1))):
            row = {"partition_index": 0, "committed_offset": number, "committed_leader_epoch": -1,
                   "committed_metadata": ""}  # fmt: skip
            body = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": "",
                    "group_instance_id": None, "topics": [{"name": OFFSETS.topic, "partitions": [row]}]}  # fmt: skip
            frame = b"".join(apis.encode_request(ApiKey.OFFSET_COMMIT, 9, number, "me", body))[4:]
            works.append(origin.work(frame))
        commits = all_.coordinators[1].turns()[ApiKey.OFFSET_COMMIT]
        commits(works)
        assert [works[number].is_begun for number in (0, 2, 3)] == [is_slow] * 3
        await until(lambda: len(origin.given) == len(works))
        for work, response in origin.given:
            if work is works[1]:
                ((row,),) = (list(topic["partitions"]) for topic in response["topics"])
                assert row["error_code"] is ErrorCode.ILLEGAL_GENERATION
                continue
            assert int.from_bytes(response[4:8], "big") == work.correlation_id == works.index(work)
        assert groups.group("g").offsets.committed[OFFSETS].offset == 3
        assert groups.group("i").offsets.committed[OFFSETS].offset == 2


@on_loop
async def test_an_offset_that_is_being_committed_does_not_expire(tmp_path):
    """The former one, whose time is over: if it were deleted now, the new one could be, too."""
    async with coordinators(tmp_path, 1, 2, **{"replica.lag.time.max.ms": 1500}) as all_:
        groups = await ready(all_, 1, 2)
        await store(groups, [commit("g", {T0: 1, T1: 1})])  # of long ago: their time is over
        all_.site.brokers[2].replicas.disconnect()
        found = Outcomes(groups, [commit("g", {T0: 2})])

        def expire():
            for term in groups.terms.all():
                groups._tell(term, events.ExpireOffsets())

        expire()
        assert set(await found.all()) == {ErrorCode.NONE}
        await until(lambda: T1 not in groups.group("g").offsets.committed)
        assert offsets_of(groups, "g") == {T0: 2}
        rows = [row for _, rows in log_of(all_) for row in rows]
        assert [row.value is None for row in rows if row.key == offset_key("g", T0)] == [False, False]
        expire()
        await until(lambda: groups.group("g") is None)


LIVES = {  # lag of the follower that is away, timeout of a commit, what happens meanwhile
    "committed late": (1000, 30_000, "nothing"),
    "a rebalance meanwhile": (1000, 30_000, "join"),
    "too late": (120_000, 300, "nothing"),
    "the leadership ends": (120_000, 30_000, "elect"),
    "unloaded": (120_000, 30_000, "disconnect"),
}


@pytest.mark.parametrize("life", LIVES)
@on_loop
async def test_commits_that_come_together_live_as_those_that_are_asked_for(tmp_path, life):
    """The same answers, the same offsets at all times, and the same records."""
    found = await asyncio.gather(*(lived(tmp_path / way, way, *LIVES[life]) for way in ("each", "ask")))
    assert found[0] == found[1]


async def lived(path, way, lag_ms, timeout_ms, happens):
    path.mkdir()
    options = {"replica.lag.time.max.ms": lag_ms, "offsets.commit.timeout.ms": timeout_ms}
    async with coordinators(path, 1, 2, **options) as all_:
        groups = await ready(all_, 1, 2)
        joined = await all_.join(1, "a")
        await all_.sync(1, joined, assignments={joined.member_id: b"all"})
        own = joined.member_id, joined.generation
        heard_ms = groups.group("g").members[joined.member_id].deadline_ms
        await asyncio.sleep(0.02)
        before = [commit("g", {T0: 1, T1: 1}, *own), commit("h", {T1: 3})]
        seen = [await tried(all_, way, before).all(), seen_of(all_)]
        all_.site.brokers[2].replicas.disconnect()
        under_way = tried(all_, way, [commit("g", {T0: 5}, *own), commit("h", {T0: 7}), commit("i", {T0: 8})])
        await asyncio.sleep(0.05)
        seen += [list(under_way.codes), seen_of(all_)]
        later_ms = groups.group("g").members[joined.member_id].deadline_ms
        assert later_ms >= heard_ms + 20, "who commits is there"
        if happens == "join":
            parked = asyncio.create_task(all_.join(1, "b"))
            await until(lambda: groups.group("g").phase is Phase.PREPARING)
            between = tried(all_, way, [commit("g", {T1: 9}, *own), commit("g", {T1: 9})])
            seen += [await between.all(), seen_of(all_)]
        elif happens == "elect":
            await all_.elect(-1)
        elif happens == "disconnect":
            all_.site.brokers[1].replicas.disconnect()
        seen += [await under_way.all(), seen_of(all_)]
        if happens == "join":
            parked.cancel()
        rows = [row for _, rows in log_of(all_) for row in rows if row.key[1] == OFFSET_KEY]
        return seen, [(row.offset, row.key, row.value) for row in rows]


def seen_of(all_):
    try:
        known = [all_.groups[1].group(name) for name in "ghi"]
    except KafkaError as error:
        return error.code
    return [
        group and (group.phase, group.offsets.committed, sorted(group.offsets.in_flight.values())) for group in known
    ]


def tried(all_, way, asked):
    """Together; or asked for one after the other."""
    found = Outcomes(all_.groups[1], asked if way == "each" else [])
    left = [n for n, code in enumerate(found.codes) if code is ASK] if way == "each" else range(len(asked))
    if way == "ask":
        found.codes = [None] * len(asked)

    async def ask(place):
        group_id, member_id, generation, instance_id, offsets = asked[place]
        found.codes[place] = None
        answer = await all_.groups[1].ask(
            group_id,
            lambda request: events.Commit(
                request=request,
                offsets={tp: Committed(*new) for tp, new in offsets.items()},
                member_id=member_id,
                generation=generation,
                instance_id=instance_id,
            ),
        )
        found.tell(place, answer.error)

    found.tasks = [asyncio.create_task(ask(place)) for place in left]
    return found


@on_loop
async def test_what_the_machine_or_the_log_would_refuse_is_left_to_them(tmp_path):
    async with coordinators(tmp_path, 1, **{"offset.metadata.max.bytes": 8}) as all_:
        groups = await ready(all_, 1)
        refused = [
            commit("g", {T0: 1}, member_id="nobody", generation=1),
            commit("g", {T0: 1}, text="é" * 5),
            commit("huge", {TopicPartition("t" * 200, n): 1 for n in range(9000)}),
        ]
        await store(groups, [commit("g", {T0: 5}, text="ok")])
        assert Outcomes(groups, refused).codes == [ASK] * 3
        assert offsets_of(groups, "g") == {T0: 5}
        assert groups.group("huge") is None
        await all_.elect(-1)
        assert Outcomes(groups, [commit("g", {T0: 6})]).codes == [ASK]


@on_loop
async def test_what_is_stored_after_the_deletion_of_its_topic_failed_is_deleted(tmp_path, monkeypatch):
    async with coordinators(tmp_path, 1, 2, **PATIENT) as all_:
        groups = await ready(all_, 1, 2)
        all_.site.brokers[2].replicas.disconnect()
        found = Outcomes(groups, [commit("g", {T0: 1, OTHER: 2}), commit("h", {OTHER: 3})])
        assert found.codes == [None] * 2
        with monkeypatch.context() as patch:
            patch.setattr(groups._topic, "append", lambda *args, **options: Written(ErrorCode.NOT_ENOUGH_REPLICAS))
            groups._tell(groups.terms.term(0), events.ForgetTopics(frozenset({T0.topic})))
        await all_.elect(1, isr=(1,))
        assert set(await found.all()) == {ErrorCode.NONE}
        await until(lambda: offsets_of(groups, "g") == {OTHER: 2})
        assert offsets_of(groups, "h") == {OTHER: 3}


@on_loop
async def test_with_too_few_replicas_nothing_is_appended(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        groups = await ready(all_, 1)
        replica = all_.site.brokers[1].replicas.partitions()[OFFSETS].replica
        replica.log.config = replace(replica.log.config, min_insync_replicas=2)
        before = log_of(all_)
        assert Outcomes(groups, [commit("g", {T0: 1})]).codes == [ASK]
        assert log_of(all_) == before
        assert (await all_.commit(1, 1)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


@on_loop
async def test_a_look_that_finds_the_time_is_over_acknowledges_nothing_and_nothing_is_appended_behind_it(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        groups = await ready(all_, 1)
        replicas = all_.site.brokers[1].replicas
        partition, leadership = replicas.partitions()[OFFSETS], groups.terms.term(0).leadership
        write_at_once(storage(replicas).disk)
        partition.replica.host = replace(partition.replica.host, look=partition.leave_role)
        assert Outcomes(groups, [commit("g", {T0: 1})]).codes == [ASK]
        batch = build_keyed([(b"key", b"value")], all_.site.brokers[1].env.clock.now_ms())
        end = partition.replica.log.log_end_offset
        written = groups._topic.append_batch(leadership, batch, 1000, None)
        assert written.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.replica.log.log_end_offset == end


@on_loop
async def test_commits_of_very_many_bytes_are_several_batches(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        groups = await ready(all_, 1)
        asked = [commit(f"g{n}", {TopicPartition("t" * 200, p): n for p in range(40)}) for n in range(5)]
        await store(groups, asked)
        assert len(log_of(all_)) > 2
        assert all(set(offsets_of(groups, f"g{n}").values()) == {n} for n in range(5))


@on_loop
async def test_a_member_that_is_only_noted_stays_and_a_silent_one_does_not(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        groups = await ready(all_, 1)
        joined = await all_.join(1, "a", session_timeout_ms=400)
        own = joined.member_id, joined.generation
        await all_.sync(1, joined, assignments={joined.member_id: b"all"})
        assert not groups.hear("g", joined.member_id, joined.generation + 1, None)
        assert not groups.hear("other", *own, None)
        before_ms = groups.group("g").members[joined.member_id].deadline_ms
        began_ms = now_ms = all_.site.brokers[1].env.clock.monotonic_ms()
        while now_ms < began_ms + 1000:  # longer than a session
            assert groups.hear("g", *own, None)
            await asyncio.sleep(0.02)
            now_ms = all_.site.brokers[1].env.clock.monotonic_ms()
        await store(groups, [commit("g", {T0: 7}, *own)])
        group = groups.group("g")
        assert group.phase is Phase.STABLE
        assert group.members[joined.member_id].deadline_ms >= before_ms + 1000
        await until(lambda: groups.group("g").phase is Phase.EMPTY)
        assert not groups.hear("g", *own, None)
        assert Outcomes(groups, [commit("g", {T0: 8}, *own)]).codes == [ASK]
        assert offsets_of(groups, "g") == {T0: 7}


@on_loop
async def test_who_asks_while_nobody_leads_is_told_so(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        await all_.elect(-1)
        with pytest.raises(KafkaError):
            all_.groups[1].hear("g", "a", 1, None)
