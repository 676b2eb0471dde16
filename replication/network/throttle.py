"""Throttle: what clients take of a broker, by Kafka's quotas, and for how long each is to wait.

Decisions are those of `security.quotas` and `security.rates`; here are the rates of all that take something. Belongs to
the event loop.
"""

from __future__ import annotations

from typing import TypeAlias

from logstore.env import SYSTEM, Clock
from replication.errors import ErrorCode, KafkaError
from replication.network.work import Work
from replication.security import rates
from replication.security.access import BROKER, NAME_KEPT_MAX, Context
from replication.security.quotas import Entity, Limit, Limits, Quota, Sharer, Values
from replication.security.rates import QuotaWindows, Rate, Tokens

LIMITS_KEPT = 10_000  # of clients that asked last
RATES_KEPT = 10_000  # of sharers that took something last; one is some 1 KB
BYTES_MAX = 2**31 - 1


_Client: TypeAlias = tuple[Quota, str, str]  # with user and client id


class Throttle:
    """`is_on`: somebody was given a quota."""

    def __init__(self, windows: QuotaWindows | None = None, clock: Clock = SYSTEM.clock) -> None:
        self.limits = Limits()
        self.is_on = False
        windows = windows or QuotaWindows()
        self.window, self._mutations = windows.clients, windows.mutations
        self.clock = clock
        self.known: dict[_Client, Limit | None] = {}
        self.taken: dict[tuple[Quota, Sharer], Rate] = {}  # the one that was charged last at the end
        self._tokens: dict[Sharer, Tokens] = {}

    # --------------------------------------------------------------- limits

    def put(self, entity: Entity, values: Values) -> None:
        """Let these be all quotas of an entity, for what is charged from now on."""
        self.limits.put(entity, values)
        self.is_on = any(map(self.limits.has, (Quota.PRODUCED, Quota.CONSUMED, Quota.REQUESTS, Quota.MUTATIONS)))
        self.known.clear()

    def limit_of(self, quota: Quota, context: Context, client_id: str | None) -> Limit | None:
        """Return the limit of a client; None: it has none, as brokers."""
        if not self.limits.has(quota) or context.principal.kind == BROKER.kind:
            return None
        client = quota, context.principal.name, client_id or ""
        try:
            return self.known[client]
        except KeyError:
            if len(self.known) >= LIMITS_KEPT:
                self.known.clear()
            found = self.limits.of(*client)
            if len(client[2]) <= NAME_KEPT_MAX:
                self.known[client] = found
            return found

    def most_bytes(self, context: Context, client_id: str | None) -> int:
        """Return how many bytes of records a client may be given at once: more would always be held back."""
        limit = self.limit_of(Quota.CONSUMED, context, client_id)
        if limit is None:
            return BYTES_MAX
        samples, sample_ms = self.window
        return int(min(BYTES_MAX, limit.rate * (max(1, samples - 1) * sample_ms / 1000)))

    # -------------------------------------------------------------- charges

    def charge(self, quota: Quota, limit: Limit | None, amount: float) -> int:
        """Return for how many milliseconds the client is to wait, after it has taken so much."""
        if limit is None:
            return 0
        now_ms, key = self.clock.monotonic_ms(), (quota, limit.sharer)
        rate = rates.take(self.taken.pop(key, rates.NOTHING_TAKEN), amount, now_ms, self.window)
        if len(self.taken) >= RATES_KEPT:
            self._forget(now_ms)
        self.taken[key] = rate
        return rates.wait_ms(rate, limit.rate, now_ms, self.window)

    def has_taken(self, quota: Quota, limit: Limit) -> bool:
        """Return whether anything was taken in the window."""
        rate = self.taken.get((quota, limit.sharer), rates.NOTHING_TAKEN)
        return rates.taken(rate, self.clock.monotonic_ms(), self.window) > 0

    def give_back(self, quota: Quota, limit: Limit | None, amount: float) -> None:
        self.charge(quota, limit, -amount)

    def _forget(self, now_ms: int) -> None:
        """Make room: forget what does not count any more, or else those that took least lately."""
        for key, rate in tuple(self.taken.items()):
            if now_ms - rate[-1].last_ms >= self.window.age_ms:
                del self.taken[key]
        for key in tuple(self.taken)[: max(0, len(self.taken) - RATES_KEPT // 2)]:
            del self.taken[key]

    def mutate(self, work: Work, partitions: int, *, is_strict: bool) -> None:
        """Charge the creation or deletion of so many partitions; the answer of the request tells the time to wait.

        Raises: KafkaError: THROTTLING_QUOTA_EXCEEDED, where `is_strict`: nothing is left, and nothing was charged.
        """
        limit = self.limit_of(Quota.MUTATIONS, work.origin.context, work.client_id) if partitions else None
        if limit is None:
            return
        now_ms = self.clock.monotonic_ms()
        tokens = rates.refill(self._tokens.pop(limit.sharer, None), limit.rate, now_ms, self._mutations)
        if len(self._tokens) >= RATES_KEPT:
            self._tokens.clear()
        is_exceeded = is_strict and tokens.left < 0
        if not is_exceeded:
            tokens = Tokens(tokens.left - partitions, now_ms)
        self._tokens[limit.sharer] = tokens
        if is_exceeded or not is_strict:
            work.throttle_ms = max(work.throttle_ms, rates.refill_ms(tokens, limit.rate))
        if is_exceeded:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
