"""Refusals: the answer to a request of which the authorizer refuses something.

The rows that are refused are answered with the API's own error, and the handler gets a request without them.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from replication.errors import ErrorCode
from replication.network.steps import in_steps
from replication.network.work import Handler, Work
from replication.protocol import failures
from replication.protocol.apis import ApiKey
from replication.protocol.failures import Failure
from replication.protocol.kio_pieces import Rows
from replication.protocol.small_messages import CommitOne
from replication.security.access import Need, Resource

CODES: Mapping[Resource, ErrorCode] = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
ALL_OR_NOTHING = frozenset({ApiKey.ADD_PARTITIONS_TO_TXN})
NOT_ATTEMPTED = Failure(ErrorCode.OPERATION_NOT_ATTEMPTED)


class Part(NamedTuple):
    """Some rows of a request, for the function that names its needs."""

    key: ApiKey
    version: int
    body: Any


async def answer(work: Work, needs: Callable[[Any], Sequence[Need]], handler: Handler) -> Any:
    """Return the response, with the handler's rows for those parts of the request that are not refused."""
    body, form = work.body, failures.form_of(work.key, work.version)
    if isinstance(body, CommitOne):
        body = body.with_rows()
    array = None if form.rows is None else failures.array_of(body)

    def failure(rows: Sequence[Any] | None) -> Failure | None:
        part = body if rows is None or array is None else _with(body, array, rows)
        need = next((need for need in needs(Part(work.key, work.version, part)) if need in work.refused), None)
        return None if need is None else Failure(CODES[need.resource], describe(work, need))

    whole = failure(None if array is None else ())
    if whole is not None:
        return form.failed(body, whole)
    assert array is not None, "without rows, what is refused is the whole"
    assert form.rows is not None, "as above"
    granted: list[Any] = []
    refused: list[tuple[Any, Failure]] = []
    async for some in in_steps(getattr(body, array) or ()):
        for row in some:
            failed = failure((row,))
            if failed is None:
                granted.append(row)
            else:
                refused.append((row, failed))
    if work.key in ALL_OR_NOTHING:
        refused += [(row, NOT_ATTEMPTED) for row in granted]
        granted = []
    if late := work.refused_of(needs, Part(work.key, work.version, _with(body, array, granted))):
        # Between two steps it has become known which topic an id names, or a right has gone.
        work.refused = {*work.refused, *late}
        return await answer(work, needs, handler)
    rows = form.rows.form.failed_rows(refused)
    if not granted:
        return {**form.values, form.rows.name: rows}
    work.body = _with(body, array, granted)
    found = handler(work, work.body)
    response = await found if isinstance(found, Awaitable) else found
    answered: Collection[Any] = response[form.rows.name]
    return {**response, form.rows.name: Rows(len(answered) + len(rows), itertools.chain(answered, rows))}


def describe(work: Work, need: Need) -> str:
    """Return what the client lacks, in one line."""
    return f"{work.origin.context.principal} has no {need.operation.name} on {need.resource.name} {need.name!r:.300}"


def _with(body: Any, array: str, rows: Sequence[Any]) -> Any:
    """Return the request with these rows: an entity, or a named tuple."""
    changed = {array: tuple(rows)}
    return body._replace(**changed) if hasattr(body, "_replace") else replace(body, **changed)
