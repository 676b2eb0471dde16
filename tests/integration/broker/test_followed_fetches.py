"""The fetches of a follower: they say what any other fetch says, and wait as long; a session says only what is news."""

import asyncio
import itertools
import time

import pytest

from logstore.records.batch import TRANSACTIONAL, Record, build
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from replication.protocol.messages import FIRST_REQUEST, ONE_REQUEST, FetchPartition
from replication.replica.leader.results import FetchTerms
from replication.replica.leader.sessions import FetchSession, FetchSessions
from tests.support.inside import fetchers
from tests.support.partition import appended
from tests.support.site import PATIENT, T0, Site, batch, on_loop, until, write_at_once
from tests.support.waits import stays

OTHER = TopicPartition("other", 0)
ENOUGH = 1 << 20


async def led(site):
    """Broker 1, which leads two partitions; broker 3 is to follow them and does not run."""
    (one,) = await site.start(1, **PATIENT)
    for tp in (T0, OTHER):
        await site.create(tp, replicas=(1, 3), isr=(1,))
    return one


def terms(wait_ms=0, min_bytes=1, max_bytes=ENOUGH):
    return FetchTerms(3, 7, wait_ms, min_bytes, max_bytes)


async def as_found(found):
    return found


def followed(one, offsets, asked_terms, respond=as_found):
    """A request with all that is asked for; a dict at once, or something to wait for."""
    session = one.replicas.fetch_session(0, ONE_REQUEST, (3, 7), "")
    return session.fetch(wanted(one, offsets), (), asked_terms, respond)


async def whole(answer):
    return await answer if hasattr(answer, "__await__") else answer


def wanted(one, offsets):
    epoch = one.replicas.leader(T0).state.leader_epoch
    return {tp: FetchPartition(0, offset, ENOUGH, epoch, log_start_offset=0) for tp, offset in offsets.items()}


def plain(found):
    return {tp: row._replace(records=bytes(row.records)) for tp, row in found.items()}


@on_loop
async def test_it_has_what_the_logs_have_within_its_bytes(tmp_path):
    """The first batch in memory, and the first on the disk, come however large. Consumers get the same."""
    async with Site(tmp_path) as site:
        one = await led(site)
        for number in range(6):
            for tp in (T0, OTHER)[: 1 + number % 2]:
                await one.produce(b"%d" % number * 50, tp=tp, acks=1)
        logs = {tp: one.replicas.leader(tp).replica.log for tp in (T0, OTHER)}
        largest = len(logs[T0].read(0, max_bytes=1).data)
        for offsets in itertools.product(*(range(log.files.view.end + 1) for log in logs.values())):
            asked = dict(zip(logs, offsets, strict=True))
            data = {tp: bytes(log.read(asked[tp], max_bytes=ENOUGH).data) for tp, log in logs.items()}
            for limit in (1, 150, 400, ENOUGH):
                found = await whole(followed(one, asked, terms(max_bytes=limit)))
                consumed = await one.replicas.fetch(wanted(one, asked), max_wait_ms=0, min_bytes=1, max_bytes=limit)
                for rows in plain(found), plain(consumed):
                    for tp, row in rows.items():
                        end = logs[tp].files.view.end
                        assert row == (0, 0, end, end, 0, None, row.records, None, -1)
                        assert data[tp].startswith(row.records)
                    got = sum(len(row.records) for row in rows.values())
                    assert got > 0 or not any(data.values())
                    assert got <= limit + 2 * largest
                    assert limit < ENOUGH or {tp: row.records for tp, row in rows.items()} == data


@on_loop
async def test_it_tells_where_a_transaction_is_open(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        await one.produce(b"plain", acks=1)
        opens = build([Record(0, 0, None, b"open")], attributes=TRANSACTIONAL, producer=(4, 0, 0))
        appended(one.replicas.leader(T0).replica.log, opens, leader_epoch=one.role.state.leader_epoch)
        await one.produce(b"plain", acks=1)
        for offset in (0, 3):
            (row,) = (await whole(followed(one, {T0: offset}, terms()))).values()
            assert (row.last_stable_offset, row.high_watermark) == (1, 3)


@on_loop
async def test_it_waits_and_tells_all_that_came_in_one_turn(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        for tp in (T0, OTHER):
            await one.produce(b"a", tp=tp, acks=1)  # begins the leader epoch, with a fsync
        write_at_once(one.replicas.leader(T0).replica.host.disk)
        waiting = followed(one, {T0: 1, OTHER: 1}, terms(20_000))
        produced = [one.produce(b"x", tp=tp, acks=1) for tp in (T0, OTHER)]
        await asyncio.gather(*produced)
        found = await waiting
        assert all(row.records for row in found.values())
        await asyncio.sleep(0)
        assert not one.replicas.leader(T0).replica.followers
        assert not one.replicas.leader(OTHER).replica.followers


@on_loop
async def test_it_waits_for_so_many_bytes_but_no_longer_than_it_may(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        began_s = time.monotonic()
        waiting = followed(one, {T0: 0}, terms(300, min_bytes=10_000))
        await one.produce(b"x", acks=1)
        (row,) = (await waiting).values()
        assert time.monotonic() - began_s >= 0.29
        assert (row.error_code, len(row.records) > 0) == (ErrorCode.NONE, True)
        waiting = followed(one, {T0: 1}, terms(20_000, min_bytes=1000))
        await one.produce(b"x" * 500, acks=1)
        await one.produce(b"x" * 500, acks=1)
        (row,) = (await waiting).values()
        assert len(row.records) > 1000


@on_loop
async def test_what_is_not_in_memory_comes_from_the_disk_after_all(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        waiting = followed(one, {T0: 0}, terms(20_000))
        await one.produce(bytes(300_000), acks=1)  # more than is kept
        (row,) = (await waiting).values()
        assert len(row.records) > 300_000
        (row,) = (await followed(one, {T0: 0}, terms())).values()  # from the disk: not at once
        assert len(row.records) > 300_000


@on_loop
async def test_one_that_nobody_waits_for_is_forgotten(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        waiting = followed(one, {T0: 0, OTHER: 0}, terms(20_000))
        replica = one.replicas.leader(T0).replica
        assert replica.followers
        waiting.cancel()
        await until(lambda: not replica.followers)
        await one.produce(b"x", acks=1)  # wakes nobody


@on_loop
async def test_it_hears_that_the_leader_leads_no_more(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        waiting = followed(one, {T0: 0}, terms(20_000))
        one.replicas.partitions()[T0].leave_role()
        (row,) = (await waiting).values()
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("offset", [-1, 5])
@on_loop
async def test_what_is_refused_is_told_at_once(tmp_path, offset):
    async with Site(tmp_path) as site:
        one = await led(site)
        found = followed(one, {T0: offset, OTHER: 0}, terms(20_000))
        assert [(tp, row.error_code) for tp, row in found.items()] == [(T0, ErrorCode.OFFSET_OUT_OF_RANGE), (OTHER, 0)]
        one.replicas.partitions()[T0].leave_role()
        session = one.replicas.fetch_session(0, ONE_REQUEST, (3, 7), "")
        asked = {T0: FetchPartition(0, 0, ENOUGH), TopicPartition("unknown", 0): FetchPartition(0, 0, ENOUGH)}
        found = session.fetch(asked, (), terms(20_000), as_found)
        assert [row.error_code for row in found.values()] == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


@on_loop
async def test_what_fails_while_it_waits_is_told(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)

        async def respond(found):
            raise ValueError("cannot be said")

        waiting = followed(one, {T0: 0}, terms(20_000), respond)
        await one.produce(b"x", acks=1)
        with pytest.raises(ValueError, match="cannot be said"):
            await waiting


@on_loop
async def test_what_the_quota_holds_back_is_answered_once_it_has_some(tmp_path):
    """Nothing else wakes the request that waits for it."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **PATIENT, leader_replication_throttled_rate=20_000)
        config = {"leader.replication.throttled.replicas": "*"}
        await site.create(replicas=(1, 3), isr=(1,), config=config)
        await one.produce(bytes(40_000), acks=1)
        await one.produce(b"x", acks=1)
        first = await whole(followed(one, {T0: 0}, terms(max_bytes=1)))
        assert len(first[T0].records) > 40_000
        held = await whole(followed(one, {T0: 1}, terms()))
        assert not held[T0].records
        assert isinstance(followed(one, {T0: 2}, terms()), dict)  # there is nothing to hold back
        began_s = time.monotonic()
        assert (await followed(one, {T0: 1}, terms(60_000)))[T0].records
        assert time.monotonic() - began_s < 30


class Follows:
    """A follower's connection: broker 3 asks broker 1, which leads `tps`, in one session."""

    def __init__(self, one, life=7):
        self.one, self.life = one, life
        self.number, self.epoch = 0, FIRST_REQUEST

    async def ask(self, offsets, wait_ms=0, *, gone=(), begin=False):
        session = self.one.replicas.fetch_session(self.number, self.epoch, (3, self.life), "")
        self.number, self.epoch = session.number, self.epoch + 1
        asked_terms = terms(wait_ms)._replace(replica_epoch=self.life)
        answer = session.fetch(wanted(self.one, offsets), gone, asked_terms, as_found)
        return answer if begin else await whole(answer)


async def with_silent_follower(site, lag_ms):
    """Broker 1 leads, and broker 3 lives and asks nothing: the test does, in its name."""
    one, other = await site.start(1, 3, **{"replica.lag.time.max.ms": lag_ms})
    fetchers(other.replicas).ask = lambda role, question: None
    await site.create(replicas=(1, 3))
    return one, Follows(one, other.epoch)


@on_loop
async def test_a_session_tells_what_is_news_and_asks_on_for_the_rest(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        three = Follows(one)
        assert set(await three.ask({T0: 0, OTHER: 0})) == {T0, OTHER}  # where they stand
        assert await three.ask({}) == {}
        waiting = await three.ask({}, 20_000, begin=True)
        await one.produce(b"a", acks=1)
        assert [(tp, len(row.records) > 0) for tp, row in (await waiting).items()] == [(T0, True)]
        await one.produce(b"b", acks=1)
        assert await three.ask({}) == {}  # it has left the session: the follower is not ready for more
        found = await three.ask({T0: 1}, 20_000)
        assert [(tp, len(row.records) > 0) for tp, row in found.items()] == [(T0, True)]
        await one.produce(b"c", tp=OTHER, acks=1)  # while nothing is asked
        assert set(await three.ask({}, 20_000)) == {OTHER}
        await three.ask({T0: 2, OTHER: 1})
        await one.produce(b"d", acks=1)
        await one.produce(b"e", tp=OTHER, acks=1)
        assert set(await three.ask({}, 20_000, gone=[T0])) == {OTHER}
        assert not one.replicas.leader(T0).replica.followers


@on_loop
async def test_a_session_tells_a_high_watermark_that_moved(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **PATIENT)
        await site.create(replicas=(1, 2, 3))
        await one.replicas.append({T0: batch(b"a")}, acks=1, timeout_ms=1000)
        three = Follows(one)
        assert (await three.ask({T0: 1}))[T0].high_watermark == 0
        assert await three.ask({}) == {}
        leader = one.replicas.leader(T0)
        assert leader.admit(wanted(one, {T0: 1})[T0], FetchTerms(2, 5)) is None  # the other one has it, too
        assert (await three.ask({}))[T0].high_watermark == 1
        assert await three.ask({}) == {}


@on_loop
async def test_a_session_tells_of_a_log_that_starts_elsewhere_and_of_one_that_is_led_no_more(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        for _ in range(3):
            await one.produce(b"a", acks=1)
        three = Follows(one)
        await three.ask({T0: 3, OTHER: 0})
        waiting = await three.ask({}, 20_000, begin=True)
        one.replicas.leader(T0).replica.note_start(2)  # as retention says it, from its thread
        assert (await waiting)[T0].log_start_offset == 2
        assert set(await three.ask({}, 20_000)) == {T0}  # until the follower starts there, too
        await three.ask({}, gone=[T0])
        waiting = await three.ask({}, 20_000, begin=True)
        one.replicas.partitions()[OTHER].leave_role()
        assert (await waiting)[OTHER].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await three.ask({}) == {}  # it is in it no more


@on_loop
async def test_who_asks_on_is_in_sync_and_who_does_not_leaves_in_time(tmp_path):
    """The leader hears of the session only: of no partition."""
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "600")
        leader = one.replicas.leader(T0)
        await three.ask({T0: 0})
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            asked_ms = leader.replica.host.clock.monotonic_ms()
            await three.ask({}, 100)
            assert leader.state.isr == (1, 3)
        appended = asyncio.ensure_future(one.produce(b"a"))
        await until(lambda: one.end == 1)  # it has not asked since: that does not count against it
        leader.tick(asked_ms + 590)
        assert (leader.state.isr, leader.state.proposed) == ((1, 3), None)
        await until(lambda: leader.state.isr == (1,))
        assert (await appended).error_code == ErrorCode.NONE
        assert set(await three.ask({}, 100)) == {T0}
        assert leader.state.isr == (1,)
        await three.ask({T0: 1}, 100)
        await until(lambda: leader.state.isr == (1, 3))


@on_loop
async def test_who_was_too_slow_and_missed_nothing_joins_by_asking_on(tmp_path):
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "400")
        leader = one.replicas.leader(T0)
        await three.ask({T0: 0})
        await until(lambda: leader.state.isr == (1,))
        await stays(lambda: leader.state.isr == (1,), 0.5)  # by itself it does not join
        async with asyncio.timeout(5):
            while leader.state.isr == (1,):
                await three.ask({}, 50)


@on_loop
async def test_who_could_not_join_when_it_asked_first_joins_by_asking_on(tmp_path):
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "120000")  # no tick comes
        await site.elect(1, isr=(1,))
        leader = one.replicas.leader(T0)
        one.replicas.suspend()
        await three.ask({T0: 0})
        one.replicas.suspend(is_suspended=False)
        await stays(lambda: leader.state.isr == (1,), 0.1)
        await three.ask({})
        await until(lambda: leader.state.isr == (1, 3), within_s=5)


@on_loop
async def test_a_leader_that_keeps_no_sessions_is_followed_all_the_same(tmp_path, monkeypatch):
    of = FetchSessions.of
    monkeypatch.setattr(FetchSessions, "of", lambda self, number, epoch, *of_whom: of(self, 0, ONE_REQUEST, *of_whom))
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        for tp in (T0, OTHER):
            await site.create(tp, replicas=(1, 2))
        for number in range(1, 4):
            await until(lambda: all(one.replicas.leader(tp).replica.followers for tp in (T0, OTHER)))
            for tp in (T0, OTHER):
                done = await one.produce(b"x", tp=tp)
                assert (done.error_code, two.replicas.partitions()[tp].replica.end) == (ErrorCode.NONE, number)
        assert two.replicas.counters.failed_fetches == 0


@on_loop
async def test_who_is_offline_asks_on_no_more(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        for tp in (T0, OTHER):
            await site.create(tp, replicas=(1, 2))
        await one.produce(b"a")
        await until(lambda: 2 in one.role.caught_up and two.role.high_watermark == 1)
        two.replicas.offline.mark(T0, "for a test")
        await until(lambda: 2 not in one.role.caught_up)
        await one.produce(b"b", acks=1)
        await stays(lambda: two.end == 1, 0.5)
        two.replicas.offline.clear(T0)
        await until(lambda: two.end == 2)


@on_loop
async def test_a_follower_says_where_its_log_starts_however_long_it_took_to_move(tmp_path, monkeypatch):
    """It moves while the next request is on the way, which says the old one."""
    fetch_now = FetchSession.fetch

    async def late(*asked):
        await asyncio.sleep(0.3)
        return await whole(fetch_now(*asked))

    monkeypatch.setattr(FetchSession, "fetch", late)
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, replica_lag_time_max_ms=120_000, replica_fetch_wait_max_ms=2000)
        await site.create(replicas=(1, 2))
        await one.produce(b"a", b"b")
        await until(lambda: 2 in one.role.caught_up)
        log = two.replicas.partitions()[T0].replica.log
        advance = log.advance_start

        def slowly(offset):
            time.sleep(1.2)  # longer than others wait for it
            return advance(offset)

        log.advance_start = slowly
        done = await one.replicas.delete_records(T0, 2, timeout_ms=8000)
        assert (done.error_code, done.low_watermark) == (ErrorCode.NONE, 2)
        await until(lambda: 2 in one.role.caught_up and not one.role.caught_up[2].must_answer(terms()))


@on_loop
async def test_a_session_belongs_to_one_life_and_takes_its_requests_in_order(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        three = Follows(one)
        await three.ask({T0: 0})

        def code(number, epoch, who=(3, 7)):
            with pytest.raises(KafkaError) as refused:
                one.replicas.fetch_session(number, epoch, who, "")
            return refused.value.code

        assert code(three.number, 1, (3, 8)) == code(99, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert code(three.number, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        waiting = await three.ask({}, 20_000, begin=True)
        assert code(three.number, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        waiting.cancel()  # its connection is gone
        await asyncio.sleep(0)
        assert not one.replicas.leader(T0).replica.followers
        assert code(three.number, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        former, three.epoch = three.number, FIRST_REQUEST
        await three.ask({T0: 0})
        assert code(former, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@on_loop
async def test_a_damaged_end_is_refused_to_those_who_ask_on(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        three = Follows(one)
        await three.ask({T0: 0})
        waiting = await three.ask({}, 20_000, begin=True)
        replica = one.replicas.leader(T0).replica
        replica.ends_early = True
        replica.wake_followers()
        assert (await waiting)[T0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
