"""The topic `_schemas` of a directory: made at first use; each change is one batch under the lock of its log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from logstore.env import reset_after_fork
from logstore.errors import InvalidRecordError, UnknownTopicError
from logstore.log.log import Log
from logstore.schemas.registry import COLUMNS, Found, TopicSchemas, rows_of, stored
from logstore.schemas.strategies import Demand
from logstore.schemas.subjects import TOPIC, Record
from logstore.store.description import TopicDescription

if TYPE_CHECKING:
    from logstore.records.rows import Rows
    from logstore.schemas.declared import Declaration
    from logstore.schemas.registry import Schemas
    from logstore.store.log_manager import LogManager

_CONFIG = {"cleanup.policy": "compact"}


class _Store(Protocol):
    """The parts of a `LogStore` that are used here."""

    @property
    def path(self) -> Path: ...
    @property
    def logs(self) -> LogManager: ...
    def create_topic(self, name: str, *, config: Mapping[str, Any] | None, if_not_exists: bool) -> object: ...
    def log(self, topic: str, partition: int) -> Log: ...
    def append(self, topic: str, data: Any, *, flush: bool) -> object: ...

    @property
    def read(self) -> Callable[..., Any]: ...


def schemas_of(store: _Store) -> TopicSchemas:
    return TopicSchemas(DirectoryTopic(store))


def declare(schemas: Schemas, topic: str, columns: Declaration) -> None:
    """Register the columns of a topic. Raises: as `Schemas.register`; InvalidRequestError: they are none."""
    from logstore.schemas.declared import declared, register

    register(schemas, declared(topic, **columns))


def demands_of(schemas: TopicSchemas, info: TopicDescription) -> list[Demand]:
    """Return which schema ids the keys and values of a topic must bear, by its settings, as registered now."""
    return [schemas.demand(info.name, part, strategy) for part, strategy in info.config.validated_parts]


def check_ids(rows: Rows, demands: Sequence[Demand]) -> None:
    """Raise unless every key and value that is not null bears one. Raises: InvalidRecordError: with the row."""
    for demand in demands:
        if (found := rows.first_strange(demand.part, demand.ids)) is not None:
            row, schema_id = found
            raise InvalidRecordError(f"row {row}: {demand.reason(schema_id)}", row=row)


class DirectoryTopic:
    """`logstore.schemas.registry.SchemaTopic`. Safe for threads; notices a fork."""

    if_unknown = "copy that topic together with the records, or in Spark name their registry by schema.registry.url"

    def __init__(self, store: _Store) -> None:
        self.where = str(store.path)
        self._store = store
        self._topic_id = ""  # of the topic that was read last
        self._mutex = threading.RLock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In a child: another thread of the parent may have been within its turn, so that all is read anew."""
        self._mutex = threading.RLock()
        self._topic_id = ""

    def turn(self) -> AbstractContextManager[object]:
        return self._mutex

    def read(self, start: int) -> Found:
        try:
            log = self._store.log(TOPIC, 0)
        except UnknownTopicError:
            return Found(0, 0, ())
        end = log.log_end_offset
        begin = start if log.topic_id == self._topic_id and start <= end else 0
        self._topic_id = log.topic_id
        if begin == end:
            return Found(begin, end, ())
        first = max(begin, log.log_start_offset)
        options = {"partition": 0, "start": first, "end": end, "columns": COLUMNS, "isolation": "read_uncommitted"}
        return Found(begin, end, stored(self._store.read(TOPIC, **options).read_all().to_pylist()))

    def append(self, records: Sequence[Record], end: int) -> bool:
        self._store.logs.check_writable()
        if end == 0:
            self._store.create_topic(TOPIC, config=_CONFIG, if_not_exists=True)
        log = self._store.log(TOPIC, 0)
        with log.lock():
            if log.log_end_offset != end or (end and log.topic_id != self._topic_id):
                return False
            self._store.append(TOPIC, rows_of(records), flush=True)
        return True
