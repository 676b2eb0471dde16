"""DescribeUserScramCredentials and AlterUserScramCredentials: the passwords of SCRAM, kept as Kafka keeps them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

from logstore.errors import PylogError
from replication.broker.users import Users
from replication.coordination import nodes, topics
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.network.refusals import describe
from replication.network.steps import in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol.apis import ApiKey
from replication.protocol.requests import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from replication.security.scram import (
    ITERATIONS_MIN,
    NEW_ITERATIONS_MAX,
    ScramError,
    credential_of,
    format_credential,
    hash_of,
    parse_credential,
)

MECHANISMS: Mapping[int, str] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
SALT_BYTES_MAX = 1024

Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion


class UserHandlers:
    """`tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(self, users: Users, tree: Callable[[], Tree]) -> None:
        self._users = users
        self._tree = tree

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter,
        }

    async def describe(self, context: Work, body: DescribeUserScramCredentialsRequest) -> Response:
        """Return mechanisms and iterations of these users, or of all; nothing else of a credential is told."""
        tree = self._tree()
        named = Counter(row.name for row in body.users or ())
        if named:
            names = list(named)
        else:
            names = sorted(nodes.user_of_config(name) for name in await tree.children(nodes.USER_CONFIGS))
        rows = []
        async for some in in_steps(names):
            paths = {name: nodes.user_config_path(name) for name in some if name}
            found = dict(zip(paths, await tree.read_batch(list(paths.values())), strict=True))
            for name in some:
                known = _known(nodes.settings_at(paths[name], found[name])) if name else []
                rows += _described(name, known, named[name])
        return {"error_code": ErrorCode.NONE, "error_message": None, "results": rows}

    async def alter(self, context: Work, body: AlterUserScramCredentialsRequest) -> Response:
        """Set and delete credentials: all that is asked of a user, or none of it."""
        changes: dict[str, list[Change]] = {}
        every: tuple[Change, ...] = (*body.deletions, *body.upsertions)
        for change in every:
            changes.setdefault(change.name, []).append(change)
        rows = []
        for name, asked in changes.items():
            try:
                if context.refused:
                    said = describe(context, next(iter(context.refused)))
                    raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, said)
                await self._alter(name, asked)
                rows.append(_row(name, ErrorCode.NONE, None))
            except PylogError as error:
                rows.append(_row(name, code_of(error), message_of(error)))
        return {"results": rows}

    async def _alter(self, name: str, asked: list[Change]) -> None:
        """Raises: KafkaError, CoordinationError."""
        new = {MECHANISMS[each.mechanism]: _credential(each) for each in asked if _is_good(each)}
        if len(new) < len(asked):
            raise KafkaError(
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            )

        def change(known: Mapping[str, str]) -> Mapping[str, str]:
            if any(text is None and mechanism not in known for mechanism, text in new.items()):
                raise KafkaError(
                    ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
                )
            merged = {**known, **new}
            return {key: text for key, text in merged.items() if text is not None}

        tree, path = self._tree(), nodes.user_config_path(name)
        await topics.change_config(tree, path, change)
        self._users.change(name, nodes.settings_at(path, await tree.get(path)))  # this broker knows it from now on


def _is_good(change: Change) -> bool:
    """Raises: KafkaError, in the words of Kafka: a change that makes no credential."""
    if not change.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in MECHANISMS:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramCredentialUpsertion):
        size = hashlib.new(hash_of(MECHANISMS[change.mechanism])).digest_size
        wrong = {
            "Too few iterations": change.iterations < ITERATIONS_MIN,
            "Too many iterations": change.iterations > NEW_ITERATIONS_MAX,
            f"The salt must have 1 to {SALT_BYTES_MAX} bytes": not 0 < len(change.salt) <= SALT_BYTES_MAX,
            f"The salted password must have {size} bytes": len(change.salted_password) != size,
        }
        for said, is_wrong in wrong.items():
            if is_wrong:
                raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, said)
    return True


def _credential(change: Change) -> str | None:
    if not isinstance(change, ScramCredentialUpsertion):
        return None
    made = credential_of(
        MECHANISMS[change.mechanism], bytes(change.salted_password), bytes(change.salt), change.iterations
    )
    return format_credential(made)


def _known(settings: Mapping[str, str]) -> list[dict[str, int]]:
    """Return what is told of a user's credentials. One that nobody can use is none."""
    found = []
    for number, mechanism in MECHANISMS.items():
        if mechanism in settings:
            try:
                credential = parse_credential(mechanism, settings[mechanism])
            except ScramError:
                continue
            found.append({"mechanism": number, "iterations": credential.iterations})
    return found


def _described(name: str, known: list[dict[str, int]], times: int) -> list[dict[str, object]]:
    """Return the row of a user that was asked for so many times; 0: all users were, and some have no credential."""
    if times > 1:
        code, said = ErrorCode.DUPLICATE_RESOURCE, "Cannot describe SCRAM credentials for the same user twice"
    elif not known:
        code, said = ErrorCode.RESOURCE_NOT_FOUND, "Attempt to describe a user credential that does not exist"
    else:
        return [_row(name, ErrorCode.NONE, None) | {"credential_infos": known}]
    return [_row(name, code, f"{said}: {name}") | {"credential_infos": ()}] if times else []


def _row(name: str, code: ErrorCode, said: str | None) -> dict[str, object]:
    return {"user": name, "error_code": code, "error_message": said}
