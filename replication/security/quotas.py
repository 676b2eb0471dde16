"""Quotas: how much of a broker clients may take, as Kafka's: per user, per client id, both, or address.

A quota is given to an entity, which names a user, a client id, both, or an address; each of these may be ANY, the
default. The first of Kafka's eight levels counts that has a quota for a client: `Limits.of` has their order. Clients
that one quota counts together are its sharers.
"""

from __future__ import annotations

import enum
import hashlib
import ipaddress
import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from logstore.config import INT32_MAX, INT64_MAX
from replication.security.access import NAME_KEPT_MAX
from replication.security.hosts import host_of

ANY = ""  # as a name: all that have no quota of their own
USER, CLIENT_ID, IP = "user", "client-id", "ip"  # types of entities
TYPES = (USER, CLIENT_ID, IP)


class Quota(enum.StrEnum):
    """A thing that is limited, by Kafka's name of it."""

    PRODUCED = "producer_byte_rate"
    CONSUMED = "consumer_byte_rate"
    REQUESTS = "request_percentage"  # of the time of the event loop
    MUTATIONS = "controller_mutation_rate"  # partitions that are created or deleted
    CONNECTIONS = "connection_creation_rate"  # of addresses only


OF_ADDRESSES = frozenset({Quota.CONNECTIONS})
_WHOLE = {Quota.PRODUCED: INT64_MAX, Quota.CONSUMED: INT64_MAX, Quota.CONNECTIONS: INT32_MAX}  # and their largest
_FRACTION = 1e-6  # of a whole number, which is none yet

Values: TypeAlias = Mapping[Quota, float]


class Entity(NamedTuple):
    """The names that a quota is given to. None: it does not name one."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def named(self) -> dict[str, str]:
        """Return the names by their types; ANY is the default."""
        return {kind: name for kind, name in zip(TYPES, self, strict=True) if name is not None}

    def __str__(self) -> str:
        return " ".join(f"{kind}={name or '<default>'}" for kind, name in self.named().items())


class Sharer(NamedTuple):
    """Clients that a quota counts together: those of a user, of a client id, or of both. None: of whichever."""

    user: str | None
    client_id: str | None


class Limit(NamedTuple):
    """The rate that the clients of one sharer may take together in a second."""

    rate: float
    sharer: Sharer


class Limits:
    """The quotas that were given."""

    def __init__(self) -> None:
        self._given: dict[Entity, Values] = {}
        self._counts: dict[Quota, int] = dict.fromkeys(Quota, 0)
        self._addresses: dict[str, float] = {}

    def entities(self) -> Collection[Entity]:
        return self._given.keys()

    def given(self, entity: Entity) -> Values:
        return self._given.get(entity, {})

    def has(self, quota: Quota) -> bool:
        """Return whether anybody was given a quota of this kind."""
        return self._counts[quota] > 0

    def put(self, entity: Entity, values: Values) -> None:
        """Let these be all quotas of an entity."""
        for quota in self._given.pop(entity, {}):
            self._counts[quota] -= 1
        if values:
            self._given[entity] = dict(values)
            for quota in values:
                self._counts[quota] += 1
        if entity.ip is not None:
            known = {each.ip: self._given[each] for each in self._given if each.ip is not None}
            self._addresses = {
                host_of(ip): known[ip][Quota.CONNECTIONS] for ip in sorted(known) if Quota.CONNECTIONS in known[ip]
            }

    def of(self, quota: Quota, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client; None: it has none.

        A client without a name has those of ANY.
        """
        if not self._counts[quota]:
            return None
        for entity, sharer in _levels(user, client_id):
            rate = self.given(entity).get(quota)
            if rate is not None:
                return Limit(rate, sharer)
        return None

    def of_address(self, host: str) -> float | None:
        """Return how many connections a second may come from an address; None: any number."""
        found = self._addresses.get(host_of(host))
        return self._addresses.get(ANY) if found is None else found


def _levels(user: str, client_id: str) -> Iterator[tuple[Entity, Sharer]]:
    """Yield the entities whose quotas may count, the one that counts first first, and with whom it is shared."""
    both = Sharer(_kept(user), _kept(client_id))
    yield Entity(user, client_id), both
    yield Entity(user, ANY), both
    yield Entity(user), Sharer(both.user, None)
    yield Entity(ANY, client_id), both
    yield Entity(ANY, ANY), both
    yield Entity(ANY), Sharer(both.user, None)
    yield Entity(None, client_id), Sharer(None, both.client_id)
    yield Entity(None, ANY), Sharer(None, both.client_id)


def _kept(name: str) -> str:
    """Return the name, or something shorter for a long one: clients choose their ids."""
    if len(name) <= NAME_KEPT_MAX:
        return name
    return f"{name[:100]}…{hashlib.blake2b(name.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


# ---------------------------------------------------------------------- checks


def entity_of(named: Mapping[str, str | None]) -> Entity:
    """Return the entity of names by their types; None: the default. Raises: ValueError, in Kafka's words."""
    if not named:
        raise ValueError("Invalid empty client quota entity")
    for kind, name in named.items():
        if kind not in TYPES:
            raise ValueError(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise ValueError(f"Empty {kind} not supported")
    if IP in named and len(named) > 1:
        raise ValueError("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    names = {kind: ANY if name is None else name for kind, name in named.items()}
    if names.get(IP) and not is_address(names[IP]):
        raise ValueError(f"{names[IP]} is not a valid IP")
    return Entity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def quota_of(entity: Entity, key: str) -> Quota:
    """Return the quota of this name. Raises: ValueError: such entities have none of it."""
    known = OF_ADDRESSES if entity.ip is not None else frozenset(Quota) - OF_ADDRESSES
    if key not in known:
        raise ValueError(f"Invalid configuration key {key}")
    return Quota(key)


def check_value(quota: Quota, value: float) -> None:
    """Raises: ValueError, in Kafka's words: it is no value of the quota."""
    if not 0 < value < math.inf:
        raise ValueError(f"Quota {quota} must be greater than 0")
    if quota in _WHOLE:
        if value > _WHOLE[quota]:
            raise ValueError(f"Proposed value for {quota} is too large for {_FORM[_WHOLE[quota]]}.")
        if value % 1 > _FRACTION:
            raise ValueError(f"{quota} cannot be a fractional value.")


_FORM = {INT64_MAX: "a LONG", INT32_MAX: "an INT"}


def format_quota(quota: Quota, value: float) -> str:
    """Return the value as it is stored."""
    return str(int(value)) if quota in _WHOLE else repr(float(value))


def values_of(entity: Entity, settings: Mapping[str, str]) -> tuple[Values, list[str]]:
    """Return the quotas among the settings of an entity, and what is wrong with those that cannot be understood."""
    found: dict[Quota, float] = {}
    wrong: list[str] = []
    for key, text in settings.items():
        try:
            quota = quota_of(entity, key)
        except ValueError:
            continue  # a setting of another kind
        try:
            value = float(text)
            check_value(quota, value)
        except ValueError as error:
            wrong.append(f"{key}={text!r:.60}: {error}")
        else:
            found[quota] = value
    return found, wrong


# --------------------------------------------------------------------- filters


class Match(enum.IntEnum):
    """How a part of a filter selects names; the number is Kafka's code."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2  # any name, the default too


class Filter(NamedTuple):
    """Selects entities that name all of `exact` and some name of each type in `specified`; if strict, no other."""

    exact: Mapping[str, str]
    specified: frozenset[str]
    is_strict: bool

    def selects(self, entity: Entity) -> bool:
        named = entity.named()
        if self.is_strict and len(named) != len(self.exact) + len(self.specified):
            return False
        return self.specified <= named.keys() and all(named.get(kind) == name for kind, name in self.exact.items())
