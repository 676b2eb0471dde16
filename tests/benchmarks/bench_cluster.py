"""Brokers against a real Kafka: the same client, the same machine, in turns.

python tests/benchmarks/bench_cluster.py [--kafka 4.4] [--rounds 7] [--scale 1]
    [--only produce,partitions,consume,latency,transactions,failover,catchup,idle,start] [--gigabytes 2] [--path DIR]

Maven fetches the Kafka 4.4; `--kafka 0.9` takes the one in PYLOG_KAFKA_HOME, and where there is none, or with `--kafka
none`, the columns of Kafka stay empty. CPU is that of the brokers, user and system, without the clients and without a
ZooKeeper: the client is often what limits, so records per CPU second tell more than wall time. Topics are new for each
kind of row; the first two rounds of each side warm it up, and are not counted.
"""

from __future__ import annotations

import argparse
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
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata
from harness import AGAIN, ratio, show

from replication.local_cluster import LocalCluster

KINDS = ("produce", "partitions", "consume", "latency", "transactions", "failover", "catchup", "idle", "start")
TICKS = os.sysconf("SC_CLK_TCK")
PARTITIONS = 6
WARM = 2  # rounds in which a JVM compiles
MIB = 1024 * 1024
SESSION_MS = 6000
SETTINGS = {"zookeeper.session.timeout.ms": SESSION_MS, "auto.leader.rebalance.enable": "false"}


class Side(Protocol):
    """A measured cluster: brokers, and how to reach them."""

    name: str
    is_old: bool  # Kafka 0.9: neither batches of today nor transactions
    client: Mapping[str, object]

    @property
    def bootstrap(self) -> str: ...
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
    is_old = False
    client: Mapping[str, object] = {}

    def pids(self) -> list[int]:
        return [self.pid(broker) for broker in self.live]

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        real_kafka.create(self.bootstrap, topic, partitions, replicas)


@contextmanager
def sides(brokers: int, root: Path, kafka: str = real_kafka.NEWEST) -> Iterator[list[Side]]:
    """Pylog, and a Kafka of this version if there is one, both up at once so that they take turns."""
    with tempfile.TemporaryDirectory(dir=root, prefix="pylog-bench-") as name:
        directory = Path(name)
        with Pylog(brokers, directory / "pylog", SETTINGS) as ours:
            peer = real_kafka.peer(kafka, brokers, directory / "kafka", SETTINGS)
            if peer is None:
                yield [ours]
                return
            with peer:
                yield [ours, peer]


def add_kafka(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the peer of `sides`."""
    parser.add_argument("--kafka", default=real_kafka.NEWEST, choices=("4.4", "0.9", "none"), help="to measure against")


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
    """The costs of each round, by the side's name; the peer comes once more in each, for the noise."""
    named = [(side.name, side) for side in measured_sides] + [(AGAIN, side) for side in measured_sides[1:]]
    found: dict[str, list[Cost]] = {name: [] for name, _ in named}
    for number in range(WARM + rounds):
        for name, side in named:
            one = cost(side)
            if number >= WARM:
                found[name].append(one)
    return found


def rates(what: str, records: int, costs: Mapping[str, list[Cost]], goal: str) -> list[object]:
    """A row: records per second and per CPU second, the medians over rounds of the ratios, and their noise."""
    row: list[object] = [what]
    for name in ("pylog", "Kafka"):
        if name not in costs:
            row += ["", ""]
            continue
        wall = statistics.median(cost.wall_s for cost in costs[name])
        cpu = statistics.median(cost.cpu_s for cost in costs[name])
        row += [f"{records / wall:,.0f}", f"{records / max(cpu, 1 / TICKS):,.0f}"]
    if "Kafka" not in costs:
        return told([*row, "", "", "", goal])
    seconds = {
        kind: {name: [max(getattr(cost, kind), 1 / TICKS) for cost in rounds] for name, rounds in costs.items()}
        for kind in ("wall_s", "cpu_s")
    }
    wall, cpu = (ratio(found["pylog"], found["Kafka"]) for found in seconds.values())
    noises = [f"{ratio(found[AGAIN], found['Kafka']):.2f}" for found in seconds.values()]
    return told([*row, wall, cpu, ", ".join(noises), goal])


RATE_COLUMNS = ["what", "pylog/s", "per CPU s", "Kafka/s", "per CPU s", "wall ratio", "CPU ratio", "noise", "goal"]


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


MANY = (10, 1000, 5000)  # partitions; Kafka takes the first two


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
    named = [(side.name, side) for side in both] + [(AGAIN, side) for side in both[1:]]
    for number in range(WARM + rounds):
        for name, side in named:
            times = sorted(latencies_ms(side, int(200 * seconds)))
            if number >= WARM:
                marks = times[len(times) // 2], times[int(len(times) * 0.99)]
                found.setdefault(name, []).append(marks)
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
        return told([*row, "", "", goal])
    own, peer = ([max(one, 1e-9) for one in values[name]] for name in ("pylog", "Kafka"))
    return told([*row, ratio(own, peer), ratio(values[AGAIN], peer) if AGAIN in values else "", goal])


def bench_transactions(count: int, root: Path, kafka: str) -> list[list[object]]:
    """Transactions of 100 records each, one after the other. Kafka 0.9 has none."""
    found: dict[str, list[list[float]]] = {}
    with sides(3, root, kafka) as both:
        for side in both:
            if side.is_old:
                continue
            side.create("t", PARTITIONS, 3)
            client = producer(side, **{"transactional.id": "bench"})
            client.init_transactions(60)
            for _ in range(count // 10):  # warm
                commit_ms(client)
            began = time.perf_counter()
            times = sorted(commit_ms(client) for _ in range(count))
            each_ms = (time.perf_counter() - began) * 1000 / count
            found[side.name] = [[each_ms], [times[count // 2]], [times[int(count * 0.99)]]]
    what = "a transaction of 100 records, 3 brokers, RF 3"
    marks = "the whole, mean", "commit_transaction, p50", "commit_transaction, p99"
    return [
        compared(f"{what}: {mark}", "ms", {name: rows[at] for name, rows in found.items()}, "")
        for at, mark in enumerate(marks)
    ]


def commit_ms(client: Producer) -> float:
    """Return how long it took to commit a transaction, once its records were acknowledged."""
    client.begin_transaction()
    for i in range(100):
        client.produce("t", b"x" * 100, partition=i % PARTITIONS)
    assert client.flush(60) == 0
    ended = time.perf_counter()
    client.commit_transaction(60)
    return (time.perf_counter() - ended) * 1000


VALUE_COLUMNS = ["what", "pylog", "Kafka", "ratio", "noise", "goal"]


# Failover and catch-up, as a client sees them in the metadata; the same reader for both.


def _until(side: Side, holds: Callable[[ClusterMetadata], bool], limit_s: float = 300) -> float:
    """When it held, by this process' clock."""
    with closing(
        Consumer({"bootstrap.servers": side.bootstrap, "group.id": "-", "log_level": 0, **side.client})
    ) as one:
        until_s = time.perf_counter() + limit_s
        while not holds(one.list_topics(timeout=60)):
            assert time.perf_counter() < until_s, f"{side.name}: it did not come to that"
            time.sleep(0.02)
        return time.perf_counter()


def _partitions(found: ClusterMetadata, topic: str) -> list[PartitionMetadata]:
    return list(found.topics[topic].partitions.values()) if topic in found.topics else []


def failover_s(side: Side, partitions: int) -> tuple[float, float]:
    """(from the end of the session to the last new leader, from the kill to that)."""
    side.create("many", partitions, 3)
    _until(side, lambda found: sum(len(one.isrs) == 3 for one in _partitions(found, "many")) == partitions)
    time.sleep(5)
    killed = time.perf_counter()
    side.kill(1)
    gone = _until(side, lambda found: 1 not in found.brokers)
    done = _until(side, lambda found: all(one.leader not in (1, -1) for one in _partitions(found, "many")))
    return done - gone, done - killed


def bench_failover(partitions: int, root: Path, kafka: str) -> list[list[object]]:
    expiry, kill = dict[str, list[float]](), dict[str, list[float]]()
    with sides(3, root, kafka) as both:
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
    led = []

    def is_led(found: ClusterMetadata) -> bool:
        led[:] = _partitions(found, "lagging")
        return len(led) == 1 and len(led[0].isrs) == 2

    _until(side, is_led)
    follower = next(broker for broker in led[0].isrs if broker != led[0].leader)
    side.kill(follower)
    _until(side, lambda found: [len(one.isrs) for one in _partitions(found, "lagging")] == [1])
    send(client, "lagging", size_bytes // len(value), value, 1)
    began = time.perf_counter()
    side.restart(follower)
    caught_up = _until(side, lambda found: [len(one.isrs) for one in _partitions(found, "lagging")] == [2], 900)
    return size_bytes / 1e6 / (caught_up - began)


def bench_catch_up(gigabytes: float, root: Path, kafka: str) -> list[object]:
    size_bytes = int(gigabytes * 1e9)
    found = {}
    with sides(3, root, kafka) as both:  # two of three controllers of a Kafka 4.4 have to be there
        for side in both:
            found[side.name] = catch_up_mb_s(side, size_bytes)
        logs = next(path for n in (1, 2, 3) if (path := both[0].log_dir(n) / "lagging-0").exists())
        began = time.perf_counter()
        shutil.copytree(logs, root / "pylog-bench-copy")
        os.sync()
        copy = size_bytes / 1e6 / (time.perf_counter() - began)
        shutil.rmtree(root / "pylog-bench-copy")
    row: list[object] = [f"catch-up of {gigabytes:g} GB, restart to ISR (cp and sync: {copy:,.0f} MB/s)"]
    row += [f"{found[name]:,.0f} MB/s" if name in found else "" for name in ("pylog", "Kafka")]
    ratio = found["pylog"] / found["Kafka"] if "Kafka" in found else ""
    return told([*row, ratio, "", "200 MB/s or 0.8 of cp"])


def bench_idle(partitions: int, seconds: float, root: Path, kafka: str) -> list[list[object]]:
    cpu, memory = dict[str, list[float]](), dict[str, list[float]]()
    with sides(1, root, kafka) as both:
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


def bench_start(rounds: int, root: Path, kafka: str) -> list[object]:
    found = dict[str, list[float]]()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=root) as directory:
            ours: Side = Pylog(3, Path(directory) / "pylog", SETTINGS)
            peer = real_kafka.peer(kafka, 3, Path(directory) / "kafka", SETTINGS)
            for side in (ours, peer) if peer is not None else (ours,):
                began = time.perf_counter()
                with side:
                    found.setdefault(side.name, []).append(time.perf_counter() - began)
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
    add_kafka(parser)
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
                with sides(brokers, root, asked.kafka) as both:
                    found = beside(both, brokers, asked)
                    speeds += found[0]
                    values += found[1]
        if speeds:
            show("Records", RATE_COLUMNS, speeds)
        if "transactions" in only:
            values += bench_transactions(int(1000 * scale), root, asked.kafka)
        if "failover" in only:
            values += bench_failover(int(1000 * scale), root, asked.kafka)
        if "catchup" in only:
            values.append(bench_catch_up(asked.gigabytes, root, asked.kafka))
        if "idle" in only:
            values += bench_idle(int(1000 * scale), 30 * scale, root, asked.kafka)
        if "start" in only:
            values += [bench_start(rounds, root, asked.kafka), *bench_commands(rounds, root)]
        if values:
            show("Times", VALUE_COLUMNS, values)


if __name__ == "__main__":
    main()
