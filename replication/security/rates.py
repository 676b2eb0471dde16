"""Rates: what was taken in the last seconds, and how long the takers are to wait. Pure; by Kafka's arithmetic.

A Rate is a row of samples. The first is as old as the window; what is measured is what all have, over the time since
the first one began, at least all samples but one. So a burst of a whole window is allowed after a silence, and over a
long time not more than the limit.

Tokens are a bucket that fills up to what the whole window allows: taking is allowed while there is anything in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from logstore.config import INT32_MAX


class Window(NamedTuple):
    """How many samples there are, and how long each is."""

    samples: int
    sample_ms: int

    @property
    def age_ms(self) -> int:
        """How old what counts may be."""
        return self.samples * self.sample_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWindows:
    """The settings of windows, by their names in `BrokerConfig`."""

    quota_window_num: int = 11
    quota_window_size_seconds: int = 1
    controller_quota_window_num: int = 11
    controller_quota_window_size_seconds: int = 1

    @property
    def clients(self) -> Window:
        return Window(self.quota_window_num, self.quota_window_size_seconds * 1000)

    @property
    def mutations(self) -> Window:
        return Window(self.controller_quota_window_num, self.controller_quota_window_size_seconds * 1000)


class Sample(NamedTuple):
    start_ms: int
    last_ms: int  # when something was taken last
    value: float


Rate: TypeAlias = tuple[Sample, ...]  # the oldest first
NOTHING_TAKEN: Rate = ()


def take(rate: Rate, value: float, now_ms: int, window: Window) -> Rate:
    """Return the rate after so much more was taken; a negative value gives it back."""
    known = _current(rate, now_ms, window)
    if known and now_ms - known[-1].start_ms < window.sample_ms:
        last = known[-1]
        return (*known[:-1], Sample(last.start_ms, now_ms, last.value + value))
    return (*known, Sample(now_ms, now_ms, value))


def taken(rate: Rate, now_ms: int, window: Window) -> float:
    """Return what was taken within the window."""
    return sum(sample.value for sample in _current(rate, now_ms, window))


def wait_ms(rate: Rate, limit: float, now_ms: int, window: Window) -> int:
    """Return how long to take nothing, so that the rate is not above the limit any more; 0: it is not."""
    known = _current(rate, now_ms, window)
    span_ms = _span_ms(known, now_ms, window)
    measured = sum(sample.value for sample in known) / (span_ms / 1000)
    return _rounded((measured - limit) / limit * span_ms) if measured > limit else 0


def _span_ms(known: Rate, now_ms: int, window: Window) -> int:
    span_ms = now_ms - known[0].start_ms if known else 0
    missing = window.samples - 1 - span_ms // window.sample_ms
    return max(1, span_ms + max(0, missing) * window.sample_ms)


def _current(rate: Rate, now_ms: int, window: Window) -> Rate:
    if not rate or now_ms - rate[0].last_ms < window.age_ms:
        return rate
    return tuple(sample for sample in rate if now_ms - sample.last_ms < window.age_ms)


class Tokens(NamedTuple):
    left: float  # negative: so much was taken in advance
    at_ms: int


def refill(tokens: Tokens | None, limit: float, now_ms: int, window: Window) -> Tokens:
    """Return the bucket as it is now; None: nothing was ever taken from it."""
    most = window.samples * (window.sample_ms / 1000) * limit
    if tokens is None:
        return Tokens(most, now_ms)
    return Tokens(min(most, tokens.left + limit * ((now_ms - tokens.at_ms) / 1000)), now_ms)


def refill_ms(tokens: Tokens, limit: float) -> int:
    """Return how long it takes until something may be taken again; 0: it may be."""
    return _rounded(-tokens.left / limit * 1000) if tokens.left < 0 else 0


def _rounded(duration_ms: float) -> int:
    return min(INT32_MAX, math.floor(min(duration_ms, INT32_MAX) + 0.5))
