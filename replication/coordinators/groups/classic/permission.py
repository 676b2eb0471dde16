"""Permission: a group answers its members' heartbeats, and allows commits, by these rules alone.

Law: an error is answered as it stands here, whichever way a request takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from replication.coordinators.groups.classic.state import Member, Phase
from replication.errors import NONE, ErrorCode

# A member of an enumeration takes as long to look up as the rest of a rule.
_DEAD, _EMPTY, _COMPLETING = Phase.DEAD, Phase.EMPTY, Phase.COMPLETING


class Membership(Protocol):
    """A group, or its working state."""

    @property
    def phase(self) -> Phase: ...
    @property
    def generation(self) -> int: ...
    @property
    def members(self) -> Mapping[str, Member]: ...
    @property
    def pending(self) -> Mapping[str, int]: ...


def holder_of(group: Membership, instance_id: str) -> str | None:
    """Return the id of the member that has this instance id."""
    return next((m.id for m in group.members.values() if m.instance_id == instance_id), None)


def who_is(group: Membership, member_id: str, instance_id: str | None) -> ErrorCode:
    """Check the member: UNKNOWN_MEMBER_ID: it is none; FENCED_INSTANCE_ID: another member has its instance id."""
    if instance_id is not None:
        holder = holder_of(group, instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def check_member(group: Membership, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
    error = who_is(group, member_id, instance_id)
    if error is NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def may_stay(group: Membership, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
    """Return the answer to a heartbeat; REBALANCE_IN_PROGRESS: the member stays, and is to join again."""
    if group.phase is _DEAD:
        return ErrorCode.NOT_COORDINATOR
    error = check_member(group, member_id, generation, instance_id)
    if error is NONE and group.phase is Phase.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return error


def may_commit(
    group: Membership,
    member_id: str,
    generation: int,
    instance_id: str | None,
    *,
    in_transaction: bool,
    has_offsets: bool,
) -> ErrorCode:
    """Allow commits without a member while the group is empty; else only those by members of this generation.

    `has_offsets` only chooses between two refusals: a group without anything has no generation that could be named.
    """
    phase = group.phase
    if phase is _DEAD:
        return ErrorCode.NOT_COORDINATOR
    if generation < 0 and (phase is _EMPTY or (in_transaction and not member_id and instance_id is None)):
        return NONE
    member = group.members.get(member_id)
    if member is None or (instance_id is not None and member.instance_id != instance_id):
        is_known = has_offsets or group.members or group.pending or group.generation or phase is not Phase.EMPTY
        if generation >= 0 and not is_known:
            return ErrorCode.ILLEGAL_GENERATION
        return who_is(group, member_id, instance_id)
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    is_between = phase is _COMPLETING and not in_transaction
    return ErrorCode.REBALANCE_IN_PROGRESS if is_between else NONE
