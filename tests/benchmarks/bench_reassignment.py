"""Moving partitions to other brokers, beside a real Kafka 4.4: from the request to its end.

python tests/benchmarks/bench_reassignment.py [--rounds 5] [--megabytes 160] [--path DIR]

8 brokers, 8 partitions of 3 replicas. A move gives every partition three brokers that had nothing of it, so thrice
the megabytes are copied. Both sides take turns, Kafka twice per round: its second move is the noise. Without a Kafka
only pylog is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench_cluster import Cost, measured, producer, send, sides
from harness import AGAIN, show

from replication.client.admin import reassign, reassignments
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition

BROKERS = PARTITIONS = 8
REPLICAS = 3
TOPIC = "moving"
LIMIT_S = 600
VALUE_BYTES = 16_000


def move(client: KafkaClient, turn: int) -> None:
    """In every other turn to the brokers on the other side of the ring."""
    first = BROKERS // 2 * (turn % 2)
    plan = {
        TopicPartition(TOPIC, p): tuple((p + first + i) % BROKERS + 1 for i in range(REPLICAS))
        for p in range(PARTITIONS)
    }
    refused = {tp: why for tp, why in client.run(reassign, plan).items() if why}
    assert not refused, refused
    until_s = time.monotonic() + LIMIT_S
    while client.run(reassignments):
        assert time.monotonic() < until_s, "it does not end"
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=160)
    parser.add_argument("--path", type=Path, help="directory on the disk to measure; default: a temporary one")
    asked = parser.parse_args()
    copied_mb = asked.megabytes * REPLICAS
    clients = dict[str, KafkaClient]()
    with ExitStack() as ends:
        room = Path(ends.enter_context(tempfile.TemporaryDirectory(dir=asked.path)))
        both = ends.enter_context(sides(BROKERS, room))
        for side in both:
            side.create(TOPIC, PARTITIONS, REPLICAS)
            send(producer(side), TOPIC, asked.megabytes * 1_000_000 // VALUE_BYTES, os.urandom(VALUE_BYTES), PARTITIONS)
            clients[side.name] = ends.enter_context(KafkaClient(side.bootstrap))
            move(clients[side.name], 0)  # to a known place, and warm
        found: dict[str, list[Cost]] = {}
        turns = dict.fromkeys((side.name for side in both), 0)
        for _ in range(asked.rounds):
            for side, what in [*((side, side.name) for side in both), *((side, AGAIN) for side in both[1:])]:
                turns[side.name] += 1
                turn = turns[side.name]
                cost = measured(side, lambda client=clients[side.name], turn=turn: move(client, turn))
                print(f"{what}: {cost.wall_s:.2f} s, CPU {cost.cpu_s:.2f} s", flush=True)
                found.setdefault(what, []).append(cost)
    show(
        f"{PARTITIONS} partitions, {copied_mb} MB to copy, {BROKERS} brokers",
        ["who", "seconds", "MB/s", "CPU s", "ratio", "CPU ratio"],
        [row(what, found, copied_mb) for what in found],
    )


def row(what: str, found: dict[str, list[Cost]], copied_mb: int) -> list[object]:
    """Medians, and the medians over rounds of what Kafka took in units of it."""
    wall_s, cpu_s = (statistics.median(getattr(cost, kind) for cost in found[what]) for kind in ("wall_s", "cpu_s"))
    pairs = list(zip(found.get("Kafka", []), found[what], strict=False))
    ratios = [
        statistics.median(getattr(peer, kind) / max(getattr(own, kind), 0.01) for peer, own in pairs) if pairs else ""
        for kind in ("wall_s", "cpu_s")
    ]
    return [what, wall_s, f"{copied_mb / wall_s:,.0f}", cpu_s, *ratios]


if __name__ == "__main__":
    main()
