"""How many records of a stream did not fit: its tasks tell in a topic, and its offsets say.

Spark takes no number from a task of a Python source, and shows the offsets of one. So a task appends a count for each
range with misfits to the topic MISFITS of the same place, under the name of its batch. When the next batch is planned
these counts are added up, each range once however often tasks read it, and the sum is a part of that batch's end, which
the checkpoint keeps.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from datasource.connector.offsets import Misfits, StreamOffset
from datasource.connector.options import ReadOptions
from datasource.connector.places import MISFITS
from datasource.topics.interface import PartitionRange
from datasource.topics.locations import Location
from logstore.env import SYSTEM
from logstore.errors import PylogError, UnknownTopicError
from logstore.schemas.layout import Mode

SETTINGS = {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * 60 * 60 * 1000)}

logger = logging.getLogger(__name__)


class Tally:
    """Adds up the misfits of a stream, if its options let some pass; may be pickled.

    In a Kafka of somebody's pylog makes no topic that nobody named: a stream counts there only if MISFITS is there.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._lets_pass = options.typed is not None and options.typed.layout.mode is not Mode.FAILFAST
        self._location = options.location
        self._has_place: bool | None = None  # None: nobody looked
        self._last: tuple[Misfits | None, Misfits] | None = None  # what `_after` took and returned last

    def is_news(self, start: Mapping[str, Any]) -> bool:
        """Whether more misfits are known now than this end of a batch says."""
        if not self._is_counting():
            return False
        known = StreamOffset.from_json(start).misfits
        return self._after(known).count > (known.count if known else 0)

    def added(self, start: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        """Return the end of the batch from `start` on with the misfits that are known, and with a name for it.

        Without records a batch is there only if there is news: the last count of a stream is not to wait for more.
        """
        if not self._is_counting() or (end == start and not self.is_news(start)):
            return end
        misfits = self._after(StreamOffset.from_json(start).misfits)
        known = StreamOffset.from_json(end)
        return replace(known, misfits=misfits, init=None if end == start else known.init).to_json()

    def _is_counting(self) -> bool:
        if self._lets_pass and self._has_place is None:
            try:
                target = self._location.read()
                self._has_place = target.is_pylog() or MISFITS in (info.name for info in target.topics())
            except (PylogError, OSError):  # `_after` says so
                return True
            if not self._has_place:
                logger.warning(
                    "records that do not fit are not counted: there is no topic %s at %s, where pylog makes none that "
                    "nobody named; make it, with cleanup.policy=delete, and start the query again",
                    MISFITS,
                    self._location.name,
                )
        return self._lets_pass and self._has_place is not False

    def _after(self, batch: Misfits | None) -> Misfits:
        """Return the misfits of this batch and of all before, under the name of the next one; None: there was none.

        If counts cannot be read now, a warning says so, and the batch that comes counts under the same name.
        """
        if self._last is None or self._last[0] != batch:
            known = batch or Misfits(stream=f"{SYSTEM.random.getrandbits(64):016x}")
            try:
                told, end = self._told(batch)
            except (PylogError, OSError) as error:
                logger.warning("records that do not fit are not counted yet: %s", error)
                return known
            counted = replace(known, batch=known.batch + 1, count=known.count + total(told, known), since=end)
            self._last = batch, counted
        return self._last[1]

    def _told(self, batch: Misfits | None) -> tuple[list[Mapping[str, Any]], int]:
        """Return the counts that tasks told since this batch was planned, and where the next ones begin."""
        target = self._location.read()
        try:
            extent = target.extent(MISFITS, 0)
        except UnknownTopicError:
            return [], 0
        if batch is None:
            return [], extent.end
        start = max(batch.since, extent.start) if batch.since <= extent.end else extent.start  # made again since
        rows = target.read(PartitionRange(MISFITS, 0, start, extent.end), ["value"])
        return [json.loads(value) for each in rows for value in each.column("value").to_pylist()], extent.end


def total(told: Iterable[Mapping[str, Any]], batch: Misfits) -> int:
    """Return how many misfits the tasks of this batch told; the last word on an offset counts.

    Attempts of a task tell the same. A batch that is planned again may be cut into other ranges of the same offsets.
    """
    found = defaultdict[tuple[str, int], list[Mapping[str, Any]]](list)
    for each in told:
        if (each["stream"], each["batch"]) == (batch.stream, batch.batch):
            place = each["topic"], each["partition"]
            apart = [r for r in found[place] if r["end"] <= each["start"] or each["end"] <= r["start"]]
            found[place] = [*apart, each]
    return sum(each["misfits"] for ranges in found.values() for each in ranges)


def tell(location: Location, batch: Misfits | None, r: PartitionRange, count: int) -> None:
    """Append, durably, how many records of this range did not fit, if any; None: nobody adds them up.

    If that fails, a warning says so.
    """
    if batch is None or not count:
        return
    import pyarrow as pa

    told = {"stream": batch.stream, "batch": batch.batch, "topic": r.topic, "partition": r.partition}
    told |= {"start": r.start, "end": r.end, "misfits": count}
    try:
        target = location.write()
        target.make(MISFITS, SETTINGS)
        row = pa.table({"key": [batch.stream], "value": [json.dumps(told)]})
        target.append(MISFITS, row, partitioner="murmur3", compression=None, transaction=None)
        target.flush()
    except (PylogError, OSError) as error:
        logger.warning("%s-%d: %d records that do not fit are not counted: %s", r.topic, r.partition, count, error)
