"""CaughtUp: the followers of one partition that had all when they asked last, and ask on. See `sessions`.

They are at the log's end as of their admission: an append ends that. Belongs to the event loop.
"""

from __future__ import annotations

from typing import Protocol

from replication.model.cluster import BrokerId
from replication.replica.machine import isr


class CaughtUp(isr.Asking, Protocol):
    """A follower's request for what comes behind the log's end: repeated with each request of its fetch session."""

    def renew(self) -> None:
        """Admit it anew when it is repeated next."""

    def tell(self) -> None:
        """Tell the high watermark with the next answer."""


class CaughtUpFollowers(dict[BrokerId, CaughtUp]):
    def tell(self) -> None:
        for caught_up in self.values():
            caught_up.tell()
