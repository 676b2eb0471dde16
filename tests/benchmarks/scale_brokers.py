"""The curves of brokers for `bench_scale.py`: connections, partitions, starts, failovers; `scale_groups` has groups."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import uvloop
from bench_cluster import Pylog, cpu_s
from bench_small_requests import TOPIC, Asking, ask, frame, produce, text
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from scale_curve import Curve, say

from replication.local_cluster import process
from replication.model.cluster import LeaderAndIsr

PATIENCE_S = 300
IDLE_S = 10
SESSION_MS = 6000


class Spread(Asking):
    """One connection that asks one partition after the other."""

    def __init__(self, requests: Sequence[bytes], first: int, delays_s: list[float]) -> None:
        super().__init__(b"", 0, delays_s)
        self._requests = itertools.islice(itertools.cycle(requests), first, None)

    def ask_once(self) -> None:
        self._request = next(self._requests)
        super().ask_once()


class Paced(Spread):
    """The same, `every_s`; `ended_s` gets when each was answered."""

    def __init__(
        self, requests: Sequence[bytes], first: int, delays_s: list[float], every_s: float, ended_s: list[float]
    ) -> None:
        super().__init__(requests, first, delays_s)
        self._every_s, self._ended_s = every_s, ended_s

    def data_received(self, data: bytes) -> None:
        before = len(self._delays_s)
        super().data_received(data)
        if len(self._delays_s) > before:
            self._ended_s.append(time.time())

    def ask_once(self) -> None:
        asyncio.get_running_loop().call_later(self._every_s, self._ask_now)

    def _ask_now(self) -> None:
        if not self._transport.is_closing():
            super().ask_once()


async def during(port: int, connections: int, protocol: Callable[[int], Asking], seconds: float) -> None:
    """Have so many connections ask, each as its protocol does."""
    loop = asyncio.get_running_loop()
    asking = [await loop.create_connection(lambda n=n: protocol(n), "127.0.0.1", port) for n in range(connections)]
    await asyncio.sleep(seconds)
    for transport, _ in asking:
        transport.abort()


async def load(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> list[float]:
    """The seconds of every answer that came while so many connections asked."""
    delays_s, step = list[float](), max(1, len(requests) // connections)
    await during(port, connections, lambda n: Spread(requests, n * step % len(requests), delays_s), seconds)
    return delays_s


async def paced(
    port: int, requests: Sequence[bytes], connections: int, per_second: float, seconds: float
) -> list[tuple[float, float]]:
    """(when, after how many seconds) of every answer, while each connection asks so often at most."""
    delays_s, ended_s, every_s = list[float](), list[float](), connections / per_second
    await during(port, connections, lambda n: Paced(requests, n % len(requests), delays_s, every_s, ended_s), seconds)
    return list(zip(ended_s, delays_s, strict=True))


def p99(delays_s: Sequence[float]) -> float:
    return statistics.quantiles(delays_s, n=100)[98]


def resident_kib(pid: int) -> int:
    """The memory in use now; `status` would show it with the error of each core."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss"))


# Connections


async def held_kib(port: int, pid: int, request: bytes, count: int) -> float:
    """The memory of one of so many more connections that were answered once.

    The same number comes before and stays: those connections get the memory that others have left.
    """
    streams = []
    for number in range(2 * count):
        if number == count:
            before_kib = resident_kib(pid)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        streams.append(writer)
    found = (resident_kib(pid) - before_kib) / count
    for writer in streams:
        writer.close()
    return found


def connections(sizes: Sequence[int], root: Path) -> list[Curve]:
    """Small requests to ten partitions of one broker: how many it answers, its CPU for one."""
    rates, costs, waits, memories = [], [], [], []
    with Pylog(1, root / "connections", {}) as cluster:
        create(cluster, TOPIC, 10, 1)
        port, pid = port_of(cluster), cluster.pid(1)
        requests = [produce(cluster, 1, n) for n in range(10)]
        for size in sizes:
            found = []
            for _ in range(4):  # the first warms up
                before, began = cpu_s(pid), time.perf_counter()
                delays_s = uvloop.run(load(port, requests, size, 3))
                seconds, cost = time.perf_counter() - began, (cpu_s(pid) - before) / len(delays_s)
                found.append((len(delays_s) / seconds, cost * 1e6, 1000 * p99(delays_s) / size))
            rate, cost, wait = (statistics.median(values) for values in zip(*found[1:], strict=True))
            rates.append((size, rate))
            costs.append((size, cost))
            waits.append((size, wait))
            say(f"connections={size}: {rate:,.0f}/s, {cost:.1f} µs")
    for size in (n for n in sizes if n >= 100):  # fewer do not show
        with Pylog(1, root / f"connections-{size}", {}) as cluster:  # a new one: no load has left it free memory
            create(cluster, TOPIC, 10, 1)
            held = held_kib(port_of(cluster), cluster.pid(1), produce(cluster, 1, 0), size)
            memories.append((size, asyncio.run(held)))
            say(f"connections={size}: {memories[-1][1]:.1f} KiB")
    grows = "connections that produce"
    return [
        Curve(grows, "requests answered", "per second", rates, "> 0.6 of 10"),
        Curve(grows, "CPU per request", "µs", costs, ""),
        Curve(grows, "p99 per connection", "ms", waits, ""),
        Curve(grows, "memory of one", "KiB", memories, "< 60"),
    ]


# Partitions


def port_of(cluster: Pylog) -> int:
    return int(cluster.bootstrap.rsplit(":", 1)[1])


def create(cluster: Pylog, topic: str, partitions: int, replicas: int) -> float:
    """The seconds until all are led and in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    began = time.perf_counter()
    (asked,) = admin.create_topics([NewTopic(topic, partitions, replicas)], operation_timeout=60).values()
    with contextlib.suppress(KafkaException):  # it takes longer than the client waits
        asked.result(PATIENCE_S)
    until_in_sync(cluster, topic, partitions, replicas)
    if len(cluster.live) == 1:
        until_served(cluster, partitions)
    return time.perf_counter() - began


def until_in_sync(cluster: Pylog, topic: str, partitions: int, replicas: int) -> None:
    """Wait until there are so many partitions, all of them with as many replicas in sync."""
    until = time.perf_counter() + PATIENCE_S
    while True:
        found = led(cluster, topic)
        if len(found) >= partitions and all(len(one.isr) == replicas for one in found):
            return
        assert time.perf_counter() < until, f"{topic} does not come in sync"
        time.sleep(0.05 if partitions < 5000 else 0.5)


def led(cluster: Pylog, topic: str) -> list[LeaderAndIsr]:
    return [one for tp, one in cluster.describe().leadership.items() if tp.topic == topic]


def until_served(cluster: Pylog, partitions: int) -> list[int]:
    """Where each partition of the topic ends, as soon as the one broker tells that of all of them."""
    rows = b"".join(struct.pack(">iq", n, -1) for n in range(partitions))
    request = frame(2, 1, struct.pack(">ii", -1, 1) + text(TOPIC) + struct.pack(">i", partitions) + rows)
    until = time.perf_counter() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            answer = asyncio.run(ask(port_of(cluster), request))
            at = 4 + 2 + len(TOPIC) + 4
            found = sorted(struct.iter_unpack(">ihqq", answer[at:]))
            if len(found) == partitions and all(not error for _, error, _, _ in found):
                return [offset for _, _, _, offset in found]
        assert time.perf_counter() < until, "not all partitions are served"
        time.sleep(partitions / 50_000)


def idle(pids: Sequence[int]) -> float:
    """Percent of a core that the busiest takes."""
    before = [cpu_s(pid) for pid in pids]
    time.sleep(IDLE_S)
    return max((cpu_s(pid) - one) / IDLE_S * 100 for pid, one in zip(pids, before, strict=True))


def partitions(sizes: Sequence[int], root: Path) -> list[Curve]:
    """Small requests of 100 connections that go round the partitions of one broker: its CPU for one, and to idle."""
    costs, idles, memories, used, creations, bare = [], [], [], [], [], []
    for size in sizes:
        bare.append((size, bare_directory_s(root / f"bare-{size}", min(size, 1000)) * 1e3))
        with Pylog(1, root / f"partitions-{size}", {}) as cluster:
            pid = cluster.pid(1)
            empty_kib = resident_kib(pid)
            creations.append((size, create(cluster, TOPIC, size, 1) / size * 1e3))
            time.sleep(3)
            idles.append((size, idle([pid])))
            memories.append((size, (resident_kib(pid) - empty_kib) / size))
            say(f"partitions={size}: {creations[-1][1]:.2f} ms, {idles[-1][1]:.2f} %, {memories[-1][1]:.1f} KiB")
            requests = [produce(cluster, 1, n) for n in range(size)]
            warm = 0
            while warm < 5 * size:  # the first append to a partition makes its files
                warm += len(uvloop.run(load(port_of(cluster), requests, 100, 3)))
            found = []
            for _ in range(3):
                before = cpu_s(pid)
                delays_s = uvloop.run(load(port_of(cluster), requests, 100, 4))
                found.append((cpu_s(pid) - before) / len(delays_s) * 1e6)
            costs.append((size, statistics.median(found)))
            used.append((size, (resident_kib(pid) - empty_kib) / size))
            say(f"partitions={size}: {costs[-1][1]:.1f} µs, {used[-1][1]:.1f} KiB")
    grows = "partitions of a broker"
    return [
        Curve(grows, "CPU per request", "µs", costs, "1.5"),
        Curve(grows, "idle CPU", "% of a core", idles, "< 3"),
        Curve(grows, "memory of one, empty", "KiB", memories, "< 10"),
        Curve(grows, "memory of one that is written", "KiB", used, ""),
        Curve(grows, "creating one", "ms", creations, "< 1"),
        Curve(grows, "the file system's part of that", "ms", bare, ""),
    ]


def bare_directory_s(root: Path, count: int) -> float:
    """The seconds for a directory with a small file, both durable as a partition's are, without pylog; of so many."""
    root.mkdir()
    began = time.perf_counter()
    for number in range(count):
        directory = root / str(number)
        directory.mkdir()
        file = os.open(directory / "new", os.O_CREAT | os.O_WRONLY)
        os.write(file, b"x" * 40)
        os.fsync(file)
        os.close(file)
        (directory / "new").rename(directory / "named")
        entry = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(entry)
        os.close(entry)
    return (time.perf_counter() - began) / count


def starts(sizes: Sequence[int], root: Path) -> list[Curve]:
    """A broker with so many partitions, each with records: until it serves all, after a stop and after a kill."""
    process.STOP_TIMEOUT_S = process.READY_TIMEOUT_S = PATIENCE_S
    stops, stopped, killed = [], [], []
    for size in sizes:
        with Pylog(1, root / f"starts-{size}", {}) as cluster:
            create(cluster, TOPIC, size, 1)
            requests = [produce(cluster, 1, n) for n in range(size)]
            while min(until_served(cluster, size)) == 0:  # connections come to their last partition when they can
                uvloop.run(load(port_of(cluster), requests, 100, max(2, size / 500)))
            ends, began = settled(cluster, size), time.perf_counter()
            cluster.stop(1)
            stops.append((size, time.perf_counter() - began))
            stopped.append((size, restart_s(cluster, ends)))
            uvloop.run(load(port_of(cluster), requests, 100, max(1, size / 2000)))
            ends = settled(cluster, size)
            cluster.kill(1)
            killed.append((size, restart_s(cluster, ends)))
            say(f"partitions={size}: stop {stops[-1][1]:.2f}, start {stopped[-1][1]:.2f}, {killed[-1][1]:.2f} s")
    grows = "partitions of a broker"
    return [
        Curve(grows, "stop", "s", stops, ""),
        Curve(grows, "start after a stop", "s", stopped, "< 5"),
        Curve(grows, "start after a kill", "s", killed, "< 15"),
    ]


def settled(cluster: Pylog, partitions: int) -> list[int]:
    """Where each partition ends, once the requests in flight when the load ended are appended."""
    time.sleep(1)
    return until_served(cluster, partitions)


def restart_s(cluster: Pylog, ends: list[int]) -> float:
    """The seconds until all partitions are served again, with the records that they had."""
    began = time.perf_counter()
    cluster.restart(1)
    found = until_served(cluster, len(ends))
    assert found == ends, [(n, was, now) for n, (was, now) in enumerate(zip(ends, found, strict=True)) if was != now][
        :5
    ]
    return time.perf_counter() - began


# Failovers

_TIME = r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\]"
# The controller misses it; or it was the controller, and another takes its place.
DIED = re.compile(_TIME + r" .*(?:deleted brokers: 1,|starting become controller)")
LEADS = re.compile(_TIME + r" .*completed LeaderAndIsr .* for the become-leader")
HAS_ROLE = re.compile(_TIME + r" .*completed LeaderAndIsr ")


def times(cluster: Pylog, brokers: Sequence[int], log: str, line: re.Pattern[str], since_s: float) -> Iterator[float]:
    """When the brokers wrote such lines since then."""
    for broker in brokers:
        for text_log in cluster.log_dir(broker).rglob(log):
            for found in line.finditer(text_log.read_text(errors="replace")):
                at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()  # noqa: DTZ007
                if at > since_s:
                    yield at


def until_followed(cluster: Pylog, replicas: int) -> None:
    """Wait until so many replicas have a role: a topic is in sync once it is written down, and its logs come later."""
    until = time.perf_counter() + PATIENCE_S
    while sum(1 for _ in times(cluster, cluster.live, "state-change.log", HAS_ROLE, 0)) < replicas:
        assert time.perf_counter() < until, "not all replicas have a role"
        time.sleep(replicas / 30_000)


def failovers(sizes: Sequence[int], root: Path) -> list[Curve]:
    """Three brokers with three replicas: to make them, to idle; and one is killed: when its partitions are led again.

    Meanwhile another broker gets 500 requests a second for partitions of its own.
    """
    creations, idles, spans, ends, slower = [], [], [], [], []
    process.STOP_TIMEOUT_S = process.READY_TIMEOUT_S = PATIENCE_S
    for size in sizes:
        settings = {"zookeeper.session.timeout.ms": SESSION_MS, "auto.leader.rebalance.enable": "false"}
        with Pylog(3, root / f"failovers-{size}", settings) as cluster:
            create(cluster, TOPIC, 30, 1)
            creations.append((size, create(cluster, "many", size, 3) / size * 1e3))
            until_followed(cluster, 30 + 3 * size)
            time.sleep(5)
            idles.append((size, idle(cluster.pids())))
            say(f"partitions={size}: {creations[-1][1]:.2f} ms, {idles[-1][1]:.2f} %")
            port, requests = requests_of(cluster, 2)
            uvloop.run(load(port, requests, 10, 1))
            calm = uvloop.run(paced(port, requests, 10, 500, 4))
            lost = sum(one.leader == 1 for one in led(cluster, "many"))
            killed_s = time.time()
            cluster.kill(1)
            with ThreadPoolExecutor(1) as other:
                time.sleep(SESSION_MS / 1000 - 2)
                seconds = 5 + size / 1000
                meanwhile = other.submit(lambda at=(port, requests, 10, 500, seconds): uvloop.run(paced(*at)))
                answered = meanwhile.result()
            while any(one.leader == 1 for one in led(cluster, "many")):
                time.sleep(0.5)
            died_s = min(times(cluster, (2, 3), "controller.log", DIED, killed_s))
            leads_s = [at for at in times(cluster, (2, 3), "state-change.log", LEADS, killed_s) if at > died_s]
            assert len(leads_s) >= lost, (len(leads_s), lost)
            spans.append((size, max(leads_s) - min(leads_s)))
            ends.append((size, max(leads_s) - died_s))
            during = [delay for at, delay in answered if died_s <= at <= max(leads_s) + 1]
            slower.append((size, p99(during) / p99([delay for _, delay in calm])))
            say(
                f"partitions={size}: {lost} led again {spans[-1][1]:.2f} s, {ends[-1][1]:.2f} s after the session "
                f"({died_s - killed_s:.1f} s), p99 {1000 * p99(during):.1f} ms, x {slower[-1][1]:.1f}"
            )
    grows = "partitions of three brokers, three replicas"
    return [
        Curve(grows, "creating one", "ms", creations, ""),
        Curve(grows, "idle CPU of a broker", "% of a core", idles, "< 3"),
        Curve(grows, "first to last new leader", "s", spans, "< 0.2"),
        Curve(grows, "session's end to last leader", "s", ends, "< 1"),
        Curve(grows, "p99 of others, against before", "times", slower, "< 2"),
    ]


def requests_of(cluster: Pylog, broker: int) -> tuple[int, list[bytes]]:
    """The port of a broker, and a small produce request for each partition of the topic that it leads."""
    found = cluster.describe()
    own = [tp.partition for tp, one in found.leadership.items() if tp.topic == TOPIC and one.leader == broker]
    return found.brokers[broker].port, [produce(cluster, 1, n) for n in own]
