"""The listeners of a broker, out of Kafka's settings: `listeners`, `advertised.listeners`, and what they are for.

Every contradiction is refused with one line, before anything listens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logstore.config import settings_from
from logstore.errors import InvalidConfigError, did_you_mean
from replication.config.listener_settings import ListenerSettings
from replication.model.listeners import Endpoint, Listener, SecurityProtocol, parse_address

LISTENERS, ADVERTISED, PROTOCOLS = "listeners", "advertised.listeners", "listener.security.protocol.map"
INTER_BROKER_NAME, INTER_BROKER_PROTOCOL = "inter.broker.listener.name", "security.inter.broker.protocol"
# Kafka's default: a listener may be named by its protocol.
PROTOCOL_MAP = ",".join(f"{each.name}:{each.name}" for each in SecurityProtocol)
PREFIX = "listener.name."


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where a broker listens, and what it tells others of that. `inter_broker`: the name of the brokers' own one."""

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]  # of those of `bound` that others are told of
    inter_broker: str

    def told(self, ports: Mapping[str, int]) -> tuple[Listener, ...]:
        """Return what others are told when these listeners, by name, have taken these ports; the brokers' own first."""
        found = [
            each._replace(endpoint=each.endpoint._replace(port=each.endpoint.port or ports[each.name]))
            for each in self.advertised
        ]
        return tuple(sorted(found, key=lambda each: each.name != self.inter_broker))

    @property
    def is_plain(self) -> bool:
        """Is there but the one listener that releases before feature level 4 have?"""
        return [(each.name, each.protocol) for each in self.bound] == [("PLAINTEXT", SecurityProtocol.PLAINTEXT)]


def listeners_of(listeners: str, advertised: str, protocols: str, name: str, protocol: str) -> Listeners:
    """Return the listeners that these settings describe, in the order of the constants above; "" is not given.

    Raises: InvalidConfigError.
    """
    known = _protocols(protocols)
    bound = _parsed(LISTENERS, listeners, known)
    told = _parsed(ADVERTISED, advertised, known) if advertised else bound
    _check_bound(bound, listeners)
    _check_advertised(bound, told, advertised or listeners, is_own=bool(advertised))
    return Listeners(bound, told, _inter_broker(told, known, name, protocol))


def split_overrides(properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Take those of single listeners, `listener.name.NAME.KEY`, out of these settings; return both."""
    others: dict[str, Any] = {}
    found: dict[str, dict[str, str]] = {}
    for key, value in properties.items():
        name, mark, own = key.removeprefix(PREFIX).partition(".")
        if key.startswith(PREFIX) and mark:
            found.setdefault(name, {})[own] = value
        else:
            others[key] = value
    return others, found


def overridden(settings: ListenerSettings, name: str, given: Mapping[str, str]) -> ListenerSettings:
    """Return the settings with those that one listener was given. Raises: InvalidConfigError."""
    try:
        return settings_from(settings, given, "setting of a listener")
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{PREFIX}{name}: {error}", key=f"{PREFIX}{name}") from None


def _protocols(text: str) -> Mapping[str, SecurityProtocol]:
    found: dict[str, SecurityProtocol] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, mark, protocol = part.partition(":")
        if not mark or not re.fullmatch(r"\w+", name) or protocol not in SecurityProtocol.__members__:
            raise InvalidConfigError(
                f"{PROTOCOLS}: {part!r} is not NAME:PROTOCOL, with one of {', '.join(SecurityProtocol.__members__)}",
                key=PROTOCOLS,
                value=text,
            )
        if name in found:
            raise InvalidConfigError(f"{PROTOCOLS}: {name} is given twice", key=PROTOCOLS, value=text)
        found[name] = SecurityProtocol[protocol]
    return found


def _parsed(key: str, text: str, protocols: Mapping[str, SecurityProtocol]) -> tuple[Listener, ...]:
    made: list[Listener] = []
    for part in (each.strip() for each in text.split(",")):
        found = parse_address(part)
        if found is None:
            raise InvalidConfigError(
                f"{key}={text!r}: addresses like PLAINTEXT://127.0.0.1:9092 or PLAINTEXT://[::1]:9092, separated by "
                "commas",
                key=key,
                value=text,
            )
        name, endpoint = found
        if name not in protocols:
            raise InvalidConfigError(
                f"{key}: no security protocol defined for listener {name}: add {name}:PROTOCOL to "
                f"{PROTOCOLS}{did_you_mean(name, protocols)}",
                key=key,
                value=text,
            )
        made.append(Listener(name, protocols[name], endpoint))
    if (twice := _twice([each.name for each in made])) is not None:
        raise InvalidConfigError(f"{key}={text!r}: each listener must have a different name: {twice}", key=key)
    return tuple(made)


def _check_bound(bound: Sequence[Listener], text: str) -> None:
    hosts: dict[int, list[Endpoint]] = {}
    for each in bound:
        others = hosts.setdefault(each.endpoint.port, []) if each.endpoint.port else []
        is_taken = any(each.endpoint.is_everywhere or one.is_everywhere or one == each.endpoint for one in others)
        if is_taken:
            raise InvalidConfigError(
                f"{LISTENERS}={text!r}: each listener must have a different port, and {each.endpoint.port} is given "
                "twice",
                key=LISTENERS,
            )
        others.append(each.endpoint)


def _check_advertised(bound: Sequence[Listener], told: Sequence[Listener], text: str, *, is_own: bool) -> None:
    key = ADVERTISED if is_own else LISTENERS
    names = {each.name for each in bound}
    for each in told:
        if each.name not in names:
            raise InvalidConfigError(
                f"{ADVERTISED}: {each.name} is none of the listeners: {', '.join(sorted(names))}", key=ADVERTISED
            )
        if each.endpoint.is_everywhere:
            raise InvalidConfigError(
                f"{key}={text!r}: no client can connect to {each.endpoint.host}, which is every address of a machine; "
                f"set {ADVERTISED}={each.name}://HOST:PORT, which reaches this broker",
                key=key,
            )
        if is_own and each.endpoint.port == 0:
            raise InvalidConfigError(
                f"{key}={text!r}: no client can connect to port 0; without this line, clients use the port that "
                f"`{LISTENERS}` takes",
                key=key,
            )


def _inter_broker(told: Sequence[Listener], known: Mapping[str, SecurityProtocol], name: str, protocol: str) -> str:
    """Return the name of the listener through which brokers meet."""
    if name and protocol:
        raise InvalidConfigError(
            f"only one of {INTER_BROKER_NAME} and {INTER_BROKER_PROTOCOL} may be set: leave out the second",
            key=INTER_BROKER_NAME,
        )
    names = [each.name for each in told]
    if name and name not in known:
        raise InvalidConfigError(
            f"{INTER_BROKER_NAME}={name}: no security protocol defined for it: add {name}:PROTOCOL to {PROTOCOLS}",
            key=INTER_BROKER_NAME,
        )
    if not name and not protocol and len(names) == 1:
        return names[0]  # Kafka takes PLAINTEXT, and refuses to start without one
    wanted = name or protocol or SecurityProtocol.PLAINTEXT.name
    if wanted not in names:
        key = INTER_BROKER_NAME if name or not protocol else INTER_BROKER_PROTOCOL
        raise InvalidConfigError(
            f"{key}={wanted}: brokers meet through a listener of their own that others are told of, one of "
            f"{', '.join(names)}",
            key=key,
        )
    return wanted


def _twice(values: Sequence[str]) -> str | None:
    return next((value for at, value in enumerate(values) if value in values[:at]), None)
