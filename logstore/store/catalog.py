"""Catalog: the topics of a stand-alone directory, one small JSON file each.

::

    topics/orders.json                 {"version": 1, "name": …, "topic_id": …, "partitions": 6, "config": {…}}
    topics/.deleted/<topic id>.json    the same plus "deleted_at_ms": a deletion that is not finished yet
    topics/.lock                       held while topics change, so that two processes do not

Every file is replaced whole, so a reader needs no lock. A deletion is decided by its `.deleted` file: whoever opens the
store next finishes it, however the first one ended.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, SupportsIndex

from logstore.checkpoint import write_atomic
from logstore.config import LogConfig, canonical_properties
from logstore.env import SETTLED_NS, Env, FileStat, locked
from logstore.errors import (
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    StoreError,
    TopicExistsError,
    UnknownTopicError,
)
from logstore.log.segments.directory import topic_id_of
from logstore.log.segments.names import PARTITION

logger = logging.getLogger(__name__)

TOPIC_NAME_CHARS_MAX = 249
KRAFT_METADATA = "__cluster_metadata"
PARTITIONS_MAX = 100_000
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic: `overrides` are the settings given for it, `config` all of them.

    `damage`: why its description cannot be read. It then has its name and one partition: a loop over all topics and
    partitions meets the error there, and goes on.
    """

    name: str
    topic_id: str
    partitions: int
    overrides: Mapping[str, str]
    config: LogConfig = field(repr=False)
    damage: StoreError | None = None

    @classmethod
    def of(cls, name: str, topic_id: str, partitions: int, overrides: Mapping[str, Any]) -> Self:
        """Return the topic with these settings. Raises: InvalidConfigError."""
        return cls(
            name=name,
            topic_id=topic_id,
            partitions=partitions,
            overrides=canonical_properties(overrides),
            config=LogConfig.from_properties(overrides),
        )

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


class Catalog:
    """The topics of one directory. Reads take no lock; a change holds `lock()`."""

    def __init__(self, directory: Path, env: Env) -> None:
        self._directory = directory
        self._deleted = directory / ".deleted"
        self._env = env
        self._cache: dict[str, tuple[FileStat, TopicInfo]] = {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the catalog against other threads and processes."""
        self._env.files.mkdir(self._deleted)
        with locked(self._env.files, self._directory / ".lock"):
            yield

    def names(self) -> list[str]:
        return sorted(name.removesuffix(".json") for name in self._json_files(self._directory))

    def topics(self) -> list[TopicInfo]:
        """Every topic, by name; one with a damaged description has `damage`."""
        return [info for info in map(self._listed, self.names()) if info]

    def _listed(self, name: str) -> TopicInfo | None:
        try:
            return self.find(name)
        except StoreError as error:
            return TopicInfo(name=name, topic_id="", partitions=1, overrides={}, config=LogConfig(), damage=error)

    def find(self, name: str) -> TopicInfo | None:
        """Return the topic as it is now, or None. One stat when it has not changed."""
        path = self._directory / f"{name}.json"
        stat = self._env.files.stat(path)
        if stat is None:
            self._cache.pop(name, None)
            return None
        known = self._cache.get(name)
        if known is not None and known[0] == stat:
            return known[1]
        try:
            info = TopicInfo.from_json(self._env.files.read_all(path), path)
        except FileNotFoundError:
            return None
        if info.name != name:
            raise StoreError(
                f"{path}: the description of another topic, {info.name!r}; restore it from a backup",
                path=str(path),
            )
        # Two changes in one moment may share time stamp, size and inode: what is that new is read again.
        if self._env.clock.now_ms() * 1_000_000 - stat.mtime_ns >= SETTLED_NS:
            self._cache[name] = stat, info
        return info

    def topic(self, name: str) -> TopicInfo:
        """Return the topic. Raises: UnknownTopicError, with the names that look alike."""
        check_topic_name(name)
        info = self.find(name)
        if info is None:
            raise UnknownTopicError(name, self.names(), str(self._directory.parent))
        return info

    def check_new(self, name: str) -> None:
        """Raise unless a topic of this name may be created (Kafka's rules)."""
        check_topic_name(name)
        if self.find(name):
            raise TopicExistsError(name)
        check_collision(name, self.names())

    def put(self, info: TopicInfo) -> None:
        """Write the topic; on return it is durable."""
        write_atomic(self._env, self._directory / f"{info.name}.json", info.to_json())

    def mark_deleted(self, info: TopicInfo, now_ms: int) -> None:
        """Decide the deletion: from here on the topic is gone, also after a crash."""
        write_atomic(self._env, self._deleted / f"{info.topic_id}.json", info.to_json(deleted_at_ms=now_ms))
        self.finish_mark(info)

    def finish_mark(self, info: TopicInfo) -> None:
        """Remove the description of a deleted topic, if a crash left it."""
        current = self.find(info.name)
        if current and current.topic_id == info.topic_id:
            self._env.files.unlink(self._directory / f"{info.name}.json")
            self._env.files.fsync(self._directory)

    def deletions(self) -> list[tuple[TopicInfo, int]]:
        """(topic, deleted_at_ms) of every deletion whose files may still be there."""
        found = []
        for name in self._json_files(self._deleted):
            path = self._deleted / name
            try:
                text = self._env.files.read_all(path)
                found.append((TopicInfo.from_json(text, path), int(json.loads(text)["deleted_at_ms"])))
            except FileNotFoundError:
                continue  # it was finished since the names were listed
            except (StoreError, ValueError, LookupError, TypeError) as error:
                logger.warning("path=%s ignored, the files of that topic stay: %s", path, error)
        return found

    def forget(self, info: TopicInfo) -> None:
        self._env.files.unlink(self._deleted / f"{info.topic_id}.json")

    def _json_files(self, directory: Path) -> list[str]:
        try:
            names = self._env.files.list(directory).names
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.endswith(".json"))


class KafkaCatalog(Catalog):
    """The topics of a Kafka's directory, as the names of its partitions tell them. Their settings are not there."""

    def __init__(self, root: Path, env: Env) -> None:
        super().__init__(root / "topics", env)
        self._root = root

    def names(self) -> list[str]:
        return sorted(self._counts())

    def find(self, name: str) -> TopicInfo | None:
        count = self._counts().get(name)
        if count is None:
            return None
        topic_id = topic_id_of(self._root / f"{name}-{count - 1}", self._env) or ""
        return TopicInfo.of(name, topic_id, count, {})

    def deletions(self) -> list[tuple[TopicInfo, int]]:
        return []

    def _counts(self) -> dict[str, int]:
        """How many partitions each topic has at least: other brokers may have more."""
        found = [match for name in self._env.files.list(self._root).names if (match := PARTITION.fullmatch(name))]
        counts: dict[str, int] = {}
        for match in found:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
        counts.pop(KRAFT_METADATA, None)  # no topic: its records are the quorum's
        return counts


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
    if not _TOPIC_NAME.fullmatch(name):
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


def new_topic_id() -> str:
    """A random UUID as Kafka prints it: 22 characters of URL-safe base64, never starting with '-'."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
