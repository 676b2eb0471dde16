"""Coordinators: the brokers that coordinate groups and transactional ids, asked until one answers for them.

Laws: a request is repeated, at the coordinator of the key by then, when the connection is lost, or while the answer
says that it is no coordinator, or is loading. So a broker may act on it twice. A coordinator that is silent is given up
as soon as the others name another one. Each group has a connection of its own: a join holds up no fetch. Transactional
ids, of which there may be hundreds, share one for each broker. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from logstore.errors import PylogError
from replication.client.attempts import BACKOFF_MIN_S, LOST, Backoff, unless_silent
from replication.errors import ErrorCode, KafkaError, code_in
from replication.network.client import Client, Clients
from replication.protocol.apis import ApiKey

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# Codes of a coordinator after which the same request may succeed later, there or elsewhere.
_ASK_AGAIN = _MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}

Address = tuple[str, int]


class KeyType(enum.IntEnum):
    """The types of coordinator keys, by FindCoordinator's numbers."""

    GROUP = 0
    TRANSACTIONAL_ID = 1


# The markers of a transaction take some milliseconds, and the next one of its id waits for them.
_FIRST_WAIT_S = {KeyType.GROUP: BACKOFF_MIN_S, KeyType.TRANSACTIONAL_ID: 0.002}


class Key(NamedTuple):
    """A group or a transactional id."""

    type: KeyType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', ' ')} {self.name!r}"


def group_key(group: str) -> Key:
    return Key(KeyType.GROUP, group)


def transactional_key(transactional_id: str) -> Key:
    return Key(KeyType.TRANSACTIONAL_ID, transactional_id)


class Coordinators:
    """See the module. `find` sends FindCoordinator to whoever answers; `timeout_s` bounds a call with its attempts."""

    def __init__(
        self,
        find: Callable[[Any, Backoff | None], Awaitable[Any]],
        clients: Clients,
        *,
        timeout_s: float,
        where: str,
    ) -> None:
        self._ask_any = find
        self._timeout_s = timeout_s
        self._where = where
        self._known: dict[Key, Client] = {}
        self._shared = clients  # of transactional ids

    def close(self) -> None:
        """End every connection."""
        for client in self._known.values():
            client.close()
        self._shared.close()

    async def call(
        self, key: Key, api: ApiKey, request: Any, code_of: Callable[[Any], ErrorCode], **bounds: Any
    ) -> Any:
        """Ask the coordinator of this key, again as long as `code_of` the answer allows.

        The whole call takes at most the client's timeout; a `timeout_ms` bounds one answer instead, for requests that
        wait for other members.

        Raises: KafkaError: no coordinator answered in time, or the user may not describe the key; UnreachableError,
        UnsupportedVersionError, ProtocolError.
        """
        backoff = Backoff(self._timeout_s, _FIRST_WAIT_S[key.type])
        answer_by = None if "timeout_ms" in bounds else backoff.deadline
        refused: object
        while True:
            coordinator = await self._coordinator(key, backoff)
            if isinstance(coordinator, ErrorCode):
                refused = coordinator
            else:
                try:
                    async with asyncio.timeout_at(answer_by):
                        answer = await self._ask(coordinator, key, api, request, bounds)
                except LOST as error:
                    refused = error
                else:
                    refused = code_of(answer)
                    if refused not in _ASK_AGAIN:
                        return answer
                is_lost = isinstance(refused, BaseException) or refused in _MOVED
                # A broker says that offsets are being loaded where they have just moved, too.
                may_have_moved = refused is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and api is ApiKey.OFFSET_FETCH
                if is_lost or (may_have_moved and await self._has_moved(key, coordinator)):
                    self._forget(key, coordinator)
            await backoff.wait()
            if backoff.is_over:
                raise backoff.failure(f"{api.name} of {key}", refused, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def shares(self, keys: Collection[Key], backoff: Backoff) -> list[list[Key]]:
        """These transactional ids, those of one broker together; each of which none is known now is alone.

        They are looked up in one request where brokers take several. Raises: as `call`.
        """
        unknown = [key for key in keys if key not in self._known]
        if unknown:
            for key, found in (await self._find(unknown, backoff)).items():
                if isinstance(found, tuple):
                    self._keep(key, found)
        shares: dict[object, list[Key]] = {}
        for key in keys:
            shares.setdefault(self._known.get(key, key), []).append(key)
        return list(shares.values())

    async def _ask(self, coordinator: Client, key: Key, api: ApiKey, request: Any, bounds: Mapping[str, Any]) -> Any:
        has_moved = partial(self._has_moved, key, coordinator)
        return await unless_silent(coordinator, coordinator.call(api, request, **bounds), has_moved)

    async def _has_moved(self, key: Key, coordinator: Client) -> bool:
        try:
            found = (await self._find([key])).get(key)
        except PylogError:
            return False
        return isinstance(found, tuple) and coordinator.address != f"{found[0]}:{found[1]}"

    async def _coordinator(self, key: Key, backoff: Backoff) -> Client | ErrorCode:
        """The connection to the coordinator of the key, or why it is not known now. Raises: KafkaError."""
        if key not in self._known:
            found = (await self._find([key], backoff)).get(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if isinstance(found, ErrorCode):
                return found
            self._keep(key, found)
        return self._known[key]

    def _keep(self, key: Key, address: Address) -> None:
        if key in self._known:  # another call was quicker
            return
        is_shared = key.type is KeyType.TRANSACTIONAL_ID
        self._known[key] = (self._shared.at if is_shared else self._shared.make)(*address)

    async def _find(self, keys: Collection[Key], backoff: Backoff | None = None) -> dict[Key, Address | ErrorCode]:
        """The coordinators of keys of one type, or why one is not known; of the first one alone before Kafka 3.0."""
        first, names = next(iter(keys)), [key.name for key in keys]
        request = {"key": first.name, "key_type": first.type, "coordinator_keys": names}
        answer = await self._ask_any(request, backoff)
        places: dict[Key, Address | ErrorCode] = {}
        for row in getattr(answer, "coordinators", (answer,)):
            key, code = Key(first.type, getattr(row, "key", first.name)), code_in(row)
            if code is not ErrorCode.NONE and not code.is_retriable:
                raise KafkaError(code, f"{key} at {self._where}")
            places[key] = (row.host, row.port) if code is ErrorCode.NONE else code
        return places

    def _forget(self, key: Key, known: Client) -> None:
        if key.type is KeyType.GROUP:
            known.close()
        if self._known.get(key) is known:
            del self._known[key]
