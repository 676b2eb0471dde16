"""BrokerConnection: one broker, asked in the newest version of each API that both sides know."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from logstore.errors import PylogError
from replication.errors import ErrorCode, KafkaError
from replication.network.client import Connection, connect
from replication.protocol.apis import SERVED, ApiKey, Versions

# Far above any answer that was asked for, and below what the first bytes of other protocols read as.
ANSWER_BYTES_MAX = 512 * 1024 * 1024


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

    def __init__(self, host: str, port: int, client_id: str, *, timeout_ms: int) -> None:
        self.address = f"{host}:{port}"
        self._where = host, port
        self._client_id = client_id
        self._timeout_s = timeout_ms / 1000
        self._connection: Connection | None = None
        self._opening: Connection | None = None  # its versions are not known yet
        self._connecting = asyncio.Lock()
        self._versions: Mapping[int, Versions] = {}
        self._waiting = 0  # calls
        self._heard = 0.0  # when the last answer came, or the first of the waiting calls left

    async def call(
        self, key: ApiKey, request: Any, *, timeout_ms: int | None = None, version_max: int | None = None
    ) -> Answer:
        """Send one request and return its answer. Requests leave, and are answered, in the order of the calls.

        `timeout_ms` bounds the answer (by default that of the connection); `version_max` the version.

        Raises: OSError (no connection, or it was lost), TimeoutError, ProtocolError (not a Kafka broker),
        UnsupportedVersionError.
        """
        connection = await self.connected()
        version = self.version(key, version_max)
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        answer = connection.send(key, version, self._client_id, request)
        return Answer(version, await self._in_time(connection, answer, key, timeout_s))

    async def tell(self, key: ApiKey, request: Any) -> None:
        """Send one request that brokers do not answer. Raises: as `call`."""
        connection = await self.connected()
        connection.tell(key, self.version(key), self._client_id, request)

    async def connected(self) -> Connection:
        """The open connection. Raises: as `call`."""
        if self._connection is None or self._connection.is_over:
            async with self._connecting:
                if self._connection is None or self._connection.is_over:
                    self._connection = await self._open()
        return self._connection

    def version(self, key: ApiKey, version_max: int | None = None) -> int:
        """The version that a request of this kind is sent in. Raises: UnsupportedVersionError."""
        ours, theirs = SERVED[key], self._versions.get(key)
        last = ours.last if version_max is None else min(ours.last, version_max)
        if theirs is None:
            raise UnsupportedVersionError(
                f"{self.address} does not serve {key.name}: the broker is too old for it"
            )
        if min(last, theirs.last) < max(ours.first, theirs.first):
            raise UnsupportedVersionError(
                f"{self.address} speaks {key.name} in versions {theirs.first} to {theirs.last}, and pylog in "
                f"{ours.first} to {last}: brokers of Kafka 1.0 or later are needed"
            )
        return min(last, theirs.last)

    def close(self) -> None:
        """End the connection and every call that waits on it."""
        for connection in (self._connection, self._opening):
            if connection is not None:
                connection.end(ConnectionAbortedError(f"the connection to {self.address} was closed"))

    async def _open(self) -> Connection:
        connection = await connect(*self._where, timeout_s=self._timeout_s, answer_bytes_max=ANSWER_BYTES_MAX)
        self._opening = connection
        # Version 0: every broker answers it, whatever it knows.
        asked = connection.send(ApiKey.API_VERSIONS, 0, self._client_id, {})
        try:
            answer = await self._in_time(connection, asked, ApiKey.API_VERSIONS, self._timeout_s)
        except asyncio.CancelledError:  # nobody else knows of it
            connection.end(ConnectionAbortedError("nobody waits for it any more"))
            raise
        if answer.error_code.value:
            connection.end(ConnectionAbortedError("its versions are not known"))
            raise KafkaError(ErrorCode(answer.error_code.value), f"{self.address} does not tell its versions")
        self._versions = {row.api_key: Versions(row.min_version, row.max_version) for row in answer.api_keys}
        return connection

    @property
    def silent_s(self) -> float:
        """For how long calls have waited here without any answer."""
        return asyncio.get_running_loop().time() - self._heard if self._waiting else 0.0

    async def _in_time(
        self, connection: Connection, answer: asyncio.Future[Any], key: ApiKey, timeout_s: float
    ) -> Any:
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
