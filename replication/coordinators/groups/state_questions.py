"""StateQuestions: share groups ask the share states, and go on with the answers. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from replication.coordinators.groups.share.events import AskStates, StatesAnswered
from replication.coordinators.groups.slot import Slot
from replication.coordinators.share_state.states import IdPartition, ShareStates
from replication.coordinators.terms import Term
from replication.errors import NONE

logger = logging.getLogger(__name__)


class StateQuestions:
    """`post` gives an event to a group."""

    def __init__(self, states: ShareStates, post: Callable[[Term[Slot], Slot, StatesAnswered], None]) -> None:
        self._states = states
        self._post = post
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, term: Term[Slot], slot: Slot, question: AskStates) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(term, slot, question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _ask(self, term: Term[Slot], slot: Slot, question: AskStates) -> None:
        group_id = slot.settled.id
        partitions = {IdPartition(*piece): start for piece, start in question.starts.items()}
        if question.deletes:
            found = await self._states.delete(group_id, partitions)
        else:
            found = await self._states.initialize(
                group_id, {at: (question.epoch, start) for at, start in partitions.items()}
            )
        if failed := {error.name for error in found.values() if error is not NONE}:
            done = "deleted" if question.deletes else "initialized"
            logger.warning("group=%s share states are not %s: %s", group_id, done, ", ".join(sorted(failed)))
        if term.slots.get(group_id) is slot:
            answer = {piece: found[IdPartition(*piece)] for piece in question.starts if IdPartition(*piece) in found}
            self._post(term, slot, StatesAnswered(question.number, answer))
