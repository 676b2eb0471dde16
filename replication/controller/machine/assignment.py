"""One pure function per way to elect a leader.

The leader is alive; unless the election is unclean it is in the ISR, and so has every committed record. The
ISR only loses members, and keeps its order.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from logstore.errors import PylogError
from replication.model.cluster import Assignment, BrokerId, LeaderAndIsr, ids_of


class ElectionError(PylogError):
    """No leader could be elected; nothing changes."""


class Choice(NamedTuple):
    """An elected leader and its first ISR. `is_unclean`: it may lack committed records."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_unclean: bool = False


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
