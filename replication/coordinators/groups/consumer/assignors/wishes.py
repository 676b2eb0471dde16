"""Wish: what an assignor knows of a member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from replication.coordinators.groups.pieces import Pieces


class Wish(NamedTuple):
    """`topics` are ids; `former` is the target of the member before."""

    topics: frozenset[str]
    former: Pieces
    instance_id: str | None = None


def readers_of(wishes: Mapping[str, Wish], partitions: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the members that subscribe to each topic that there is."""
    found: dict[str, list[str]] = {topic: [] for topic in partitions}
    for member, wish in wishes.items():
        for topic in wish.topics & partitions.keys():
            found[topic].append(member)
    return found
