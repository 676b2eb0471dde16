"""Hosts as ACLs know them: addresses, however they are written, and networks."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_KEPT = 10_000
_MAPPED_BITS = 96  # before the IPv4 address in an IPv6 one


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
    """Return the network of ADDRESS/BITS, whose address may be any in it; None: it is none.

    One of IPv4 addresses in IPv6 ones is that of the former, as in `host_of`.
    """
    address, slash, bits = text.partition("/")
    if not slash or not bits.isdecimal():
        return None
    try:
        found = ipaddress.ip_network(f"{address}/{bits}", strict=False)
    except ValueError:
        return None
    mapped = found.network_address.ipv4_mapped if isinstance(found, ipaddress.IPv6Network) else None
    if mapped is None or found.prefixlen < _MAPPED_BITS:
        return found
    return ipaddress.IPv4Network((mapped, found.prefixlen - _MAPPED_BITS))


@lru_cache(maxsize=_KEPT)
def is_in(host: str, network: str) -> bool:
    """Is a host of `host_of` in this network? None is in a text that is no network."""
    found = network_of(network)
    try:
        return found is not None and ipaddress.ip_address(host) in found
    except ValueError:
        return False
