"""The readers that Spark drives: they decide with `offsets` and `planning`, and read from `ReadableTopics`.

Spark pickles a reader and recreates it in several processes. So a reader opens nothing before it plans or reads, and
everything that a task needs travels in its `LogPartition`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.datasource import Filter as SparkFilter
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from datasource.connector.garbage import exempt_loaded
from datasource.connector.idle import Idle
from datasource.connector.offsets import (
    Extents,
    Misfits,
    PartitionOffsets,
    StreamOffset,
    agreed,
    between,
    checked,
    epochs_of,
    extents,
    latest,
    lost_topics,
    of_group,
    position_after,
    resolve,
    rewound,
    warn_if_nothing,
)
from datasource.connector.one_line import one_line
from datasource.connector.options import ReadOptions
from datasource.connector.places import Offsets, OfGroup, Subscribe
from datasource.connector.planning import Bounds, Filter, is_worth_a_batch, limited, proportional, tasks
from datasource.connector.tally import Tally, tell
from datasource.errors import report
from datasource.schema import Shape
from datasource.topics.interface import PartitionRange, ReadableTopics
from logstore import InvalidRequestError, PylogError, StorageError
from logstore.env import SYSTEM
from logstore.errors import UnreadableBatchError
from logstore.records import compiled_code
from logstore.store.reading import read_round

if TYPE_CHECKING:
    import pyarrow as pa

    from datasource.connector.registered import Evolution
    from datasource.connector.typed import TypedShape
    from datasource.topics.cluster import GroupPositions

LOOK_EACH_MS = 250  # while a stream waits: new topics and partitions are found by looks alone
COMMIT_PAUSE_MS = 10_000  # after a commit to the query's group that failed

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class LogPartition(InputPartition):
    """The ranges that one Spark task reads, in order; `misfits`: of the batch, if they are counted."""

    def __init__(self, ranges: tuple[PartitionRange, ...], misfits: Misfits | None = None) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.misfits = misfits


def _retrying(method: Callable[P, R]) -> Callable[P, R]:
    """Try again when the disk fails: Spark ends the query at the first exception of a planning call."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        options = cast("_Tasks", args[0]).options
        for _ in range(options.retries):
            try:
                return method(*args, **kwargs)
            except StorageError:
                SYSTEM.clock.sleep_ms(options.retry_interval_ms)
        return method(*args, **kwargs)

    return call


@functools.cache
def load_kernels() -> None:
    from logstore.records import decoding  # noqa: F401 - all that reading needs

    exempt_loaded("kernels")


class _Tasks:
    """Shared by batch and stream: ranges to Spark tasks, and a task to Arrow batches."""

    def __init__(self, options: ReadOptions, schema: StructType | pa.Schema) -> None:
        self.options = options
        self._schema = schema

    def _target(self) -> ReadableTopics:
        options = self.options
        if options.include_tiered:
            from datasource.delta.tiered_topics import TieredTopics

            return TieredTopics(
                options.location,
                options.tables.place,
                options.tables.storage,
                fail_on_data_loss=options.fail_on_data_loss,
            )
        return options.location.read(options.isolation, short_circuit=options.short_circuit)

    def _group(self) -> GroupPositions | None:
        return self.options.location.group(self.options.group) if self.options.group else None

    def _start(self, target: ReadableTopics, now: Extents) -> StreamOffset:
        options, group, epochs = self.options, self._group(), epochs_of(now)
        if isinstance(options.starting, OfGroup):
            assert group is not None, "the options were checked"
            offsets, epochs = of_group(options.starting, group.committed(), now)
        else:
            offsets = resolve(
                target, options.starting, now, side="starting", no_match_is_latest=options.no_match_is_latest
            )
        return StreamOffset(offsets=offsets, ids=_ids(now), epochs=epochs)

    def _plan(
        self, target: ReadableTopics, ranges: Iterable[PartitionRange], misfits: Misfits | None = None
    ) -> list[InputPartition]:
        planned = tasks(ranges, self.options.tasks, floor_batch=target.floor_batch, size_bytes=target.size_bytes)
        if self.options.typed is not None:
            from datasource.connector.typed import prepare

            prepare(self.options.typed, self.options.location)
        if planned and not compiled_code.is_kept():
            load_kernels()  # compiled once here, not in every worker at once
        exempt_loaded("plan")
        return [LogPartition(ranges, misfits) for ranges in planned]

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):  # without a plan Spark starts one task all the same
            return
        if not self.options.include_tiered:  # a table needs none, and they cost a new worker a third of a second
            load_kernels()
        target = self._target()
        for r in self._there(target, partition):
            shape = self._shape(r.topic)
            try:
                for records in self._rows(target, r, shape.stored):
                    batch = shape.batch(records, r.topic, r.partition)
                    exempt_loaded("task")
                    yield batch
            finally:  # Spark may want no more
                shape.flush()
                for note in shape.notes:
                    logger.warning("%s-%d: %s", r.topic, r.partition, note)
            tell(self.options.location, partition.misfits, r, shape.misfits)

    def _shape(self, topic: str) -> Shape | TypedShape:
        if self.options.typed is None:
            return Shape(self._schema)
        from datasource.connector.typed import TypedShape

        return TypedShape(self.options.typed, self._schema, self.options.location, topic)

    def _rows(self, target: ReadableTopics, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records of `r`, or the latest value of each key in it, as the options say."""
        read = functools.partial(self._readable, target)
        if not self.options.is_latest:
            return read(r, columns)
        from datasource.topics.latest import Ranged
        from logstore.records.latest import LatestValues

        return LatestValues(Ranged(target, r, read)).rows(r.start, r.end, columns)

    def _there(self, target: ReadableTopics, partition: LogPartition) -> Iterator[PartitionRange]:
        """The ranges of a task as far as they are there now, in order. Raises: DataLossError, as the options say."""
        for planned in partition.ranges:
            now = extents(target, Subscribe((planned.topic,)), missing_ok=True)
            since = agreed(target, now, {planned.topic: {planned.partition: planned.leader_epoch}})
            yield from checked([planned], now, since, fail=self.options.fail_on_data_loss)

    def _readable(self, target: ReadableTopics, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records of `r`. Raises: DataLossError: a batch cannot be decoded, unless failOnDataLoss is false."""

        def skipped(error: UnreadableBatchError) -> None:
            report([f"{r.topic}-{r.partition}: {error}"], fail=self.options.fail_on_data_loss)

        return read_round(lambda start: target.read(replace(r, start=start), columns), r.start, r.end, skipped)


class BatchReader(_Tasks, DataSourceReader):
    """Reads what the options say. The plan decides where "latest" is."""

    _bounds = Bounds()

    @one_line
    @_retrying
    def partitions(self) -> list[InputPartition]:
        """Plan the read. Raises: as `extents`, `resolve` and `checked`."""
        target, options = self._target(), self.options
        now = extents(target, options.topics)
        warn_if_nothing(options.topics, now)
        start = self._start(target, now)
        end = resolve(target, options.ending, now, side="ending", no_match_is_latest=True)
        start, cut = rewound(start, now, agreed(target, now, start.epochs))
        report(cut, fail=options.fail_on_data_loss)
        wanted = between(start, StreamOffset(offsets=end, ids=_ids(now), epochs=epochs_of(now)))
        if isinstance(options.starting, Offsets) and isinstance(options.ending, Offsets):
            _check_order(wanted)
        # A committed offset of a group may lie behind the end, where an explicit offset is refused.
        asked = [r for r in wanted if r.count or isinstance(options.starting, OfGroup)]
        ranges = checked(asked, now, fail=options.fail_on_data_loss)
        return self._plan(target, [self._narrowed(target, r) for r in ranges])

    def _narrowed(self, target: ReadableTopics, r: PartitionRange) -> PartitionRange:
        """Return the part of `r` that can hold rows which pass the filters."""
        if not self._bounds.allows(r.topic, r.partition):
            return replace(r, end=r.start)
        if self.options.is_latest:  # what another filter leaves out may be the last record of its key
            return r
        start, end = self._bounds.offsets(r.start, r.end)
        if (low_ms := self._bounds.timestamp_ms) is not None and start < end:
            found = target.offset_for_time(r.topic, r.partition, low_ms)
            start = end if found is None else min(max(start, found), end)
        return replace(r, start=start, end=end)


def _ids(now: Extents) -> dict[str, str]:
    return {topic: head.topic_id for topic, head in now.items()}


def _check_order(wanted: Iterable[PartitionRange]) -> None:
    for r in wanted:
        if r.start > r.end:
            raise InvalidRequestError(
                f"{r.topic}-{r.partition}: startingOffsets {r.start} is after endingOffsets {r.end}"
            )


class PushingBatchReader(BatchReader):
    """A `BatchReader` that leaves out rows which the query's filters exclude by offset, partition, topic or time."""

    def pushFilters(self, filters: list[SparkFilter]) -> Iterable[SparkFilter]:  # noqa: N802
        """Take the filters, and return all of them, so that Spark applies them to every row."""
        found = (_plain(f) for f in filters)
        if self.options.typed is not None:  # other columns are the user's, whatever they are called
            found = (replace(f, column=f.column[1:]) for f in found if f.column.startswith("_"))
        self._bounds = Bounds(filters=tuple(found))
        return filters


def _plain(f: Any) -> Filter:
    """Return a filter as a value; one without a column of its own (Not) excludes nothing."""
    column = ".".join(getattr(f, "attribute", ()))
    return Filter(type(f).__name__, column.lower(), getattr(f, "value", None))


class StreamReader(_Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads as the topics grow.

    One instance plans the batches as long as the query runs; copies of it read in the tasks. Everything that must
    survive a restart is in the `StreamOffset`, since Spark keeps nothing else.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._first: dict[str, Any] | None = None
        self._evolution: Evolution | None = None
        self._tally = Tally(options)
        self._goal: StreamOffset | None = None  # with trigger(availableNow=True) the query ends here
        self._committed: dict[str, Any] | None = None  # to the group
        self._commit_after_ms = -(10**12)
        self._since: tuple[Any, PartitionOffsets] | None = None
        self._idle = Idle()
        self._seen: Extents = {}  # by the last look
        self._seen_ms = -(10**12)
        self._last_batch_ms = -(10**12)  # long ago: the first batch does not wait for minOffsetsPerTrigger

    @one_line
    @_retrying
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the query starts; the same each time, since Spark asks twice for batch 0."""
        if self._first is None:
            target, options = self._target(), self.options
            now = extents(target, options.topics)
            warn_if_nothing(options.topics, now)
            self._first = self._placed(self._start(target, now))
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a limit that is set; `latestOffset` applies all of them, except under trigger(once=True)."""
        limits = self.options.trigger
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    @one_line
    @_retrying
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of every partition: the query reads up to here, in as many batches as it takes."""
        self._goal = latest(self._extents())

    @one_line
    @_retrying
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the ends of all partitions. Spark asks at once after `latestOffset`, whose look is taken."""
        return self._placed(latest(self._seen if self._has_just_looked() else self._extents()))

    @one_line
    @_retrying
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; `start` if there is nothing to read, now and for a while (`idle`)."""
        # Spark asks when the batch before is done, and for the last batch calls no `commit`.
        self.commit(start)
        self._look_at_schemas()
        clock = SYSTEM.clock
        is_to_tell = self._tally.is_news(start)
        wait_ms = 0 if self._goal is not None or is_to_tell else self._idle.wait_ms(clock.monotonic_ms())
        end = start if wait_ms and self._has_just_ended(start) else self._next(start, limit)
        if end == start and wait_ms and self._target().wait_for_more(latest(self._seen).offsets, wait_ms):
            end = self._next(start, limit)
        self._idle.answered(clock.monotonic_ms(), with_nothing=end == start)
        if end != start:
            self._last_batch_ms = clock.monotonic_ms()
        return self._tally.added(start, end)

    @one_line
    @_retrying
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a batch. The same offsets give the same records, also when Spark asks again."""
        if start == end:
            return []
        stop = StreamOffset.from_json(end)
        begin = StreamOffset.from_json(start)
        if stop.init is not None:
            begin = StreamOffset(offsets=stop.init, ids=stop.ids)
        target = self._target()
        now = extents(target, Subscribe(tuple(stop.offsets)), missing_ok=True)
        wanted = [r for r in between(begin, stop) if r.count]
        since = agreed(target, now, stop.epochs)
        return self._plan(target, checked(wanted, now, since, fail=self.options.fail_on_data_loss), stop.misfits)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit what is done to the query's group, if it has one. A failure is a warning, and the query goes on."""
        now_ms, group = SYSTEM.clock.monotonic_ms(), self._group()
        if group is None or end in (self._first, self._committed) or now_ms < self._commit_after_ms:
            return
        try:
            done = StreamOffset.from_json(end)
            group.commit(done.offsets, done.epochs)
            self._committed = end
        except (PylogError, OSError) as error:
            self._commit_after_ms = now_ms + COMMIT_PAUSE_MS
            logger.warning("group=%s progress not committed, next batch again: %s", self.options.group, error)

    def _look_at_schemas(self) -> None:
        if (typed := self.options.typed) is not None and typed.registered is not None:
            from datasource.connector.registered import Evolution

            self._evolution = self._evolution or Evolution(typed, self.options.location)
            self._evolution.look()

    def _placed(self, offset: StreamOffset) -> dict[str, Any]:
        """Return the offset as Spark stores and shows it."""
        return replace(offset, place=self.options.location.name).to_json()

    def _extents(self) -> Extents:
        self._seen = extents(self._target(), self.options.topics, missing_ok=True)
        self._seen_ms = SYSTEM.clock.monotonic_ms()
        return self._seen

    def _has_just_looked(self) -> bool:
        return SYSTEM.clock.monotonic_ms() - self._seen_ms < LOOK_EACH_MS

    def _has_just_ended(self, start: dict[str, Any]) -> bool:
        """Whether the last look, a moment ago, saw nothing behind this position."""
        return self._has_just_looked() and latest(self._seen).offsets == StreamOffset.from_json(start).offsets

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        position, now = StreamOffset.from_json(start), self._extents()
        fail = self.options.fail_on_data_loss
        known = position.offsets
        position, cut = rewound(position, now, self._agreed(position, now))
        report([*lost_topics(position, now, self.options.topics), *cut], fail=fail)
        if cut:  # an empty batch sets the query back: Spark plans one from the position that it knows
            return self._placed(replace(position, init=known if start == self._first else None))
        if fail:
            self._check_topics(position, now)
        ranges = checked(between(position, self._goal or latest(now)), now, fail=fail)
        if not isinstance(limit, ReadAllAvailable):
            ranges = self._limited(ranges)
        end = position_after(ranges)
        if start == self._first:
            return self._placed(replace(end, init=position.offsets))
        return start if (end.offsets, end.ids) == (position.offsets, position.ids) else self._placed(end)

    def _agreed(self, position: StreamOffset, now: Extents) -> PartitionOffsets:
        """Call `agreed`, once as long as the leader epochs stay the same."""
        key = position.epochs, epochs_of(now)
        if self._since is None or self._since[0] != key:
            self._since = key, agreed(self._target(), now, position.epochs)
        return self._since[1]

    def _check_topics(self, position: StreamOffset, now: Extents) -> None:
        """Raise UnknownTopicError for a topic that the user names and that never existed."""
        if isinstance(self.options.topics, Subscribe):
            for topic in self.options.topics.topics:
                if topic not in now and topic not in position.offsets:
                    self._target().topic(topic)

    def _limited(self, ranges: list[PartitionRange]) -> list[PartitionRange]:
        limits = self.options.trigger
        waited_ms = SYSTEM.clock.monotonic_ms() - self._last_batch_ms
        count = sum(r.count for r in ranges)
        if self._goal is None and not is_worth_a_batch(count, limits.min_offsets, waited_ms, limits.max_delay_ms):
            return [replace(r, end=r.start) for r in ranges]
        ranges = limited(ranges, limits.max_offsets)
        if limits.max_bytes is None:
            return ranges
        target = self._target()
        shares = proportional({r: target.size_bytes(r) for r in ranges if r.count}, limits.max_bytes)
        return [
            replace(r, end=min(r.end, target.offset_after_bytes(r, shares[r]))) if r in shares else r for r in ranges
        ]
