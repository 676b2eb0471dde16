"""Placement of replicas, and one pure function per way to elect a leader.

Placement: replica j of partition i goes to broker (start + i + j) mod n of the sorted brokers; with racks, to the
next broker of a rack that the partition is not on yet, as long as there is one.

Election: the leader is alive; unless the election is unclean it is in the ISR, and so has every committed record. The
ISR only loses members, and keeps its order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from logstore.errors import InvalidRequestError, PylogError
from replication.model.cluster import Assignment, BrokerId, LeaderAndIsr, ids_of
from replication.model.metadata import BrokerAddress


class ElectionError(PylogError):
    """No leader could be elected; nothing changes."""


class Choice(NamedTuple):
    """An elected leader and its first ISR. `is_unclean`: it may lack committed records."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_unclean: bool = False


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


def elect_offline(current: LeaderAndIsr, assigned: Assignment, live: Collection[BrokerId], *, unclean: bool) -> Choice:
    """Elect the first live assigned replica of the ISR; the ISR keeps its live members.

    If there is none and `unclean` is set, the first live assigned replica leads and is the whole ISR. Records that it
    lacks are lost.

    Raises: ElectionError.
    """
    live_isr = tuple(broker for broker in current.isr if broker in live)
    candidates = [broker for broker in assigned if broker in live]
    leaders = [broker for broker in candidates if broker in live_isr]
    if leaders:
        return Choice(leaders[0], live_isr)
    if not unclean:
        raise ElectionError(
            f"No broker in ISR is alive. Live brokers are: {ids_of(live)}, ISR brokers are: {ids_of(current.isr)}"
        )
    if not candidates:
        raise ElectionError(
            f"No replica is alive. Live brokers are: {ids_of(live)}, Assigned replicas are: {ids_of(assigned)}"
        )
    return Choice(candidates[0], (candidates[0],), is_unclean=True)


def elect_reassigned(current: LeaderAndIsr, target: Assignment, live: Collection[BrokerId]) -> Choice:
    """Elect the first of the `target` replicas that is alive and in sync; the ISR stays.

    Raises: ElectionError.
    """
    for broker in target:
        if broker in live and broker in current.isr:
            return Choice(broker, current.isr)
    raise ElectionError(f"None of the replicas {ids_of(target)} is alive and in the ISR {ids_of(current.isr)}")


def elect_preferred(current: LeaderAndIsr, assigned: Assignment, live: Collection[BrokerId]) -> Choice:
    """Elect the preferred replica if it is alive and in sync; balance never costs data.

    Raises: ElectionError.
    """
    preferred = assigned[0]
    if preferred in live and preferred in current.isr:
        return Choice(preferred, current.isr)
    raise ElectionError(
        f"Preferred replica {preferred} is either not alive or not in the isr. Current leader and ISR: {current}"
    )


def elect_for_shutdown(current: LeaderAndIsr, live: Collection[BrokerId], *, leaving: Collection[BrokerId]) -> Choice:
    """Elect the first live ISR member, in ISR order, that is not leaving; the ISR loses the leaving ones.

    Raises: ElectionError.
    """
    isr = tuple(broker for broker in current.isr if broker not in leaving)
    for broker in isr:
        if broker in live:
            return Choice(broker, isr)
    raise ElectionError(
        f"No other replicas in ISR {ids_of(current.isr)} besides shutting down brokers {ids_of(leaving)}"
    )
