"""BrokerConnection: one broker, asked in the newest version of each API that both sides know."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from logstore.env import SYSTEM
from logstore.errors import PylogError
from replication.client.authentication import anonymous_refusal, authenticate, refusal, tls_context
from replication.client.security import PLAINTEXT, Security
from replication.errors import ErrorCode, KafkaError, ProtocolError
from replication.network.client import Connection, connect
from replication.protocol.apis import SERVED, ApiKey, Versions

# Far above any answer that was asked for, and below what the first bytes of other protocols read as.
ANSWER_BYTES_MAX = 512 * 1024 * 1024
SILENT_S = 1.0  # a broker that has not told its versions by then is asked whether it is too old to know them
RENEWED_AFTER = (0.85, 0.95)  # of the time for which an authentication holds; not all clients at once


class UnreachableError(PylogError):
    """No broker answered; the message has every address and what went wrong there."""


class UnsupportedVersionError(PylogError):
    """The broker is older, or newer, than what is spoken here."""


class Answer(NamedTuple):
    """A response, and the version that it came in."""

    version: int
    body: Any


class BrokerConnection:
    """Opens itself at the first call, and again at the next one after it was lost. Belongs to its event loop."""

    def __init__(
        self, host: str, port: int, client_id: str, *, timeout_ms: int, security: Security = PLAINTEXT
    ) -> None:
        self.address = f"{host}:{port}"
        self._where = host, port
        self._client_id = client_id
        self._timeout_s = timeout_ms / 1000
        self._security = security
        self._has_answered = False  # anything but its versions
        self._renew_at = float("inf")  # its authentication is about to end then
        self._connection: Connection | None = None
        self._opening: Connection | None = None  # its versions are not known yet
        self._connecting = asyncio.Lock()
        self._versions: Mapping[int, Versions] = {}
        self._waiting = 0  # calls
        self._heard = 0.0  # when the last answer came, or the first of the waiting calls left

    async def call(
        self,
        key: ApiKey,
        request: Any,
        *,
        timeout_ms: int | None = None,
        version_min: int = 0,
        version_max: int | None = None,
    ) -> Answer:
        """Send one request and return its answer. Requests leave, and are answered, in the order of the calls.

        `timeout_ms` bounds the answer (by default that of the connection); the others bound the version.

        Raises: OSError (no connection, or it was lost), TimeoutError, ProtocolError (not a Kafka broker),
        UnsupportedVersionError, AuthenticationError; InvalidConfigError: a file of certificates cannot be used.
        """
        connection = await self.connected()
        version = self.version(key, version_min, version_max)
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        answer = connection.send(key, version, self._client_id, request)
        try:
            found = Answer(version, await self._in_time(connection, answer, key, timeout_s))
        except ConnectionResetError:  # the other side closed it
            if not self._has_answered and (refused := await anonymous_refusal(*self._where, self._security)):
                raise refused from None
            raise
        self._has_answered = True
        return found

    async def tell(self, key: ApiKey, request: Any) -> None:
        """Send one request that brokers do not answer. Raises: as `call`."""
        connection = await self.connected()
        connection.tell(key, self.version(key), self._client_id, request)

    async def connected(self) -> Connection:
        """The open connection: another one after it was lost, or when its authentication is about to end.

        Callers get it in the order in which they came. The answers of the old one come before anything is sent on the
        new one.

        Raises: as `call`.
        """
        async with self._connecting:
            known, now = self._connection, asyncio.get_running_loop().time()
            if known is not None and not known.is_over and now >= self._renew_at:
                await known.drain()
            if known is None or known.is_over:
                self._connection = known = await self._open()
            return known

    def version(self, key: ApiKey, version_min: int = 0, version_max: int | None = None) -> int:
        """The version that a request of this kind is sent in. Raises: UnsupportedVersionError."""
        ours, theirs = SERVED.get(key, key.versions), self._versions.get(key)
        first = max(ours.first, version_min)
        last = ours.last if version_max is None else min(ours.last, version_max)
        if theirs is None:
            raise UnsupportedVersionError(f"{self.address} does not serve {key.name}: the broker is too old for it")
        if min(last, theirs.last) < max(first, theirs.first):
            raise UnsupportedVersionError(
                f"{self.address} speaks {key.name} in versions {theirs.first} to {theirs.last}, and pylog in "
                f"{first} to {last}: {'newer brokers' if version_min else 'brokers of Kafka 1.0 or later'} are needed"
            )
        return min(last, theirs.last)

    def close(self) -> None:
        """End the connection and every call that waits on it."""
        for connection in (self._connection, self._opening):
            if connection is not None:
                connection.end(ConnectionAbortedError(f"the connection to {self.address} was closed"))

    async def _open(self) -> Connection:
        tls = tls_context(self._security)
        try:
            self._opening = opening = await connect(
                *self._where, timeout_s=self._timeout_s, answer_bytes_max=ANSWER_BYTES_MAX, tls=tls
            )
            answer = await self._ask_versions(opening)
        except (OSError, ProtocolError) as error:
            if (refused := await refusal(*self._where, self._security, error)) is not None:
                raise refused from error
            if isinstance(error, ConnectionResetError) and await self._is_too_old():
                raise self._too_old() from error
            raise
        if answer.error_code.value:
            opening.end(ConnectionAbortedError("its versions are not known"))
            raise KafkaError(ErrorCode(answer.error_code.value), f"{self.address} does not tell its versions")
        self._versions = {row.api_key: Versions(row.min_version, row.max_version) for row in answer.api_keys}
        try:
            holds_s = await authenticate(self._security, self.address, self._versions, self._ask)
        except PylogError:
            opening.end(ConnectionAbortedError("it does not know who we are"))
            raise
        share = SYSTEM.random.uniform(*RENEWED_AFTER)
        self._renew_at = asyncio.get_running_loop().time() + share * holds_s if holds_s else float("inf")
        return opening

    async def _ask_versions(self, opening: Connection) -> Any:
        """Return the versions that the broker knows. Raises: UnsupportedVersionError: it is too old to tell them."""
        # Version 0: every broker answers it, whatever it knows. A Kafka 0.9 says nothing, and keeps the connection.
        asked = asyncio.ensure_future(self._ask(ApiKey.API_VERSIONS, {}, version=0))
        try:
            await asyncio.wait([asked], timeout=SILENT_S)
            if not asked.done() and await self._is_too_old() and not asked.done():
                opening.end(ConnectionAbortedError("it is too old"))
                await asyncio.wait([asked])
                asked.exception()
                raise self._too_old()
            return await asked
        finally:
            asked.cancel()

    async def _is_too_old(self) -> bool:
        """Return whether a broker that did not tell its versions answers the oldest of requests, and not that again.

        The second question tells an old broker from one that was busy, or whose former connection was cut.
        """
        is_heard = False
        try:
            tls = tls_context(self._security)
            asked = await connect(*self._where, timeout_s=self._timeout_s, answer_bytes_max=ANSWER_BYTES_MAX, tls=tls)
            try:
                answer = asked.send(ApiKey.METADATA, 0, self._client_id, {"topics": []})
                await self._in_time(asked, answer, ApiKey.METADATA, self._timeout_s)
                is_heard = True
                answer = asked.send(ApiKey.API_VERSIONS, 0, self._client_id, {})
                await self._in_time(asked, answer, ApiKey.API_VERSIONS, SILENT_S)
            finally:
                asked.end(ConnectionAbortedError("nobody waits for it any more"))
        except (OSError, ProtocolError):
            return is_heard
        return False

    def _too_old(self) -> UnsupportedVersionError:
        return UnsupportedVersionError(
            f"{self.address} is a Kafka before 0.10, which does not tell its versions: brokers of Kafka 1.0 or later "
            "are needed"
        )

    async def _ask(self, key: ApiKey, request: Any, *, version: int | None = None) -> Any:
        """One request on the connection that is being opened; it ends if nobody waits for the answer any more."""
        assert self._opening is not None, "it is being opened"
        opening = self._opening
        version = self.version(key) if version is None else version
        asked = opening.send(key, version, self._client_id, request)
        try:
            return await self._in_time(opening, asked, key, self._timeout_s)
        except asyncio.CancelledError:  # nobody else knows of it
            opening.end(ConnectionAbortedError("nobody waits for it any more"))
            raise

    @property
    def silent_s(self) -> float:
        """For how long calls have waited here without any answer."""
        return asyncio.get_running_loop().time() - self._heard if self._waiting else 0.0

    async def _in_time(self, connection: Connection, answer: asyncio.Future[Any], key: ApiKey, timeout_s: float) -> Any:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            self._heard = loop.time()
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            error = TimeoutError(f"{self.address} did not answer {key.name} within {timeout_s:g} s")
            connection.end(error)
            raise error from None
        finally:
            self._waiting -= 1
            self._heard = loop.time()
