"""The simple assignor: each partition gets members, and each member partitions, whichever are more.

Laws: all partitions of subscribed topics are assigned, each to as many members as the others; where there are more
members than partitions, every member has one. Members keep what they have where that allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from replication.coordinators.groups.pieces import NO_PIECES, Piece, Pieces


def assign(
    topics: Mapping[str, frozenset[str]], former: Mapping[str, Pieces], partitions: Pieces
) -> Mapping[str, Pieces]:
    """Return what each member is to have: from the topic ids that it subscribes to, and what it had."""
    made: dict[str, set[Piece]] = {member: set() for member in topics}
    for readers, pieces in _units(topics, partitions):
        for member, given in _shared_out(readers, former, pieces).items():
            made[member] |= given
    return {member: frozenset(found) for member, found in made.items()}


def _units(topics: Mapping[str, frozenset[str]], partitions: Pieces) -> Iterable[tuple[Sequence[str], Sequence[Piece]]]:
    """Yield members, and the partitions that they share out: all, if all subscribe to the same, or those of a topic."""
    by_topic: dict[str, list[Piece]] = {}
    for piece in sorted(partitions):
        by_topic.setdefault(piece.topic_id, []).append(piece)
    members = sorted(topics)
    if len({wanted & frozenset(by_topic) for wanted in topics.values()}) == 1:
        wanted = topics[members[0]]
        yield members, [piece for topic, pieces in by_topic.items() if topic in wanted for piece in pieces]
        return
    for topic, pieces in by_topic.items():
        yield [member for member in members if topic in topics[member]], pieces


def _shared_out(
    members: Sequence[str], former: Mapping[str, Pieces], pieces: Sequence[Piece]
) -> Mapping[str, set[Piece]]:
    if not members or not pieces:
        return {}
    sharing = -(-len(members) // len(pieces))
    all_places = sharing * len(pieces)
    bounds = [-(-all_places * at // len(members)) for at in range(len(members) + 1)]
    quotas = {member: bounds[at + 1] - bounds[at] for at, member in enumerate(members)}
    held = _kept(quotas, former, pieces, sharing)
    # A member that keeps something may have room only for partitions that it has: then nothing is kept.
    return held if _filled(held, quotas, pieces, sharing) else _anew(quotas, pieces, sharing)


def _anew(quotas: Mapping[str, int], pieces: Sequence[Piece], sharing: int) -> dict[str, set[Piece]]:
    held: dict[str, set[Piece]] = {member: set() for member in quotas}
    _filled(held, quotas, pieces, sharing)
    return held


def _kept(
    quotas: Mapping[str, int], former: Mapping[str, Pieces], pieces: Sequence[Piece], sharing: int
) -> dict[str, set[Piece]]:
    """Return what members keep: no more than their quotas, and no partition by more members than share it."""
    left = dict.fromkeys(pieces, sharing)
    held: dict[str, set[Piece]] = {}
    for member, quota in quotas.items():
        mine = held[member] = set()
        for piece in sorted(former.get(member, NO_PIECES)):
            if len(mine) < quota and left.get(piece, 0):
                left[piece] -= 1
                mine.add(piece)
    return held


def _filled(held: dict[str, set[Piece]], quotas: Mapping[str, int], pieces: Sequence[Piece], sharing: int) -> bool:
    """Give each partition to those who have most room left; return whether each has all its members."""
    readers = dict.fromkeys(pieces, 0)
    for mine in held.values():
        for piece in mine:
            readers[piece] += 1
    room = {member: quota - len(held[member]) for member, quota in quotas.items()}
    for piece in pieces:
        if missing := sharing - readers[piece]:
            able = [member for member, free in room.items() if free and piece not in held[member]]
            if len(able) < missing:
                return False
            for member in sorted(able, key=lambda member: (-room[member], member))[:missing]:
                held[member].add(piece)
                room[member] -= 1
    return True
