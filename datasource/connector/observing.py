"""observe(): how far behind the streaming queries of a session are, as a table and as a Prometheus page.

Spark takes no metrics from a Python source, and shows it by a Java class. The offsets in a query's progress say the
rest: place, topics, by the newest offsets also the lag of each partition, and how many records did not fit.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from datasource.connector import looks as fold
from datasource.connector import sail
from datasource.connector.connect import is_connect
from datasource.connector.looks import COLUMNS, RUNNING, Looks, QueryLook, as_json, rows
from logstore.cli.terminal import table_lines
from logstore.errors import InvalidRequestError, StorageError, did_you_mean
from replication.broker.families import Family, Labels, counter, gauge, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
PORT_MAX = 65535
END_TIMEOUT_S = 10.0  # Spark reports the end of a query some milliseconds after it
REQUEST_TIMEOUT_S = 5.0

HELP = {
    "pylog_query_running": "1 while the query runs, 0 when it has ended; the other gauges are of queries that run",
    "pylog_query_batch": "Number of the last micro-batch",
    "pylog_query_progress_timestamp_seconds": "When the trigger of the last micro-batch began, in seconds since 1970",
    "pylog_query_offsets_behind_latest": "Offsets of a partition that the query had not read by its last micro-batch",
    "pylog_query_min_offsets_behind_latest": "The least of them over the partitions of a source",
    "pylog_query_avg_offsets_behind_latest": "Their mean over the partitions of a source",
    "pylog_query_max_offsets_behind_latest": "The most of them over the partitions of a source",
    "pylog_query_input_rows_per_second": "Rows that came in, per second; 0 while the query is idle",
    "pylog_query_processed_rows_per_second": "Rows that were processed, per second; 0 while the query is idle",
    "pylog_query_rows_total": "Rows that came in since the run of the query began",
    "pylog_query_dropped_rows_total": "Rows later than the watermark, dropped since the run of the query began",
    "pylog_query_misfits_total": "Records that did not fit their columns since the query's checkpoint began",
}


def observe(spark: SparkSession, *, port: int | None = None) -> QueryObserver:
    """Watch the streaming queries of a session, those that run now and those that start later, until `close`.

    ::

        with observe(spark, port=9400) as seen:
            ...
            print(seen)

    `port`: serve Prometheus at http://127.0.0.1:PORT/metrics, to this machine only; 0 takes a free port, which
    `QueryObserver.port` tells. In any session, also over Spark Connect, where a program does not end before `close`
    or the stop of its session; several observers do not disturb each other.

    Raises: InvalidRequestError: no session, no port, or one that is in use; StorageError: it cannot be opened.
    """
    if not hasattr(spark, "streams"):
        raise InvalidRequestError(f"observe() takes a SparkSession, not {type(spark).__name__}")
    if sail.client_of(spark) is not None:
        raise InvalidRequestError(sail.NO_EVENTS)
    if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= PORT_MAX):
        raise InvalidRequestError(f"port={port!r}: a whole number up to {PORT_MAX}; 0: any that is free; None: no page")
    return QueryObserver(spark, port)


class QueryObserver:
    """Keeps what is known of the queries of a session: `observe` makes one. `print(observer)` shows a table.

    Names, places, topics and numbers are all that is shown: no options, and no offsets of other sources. The last
    100 queries that have ended stay, with the state that they ended in. Safe for threads.
    """

    def __init__(self, spark: SparkSession, port: int | None) -> None:
        self._changed = threading.Condition()
        self._looks: Looks = {}
        self._progress: dict[str, Mapping[str, Any]] = {}
        self._spark: SparkSession | None = spark
        self._listener = _Listener(self)
        self._server = None if port is None else _serve(self, port)
        try:
            if is_connect(spark):
                # Counts of Python workers so far go out with the next operation. If that were the listener's, Spark's
                # client would take them for an unknown response, and drop all listeners.
                spark.sql("SELECT 1").collect()
            spark.streams.addListener(self._listener)
            for query in spark.streams.active:
                if (progress := query.lastProgress) is not None:
                    self._take(progress)
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int | None:
        """The port of the page; None: there is none."""
        return None if self._server is None else self._server.server_port

    def queries(self) -> list[dict[str, Any]]:
        """Return each query as JSON can hold it.

        Lags are `sources[i]["minOffsetsBehindLatest"]` and so on, and by partition `sources[i]["topics"][topic][p]`.
        """
        return [as_json(look) for look in self._known()]

    def metrics(self) -> str:
        """Return the page of Prometheus."""
        return text(families(self._known()), HELP)

    def last_progress(self, query: StreamingQuery | str, *, timeout_s: float = END_TIMEOUT_S) -> Mapping[str, Any]:
        """Return the last progress of a query, by itself, its name or its id: `datasource.lag` takes it.

        It is there also when `query.lastProgress` is None, as over Spark Connect when the query has ended. Spark
        reports late: for a StreamingQuery that has ended this waits until its end is known, `timeout_s` at most.

        Raises: InvalidRequestError: no such query was seen, or no batch of it is over.
        """
        query_id = query if isinstance(query, str) else str(query.id)
        run_id = "" if isinstance(query, str) or query.isActive else str(query.runId)

        def is_over() -> bool:
            known = self._looks.get(query_id)
            return known is not None and known.run_id == run_id and known.state != RUNNING

        with self._changed:
            if run_id:
                self._changed.wait_for(is_over, timeout_s)
            named = {look.name: look.id for look in self._looks.values()}
            found = named.get(query_id, query_id)
            if found not in self._looks:
                raise InvalidRequestError(f"no query {query_id!r} was seen{did_you_mean(query_id, named)}")
            if found not in self._progress:
                raise InvalidRequestError(f"there is no progress of query {query_id!r} yet: no batch of it is over")
            return self._progress[found]

    def close(self) -> None:
        """End the page, and watch no more; `print` and the rest show what was known. May be called again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        spark, self._spark = self._spark, None
        if spark is not None:
            _forget(spark, self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return "\n".join(table_lines(rows(self._known()), COLUMNS)) or "no streaming query was seen so far"

    def __repr__(self) -> str:
        at = "" if self.port is None else f" at http://{LOOPBACK}:{self.port}/metrics"
        return f"QueryObserver({len(self._looks)} queries{at})"

    def _known(self) -> list[QueryLook]:
        with self._changed:
            return list(self._looks.values())

    def _become(self, looks: Looks) -> None:
        self._looks = looks
        for query_id in self._progress.keys() - looks.keys():
            del self._progress[query_id]
        self._changed.notify_all()

    def _take(self, progress: Mapping[str, Any]) -> None:
        with self._changed:
            before = self._looks
            self._become(fold.progressed(before, progress))
            if self._looks is not before:
                self._progress[str(progress["id"])] = progress

    def _start(self, event: QueryStartedEvent) -> None:
        with self._changed:
            self._become(fold.started(self._looks, str(event.id), str(event.runId), event.name))

    def _idle(self, event: QueryIdleEvent) -> None:
        with self._changed:
            self._become(fold.idle(self._looks, str(event.id), str(event.runId)))

    def _end(self, event: QueryTerminatedEvent) -> None:
        with self._changed:
            failed = event.exception is not None
            self._become(fold.ended(self._looks, str(event.id), str(event.runId), failed=failed))


class _Listener(StreamingQueryListener):
    """Hands events on. Spark Connect calls it in this process, too."""

    def __init__(self, observer: QueryObserver) -> None:
        self._observer = observer

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._observer._start(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._observer._take(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._observer._idle(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._observer._end(event)


def families(looks: list[QueryLook]) -> list[Family]:
    """Return the metrics of HELP: gauges of lag and rates are of queries that run, so that none stays as it was."""
    own = [(look, {"query": look.name, "id": look.id}) for look in looks]
    running = [(look, labels) for look, labels in own if look.state == RUNNING]
    begun = [(look, labels) for look, labels in running if look.batch >= 0]
    sources = [(each, labels | {"place": each.place}) for look, labels in begun for each in look.sources]
    summaries = [(source.summary, labels) for source, labels in sources]

    def over_partitions(which: str) -> list[tuple[Labels, float]]:
        return [(labels, found[f"{which}OffsetsBehindLatest"]) for found, labels in summaries]

    partitions: list[tuple[Labels, float]] = [
        (labels | {"topic": topic, "partition": p}, count)
        for source, labels in sources
        for topic, parts in source.behind.items()
        for p, count in parts.items()
    ]
    return [
        gauge("pylog_query_running", *((labels, float(look.state == RUNNING)) for look, labels in own)),
        gauge("pylog_query_batch", *((labels, look.batch) for look, labels in begun)),
        gauge("pylog_query_progress_timestamp_seconds", *((labels, look.progress_s) for look, labels in begun)),
        gauge("pylog_query_offsets_behind_latest", *partitions),
        *(
            gauge(f"pylog_query_{which}_offsets_behind_latest", *over_partitions(which))
            for which in ("min", "avg", "max")
        ),
        gauge("pylog_query_input_rows_per_second", *((labels, look.input_rows_per_s) for look, labels in running)),
        gauge(
            "pylog_query_processed_rows_per_second", *((labels, look.processed_rows_per_s) for look, labels in running)
        ),
        counter("pylog_query_rows", *((labels, look.rows) for look, labels in own)),
        counter("pylog_query_dropped_rows", *((labels, look.dropped_rows) for look, labels in own)),
        counter("pylog_query_misfits", *((labels, n) for look, labels in own if (n := look.misfits) is not None)),
    ]


class _Page(ThreadingHTTPServer):
    observer: QueryObserver

    def handle_error(self, request: object, client_address: object) -> None:
        """Print no traceback of a peer that is gone or slow."""
        logger.info("a request for metrics failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET /metrics and nothing else, as the brokers' endpoint does."""

    server: _Page
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        is_known = self.path.partition("?")[0] == "/metrics"
        body = self.server.observer.metrics() if is_known else "the metrics are at /metrics\n"
        data = body.encode()
        self.send_response(HTTPStatus.OK if is_known else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests on the terminal of the user's program."""


def _serve(observer: QueryObserver, port: int) -> _Page:
    """Raises: InvalidRequestError: the port is in use; StorageError."""
    try:
        page = _Page((LOOPBACK, port), _Handler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            remedy = "give another one, or 0 for any that is free"
            raise InvalidRequestError(f"port {port} of {LOOPBACK} is in use: {remedy}") from None
        raise StorageError(f"port {port} of {LOOPBACK} cannot be opened: {error.strerror}") from error
    page.observer = observer
    threading.Thread(target=page.serve_forever, name="pylog-observer", daemon=True).start()
    return page


def _forget(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Remove the listener; a session that has stopped has none."""
    if getattr(spark, "is_stopped", False):  # of Spark Connect, which would warn
        return
    with suppress(PySparkException, OSError, AttributeError, AssertionError):
        spark.streams.removeListener(listener)
