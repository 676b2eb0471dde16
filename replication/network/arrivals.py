"""Arrivals: connections that come, by their addresses and listeners: how many, and how fast, as at a Kafka.

A connection beyond the number of its address or listener is closed at once, one beyond the rate of its address after
the time to wait, and one beyond the rate of its listener or the broker is served after that: one after the other, in
their order. Pure, but for what is counted.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.config import INT32_MAX
from replication.security import rates
from replication.security.hosts import host_of
from replication.security.quotas import Limits
from replication.security.rates import NOTHING_TAKEN, Rate, Window

ADDRESSES_KEPT = 10_000  # that came last
TURN_MS_MAX = 10_000  # a connection whose turn is later is closed: its client has given up by then


class Fate(enum.Enum):
    SERVED = enum.auto()
    CLOSED = enum.auto()


class Verdict(NamedTuple):
    """The fate of a connection, after which time, and why."""

    fate: Fate
    wait_ms: int = 0
    why: str = ""


SERVED_AT_ONCE = Verdict(Fate.SERVED)


class ListenerLimits(NamedTuple):
    """How many connections a listener may have, and how many of them in a second."""

    most: int = INT32_MAX
    per_second: int = INT32_MAX


class Turn(NamedTuple):
    """The connections that were served lately, and when the turn of the next one is."""

    rate: Rate = NOTHING_TAKEN
    free_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSettings:
    """By their names in `BrokerConfig`."""

    max_connections_per_ip: int = INT32_MAX
    max_connections_per_ip_overrides: frozenset[str] = frozenset()
    max_connection_creation_rate: int = INT32_MAX
    of_listeners: Mapping[str, ListenerLimits] = field(default_factory=dict)
    apart: str = ""  # the listener of brokers, if there are others: the rate of the broker is not its


class Arrivals:
    """`limits` has the rates of addresses."""

    def __init__(self, limits: Limits, window: Window, settings: ArrivalSettings | None = None) -> None:
        self._limits = limits
        self._window = window
        self._here: Counter[str] = Counter()  # connections, by their addresses
        self._at: Counter[str] = Counter()  # connections, by their listeners
        self._turns: dict[str, Turn] = {}  # of listeners, and of the broker: ""
        self._rates: dict[str, Rate] = {}  # of addresses that have a limit; the one that came last at the end
        self.limit(settings or ArrivalSettings())

    def limit(self, settings: ArrivalSettings) -> None:
        """Have other limits from now on. Connections that are there stay."""
        self._per_second = settings.max_connection_creation_rate
        self._of_listeners, self._apart = settings.of_listeners, settings.apart
        self._per_address = settings.max_connections_per_ip
        self._overrides = _counts(settings.max_connections_per_ip_overrides)

    def arrive(self, host: str, now_ms: int, listener: str = "") -> Verdict:
        """Count a connection from this address at a listener, unless it is closed."""
        address = host_of(host)
        most = self._overrides.get(address, self._per_address)
        if self._here[address] >= most:
            return Verdict(Fate.CLOSED, 0, f"{most} connections are all that may come from there")
        limits = self._of_listeners.get(listener, ListenerLimits())
        if self._at[listener] >= limits.most:
            return Verdict(
                Fate.CLOSED, 0, f"listener {listener} has {limits.most} connections, which are all that it may"
            )
        fate = self._of_address(address, now_ms)
        if fate.fate is Fate.SERVED:
            fate = self._in_turn(listener, limits.per_second, now_ms)
        if fate.fate is Fate.SERVED:
            self._here[address] += 1
            self._at[listener] += 1
        return fate

    def leave(self, host: str, listener: str = "") -> None:
        """A connection that was served is gone."""
        address = host_of(host)
        self._at[listener] -= 1
        self._here[address] -= 1
        if self._here[address] <= 0:
            del self._here[address]

    def _of_address(self, address: str, now_ms: int) -> Verdict:
        limit = self._limits.of_address(address)
        if limit is None:
            return SERVED_AT_ONCE
        known = self._rates.pop(address, NOTHING_TAKEN)
        if len(self._rates) >= ADDRESSES_KEPT:
            del self._rates[next(iter(self._rates))]
        rate = rates.take(known, 1, now_ms, self._window)
        wait_ms = rates.wait_ms(rate, limit, now_ms, self._window)
        self._rates[address] = known if wait_ms else rate
        if not wait_ms:
            return SERVED_AT_ONCE
        why = f"{limit:g} connections a second are all that may come from there"
        return Verdict(Fate.CLOSED, min(wait_ms, self._window.sample_ms), why)

    def _in_turn(self, listener: str, per_second: int, now_ms: int) -> Verdict:
        """Return when it is served, behind all that came before it at its listener and at the broker."""
        limits = {} if listener and listener == self._apart else {"": self._per_second}
        if listener:
            limits[listener] = per_second
        limits = {name: limit for name, limit in limits.items() if limit < INT32_MAX}
        known = {name: self._turns.get(name, Turn()) for name in limits}
        turn_ms = max((now_ms, *(each.free_ms for each in known.values())))
        rates_of = {name: rates.take(each.rate, 1, turn_ms, self._window) for name, each in known.items()}
        waits = [rates.wait_ms(rates_of[name], limits[name], turn_ms, self._window) for name in limits]
        free_ms = turn_ms + min(max(waits, default=0), self._window.sample_ms)
        if free_ms - now_ms > TURN_MS_MAX:
            return Verdict(Fate.CLOSED, 0, f"{min(limits.values())} connections a second are all that are served")
        self._turns.update((name, Turn(rate, free_ms)) for name, rate in rates_of.items())
        return Verdict(Fate.SERVED, free_ms - now_ms) if free_ms > now_ms else SERVED_AT_ONCE


def _counts(overrides: frozenset[str]) -> Mapping[str, int]:
    found = {}
    for each in overrides:
        host, _, count = each.rpartition(":")
        addresses = ("127.0.0.1", "::1") if host == "localhost" else (host_of(host),)
        found.update(dict.fromkeys(addresses, int(count)))
    return found
