"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

Settings of a topic can be changed; those of a broker stand in its server.properties, and are only shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

from logstore.config import INT32_MAX, LogConfig, format_value
from logstore.errors import PylogError
from replication.config.broker import BrokerConfig
from replication.coordination import topics
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError, code_of
from replication.model.metadata import Metadata
from replication.network.steps import in_steps
from replication.network.work import Handler, Work
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows

TOPIC, BROKER = 2, 4  # resource types
OF_TOPIC, OF_FILE, DEFAULT = 1, 4, 5  # config sources: given for the topic, server.properties, built in
APPEND = 2
SETTINGS_MAX = 1000  # in one change of a topic; far more than there are
ALTERED_AT_ONCE = 10  # topics in one step: each change is checked as a whole
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7  # config types


class ConfigHandlers:
    """`tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(self, config: BrokerConfig, metadata: Metadata, tree: Callable[[], Tree]) -> None:
        self._config = config
        self._metadata = metadata
        self._tree = tree

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe,
            ApiKey.ALTER_CONFIGS: self.alter,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.alter_incrementally,
        }

    async def describe(self, context: Work, body: Any) -> Mapping[str, Any]:
        wanted: dict[tuple[int, str], Any] = {}
        overrides: dict[str, Mapping[str, str]] = {}
        failed: dict[str, PylogError] = {}
        async for chunk in in_steps(body.resources):
            wanted.update(((each.resource_type, each.resource_name), each) for each in chunk)
            known = [name for name in _topics(chunk) if self._metadata.topic(name) is not None]
            try:
                overrides.update(await topics.read_configs(self._tree(), known) if known else {})
            except PylogError as error:
                failed.update(dict.fromkeys(known, error))

        def row(resource: Any) -> dict[str, Any]:
            try:
                if resource.resource_type == TOPIC and resource.resource_name in failed:
                    return _answer(resource, failed[resource.resource_name]) | {"configs": ()}
                found = self._settings(resource.resource_type, resource.resource_name, overrides)
            except PylogError as error:
                return _answer(resource, error) | {"configs": ()}
            keys = resource.configuration_keys
            chosen = [row for row in found if not keys or row["name"] in keys]
            if not body.include_synonyms:
                chosen = [row | {"synonyms": ()} for row in chosen]
            if not getattr(body, "include_documentation", False):
                chosen = [row | {"documentation": None} for row in chosen]
            return _answer(resource, None) | {"configs": chosen}

        return {"results": Rows(len(wanted), map(row, wanted.values()))}

    def _settings(self, kind: int, name: str, overrides: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
        if kind == TOPIC:
            if name not in overrides:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
            return topic_settings(self._config, overrides[name])
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

    async def alter(self, context: Work, body: Any) -> Mapping[str, Any]:
        def wanted(resource: Any, known: Mapping[str, str]) -> dict[str, str]:
            return {row.name: row.value for row in resource.configs if row.value is not None}

        return await self._alter(body, wanted)

    async def alter_incrementally(self, context: Work, body: Any) -> Mapping[str, Any]:
        def wanted(resource: Any, known: Mapping[str, str]) -> dict[str, str]:
            found, config = dict(known), self._config.log_config(known)
            for row in resource.configs:
                _apply(found, row, config)
            return found

        return await self._alter(body, wanted)

    async def _alter(self, body: Any, wanted: Callable[[Any, Mapping[str, str]], dict[str, str]]) -> Mapping[str, Any]:
        resources: dict[tuple[int, str], list[Any]] = {}
        async for chunk in in_steps(body.resources):
            for each in chunk:
                resources.setdefault((each.resource_type, each.resource_name), []).append(each)
        rows = []
        async for some in in_steps(resources.values(), ALTERED_AT_ONCE):
            for same in some:
                try:
                    if len(same) > 1:
                        raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice")
                    await self._alter_one(same[0], wanted, validate_only=body.validate_only)
                    rows.append(_answer(same[0], None))
                except PylogError as error:
                    rows.append(_answer(same[0], error))
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
        if len({row.name for row in resource.configs}) < len(resource.configs):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name!r}: a setting is given twice")
        if len(resource.configs) > SETTINGS_MAX:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"topic {name!r}: no topic has so many settings")
        tree = self._tree()

        def change(known: Mapping[str, str]) -> dict[str, str]:
            new = wanted(resource, known)
            self._config.log_config(new).check()
            return new

        if validate_only:
            change((await topics.read_configs(tree, [name]))[name])
        else:
            await topics.change_config(tree, name, change)


def _topics(resources: Iterable[Any]) -> Iterable[str]:
    return (each.resource_name for each in resources if each.resource_type == TOPIC)


def topic_settings(broker: BrokerConfig, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return every setting of a topic, as DescribeConfigs and CreateTopics show it."""
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
            found[row.name] = ",".join(sorted(old | values if row.config_operation == APPEND else old - values))
        case _:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no operation {row.config_operation}")


def _answer(resource: Any, error: PylogError | None) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE if error is None else code_of(error),
        "error_message": None if error is None else str(error),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
