"""Hosts as ACLs know them: addresses, however they are written, and networks."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_KEPT = 10_000


@lru_cache(maxsize=_KEPT)
def host_of(text: str) -> str:
    """Return an address in one form of several, an IPv4 address in an IPv6 one as the former; any other text as is."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


@lru_cache(maxsize=_KEPT)
def network_of(text: str) -> Network | None:
    """Return the network of ADDRESS/BITS, whose address may be any in it; None: it is none."""
    address, slash, bits = text.partition("/")
    if not slash or not bits.isdecimal():
        return None
    try:
        return ipaddress.ip_network(f"{address}/{bits}", strict=False)
    except ValueError:
        return None


@lru_cache(maxsize=_KEPT)
def is_in(host: str, network: str) -> bool:
    """Is a host of `host_of` in this network? None is in a text that is no network."""
    found = network_of(network)
    try:
        return found is not None and ipaddress.ip_address(host) in found
    except ValueError:
        return False
