"""The settings of a cluster's topics, groups and brokers, as rows, and changes of them."""

from __future__ import annotations

import re
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

ALL_BROKERS = "<default>"
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
