"""Placement of replicas on brokers.

Replica j of partition i goes to broker (start + i + j) mod n of the sorted brokers; with racks, to the next broker of a
rack that the partition is not on yet, as long as there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from logstore.errors import InvalidRequestError
from replication.model.cluster import Assignment
from replication.model.metadata import BrokerAddress


def place(
    brokers: Iterable[BrokerAddress],
    *,
    partitions: int,
    replication_factor: int,
    start: int = 0,
    first_partition: int = 0,
    rack_aware: bool = False,
) -> dict[int, Assignment]:
    """Return the replicas of `partitions` partitions, numbered from `first_partition` on.

    Leaders are spread evenly. With `rack_aware`, a partition is on as many racks as it has replicas, or on all.

    Raises: InvalidRequestError: more replicas than brokers, or a broker without a rack.
    """
    row = sorted(brokers, key=lambda broker: broker.id)
    if partitions < 1 or not 1 <= replication_factor <= len(row):
        raise InvalidRequestError(
            f"{partitions} partitions with {replication_factor} replicas do not fit {len(row)} live brokers; "
            "at least one of each, and at most one replica per broker"
        )
    if rack_aware:
        row = _racks_in_turn(row)
    return {
        partition: _replicas(row, start + partition, replication_factor, rack_aware=rack_aware)
        for partition in range(first_partition, first_partition + partitions)
    }


def _racks_in_turn(brokers: Sequence[BrokerAddress]) -> list[BrokerAddress]:
    """Order the brokers so that neighbours are on different racks, as far as possible."""
    without = [broker.id for broker in brokers if broker.rack is None]
    if without:
        raise InvalidRequestError(f"brokers {without} name no rack; set broker.rack everywhere, or place without racks")
    racks = sorted({broker.rack for broker in brokers if broker.rack is not None})
    rows = [[broker for broker in brokers if broker.rack == rack] for rack in racks]
    return [broker for turn in zip_longest(*rows) for broker in turn if broker is not None]


def _replicas(row: Sequence[BrokerAddress], first: int, count: int, *, rack_aware: bool) -> Assignment:
    turn = [row[(first + j) % len(row)] for j in range(len(row))]
    if not rack_aware:
        return tuple(broker.id for broker in turn[:count])
    seen: set[str | None] = set()
    fresh: list[BrokerAddress] = []
    others: list[BrokerAddress] = []
    for broker in turn:
        (others if broker.rack in seen else fresh).append(broker)
        seen.add(broker.rack)
    return tuple(broker.id for broker in (fresh + others)[:count])
