"""WorkingGroup: a group of the consumer protocol while one event is processed, and the resulting effects."""

from __future__ import annotations

from collections.abc import Mapping

from replication.coordinators.groups.consumer.state import (
    ConsumerGroup,
    Current,
    Matched,
    Member,
    matched,
    subscribed_by_any,
)
from replication.coordinators.groups.messages import Now
from replication.coordinators.groups.offsets.events import ForgetLater
from replication.coordinators.groups.parts.draft import WorkingParts, with_one, without
from replication.coordinators.groups.pieces import Piece
from replication.coordinators.groups.settings import GroupSettings

_MAPPINGS = "regexes", "visible", "names", "revoke_until_ms"


class WorkingGroup(WorkingParts[ConsumerGroup, ForgetLater]):
    members: Mapping[str, Member]
    currents: Mapping[str, Current]
    regexes: Mapping[str, Matched]
    visible: Mapping[str, tuple[str, ...]]
    names: frozenset[str] | None
    known_at: int | None
    revoke_until_ms: Mapping[str, int]

    def __init__(self, group: ConsumerGroup, now: Now, limits: GroupSettings) -> None:
        super().__init__(group, now, limits, _MAPPINGS)
        self._matched = group.members, group.visible  # the ones that `regexes` is of
        self._counted = group.members, group.regexes, group.visible  # the ones that `names` is of

    def group(self) -> ConsumerGroup:
        self._match()
        if not self._is_counted():
            self.names = None
        return super().group()

    def remove(self, member_id: str) -> None:
        super().remove(member_id)
        self.revoke_until_ms = without(self.revoke_until_ms, member_id)
        self.visible = without(self.visible, member_id)

    def _match(self) -> None:
        """Have every expression of a member, and no other one, with the topics that any of its members may see."""
        if self._matched[0] is self.members and self._matched[1] is self.visible:
            return
        self._matched = self.members, self.visible
        if not self.regexes and not self.visible:
            return
        found: dict[str, set[str]] = {}
        for member in self.members.values():
            if member.regex:
                found.setdefault(member.regex, set()).update(matched(self, member))
        self.regexes = {
            regex: known
            if (known := self.regexes.get(regex)) is not None and known.topics == topics
            else Matched(topics, self.now.wall_ms)
            for regex, topics in ((regex, tuple(sorted(names))) for regex, names in found.items())
        }

    def subscribed_names(self) -> frozenset[str]:
        """Return the topics that somebody subscribes to: counted anew if a member or an expression has changed."""
        self._match()
        if self.names is None or not self._is_counted():
            self.names = subscribed_by_any(self)
            self._counted = self.members, self.regexes, self.visible
        return self.names

    def _is_counted(self) -> bool:
        members, regexes, visible = self._counted
        return self.members is members and self.regexes is regexes and self.visible is visible

    def limit(self, member_id: str, *, anew: bool) -> None:
        """Give the member its rebalance timeout to do what it must; unless `anew`, it may have begun already."""
        if anew or member_id not in self.revoke_until_ms:
            until_ms = self.now.ms + self.members[member_id].rebalance_timeout_ms
            self.revoke_until_ms = with_one(self.revoke_until_ms, member_id, until_ms)

    def unlimit(self, member_id: str) -> None:
        self.revoke_until_ms = without(self.revoke_until_ms, member_id)

    def static_member(self, instance_id: str) -> Member | None:
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def is_free(self, piece: Piece, member_id: str) -> bool:
        """Does nobody else hold the piece?"""
        return not any(
            piece in other.assigned or piece in other.revoking
            for other_id, other in self.currents.items()
            if other_id != member_id
        )
