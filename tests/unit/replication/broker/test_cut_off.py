"""A broker that is told which addresses it cannot reach."""

import asyncio
from contextlib import closing, suppress

from replication.broker.cut_off import CutOff


async def on_server(test):
    """Call the test with a CutOff of this loop, what it said, and the port of a server that answers."""
    said, answering = [], []

    async def answer(reader, writer):
        answering.append(asyncio.current_task())
        with suppress(ConnectionError), closing(writer):
            writer.write(await reader.readline())
            await reader.read()

    async with asyncio.timeout(20), await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        cut_off = CutOff(asyncio.get_running_loop(), said.append)
        await test(cut_off, said, server.sockets[0].getsockname()[1])
        await asyncio.gather(*answering)
    await asyncio.sleep(0)  # what was closed ends


async def asked(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    return reader, writer


def test_connections_end_and_new_ones_get_no_answer_until_the_network_is_healed():
    async def told(cut_off, said, port):
        reader, _ = await asked(port)
        line = f"unreachable=127.0.0.1 {port},127.0.0.1 1"
        cut_off.data_received(line[:9].encode())
        assert said == []  # not a whole line yet
        cut_off.data_received(f"{line[9:]}\n".encode())
        assert said == [line]
        assert await reader.read() == b"", "it ended"
        waiting = asyncio.create_task(asked(port))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done, "neither made nor refused"
        cut_off.data_received(b"unreachable=\n")
        _, writer = await waiting
        writer.close()

    asyncio.run(on_server(told))


def test_other_addresses_are_reached_meanwhile():
    async def told(cut_off, said, port):
        cut_off.data_received(b"unreachable=127.0.0.1 1\n")
        _, writer = await asked(port)
        writer.close()

    asyncio.run(on_server(told))
