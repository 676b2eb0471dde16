"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

The settings of a topic or a group can be changed, and those of brokers that act live: of one, or (with an empty name)
of all. A group need not be there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, fields
from typing import Any, TypeAlias

from logstore.config import INT32_MAX, Listed, LogConfig, format_value, own_name
from logstore.errors import PylogError
from logstore.store.description import check_topic_name
from replication.broker.feature_level import FeatureLevel
from replication.config.broker import BrokerConfig
from replication.config.group import SETTINGS_OF_GROUPS, GroupConfigs, broker_setting
from replication.config.live import DEFAULT, LIVE, OF_CLUSTER, OF_GROUP, Given, LiveSettings, NotLiveError, Source
from replication.coordination import nodes, topics
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.model.features import SHARE_GROUPS
from replication.model.metadata import Metadata
from replication.network.steps import in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32  # resource types
TYPES_FROM = 1  # ListConfigResources: it asks for types, and tells them
APPEND = 2
SETTINGS_MAX = 1000  # in one change of a topic; far more than there are
ALTERED_AT_ONCE = 10  # topics in one step: each change is checked as a whole
SETTINGS = {f.metadata["key"]: f for f in fields(LogConfig)}
SETTINGS_OF: Mapping[int, Mapping[str, Field[Any]]] = {TOPIC: SETTINGS, GROUP: SETTINGS_OF_GROUPS}
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST, PASSWORD = 1, 2, 3, 5, 6, 7, 9  # config types

# Returns the settings of a resource after a change, from those before.
Wanted: TypeAlias = Callable[[requests.AlterConfigsResource, Mapping[str, str]], dict[str, str]]


class ConfigHandlers:
    """`tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(
        self,
        live: LiveSettings,
        groups: GroupConfigs,
        metadata: Metadata,
        level: FeatureLevel,
        tree: Callable[[], Tree],
    ) -> None:
        self._live = live
        self._config = live.config
        self._groups = groups
        self._metadata = metadata
        self._level = level
        self._tree = tree

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe,
            ApiKey.ALTER_CONFIGS: self.alter,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.alter_incrementally,
            ApiKey.LIST_CONFIG_RESOURCES: self.resources,
        }

    def resources(self, context: Work, body: requests.ListConfigResourcesRequest) -> Response:
        """ListConfigResources: of groups, those that were given settings; client metrics have none here."""
        known = self._metadata.brokers()
        names: Mapping[int, Callable[[], Iterable[str]]] = {
            TOPIC: self._metadata.topics,
            BROKER: lambda: map(str, known),
            BROKER_LOGGER: lambda: map(str, known),
            CLIENT_METRICS: tuple,
            GROUP: self._groups.names,
        }
        wanted = (
            dict.fromkeys(body.resource_types or names) if context.version >= TYPES_FROM else {CLIENT_METRICS: None}
        )
        if not wanted.keys() <= names.keys():
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": ()}
        rows = [{"resource_name": name, "resource_type": kind} for kind in wanted for name in names[kind]()]
        return {"error_code": ErrorCode.NONE, "config_resources": rows}

    async def describe(self, context: Work, body: requests.DescribeConfigsRequest) -> Response:
        wanted: dict[tuple[int, str], requests.DescribeConfigsResource] = {}
        overrides: dict[str, Mapping[str, str]] = {}
        failed: dict[str, PylogError] = {}
        given = self._live.given
        async for chunk in in_steps(body.resources):
            wanted.update(((each.resource_type, each.resource_name), each) for each in chunk)
            known = [name for name in _topics(chunk) if self._metadata.topic(name) is not None]
            try:
                overrides.update(await topics.read_configs(self._tree(), known) if known else {})
            except PylogError as error:
                failed.update(dict.fromkeys(known, error))
        if any(kind == BROKER for kind, _ in wanted):
            with suppress(KafkaError):  # without a session: the last known values
                given = await self._given()

        def row(resource: requests.DescribeConfigsResource) -> dict[str, Any]:
            try:
                if resource.resource_type == TOPIC and resource.resource_name in failed:
                    return _answer(resource, failed[resource.resource_name]) | {"configs": ()}
                found = self._settings(resource.resource_type, resource.resource_name, overrides, given)
            except PylogError as error:
                return _answer(resource, error) | {"configs": ()}
            keys = resource.configuration_keys
            chosen = [row for row in found if not keys or row["name"] in map(own_name, keys)]
            if not body.include_synonyms:
                chosen = [row | {"synonyms": ()} for row in chosen]
            if not body.include_documentation:
                chosen = [row | {"documentation": None} for row in chosen]
            return _answer(resource, None) | {"configs": chosen}

        return {"results": Rows(len(wanted), map(row, wanted.values()))}

    async def _given(self) -> Given:
        tree, names = self._tree(), (str(self._config.broker_id), "")
        return Given(*[await read_given(tree, name) for name in names])

    def _settings(
        self, kind: int, name: str, overrides: Mapping[str, Mapping[str, str]], given: Given
    ) -> list[dict[str, Any]]:
        if kind == TOPIC:
            if name not in overrides:
                check_topic_name(name)
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
            return topic_settings(self._live, overrides[name])
        if kind == GROUP and name:
            return group_settings(self._live, self._groups, name)
        if kind == BROKER and name == str(self._config.broker_id):
            return [_row(f, self._live.sources(f, given)) for f in fields(BrokerConfig)]
        if kind == BROKER and not name:
            return [_row(LIVE[key], [Source(key, given.cluster[key], OF_CLUSTER)]) for key in given.cluster]
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"resource {kind} {name!r}: a topic, a group, this broker, {self._config.broker_id}, or the default of all "
            "brokers",
        )

    def _node_of(self, kind: int, name: str) -> str:
        """The node with the settings of this topic, group or broker, or of all brokers."""
        if kind == TOPIC:
            if self._metadata.topic(name) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
            return nodes.topic_config_path(name)
        if kind == GROUP and name:
            self._level.need(SHARE_GROUPS)
            return nodes.group_config_path(name)
        if kind == BROKER and (not name or name in map(str, self._metadata.brokers())):
            return nodes.broker_config_path(name)
        said = f"resource {kind} {name!r}: a topic, a group, a live broker, or all brokers"
        raise KafkaError(ErrorCode.INVALID_REQUEST, said)

    def _check(self, kind: int, name: str, new: Mapping[str, str]) -> None:
        if kind == TOPIC:
            self._config.log_config(new).check()
            return
        if kind == GROUP:
            self._groups.check(new)
            return
        try:
            self._live.check(Given(new, self._live.given.cluster) if name else Given({}, new))
        except NotLiveError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    async def alter(self, context: Work, body: requests.AlterConfigsRequest) -> Response:
        def wanted(resource: requests.AlterConfigsResource, known: Mapping[str, str]) -> dict[str, str]:
            return {own_name(row.name): _check_given(row) for row in resource.configs}

        return await self._alter(body, wanted)

    async def alter_incrementally(self, context: Work, body: requests.IncrementalAlterConfigsRequest) -> Response:
        def wanted(resource: requests.AlterConfigsResource, known: Mapping[str, str]) -> dict[str, str]:
            found = dict(known)
            kind = resource.resource_type
            settings = SETTINGS_OF.get(kind, LIVE)
            config: object = self._groups.default if kind == GROUP else self._config
            if kind == TOPIC:
                config = self._config.log_config(known)
            for row in resource.configs:
                name = own_name(row.name)
                setting = settings.get(name)
                _apply(found, name, row, setting, None if setting is None else getattr(config, setting.name))
            return found

        return await self._alter(body, wanted)

    async def _alter(
        self, body: requests.AlterConfigsRequest | requests.IncrementalAlterConfigsRequest, wanted: Wanted
    ) -> Response:
        resources: dict[tuple[int, str], list[requests.AlterConfigsResource]] = {}
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

    async def _alter_one(self, resource: requests.AlterConfigsResource, wanted: Wanted, *, validate_only: bool) -> None:
        kind, name = resource.resource_type, resource.resource_name
        path = self._node_of(kind, name)
        if len({own_name(row.name) for row in resource.configs}) < len(resource.configs):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name!r}: a setting is given twice")
        if len(resource.configs) > SETTINGS_MAX:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name!r}: nothing has so many settings")
        tree = self._tree()

        def change(known: Mapping[str, str]) -> dict[str, str]:
            new = wanted(resource, known)
            self._check(kind, name, new)
            return new

        if validate_only:
            change(nodes.settings_at(path, await tree.get(path)))
        else:
            await topics.change_config(tree, path, change)
            if kind == GROUP:  # so that this broker shows it from now on
                self._groups.change(name, nodes.settings_at(path, await tree.get(path)))


async def read_given(tree: Tree, broker: str) -> dict[str, str]:
    path = nodes.broker_config_path(broker)
    found = nodes.settings_at(path, await tree.get(path))
    return {key: value for key, value in found.items() if key in LIVE}


def _topics(resources: Iterable[requests.DescribeConfigsResource]) -> Iterable[str]:
    return (each.resource_name for each in resources if each.resource_type == TOPIC)


def topic_settings(live: LiveSettings, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return every setting of a topic, as DescribeConfigs and CreateTopics show it."""
    config = live.config.log_config(overrides)
    return [_row(f, live.sources_of_topic(f, overrides, config)) for f in fields(LogConfig)]


def group_settings(live: LiveSettings, groups: GroupConfigs, name: str) -> list[dict[str, Any]]:
    """Return every setting of a group, whether or not there is such a group."""
    config, given = groups.of(name), groups.given(name)

    def sources(each: Field[Any]) -> list[Source]:
        key, broker = each.metadata["key"], broker_setting(each)
        own = [Source(key, format_value(getattr(config, each.name)), OF_GROUP)] if key in given else []
        return own + ([Source(key, format_value(each.default), DEFAULT)] if broker is None else live.sources(broker))

    return [_row(each, sources(each)) for each in SETTINGS_OF_GROUPS.values()]


def _row(setting: Field[Any], sources: Sequence[Source]) -> dict[str, Any]:
    key, counts = setting.metadata["key"], sources[0]
    is_secret = setting.metadata.get("is_sensitive", False)
    return {
        "name": key,
        "value": None if is_secret else counts.value,
        "read_only": all(key not in settings for settings in (LIVE, *SETTINGS_OF.values())),
        "config_source": counts.place,
        "is_default": counts.place == DEFAULT,
        "is_sensitive": is_secret,
        "synonyms": [
            {"name": each.key, "value": None if is_secret else each.value, "source": each.place} for each in sources
        ],
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
            return PASSWORD if setting.metadata.get("is_sensitive") else STRING


def _apply(
    found: dict[str, str], name: str, row: requests.AlterableConfig, setting: Field[Any] | None, value: object
) -> None:
    match row.config_operation:
        case 0:  # SET
            found[name] = _check_given(row)
        case 1:  # DELETE
            found.pop(name, None)
        case 2 | 3:  # APPEND, SUBTRACT
            if setting is None or not isinstance(setting.default, frozenset):
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{row.name} is no list")
            values = Listed(_check_given(row).replace(" ", "").split(","))
            known = found.get(name, format_value(value)).replace(" ", "").split(",")
            old = [part for part in known if part and part not in values]
            new = values.order if row.config_operation == APPEND else ()
            if "" in new and len(old) + len(new) > 1:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{row.name}: an empty entry between two commas")
            found[name] = ",".join([*old, *new])
        case _:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no operation {row.config_operation}")


def _check_given(row: requests.AlterableConfig) -> str:
    """Return the value. Raises: KafkaError: it is null."""
    if row.value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{row.name}: a value is needed, and null is none")
    return row.value


def _answer(
    resource: requests.DescribeConfigsResource | requests.AlterConfigsResource, error: PylogError | None
) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE if error is None else code_of(error),
        "error_message": None if error is None else message_of(error),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
