"""How long a stream without new records waits for them, in Spark's place.

By default Spark asks a source again 10 ms after it had nothing. A hundred questions a second cost the JVM and this
process more than a wait that ends with the next record. So a source that is asked on and on waits before it answers.
The other sources of its query wait with it: a wait is short, and shorter if there was a batch a moment ago.
"""

from __future__ import annotations

WAIT_MS_MIN, WAIT_MS_MAX = 10, 100
SHARE = 20  # a wait is at most this part of the time without a batch
AT_ONCE_MS = 50  # after a longer pause than this a batch has run, another source waits, or the trigger does


class Idle:
    """The questions of Spark in a row that were answered with nothing. All times are of one clock."""

    def __init__(self) -> None:
        self._since_ms = 0
        self._answered_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """Return how long the question that comes now may wait; 0: it is answered at once."""
        if self._answered_ms is None or now_ms - self._answered_ms > AT_ONCE_MS:
            self._since_ms = now_ms
        wait_ms = min((now_ms - self._since_ms) // SHARE, WAIT_MS_MAX)
        return wait_ms if wait_ms >= WAIT_MS_MIN else 0

    def answered(self, now_ms: int, *, with_nothing: bool) -> None:
        self._answered_ms = now_ms if with_nothing else None
