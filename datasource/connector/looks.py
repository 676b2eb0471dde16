"""The queries of a session as their events tell: a pure fold of events into a `QueryLook` for each query.

A query is known by its id, which its checkpoint keeps; each start is a run of its own, with a name of its own. Spark
reports a start at once and everything else late, so an event of a run that was replaced is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from datasource.connector.lags import counted, position_of, summary

ENDED_MAX = 100  # more queries that have ended are forgotten, the oldest first
RUNNING, STOPPED, FAILED = "running", "stopped", "failed"


@dataclass(frozen=True, slots=True)
class SourceLook:
    """A source of pylog: see `Position`."""

    place: str
    behind: Mapping[str, Mapping[int, int]]
    misfits: int | None = None

    @property
    def summary(self) -> dict[str, float]:
        return summary(count for parts in self.behind.values() for count in parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLook:
    """A query as far as it is known. `rows` and `dropped_rows` count since its run began, or was first seen.

    `batch` is -1 and `progress_at` "" until a first batch is over. `dropped_rows` came later than the watermark.
    """

    id: str
    run_id: str
    name: str
    state: str = RUNNING
    batch: int = -1
    progress_at: str = ""
    sources: tuple[SourceLook, ...] = ()
    rows: int = 0
    dropped_rows: int = 0
    input_rows_per_s: float = 0.0
    processed_rows_per_s: float = 0.0

    @property
    def misfits(self) -> int | None:
        """How many records did not fit since the query's checkpoint began, before the last batch; None: not counted."""
        return counted(source.misfits for source in self.sources)

    @property
    def progress_s(self) -> float:
        """When the trigger of the last batch began, in seconds since 1970."""
        return datetime.fromisoformat(self.progress_at).timestamp()


Looks = Mapping[str, QueryLook]


def started(looks: Looks, query_id: str, run_id: str, name: str | None) -> Looks:
    known = looks.get(query_id)
    if known is not None and known.run_id == run_id:  # its progress was seen first
        return looks
    return _with(looks, QueryLook(id=query_id, run_id=run_id, name=name or query_id))


def progressed(looks: Looks, progress: Mapping[str, Any]) -> Looks:
    """Take a batch's progress, once, whoever reports it again."""
    query_id, run_id = str(progress["id"]), str(progress["runId"])
    known = looks.get(query_id)
    if known is None or (known.run_id != run_id and known.state != RUNNING):
        known = QueryLook(id=query_id, run_id=run_id, name=progress["name"] or query_id)
    if known.run_id != run_id or progress["batchId"] <= known.batch:
        return looks
    # Over Spark Connect the totals may be missing, and those of the sources are there.
    of_sources = progress["sources"]
    found = (position_of(source) for source in of_sources)
    dropped = sum(int(operator["numRowsDroppedByWatermark"]) for operator in progress["stateOperators"])
    look = replace(
        known,
        batch=progress["batchId"],
        progress_at=progress["timestamp"],
        sources=tuple(SourceLook(*each) for each in found if each is not None),
        rows=known.rows + sum(int(source["numInputRows"]) for source in of_sources),
        dropped_rows=known.dropped_rows + dropped,
        input_rows_per_s=sum(_rate(source["inputRowsPerSecond"]) for source in of_sources),
        processed_rows_per_s=sum(_rate(source["processedRowsPerSecond"]) for source in of_sources),
    )
    return _with(looks, look)


def idle(looks: Looks, query_id: str, run_id: str) -> Looks:
    """Nothing comes in: rates are those of a last batch no longer."""
    known = looks.get(query_id)
    if known is None or known.run_id != run_id:
        return looks
    return _with(looks, replace(known, input_rows_per_s=0.0, processed_rows_per_s=0.0))


def ended(looks: Looks, query_id: str, run_id: str, *, failed: bool) -> Looks:
    known = looks.get(query_id)
    if known is None or known.run_id != run_id:
        return looks
    state = FAILED if failed else STOPPED
    last = replace(known, state=state, input_rows_per_s=0.0, processed_rows_per_s=0.0)
    others = {each.id: each for each in looks.values() if each.id != query_id}
    gone = [each.id for each in others.values() if each.state != RUNNING][: -ENDED_MAX + 1]
    return {each: look for each, look in others.items() if each not in gone} | {query_id: last}


def as_json(look: QueryLook) -> dict[str, Any]:
    """Return what JSON can hold: lags are named as the metrics of Spark's Kafka source."""
    return {
        "query": look.name,
        "id": look.id,
        "run_id": look.run_id,
        "state": look.state,
        "batch": look.batch,
        "progress_at": look.progress_at,
        "rows": look.rows,
        "dropped_rows": look.dropped_rows,
        "input_rows_per_s": look.input_rows_per_s,
        "processed_rows_per_s": look.processed_rows_per_s,
        "sources": [
            {
                "place": source.place,
                "topics": {t: {str(p): n for p, n in parts.items()} for t, parts in source.behind.items()},
                **source.summary,
                "misfits": source.misfits,
            }
            for source in look.sources
        ],
    }


COLUMNS = (
    "query",
    "state",
    "batch",
    "place",
    "topics",
    "min",
    "avg",
    "max",
    "behind",
    "in_per_s",
    "done_per_s",
    "dropped",
    "misfits",
)


def rows(looks: Iterable[QueryLook]) -> list[dict[str, object]]:
    """Return a row of COLUMNS for each source of pylog, and one for a query that has none (yet)."""
    return [
        {
            "query": look.name,
            "state": look.state,
            "batch": None if look.batch < 0 else look.batch,
            "place": (source.place if source else "") or None,
            "topics": ",".join(source.behind) if source else None,
            **_lags(source),
            "in_per_s": round(look.input_rows_per_s, 1),
            "done_per_s": round(look.processed_rows_per_s, 1),
            "dropped": look.dropped_rows,
            "misfits": source.misfits if source else None,
        }
        for look in looks
        for source in look.sources or (None,)
    ]


def _lags(source: SourceLook | None) -> dict[str, object]:
    if source is None:
        return dict.fromkeys(("min", "avg", "max", "behind"))
    found = source.summary
    return {
        "min": found["minOffsetsBehindLatest"],
        "avg": round(found["avgOffsetsBehindLatest"], 1),
        "max": found["maxOffsetsBehindLatest"],
        "behind": found["offsetsBehindLatest"],
    }


def _with(looks: Looks, look: QueryLook) -> Looks:
    return {**looks, look.id: look}


def _rate(rows_per_s: float | None) -> float:
    """Return 0 for what is not there or not finite, as the rate of a first batch."""
    return rows_per_s if rows_per_s is not None and 0 <= rows_per_s < float("inf") else 0.0
