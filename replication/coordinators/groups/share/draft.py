"""WorkingShare: a share group while one event is processed, and the resulting effects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from replication.coordinators.groups.messages import Answer, Append
from replication.coordinators.groups.parts.draft import WorkingParts
from replication.coordinators.groups.pieces import Piece
from replication.coordinators.groups.share.events import AskStates
from replication.coordinators.groups.share.state import Call, Current, Member, Purpose, ShareGroup, States

Effect: TypeAlias = Append | Answer | AskStates
_DELETIONS = Purpose.DELETE, Purpose.DELETE_GROUP


class WorkingShare(WorkingParts[ShareGroup, AskStates]):
    members: Mapping[str, Member]
    currents: Mapping[str, Current]
    states: States
    call: Call | None
    calls: int
    call_again_ms: int

    def done(self) -> tuple[ShareGroup, tuple[Effect, ...]]:
        super().done()
        self.begin_call()
        return self.group(), tuple(self.effects)

    def is_waited_for(self) -> bool:
        return super().is_waited_for() or (self.call is not None and not self.call.is_begun)

    def ask_states(
        self, purpose: Purpose, starts: Mapping[Piece, int], names: Mapping[str, str], request: int | None = None
    ) -> None:
        """Ask the share states once all that this event changes is stored."""
        assert self.call is None, "one question at a time"
        self.calls += 1
        self.call = Call(self.calls, purpose, starts, names, request)

    def begin_call(self) -> None:
        call = self.call
        if call is None or call.is_begun or self.in_flight is not None or self.is_dead:
            return
        self.call = call._replace(is_begun=True)
        topics = self.states.topics  # others have gone meanwhile
        starts = {piece: start for piece, start in call.starts.items() if piece.topic_id in topics}
        self.effects.append(AskStates(call.number, starts, self.epoch, call.purpose in _DELETIONS))
