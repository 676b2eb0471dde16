"""Moving partitions to other brokers, beside a real Kafka 0.9: from the plan in the tree to its end there.

PYLOG_KAFKA_HOME=/opt/kafka python tests/benchmarks/bench_reassignment.py [--rounds 5] [--megabytes 160] [--path DIR]

8 brokers, 8 partitions of 3 replicas. A move gives every partition three brokers that had nothing of it, so thrice
the megabytes are copied. Both sides take turns, Kafka twice per round: its second move is the noise. Without
PYLOG_KAFKA_HOME only pylog is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from pathlib import Path

from bench_cluster import Cost, Side, measured, producer, send, sides
from harness import AGAIN, show

from replication.coordination import nodes, open_tree
from replication.model.cluster import Reassignment, TopicPartition

BROKERS = PARTITIONS = 8
REPLICAS = 3
TOPIC = "moving"
LIMIT_S = 600
VALUE_BYTES = 16_000


def plan(turn: int) -> bytes:
    """Return the request for the node: in every other turn the brokers on the other side of the ring."""
    first = BROKERS // 2 * (turn % 2)
    return nodes.encode_reassignment(
        {
            TopicPartition(TOPIC, p): Reassignment(
                tuple((p + first + i) % BROKERS + 1 for i in range(REPLICAS)), original=None
            )
            for p in range(PARTITIONS)
        }
    )


async def move(side: Side, turn: int) -> None:
    tree = await open_tree(side.coordination, on_session=lambda event: None)
    try:
        await tree.create(nodes.REASSIGNMENT, plan(turn))
        async with asyncio.timeout(LIMIT_S):
            while await tree.get(nodes.REASSIGNMENT) is not None:  # noqa: ASYNC110  the same way for both
                await asyncio.sleep(0.02)
    finally:
        await tree.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=160)
    parser.add_argument("--path", type=Path, help="directory on the disk to measure; default: a temporary one")
    asked = parser.parse_args()
    copied_mb = asked.megabytes * REPLICAS
    with tempfile.TemporaryDirectory(dir=asked.path) as name, sides(BROKERS, Path(name)) as both:
        for side in both:
            side.create(TOPIC, PARTITIONS, REPLICAS)
            send(producer(side), TOPIC, asked.megabytes * 1_000_000 // VALUE_BYTES, os.urandom(VALUE_BYTES), PARTITIONS)
            asyncio.run(move(side, 0))  # to a known place, and warm
        found: dict[str, list[Cost]] = {}
        turns = dict.fromkeys((side.name for side in both), 0)
        for _ in range(asked.rounds):
            for side, what in [*((side, side.name) for side in both), *((side, AGAIN) for side in both[1:])]:
                turns[side.name] += 1
                turn = turns[side.name]
                cost = measured(side, lambda side=side, turn=turn: asyncio.run(move(side, turn)))
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
