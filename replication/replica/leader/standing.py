"""Standing: the followers of one partition that had all when they asked last, and ask on. See `sessions`.

They are at the log's end as of their admission: an append ends that. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from replication.model.cluster import BrokerId
from replication.replica.machine import isr


class Standing(Protocol):
    """A follower's request for what comes behind the log's end: repeated with each request of its fetch session."""

    @property
    def asked_ms(self) -> int:
        """When it was repeated last."""

    @property
    def event(self) -> isr.Fetched:
        """That as an event: it was repeated then."""

    def renew(self) -> None:
        """Admit it anew when it is repeated next."""

    def tell(self) -> None:
        """Tell the high watermark with the next answer."""


class StandingFollowers(dict[BrokerId, Standing]):
    def are_all(self, in_sync: Collection[BrokerId], since_ms: int) -> bool:
        """Are they all in sync, and the only ones besides the leader, and have they asked since then?"""
        for follower, standing in self.items():
            if follower not in in_sync or standing.asked_ms < since_ms:
                return False
        return len(self) == len(in_sync) - 1

    def events(self, in_sync: Collection[BrokerId]) -> list[isr.Fetched]:
        """What the machine must know of those in sync: they ask on, though nobody says so for each partition.

        One that is not in sync joins by a request that is admitted, since it may have died after the last one.
        """
        found = []
        for follower, standing in self.items():
            if follower in in_sync:
                found.append(standing.event)
            else:
                standing.renew()
        return found

    def tell(self) -> None:
        for standing in self.values():
            standing.tell()
