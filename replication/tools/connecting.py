"""Clients by the properties of Kafka's clients, for tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logstore.errors import InvalidConfigError
from replication.client.kafka_client import KafkaClient
from replication.client.registry_settings import SETTINGS as REGISTRY_SETTINGS
from replication.client.security import SETTINGS, hint_of, security_of

__all__ = ["KafkaClient", "client_of"]

_TIMEOUT, _TIMEOUT_MS = "default.api.timeout.ms", "60000"


def client_of(
    bootstrap: str, properties: Mapping[str, str], *, client_id: str, more: tuple[str, ...] = ()
) -> KafkaClient:
    """A client with these properties; `more` are the names of those that the caller looks at himself.

    Raises: InvalidConfigError: one of them is not known here, or wrong.
    """
    known = (_TIMEOUT, *more)
    secured = {key: value for key, value in properties.items() if key in SETTINGS}
    registry = {key: value for key, value in properties.items() if key in REGISTRY_SETTINGS}
    for key in properties.keys() - {*known, *secured, *registry}:
        hint = hint_of(key) or f"{', '.join(known)}, those of TLS, SASL and a schema registry can be set"
        raise InvalidConfigError(f"{key}: {hint}")
    if not (timeout := properties.get(_TIMEOUT, _TIMEOUT_MS)).isdecimal():
        raise InvalidConfigError(f"{_TIMEOUT}={timeout} is not a number of milliseconds")
    options: dict[str, Any] = {"timeout_ms": int(timeout), "security": security_of(secured)}
    return KafkaClient(bootstrap, client_id=client_id, schema_registry=registry, **options)
