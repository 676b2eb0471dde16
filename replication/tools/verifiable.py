"""A producer and a consumer that tell all that they do, as events: for tests of a cluster, as Kafka's own have them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

import pyarrow as pa

from logstore.env import SYSTEM
from logstore.errors import PylogError
from replication.client.blocking import Producer
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition

Event = dict[str, Any]
IsOver = Callable[[], bool]
UNLIMITED = -1
POLL_MS = 100


def produced(
    client: KafkaClient,
    topic: str,
    is_over: IsOver,
    *,
    records: int = UNLIMITED,
    throughput: int = UNLIMITED,
    value_prefix: int | None = None,
    **settings: Any,
) -> Iterator[Event]:
    """Send records 0, 1, 2, … one by one; yield what became of each, as soon as that is known, and a summary.

    A value is the number, or "prefix.number". `settings` are those of `KafkaClient.producer`.

    Raises: UnknownTopicError, InvalidConfigError.
    """
    client.topic(topic)
    yield _event("startup_complete")
    done: SimpleQueue[tuple[str, Future[Any]]] = SimpleQueue()
    begin_ms, sent, acked = SYSTEM.clock.monotonic_ms(), 0, 0

    def acknowledged() -> Iterator[Event]:
        nonlocal acked
        while not done.empty():
            value, future = done.get()
            acked += future.exception() is None
            yield _sent(topic, value, future)

    with client.producer(**settings) as producer:
        numbers = itertools.count() if records == UNLIMITED else range(records)
        for number in numbers:
            if is_over():
                break
            if throughput > 0:
                ahead_ms = number * 1000 / throughput - (SYSTEM.clock.monotonic_ms() - begin_ms)
                SYSTEM.clock.sleep_ms(max(0.0, ahead_ms))
            value = str(number) if value_prefix is None else f"{value_prefix}.{number}"
            future = _send(producer, topic, value)
            future.add_done_callback(partial(_put, done, value))
            sent += 1
            yield from acknowledged()
        producer.flush()
        yield from acknowledged()
    yield _event("shutdown_complete")
    seconds = max(1, SYSTEM.clock.monotonic_ms() - begin_ms) / 1000
    rates = {"target_throughput": throughput, "avg_throughput": acked / seconds}
    yield _event("tool_data", sent=sent, acked=acked, **rates)


def _send(producer: Producer, topic: str, value: str) -> Future[Any]:
    try:
        return producer.send(topic, pa.table({"value": [value.encode()]}))
    except PylogError as error:  # before anything was sent
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


def _put(done: SimpleQueue[tuple[str, Future[Any]]], value: str, future: Future[Any]) -> None:
    done.put((value, future))


def _sent(topic: str, value: str, future: Future[Any]) -> Event:
    if (error := future.exception()) is not None:
        failed = {"exception": type(error).__name__, "message": str(error)}
        return _event("producer_send_error", topic=topic, key=None, value=value, **failed)
    where = {"partition": -1, "offset": -1}  # with acks=0 nobody tells
    for partition, extent in future.result().items():
        where = {"partition": partition, "offset": extent.start}
    return _event("producer_send_success", topic=topic, **where, key=None, value=value)


def consumed(  # noqa: PLR0913  each of them is one choice of the caller
    client: KafkaClient,
    topic: str,
    group: str,
    is_over: IsOver,
    *,
    records: int = UNLIMITED,
    reset: Literal["earliest", "latest", "none"] = "earliest",
    verbose: bool = False,
) -> Iterator[Event]:
    """Read as a member of a group, and commit each batch; yield partitions, records and commits as they come.

    `verbose`: also each record. Raises: UnknownTopicError, KafkaError.
    """
    client.topic(topic)
    waiting: SimpleQueue[Event] = SimpleQueue()

    def note(name: str) -> Callable[[frozenset[TopicPartition]], None]:
        return lambda tps: waiting.put(_event(name, partitions=[tp._asdict() for tp in sorted(tps)]))

    yield _event("startup_complete")
    count = 0
    callbacks = {"on_assign": note("partitions_assigned"), "on_revoke": note("partitions_revoked")}
    options: dict[str, Any] = {"auto_offset_reset": reset, "enable_auto_commit": False, **callbacks}
    with client.consumer(topic, group, **options) as consumer:
        while not is_over() and (records == UNLIMITED or count < records):
            rows = consumer.poll(POLL_MS)
            while not waiting.empty():
                yield waiting.get()
            if rows is None:
                continue
            if records != UNLIMITED:
                rows = rows.slice(0, records - count)
            count += rows.num_rows
            yield from _read(topic, rows, verbose=verbose)
            tp = TopicPartition(topic, rows.column("partition")[0].as_py())
            offset = rows.column("offset")[-1].as_py() + 1
            consumer.commit({tp: offset})
            yield _event("offsets_committed", success=True, offsets=[{**tp._asdict(), "offset": offset}])
    while not waiting.empty():
        yield waiting.get()
    yield _event("shutdown_complete")


def _read(topic: str, rows: pa.RecordBatch, *, verbose: bool) -> Iterator[Event]:
    partition, offsets = rows.column("partition")[0].as_py(), rows.column("offset")
    edges = {"minOffset": offsets[0].as_py(), "maxOffset": offsets[-1].as_py()}
    read = {"topic": topic, "partition": partition, "count": rows.num_rows, **edges}
    yield _event("records_consumed", count=rows.num_rows, partitions=[read])
    if verbose:
        cells = zip(*(rows.column(name).to_pylist() for name in ("key", "value", "offset")), strict=True)
        for key, value, offset in cells:
            text = {"key": _text(key), "value": _text(value)}
            yield _event("record_data", topic=topic, partition=partition, offset=offset, **text)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _event(name: str, **what: Any) -> Event:
    return {"timestamp": SYSTEM.clock.now_ms(), "name": name, **what}
