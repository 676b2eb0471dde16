"""Brokers against a real Kafka 0.9: the same client, the same machine, in turns.

PYLOG_KAFKA_HOME=/opt/kafka python tests/benchmarks/bench_cluster.py [--rounds 7] [--scale 1]
    [--only produce,partitions,consume,latency,transactions,failover,catchup,idle,start] [--gigabytes 2] [--path DIR]

Without PYLOG_KAFKA_HOME the columns of Kafka stay empty. CPU is that of the brokers, user and system, without the
clients and without ZooKeeper: the client is often what limits, so records per CPU second tell more than wall time.
Topics are new for each kind of row; the first round of each side warms it up and is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import real_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import show

from replication.coordination import cluster, open_tree
from replication.coordination.tree import Tree
from replication.local_cluster import LocalCluster
from replication.model import cluster as model
from replication.model.cluster import ClusterState

KINDS = ("produce", "partitions", "consume", "latency", "transactions", "failover", "catchup", "idle", "start")
TICKS = os.sysconf("SC_CLK_TCK")
PARTITIONS = 6
MIB = 1024 * 1024
SESSION_MS = 6000
SETTINGS = {"zookeeper.session.timeout.ms": SESSION_MS, "auto.leader.rebalance.enable": "false"}


class Side(Protocol):
    """A measured cluster: brokers, and how to reach them."""

    name: str
    client: Mapping[str, object]

    @property
    def bootstrap(self) -> str: ...
    @property
    def coordination(self) -> str: ...
    def pids(self) -> list[int]: ...
    def create(self, topic: str, partitions: int, replicas: int) -> None: ...
    def kill(self, broker: int) -> None: ...
    def restart(self, broker: int) -> None: ...
    def log_dir(self, broker: int) -> Path: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


class Pylog(LocalCluster):
    name = "pylog"
    client: Mapping[str, object] = {}

    def pids(self) -> list[int]:
        return [self.pid(broker) for broker in self.live]

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        asked = admin.create_topics([NewTopic(topic, partitions, replicas)], operation_timeout=60)
        asked[topic].result(60)


@contextmanager
def sides(brokers: int, root: Path) -> Iterator[list[Side]]:
    """Pylog, and Kafka if there is one, both up at once so that they take turns."""
    with tempfile.TemporaryDirectory(dir=root, prefix="pylog-bench-") as name:
        directory = Path(name)
        with Pylog(brokers, directory / "pylog", SETTINGS) as ours:
            if real_kafka.home() is None:
                yield [ours]
                return
            with real_kafka.RealKafka(brokers, directory / "kafka", SETTINGS) as peer:
                yield [ours, peer]


# Memory and CPU of the brokers, from /proc.


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@dataclass(frozen=True, slots=True)
class Cost:
    wall_s: float
    cpu_s: float


def measured(side: Side, work: Callable[[], object]) -> Cost:
    """Wall time, and CPU time of the brokers; what they do in the second after it counts, too."""
    pids = side.pids()
    before, began = sum(map(cpu_s, pids)), time.perf_counter()
    work()
    wall_s = time.perf_counter() - began
    time.sleep(0.5)
    return Cost(wall_s, sum(map(cpu_s, pids)) - before)


def in_turns(measured_sides: list[Side], rounds: int, cost: Callable[[Side], Cost]) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {side.name: [] for side in measured_sides}
    for number in range(rounds + 1):
        for side in measured_sides:
            one = cost(side)
            if number:
                found[side.name].append(one)
    return found


def rates(what: str, records: int, costs: Mapping[str, list[Cost]], goal: str) -> list[object]:
    """A row: records per second and per CPU second, and the medians over rounds of the ratios."""
    row: list[object] = [what]
    for name in ("pylog", "Kafka"):
        if name not in costs:
            row += ["", ""]
            continue
        wall = statistics.median(cost.wall_s for cost in costs[name])
        cpu = statistics.median(cost.cpu_s for cost in costs[name])
        row += [f"{records / wall:,.0f}", f"{records / max(cpu, 1 / TICKS):,.0f}"]
    if "Kafka" not in costs:
        return told([*row, "", "", goal])
    pairs = list(zip(costs["pylog"], costs["Kafka"], strict=True))
    wall = statistics.median(peer.wall_s / own.wall_s for own, peer in pairs)
    cpu = statistics.median(max(peer.cpu_s, 1 / TICKS) / max(own.cpu_s, 1 / TICKS) for own, peer in pairs)
    return told([*row, wall, cpu, goal])


RATE_COLUMNS = ["what", "pylog/s", "per CPU s", "Kafka/s", "per CPU s", "wall ratio", "CPU ratio", "goal"]


# Produce and consume.


def producer(side: Side, **settings: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": side.bootstrap, "log_level": 0, "acks": "all", "batch.size": 65536,
         "batch.num.messages": 10_000, "linger.ms": 5, "queue.buffering.max.messages": 200_000,
         **side.client, **settings}
    )  # fmt: skip


def send(client: Producer, topic: str, count: int, value: bytes, partitions: int = PARTITIONS) -> None:
    """Records in turn to all partitions, until all are acknowledged."""
    produce, poll = client.produce, client.poll
    for i in range(count):
        while True:
            try:
                produce(topic, value, partition=i % partitions)
                break
            except BufferError:
                poll(0.05)
    assert client.flush(300) == 0


def bench_produce(both: list[Side], brokers: int, size: int, count: int, rounds: int) -> list[object]:
    topic, value, clients = f"produced-{size}", os.urandom(size), {}
    for side in both:
        side.create(topic, PARTITIONS, brokers)
        clients[side.name] = producer(side)

    def cost(side: Side) -> Cost:
        return measured(side, lambda: send(clients[side.name], topic, count, value))

    costs = in_turns(both, rounds, cost)
    goal = "1.5" if brokers == 1 else "2"
    return rates(f"produce {size} B, brokers and RF {brokers}", count, costs, goal)


MANY = (10, 1000, 5000)  # partitions; Kafka 0.9 takes the first two


def bench_partitions(both: list[Side], count: int, rounds: int) -> list[list[object]]:
    """The same to more and more partitions; of the last, only what the first of our own cost."""
    rows, first = [], list[float]()
    for partitions in MANY:
        some = both if partitions < MANY[-1] else both[:1]
        topic, value, clients = f"spread-{partitions}", os.urandom(100), {}
        for side in some:
            side.create(topic, partitions, 1)
            clients[side.name] = producer(side)
            send(clients[side.name], topic, 2 * partitions, value, partitions)

        def cost(
            side: Side, clients: dict[str, Producer] = clients, topic: str = topic, partitions: int = partitions
        ) -> Cost:
            return measured(side, lambda: send(clients[side.name], topic, count, b"x" * 100, partitions))

        costs = in_turns(some, rounds, cost)
        own_s = [one.cpu_s for one in costs["pylog"]]
        first = first or own_s
        goal = "1.2" if partitions == MANY[1] else "0.3 of 10 partitions" if partitions == MANY[-1] else ""
        share = statistics.median(first) / statistics.median(own_s)
        rows.append(rates(f"produce 100 B, 1 broker, {partitions} partitions ({share:.2f} of 10)", count, costs, goal))
    return rows


def read(side: Side, topic: str, count: int) -> None:
    settings = {"bootstrap.servers": side.bootstrap, "group.id": "-", "log_level": 0, **side.client}
    with closing(Consumer({**settings, "enable.auto.commit": False})) as consumer:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        left = count
        while left:
            messages = consumer.consume(min(left, 10_000), 30)  # waits until there are so many
            assert messages, "it does not come"
            left -= sum(message.error() is None for message in messages)


def bench_consume(both: list[Side], size: int, count: int, rounds: int) -> list[object]:
    for side in both:
        side.create("filled", PARTITIONS, 1)
        send(producer(side), "filled", count, os.urandom(size))
    costs = in_turns(both, rounds, lambda side: measured(side, lambda: read(side, "filled", count)))
    return rates(f"consume {size} B, 1 broker", count, costs, "1.0")


# Latency.


def latencies_ms(side: Side, count: int, per_second: int = 200) -> list[float]:
    client, found, failed = producer(side, **{"linger.ms": 0}), list[float](), list[object]()

    def acknowledged(sent: float) -> Callable[[object, object], None]:
        def note(error: object, _: object) -> None:
            found.append((time.perf_counter() - sent) * 1000)
            if error is not None:
                failed.append(error)

        return note

    began = time.perf_counter()
    for i in range(count):
        while (left := began + i / per_second - time.perf_counter()) > 0:
            client.poll(left)  # returns with each answer
        client.produce("timed", b"x" * 100, partition=i % PARTITIONS, on_delivery=acknowledged(time.perf_counter()))
    assert client.flush(60) == 0
    assert not failed, (side.name, failed[:3])
    return found


def bench_latency(both: list[Side], brokers: int, seconds: float, rounds: int) -> list[list[object]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for side in both:
        side.create("timed", PARTITIONS, brokers)
    for number in range(rounds + 1):
        for side in both:
            times = sorted(latencies_ms(side, int(200 * seconds)))
            if number:
                marks = times[len(times) // 2], times[int(len(times) * 0.99)]
                found.setdefault(side.name, []).append(marks)
    rows = []
    for index, mark in enumerate(("p50", "p99")):
        values = {name: [round_[index] for round_ in all_] for name, all_ in found.items()}
        goal = "1.5" if brokers == 1 and mark == "p50" else "1.0"
        rows.append(compared(f"{mark} of acks=all at 200/s, brokers and RF {brokers}", "ms", values, goal))
    return rows


def told(row: list[object]) -> list[object]:
    """The row, said at once: a whole run takes a while."""
    print(*row, sep=" | ", file=sys.stderr, flush=True)
    return row


def compared(what: str, unit: str, values: Mapping[str, list[float]], goal: str) -> list[object]:
    """A row where less is better: the ratio says how many times less than Kafka."""
    row: list[object] = [what]
    row += [f"{statistics.median(values[name]):,.2f} {unit}" if name in values else "" for name in ("pylog", "Kafka")]
    if "Kafka" not in values:
        return told([*row, "", goal])
    pairs = zip(values["pylog"], values["Kafka"], strict=True)
    return told([*row, statistics.median(peer / max(own, 1e-9) for own, peer in pairs), goal])


def bench_transactions(count: int, root: Path) -> list[list[object]]:
    """Transactions of 100 records each, one after the other. Kafka 0.9 has none."""
    commits_ms = list[float]()
    with Pylog(3, root / "transactions", SETTINGS) as side:
        side.create("t", PARTITIONS, 3)
        client = producer(side, **{"transactional.id": "bench"})
        client.init_transactions(60)
        began = time.perf_counter()
        for _ in range(count):
            client.begin_transaction()
            for i in range(100):
                client.produce("t", b"x" * 100, partition=i % PARTITIONS)
            assert client.flush(60) == 0
            ended = time.perf_counter()
            client.commit_transaction(60)
            commits_ms.append((time.perf_counter() - ended) * 1000)
        rate = count / (time.perf_counter() - began)
    times = sorted(commits_ms)
    what = "transactions of 100 records, 3 brokers, RF 3"
    marks = {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}
    rows = [compared(f"{what}: {name} of commit_transaction", "ms", {"pylog": [ms]}, "") for name, ms in marks.items()]
    return [compared(what, "/s", {"pylog": [rate]}, ""), *rows]


VALUE_COLUMNS = ["what", "pylog", "Kafka", "ratio", "goal"]


# Failover and catch-up, as the coordination store shows them; the same reader for both.


async def _until(side: Side, holds: Callable[[ClusterState], bool], limit_s: float = 300) -> float:
    """When it held, by this process' clock."""
    tree = await open_tree(side.coordination, on_session=lambda event: None)
    try:
        async with asyncio.timeout(limit_s):
            while not holds(await _read(tree)):  # noqa: ASYNC110  each look is a whole one
                await asyncio.sleep(0.01)
            return time.perf_counter()
    finally:
        await tree.close()


def failover_s(side: Side, partitions: int) -> tuple[float, float]:
    """(from the end of the session to the last new leader, from the kill to that)."""
    side.create("many", partitions, 3)
    asyncio.run(_until(side, lambda state: _led(state) >= partitions))
    time.sleep(5)
    killed = time.perf_counter()
    side.kill(1)
    gone = asyncio.run(_until(side, lambda state: 1 not in state.brokers))
    done = asyncio.run(_until(side, lambda state: all(one.leader != 1 for one in state.leadership.values())))
    return done - gone, done - killed


def _led(state: ClusterState) -> int:
    return sum(one.leader >= 0 and len(one.isr) == 3 for one in state.leadership.values())


def bench_failover(partitions: int, root: Path) -> list[list[object]]:
    expiry, kill = dict[str, list[float]](), dict[str, list[float]]()
    with sides(3, root) as both:
        for side in both:
            after_expiry, after_kill = failover_s(side, partitions)
            expiry[side.name], kill[side.name] = [after_expiry], [after_kill]
    what = f"kill -9 of a leader, {partitions} partitions on 3 brokers"
    return [
        compared(f"{what}: session expiry to last new leader", "s", expiry, "pylog < 1 s"),
        compared(f"the same from the kill, session {SESSION_MS / 1000:g} s", "s", kill, ""),
    ]


def catch_up_mb_s(side: Side, size_bytes: int) -> float:
    side.create("lagging", 1, 2)
    client, value = producer(side), os.urandom(16_000)
    send(client, "lagging", 100, value, 1)
    state = asyncio.run(_state(side))
    follower = next(
        b for tp, one in state.leadership.items() if tp.topic == "lagging" for b in one.isr if b != one.leader
    )
    side.kill(follower)
    asyncio.run(_until(side, lambda now: _isr(now) == 1))
    send(client, "lagging", size_bytes // len(value), value, 1)
    began = time.perf_counter()
    side.restart(follower)
    return size_bytes / 1e6 / (asyncio.run(_until(side, lambda now: _isr(now) == 2, 900)) - began)


async def _state(side: Side) -> ClusterState:
    tree = await open_tree(side.coordination, on_session=lambda event: None)
    try:
        return await _read(tree)
    finally:
        await tree.close()


async def _read(tree: Tree) -> ClusterState:
    """Brokers, topics and leaderships: what the trees of both have."""
    brokers, topics = await cluster.read_brokers(tree), await cluster.read_topics(tree)
    partitions = [model.TopicPartition(name, p) for name, topic in topics.items() for p in topic.replicas]
    states = await cluster.read_states(tree, partitions)
    return ClusterState(brokers, topics, {tp: state for tp, state in states.items() if state is not None})


def _isr(state: ClusterState) -> int:
    return next(len(one.isr) for tp, one in state.leadership.items() if tp.topic == "lagging")


def bench_catch_up(gigabytes: float, root: Path) -> list[object]:
    size_bytes = int(gigabytes * 1e9)
    found = {}
    with sides(2, root) as both:
        for side in both:
            found[side.name] = catch_up_mb_s(side, size_bytes)
        logs = both[0].log_dir(1) / "lagging-0"
        began = time.perf_counter()
        shutil.copytree(logs, root / "pylog-bench-copy")
        os.sync()
        copy = size_bytes / 1e6 / (time.perf_counter() - began)
        shutil.rmtree(root / "pylog-bench-copy")
    row: list[object] = [f"catch-up of {gigabytes:g} GB, restart to ISR (cp and sync: {copy:,.0f} MB/s)"]
    row += [f"{found[name]:,.0f} MB/s" if name in found else "" for name in ("pylog", "Kafka")]
    ratio = found["pylog"] / found["Kafka"] if "Kafka" in found else ""
    return told([*row, ratio, "200 MB/s or 0.8 of cp"])


def bench_idle(partitions: int, seconds: float, root: Path) -> list[list[object]]:
    cpu, memory = dict[str, list[float]](), dict[str, list[float]]()
    with sides(1, root) as both:
        for side in both:
            side.create("many", partitions, 1)
        time.sleep(10)
        for side in both:
            (pid,) = side.pids()
            before = cpu_s(pid)
            time.sleep(seconds)
            cpu[side.name] = [(cpu_s(pid) - before) / seconds * 100]
            memory[side.name] = [rss_mib(pid)]
    what = f"idle broker, {partitions} partitions"
    return [
        compared(f"{what}: CPU", "%", cpu, "pylog < 2 %"),
        compared(f"{what}: RSS", "MiB", memory, "pylog < 200 MB"),
    ]


def bench_start(rounds: int, root: Path) -> list[object]:
    makers: dict[str, Callable[[Path], Side]] = {"pylog": lambda path: Pylog(3, path, SETTINGS)}
    if real_kafka.home() is not None:
        makers["Kafka"] = lambda path: real_kafka.RealKafka(3, path, SETTINGS)
    found: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(rounds):
        for name, make in makers.items():
            with tempfile.TemporaryDirectory(dir=root) as directory:
                began = time.perf_counter()
                with make(Path(directory) / "brokers"):
                    found[name].append(time.perf_counter() - began)
    return compared("3 brokers and their coordination, from nothing to ready", "s", found, "pylog < 3 s")


def first_output_s(*arguments: str) -> float:
    """From the start of a command to the first byte that it says."""
    began = time.perf_counter()
    command = [str(Path(sys.executable).with_name("pylog")), *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "it is piped"
        assert process.stdout.read(1), command
        return time.perf_counter() - began


def bench_commands(rounds: int, root: Path) -> list[list[object]]:
    """`pylog` is no match for Kafka's tools, which start a JVM: no peer."""
    with Pylog(1, root / "commands", SETTINGS) as side:
        side.create("orders", 1, 1)
        send(producer(side), "orders", 100, b"value", 1)
        there = ("--bootstrap-server", side.bootstrap)
        asked = [("topics", "list"), ("topics", "describe"),
                 ("get-offsets", "orders"), ("log-dirs",), ("cluster", "status"), ("broker-api-versions",),
                 ("verify-replicas",), ("consume", "orders", "--from-beginning", "--max-messages", "1")]  # fmt: skip
        found = [[first_output_s(*words, *there) for words in asked] for _ in range(rounds)]
    slowest = max(range(len(asked)), key=lambda n: statistics.median(row[n] for row in found))
    helps = [first_output_s("--help") for _ in range(rounds)]
    return [
        compared("`pylog --help`", "s", {"pylog": helps}, "< 0.25 s"),
        compared(
            f"first output of {len(asked)} commands, the slowest: `pylog {' '.join(asked[slowest][:2])}`",
            "s", {"pylog": [row[slowest] for row in found]}, "< 0.6 s",
        ),
    ]  # fmt: skip


def beside(both: list[Side], brokers: int, asked: argparse.Namespace) -> tuple[list[list[object]], list[list[object]]]:
    """The rows of rates, and of times, for which so many brokers of both sides stay up."""
    only, scale, rounds = set(asked.only.split(",")), asked.scale, asked.rounds
    speeds, values = list[list[object]](), list[list[object]]()
    if "produce" in only:
        speeds.append(bench_produce(both, brokers, 100, int(1_000_000 * scale), rounds))
        speeds.append(bench_produce(both, brokers, 1000, int(200_000 * scale), rounds))
    if "consume" in only and brokers == 1:
        speeds.append(bench_consume(both, 1000, int(500_000 * scale), rounds))
    if "latency" in only:
        values += bench_latency(both, brokers, 20 * scale, rounds)
    if "partitions" in only and brokers == 1:
        speeds += bench_partitions(both, int(1_000_000 * scale), rounds)
    return speeds, values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="of records, partitions and seconds")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of the lag that is caught up")
    parser.add_argument("--path", type=Path, help="directory on the disk to measure; default: a temporary one")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no broker is left behind
    only, scale, rounds = set(asked.only.split(",")), asked.scale, asked.rounds
    with tempfile.TemporaryDirectory(dir=asked.path) as name:
        root = Path(name)
        speeds, values = list[list[object]](), list[list[object]]()
        for brokers in (1, 3):
            if only & {"produce", "latency", *({"consume", "partitions"} if brokers == 1 else ())}:
                with sides(brokers, root) as both:
                    found = beside(both, brokers, asked)
                    speeds += found[0]
                    values += found[1]
        if speeds:
            show("Records", RATE_COLUMNS, speeds)
        if "transactions" in only:
            values += bench_transactions(int(1000 * scale), root)
        if "failover" in only:
            values += bench_failover(int(1000 * scale), root)
        if "catchup" in only:
            values.append(bench_catch_up(asked.gigabytes, root))
        if "idle" in only:
            values += bench_idle(int(1000 * scale), 30 * scale, root)
        if "start" in only:
            values += [bench_start(rounds, root), *bench_commands(rounds, root)]
        if values:
            show("Times", VALUE_COLUMNS, values)


if __name__ == "__main__":
    main()
