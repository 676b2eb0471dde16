"""LogStarts: where the logs of the followers start, as far as they have sent them in this leader epoch.

Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from replication.model.cluster import BrokerId


class LogStarts(dict[BrokerId, int]):
    def __init__(self) -> None:
        super().__init__()
        self._waits: list[asyncio.Future[None]] = []

    def low_watermark(self, own: int, followers: Iterable[BrokerId]) -> int:
        """Nothing below is at any of these replicas; -1 if one has sent none."""
        return min([own, *(self.get(broker, -1) for broker in followers)])

    def note(self, follower: BrokerId, offset: int) -> None:
        if self.get(follower) != offset:
            self[follower] = offset
            self.tell()

    def next(self) -> asyncio.Future[None]:
        """Done when another log start came, or others are waited for: see `tell`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append(done)
        return done

    def tell(self) -> None:
        """Have all that wait look again."""
        waits, self._waits = self._waits, []
        for wait in waits:
            if not wait.done():
                wait.set_result(None)
