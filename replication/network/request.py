"""RequestContext: what a handler knows besides the request's body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from replication.protocol.apis import Request


class RequestContext:
    """Who asks, and how. `network.work` has the one of a request that came over a connection."""

    def __init__(self, request: Request, client_host: str, connection_id: int) -> None:
        self.key = request.key
        self.version = request.version
        self.correlation_id = request.correlation_id
        self.client_id = request.client_id
        self.client_host = client_host
        self.connection_id = connection_id

    def park(self) -> None:
        """The request only waits from now on: make room for others. More than once does no harm."""

    def unsent_bytes(self) -> int:
        """How much memory answers take that clients do not read as fast as they ask, all of them together."""
        return 0


# (RequestContext, body) -> response, now or later
Handler: TypeAlias = Callable[[Any, Any], Awaitable[Any] | Any]
