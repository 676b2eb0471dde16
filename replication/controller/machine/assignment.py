"""Which brokers hold a partition, and which of them leads it: placement, and one function per way to elect.

Placement: replica j of partition i goes to broker (start + i + j) mod n of the sorted brokers; with racks, to the
next broker of a rack that the partition has not been on yet, as long as there is one.

A selector gets what stands and who is alive, and returns a `Choice`; none of them changes anything. Laws: a
leader is alive; but for an unclean election it comes from the ISR, so it has everything that was committed; the
ISR only loses members, and keeps its order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from logstore.errors import InvalidRequestError, PylogError
from replication.model.cluster import Assignment, BrokerId, BrokerInfo, LeaderAndIsr


class ElectionError(PylogError):
    """No leader could be chosen; everything stays as it is."""


class NoReplicaOnlineError(ElectionError):
    """No replica that may lead is alive."""


class Choice(NamedTuple):
    """A leader, the ISR that it begins with, and the live replicas that must be told."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    receivers: tuple[BrokerId, ...]
    is_unclean: bool = False


# ------------------------------------------------------------------ placement


def place(
    brokers: Iterable[BrokerInfo],
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


def _racks_in_turn(brokers: Sequence[BrokerInfo]) -> list[BrokerInfo]:
    """The brokers so that neighbours are on different racks, as far as that goes."""
    without = [broker.id for broker in brokers if broker.rack is None]
    if without:
        raise InvalidRequestError(
            f"brokers {without} name no rack; set broker.rack everywhere, or place without racks"
        )
    racks = sorted({broker.rack for broker in brokers if broker.rack is not None})
    rows = [[broker for broker in brokers if broker.rack == rack] for rack in racks]
    return [broker for turn in zip_longest(*rows) for broker in turn if broker is not None]


def _replicas(row: Sequence[BrokerInfo], first: int, count: int, *, rack_aware: bool) -> Assignment:
    turn = [row[(first + j) % len(row)] for j in range(len(row))]
    if not rack_aware:
        return tuple(broker.id for broker in turn[:count])
    seen: set[str | None] = set()
    fresh: list[BrokerInfo] = []
    others: list[BrokerInfo] = []
    for broker in turn:
        (others if broker.rack in seen else fresh).append(broker)
        seen.add(broker.rack)
    return tuple(broker.id for broker in (fresh + others)[:count])


# ------------------------------------------------------------------ selectors


def elect_offline(
    current: LeaderAndIsr, assigned: Assignment, live: Collection[BrokerId], *, unclean: bool
) -> Choice:
    """The leader is gone: the first assigned replica that is alive and in sync leads, ISR = its live members.

    Without one: if `unclean`, the first live assigned replica leads and is the whole ISR; what it does not have
    is lost.

    Raises: NoReplicaOnlineError.
    """
    live_isr = tuple(broker for broker in current.isr if broker in live)
    receivers = _alive(assigned, live)
    leaders = [broker for broker in receivers if broker in live_isr]
    if leaders:
        return Choice(leaders[0], live_isr, receivers)
    if not unclean:
        raise NoReplicaOnlineError(
            f"No broker in ISR is alive. Live brokers are: {_names(live)}, ISR brokers are: {_names(current.isr)}"
        )
    if not receivers:
        raise NoReplicaOnlineError(
            f"No replica is alive. Live brokers are: {_names(live)}, Assigned replicas are: {_names(assigned)}"
        )
    return Choice(receivers[0], (receivers[0],), receivers, is_unclean=True)


def elect_reassigned(current: LeaderAndIsr, target: Assignment, live: Collection[BrokerId]) -> Choice:
    """The first of the `target` replicas that is alive and in sync leads; the ISR stays.

    Raises: NoReplicaOnlineError.
    """
    for broker in target:
        if broker in live and broker in current.isr:
            return Choice(broker, current.isr, _alive(target, live))
    raise NoReplicaOnlineError(
        f"None of the replicas {_names(target)} is alive and in the ISR {_names(current.isr)}"
    )


def elect_preferred(current: LeaderAndIsr, assigned: Assignment, live: Collection[BrokerId]) -> Choice:
    """The first assigned replica leads, if it is alive and in sync; data is never lost for balance.

    Raises: ElectionError: it is not.
    """
    preferred = assigned[0]
    if preferred in live and preferred in current.isr:
        return Choice(preferred, current.isr, _alive(assigned, live))
    raise ElectionError(
        f"Preferred replica {preferred} is either not alive or not in the isr. Current leader and ISR: {current}"
    )


def elect_for_shutdown(
    current: LeaderAndIsr, assigned: Assignment, live: Collection[BrokerId], *, leaving: Collection[BrokerId]
) -> Choice:
    """The first ISR member, in ISR order, that is alive and stays leads; the ISR loses who is leaving.

    Those who leave are told, too, as long as they live: they become followers for the rest of their life.

    Raises: ElectionError: there is none.
    """
    isr = tuple(broker for broker in current.isr if broker not in leaving)
    for broker in isr:
        if broker in live:
            return Choice(broker, isr, _alive(assigned, live))
    raise ElectionError(
        f"No other replicas in ISR {_names(current.isr)} besides shutting down brokers {_names(leaving)}"
    )


def _alive(brokers: Assignment, live: Collection[BrokerId]) -> Assignment:
    return tuple(broker for broker in brokers if broker in live)


def _names(brokers: Iterable[BrokerId]) -> str:
    return ",".join(map(str, brokers)) or "none"
