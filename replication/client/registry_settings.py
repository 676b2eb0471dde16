"""Settings of a schema registry with a REST API, by the names of Confluent's clients. No file is read here."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from logstore.errors import InvalidConfigError, did_you_mean
from replication.client.security import security_of
from replication.network.security import Security

PREFIX = "schema.registry."
URL = f"{PREFIX}url"
USER_INFO, _SOURCE = "basic.auth.user.info", "basic.auth.credentials.source"
_TLS = (
    "ca.location",
    "certificate.location",
    "endpoint.identification.algorithm",
    "key.location",
    "key.password",
    "keystore.location",
    "keystore.type",
    "truststore.location",
    "truststore.type",
)
# Each begins with the prefix; Confluent's clients know two of them without it, too.
NAMES = frozenset({URL, *(f"{PREFIX}{name}" for name in (USER_INFO, _SOURCE, *(f"ssl.{name}" for name in _TLS)))})
SETTINGS = NAMES | {USER_INFO, _SOURCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """A registry: addresses without passwords, and the header that says who we are ("": none).

    `tls`: of https; None: no address has it. `settings`: the names and values that it was made from, with passwords.
    """

    urls: tuple[str, ...]
    authorization: str = field(default="", repr=False)
    tls: Security | None = None
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def registry_of(given: Mapping[str, str]) -> RegistrySettings:
    """Parse the settings of a registry. Raises: InvalidConfigError."""
    for name in sorted(given.keys() - SETTINGS):
        raise InvalidConfigError(f"{name}: no setting of a registry{did_you_mean(name, SETTINGS)}", option=name)
    named = {name if name.startswith(PREFIX) else f"{PREFIX}{name}": value for name, value in given.items()}
    urls, credentials = [], ""
    for text in named.get(URL, "").split(","):
        url = urlsplit(text.strip())
        if url.scheme not in ("http", "https") or not url.hostname:
            raise InvalidConfigError(f"{URL}: each address begins with http:// or https://", option=URL)
        if url.username is not None:
            credentials = f"{unquote(url.username)}:{unquote(url.password or '')}"
        urls.append(url._replace(netloc=url.netloc.rpartition("@")[2]).geturl().rstrip("/"))
    user_info = named.get(f"{PREFIX}{USER_INFO}")
    source = named.get(f"{PREFIX}{_SOURCE}", "URL" if user_info is None else "USER_INFO").upper()
    if source not in ("USER_INFO", "URL"):
        raise InvalidConfigError(f"{_SOURCE}={source}: USER_INFO or URL", option=_SOURCE)
    if source == "USER_INFO":
        credentials = user_info or ""
        if ":" not in credentials:
            raise InvalidConfigError(f"{USER_INFO}: user and password with a colon between them", option=USER_INFO)
    authorization = f"Basic {base64.b64encode(credentials.encode()).decode()}" if credentials else ""
    return RegistrySettings(
        urls=tuple(urls), authorization=authorization, tls=_tls(named, urls), settings=tuple(sorted(named.items()))
    )


def _tls(named: Mapping[str, str], urls: Sequence[str]) -> Security | None:
    of_tls = {name.removeprefix(PREFIX): value for name, value in named.items() if name.startswith(f"{PREFIX}ssl.")}
    if not any(url.startswith("https:") for url in urls):
        for name in sorted(of_tls):
            raise InvalidConfigError(f"{PREFIX}{name}: it needs an address that begins with https://", option=name)
        return None
    return security_of({"security.protocol": "SSL", **of_tls}, PREFIX)
