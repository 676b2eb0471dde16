"""Client: requests to one broker, in the newest version that both sides know, over a channel opened when it is needed.

Laws: requests leave in the order of the calls, and are answered in it. A call whose time is over ends the channel, and
all that wait on it; the next call opens another one. Nothing is repeated here. A broker of the same cluster is taken to
know the versions that are known here; any other one is asked. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from logstore.env import SYSTEM
from replication.errors import ErrorCode, KafkaError, ProtocolError, UnsupportedVersionError
from replication.network.authentication import (
    SILENT_S,
    AuthenticationError,
    anonymous_refusal,
    authenticate,
    prove,
    refusal,
    tls_context,
    too_old,
)
from replication.network.channel import FRAME_BYTES_MAX, Channel, connect
from replication.network.security import PLAINTEXT, Security
from replication.protocol.apis import SERVED, ApiKey, Versions

# Far above any answer that was asked for, and below what the first bytes of other protocols read as.
ANSWER_BYTES_MAX = 512 * 1024 * 1024
RENEWED_AFTER = (0.85, 0.95)  # of the time for which an authentication holds; not all clients at once
_OURS: Mapping[int, Versions] = {key: key.versions for key in ApiKey}
# The newest versions that requests of ours are made for; brokers of the release before serve them, too.
_NEWEST = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 16,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.TXN_OFFSET_COMMIT: 5,
}


def spoken(key: ApiKey) -> Versions:
    """Return the versions in which requests of ours are sent."""
    served = SERVED.get(key, key.versions)
    return served._replace(last=min(served.last, _NEWEST.get(key, served.last)))


class Client:
    """One broker as others see it. `close` ends it for good; it may be called again.

    `asks_versions`: the broker may be of any make and age, and of another cluster. `security`: asked per channel.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        timeout_ms: int,
        security: Security | Callable[[], Security] = PLAINTEXT,
        asks_versions: bool = False,
    ) -> None:
        self.address = f"{host}:{port}"
        self._where = host, port
        self._client_id = client_id
        self._timeout_s = timeout_ms / 1000
        self._secure = security if callable(security) else lambda: security
        self._security = self._secure()  # of the present channel
        self._asks_versions = asks_versions
        self._versions = _OURS
        self._has_answered = not asks_versions  # anything but its versions
        self._renew_at = float("inf")  # its authentication is about to end then
        self._channel: Channel | None = None  # usable if it is not over, and nobody arrives
        self._opening = asyncio.Lock()
        self._arriving = 0  # calls that wait for the channel, in their order
        self._is_closed = False

    async def call(
        self,
        key: ApiKey,
        request: Any,
        *,
        timeout_ms: int | None = None,
        version_min: int = 0,
        version_max: int | None = None,
    ) -> Any:
        """Send one request and return its answer.

        `timeout_ms` bounds the answer (by default that of the client); the others bound the version.

        Raises: OSError (no channel, or it was lost), TimeoutError, ProtocolError (not a Kafka broker),
        UnsupportedVersionError, AuthenticationError; InvalidConfigError: a file of certificates cannot be used.
        """
        opened = self._channel
        if opened is None or opened.is_over or self._arriving or asyncio.get_running_loop().time() >= self._renew_at:
            opened = await self._opened()
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        version = self.version(key, version_min, version_max)
        try:
            found = await self._in_time(opened, key, version, request, timeout_s)
        except ConnectionResetError:  # the other side closed it
            if not self._has_answered and (refused := await anonymous_refusal(*self._where, self._security)):
                raise refused from None
            raise
        self._has_answered = True
        return found

    async def tell(self, key: ApiKey, request: Any) -> None:
        """Send one request that brokers do not answer. Raises: as `call`."""
        opened = await self._opened()
        opened.tell(key, self.version(key), self._client_id, request)

    def version(self, key: ApiKey, version_min: int = 0, version_max: int | None = None) -> int:
        """The version that a request of this kind is sent in. Raises: UnsupportedVersionError."""
        ours, theirs = spoken(key), self._versions.get(key)
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

    @property
    def silent_s(self) -> float:
        """For how long calls have waited here without any answer."""
        return self._channel.silent_s if self._channel is not None else 0.0

    def close(self) -> None:
        """End the channel and every call that waits on it, for good."""
        self._is_closed = True
        self.reset()

    def reset(self) -> None:
        """End the channel and every call that waits on it; the next call opens another one."""
        if self._channel is not None:
            self._channel.end(self._aborted())

    def _aborted(self) -> ConnectionAbortedError:
        return ConnectionAbortedError(f"the connection to {self.address} was closed")

    # ------------------------------------------------------------------ opening

    async def _opened(self) -> Channel:
        """The channel: another one after it was lost, or when its authentication is about to end.

        Callers get it in the order in which they came. The answers of the old one come before anything is sent on the
        new one.

        Raises: as `call`.
        """
        self._arriving += 1
        try:
            async with self._opening:
                known, now = self._channel, asyncio.get_running_loop().time()
                if known is not None and not known.is_over and now >= self._renew_at:
                    await known.drain()
                    self._channel = known = None
                if known is None or known.is_over:
                    try:
                        known = await self._open()
                    except BaseException:
                        self.reset()
                        raise
                return known
        finally:
            self._arriving -= 1

    async def _open(self) -> Channel:
        self._security = self._secure()
        bytes_max = ANSWER_BYTES_MAX if self._asks_versions else FRAME_BYTES_MAX
        tls = tls_context(self._security)
        try:
            if self._is_closed:
                raise self._aborted()
            opened = await connect(*self._where, timeout_s=self._timeout_s, answer_bytes_max=bytes_max, tls=tls)
            self._channel = opened
            if self._is_closed:  # meanwhile
                raise self._aborted()
            if self._asks_versions:
                self._versions = await self._ask_versions(opened)
        except (OSError, ProtocolError) as error:
            is_explained = self._asks_versions and not self._is_closed
            if is_explained and (refused := await refusal(*self._where, self._security, error)) is not None:
                raise refused from error
            raise
        try:
            holds_s = await self._say_who(opened)
        except AuthenticationError as error:
            if self._asks_versions:
                raise
            raise ConnectionRefusedError(str(error)) from error  # by a broker, which may be told better soon
        share = SYSTEM.random.uniform(*RENEWED_AFTER)
        self._renew_at = asyncio.get_running_loop().time() + share * holds_s if holds_s else float("inf")
        return opened

    async def _say_who(self, opened: Channel) -> float | None:
        """Log in, or prove to be a broker; return for how many seconds that holds. Raises: as `authenticate`."""
        security, ask = self._security, partial(self._ask, opened)
        if security.mechanism:
            return await authenticate(security, self.address, self._versions, ask)
        if security.secret:
            # A broker of the release before knows no login, and perhaps no newer version of this.
            told = await self._in_time(opened, ApiKey.API_VERSIONS, 0, {}, self._timeout_s)
            if ApiKey.SASL_HANDSHAKE in {row.api_key for row in told.api_keys}:
                await prove(security, self.address, ask)
            elif security.must_prove:
                raise AuthenticationError(f"{self.address} does not prove that it is a broker of this cluster")
        return None

    async def _ask_versions(self, opened: Channel) -> Mapping[int, Versions]:
        """Return the versions that the broker knows. Raises: UnsupportedVersionError: it is too old to tell them."""
        # Version 0: every broker answers it, whatever it knows. A Kafka 0.9 says nothing, and keeps the connection.
        asked = asyncio.ensure_future(self._in_time(opened, ApiKey.API_VERSIONS, 0, {}, self._timeout_s))
        try:
            await asyncio.wait([asked], timeout=SILENT_S)
            if not asked.done() and (refused := await too_old(*self._where, self._security)) and not asked.done():
                raise refused
            answer = await asked
        finally:
            asked.cancel()
        if answer.error_code.value:
            raise KafkaError(ErrorCode(answer.error_code.value), f"{self.address} does not tell its versions")
        return {row.api_key: Versions(row.min_version, row.max_version) for row in answer.api_keys}

    async def _ask(self, opened: Channel, key: ApiKey, request: Any) -> Any:
        return await self._in_time(opened, key, self.version(key), request, self._timeout_s)

    async def _in_time(self, opened: Channel, key: ApiKey, version: int, request: Any, timeout_s: float) -> Any:
        answer = opened.send(key, version, self._client_id, request)
        late = asyncio.get_running_loop().call_later(timeout_s, self._late, opened, key, timeout_s)
        try:
            return await answer
        finally:
            late.cancel()

    def _late(self, opened: Channel, key: ApiKey, timeout_s: float) -> None:
        opened.end(TimeoutError(f"{self.address} did not answer {key.name} within {timeout_s:g} s"))


class Clients:
    """The clients of several brokers, by their addresses, each made when it is needed first."""

    def __init__(
        self,
        client_id: str,
        *,
        timeout_ms: int,
        security: Security | Callable[[], Security] = PLAINTEXT,
        asks_versions: bool = False,
    ) -> None:
        self.make = partial(
            Client, client_id=client_id, timeout_ms=timeout_ms, security=security, asks_versions=asks_versions
        )
        self._clients: dict[tuple[str, int], Client] = {}

    def at(self, host: str, port: int) -> Client:
        """The one client of this address, which is not connected before its first call."""
        client = self._clients.get((host, port))
        if client is None:
            client = self._clients[host, port] = self.make(host, port)
        return client

    async def call(self, host: str, port: int, key: ApiKey, request: Any) -> Any:
        """Ask the broker at this address. Raises: as `Client.call`."""
        return await self.at(host, port).call(key, request)

    def keep(self, addresses: set[tuple[str, int]]) -> None:
        """Close the clients of others than these."""
        for address in self._clients.keys() - addresses:
            self._clients.pop(address).close()

    def close(self) -> None:
        self.keep(set())
