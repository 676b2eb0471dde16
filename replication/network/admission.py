"""SocketServerSettings: what clients may cost a broker, within what the system lets it have."""

from __future__ import annotations

import resource
import socket
import sys
from dataclasses import dataclass

from logstore.env import OPEN_FILES_MAX

# File descriptors that clients do not get: for logs, for locks, for connections to other brokers.
RESERVED_DESCRIPTORS = OPEN_FILES_MAX + 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketServerSettings:
    """See the module. Names and defaults as in BrokerConfig."""

    socket_request_max_bytes: int = 104_857_600
    queued_max_requests: int = 500
    queued_max_request_bytes: int = 536_870_912
    connections_max_idle_ms: int = 600_000
    max_connections: int = 2_147_483_647
    socket_send_buffer_bytes: int = -1
    socket_receive_buffer_bytes: int = -1

    def places(self) -> int:
        """How many connections there may be, so that logs always find a file descriptor.

        The process' own limit of descriptors is raised to what the system allows it first.
        """
        descriptors = _descriptors()
        return min(self.max_connections, max(descriptors - RESERVED_DESCRIPTORS, descriptors // 4))

    def size_buffers(self, connection: socket.socket) -> None:
        """Have the system keep so much for it; -1: as much as the system likes."""
        sizes = {
            socket.SO_SNDBUF: self.socket_send_buffer_bytes,
            socket.SO_RCVBUF: self.socket_receive_buffer_bytes,
        }
        for option, size in sizes.items():
            if size != -1:
                connection.setsockopt(socket.SOL_SOCKET, option, size)


def _descriptors() -> int:
    """How many files and sockets this process may have open, as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
