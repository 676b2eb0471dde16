"""What a handler is told besides the request's body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from replication.protocol.apis import Request


class RequestContext:
    """Who asks, and how. Made per request."""

    __slots__ = (
        "_park",
        "client_host",
        "client_id",
        "connection_id",
        "correlation_id",
        "key",
        "unsent_bytes",
        "version",
    )

    def __init__(
        self,
        request: Request,
        client_host: str,
        connection_id: int,
        park: Callable[[], None],
        unsent_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.key = request.key
        self.version = request.version
        self.correlation_id = request.correlation_id
        self.client_id = request.client_id
        self.client_host = client_host
        self.connection_id = connection_id
        self.unsent_bytes = unsent_bytes  # of answers to all clients: how much memory waits for slow readers
        self._park = park

    def park(self) -> None:
        """The request only waits from now on: make room for others. More than once does no harm."""
        self._park()


Handler: TypeAlias = Callable[[RequestContext, Any], Awaitable[Any] | Any]
