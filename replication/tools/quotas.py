"""Quotas of a cluster as rows, and changes of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from logstore.errors import InvalidRequestError
from replication.client.kafka_client import KafkaClient
from replication.client.quotas import ANY_NAME, AnyName, alter_quotas, describe_quotas, entity

KINDS = {"users": "user", "clients": "client-id", "ips": "ip"}  # as `pylog configs` names them, and Kafka's quotas
DEFAULT = "<default>"
STORE = "COORDINATION_STORE"

Named = Mapping[str, str | None]  # names by their types; None: the default


def described(client: KafkaClient, kind: str, named: Named | None = None) -> list[dict[str, Any]]:
    """The quotas of an entity, or of all that name something of this kind. Raises: KafkaError, UnreachableError."""
    wanted: Mapping[str, str | AnyName | None] = {KINDS[kind]: ANY_NAME} if named is None else named
    found = client.run(describe_quotas, wanted, strict=named is not None)
    return [
        {"entity": text_of(dict(each)), "name": key, "value": f"{value:.15g}", "source": STORE, "read_only": False}
        for each, values in sorted(found.items(), key=lambda row: text_of(dict(row[0])))
        for key, value in sorted(values.items())
    ]


def alter(
    client: KafkaClient,
    named: Named,
    given: Mapping[str, str],
    deleted: Collection[str],
    *,
    validate_only: bool = False,
) -> None:
    """Set and remove quotas: all of them, or none. Raises: InvalidRequestError: no number; KafkaError."""
    change: dict[str, float | None] = dict.fromkeys(deleted)
    for key, text in given.items():
        try:
            change[key] = float(text)
        except ValueError:
            raise InvalidRequestError(f"{key}={text!r}: a quota is a number") from None
    for error in client.run(alter_quotas, {entity(named): change}, validate_only=validate_only).values():
        if error is not None:
            raise error


def text_of(named: Named) -> str:
    order = list(KINDS.values())
    parts = sorted(named.items(), key=lambda part: order.index(part[0]) if part[0] in order else len(order))
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in parts)
