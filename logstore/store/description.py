"""TopicDescription: one topic, in a directory's catalog or a cluster's tree, and the rules for its name."""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self, SupportsIndex

from logstore.config import LogConfig, canonical_properties
from logstore.errors import InvalidConfigError, InvalidRequestError, InvalidTopicError, StoreError
from logstore.records.times import milliseconds

logger = logging.getLogger(__name__)

TOPIC_NAME_CHARS_MAX = 249
PARTITIONS_MAX = 100_000
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class TopicDescription:
    """One topic. `overrides` are the settings given for it, `config` all of them.

    `replicas`: in a cluster, the brokers of each partition, the preferred one first; none where its node is malformed.
    `topic_id`: "" until the controller of a cluster has set one. `damage`: why the file of a directory cannot be read;
    the topic then has its name and one partition: a loop over all topics and partitions meets the error there, and
    goes on.
    """

    name: str
    topic_id: str
    partitions: int
    overrides: Mapping[str, str]
    replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    damage: StoreError | None = None

    def __repr__(self) -> str:
        more = {"config": dict(self.overrides), "replicas": dict(self.replicas), "damage": self.damage}
        shown = "".join(f", {name}={value!r}" for name, value in more.items() if value)
        return f"TopicDescription({self.name!r}, partitions={self.partitions}{shown})"

    @cached_property
    def config(self) -> LogConfig:
        """All settings. Raises: InvalidConfigError: the overrides were written by hand, and wrongly."""
        return LogConfig.from_properties(self.overrides)

    @classmethod
    def of(cls, name: str, topic_id: str, partitions: int, overrides: Mapping[str, Any]) -> Self:
        """Return the topic with these settings. Raises: InvalidConfigError."""
        return cls(name=name, topic_id=topic_id, partitions=partitions, overrides=canonical_properties(overrides))

    def assigned(self, replicas: Mapping[int, tuple[int, ...]]) -> Self:
        """Return the topic with these replicas of its partitions."""
        return replace(self, partitions=len(replicas), replicas=replicas)

    def to_json(self, **more: Any) -> bytes:
        """The topic as it is stored, with additional fields."""
        body = {
            "version": 1,
            "name": self.name,
            "topic_id": self.topic_id,
            "partitions": self.partitions,
            "config": dict(self.overrides),
        }
        body |= more
        return (json.dumps(body | {"checksum": _checksum(body)}, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes, path: Path) -> Self:
        """Return the topic that `to_json` wrote. Raises: StoreError: it did not write this."""
        try:
            body = json.loads(text)
            checksum = body.pop("checksum", None)  # files of earlier versions have none
            if checksum not in (None, _checksum(body)):
                raise ValueError("its checksum does not fit")
            if body["version"] != 1:
                raise StoreError(
                    f"{path}: format {body['version']} is newer than this version of pylog: upgrade it",
                    path=str(path),
                )
            check_topic_name(body["name"])
            info = cls.of(body["name"], str(body["topic_id"]), check_partitions(body["partitions"]), body["config"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"{path}: not a topic description ({error}); restore it from a backup", path=str(path)
            ) from error
        try:
            info.config.check()
        except InvalidConfigError as error:  # of a version that took it: its records can be used all the same
            logger.warning("path=%s %s", path, error)
        return info


def _checksum(body: Mapping[str, Any]) -> str:
    """CRC-32 of the contents of a description, however they are formatted."""
    return f"{zlib.crc32(json.dumps(body, sort_keys=True).encode()):08x}"


def check_collision(name: str, others: Iterable[str]) -> None:
    """Raise InvalidTopicError if another name differs only in '.' and '_', which are the same in names of metrics."""
    plain = name.replace(".", "_")
    for other in others if "_" in plain else ():
        if other != name and other.replace(".", "_") == plain:
            raise InvalidTopicError(
                f"topic {name!r} collides with {other!r}: names that differ only in '.' and '_' are not allowed"
            )


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless Kafka would take this name."""
    if not isinstance(name, str) or not name:
        raise InvalidTopicError("the topic name is empty")
    if name in (".", ".."):
        raise InvalidTopicError(f"topic name {name!r} is not allowed")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopicError(f"topic name of {len(name)} characters: at most {TOPIC_NAME_CHARS_MAX} are allowed")
    if not TOPIC_NAME.fullmatch(name):
        raise InvalidTopicError(f"topic name {name!r}: only ASCII letters, digits, '.', '_' and '-' are allowed")


def check_partitions(partitions: object) -> int:
    """Return a number of partitions (any whole number: also NumPy's) as an int."""
    count = as_int(partitions, "partitions")
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidRequestError(f"{count} partitions: must be between 1 and {PARTITIONS_MAX:,}")
    return count


def as_int(value: object, name: str) -> int:
    """Return `value` as an int if it is a whole number of any type (NumPy's, too), but not a bool."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return value.__index__()
    raise InvalidRequestError(f"{name}={value!r}: must be a whole number")


def as_ms(value: object, name: str) -> int:
    """Return a time as milliseconds since 1970. Raises: InvalidRequestError: it has no time zone, or is no time."""
    if isinstance(value, datetime):
        return milliseconds(value, name)
    if not isinstance(value, SupportsIndex):
        raise InvalidRequestError(f"{name}={value!r}: must be a whole number of milliseconds, or a datetime")
    return as_int(value, name)


def new_topic_id() -> str:
    """A random UUID as Kafka prints it: 22 characters of URL-safe base64, never starting with '-'."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
