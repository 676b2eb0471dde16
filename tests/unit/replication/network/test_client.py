"""A broker's connection to another one: answers in order, time that runs out, peers that talk nonsense."""

import asyncio
import functools

import pytest

from replication.errors import ProtocolError
from replication.network.channel import connect
from replication.network.client import Client, Clients
from replication.network.pipeline import Endpoint, no_needs
from replication.network.server import Server
from replication.protocol.apis import ApiKey
from tests.support.peer import run, until

EPOCH_REQUEST = {"replica_id": 1, "topics": ()}


def on_loop(test):
    @functools.wraps(test)
    def test_on_loop():
        run(test())

    return test_on_loop


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
async def test_no_call_overtakes_those_that_wait_for_the_connection():
    came = []

    def note(context, body):
        came.append(body.replica_id)
        return answer(context, body)

    server, port = await serve(note)
    client = Client("127.0.0.1", port, "me", timeout_ms=5000)
    calls = []
    while len(came) < 3:  # one in each turn of the loop, before, while and after it opens
        request = {**EPOCH_REQUEST, "replica_id": len(calls)}
        calls.append(asyncio.create_task(client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, request)))
        await asyncio.sleep(0)
    await asyncio.gather(*calls)
    assert came == list(range(len(calls)))
    client.close()
    await server.close()


@on_loop
async def test_a_client_that_is_closed_opens_nothing_more_and_leaves_nothing_open():
    server, port = await serve(answer)
    client = Client("127.0.0.1", port, "me", timeout_ms=5000)
    asked = asyncio.create_task(client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST))
    await asyncio.sleep(0)  # it is being opened
    client.close()
    for call in (asked, client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)):
        with pytest.raises(ConnectionAbortedError, match=f"the connection to 127.0.0.1:{port} was closed"):
            await call
    await until(lambda: not server.connections)
    await server.close()


@on_loop
async def test_a_client_that_is_reset_ends_its_calls_and_opens_another_connection():
    came = []

    async def slow(context, body):
        came.append(context.connection_id)
        if len(came) == 1:
            await asyncio.Event().wait()  # for ever
        return answer(context, body)

    server, port = await serve(slow)
    client = Client("127.0.0.1", port, "me", timeout_ms=5000)
    asked = asyncio.create_task(client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST))
    await until(lambda: came and client.silent_s > 0)
    client.reset()
    with pytest.raises(ConnectionAbortedError):
        await asked
    assert (await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)).topics
    assert client.silent_s == 0
    assert came[0] != came[1]
    client.close()
    await server.close(grace_s=0.1)


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
    connections, is_slow = [], True

    async def slow(context, body):
        connections.append(context.connection_id)
        if is_slow:
            await asyncio.sleep(3600)
        return answer(context, body)

    server, port = await serve(slow)
    clients = Clients("me", timeout_ms=20_000)
    client = Client("127.0.0.1", port, "me", timeout_ms=20_000)
    with pytest.raises(TimeoutError, match=f"127.0.0.1:{port} did not answer OFFSET_FOR_LEADER_EPOCH within 0.1 s"):
        await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST, timeout_ms=100)
    is_slow = False
    assert (await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)).topics
    assert len(set(connections)) == len(connections)
    assert (await clients.call("127.0.0.1", port, ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)).topics
    clients.close()
    client.close()
    await server.close(grace_s=0.1)


@pytest.mark.parametrize("nonsense", [b"\x00\x00\x00\x08" + b"\xff" * 8, b"\xff" * 64, b"\x00\x00\x00\x09" + bytes(9)])
def test_a_peer_that_talks_nonsense_is_a_protocol_error(nonsense):
    async def talking():
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

    run(talking())


@on_loop
async def test_nobody_at_home_is_an_os_error():
    with pytest.raises(ConnectionError):
        await Clients("me", timeout_ms=500).call("127.0.0.1", 1, ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_REQUEST)


@pytest.mark.parametrize("asks_versions", [False, True])
def test_requests_are_sent_in_versions_that_brokers_of_the_release_before_serve(asks_versions):
    """A follower of this release fetches from a leader of the last one; a client has no topic ids for a Produce."""
    client = Client("localhost", 1, "me", timeout_ms=1, asks_versions=asks_versions)
    newest = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 16, ApiKey.LIST_OFFSETS: 7, ApiKey.METADATA: 12}
    assert {key: client.version(key) for key in newest} == newest
    assert client.version(ApiKey.FETCH, version_max=11) == 11
    assert client.version(ApiKey.FETCH, version_max=18) == 16
