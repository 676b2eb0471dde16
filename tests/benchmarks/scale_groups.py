"""The curve of consumer groups for `bench_scale.py`: two members each, three brokers, of which one is killed.

Members speak the protocol here, so that thousands are cheap: each has a connection, joins, gets its share, beats once a
second (clients do every three), and looks for its coordinator when that is gone.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop
from bench_cluster import Pylog
from bench_small_requests import PARTITIONS, TOPIC, frame, in_partition, text
from scale_brokers import DIED, SESSION_MS, create, p99, times, until_in_sync
from scale_curve import Curve, say

BEAT_S, PAUSE_S, PATIENCE_S = 1.0, 0.2, 60.0
CALM_S = 6.0
OFFSETS = "__consumer_offsets"
ELSEWHERE = {14, 15, 16}  # it loads the group, is not there, or is another
REJOIN = {22, 25, 27}  # another generation, an unknown member, a rebalance
COMMITTED = 4711


class Line(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        if len(self._got) >= 4 and len(self._got) >= 4 + int.from_bytes(self._got[:4], "big"):
            answer, self._got = self._got[8:], b""  # behind its size and the correlation id
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())

    async def ask(self, request: bytes) -> bytes:
        """Raises: ConnectionError."""
        if self._transport.is_closing():
            raise ConnectionResetError
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self._transport.abort()


async def connected(port: int) -> Line:
    _, line = await asyncio.get_running_loop().create_connection(Line, "127.0.0.1", port)
    return line


class Finder:
    """Asks one broker after the other where the coordinator of a group is."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._line: Line | None = None
        self._lock = asyncio.Lock()

    async def find(self, group: str) -> int | None:
        """Its port; None if that is not known now."""
        async with self._lock:
            try:
                if self._line is None:
                    self._line = await connected(self._ports[0])
                answer = await self._line.ask(frame(10, 0, text(group)))
            except OSError:
                self._line = None
                self._ports.append(self._ports.pop(0))
                return None
        error, _, size = struct.unpack_from(">hih", answer)
        port: int = struct.unpack_from(">i", answer, 8 + size)[0]
        return None if error else port


class Member:
    """One member of a group. `served` gets when it was served again, after it had lost its coordinator."""

    def __init__(self, group: str, finder: Finder, delays_s: list[float]) -> None:
        self.group, self.port = group, 0
        self.is_stable = False
        self.lost_s, self.served_s = 0.0, 0.0
        self.rejoined = 0
        self._finder, self._delays_s = finder, delays_s
        self._line: Line | None = None
        self._name, self._generation = "", -1

    @property
    def _named(self) -> bytes:
        return text(self.group) + struct.pack(">i", self._generation) + text(self._name)

    async def run(self, first_s: float) -> None:
        """Live until it is cancelled."""
        await asyncio.sleep(first_s)
        while True:
            try:
                if self._line is None and not await self._connect():
                    await asyncio.sleep(PAUSE_S)
                elif self._generation < 0:
                    await self._join()
                else:
                    await self._beat()
            except OSError:
                self._lose()

    def _lose(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
            self.lost_s, self.is_stable = self.lost_s or time.time(), False

    async def _connect(self) -> bool:
        port = await self._finder.find(self.group)
        if port is None:
            return False
        try:
            self._line = await connected(port)
        except OSError:
            return False
        self.port = port
        return True

    async def _join(self) -> None:
        assert self._line is not None
        protocols = struct.pack(">i", 1) + text("range") + struct.pack(">i", 0)
        head = text(self.group) + struct.pack(">i", 30_000) + text(self._name) + text("consumer")
        answer = await self._line.ask(frame(11, 0, head + protocols))
        error, generation = struct.unpack_from(">hi", answer)
        if await self._is_refused(error):
            return
        at, words = 6, []
        for _ in range(3):  # protocol, leader, member
            size = int.from_bytes(answer[at : at + 2], "big")
            words.append(answer[at + 2 : at + 2 + size].decode())
            at += 2 + size
        self._generation, self._name = generation, words[2]
        shares = b"" if words[1] != words[2] else _shares(answer, at)
        answer = await self._line.ask(frame(14, 0, self._named + (shares or struct.pack(">i", 0))))
        await self._is_refused(struct.unpack_from(">h", answer)[0])

    async def _beat(self) -> None:
        assert self._line is not None
        began = time.perf_counter()
        answer = await self._line.ask(frame(12, 0, self._named))
        took_s = time.perf_counter() - began
        if await self._is_refused(struct.unpack_from(">h", answer)[0]):
            return
        self._delays_s.append(took_s)
        self.is_stable = True
        if self.lost_s and not self.served_s:
            self.served_s = time.time()
        await asyncio.sleep(BEAT_S)

    async def _is_refused(self, error: int) -> bool:
        if error in ELSEWHERE:
            self._lose()
            await asyncio.sleep(PAUSE_S)
        elif error in REJOIN:
            self.is_stable = False
            self.rejoined += 1
            self._generation = -1
            if error == 25:
                self._name = ""
        else:
            assert not error, f"{self.group}: error {error}"
        return bool(error)

    async def commit(self) -> None:
        """In the pause between two heartbeats, on a connection of its own."""
        line = await connected(self.port)
        body = struct.pack(">q", -1) + in_partition(0, struct.pack(">q", COMMITTED) + text(""))
        answer = await line.ask(frame(8, 2, self._named + body))
        line.close()
        assert answer[-2:] == b"\0\0", (self.group, answer)

    async def committed(self) -> int:
        line = await connected(self.port)
        answer = await line.ask(frame(9, 1, text(self.group) + in_partition(0, b"")))
        line.close()
        offset: int = struct.unpack_from(">q", answer, 4 + 2 + len(TOPIC) + 4 + 4)[0]
        return offset


def _shares(answer: bytes, at: int) -> bytes:
    """The part of each member in the leader's answer to its join: four bytes."""
    count = int.from_bytes(answer[at : at + 4], "big")
    found, at = struct.pack(">i", count), at + 4
    for _ in range(count):
        size = int.from_bytes(answer[at : at + 2], "big")
        found += answer[at : at + 2 + size] + struct.pack(">ii", 4, 0)
        at += 2 + size
        at += 4 + int.from_bytes(answer[at : at + 4], "big")
    return found


async def until_replicated(cluster: Pylog, finder: Finder) -> None:
    """Have the topic of offsets made, and wait until all its replicas are in sync."""
    await finder.find("a group")
    await asyncio.to_thread(until_in_sync, cluster, OFFSETS, 1, 3)


async def stable(members: Sequence[Member]) -> None:
    until = time.monotonic() + PATIENCE_S
    while left := sum(not member.is_stable for member in members):
        assert time.monotonic() < until, f"{left} members are not served"
        await asyncio.sleep(0.05)


async def measured(cluster: Pylog, size: int) -> tuple[float, float, float, int]:
    """(p99 of a heartbeat in s, when a broker was killed, when the last of its groups was served, its groups)."""
    ports = {broker: info.port for broker, info in cluster.describe().brokers.items()}
    finder = Finder([ports[2], ports[3]])
    delays_s: list[float] = []
    members = [Member(f"g-{size}-{n // 2}", finder, delays_s) for n in range(2 * size)]
    await until_replicated(cluster, finder)
    tasks = [asyncio.ensure_future(member.run(n // 2 / size)) for n, member in enumerate(members)]
    try:
        await stable(members)
        await asyncio.sleep(2 * BEAT_S)
        await stable(members)
        for at in range(0, len(members), 100):
            await asyncio.gather(*(member.commit() for member in members[at : at + 100 : 2]))
        say(f"groups={size}: stable, after {sum(member.rejoined for member in members)} rebalances of members")
        delays_s.clear()
        await asyncio.sleep(CALM_S)
        calm_s = p99(delays_s)
        moving = [member for member in members if member.port == ports[1]]
        for member in moving:
            member.lost_s = member.served_s = 0.0
        killed_s = time.time()
        await asyncio.to_thread(cluster.kill, 1)
        while not all(member.served_s for member in moving):
            await asyncio.sleep(0.05)
            assert time.time() < killed_s + PATIENCE_S, "not all groups are served again"
        assert all(task.done() is False for task in tasks), [task for task in tasks if task.done()]
        for at in range(0, len(members), 100):
            found = await asyncio.gather(*(member.committed() for member in members[at : at + 100]))
            assert set(found) == {COMMITTED}, found
        return calm_s, killed_s, max(member.served_s for member in moving), len(moving) // 2
    finally:
        for task in tasks:
            task.cancel()


def groups(sizes: Sequence[int], root: Path) -> list[Curve]:
    """How long a heartbeat takes, and how long after a broker's death all of its groups are served by another."""
    waits, moves, moves_after = [], [], []
    for size in sizes:
        settings = {"zookeeper.session.timeout.ms": SESSION_MS, "group.initial.rebalance.delay.ms": 500}
        with Pylog(3, root / f"groups-{size}", settings) as cluster:
            create(cluster, TOPIC, PARTITIONS, 3)
            calm_s, killed_s, served_s, moved = uvloop.run(measured(cluster, size))
            died_s = min(times(cluster, (2, 3), "controller.log", DIED, killed_s))
        waits.append((size, 1000 * calm_s))
        moves.append((size, served_s - killed_s))
        moves_after.append((size, served_s - died_s))
        say(
            f"groups={size}: p99 {waits[-1][1]:.2f} ms; {moved} moved after {moves[-1][1]:.2f} s, "
            f"{moves_after[-1][1]:.2f} s of them after the session"
        )
    grows = "groups of two members"
    return [
        Curve(grows, "p99 of a heartbeat", "ms", waits, "< 50"),
        Curve(grows, "session's end to last group served", "s", moves_after, "< 5"),
        Curve(grows, "broker's death to last group served", "s", moves, ""),
    ]
