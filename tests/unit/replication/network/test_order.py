"""Requests and responses of a connection: in order, however handlers take their time; what may overtake what."""

import asyncio
import struct

from replication.errors import ProtocolError
from replication.network.exchange import PIPELINE_MAX
from replication.network.work import Encoded
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.support.peer import (
    FETCHED,
    LIST_GROUPS,
    PRODUCED,
    Hand,
    Peer,
    fetch,
    groups,
    produce,
    run,
    serving,
    settled,
)


def test_requests_are_answered_in_their_order_and_over_the_same_connection():
    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}) as (_, port):
            peer = await Peer.connect(port)
            for _ in range(50):
                peer.send(*LIST_GROUPS)
            assert [await peer.answered() for _ in range(50)] == list(range(1, 51))

    run(main())


def test_produces_of_a_connection_are_in_work_together_and_answered_in_order():
    async def main():
        hand = Hand()
        async with serving({ApiKey.PRODUCE: hand}) as (_, port):
            peer = await Peer.connect(port)
            for _ in range(3):
                peer.send(*produce())
            await hand.came(3)
            for number in (2, 1):
                hand.answer(PRODUCED, number)
            await settled()
            assert not peer.reader._buffer  # the answers of the later ones wait for that of the first
            hand.answer(PRODUCED)
            assert [await peer.answered() for _ in range(3)] == [1, 2, 3]

    run(main())


def test_no_more_than_the_pipeline_holds_is_in_work_for_one_connection():
    async def main():
        hand = Hand()
        async with serving({ApiKey.PRODUCE: hand}) as (_, port):
            peer = await Peer.connect(port)
            for _ in range(PIPELINE_MAX + 5):
                peer.send(*produce())
            await hand.came(PIPELINE_MAX)
            await settled()
            assert len(hand.seen) == PIPELINE_MAX
            hand.answer(PRODUCED)
            await hand.came(PIPELINE_MAX + 1)
            while hand.waiting:
                hand.answer(PRODUCED)
                await asyncio.sleep(0)
                await settled()
            assert [await peer.answered() for _ in range(PIPELINE_MAX + 5)] == list(range(1, PIPELINE_MAX + 6))

    run(main())


def test_nothing_starts_behind_a_parked_fetch():
    async def main():
        fetches, produces = Hand(), Hand()
        async with serving({ApiKey.FETCH: fetches, ApiKey.PRODUCE: produces}) as (_, port):
            peer = await Peer.connect(port)
            peer.send(*fetch())
            peer.send(*produce())
            await fetches.came(1)
            await settled()
            assert not produces.seen
            fetches.answer(FETCHED)
            await produces.came(1)
            produces.answer(PRODUCED)
            assert [await peer.answered(), await peer.answered()] == [1, 2]

    run(main())


def test_what_is_no_produce_waits_for_the_produces_before_it():
    """So that it sees what they did, also with acks=0."""

    async def main():
        hand = Hand()
        async with serving({ApiKey.PRODUCE: hand, ApiKey.LIST_GROUPS: groups}) as (_, port):
            peer = await Peer.connect(port)
            for request in (produce(), produce(), LIST_GROUPS):
                peer.send(*request)
            await hand.came(2)
            hand.answer(None, 1)
            hand.answer(PRODUCED)
            assert [await peer.answered(), await peer.answered()] == [1, 3]

    run(main())


def test_a_connection_that_waits_holds_no_other_one_up():
    async def main():
        fetches = Hand()
        async with serving({ApiKey.FETCH: fetches, ApiKey.LIST_GROUPS: groups}) as (_, port):
            parked, other = await Peer.connect(port), await Peer.connect(port)
            parked.send(*fetch())
            await fetches.came(1)
            other.send(*LIST_GROUPS)
            assert await other.answered() == 1

    run(main())


def test_coroutines_begin_in_the_order_of_the_requests():
    async def main():
        begun = []

        async def handle(context, body):
            begun.append(context.correlation_id)
            await asyncio.sleep(0.01 if context.correlation_id == 1 else 0)
            return PRODUCED

        async with serving({ApiKey.PRODUCE: handle}) as (_, port):
            peer = await Peer.connect(port)
            for _ in range(5):
                peer.send(*produce())
            assert [await peer.answered() for _ in range(5)] == begun == [1, 2, 3, 4, 5]

    run(main())


def test_a_request_without_a_response_holds_no_later_one_up():
    async def main():
        answers = iter([None, PRODUCED])
        async with serving({ApiKey.PRODUCE: lambda context, body: next(answers)}) as (_, port):
            peer = await Peer.connect(port)
            peer.send(*produce())
            peer.send(*produce())
            assert await peer.answered() == 2

    run(main())


def test_what_is_answered_at_once_waits_for_what_is_not_answered_before_it():
    async def main():
        hand = Hand()
        answers = iter([hand, lambda context, body: PRODUCED, lambda context, body: None, hand])

        def handle(context, body):
            return next(answers)(context, body)

        async with serving({ApiKey.PRODUCE: handle}) as (server, port):
            peer = await Peer.connect(port)
            for _ in range(4):
                peer.send(*produce())
            await hand.came(2)
            await settled()
            assert (peer.reader._buffer, server.admission.in_work) == (b"", 2)
            hand.answer(PRODUCED, 1)
            await settled()
            assert not peer.reader._buffer
            hand.answer(PRODUCED)
            assert [await peer.answered() for _ in range(3)] == [1, 2, 4]
            assert server.admission.in_work == 0

    run(main())


def test_a_handler_that_fails_costs_its_connection_and_one_line(caplog):
    def fails(context, body):
        raise RuntimeError("a bug")

    async def fails_later(context, body):
        raise RuntimeError("another bug")

    async def main():
        handlers = {ApiKey.HEARTBEAT: fails, ApiKey.FETCH: fails_later, ApiKey.LIST_GROUPS: groups}
        async with serving(handlers) as (_, port):
            other = await Peer.connect(port)
            heartbeat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
            for request in ((ApiKey.HEARTBEAT, 0, heartbeat), fetch()):
                peer = await Peer.connect(port)
                peer.send(*request)
                assert await peer.is_closed()
            other.send(*LIST_GROUPS)
            assert await other.answered() == 1

    run(main())
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_a_handler_closes_the_connection_with_a_protocol_error(caplog):
    async def refuses(context, body):
        raise ProtocolError("acks=0 and nowhere to put it")

    async def main():
        async with serving({ApiKey.PRODUCE: refuses}) as (_, port):
            peer = await Peer.connect(port)
            peer.send(*produce())
            assert await peer.is_closed()

    run(main())
    assert [record.message for record in caplog.records] == [
        "client=127.0.0.1 connection closed: acks=0 and nowhere to put it"
    ]


def test_a_response_that_cannot_be_written_costs_its_connection_only(caplog):
    async def main():
        bad = {"error_code": 0, "groups": [{"group_id": 5}]}
        async with serving({ApiKey.LIST_GROUPS: lambda context, body: bad}) as (server, port):
            peer = await Peer.connect(port)
            peer.send(*LIST_GROUPS)
            assert await peer.is_closed()
            assert server.admission.in_work == 0

    run(main())
    assert len(caplog.records) == 1


def test_the_observer_is_told_of_every_answered_request():
    told = []

    def observe(key, seconds):
        told.append((key, seconds >= 0))

    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}, observer=observe) as (_, port):
            peer = await Peer.connect(port)
            peer.send(*LIST_GROUPS)
            await peer.frame()
            assert told == [(ApiKey.LIST_GROUPS, True)]

    run(main())


def test_a_handler_of_many_that_breaks_closes_those_who_asked_and_frees_their_memory():
    async def main():
        def breaks(requests):
            requests[0].answer(Encoded((struct.pack(">ii", 4, 1),)))
            raise RuntimeError("a bug")

        large = ProduceRequest(1, 0, (ProduceTopic("t", (ProducePartition(0, bytes(200_000)),)),))
        async with serving({}, turns={ApiKey.PRODUCE: breaks}) as (server, port):
            peer = await Peer.connect(port)
            peer.send(ApiKey.PRODUCE, 9, large)
            peer.send(ApiKey.PRODUCE, 9, large)
            assert await peer.is_closed()
            await settled()
            assert server.admission.held_bytes == 0

    run(main())
