"""DescribeAcls, CreateAcls, DeleteAcls. Any broker answers, and goes by a change from its answer on.

Changes are written to the tree, as settings are: its conditional writes order those of all brokers, and a controller
could add nothing to that but a hop, and moments without one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from logstore.errors import PylogError
from replication.broker.acl_changes import AclChanges
from replication.coordination import acls
from replication.coordination.acls import AclNode, Entries, path_of
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.network.steps import in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.security.acl import Acl, Entry, Filter, Pattern, Wish, acl_of
from replication.security.acl_authorizer import AclAuthorizer

logger = logging.getLogger(__name__)

RESOURCE_CODES, PATTERN_CODES, OPERATION_CODES, PERMISSION_CODES = range(1, 8), range(1, 5), range(1, 16), range(1, 4)


class AclHandlers:
    """`authorizer`: None without one. `tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(self, authorizer: AclAuthorizer | None, changes: AclChanges | None, tree: Callable[[], Tree]) -> None:
        self._authorizer = authorizer
        self._changes = changes
        self._tree = tree

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_ACLS: self.describe,
            ApiKey.CREATE_ACLS: self.create,
            ApiKey.DELETE_ACLS: self.delete,
        }

    def describe(self, context: Work, body: requests.DescribeAclsRequest) -> Response:
        """The ACLs that this broker goes by."""
        wanted = filter_of(body)
        reason = why_unknown(wanted)
        if self._authorizer is None:
            said = "No Authorizer is configured on the broker"
            return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": said, "resources": ()}
        if reason:
            return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": reason, "resources": ()}
        rows = [
            {
                "resource_type": pattern.resource,
                "resource_name": pattern.name,
                "pattern_type": pattern.kind,
                "acls": [_row(entry) for entry in entries],
            }
            for pattern, entries in self._authorizer.rules.selected(wanted)
        ]
        return {"error_code": ErrorCode.NONE, "error_message": None, "resources": rows}

    async def create(self, context: Work, body: requests.CreateAclsRequest) -> Response:
        """Each row by itself; one that is there already is no error."""
        context.park()
        failed: dict[int, PylogError] = {}
        wanted: dict[Pattern, dict[int, Entry]] = {}
        at = 0
        async for chunk in in_steps(body.creations):
            for row in chunk:
                try:
                    acl = self._acl(row)
                    wanted.setdefault(acl.pattern, {})[at] = acl.entry
                except KafkaError as error:
                    failed[at] = error
                at += 1
        for pattern, rows in wanted.items():
            try:
                await acls.change(self._tree(), pattern, partial(_added, pattern, frozenset(rows.values())))
            except PylogError as error:
                failed.update(dict.fromkeys(rows, error))
        await self._know(context, "created", wanted)
        return {"results": [_outcome(failed.get(number)) for number in range(at)]}

    def _acl(self, row: requests.AclCreation) -> Acl:
        if self._authorizer is None:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
        codes = row.resource_type, row.resource_name, row.resource_pattern_type, row.principal, row.host
        try:
            return acl_of(Wish(*codes, row.operation, row.permission_type))
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    async def delete(self, context: Work, body: requests.DeleteAclsRequest) -> Response:
        """Delete what any of the filters selects; each tells of all that it selected."""
        context.park()
        filters = [filter_of(row) for row in body.filters]
        try:
            if self._authorizer is None:
                raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
            removed = await self._delete([each for each in filters if not why_unknown(each)])
        except PylogError as error:
            return {"filter_results": [{**_outcome(error), "matching_acls": ()} for _ in filters]}
        await self._know(context, "deleted", {acl.pattern for acl in removed})

        def row(wanted: Filter) -> Response:
            if reason := why_unknown(wanted):
                return {**_outcome(KafkaError(ErrorCode.INVALID_REQUEST, reason)), "matching_acls": ()}
            found = [acl for acl in removed if wanted.selects(acl)]
            return {**_outcome(None), "matching_acls": [_match(acl) for acl in found]}

        return {"filter_results": [row(wanted) for wanted in filters]}

    async def _delete(self, filters: list[Filter]) -> list[Acl]:
        tree = self._tree()
        removed: dict[Acl, None] = {}

        def kept(pattern: Pattern, known: AclNode) -> Entries:
            gone = [e for e in known.entries if any(each.selects(Acl(pattern, e)) for each in filters)]
            found[:] = [Acl(pattern, entry) for entry in gone]
            return known.entries.difference(gone)

        found: list[Acl] = []
        for pattern, node in (await acls.read_all(tree)).items():
            if kept(pattern, node) != node.entries:
                await acls.change(tree, pattern, partial(kept, pattern))
                removed.update(dict.fromkeys(found))
        return list(removed)

    async def _know(self, context: Work, done: str, patterns: Iterable[Pattern]) -> None:
        changed = list(patterns)
        if self._changes is None or not changed:
            return
        by = str(context.origin.context.principal)
        logger.info("ACLs %s by=%r from=%s at=%s", done, by, context.client_host, [*map(path_of, changed)])
        await self._changes.know(self._tree(), changed)


def filter_of(body: requests.DescribeAclsRequest | requests.DeleteAclsFilter) -> Filter:
    return Filter(
        body.resource_type_filter,
        body.resource_name_filter,
        body.pattern_type_filter,
        body.principal_filter,
        body.operation,
        body.permission_type,
        body.host_filter,
    )


def why_unknown(wanted: Filter) -> str:
    """Return why nobody knows what a filter selects; "": it is known."""
    if wanted.resource not in RESOURCE_CODES or wanted.kind not in PATTERN_CODES:
        return "Unknown patternFilter."
    if wanted.operation not in OPERATION_CODES or wanted.permission not in PERMISSION_CODES:
        return "Unknown entryFilter."
    return ""


def _added(pattern: Pattern, new: Entries, known: AclNode) -> Entries:
    if not known.is_whole:
        said = f"the ACLs at {path_of(pattern)} cannot be read: delete them first, or correct the node"
        raise KafkaError(ErrorCode.INVALID_REQUEST, said)
    return known.entries | new


def _row(entry: Entry) -> Response:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


def _match(acl: Acl) -> Response:
    pattern = {"resource_type": acl.pattern.resource, "resource_name": acl.pattern.name}
    return {**_outcome(None), **pattern, "pattern_type": acl.pattern.kind, **_row(acl.entry)}


def _outcome(error: PylogError | None) -> Response:
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": code_of(error), "error_message": message_of(error)}
