"""Keys of an issuer of tokens (JWKS), out of a file or from a URL, and read again.

Reading and fetching are done beside the event loop. Keys that cannot be read leave the former ones in use.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from logstore.errors import InvalidConfigError
from replication.security.tokens import keys_of

logger = logging.getLogger(__name__)

KEY = "sasl.oauthbearer.jwks.endpoint.url"
BYTES_MAX = 1024 * 1024
FETCH_S = 10.0
RETRY_S = 10.0
FILE_LOOK_S = 5.0


class Jwks:
    """`keys` are those that were read last. Raises: InvalidConfigError: this is no address of keys."""

    def __init__(self, url: str, refresh_ms: int) -> None:
        parts = urlsplit(url)
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme not in ("file", "https") and not (parts.scheme == "http" and is_local):
            raise InvalidConfigError(f"{KEY}={url!r}: file:///PATH or https://HOST/PATH", key=KEY)
        self._url = url
        self._file = Path(parts.path) if parts.scheme == "file" else None
        self._refresh_s = FILE_LOOK_S if self._file is not None else refresh_ms / 1000
        self.keys: Any = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Read the keys, and go on to. Raises: InvalidConfigError: they cannot be read now."""
        try:
            self.keys = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            raise InvalidConfigError(f"{KEY}={self._url}: {_why(error)}", key=KEY) from None
        self._task = asyncio.get_running_loop().create_task(self._go_on())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            while True:
                try:
                    self.keys = await asyncio.to_thread(self._read)
                    break
                except (OSError, ValueError) as error:
                    logger.warning("%s=%s: the former keys stay in use: %s", KEY, self._url, _why(error))
                    await asyncio.sleep(RETRY_S)

    def _read(self) -> Any:
        if self._file is not None:
            return keys_of(self._file.read_text(encoding="utf-8"))
        with urllib.request.urlopen(self._url, timeout=FETCH_S) as answer:
            data = answer.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise ValueError(f"more than {BYTES_MAX} bytes")
        return keys_of(data.decode())


def _why(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
