"""The uniform assignor: members get as many partitions as others, and keep those that they have.

Laws: a partition moves only if the numbers of two subscribers of its topic would differ by more than one; where all
members subscribe to the same topics, numbers differ by one at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from replication.coordinators.groups.consumer.assignors.wishes import Wish, readers_of
from replication.coordinators.groups.pieces import Piece, Pieces


def assign_uniformly(wishes: Mapping[str, Wish], partitions: Mapping[str, int]) -> Mapping[str, Pieces]:
    """Return what each member is to have."""
    readers = {topic: sorted(found) for topic, found in readers_of(wishes, partitions).items() if found}
    held, free = _kept(wishes, partitions, readers)
    # A topic that few can read is given out first: what is left goes to whoever has least.
    for topic in sorted(free, key=lambda topic: (len(readers[topic]), topic)):
        least = [(len(held[member]), member) for member in readers[topic]]
        heapq.heapify(least)
        for number in free[topic]:
            count, member = least[0]
            held[member].add(Piece(topic, number))
            heapq.heapreplace(least, (count + 1, member))
    is_level = False
    while not is_level:  # each move makes the numbers more equal, so that there is a last one
        is_level = True
        for topic, found in sorted(readers.items()):
            is_level &= not _levelled(held, topic, found)
    return {member: frozenset(pieces) for member, pieces in held.items()}


def _kept(
    wishes: Mapping[str, Wish], partitions: Mapping[str, int], readers: Mapping[str, Sequence[str]]
) -> tuple[dict[str, set[Piece]], dict[str, list[int]]]:
    """Return what members keep, and the numbers of each topic that nobody keeps."""
    taken: set[Piece] = set()
    held: dict[str, set[Piece]] = {}
    for member, wish in wishes.items():
        kept = {
            piece
            for piece in wish.former
            if piece.topic_id in wish.topics
            and piece.partition < partitions.get(piece.topic_id, 0)
            and piece not in taken
        }
        held[member] = kept
        taken |= kept
    free = {topic: [n for n in range(partitions[topic]) if Piece(topic, n) not in taken] for topic in readers}
    return held, free


def _levelled(held: dict[str, set[Piece]], topic: str, readers: Sequence[str]) -> bool:
    """Move partitions of the topic from readers with most to those with least; return whether any moved."""
    counts = [len(held[member]) for member in readers]
    if max(counts) - min(counts) <= 1:  # nearly always: nobody's partitions are looked at
        return False
    own = {member: sorted(n for of, n in held[member] if of == topic) for member in readers}
    least = [(len(held[member]), member) for member in readers]
    most = [(-count, member) for count, member in least if own[member]]
    heapq.heapify(least)
    heapq.heapify(most)
    moved = False
    while most:
        much, giver = most[0]
        if -much != len(held[giver]) or not own[giver]:
            heapq.heappop(most)
            if own[giver]:
                heapq.heappush(most, (-len(held[giver]), giver))
            continue
        little, taker = least[0]
        if little != len(held[taker]):
            heapq.heapreplace(least, (len(held[taker]), taker))
            continue
        if little + 1 >= -much:
            break
        number = own[giver].pop()
        held[giver].remove(Piece(topic, number))
        held[taker].add(Piece(topic, number))
        if not own[taker]:
            heapq.heappush(most, (-len(held[taker]), taker))
        own[taker].append(number)
        moved = True
    return moved
