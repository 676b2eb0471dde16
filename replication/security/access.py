"""Access: the rights that a request needs, as Kafka names them, and the authorizer that grants or refuses them.

A request of a client declares its needs, one operation on one resource each. The authorizer returns those that it
refuses, and the handler of the request answers their rows with the API's own error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

Request = TypeVar("Request")


class Operation(enum.IntEnum):
    """An operation on a resource; the number is Kafka's code of it."""

    ALL = 2  # of an ACL only: no request needs it
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    TWO_PHASE_COMMIT = 15


class Resource(enum.IntEnum):
    """A type of resource; the number is Kafka's code of it."""

    SOME_TOPIC = -2  # none of Kafka's, and of needs only: one topic at least, whichever
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Need(NamedTuple):
    """A right that a request takes. `instead`: another right that does as well."""

    operation: Operation
    resource: Resource
    name: str
    instead: Need | None = None


CLUSTER_NAME = "kafka-cluster"
NAME_KEPT_MAX = 249  # characters of a name in a cache: clients choose what they name


def of_topic(operation: Operation, name: str) -> Need:
    return Need(operation, Resource.TOPIC, name)


def of_group(operation: Operation, name: str) -> Need:
    return Need(operation, Resource.GROUP, name)


def of_transaction(operation: Operation, name: str) -> Need:
    return Need(operation, Resource.TRANSACTIONAL_ID, name)


def of_each(operation: Operation, resource: Resource, names: Iterable[str], instead: Need | None = None) -> list[Need]:
    """Return one need for each resource, however often it is named."""
    return [Need(operation, resource, name, instead) for name in dict.fromkeys(names)]


def of_cluster(operation: Operation, instead: Need | None = None) -> Need:
    return Need(operation, Resource.CLUSTER, CLUSTER_NAME, instead)


@dataclass(frozen=True, slots=True)
class Principal:
    """The user who sends requests: ANONYMOUS on a listener that asks nobody who they are."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
# Brokers among themselves, in one process: a broker may ask itself anything.
BROKER_KIND = "Broker"  # of a principal that is proved by the secret of the cluster: no user has it
BROKER = Principal("BROKER", BROKER_KIND)
LISTENER = "PLAINTEXT"  # the name of the one that there is by default
OWN_CONNECTION = 0  # the number of none: a broker asks itself


@dataclass(frozen=True, slots=True)
class Context:
    """A connection, as authorizers know it. `connection_id` is unique in the life of a server, or OWN_CONNECTION."""

    host: str
    connection_id: int
    principal: Principal = ANONYMOUS
    listener: str = LISTENER

    @property
    def is_broker(self) -> bool:
        return self.principal.kind == BROKER_KIND


NOTHING: frozenset[Need] = frozenset()


class Authorizer(Protocol):
    """Decides from memory: it is asked in the event loop, before every request.

    `has_rights`: clients may lack one; else nothing is refused but what is between brokers.
    """

    has_rights: bool

    def refused(
        self, context: Context, needs: Callable[[Request], Sequence[Need]], request: Request
    ) -> Collection[Need]:
        """Return those of `needs(request)` that this connection does not have; NOTHING if it has all of them."""


class AllowAll:
    """The authorizer of a cluster without access control."""

    has_rights = False

    def refused(
        self, context: Context, needs: Callable[[Request], Sequence[Need]], request: Request
    ) -> Collection[Need]:
        return NOTHING


ALLOW_ALL = AllowAll()
