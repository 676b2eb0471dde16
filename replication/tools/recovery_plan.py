"""The plan of a restored coordination store, from the replicas in brokers' directories and, if there is one, a copy.

Rules (decision 50):

- The log that was written last leads: the greatest (last leader epoch, end). It has every committed record, if
  leaders were elected from the ISR and its directory was read. Replicas with exactly the same extent are in sync.
- If, as of the copy, only brokers whose directories were not read were in sync, and no log was written later, the
  partition waits for them.
- Every epoch grows by STEP: no living log, client or broker has a newer one.
- A topic is identified by its id. If directories have several ids of one name, the operator must choose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from replication.model.cluster import NO_LEADER, Assignment, BrokerId, ClusterState, LeaderAndIsr, TopicPartition

STEP = 10_000


@dataclass(frozen=True, slots=True)
class FoundReplica:
    """A replica in a directory. `epochs` are (leader epoch, first offset) of the log."""

    topic_id: str
    epochs: tuple[tuple[int, int], ...] = ()
    end: int = 0
    high_watermark: int = 0
    damage: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        return (self.epochs[-1][0] if self.epochs else -1, self.end)


Found = Mapping[TopicPartition, Mapping[BrokerId, FoundReplica]]


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic of the plan. `is_known`: the copy has it, with its settings."""

    id: str
    partitions: Mapping[int, Assignment]
    is_known: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One partition of the plan, and its possible losses."""

    topic: str
    partition: int
    replicas: Assignment
    leader: BrokerId
    isr: Assignment
    leader_epoch: int
    log_end: int | None
    note: str


@dataclass(slots=True)
class Plan:
    """All that will be written. `problems`: it must not be, as long as there is one."""

    controller_epoch: int
    topics: dict[str, PlannedTopic] = field(default_factory=dict)
    states: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def plan(
    found: Found,
    brokers: Collection[BrokerId],
    copied: ClusterState | None,
    *,
    controller_epoch: int = 0,
    chosen_ids: Mapping[str, str] | None = None,
) -> Plan:
    """Decide. `brokers`: those whose directories were read; `controller_epoch`: the copy's."""
    known = copied or ClusterState()
    draft = Plan(max([controller_epoch, *(s.controller_epoch for s in known.leadership.values())]) + STEP)
    for name in sorted({tp.topic for tp in found} | known.topics.keys()):
        topic_id = _identify(draft, name, found, known, chosen_ids or {})
        if topic_id is not None:
            _plan_topic(draft, name, topic_id, found, brokers, known)
    for tp, move in sorted(known.reassignments.items()):
        draft.notes.append(f"{tp} was being moved to {list(move.target)}: ask for that again")
    for name in known.deletions:
        draft.notes.append(f"topic {name} was being deleted: that goes on")
    return draft


def _identify(draft: Plan, name: str, found: Found, known: ClusterState, chosen: Mapping[str, str]) -> str | None:
    """Return the id of the topic of this name; None if it is ambiguous."""
    ids = sorted({each.topic_id for tp, row in found.items() if tp.topic == name for each in row.values()})
    topic = known.topics.get(name)
    if name in chosen:
        return chosen[name]
    if len(ids) > 1:
        holders = {
            topic_id: sorted({b for tp, row in found.items() if tp.topic == name for b in row
                              if row[b].topic_id == topic_id})
            for topic_id in ids
        }  # fmt: skip
        held = "; ".join(f"{topic_id} on brokers {holders[topic_id]}" for topic_id in ids)
        draft.problems.append(
            f"topic {name} was deleted and made again, and directories have more than one of them: {held}"
            + (f"; the copy has {topic.topic_id}" if topic is not None else "")
            + f". Say which with --topic-id {name}=ID; the others are hidden when their brokers start"
        )
        return None
    if ids:
        if topic is not None and topic.topic_id != ids[0]:
            draft.notes.append(f"topic {name} was made again after the copy ({ids[0]}, not {topic.topic_id})")
        return ids[0]
    assert topic is not None, "it is known from somewhere"
    return topic.topic_id


def _plan_topic(
    draft: Plan, name: str, topic_id: str, found: Found, brokers: Collection[BrokerId], known: ClusterState
) -> None:
    mine: dict[int, dict[BrokerId, FoundReplica]] = {
        tp.partition: {b: each for b, each in row.items() if each.topic_id == topic_id}
        for tp, row in found.items()
        if tp.topic == name
    }
    mine = {number: row for number, row in mine.items() if row}
    topic = known.topics.get(name)
    if topic is not None and topic.topic_id != topic_id:
        topic = None
    assigned = dict(topic.replicas) if topic is not None else {}
    if not mine and {b for row in assigned.values() for b in row} <= set(brokers):
        draft.dropped.append(name)
        draft.notes.append(f"topic {name} has no replica in these directories: deleted after the copy; left out")
        return
    partitions: dict[int, Assignment] = {}
    for number in range(max([*mine, *assigned]) + 1):
        tp = TopicPartition(name, number)
        row = mine.get(number, {})
        state = known.leadership.get(tp) if topic is not None else None
        if number in assigned or row:
            partitions[number] = _replicas(row, assigned.get(number, ()), state)
        else:  # it is missing: recreated where the others are
            partitions[number] = tuple(next(iter(mine.values())))
        _plan_partition(draft, tp, partitions[number], row, state, brokers)
    if topic is None:
        draft.notes.append(f"topic {name}: its settings are lost; nothing of it is deleted until it has settings again")
    draft.topics[name] = PlannedTopic(topic_id, partitions, is_known=topic is not None)


def _replicas(row: Mapping[BrokerId, FoundReplica], assigned: Assignment, state: LeaderAndIsr | None) -> Assignment:
    """Return the replicas in the copy, and those written since; without a copy, all that exist, the best first."""
    if assigned:
        since = -1 if state is None else state.leader_epoch
        return (
            *assigned,
            *sorted(b for b, each in row.items() if b not in assigned and each.rank[0] > since),
        )
    return tuple(sorted(row, key=lambda broker: (*(-number for number in row[broker].rank), broker)))


def _plan_partition(
    draft: Plan,
    tp: TopicPartition,
    replicas: Assignment,
    row: Mapping[BrokerId, FoundReplica],
    state: LeaderAndIsr | None,
    brokers: Collection[BrokerId],
) -> None:
    sound = {broker: row[broker] for broker in replicas if broker in row and not row[broker].damage}
    latest = max([-1 if state is None else state.leader_epoch, *(each.rank[0] for each in row.values())])
    notes = [f"broker {b}: its log is damaged ({row[b].damage})" for b in replicas if b in row and row[b].damage]
    in_sync = state.isr if state is not None else ()
    written_since = max([each.rank[0] for each in sound.values()], default=-1)
    is_waited_for = bool(in_sync) and not set(in_sync) & sound.keys()
    end: int | None = None
    if is_waited_for and (state is None or written_since <= state.leader_epoch):
        leader, isr = NO_LEADER, in_sync
        notes.append(f"waits for brokers {list(in_sync)}: only they were in sync, and their directories were not given")
    elif not sound:
        leader, isr = NO_LEADER, tuple(broker for broker in replicas if broker in row)
        notes.append(
            "no replica is undamaged" if row else "no replica is in these directories: the partition begins anew, empty"
        )
    else:
        best = max(each.rank for each in sound.values())
        isr = tuple(broker for broker in replicas if broker in sound and sound[broker].rank == best)
        leader = state.leader if state is not None and state.leader in isr else isr[0]
        end = sound[leader].end
        notes += _losses(leader, sound, [b for b in in_sync if b not in brokers])
    if leader != NO_LEADER or isr:
        draft.states[tp] = LeaderAndIsr(leader, latest + STEP, isr, draft.controller_epoch)
    draft.rows.append(Row(*tp, replicas, leader, isr, latest + STEP, end, "; ".join(notes)))


def _losses(leader: BrokerId, sound: Mapping[BrokerId, FoundReplica], absent: Sequence[BrokerId]) -> list[str]:
    notes = []
    for broker, each in sound.items():
        kept = agreed_end(sound[leader], each)
        if broker != leader and kept < each.end:
            committed = max(0, each.high_watermark - kept)
            notes.append(
                f"broker {broker} has offsets {kept} to {each.end} of an older leader, which are cut"
                + (f"; {committed} of them were committed" if committed else "")
            )
    committed = max(each.high_watermark for each in sound.values())
    if committed > sound[leader].end:
        notes.append(f"offsets {sound[leader].end} to {committed} were committed, and are in none of these logs")
    if absent:
        notes.append(f"brokers {list(absent)} were in sync and are not here: records that only they have are lost")
    return notes


def agreed_end(leader: FoundReplica, follower: FoundReplica) -> int:
    """Return where a follower's log diverges from the leader's: what it keeps when it follows (KIP-101)."""
    ends = {epoch: end for (epoch, _), (_, end) in pairwise((*leader.epochs, (0, leader.end)))}
    above = follower.end
    for epoch, start in reversed(follower.epochs):
        if epoch in ends:
            return min(above, ends[epoch])
        above = start
    return min(above, leader.end) if not leader.epochs or not follower.epochs else above
