"""5,000 idle connections: little memory each, and others do not feel them."""

import asyncio
import contextlib
import resource
import socket
import struct
import time
from pathlib import Path

from replication.protocol.apis import ApiKey
from tests.support.peer import LIST_GROUPS, Hand, Peer, groups, run, serving, until

WANTED = 5_000
FILES_BESIDE = 300  # what else the test process has open
BYTES_EACH = 16 * 1024
PAGE_BYTES = resource.getpagesize()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def connected(port, count, first_bytes):
    """So many sockets, each of which has sent these bytes."""
    with contextlib.ExitStack() as opened:
        found = []
        for _ in range(count):
            found.append(opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
            found[-1].send(first_bytes)
        return found, opened.pop_all()


def test_thousands_of_connections_that_are_idle_or_sent_half_a_request():
    """Both ends are in this process, so that each connection takes two of its files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(WANTED, (hard - FILES_BESIDE) // 2)

    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups, ApiKey.PRODUCE: Hand()}) as (server, port):
            before = resident_bytes()
            half = struct.pack(">ihh", 50_000, ApiKey.PRODUCE, 7)
            _, idle = await asyncio.to_thread(connected, port, count - count // 2, b"")
            _, started = await asyncio.to_thread(connected, port, count // 2, half)
            with idle, started:
                await until(lambda: len(server.connections) == count)
                assert (resident_bytes() - before) / count < BYTES_EACH
                asked = await Peer.connect(port)
                began = time.monotonic()
                for expected in range(1, 201):
                    asked.send(*LIST_GROUPS)
                    assert await asked.answered() == expected
                assert time.monotonic() - began < 2  # 10 ms each, on a busy machine
            await until(lambda: len(server.connections) <= 1)

    try:
        run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
