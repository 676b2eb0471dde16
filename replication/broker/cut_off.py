"""A broker of a LocalCluster that cannot reach some others: what tests call a network partition.

Lines of stdin name the addresses, `unreachable=HOST PORT,HOST PORT`; each is repeated on stdout when it counts. Only
connections that this process opens are concerned: the other side has lines of its own. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import defaultdict
from collections.abc import Callable
from typing import IO, Any


class CutOff(asyncio.Protocol):
    """Connections of this loop: those to addresses that cannot be reached end, and new ones are never made."""

    def __init__(self, loop: asyncio.AbstractEventLoop, say: Callable[[str], None]) -> None:
        self._loop, self._say = loop, say
        self._unreachable: frozenset[tuple[str, int]] = frozenset()
        self._opened: dict[tuple[str, int], list[asyncio.BaseTransport]] = defaultdict(list)
        self._connect = loop.create_connection
        self._line, self._changed = b"", asyncio.Event()
        loop.create_connection = self._create_connection  # type: ignore[method-assign, assignment]

    async def listen(self, stdin: IO[str]) -> None:
        """Obey the lines of this file until it ends; of one that is no pipe, nothing."""
        if stat.S_ISFIFO(os.fstat(stdin.fileno()).st_mode):
            await self._loop.connect_read_pipe(lambda: self, stdin)

    def data_received(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._obey(line.decode())

    def _obey(self, line: str) -> None:
        places = (place.split() for place in line.partition("=")[2].split(",") if place)
        self._unreachable = frozenset((host, int(port)) for host, port in places)
        self._changed.set()
        self._changed = asyncio.Event()
        for address in self._unreachable:
            for transport in self._opened.pop(address, ()):
                transport.abort()  # type: ignore[attr-defined]
        self._say(line)

    async def _create_connection(self, factory: Any, host: str, port: int, **how: Any) -> Any:
        address = host, port
        while address in self._unreachable:
            await self._changed.wait()  # whoever connects has a timeout
        made = await self._connect(factory, host, port, **how)
        self._opened[address] = [each for each in self._opened[address] if not each.is_closing()] + [made[0]]
        if address in self._unreachable:  # since then
            made[0].abort()
        return made
