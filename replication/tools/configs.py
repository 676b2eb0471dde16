"""The settings of a cluster's topics, groups and brokers, as rows, and changes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from logstore.errors import InvalidRequestError
from replication.client.kafka_client import KafkaClient
from replication.client.settings import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    describe_settings,
    groups_with_settings,
)
from replication.client.users import ITERATIONS, MECHANISMS, NewPassword, describe_users
from replication.client.users import alter_user as change_user

ALL_BROKERS = "<default>"
STORE = "COORDINATION_STORE"
DIGITS_MAX = 9
KINDS = {"topics": TOPIC_RESOURCE, "groups": GROUP_RESOURCE, "brokers": BROKER_RESOURCE}
# A name, and a value; one that has commas is in brackets.
_SETTING = re.compile(r"\s*([^=,\s]+)\s*=\s*(?:\[([^\]]*)\]|([^,\[]*))\s*(?:,|$)")


def described(
    client: KafkaClient, kind: str, name: str | None = None, *, with_defaults: bool = False
) -> list[dict[str, Any]]:
    """The settings that this topic, group or broker, or each of them, was given; with those that it has by default.

    The broker "" are all brokers: what they were given as a default.

    Raises: KafkaError: there is none of this name; UnreachableError.
    """
    names = _names(client, kind) if name is None else [name]
    found = client.run(describe_settings, KINDS[kind], names) if names else {}
    return [
        {
            "entity": entity or ALL_BROKERS,
            "name": key,
            "value": each.value,
            "source": each.source,
            "read_only": each.is_read_only,
        }
        for entity, settings in found.items()
        for key, each in sorted(settings.items())
        if with_defaults or each.is_own
    ]


def users_of(client: KafkaClient, name: str | None = None) -> list[dict[str, Any]]:
    """The mechanisms by which this user, or each one, logs in. Raises: KafkaError, UnreachableError."""
    found = client.run(describe_users, () if name is None else (name,))
    return [
        {"entity": user, "name": mechanism, "value": f"iterations={iterations}", "source": STORE, "read_only": False}
        for user, mechanisms in sorted(found.items())
        for mechanism, iterations in sorted(mechanisms.items())
    ]


def alter_user(
    client: KafkaClient, name: str, given: Mapping[str, str], deleted: Collection[str], ask: Callable[[str], str]
) -> None:
    """Set and delete passwords: `given` has iterations and password by mechanism, as Kafka's tools write them.

    `ask` returns the password for a mechanism that comes without one.

    Raises: InvalidRequestError; KafkaError, UnreachableError.
    """
    made = {}
    for mechanism, text in given.items():
        options = dict(part.strip().partition("=")[::2] for part in text.split(",") if part.strip())
        count = options.pop("iterations", str(ITERATIONS))
        password = options.pop("password", "")
        if options or not count.isdecimal() or len(count) > DIGITS_MAX or mechanism not in MECHANISMS:
            raise InvalidRequestError(
                f"{mechanism}: one of {', '.join(MECHANISMS)} with [iterations=NUMBER,password=TEXT]; without a "
                "password, it is asked for"
            )
        made[mechanism] = NewPassword(password or ask(mechanism), int(count))
    client.run(change_user, name, made, deleted)


def _names(client: KafkaClient, kind: str) -> list[str]:
    if kind == "groups":
        return client.run(groups_with_settings)
    known = client.describe()
    return sorted(known.topics) if kind == "topics" else [str(broker) for broker in sorted(known.brokers)]


def settings_of(text: str) -> dict[str, str]:
    """The settings out of `a=1,b=[x,y]`. Raises: InvalidRequestError."""
    found, at = {}, 0
    while at < len(text):
        match = _SETTING.match(text, at)
        if match is None:
            raise InvalidRequestError(f"{text!r} is not of the form KEY=VALUE,KEY=[VALUE,VALUE]")
        found[match[1]] = (match[3] if match[2] is None else match[2]).strip()
        at = match.end()
    return found
