"""Clients beyond their quotas: they are told to wait, and are not read meanwhile; all others are served."""

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from logstore.env import Clock
from replication.errors import KafkaError
from replication.network.connection import Connection
from replication.network.counted import told
from replication.network.mute import Mute
from replication.network.throttle import RATES_KEPT, Throttle
from replication.network.work import Encoded
from replication.protocol import apis, failures
from replication.protocol.apis import INTERBROKER, SERVED, ApiKey, EncodedBody
from replication.protocol.kio_entities import build, encode_entity
from replication.protocol.messages import (
    FetchResponse,
    PartitionFetched,
    PartitionProduced,
    ProduceResponse,
    TopicFetched,
    TopicProduced,
)
from replication.security.access import BROKER, Context, Principal
from replication.security.quotas import ANY, Entity, Quota
from replication.security.rates import QuotaWindows
from tests.support.peer import (
    FETCHED,
    LIST_GROUPS,
    PRODUCED,
    Peer,
    fetch,
    groups,
    produce,
    run,
    serving,
    settled,
    until,
)

HERE = Context("127.0.0.1", 1, Principal("ada"))
FREE_BYTES = 10_000  # at once, with RATE bytes a second: beyond that, a byte costs a millisecond
RATE = 1000
WAIT_S = 0.4


class Hands(Clock):
    """A clock that stands until somebody moves it."""

    now = 10**6

    def monotonic_ms(self):
        return self.now


def throttle_of(**given):
    """A throttle whose clock stands, where everybody has these quotas."""
    throttle = Throttle(clock=Hands())
    throttle.put(Entity(None, ANY), {Quota[name.upper()]: value for name, value in given.items()})
    return throttle


def produce_of(frame_bytes, acks=1):
    """A request for records that is so long, its size left out."""
    key, version, request = produce(0)
    head_bytes = sum(map(len, apis.encode_request(key, version, 1, "test", request))) - 4
    key, version, request = produce(frame_bytes - head_bytes)
    return key, version, request._replace(acks=acks)


def busy():
    """Take the time of the event loop for 20 ms."""
    end_s = time.perf_counter() + 0.02
    while time.perf_counter() < end_s:
        pass


def produced(works):
    for work in works:
        work.answer(PRODUCED if work.body.acks else None)


def fetched_of(body_bytes):
    """An answer to a Fetch of version 11 that counts as so many bytes."""
    empty = FetchResponse([TopicFetched("t", None, [PartitionFetched(0, 0)])])
    more = body_bytes - (sum(map(len, apis.encode_response(ApiKey.FETCH, 11, 1, empty))) - 4)
    return FetchResponse([TopicFetched("t", None, [PartitionFetched(0, 0, records=bytes(more))])])


def test_a_client_beyond_its_quota_is_told_to_wait_and_read_only_then_and_others_are_served():
    async def main():
        async with serving(
            {ApiKey.LIST_GROUPS: groups}, turns={ApiKey.PRODUCE: produced}, throttle=throttle_of(produced=RATE)
        ) as (server, port):
            peer, other = await Peer.connect(port), await Peer.connect(port)
            answer = await peer.ask(*produce_of(FREE_BYTES))
            assert answer.throttle_time_ms == 0
            answer = await peer.ask(*produce_of(int(WAIT_S * 1000)))
            told_s = time.monotonic()
            assert answer.throttle_time_ms == WAIT_S * 1000
            peer.send(*LIST_GROUPS)
            other.send(*LIST_GROUPS)
            assert await other.answered() == 1
            served_s = time.monotonic()
            assert await peer.answered() == 3
            assert served_s - told_s < WAIT_S / 2 < WAIT_S - 0.05 < time.monotonic() - told_s
            assert (server.admission.throttled, server.admission.throttled_ms) == (1, WAIT_S * 1000)

    run(main())


def test_requests_that_came_together_are_answered_and_the_next_ones_wait():
    async def main():
        async with serving(
            {ApiKey.LIST_GROUPS: groups}, turns={ApiKey.PRODUCE: produced}, throttle=throttle_of(produced=RATE)
        ) as (_, port):
            peer = await Peer.connect(port)
            begin_s = time.monotonic()
            for request in (produce_of(FREE_BYTES + 200), produce_of(200), LIST_GROUPS):
                peer.send(*request)
            assert [await peer.answered() for _ in range(2)] == [1, 2]
            assert time.monotonic() - begin_s < 0.15
            assert await peer.answered() == 3
            assert time.monotonic() - begin_s > 0.35

    run(main())


def test_a_producer_that_wants_no_answer_is_held_back_too():
    async def main():
        async with serving(
            {ApiKey.LIST_GROUPS: groups}, turns={ApiKey.PRODUCE: produced}, throttle=throttle_of(produced=RATE)
        ) as (_, port):
            peer = await Peer.connect(port)
            peer.send(*produce_of(FREE_BYTES + 400, acks=0))
            await settled()
            begin_s = time.monotonic()
            peer.send(*LIST_GROUPS)
            assert await peer.answered() == 2
            assert time.monotonic() - begin_s > 0.25

    run(main())


def test_a_fetch_beyond_the_quota_brings_nothing_and_costs_nothing():
    throttle = throttle_of(consumed=RATE)
    answers = iter([fetched_of(9000), fetched_of(1100), fetched_of(1000)])

    async def main():
        async with serving({ApiKey.FETCH: lambda work, body: next(answers)}, throttle=throttle) as (_, port):
            peer = await Peer.connect(port)
            found = [await peer.ask(*fetch()) for _ in range(3)]
            assert [answer.throttle_time_ms for answer in found] == [0, 100, 0]
            assert [len(answer.topics) for answer in found] == [1, 0, 1]

    run(main())


def test_a_batch_larger_than_all_that_is_allowed_goes_out_when_nothing_else_has():
    throttle = throttle_of(consumed=RATE)

    async def main():
        async with serving({ApiKey.FETCH: lambda work, body: fetched_of(FREE_BYTES + 50)}, throttle=throttle) as (
            _,
            port,
        ):
            peer = await Peer.connect(port)
            found = [await peer.ask(*fetch()) for _ in range(2)]
            assert [answer.throttle_time_ms for answer in found] == [50, FREE_BYTES + 100]
            assert [len(answer.topics) for answer in found] == [1, 0]

    run(main())


def test_followers_are_not_counted():
    throttle = throttle_of(consumed=1)
    key, version, request = fetch()

    async def main():
        async with serving({ApiKey.FETCH: lambda work, body: fetched_of(50_000)}, throttle=throttle) as (_, port):
            peer = await Peer.connect(port)
            for _ in range(3):
                answer = await peer.ask(key, version, request._replace(replica_id=2))
                assert (answer.throttle_time_ms, len(answer.topics)) == (0, 1)

    run(main())
    assert throttle.limit_of(Quota.CONSUMED, Context("h", 1, BROKER), "any") is None


def test_without_quotas_a_request_has_its_own_origin():
    origins = []

    def handle(work, body):
        origins.append(type(work.origin))
        return groups(work, body)

    async def main():
        throttle = Throttle()
        async with serving({ApiKey.LIST_GROUPS: handle}, throttle=throttle) as (_, port):
            peer = await Peer.connect(port)
            for entity, values in (
                (Entity(ip=ANY), {Quota.CONNECTIONS: 1e6}), (Entity(ANY), {Quota.PRODUCED: 5.0}), (Entity(ANY), {})
            ):  # fmt: skip
                throttle.put(entity, values)
                peer.send(*LIST_GROUPS)
                await peer.answered()

    run(main())
    assert [each is Connection for each in origins] == [True, False, True]


def test_the_time_of_requests_is_counted_and_nobody_waits_longer_than_a_sample():
    throttle = Throttle()
    throttle.put(Entity(None, ANY), {Quota.REQUESTS: 0.01})  # a millisecond of the window of 10 s

    async def waits(work, body):
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.05)
        return groups(work, body)

    async def works_and_waits(work, body):
        await asyncio.sleep(0)
        busy()
        await asyncio.sleep(0)
        return FETCHED

    def works(turn):
        for work in turn:
            busy()
            work.answer(PRODUCED)

    async def main():
        handlers = {ApiKey.LIST_GROUPS: waits, ApiKey.FETCH: works_and_waits}
        async with serving(handlers, turns={ApiKey.PRODUCE: works}, throttle=throttle) as (server, port):
            limit = throttle.limit_of(Quota.REQUESTS, Context("h", 1), "test")
            for request, is_long in ((LIST_GROUPS, False), (fetch(), True), (produce(), True)):
                throttle.taken.clear()
                peer = await Peer.connect(port)
                peer.send(*request)
                await peer.answered()
                ((key, rate),) = throttle.taken.items()
                assert key == (Quota.REQUESTS, limit.sharer)
                percent = sum(sample.value for sample in rate)
                assert percent > 1.9 if is_long else percent < 1.5, (request, percent)
            assert server.admission.throttled_ms <= 1000 * server.admission.throttled

    run(main())


def test_a_request_that_takes_too_much_time_is_told_so():
    throttle = Throttle(QuotaWindows(quota_window_num=2))
    throttle.put(Entity(None, ANY), {Quota.REQUESTS: 1})

    def handle(work, body):
        busy()
        return groups(work, body)

    async def main():
        async with serving({ApiKey.LIST_GROUPS: handle}, throttle=throttle) as (_, port):
            peer = await Peer.connect(port)
            answer = await peer.ask(ApiKey.LIST_GROUPS, 1, {})
            assert timedelta(milliseconds=900) < answer.throttle_time <= timedelta(seconds=1)

    run(main())


def test_a_connection_that_has_ended_is_not_held_back():
    async def main():
        loop, passed_s = asyncio.get_running_loop(), []
        mute = Mute(loop, lambda: passed_s.append(loop.time()))
        begin_s = loop.time()
        mute.hold(20)
        mute.hold(1)
        assert mute.is_on
        await until(lambda: passed_s)
        assert not mute.is_on
        assert passed_s[0] >= begin_s + 0.02
        mute.hold(1)
        mute.end()
        mute.hold(1)
        assert not mute.is_on
        end_s = loop.time() + 0.01
        await until(lambda: loop.time() > end_s)
        assert len(passed_s) == 1

    run(main())


def test_a_client_that_is_held_back_is_read_no_further():
    async def main():
        async with serving({}, turns={ApiKey.PRODUCE: produced}, throttle=throttle_of(produced=RATE)) as (server, port):
            peer = await Peer.connect(port)
            await peer.ask(*produce_of(FREE_BYTES + 60_000))
            (connection,) = server.connections
            for _ in range(200):
                peer.send(*produce_of(60_000))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(peer.writer.drain(), 0.2)
            assert len(connection.works()) == 0

    run(main())


def test_a_connection_that_is_held_back_ends_with_its_client_and_with_its_server():
    async def main():
        async with serving({}, turns={ApiKey.PRODUCE: produced}, throttle=throttle_of(produced=RATE)) as (server, port):
            gone, here = await Peer.connect(port), await Peer.connect(port)
            for peer in (gone, here):
                await peer.ask(*produce_of(FREE_BYTES + 60_000))
            (first, second) = server.connections
            first.abort()
            await settled()
            assert not first.mute.is_on
            assert list(server.connections) == [second]
            begin_s = time.monotonic()
            await server.close(grace_s=5)
            assert time.monotonic() - begin_s < 1
            assert await here.is_closed()

    run(main())


def test_a_client_that_changes_its_id_has_other_quotas():
    throttle = throttle_of(produced=RATE)
    one, other = (throttle.limit_of(Quota.PRODUCED, HERE, name) for name in ("one", "other"))
    assert throttle.charge(Quota.PRODUCED, one, FREE_BYTES + 7) == 7
    assert throttle.charge(Quota.PRODUCED, other, FREE_BYTES) == 0
    throttle.put(Entity("ada"), {Quota.PRODUCED: RATE})
    both = {throttle.limit_of(Quota.PRODUCED, HERE, name).sharer for name in ("one", "other")}
    assert len(both) == 1


def test_no_more_rates_are_kept_than_there_may_be():
    throttle = throttle_of(produced=RATE)
    for number in range(RATES_KEPT + 500):
        throttle.charge(Quota.PRODUCED, throttle.limit_of(Quota.PRODUCED, HERE, f"c{number}"), FREE_BYTES + 9)
    assert len(throttle.taken) <= RATES_KEPT
    assert len(throttle.known) <= RATES_KEPT
    last = throttle.limit_of(Quota.PRODUCED, HERE, f"c{RATES_KEPT + 499}")
    assert throttle.charge(Quota.PRODUCED, last, 1) == 10
    throttle.clock.now += 20_000
    for number in range(RATES_KEPT):
        throttle.charge(Quota.PRODUCED, throttle.limit_of(Quota.PRODUCED, HERE, f"d{number}"), 1)
    assert len(throttle.taken) <= RATES_KEPT


def test_the_most_that_a_fetch_may_bring_is_what_a_window_allows():
    throttle = throttle_of(consumed=RATE)
    assert throttle.most_bytes(HERE, "c") == FREE_BYTES
    throttle.put(Entity("ada"), {Quota.CONSUMED: 1e12})
    assert throttle.most_bytes(HERE, "c") == 2**31 - 1


class Asked:
    """A request as far as its answer is told of."""

    throttle_ms = 0

    def __init__(self, key, version):
        self.key, self.version, self.correlation_id = key, version, 7


def test_mutations_are_refused_when_the_bucket_is_empty_and_older_clients_only_wait():
    throttle = throttle_of(mutations=2)
    origin = type("Origin", (), {"context": HERE})()
    works = [Asked(ApiKey.CREATE_TOPICS, 7) for _ in range(4)]
    for work in works:
        work.origin, work.client_id = origin, "c"
    strict, refused, older, nothing = works
    throttle.mutate(strict, 30, is_strict=True)  # 22 are in the bucket, and one request may take more
    assert strict.throttle_ms == 0
    with pytest.raises(KafkaError) as error:
        throttle.mutate(refused, 1, is_strict=True)
    assert (error.value.code, refused.throttle_ms) == (89, 4000)
    throttle.mutate(older, 2, is_strict=False)
    assert older.throttle_ms == 5000
    throttle.clock.now += 5000
    throttle.mutate(strict, 1, is_strict=True)
    throttle.mutate(nothing, 0, is_strict=True)
    assert (strict.throttle_ms, nothing.throttle_ms) == (0, 0)


VERSIONS = [
    (key, version)
    for key in SERVED
    for version in range(key.versions.first, key.versions.last + 1)
    if key not in INTERBROKER
]


def answers_of(key, version):
    """The forms in which handlers answer."""
    if key is ApiKey.PRODUCE:
        whole = ProduceResponse([TopicProduced("t", [PartitionProduced(0, 0)])])
        yield whole
        yield b"".join(apis.encode_response(key, version, 7, whole))
    elif key is ApiKey.FETCH:
        whole = FetchResponse([TopicFetched("t", None, [PartitionFetched(0, 0, records=b"r" * 9000)])])
        yield whole
        yield Encoded(apis.encode_response(key, version, 7, whole))
    else:
        values = {**failures.form_of(key, version).values}
        entity = build(apis.response_class(key, version), values)
        if key is ApiKey.API_VERSIONS:
            yield version, EncodedBody([encode_entity(entity)])
            return
        yield values
        yield entity
        yield EncodedBody([encode_entity(entity)])
        yield b"".join(apis.encode_response(key, version, 7, entity))


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: getattr(value, "name", value))
def test_an_answer_of_any_form_tells_the_time_where_its_version_has_one(key, version):
    for answer in answers_of(key, version):
        found = told(Asked(key, version), answer, 12_345)
        if key is ApiKey.API_VERSIONS:
            _, found = found
            _, answer = answer  # noqa: PLW2901
        before, after = (decoded(key, version, each) for each in (answer, found))
        if isinstance(after, ProduceResponse | FetchResponse):
            assert after == before._replace(throttle_time_ms=12_345)
        elif hasattr(after, "throttle_time"):
            assert after.throttle_time == timedelta(milliseconds=12_345)
            assert after == replace(before, throttle_time=after.throttle_time)
        else:
            assert after == before


def decoded(key, version, answer):
    parts = answer if isinstance(answer, Encoded) else [answer]
    if not isinstance(answer, bytes | Encoded):
        parts = apis.encode_response(key, version, 7, answer)
    correlation_id, found = apis.decode_response(key, version, memoryview(b"".join(parts))[4:])
    assert correlation_id == 7
    return found


def test_an_answer_that_there_is_none_of_tells_nothing():
    assert told(Asked(ApiKey.PRODUCE, 7), None, 5) is None
    assert ErrorCode.throttling_quota_exceeded.value == 89
