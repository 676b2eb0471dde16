"""Closing: no new requests, what is in work is answered, nobody holds it up for longer than the grace."""

import asyncio
import contextlib
import socket
import time

import pytest

from replication.protocol.apis import ApiKey
from tests.support.peer import (
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

from .test_bounds import slow_reader


def test_what_is_in_work_is_answered_and_then_the_connection_ends():
    async def main():
        hand = Hand()
        async with serving({ApiKey.PRODUCE: hand, ApiKey.LIST_GROUPS: groups}) as (server, port):
            gone = await Peer.connect(port)
            gone.send(*LIST_GROUPS)
            await gone.answered()
            gone.close()
            await settled()  # there was a time without connections
            idle, busy = await Peer.connect(port), await Peer.connect(port)
            busy.send(*produce())
            await hand.came(1)
            closing = asyncio.create_task(server.close())
            assert await idle.is_closed()
            await settled()
            assert not closing.done()
            hand.answer(PRODUCED)
            assert await busy.answered() == 1
            assert await busy.answered() is None
            await closing
            with pytest.raises(OSError, match="Connect"):
                await Peer.connect(port)

    run(main())


def test_a_parked_fetch_is_let_go():
    async def main():
        fetches = Hand()
        async with serving({ApiKey.FETCH: fetches}) as (server, port):
            peer = await Peer.connect(port)
            peer.send(*fetch())
            await fetches.came(1)
            await server.close()
            assert fetches.waiting[0].cancelled()
            assert await peer.answered() is None

    run(main())


def test_requests_that_were_not_started_are_dropped_at_close():
    async def main():
        hand = Hand()
        async with serving({ApiKey.FETCH: Hand(), ApiKey.PRODUCE: hand}) as (server, port):
            peer = await Peer.connect(port)
            peer.send(*fetch())
            peer.send(*produce(1 << 20))
            await settled()
            await server.close()
            assert await peer.is_closed()
            assert (hand.seen, server.admission.held_bytes, server.admission.in_work) == ([], 0, 0)

    run(main())


def test_nobody_holds_the_close_up_for_longer_than_the_grace(caplog):
    async def main():
        hand = Hand()
        big = {"error_code": 0, "groups": [{"group_id": "g" * 10_000, "protocol_type": ""}] * 1000}
        handlers = {ApiKey.PRODUCE: hand, ApiKey.LIST_GROUPS: lambda context, body: big}
        async with serving(handlers) as (server, port):
            stuck, deaf = await Peer.connect(port), await slow_reader(port)
            stuck.send(*produce())
            deaf.send(*LIST_GROUPS)
            await hand.came(1)
            await settled()
            began = time.monotonic()
            await server.close(grace_s=0.2)
            assert 0.1 < time.monotonic() - began < 2
            await settled()
            assert not server.connections
            hand.answer(PRODUCED)  # it comes too late, and that is no error
            await settled()

    run(main())
    assert [record.message for record in caplog.records] == ["connections=2 cut off at close"]


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_who_comes_while_it_closes_is_let_go_too(turns):
    async def main():
        async with serving({}) as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as late:
                for _ in range(turns):  # until it is accepted, and then until it is a connection
                    await asyncio.sleep(0)
                await server.close()
                await settled()
                late.settimeout(5)
                with contextlib.suppress(ConnectionResetError):
                    assert late.recv(1) == b""

    run(main())


def test_close_may_be_called_more_than_once():
    async def main():
        async with serving({}) as (server, _):
            await server.close()
            await server.close()

    run(main())
