"""Quotas of a cluster: described and altered, by Kafka's names. Belongs to one event loop.

An entity is the names in it by their types, which are user, client-id and ip; None is the default of that type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from replication.client.cluster import Cluster
from replication.errors import KafkaError, error_of
from replication.protocol.apis import ApiKey

EXACT, DEFAULT, SPECIFIED = range(3)  # how a filter selects a name

Entity: TypeAlias = tuple[tuple[str, str | None], ...]  # sorted by type


class AnyName:
    """In a filter: any name of a type, the default too."""


ANY_NAME = AnyName()


def entity(named: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(named.items()))


async def describe_quotas(
    cluster: Cluster, wanted: Mapping[str, str | AnyName | None] | None = None, *, strict: bool = True
) -> dict[Entity, dict[str, float]]:
    """The quotas of each entity that has these names, and (strict) no others; of all entities without a filter.

    Raises: KafkaError: CLUSTER_AUTHORIZATION_FAILED, or INVALID_REQUEST: no such filter; UnreachableError,
    UnsupportedVersionError.
    """
    parts = [_part(kind, name) for kind, name in (wanted or {}).items()]
    asked = {"components": parts, "strict": strict and wanted is not None}
    answer = await cluster.call_any(ApiKey.DESCRIBE_CLIENT_QUOTAS, asked)
    if answer.error_code.value:
        raise error_of(answer.error_code.value, answer.error_message or "")
    return {
        entity({part.entity_type: part.entity_name for part in row.entity}): {
            each.key: float(each.value) for each in row.values
        }
        for row in answer.entries or ()
    }


async def alter_quotas(
    cluster: Cluster, changes: Mapping[Entity, Mapping[str, float | None]], *, validate_only: bool = False
) -> dict[Entity, KafkaError | None]:
    """Set quotas, and remove those that are None; why an entity was refused; None: it has them now.

    Raises: as `describe_quotas`.
    """
    rows = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in named],
            "ops": [
                {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
                for key, value in change.items()
            ],
        }
        for named, change in changes.items()
    ]
    asked = {"entries": rows, "validate_only": validate_only}
    answer = await cluster.call_any(ApiKey.ALTER_CLIENT_QUOTAS, asked)
    found: dict[Entity, KafkaError | None] = {}
    for row in answer.entries:
        code = row.error_code.value
        named = entity({part.entity_type: part.entity_name for part in row.entity})
        found[named] = error_of(code, row.error_message or "") if code else None
    return found


def _part(kind: str, name: str | AnyName | None) -> dict[str, Any]:
    if isinstance(name, AnyName):
        return {"entity_type": kind, "match_type": SPECIFIED, "match": None}
    return {"entity_type": kind, "match_type": DEFAULT if name is None else EXACT, "match": name}
