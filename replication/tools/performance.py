"""How fast a cluster takes records, and gives them: measured by our client, with tables of records."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition

Row = dict[str, Any]
ROWS = 1000  # of one send
SENDS_PER_S = 100  # with a throughput
UNLIMITED = -1
_POLL_MS = 100
_PERCENTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}


class Reports(NamedTuple):
    """Intermediate rows, passed to `show` every `every_s` seconds."""

    every_s: float
    show: Callable[[Row], None]


def produce(
    client: KafkaClient,
    topic: str,
    records: int,
    record_bytes: int,
    *,
    throughput: int = UNLIMITED,
    reports: Reports | None = None,
    **settings: Any,
) -> Row:
    """Send this many records of random bytes, `throughput` a second at most; the rate, and percentiles of the latency.

    `settings` are those of `KafkaClient.producer`. The latency of a record is the time from the call that sends it,
    with others, to its acknowledgement. All of them are kept, so that percentiles are exact: 16 bytes a send. While it
    sends, `reports` tells what was acknowledged since the last time.

    Raises: UnknownTopicError, KafkaError: records were not acknowledged; InvalidConfigError.
    """
    client.topic(topic)
    rows_max = ROWS if throughput == UNLIMITED else max(1, min(ROWS, throughput // SENDS_PER_S))
    value = pa.array([np.random.default_rng(n).bytes(record_bytes) for n in range(rows_max)], pa.binary())
    table = pa.table({"value": value})
    latencies_ms, counts = array("d"), array("q")
    failed: list[BaseException] = []

    def acknowledged(begin: float, rows: int, done: Future[Any]) -> None:
        if (error := done.exception()) is not None:
            failed.append(error)
        else:
            latencies_ms.append((perf_counter() - begin) * 1000)
            counts.append(rows)

    start, sent = perf_counter(), 0
    shown, shown_s = 0, start
    with client.producer(**settings) as producer:
        while sent < records and not failed:
            if throughput != UNLIMITED and (ahead_s := sent / throughput - (perf_counter() - start)) > 0:
                SYSTEM.clock.sleep_ms(ahead_s * 1000)
            rows, begin = min(rows_max, records - sent), perf_counter()
            future = producer.send(topic, table.slice(0, rows))
            future.add_done_callback(partial(acknowledged, begin, rows))
            sent += rows
            if reports is not None and (since_s := perf_counter() - shown_s) >= reports.every_s:
                shown, before, shown_s = len(counts), shown, shown_s + since_s
                reports.show(_interim(latencies_ms[before:shown], counts[before:shown], record_bytes, since_s))
    if failed:
        raise failed[0]
    rate = _rate(sent, sent * record_bytes, perf_counter() - start)
    return {**rate, **latency(np.frombuffer(latencies_ms), np.frombuffer(counts, dtype=np.int64))}


def _interim(latencies_ms: array[float], counts: array[int], record_bytes: int, seconds: float) -> Row:
    records = sum(counts)
    ms = sum(each * count for each, count in zip(latencies_ms, counts, strict=True)) / max(1, records)
    times = {"avg_ms": round(ms, 3), "max_ms": round(max(latencies_ms, default=0.0), 3)}
    return {**_rate(records, records * record_bytes, seconds), **times}


def latency(latencies_ms: Any, counts: Any) -> Row:
    """Mean, maximum and percentiles of latencies, each of which so many records had."""
    order = np.argsort(latencies_ms)
    ordered, below = latencies_ms[order], np.cumsum(counts[order])
    found = {name: ordered[np.searchsorted(below, share * below[-1])] for name, share in _PERCENTILES.items()}
    named = {"avg_ms": np.average(latencies_ms, weights=counts), **found, "max_ms": ordered[-1]}
    return {name: round(float(value), 3) for name, value in named.items()}


def consume(
    client: KafkaClient,
    topic: str,
    records: int,
    *,
    group: str,
    timeout_ms: int,
    reset: Literal["earliest", "latest"] = "earliest",
) -> Row:
    """Read this many records as a member of a group, or until none came for `timeout_ms`; the rate.

    The time runs from the moment when the member gets its partitions; `join_s` is the time until then. Records of the
    last batch count only up to the wanted number. Raises: UnknownTopicError, KafkaError.
    """
    client.topic(topic)
    count = size = 0
    start = last = perf_counter()
    assigned = list[float]()

    def on_assign(partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            assigned.append(perf_counter())

    with client.consumer(topic, group, auto_offset_reset=reset, on_assign=on_assign) as consumer:
        while count < records and perf_counter() - last < timeout_ms / 1000:
            rows = consumer.poll(_POLL_MS)
            if rows is None:
                continue
            last = perf_counter()
            rows = rows.slice(0, records - count)
            count += rows.num_rows
            size += sum(pc.sum(pc.binary_length(rows.column(name))).as_py() or 0 for name in ("key", "value"))
    if not count:
        raise InvalidRequestError(f"no record of {topic} came within {timeout_ms} ms")
    return {**_rate(count, size, last - assigned[0]), "join_s": round(assigned[0] - start, 3)}


def _rate(records: int, size_bytes: int, seconds: float) -> Row:
    took = max(seconds, 1e-6)
    return {
        "records": records,
        "bytes": size_bytes,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / took),
        "mb_per_s": round(size_bytes / took / 1e6, 2),
    }
