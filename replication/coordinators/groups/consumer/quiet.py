"""Quiet heartbeats: those that change nothing of their group but the end of their member's session.

Nearly all are. Law: the answer, and the group but for that end, are those of a `step`.
"""

from __future__ import annotations

from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.heartbeats import described, says_all
from replication.coordinators.groups.consumer.state import ConsumerGroup, Progress
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.parts.state import JOINING


def quiet_answer(group: ConsumerGroup, event: ConsumerHeartbeat) -> Heard | None:
    """Return the answer to a quiet heartbeat; None: it is none, or nobody knows without a `step`."""
    member, current = group.members.get(event.member_id), group.currents.get(event.member_id)
    if member is None or current is None or group.in_flight is not None or group.unstored or group.is_dead:
        return None
    is_settled = current.epoch == group.target_epoch == group.epoch and current.progress is Progress.STABLE
    if not is_settled or event.epoch != current.epoch or event.epoch <= JOINING:
        return None
    if event.known_at is None or event.known_at != group.known_at or described(member, event) != member:
        return None
    if member.regex and event.matched is not None and event.matched != group.visible.get(member.id):
        return None
    return Heard(member_id=member.id, epoch=current.epoch, assigned=current.assigned if says_all(event) else None)
