"""Migration: a group with members becomes one of the other protocol, and its classic members go on.

A classic group is converted for the first member of the consumer protocol that joins, a consumer group once its last
one has gone, as `group.consumer.migration.policy` allows. Laws: nobody gets a partition that a member has not given up
across the change; committed offsets stay. Nothing is written by a change itself: the group that was converted counts
until the next write, which replaces its records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic import state as classic
from replication.coordinators.groups.classic.draft import WorkingState
from replication.coordinators.groups.classic.embedded import Subscription, read_assignment, read_subscription
from replication.coordinators.groups.consumer.classic_members import common_protocols, pieces_of
from replication.coordinators.groups.consumer.state import TYPE, ClassicMember, ConsumerGroup, Current, Member
from replication.coordinators.groups.messages import Answer, Now
from replication.coordinators.groups.pieces import NO_PIECES, Pieces, Topics
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode

UPGRADES, DOWNGRADES = ("upgrade", "bidirectional"), ("downgrade", "bidirectional")


def upgrade_refusal(group: classic.Group, limits: GroupSettings) -> str | None:
    """Return why a classic group with members cannot become a consumer group, in the words of Kafka; None: it can."""
    reason = None
    if limits.group_consumer_migration_policy not in UPGRADES:
        reason = "online upgrade is disabled"
    elif group.members and group.protocol_type != TYPE:
        reason = "the group does not use the consumer embedded protocol"
    elif len(group.members) > limits.group_consumer_max_size:
        reason = "the group size exceeds the consumer group maximum size"
    elif any(
        _subscription(group, member) is None or read_assignment(member.assignment) is None
        for member in group.members.values()
    ):
        reason = "the embedded consumer protocol is malformed"
    return reason and f"Cannot upgrade classic group {group.id} to consumer group because {reason}."


def upgraded(group: classic.Group, known: Topics, now: Now) -> ConsumerGroup:
    """Return the consumer group with the members of this one, as they are. Those that never got in join again."""
    kept = {member.id: member for member in group.members.values() if not member.is_new}
    held = _held(group, kept, known)
    made = ConsumerGroup(
        id=group.id,
        epoch=group.generation,
        target_epoch=group.generation,
        members={name: _consumer_member(group, member) for name, member in kept.items()},
        currents={
            name: Current(
                epoch=group.generation,
                previous_epoch=group.generation,
                assigned=held[name],
                since=dict.fromkeys(held[name], group.generation),
            )
            for name in kept
        },
        targets=held,
        deadlines_ms={name: now.ms + member.session_timeout_ms for name, member in kept.items()},
        offsets=group.offsets,
        unstored=group.keys,
    )
    return replace(made, unstored=made.keys)


def parked(group: classic.Group) -> tuple[Answer, ...]:
    """Return the answers that send members with parked requests to join again."""
    error = ErrorCode.REBALANCE_IN_PROGRESS
    found: list[Answer] = []
    for member in group.members.values():
        if member.joining is not None:
            found.append(Answer(member.joining, events.Joined(error=error, member_id=member.id)))
        if member.syncing is not None:
            found.append(Answer(member.syncing, events.Synced(error)))
    return tuple(found)


def _consumer_member(group: classic.Group, member: classic.Member) -> Member:
    subscription = _subscription(group, member)
    assert subscription is not None, "such a group is not converted"
    return Member(
        id=member.id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
    )


def _subscription(group: classic.Group, member: classic.Member) -> Subscription | None:
    """Return what the member subscribes to: it has said so for the protocol of the group, or for its own first one."""
    named = dict(member.protocols)
    return read_subscription(named.get(group.protocol or "", member.protocols[0][1]))


def _held(group: classic.Group, members: Mapping[str, classic.Member], known: Topics) -> dict[str, Pieces]:
    """Return what each member may be reading; no piece is in two of them.

    A member that has joined for the coming generation reads what it said then. Another one reads its assignment; if
    that is not known, it may still read what it said when it joined, unless somebody else has got that since.
    """
    is_completing = group.phase is classic.Phase.COMPLETING
    sure: dict[str, Pieces] = {}
    perhaps: dict[str, Pieces] = {}
    for name, member in members.items():
        subscription = _subscription(group, member)
        owned = pieces_of(subscription.owned, known) if subscription is not None else NO_PIECES
        assigned = pieces_of(read_assignment(member.assignment) or (), known)
        has_joined = is_completing or member.joining is not None
        sure[name] = member.held | (owned if has_joined else assigned)
        perhaps[name] = owned if not member.assignment else NO_PIECES
    taken: Pieces = NO_PIECES
    held = dict.fromkeys(members, NO_PIECES)
    for claims in (sure, perhaps):
        for name, claimed in claims.items():
            held[name] |= claimed - taken
            taken |= claimed
    return held


# ------------------------------------------------------------------ downgrade


def can_downgrade(group: ConsumerGroup, limits: GroupSettings) -> bool:
    """Are all of the group's members classic, and is nothing of it being stored?"""
    return (
        not (group.is_dead or group.in_flight is not None or group.queue)
        and 0 < len(group.members) <= limits.group_max_size
        and limits.group_consumer_migration_policy in DOWNGRADES
        and all(member.classic is not None for member in group.members.values())
        and bool(common_protocols(group.members.values()))
    )


def downgraded(
    group: ConsumerGroup, now: Now, limits: GroupSettings
) -> tuple[classic.Group, tuple[events.Effect, ...]]:
    """Return the classic group with these members, who have to join again: in the epoch of their targets they may."""
    members = {
        member.id: _classic_member(member, side, group.currents[member.id].held, now)
        for member in group.members.values()
        if (side := member.classic) is not None
    }
    made = classic.Group(
        id=group.id,
        phase=classic.Phase.STABLE,
        protocol_type=TYPE,
        generation=group.target_epoch,
        leader=next(iter(members)),
        members=members,
        unstored=group.keys,
        offsets=group.offsets,
    )
    draft = WorkingState(made, now, limits)
    draft.protocol = draft.choose_protocol()
    draft.prepare_rebalance()
    return draft.done()


def _classic_member(member: Member, side: ClassicMember, held: Pieces, now: Now) -> classic.Member:
    return classic.Member(
        id=member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=side.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=side.protocols,
        deadline_ms=now.ms + side.session_timeout_ms,
        held=held,
    )
