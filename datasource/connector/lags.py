"""How many records a query, or a group, is behind, in the words of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from datasource.connector.offsets import StreamOffset, behind
from logstore.errors import InvalidRequestError
from replication.client.security import security_of


def lag(progress: Mapping[str, Any] | None) -> dict[str, float]:
    """Return how many records a query is behind, from `query.lastProgress` or an event's `progress`.

    `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `avgOffsetsBehindLatest` are over partitions, named as the
    metrics of Spark's Kafka source; `offsetsBehindLatest` is the sum. `misfits` are the records that did not fit their
    columns since the query's checkpoint began, each once: those of the batches before this one. It is there if the
    query counts them. Only pylog's sources count.

    Raises: InvalidRequestError: `progress` is None, as `lastProgress` is until the first batch is over, and over Spark
    Connect when the query has ended: an observer (`datasource.observe`) keeps it.
    """
    if progress is None:
        raise InvalidRequestError(
            "there is no progress yet: lastProgress is None until a first batch is over (and over Spark Connect once "
            "the query has ended: take last_progress(query) of datasource.observe(spark))"
        )
    found = [each for source in progress["sources"] if (each := position_of(source)) is not None]
    lags = summary(n for each in found for parts in each.behind.values() for n in parts.values())
    misfits = counted(each.misfits for each in found)
    return lags | ({} if misfits is None else {"misfits": misfits})


def lag_of_group(bootstrap: str, group: str, *, security: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return how many records a consumer group is behind, as `lag`: a query with this `groupId`, or any other group.

    Only partitions with a committed offset count. Needs no Spark. `security`: as of `KafkaClient`.

    Raises: InvalidConfigError: `bootstrap` is not HOST:PORT,…; KafkaError: there is no such group; UnreachableError,
    AuthenticationError.
    """
    from datasource.topics.cluster import GroupPositions, client_of

    client = client_of(bootstrap, security=security_of(security or {}))
    behind_of_topics = GroupPositions(client, group).behind()
    return summary(count for parts in behind_of_topics.values() for count in parts.values())


def summary(behind_latest: Iterable[int]) -> dict[str, float]:
    counts = list(behind_latest)
    return {
        "minOffsetsBehindLatest": min(counts, default=0),
        "maxOffsetsBehindLatest": max(counts, default=0),
        "avgOffsetsBehindLatest": sum(counts) / max(1, len(counts)),
        "offsetsBehindLatest": sum(counts),
    }


def counted(misfits: Iterable[int | None]) -> int | None:
    """Return the sum of those that are counted; None: none is."""
    counts = [count for count in misfits if count is not None]
    return sum(counts) if counts else None


class Position(NamedTuple):
    """The place that a source reads, and the records behind by topic and partition.

    `misfits`: those that did not fit so far; None: they are not counted.
    """

    place: str
    behind: dict[str, dict[int, int]]
    misfits: int | None


def position_of(source: Mapping[str, Any]) -> Position | None:
    """Return what a source of a progress says; None: it is not ours. Offsets of before name no place: ""."""
    end, latest = (_value(source.get(name)) for name in ("endOffset", "latestOffset"))
    if not all(isinstance(value, dict) and "v" in value and "ids" in value for value in (end, latest)):
        return None
    reached = StreamOffset.from_json(end)
    misfits = reached.misfits.count if reached.misfits else None
    return Position(reached.place, behind(reached.offsets, StreamOffset.from_json(latest).offsets), misfits)


def _value(offset: Any) -> Any:
    """Return the offset as a value: PySpark hands over its JSON, and other sources have what they like."""
    try:
        return json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None
