"""A broker's connection to another one: answers in order, time that runs out, peers that talk nonsense."""

import asyncio
import functools

import pytest

from replication.errors import ProtocolError
from replication.network.client import Client, Clients, connect
from replication.network.pipeline import Endpoint, no_needs
from replication.network.server import Server
from replication.protocol.apis import ApiKey

EPOCH_REQUEST = {"replica_id": 1, "topics": ()}


def on_loop(test):
    @functools.wraps(test)
    def run():
        async def timed():
            async with asyncio.timeout(20):
                await test()

        asyncio.run(timed())

    return run


async def serve(handler):
    server = Server({ApiKey.OFFSET_FOR_LEADER_EPOCH: Endpoint(no_needs, handler)})
    return server, await server.start("127.0.0.1", 0)


def answer(context, body):
    topics = [{"topic": context.client_id, "partitions": ()}]
    return {"topics": topics}


@on_loop
async def test_calls_are_answered_in_order_and_after_a_restart_too():
    server, port = await serve(answer)
    client = Client("127.0.0.1", port, "me", timeout_ms=5000)
    calls = [client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST) for _ in range(20)]
    found = await asyncio.gather(*calls)
    assert all(response.topics[0].topic == "me" for response in found)
    await server.close()
    with pytest.raises(ConnectionError):
        await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)
    server = Server({ApiKey.OFFSET_FOR_LEADER_EPOCH: Endpoint(no_needs, answer)})
    await server.start("127.0.0.1", port)
    assert (await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)).topics
    client.close()
    await server.close()


@on_loop
async def test_a_connection_that_is_drained_closes_behind_its_last_answer():
    may_answer = asyncio.Event()

    async def slow(context, body):
        await may_answer.wait()
        return answer(context, body)

    server, port = await serve(slow)
    connection = await connect("127.0.0.1", port, timeout_s=5)
    asked = [connection.send(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "me", EPOCH_REQUEST) for _ in range(3)]
    draining = asyncio.create_task(connection.drain())
    await asyncio.sleep(0)
    assert not connection.is_over
    may_answer.set()
    await draining
    assert connection.is_over
    assert [each.result().topics[0].topic for each in asked] == ["me"] * 3
    await server.close()


@on_loop
async def test_a_call_whose_time_is_over_ends_the_connection_and_the_next_one_has_another():
    waits = []

    async def slow(context, body):
        waits.append(context.connection_id)
        if len(waits) == 1:
            await asyncio.sleep(3600)
        return answer(context, body)

    server, port = await serve(slow)
    clients = Clients("me", timeout_ms=5000)
    client = Client("127.0.0.1", port, "me", timeout_ms=100)
    with pytest.raises(TimeoutError):
        await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)
    assert (await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST, timeout_ms=5000)).topics
    assert waits[0] != waits[1]
    assert (await clients.call("127.0.0.1", port, ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)).topics
    clients.close()
    client.close()
    await server.close(grace_s=0.1)


@pytest.mark.parametrize("nonsense", [b"\x00\x00\x00\x08" + b"\xff" * 8, b"\xff" * 64, b"\x00\x00\x00\x09" + bytes(9)])
def test_a_peer_that_talks_nonsense_is_a_protocol_error(nonsense):
    @on_loop
    async def run():
        gone = asyncio.Event()

        async def talk(reader, writer):
            await reader.read(10)
            writer.write(nonsense)
            await reader.read()
            writer.close()
            await writer.wait_closed()
            gone.set()

        peer = await asyncio.start_server(talk, "127.0.0.1", 0)
        client = Client("127.0.0.1", peer.sockets[0].getsockname()[1], "me", timeout_ms=5000)
        with pytest.raises(ProtocolError):
            await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)
        client.close()
        await gone.wait()
        peer.close()

    run()


@on_loop
async def test_nobody_at_home_is_an_os_error():
    with pytest.raises(ConnectionError):
        await Clients("me", timeout_ms=500).call("127.0.0.1", 1, ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)
