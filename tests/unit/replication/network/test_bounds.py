"""The bounds of clients' cost: slow ones, many, large requests, half ones; others are served meanwhile."""

import asyncio
import socket
import struct
import threading

import pytest

from replication.network.admission import SocketServerSettings
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey
from replication.protocol.framing import LARGE_BYTES
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
    until,
)
from tests.support.waits import stays

MIB = 1 << 20


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, 2**31 - 1, 104_857_601, 0x16030100, 0x47455420])
def test_a_size_that_may_not_be_closes_the_connection_with_one_line(size, caplog):
    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}) as (_, port):
            peer, other = await Peer.connect(port), await Peer.connect(port)
            peer.writer.write(struct.pack(">i", size) + bytes(1000))
            assert await peer.is_closed()
            other.send(*LIST_GROUPS)
            assert await other.answered() == 1

    run(main())
    assert len(caplog.records) == 1
    assert f"a request of {size} bytes" in caplog.text


def test_a_request_that_comes_byte_by_byte_is_answered():
    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}) as (_, port):
            peer = await Peer.connect(port)
            wire = struct.pack(">ihhih", 10, ApiKey.LIST_GROUPS, 0, 7, -1)
            for place in range(len(wire)):
                peer.writer.write(wire[place : place + 1])
                await asyncio.sleep(0.001)
            assert await peer.answered() == 7

    run(main())


def test_what_the_first_request_of_an_api_has_to_load_is_loaded_in_a_thread(monkeypatch):
    threads, decode = [], apis.decode_request

    def decoded(*arguments, **options):
        threads.append(threading.current_thread().name.partition("_")[0])
        return decode(*arguments, **options)

    monkeypatch.setattr(bounds, "_UNLOADED", {ApiKey.LIST_GROUPS << 16})
    monkeypatch.setattr(apis, "decode_request", decoded)

    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}) as (_, port):
            peer = await Peer.connect(port)
            for number in (1, 2):
                peer.writer.write(struct.pack(">ihhih", 10, ApiKey.LIST_GROUPS, 0, number, -1))
                assert await peer.answered() == number

    run(main())
    assert threads == ["decode", "MainThread"]


@pytest.mark.parametrize("cut", [1, 3, 4, 9, 40])
def test_a_client_that_leaves_in_the_middle_of_a_request_leaves_nothing_behind(cut):
    async def main():
        async with serving({ApiKey.PRODUCE: Hand()}) as (server, port):
            peer = await Peer.connect(port)
            peer.writer.write(struct.pack(">ihhih", MIB, ApiKey.PRODUCE, 7, 1, -1)[:cut].ljust(cut, b"\0"))
            await until(lambda: server.connections)
            await settled()
            peer.close()
            await until(lambda: not server.connections)
            assert (server.admission.held_bytes, server.admission.in_work) == (0, 0)

    run(main())


def test_a_request_of_many_megabytes_arrives_whole():
    async def main():
        got = []

        def keep(context, body):
            got.append(bytes(body.topics[0].partitions[0].records))
            return PRODUCED

        async with serving({ApiKey.PRODUCE: keep}) as (server, port):
            peer = await Peer.connect(port)
            for size in (LARGE_BYTES - 50, LARGE_BYTES, 5 * MIB, 10, 3 * MIB):
                peer.send(*produce(size))
                assert await peer.answered() is not None
                assert got.pop() == bytes(size)
            assert server.admission.held_bytes == 0

    run(main())


def test_who_does_not_read_its_answers_is_not_asked_for_more_and_the_others_are_served():
    """A slow reader costs a few answers of memory, however many requests it sends."""

    async def main():
        answered = 0

        def handle(context, body):
            nonlocal answered
            answered += 1
            return {"error_code": 0, "groups": [{"group_id": "g" * 10_000, "protocol_type": ""}] * 10}

        async with serving({ApiKey.LIST_GROUPS: handle}) as (server, port):
            slow, other = await slow_reader(port), await Peer.connect(port)
            for _ in range(1000):  # 100 MB of answers
                slow.send(*LIST_GROUPS)
            await settled()
            await stays(lambda: answered < 200, 0.2)
            other.send(*LIST_GROUPS)
            assert await other.answered() == 1
            for expected in range(1, 1001):  # and when it reads, it gets them all
                assert await slow.answered() == expected
            assert server.admission.in_work == 0

    run(main())


async def slow_reader(port):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return Peer(*await asyncio.open_connection(sock=sock, limit=16 * 1024))


def test_requests_in_work_are_bounded_over_all_connections():
    async def main():
        hand = Hand()
        async with serving({ApiKey.PRODUCE: hand}, queued_max_requests=4) as (server, port):
            peers = [await Peer.connect(port) for _ in range(10)]
            for peer in peers:
                peer.send(*produce())
            await hand.came(4)
            await settled()
            assert (len(hand.seen), server.admission.in_work) == (4, 4)
            for count in range(10):
                await hand.came(min(10, count + 4))
                hand.answer(PRODUCED)
            for peer in peers:
                assert await peer.answered() == 1
            assert server.admission.in_work == 0

    run(main())


def test_requests_that_only_wait_leave_room_for_others():
    """(acks=all while a follower is slow must not stop those who ask for metadata)"""

    async def main():
        produces = Hand(parks=True)
        handlers = {ApiKey.PRODUCE: produces, ApiKey.FETCH: Hand(), ApiKey.LIST_GROUPS: groups}
        async with serving(handlers, queued_max_requests=2) as (_, port):
            peers = [await Peer.connect(port) for _ in range(8)]
            for peer in peers[:4]:
                peer.send(*produce())
            for peer in peers[4:]:
                peer.send(*fetch())
            await produces.came(4)
            await handlers[ApiKey.FETCH].came(4)
            other = await Peer.connect(port)
            other.send(*LIST_GROUPS)
            assert await other.answered() == 1

    run(main())


def test_bytes_of_large_requests_are_bounded_and_all_get_their_turn():
    async def main():
        hand = Hand()
        async with serving({ApiKey.PRODUCE: hand}, queued_max_request_bytes=3 * MIB) as (server, port):
            peers = [await Peer.connect(port) for _ in range(6)]
            for peer in peers:
                peer.send(*produce(MIB))
            await hand.came(2)
            await settled()
            assert len(hand.seen) == 2
            assert server.admission.held_bytes < 3 * MIB
            for count in range(6):
                await hand.came(min(6, count + 2))
                hand.answer(PRODUCED)
            for peer in peers:
                assert await peer.answered() == 1
            assert server.admission.held_bytes == 0

    run(main())


def test_half_requests_that_stall_do_not_keep_the_room_of_others(monkeypatch, caplog):
    monkeypatch.setattr("replication.network.admission.STALL_S", 0.1)

    async def main():
        hand = Hand()
        async with serving({ApiKey.PRODUCE: hand}, queued_max_request_bytes=100 * MIB) as (server, port):
            hostile = await Peer.connect(port)
            hostile.writer.write(struct.pack(">i", 100 * MIB) + bytes(100))
            await until(lambda: server.admission.held_bytes)
            await stays(lambda: server.connections, 0.3)  # it harms nobody yet
            honest = await Peer.connect(port)
            honest.send(*produce(MIB))
            await hand.came(1)
            hand.answer(PRODUCED)
            assert await honest.answered() == 1
            assert await hostile.is_closed()

    run(main())
    assert len(caplog.records) == 1


def test_idle_connections_are_closed_and_those_that_wait_for_an_answer_are_not():
    async def main():
        hand = Hand()
        handlers = {ApiKey.FETCH: hand, ApiKey.LIST_GROUPS: groups}
        async with serving(handlers, connections_max_idle_ms=200) as (server, port):
            idle, waiting, busy = [await Peer.connect(port) for _ in range(3)]
            waiting.send(*fetch())
            await hand.came(1)
            for _ in range(20):
                busy.send(*LIST_GROUPS)
                assert await busy.answered() is not None
                await asyncio.sleep(0.025)
            assert await idle.is_closed()
            assert len(server.connections) == 2
            hand.answer(FETCHED)
            assert await waiting.answered() == 1

    run(main())


def test_more_connections_than_allowed_are_turned_away(caplog):
    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}, max_connections=2) as (server, port):
            first, second = await Peer.connect(port), await Peer.connect(port)
            for _ in range(3):
                assert await (await Peer.connect(port)).is_closed()
            assert (len(caplog.records), server.admission.refused) == (1, 3)
            for peer in (first, second):
                peer.send(*LIST_GROUPS)
                assert await peer.answered() == 1
            first.close()
            await settled()
            late = await Peer.connect(port)
            late.send(*LIST_GROUPS)
            assert await late.answered() == 1
            server.admission.limit(SocketServerSettings(max_connections=3))  # a setting of brokers that is live
            later = await Peer.connect(port)
            later.send(*LIST_GROUPS)
            assert await later.answered() == 1
            assert await (await Peer.connect(port)).is_closed()

    run(main())


def test_a_parked_fetch_is_cancelled_when_its_client_goes_and_others_run_to_their_end():
    async def main():
        fetches, joins = Hand(), Hand()
        async with serving({ApiKey.FETCH: fetches, ApiKey.PRODUCE: joins}) as (server, port):
            fetching, producing = await Peer.connect(port), await Peer.connect(port)
            fetching.send(*fetch())
            producing.send(*produce())
            await fetches.came(1)
            await joins.came(1)
            for peer in (fetching, producing):
                peer.close()
            await until(lambda: not server.connections)
            assert fetches.waiting[0].cancelled()
            assert not joins.waiting[0].cancelled()
            joins.answer(PRODUCED)
            await settled()
            assert server.admission.in_work == 0

    run(main())


def test_buffers_of_connections_are_as_large_as_the_settings_say_or_as_the_system_likes():
    async def sizes(**limits):
        """The buffer sizes of the server's side of a connection; Linux shows twice the requested size."""
        async with serving({ApiKey.LIST_GROUPS: groups}, **limits) as (server, port):
            peer = await Peer.connect(port)
            peer.send(*LIST_GROUPS)
            assert await peer.answered() == 1
            (connection,) = server.connections
            ours = connection._transport.get_extra_info("socket")
            return [ours.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_SNDBUF, socket.SO_RCVBUF)]

    chosen = run(sizes(socket_send_buffer_bytes=50_000, socket_receive_buffer_bytes=40_000))
    assert chosen == [100_000, 80_000]
    assert set(chosen).isdisjoint(run(sizes()))
