"""DescribeAcls, CreateAcls, DeleteAcls. Any broker answers, and goes by a change from its answer on.

Changes are written to the tree, as settings are: its conditional writes order those of all brokers, and a controller
could add nothing to that but a hop, and moments without one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from logstore.errors import PylogError
from replication.broker import acl_nodes
from replication.broker.acl_changes import AclChanges
from replication.broker.acl_nodes import AclNode, Entries, Wanted, path_of
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.model.cluster import NAMED_MAX
from replication.network.steps import in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.security.acl import Acl, Entry, Filter, Pattern, Wish, acl_of
from replication.security.acl_authorizer import AclAuthorizer

logger = logging.getLogger(__name__)

DELETED_AT_ONCE = 4  # each is looked at by each of a thousand filters
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

    async def describe(self, context: Work, body: requests.DescribeAclsRequest) -> Response:
        """The ACLs that this broker goes by."""
        wanted = filter_of(body)
        if self._authorizer is None:
            said = "No Authorizer is configured on the broker"
            return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": said, "resources": ()}
        if reason := why_unknown(wanted):
            return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": reason, "resources": ()}
        rules, rows = self._authorizer.rules, []
        async for some in in_steps(list(rules.patterns())):
            for pattern in some:
                if entries := rules.selected(pattern, wanted):
                    rows.append({**_named(pattern), "acls": [_row(entry) for entry in entries]})
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
        try:
            changes = {p: partial(_added, p, frozenset(rows.values())) for p, rows in wanted.items()}
            refused = await acl_nodes.change(self._tree(), changes) if changes else {}
            await self._know(context, "created", wanted.keys() - refused.keys())
        except PylogError as error:
            refused = dict.fromkeys(wanted, error)
        for pattern, reason in refused.items():
            failed.update(dict.fromkeys(wanted[pattern], reason))
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
        """Delete what any of the filters selects, an unknown one nothing; each tells of all that it selected."""
        context.park()
        filters = [filter_of(row) for row in body.filters]
        try:
            if self._authorizer is None:
                raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
            removed = await self._delete(context, filters)
        except PylogError as error:
            return {"filter_results": [{**_outcome(error), "matching_acls": ()} for _ in filters]}
        rows: list[Response] = []
        async for some in in_steps(filters, DELETED_AT_ONCE):
            for wanted in some:
                unknown = why_unknown(wanted)
                outcome = _outcome(KafkaError(ErrorCode.INVALID_REQUEST, unknown) if unknown else None)
                found = [_match(acl, removed[acl]) for acl in removed if wanted.selects(acl)]
                rows.append({**outcome, "matching_acls": found})
        return {"filter_results": rows}

    async def _delete(self, context: Work, filters: Sequence[Filter]) -> Mapping[Acl, PylogError | None]:
        """Return what was deleted, None, or why it was not. Raises: PylogError."""
        tree = self._tree()
        removed: dict[Pattern, Sequence[Entry]] = {}

        def kept(pattern: Pattern, known: AclNode) -> Entries:
            wanted = [each for each in filters if each.selects_pattern(pattern)]
            removed[pattern] = [e for e in known.entries if any(each.selects_entry(e) for each in wanted)]
            return known.entries.difference(removed[pattern])

        changes: dict[Pattern, Wanted] = {}
        async for some in in_steps(list((await acl_nodes.read_all(tree)).items()), DELETED_AT_ONCE):
            for pattern, node in some:
                if kept(pattern, node) != node.entries:
                    changes[pattern] = partial(kept, pattern)
        failed = await acl_nodes.change(tree, changes)
        await self._know(context, "deleted", changes.keys() - failed.keys())
        return {Acl(pattern, entry): failed.get(pattern) for pattern in changes for entry in sorted(removed[pattern])}

    async def _know(self, context: Work, done: str, patterns: Collection[Pattern]) -> None:
        if self._changes is None or not patterns:
            return
        by, some = str(context.origin.context.principal), [*patterns][:NAMED_MAX]
        at = [f"{path_of(each):.100}" for each in some]
        logger.info("ACLs of %d patterns %s by=%.100r from=%s at=%s", len(patterns), done, by, context.client_host, at)
        await self._changes.know(self._tree(), patterns)


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
        said = f"the ACLs at {path_of(pattern):.100} cannot be read: delete them first, or correct the node"
        raise KafkaError(ErrorCode.INVALID_REQUEST, said)
    return known.entries | new


def _named(pattern: Pattern) -> Response:
    return {"resource_type": pattern.resource, "resource_name": pattern.name, "pattern_type": pattern.kind}


def _row(entry: Entry) -> Response:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


def _match(acl: Acl, error: PylogError | None) -> Response:
    return {**_outcome(error), **_named(acl.pattern), **_row(acl.entry)}


def _outcome(error: PylogError | None) -> Response:
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": code_of(error), "error_message": message_of(error)}
