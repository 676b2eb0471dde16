"""Commits that are stored as they come, and heartbeats that are only noted: as if each had been asked for."""

import asyncio

import pytest

from logstore.records.batch import batches, records
from replication.coordinators.groups.coordinator import Commit
from replication.coordinators.groups.machine.records import offset_key, offset_value
from replication.coordinators.groups.machine.state import NO_TIME, Committed, NewOffset, Phase
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from tests.integration.broker.test_groups import OFFSETS, T0, coordinators
from tests.support.site import coordinators_of, on_loop, until

T1 = TopicPartition("orders", 1)


def commit(group, offsets, member_id="", generation=-1, text=""):
    new = {tp: NewOffset(offset, -1, text, 1, NO_TIME) for tp, offset in offsets.items()}
    return Commit(group, member_id, generation, None, new)


def offsets_of(groups, name):
    return {tp: stored.offset for tp, stored in groups.group(name).offsets.items()}


async def ready(all_, *replicas):
    """The broker leads, and has written in this leader epoch: the first append of one is the disk thread's."""
    await all_.create(list(replicas))
    await all_.loaded(1)
    assert (await all_.commit(1, 0, "first")).error is ErrorCode.NONE
    return all_.groups[1]


async def store(groups, asked):
    """Until all are stored: while the disk is slow they would not be at once."""
    async with asyncio.timeout(40):
        while asked := [one for one, done in zip(asked, groups.commit_at_once(asked), strict=True) if not done]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


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
        assert groups.group("g").offsets[T0].position == 4
        assert groups.group("h").offsets[T0].position == 3
        again = coordinators_of(all_.site.brokers[1]).groups
        again.begin()
        await asyncio.sleep(0)
        await until(lambda: not again.terms.term(0).loading)
        assert offsets_of(again, "g") == offsets_of(groups, "g")
        assert offsets_of(again, "h") == offsets_of(groups, "h")
        again.end()


@on_loop
async def test_a_commit_that_other_replicas_must_have_is_not_stored_at_once(tmp_path):
    async with coordinators(tmp_path, 1, 2) as all_:
        groups = await ready(all_, 1, 2)
        before = log_of(all_)
        assert groups.commit_at_once([commit("g", {T0: 1})]) == [False]
        assert log_of(all_) == before
        assert groups.group("g") is None


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
        assert groups.commit_at_once(refused) == [False, False, False]
        assert offsets_of(groups, "g") == {T0: 5}
        assert groups.group("huge") is None
        await all_.elect(-1)
        assert groups.commit_at_once([commit("g", {T0: 6})]) == [False]


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
        assert groups.commit_at_once([commit("g", {T0: 8}, *own)]) == [False]
        assert offsets_of(groups, "g") == {T0: 7}


@on_loop
async def test_who_asks_while_nobody_leads_is_told_so(tmp_path):
    async with coordinators(tmp_path, 1) as all_:
        await all_.create([1])
        await all_.loaded(1)
        await all_.elect(-1)
        with pytest.raises(KafkaError):
            all_.groups[1].hear("g", "a", 1, None)
