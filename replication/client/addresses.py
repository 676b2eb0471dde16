"""The addresses of a cluster, out of the text that names them."""

from __future__ import annotations

import re

from logstore.errors import InvalidConfigError

_ADDRESS = re.compile(r"(?:[A-Za-z_]+://)?(\[[0-9A-Fa-f:]+\]|[^/,:\s]+):(\d{1,5})")


def addresses_of(bootstrap: str, option: str = "bootstrap.servers") -> list[tuple[str, int]]:
    """The addresses of `HOST:PORT,HOST:PORT…`, which `option` names. Raises: InvalidConfigError."""
    found = []
    for part in filter(None, (part.strip() for part in bootstrap.split(","))):
        match = _ADDRESS.fullmatch(part)
        if match is None or not 0 < int(match[2]) < 65536:
            raise InvalidConfigError(
                f"{option}={bootstrap!r}: {part!r} is no HOST:PORT (several: HOST:PORT,HOST:PORT)",
                option=option,
            )
        found.append((match[1].strip("[]"), int(match[2])))
    if not found:
        raise InvalidConfigError(f"{option} is empty: HOST:PORT, or several with commas", option=option)
    return found
