"""The share states of a group: which partitions have one, need one, or are to have none any more.

Laws: a partition is assigned only while it is initialized; one that is assigned is not initialized again. The states of
a topic are asked for together: if one fails, all are asked for again. Administrators change only what nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from replication.coordinators.groups.classic.events import DeleteGroup
from replication.coordinators.groups.messages import Done
from replication.coordinators.groups.offsets.events import ForgetTopics
from replication.coordinators.groups.pieces import Piece, Pieces, Topics
from replication.coordinators.groups.share.draft import WorkingShare
from replication.coordinators.groups.share.events import (
    AlterShareOffsets,
    DeleteShareOffsets,
    SharesDone,
    StatesAnswered,
)
from replication.coordinators.groups.share.state import (
    NO_STATES,
    Call,
    Purpose,
    States,
    pieces_of,
    with_pieces,
    without_pieces,
)
from replication.coordinators.share_state.states import BY_RESET
from replication.errors import NONE, ErrorCode

AGAIN_MS = 1000  # after states could not be initialized
ADDED = 0  # the start of partitions that a topic got later: all their records are new to the group
NO_STARTS: Mapping[Piece, int] = MappingProxyType({})


def assignable(draft: WorkingShare, topics: Topics) -> Pieces:
    """Return the partitions of these topics that are initialized, and are not being altered."""
    known, call = draft.states.initialized, draft.call
    altered = call.starts if call is not None and call.purpose is Purpose.ALTER else NO_STARTS
    return frozenset(
        Piece(topic.id, number)
        for topic in topics.values()
        if topic.id in known
        for number in known[topic.id].partitions
        if number < topic.partitions and (topic.id, number) not in altered
    )


def initialize(draft: WorkingShare, topics: Topics, known: Topics) -> None:
    """Have each partition of these topics get a state, and forget those of a topic that another one is named like."""
    _forget(draft, lambda topic_id, name: name in known and known[name].id != topic_id)
    states = draft.states
    names = {topic.id: name for name, topic in topics.items()}
    all_of_them = {Piece(topic.id, n) for topic in topics.values() for n in range(topic.partitions)}
    missing = all_of_them - pieces_of(states.initialized) - pieces_of(states.initializing)
    if missing:
        draft.states = states._replace(initializing=with_pieces(states.initializing, names, missing))
    if draft.call is not None or draft.now.ms < draft.call_again_ms:
        return
    waiting = pieces_of(draft.states.initializing) & all_of_them
    if waiting:
        starts = {piece: ADDED if piece.topic_id in states.initialized else BY_RESET for piece in sorted(waiting)}
        draft.ask_states(Purpose.INITIALIZE, starts, names)


def alter(draft: WorkingShare, event: AlterShareOffsets) -> None:
    if draft.members:
        draft.refuse(event.request, SharesDone(ErrorCode.NON_EMPTY_GROUP))
        return
    if not event.offsets:
        draft.refuse(event.request, SharesDone())
        return
    new = event.offsets.keys() - pieces_of(draft.states.initialized)
    initializing = with_pieces(draft.states.initializing, event.names, new)
    draft.states = draft.states._replace(initializing=initializing)
    draft.epoch += 1  # so that a leader that still has the former state is fenced
    draft.target_epoch = draft.epoch
    draft.ask_states(Purpose.ALTER, event.offsets, event.names, event.request)


def delete(draft: WorkingShare, event: DeleteShareOffsets) -> None:
    """A topic without a state is answered with UNKNOWN_TOPIC_OR_PARTITION, as its partition -1."""
    if draft.members:
        draft.refuse(event.request, SharesDone(ErrorCode.NON_EMPTY_GROUP))
        return
    known = draft.states.topics
    unknown = {Piece(topic, -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in event.topics if topic not in known}
    _delete(draft, {topic: name for topic, name in event.topics.items() if topic in known}, Purpose.DELETE, event)
    if draft.call is None:
        draft.answer(event.request, SharesDone(errors=unknown))
    else:
        draft.call = draft.call._replace(refused=unknown)


def delete_group(draft: WorkingShare, event: DeleteGroup) -> None:
    if draft.members:
        draft.refuse(event.request, Done(ErrorCode.NON_EMPTY_GROUP))
        return
    topics = {**draft.states.initializing, **draft.states.initialized}
    names = {**draft.states.deleting, **{topic: found.name for topic, found in topics.items()}}
    _delete(draft, names, Purpose.DELETE_GROUP, event)
    if draft.call is None:
        _delete_now(draft)
        draft.answer(event.request, Done())


def _delete(
    draft: WorkingShare, topics: Mapping[str, str], purpose: Purpose, event: DeleteShareOffsets | DeleteGroup
) -> None:
    states = draft.states
    pieces = {p for p in pieces_of(states.initialized) | pieces_of(states.initializing) if p.topic_id in topics}
    gone = frozenset(pieces)
    for topic_id in states.deleting.keys() & topics.keys():  # of a deletion whose outcome was not stored
        topic = event.known.get(topics[topic_id])
        if topic is not None and topic.id == topic_id:
            pieces |= {Piece(topic_id, number) for number in range(topic.partitions)}
    draft.states = States(
        without_pieces(states.initializing, gone),
        without_pieces(states.initialized, gone),
        {**states.deleting, **topics},
    )
    if pieces:
        draft.ask_states(purpose, dict.fromkeys(sorted(pieces), BY_RESET), topics, event.request)
    else:  # their topics have gone
        draft.states = draft.states._replace(deleting={k: v for k, v in states.deleting.items() if k not in topics})


def _delete_now(draft: WorkingShare) -> None:
    draft.epoch = draft.target_epoch = draft.topics_hash = 0
    draft.states = NO_STATES


def answered(draft: WorkingShare, event: StatesAnswered) -> None:
    call = draft.call
    if call is None or call.number != event.number:
        return  # the group was unloaded meanwhile
    draft.call = None
    errors = {piece: event.errors.get(piece, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for piece in call.starts}
    match call.purpose:
        case Purpose.INITIALIZE | Purpose.ALTER:
            _initialized(draft, call, errors)
        case _:
            _deleted(draft, call, errors)


def _initialized(draft: WorkingShare, call: Call, errors: Mapping[Piece, ErrorCode]) -> None:
    states, failed = draft.states, {piece for piece, error in errors.items() if error is not NONE}
    if call.purpose is Purpose.INITIALIZE:
        if failed:
            draft.call_again_ms = draft.now.ms + AGAIN_MS
        topics = {piece.topic_id for piece in failed}
        done = frozenset(p for p in call.starts if p.topic_id not in topics) & pieces_of(states.initializing)
        given_up = done
    else:
        there = pieces_of(states.initializing) | pieces_of(states.initialized)  # whose topics have not gone
        done, given_up = there & (call.starts.keys() - failed), frozenset(call.starts)
    draft.states = states._replace(
        initializing=without_pieces(states.initializing, given_up),
        initialized=with_pieces(states.initialized, call.names, done),
    )
    if call.request is not None:
        draft.answer(call.request, SharesDone(errors=errors))


def _deleted(draft: WorkingShare, call: Call, errors: Mapping[Piece, ErrorCode]) -> None:
    """A topic whose states are not all deleted, and that has not gone, needs them anew before it is assigned."""
    assert call.request is not None, "somebody asked for it"
    states, refused = draft.states, (piece for piece, error in errors.items() if error is not NONE)
    failed = frozenset(piece for piece in refused if piece.topic_id in states.deleting)
    draft.states = states._replace(
        initializing=with_pieces(states.initializing, call.names, failed),
        deleting={topic: name for topic, name in states.deleting.items() if topic not in call.names},
    )
    if call.purpose is Purpose.DELETE:
        draft.answer(call.request, SharesDone(errors={**call.refused, **errors}))
    elif failed:
        draft.answer(call.request, Done(errors[min(failed)]))
    elif draft.members:
        draft.answer(call.request, Done(ErrorCode.NON_EMPTY_GROUP))
    else:
        _delete_now(draft)
        draft.answer(call.request, Done())


def forget(draft: WorkingShare, event: ForgetTopics) -> None:
    """The topics of these names are gone, and their states with them."""
    _forget(draft, lambda _, name: name in event.topics)


def _forget(draft: WorkingShare, is_gone: Callable[[str, str], bool]) -> None:
    """`is_gone` takes the id and the name of a topic."""
    states = draft.states
    initializing = {k: v for k, v in states.initializing.items() if not is_gone(k, v.name)}
    initialized = {k: v for k, v in states.initialized.items() if not is_gone(k, v.name)}
    deleting = {k: v for k, v in states.deleting.items() if not is_gone(k, v)}
    found = States(initializing, initialized, deleting)
    if tuple(map(len, found)) != tuple(map(len, states)):
        draft.states = found
