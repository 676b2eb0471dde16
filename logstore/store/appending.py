"""Appending rows: which row goes to which partition, and one unbroken range of offsets for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from logstore.config import LogConfig
from logstore.errors import PylogError, StaleLogError
from logstore.log.producers.state import Producing
from logstore.log.validation import result_of
from logstore.records.compression import Codec
from logstore.store.description import TopicDescription
from logstore.store.log_manager import LogManager
from logstore.store.reading import OffsetRange
from logstore.store.transactions.transaction import Part

if TYPE_CHECKING:
    from logstore.records.rows import Rows


def append_parts(
    logs: LogManager,
    info: TopicDescription,
    rows: Rows,
    parts: Sequence[Part],
    codec: Codec,
    producer: Producing | None,
) -> dict[int, OffsetRange]:
    """Append its rows to each of these partitions; return the offsets that they got.

    Raises: the outcomes of `Log.append_as_leader`; `appended` of the error holds the ranges that were written before.
    """
    from logstore.records.encoding import encode

    appended: dict[int, OffsetRange] = {}
    try:
        for partition, order in parts:
            log = logs.log(info.name, partition)
            logs.note_append(info.name, partition)
            active = log.files.view.bases[-1:]
            stamp = producer.stamp(info.name, partition, len(order)) if producer else None
            batches = encode(rows, order, codec=codec, batch_bytes_max=info.config.batch_bytes_max, producer=stamp)
            if producer is not None and log.topic_id != info.topic_id:
                raise StaleLogError(f"topic {info.name!r} was deleted and recreated; look it up again")
            with log.lock():  # for all of its batches: no one else's records come between
                start = None
                for records in batches:
                    done = result_of(log.append_as_leader((records,), guard=producer.guard if producer else None))
                    start = done.first_offset if start is None else start
                    appended[partition] = OffsetRange(start, done.next_offset)
            if log.files.view.bases[-1:] != active:
                logs.expire([(info.name, partition)], is_append=True)
    except PylogError as error:
        raise _with_appended(error, info.name, appended) from error
    return appended


def codec_of(config: LogConfig, compression: str | None) -> Codec:
    """The codec of the topic; where it leaves the choice to the writer, the one asked for."""
    if config.compression_type != "producer":
        return Codec.from_name(config.compression_type)
    return Codec.from_name(compression or "none")


def _with_appended(error: PylogError, topic: str, appended: Mapping[int, OffsetRange]) -> PylogError:
    """The same error, with what had been appended before it."""
    if not appended:
        return error
    done = ", ".join(f"{topic}-{p} offsets {r.start} to {r.end - 1}" for p, r in sorted(appended.items()))
    error.args = (f"{error}; appended before that: {done}",)
    error.__dict__["appended"] = dict(appended)
    return error
