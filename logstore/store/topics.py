"""Topics: catalog entries and partition directories of a stand-alone directory, changed together.

A topic is created directories first: it exists once the catalog lists it. It is deleted catalog first: its directories
get names of deleted ones (`names.deleted_partition`), and the next process that opens the store after
`file.delete.delay.ms` removes them. So a crash leaves nothing between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logstore.checkpoint import marking_failure
from logstore.config import by_own_names, canonical_properties
from logstore.env import Env
from logstore.errors import FailedStoreError, InvalidRequestError, StorageError
from logstore.log.segments.directory import create as create_partition
from logstore.log.segments.directory import topic_id_of
from logstore.log.segments.names import deleted_partition
from logstore.store.catalog import Catalog, KafkaCatalog
from logstore.store.description import TopicDescription, check_partitions, check_topic_name, new_topic_id
from logstore.store.log_dir import LogDir
from logstore.store.stray import LostDescriptionError, lost_descriptions, unowned

logger = logging.getLogger(__name__)


def new_topic(name: str, partitions: int, config: Mapping[str, Any]) -> TopicDescription:
    """Return a topic that is not created yet. Raises: InvalidTopicError, InvalidConfigError."""
    check_topic_name(name)
    info = TopicDescription.of(name, new_topic_id(), check_partitions(partitions), config)
    info.config.check()
    return info


def remove_partition(env: Env, directory: Path) -> None:
    """Remove the directory of a partition, which holds files only; nothing happens if it is gone."""
    if env.files.stat(directory) is not None:
        for name in env.files.list(directory).names:
            env.files.unlink(directory / name)
        env.files.rmdir(directory)


class Topics:
    """The topics of one directory. Changes hold the catalog's lock and are durable when they return."""

    def __init__(self, log_dir: LogDir, env: Env) -> None:
        of_kafka = log_dir.is_kafkas
        self.catalog = KafkaCatalog(log_dir.path, env) if of_kafka else Catalog(log_dir.path / "topics", env)
        self._log_dir = log_dir
        self._env = env

    def create(
        self, name: str, partitions: int, config: Mapping[str, Any], *, if_not_exists: bool = False
    ) -> TopicDescription:
        """Create a topic. Raises: TopicExistsError, InvalidTopicError, InvalidConfigError."""
        info = new_topic(name, partitions, config)
        with self._changing():
            if if_not_exists and (existing := self.catalog.find(name)):
                return existing
            self.catalog.check_new(name)
            self._sweep()
            self._create_directories(info, range(info.partitions))
            self.catalog.put(info)
        return info

    def alter(self, name: str, partitions: int | None, config: Mapping[str, Any]) -> TopicDescription:
        """Change settings (None removes an override), add partitions. Raises: InvalidRequestError: fewer of them."""
        with self._changing():
            old = self.catalog.topic(name)
            count = old.partitions if partitions is None else check_partitions(partitions)
            if count < old.partitions:
                raise InvalidRequestError(
                    f"topic {name!r} has {old.partitions} partitions; their number can grow, not shrink to {count}"
                )
            config = by_own_names(config)
            changed = canonical_properties({k: v for k, v in config.items() if v is not None})
            removed = canonical_properties({k: old.config.to_properties().get(k, "") for k in config})
            kept = {k: v for k, v in old.overrides.items() if k not in removed}
            info = TopicDescription.of(name, old.topic_id, count, kept | changed)
            info.config.check()
            self._create_directories(info, range(old.partitions, count))
            self.catalog.put(info)
        return info

    def delete(self, name: str) -> TopicDescription:
        with self._changing():
            info = self.catalog.topic(name)
            now_ms = self._env.clock.now_ms()
            self._log_dir.reserve.despite_full_disk(lambda: self.catalog.mark_deleted(info, now_ms))
            self._sweep()
        return info

    def finish_deletions(self) -> None:
        with self._changing():
            self._sweep()

    def recover(self) -> list[LostDescriptionError]:
        """Return an error for every topic whose description is gone.

        A process that is alone here removes what killed creations left: empty directories of no topic.
        """
        if self._log_dir.is_alone:
            with self._changing():
                self._remove_unfinished()
        return lost_descriptions(self._log_dir.path, self._env)

    def _remove_unfinished(self) -> None:
        left = unowned(self._log_dir.path, self._env, young_too=True).empty
        for directory in left:
            remove_partition(self._env, directory)
        if left:
            logger.warning(
                "path=%s directories=%d removed, from %s to %s: they belonged to no topic and held no records",
                self._log_dir.path,
                len(left),
                left[0].name,
                left[-1].name,
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self.catalog.lock(), marking_failure(self._env, self._log_dir.path):
            yield

    def _create_directories(self, info: TopicDescription, partitions: range) -> None:
        self._log_dir.recovery_points.forget({(info.name, partition) for partition in partitions})
        for partition in partitions:
            directory = self._log_dir.partition(info.name, partition)
            if self._env.files.stat(directory) is not None:
                hidden = deleted_partition(self._log_dir.path, info.name, partition, new_topic_id())
                logger.warning(
                    "path=%s belongs to no topic (a creation that did not finish?): now %s, remove it if not missed",
                    directory,
                    hidden.name,
                )
                self._env.files.rename(directory, hidden)
            create_partition(directory, topic_id=info.topic_id, env=self._env)
        self._env.files.fsync(self._log_dir.path)

    def _sweep(self) -> None:
        """Hide the directories of deleted topics, and remove them when their delay is over."""
        now_ms = self._env.clock.now_ms()
        for info, deleted_at_ms in self.catalog.deletions():
            self.catalog.finish_mark(info)
            is_over = now_ms >= deleted_at_ms + info.config.file_delete_delay_ms
            try:
                self._sweep_topic(info, is_over=is_over)
            except FailedStoreError:
                raise
            except StorageError as error:
                logger.warning("files of the deleted topic %s stay for now: %s", info.name, error)

    def _sweep_topic(self, info: TopicDescription, *, is_over: bool) -> None:
        hidden = [deleted_partition(self._log_dir.path, info.name, p, info.topic_id) for p in range(info.partitions)]
        for partition, directory in enumerate(hidden):
            live = self._log_dir.partition(info.name, partition)
            if topic_id_of(live, self._env) == info.topic_id:
                self._env.files.rename(live, directory)
        if is_over:
            # Else a loss of power could bring one back under its old name, or all of it when nobody knows its topic.
            self._env.files.fsync(self._log_dir.path)
            for directory in hidden:
                remove_partition(self._env, directory)
            self._env.files.fsync(self._log_dir.path)
            self.catalog.forget(info)
