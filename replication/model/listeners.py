"""Listeners: where a broker is met, by name, and how: the values that settings, registrations and answers share."""

from __future__ import annotations

import enum
import ipaddress
import re
from typing import NamedTuple

PORT_MAX = 65_535

_ADDRESS = re.compile(
    r"(?P<name>\w+)://(?:(?P<host>[^\[\]:,/\s]+)|\[(?P<ipv6>[0-9a-fA-F:.]+(?:%\w+)?)\]):(?P<port>[0-9]{1,5})"
)


class SecurityProtocol(enum.IntEnum):
    """How a listener is met; the number is Kafka's code of it."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Endpoint(NamedTuple):
    """The address of a listener or a broker. Its text is HOST:PORT, with an IPv6 host in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_everywhere(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:  # a name
            return False

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Listener(NamedTuple):
    """One listener of a broker, and where it is: its own address, or the one that others are told."""

    name: str
    protocol: SecurityProtocol
    endpoint: Endpoint

    def __str__(self) -> str:
        return f"{self.name}://{self.endpoint}"


def parse_address(text: str) -> tuple[str, Endpoint] | None:
    """Return name and address of NAME://HOST:PORT; None for any other text."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > PORT_MAX:
        return None
    return found["name"], Endpoint(found["host"] or found["ipv6"], int(found["port"]))


PLAINTEXT = SecurityProtocol.PLAINTEXT.name  # the name of the listener that there is by default
