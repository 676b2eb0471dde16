"""ReplicationQuota: how fast throttled replicas may be copied (KIP-73). Belongs to the event loop."""

from __future__ import annotations

import math
from collections.abc import Callable

from logstore.env import Clock

# Copying begins again when so much of a second's worth is free: not for every batch on its own.
_FREE_AT_LEAST = 0.1
WAIT_MS_MAX = 500  # then it is looked at again: the rate may be another one


class ReplicationQuota:
    """Bytes that may be copied now, at `rate()` bytes per second.

    A level rises by what is copied and falls by the rate. Nothing is begun while it is near a second's worth; what was
    begun is finished, also a batch that is larger than that. So t seconds bring at most (t + 1) * rate and one answer,
    and never nothing for ever.
    """

    def __init__(self, rate: Callable[[], int], clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._known_rate = rate()  # at the last look: what was copied until now was under this one
        self._level_bytes = 0.0
        self._at_ms = clock.monotonic_ms()

    def left_bytes(self) -> int:
        """How much may be copied now; 0: wait."""
        rate = self._rate()
        left = rate - self._sink(rate)
        return max(1, math.floor(left)) if left >= rate * _FREE_AT_LEAST else 0

    def wait_ms(self) -> int:
        """How long to wait before it is looked at again."""
        rate = self._rate()
        over_bytes = self._sink(rate) - rate * (1 - _FREE_AT_LEAST)
        return min(max(1, math.ceil(over_bytes * 1000 / rate)), WAIT_MS_MAX)

    def charge(self, size_bytes: int) -> None:
        self._level_bytes = self._sink(self._rate()) + size_bytes

    def _sink(self, rate: int) -> float:
        now_ms = self._clock.monotonic_ms()
        self._level_bytes = max(0.0, self._level_bytes - self._known_rate * (now_ms - self._at_ms) / 1000)
        self._at_ms, self._known_rate = now_ms, rate
        return self._level_bytes
