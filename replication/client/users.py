"""Users of a cluster that log in by SCRAM: described, and given and deprived of passwords.

A password is salted and hashed here: brokers never get it. Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from logstore.errors import InvalidRequestError
from replication.client.cluster import Cluster
from replication.errors import error_of
from replication.network.passwords import ITERATIONS, NewPassword
from replication.protocol.apis import ApiKey

__all__ = ["ITERATIONS", "MECHANISMS", "NewPassword", "alter_user", "describe_users"]

MECHANISMS: Mapping[str, int] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NOT_FOUND = 91


async def describe_users(cluster: Cluster, names: Collection[str] = ()) -> dict[str, dict[str, int]]:
    """The iterations of each mechanism by which these users log in, or all. One that has none is left out.

    Raises: KafkaError, UnreachableError, UnsupportedVersionError.
    """
    request = {"users": [{"name": name} for name in names] or None}
    answer = await cluster.call_any(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request)
    if answer.error_code.value:
        raise error_of(answer.error_code.value, answer.error_message or "")
    known = {number: name for name, number in MECHANISMS.items()}
    found = {}
    for row in answer.results:
        if row.error_code.value not in (0, _NOT_FOUND):
            raise error_of(row.error_code.value, row.error_message or row.user)
        if not row.error_code.value:
            found[row.user] = {known.get(each.mechanism, "UNKNOWN"): each.iterations for each in row.credential_infos}
    return found


async def alter_user(
    cluster: Cluster, name: str, given: Mapping[str, NewPassword], deleted: Collection[str] = ()
) -> None:
    """Give a user a password for each of these mechanisms, and take it away for others: all, or nothing.

    Raises: InvalidRequestError: no such mechanism, or a number of iterations that brokers refuse; KafkaError,
    UnreachableError, UnsupportedVersionError.
    """
    for mechanism in (*given, *deleted):
        if mechanism not in MECHANISMS:
            raise InvalidRequestError(f"{mechanism!r} is none of {', '.join(MECHANISMS)}")
    for each in given.values():
        each.check()
    upsertions = []
    for mechanism, new in given.items():
        salt, salted = new.salted(mechanism)
        row = {"name": name, "mechanism": MECHANISMS[mechanism], "iterations": new.iterations}
        upsertions.append(row | {"salt": salt, "salted_password": salted})
    deletions = [{"name": name, "mechanism": MECHANISMS[mechanism]} for mechanism in deleted]
    request = {"deletions": deletions, "upsertions": upsertions}
    for row in (await cluster.call_any(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)).results:
        if row.error_code.value:
            raise error_of(row.error_code.value, row.error_message or row.user)
