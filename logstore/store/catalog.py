"""Catalog: the topics of a stand-alone directory, one small JSON file each.

::

    topics/orders.json                 {"version": 1, "name": …, "topic_id": …, "partitions": 6, "config": {…}}
    topics/.deleted/<topic id>.json    the same plus "deleted_at_ms": a deletion that is not finished yet
    topics/.lock                       held while topics change, so that two processes do not

Every file is replaced whole, so a reader needs no lock. A deletion is decided by its `.deleted` file: whoever opens the
store next finishes it, however the first one ended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logstore.checkpoint import write_atomic
from logstore.env import SETTLED_NS, Env, FileStat, locked
from logstore.errors import StoreError, TopicExistsError, UnknownTopicError
from logstore.log.segments.directory import topic_id_of
from logstore.log.segments.names import PARTITION
from logstore.store.description import TopicDescription, check_collision, check_topic_name

logger = logging.getLogger(__name__)

KRAFT_METADATA = "__cluster_metadata"


class Catalog:
    """The topics of one directory. Reads take no lock; a change holds `lock()`."""

    def __init__(self, directory: Path, env: Env) -> None:
        self._directory = directory
        self._deleted = directory / ".deleted"
        self._env = env
        self._cache: dict[str, tuple[FileStat, TopicDescription]] = {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the catalog against other threads and processes."""
        self._env.files.mkdir(self._deleted)
        with locked(self._env.files, self._directory / ".lock"):
            yield

    def names(self) -> list[str]:
        return sorted(name.removesuffix(".json") for name in self._json_files(self._directory))

    def topics(self) -> list[TopicDescription]:
        """Every topic, by name; one with a damaged description has `damage`."""
        return [info for info in map(self._listed, self.names()) if info]

    def _listed(self, name: str) -> TopicDescription | None:
        try:
            return self.find(name)
        except StoreError as error:
            return TopicDescription(name=name, topic_id="", partitions=1, overrides={}, damage=error)

    def find(self, name: str) -> TopicDescription | None:
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
            info = TopicDescription.from_json(self._env.files.read_all(path), path)
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

    def topic(self, name: str) -> TopicDescription:
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

    def put(self, info: TopicDescription) -> None:
        """Write the topic; on return it is durable."""
        write_atomic(self._env, self._directory / f"{info.name}.json", info.to_json())

    def mark_deleted(self, info: TopicDescription, now_ms: int) -> None:
        """Decide the deletion: from here on the topic is gone, also after a crash."""
        write_atomic(self._env, self._deleted / f"{info.topic_id}.json", info.to_json(deleted_at_ms=now_ms))
        self.finish_mark(info)

    def finish_mark(self, info: TopicDescription) -> None:
        """Remove the description of a deleted topic, if a crash left it."""
        current = self.find(info.name)
        if current and current.topic_id == info.topic_id:
            self._env.files.unlink(self._directory / f"{info.name}.json")
            self._env.files.fsync(self._directory)

    def deletions(self) -> list[tuple[TopicDescription, int]]:
        """(topic, deleted_at_ms) of every deletion whose files may still be there."""
        found = []
        for name in self._json_files(self._deleted):
            path = self._deleted / name
            try:
                text = self._env.files.read_all(path)
                found.append((TopicDescription.from_json(text, path), int(json.loads(text)["deleted_at_ms"])))
            except FileNotFoundError:
                continue  # it was finished since the names were listed
            except (StoreError, ValueError, LookupError, TypeError) as error:
                logger.warning("path=%s ignored, the files of that topic stay: %s", path, error)
        return found

    def forget(self, info: TopicDescription) -> None:
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

    def find(self, name: str) -> TopicDescription | None:
        count = self._counts().get(name)
        if count is None:
            return None
        topic_id = topic_id_of(self._root / f"{name}-{count - 1}", self._env) or ""
        return TopicDescription.of(name, topic_id, count, {})

    def deletions(self) -> list[tuple[TopicDescription, int]]:
        return []

    def _counts(self) -> dict[str, int]:
        """How many partitions each topic has at least: other brokers may have more."""
        found = [match for name in self._env.files.list(self._root).names if (match := PARTITION.fullmatch(name))]
        counts: dict[str, int] = {}
        for match in found:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
        counts.pop(KRAFT_METADATA, None)  # no topic: its records are the quorum's
        return counts
