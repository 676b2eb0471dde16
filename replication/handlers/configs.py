"""What admin clients ask of settings: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

A topic's settings can be changed; those of a broker stand in its server.properties, and are only shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any

from logstore.config import INT32_MAX, LogConfig, format_value
from logstore.errors import PylogError
from replication.config import BrokerConfig
from replication.coordination import topics
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError, code_of
from replication.handlers.context import Handler, RequestContext
from replication.metadata import Metadata
from replication.protocol.apis import ApiKey

TOPIC, BROKER = 2, 4  # resource types
OF_TOPIC, OF_FILE, DEFAULT = 1, 4, 5  # config sources: given for the topic, server.properties, built in
APPEND = 2
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7  # config types


class ConfigHandlers:
    """See the module. `tree` returns the session's tree; raises KafkaError while there is none."""

    def __init__(self, config: BrokerConfig, metadata: Metadata, tree: Callable[[], Tree]) -> None:
        self._config = config
        self._metadata = metadata
        self._tree = tree

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """What is answered here."""
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe,
            ApiKey.ALTER_CONFIGS: self.alter,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.alter_incrementally,
        }

    async def describe(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """The settings of topics and of this broker, and where they come from."""
        rows = []
        for resource in body.resources:
            try:
                found = await self._settings(resource.resource_type, resource.resource_name)
            except PylogError as error:
                rows.append(_answer(resource, error) | {"configs": ()})
                continue
            keys = resource.configuration_keys
            chosen = [row for row in found if not keys or row["name"] in keys]
            if not body.include_synonyms:
                chosen = [row | {"synonyms": ()} for row in chosen]
            rows.append(_answer(resource, None) | {"configs": chosen})
        return {"results": rows}

    async def _settings(self, kind: int, name: str) -> list[dict[str, Any]]:
        if kind == TOPIC:
            self._require(name)
            overrides = (await topics.read_configs(self._tree(), [name]))[name]
            return topic_settings(self._config, overrides)
        if kind == BROKER and name == str(self._config.broker_id):
            given = self._config.given
            return [
                _row(
                    f,
                    getattr(self._config, f.name),
                    OF_FILE if f.metadata["key"] in given else DEFAULT,
                    read_only=True,
                )
                for f in fields(BrokerConfig)
            ]
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"resource {kind} {name!r}: a topic, or this broker, {self._config.broker_id}",
        )

    def _require(self, topic: str) -> None:
        if self._metadata.topic(topic) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {topic!r}")

    async def alter(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Give topics these settings and no others."""

        def wanted(resource: Any, known: Mapping[str, str]) -> dict[str, str]:
            return {row.name: row.value for row in resource.configs if row.value is not None}

        return await self._alter(body, wanted)

    async def alter_incrementally(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Change some settings of topics."""

        def wanted(resource: Any, known: Mapping[str, str]) -> dict[str, str]:
            found = dict(known)
            for row in resource.configs:
                _apply(found, row, self._config.log_config(known))
            return found

        return await self._alter(body, wanted)

    async def _alter(
        self, body: Any, wanted: Callable[[Any, Mapping[str, str]], dict[str, str]]
    ) -> Mapping[str, Any]:
        rows = []
        for resource in body.resources:
            try:
                await self._alter_one(resource, wanted, validate_only=body.validate_only)
                rows.append(_answer(resource, None))
            except PylogError as error:
                rows.append(_answer(resource, error))
        return {"responses": rows}

    async def _alter_one(
        self,
        resource: Any,
        wanted: Callable[[Any, Mapping[str, str]], dict[str, str]],
        *,
        validate_only: bool,
    ) -> None:
        name = resource.resource_name
        if resource.resource_type != TOPIC:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "only topics: a broker's settings stand in its server.properties"
            )
        self._require(name)
        tree = self._tree()

        def change(known: Mapping[str, str]) -> dict[str, str]:
            new = wanted(resource, known)
            self._config.log_config(new).check()
            return new

        if validate_only:
            change((await topics.read_configs(tree, [name]))[name])
        else:
            await topics.change_config(tree, name, change)


def topic_settings(broker: BrokerConfig, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every setting of a topic, as DescribeConfigs and CreateTopics tell it."""
    config = broker.log_config(overrides)
    of_file = {f.metadata.get("topic") for f in fields(broker) if f.metadata["key"] in broker.given}
    rows = []
    for f in fields(LogConfig):
        key = f.metadata["key"]
        source = OF_TOPIC if key in overrides else OF_FILE if key in of_file else DEFAULT
        rows.append(_row(f, getattr(config, f.name), source, read_only=False))
    return rows


def _row(setting: Field[Any], value: Any, source: int, *, read_only: bool) -> dict[str, Any]:
    key, text = setting.metadata["key"], format_value(value)
    return {
        "name": key,
        "value": text,
        "read_only": read_only,
        "config_source": source,
        "is_default": source == DEFAULT,
        "is_sensitive": False,
        "synonyms": ({"name": key, "value": text, "source": source},),
        "config_type": _type(setting),
        "documentation": setting.metadata["help"],
    }


def _type(setting: Field[Any]) -> int:
    match setting.default:
        case bool():
            return BOOLEAN
        case int():
            return INT if setting.metadata.get("maximum", 0) == INT32_MAX else LONG
        case float():
            return DOUBLE
        case frozenset():
            return LIST
        case _:
            return STRING


def _apply(found: dict[str, str], row: Any, config: LogConfig) -> None:
    """One operation on the settings of a topic. Raises: KafkaError."""
    match row.config_operation:
        case 0:  # SET
            found[row.name] = row.value or ""
        case 1:  # DELETE
            found.pop(row.name, None)
        case 2 | 3:  # APPEND, SUBTRACT
            setting = next((f for f in fields(LogConfig) if f.metadata["key"] == row.name), None)
            if setting is None or not isinstance(setting.default, frozenset):
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{row.name} is no list")
            values = {part.strip() for part in (row.value or "").split(",") if part.strip()}
            known = found.get(row.name, format_value(getattr(config, setting.name)))
            old = {part for part in known.split(",") if part}
            found[row.name] = ",".join(
                sorted(old | values if row.config_operation == APPEND else old - values)
            )
        case _:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no operation {row.config_operation}")


def _answer(resource: Any, error: PylogError | None) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE if error is None else code_of(error),
        "error_message": None if error is None else str(error),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
