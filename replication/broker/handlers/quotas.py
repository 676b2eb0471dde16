"""DescribeClientQuotas and AlterClientQuotas. Any broker answers, and goes by a change from its answer on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logstore.errors import PylogError
from replication.broker import quota_nodes
from replication.broker.quota_changes import QuotaChanges
from replication.broker.quota_nodes import Change
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.network.steps import in_steps
from replication.network.throttle import Throttle
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.security.quotas import ANY, IP, TYPES, Entity, Filter, Match, check_value, entity_of, quota_of


class QuotaHandlers:
    """`tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(self, throttle: Throttle, changes: QuotaChanges, tree: Callable[[], Tree]) -> None:
        self._limits = throttle.limits
        self._changes = changes
        self._tree = tree

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describe, ApiKey.ALTER_CLIENT_QUOTAS: self.alter}

    async def describe(self, context: Work, body: requests.DescribeClientQuotasRequest) -> Response:
        """The quotas that this broker goes by."""
        try:
            wanted = filter_of(body)
        except KafkaError as error:
            return {"error_code": error.code, "error_message": message_of(error), "entries": None}
        rows: list[Response] = []
        async for some in in_steps(list(self._limits.entities())):
            for entity in some:
                if wanted.selects(entity) and (values := self._limits.given(entity)):
                    found = [{"key": quota.value, "value": value} for quota, value in values.items()]
                    rows.append({"entity": _named(entity), "values": found})
        return {"error_code": ErrorCode.NONE, "error_message": None, "entries": rows}

    async def alter(self, context: Work, body: requests.AlterClientQuotasRequest) -> Response:
        """Set and remove quotas: all that is asked of an entity, or none of it."""
        context.park()
        failed: dict[int, PylogError] = {}
        wanted: dict[Entity, Change] = {}
        places: dict[Entity, list[int]] = {}
        at = 0
        async for some in in_steps(body.entries):
            for row in some:
                try:
                    entity, change = change_of(row)
                    places.setdefault(entity, []).append(at)
                    wanted[entity] = change
                except ValueError as error:
                    failed[at] = KafkaError(ErrorCode.INVALID_REQUEST, str(error))
                at += 1
        for entity, numbers in places.items():
            if len(numbers) > 1:
                said = f"Ignoring duplicate entity {entity}"
                failed.update(dict.fromkeys(numbers, KafkaError(ErrorCode.INVALID_REQUEST, said)))
                del wanted[entity]
        if not body.validate_only and wanted:
            try:
                await quota_nodes.change(self._tree(), wanted)
                await self._changes.know(self._tree(), wanted.keys())
            except PylogError as error:
                failed.update((number, error) for entity in wanted for number in places[entity])
        rows = []
        async for numbered in in_steps(list(enumerate(body.entries))):
            rows += [{**_outcome(failed.get(number)), "entity": _asked(row)} for number, row in numbered]
        return {"entries": rows}


def filter_of(body: requests.DescribeClientQuotasRequest) -> Filter:
    """Raises: KafkaError, in Kafka's words: nobody knows what it selects."""
    exact: dict[str, str] = {}
    specified: set[str] = set()
    for part in body.components:
        kind = part.entity_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in exact or kind in specified:
            said = f"Entity type {kind} cannot appear more than once in the filter."
            raise KafkaError(ErrorCode.INVALID_REQUEST, said)
        if kind not in TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if part.match_type not in tuple(Match):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {part.match_type}")
        match = Match(part.match_type)
        if (match is Match.EXACT) == (part.match is None):
            but = "set match string to null" if match is Match.EXACT else "also specified a match string"
            said = f"Request specified MATCH_TYPE_{match.name}, but {but}."
            raise KafkaError(ErrorCode.INVALID_REQUEST, said)
        if match is Match.SPECIFIED:
            specified.add(kind)
        else:
            # No entity has an empty name: it would select the default here.
            exact[kind] = ANY if part.match is None else part.match or "\0"
    if IP in (named := {*exact, *specified}) and len(named) > 1:
        said = (
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, said)
    return Filter(exact, frozenset(specified), body.strict)


def change_of(row: requests.EntryData) -> tuple[Entity, Change]:
    """Return whose quotas a row changes, and how. Raises: ValueError, in Kafka's words."""
    named: dict[str, str | None] = {}
    for part in row.entity:
        if part.entity_type in named:
            raise ValueError(f"Invalid client quota entity, duplicate entity entry {part.entity_type}")
        named[part.entity_type] = part.entity_name
    entity = entity_of(named)
    change: dict[Any, float | None] = {}
    for op in row.ops:
        quota = quota_of(entity, op.key)
        if quota in change:
            raise ValueError(f"Duplicate quota key {op.key} not updating quota for this entity {entity}")
        if not op.remove:
            check_value(quota, op.value)
        change[quota] = None if op.remove else op.value
    return entity, change


def _asked(row: requests.EntryData) -> Sequence[Response]:
    return [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in row.entity]


def _named(entity: Entity) -> Sequence[Response]:
    return [
        {"entity_type": kind, "entity_name": None if name == ANY else name} for kind, name in entity.named().items()
    ]


def _outcome(error: PylogError | None) -> Response:
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": code_of(error), "error_message": message_of(error)}
