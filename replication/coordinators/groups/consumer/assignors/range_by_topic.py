"""The range assignor: of each topic, every member gets one run of neighbouring partitions.

Members of topics with as many partitions get the same numbers of each, so that such topics can be joined.
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.coordinators.groups.consumer.assignors.wishes import Wish, readers_of
from replication.coordinators.groups.pieces import Piece, Pieces


def assign_ranges(wishes: Mapping[str, Wish], partitions: Mapping[str, int]) -> Mapping[str, Pieces]:
    """Return what each member is to have: members of the earlier ids get the lower numbers, and one more if needed."""
    found: dict[str, set[Piece]] = {member: set() for member in wishes}
    for topic, readers in readers_of(wishes, partitions).items():
        ordered = sorted(readers, key=lambda member: (wishes[member].instance_id or member, member))
        start = 0
        for at, member in enumerate(ordered):
            end = start + partitions[topic] // len(ordered) + (at < partitions[topic] % len(ordered))
            found[member].update(Piece(topic, number) for number in range(start, end))
            start = end
    return {member: frozenset(pieces) for member, pieces in found.items()}
