"""Descriptions of a topic beside its records: settings, offsets, sizes. For tools."""

from __future__ import annotations

from typing import Any

from logstore.errors import PylogError
from logstore.store.description import TopicDescription
from logstore.store.store import LogStore


def describe_topic(store: LogStore, info: TopicDescription) -> dict[str, Any]:
    """Return the topic's settings, and the offsets [start, end), segments and bytes of each partition.

    There may be fewer records than offsets: markers of transactions take offsets, and compaction leaves gaps. A
    partition that cannot be read has an `error`, and None for what is unknown.
    """
    return {
        "topic": info.name,
        "topic_id": info.topic_id,
        "config": dict(info.overrides),
        "settings": info.config.to_properties(),
        "partitions": [
            {"partition": partition} | _describe_partition(store, info.name, partition)
            for partition in range(info.partitions)
        ],
    }


def _describe_partition(store: LogStore, topic: str, partition: int) -> dict[str, Any]:
    try:
        log = store.log(topic, partition)
        start, end, segments = log.log_start_offset, log.log_end_offset, log.segments()
    except PylogError as error:
        return dict.fromkeys(("start", "end", "offsets", "segments", "bytes")) | {"error": str(error)}
    return {
        "start": start,
        "end": end,
        "offsets": end - start,
        "segments": len(segments),
        "bytes": sum(segment.size_bytes for segment in segments),
        "error": None,
    }
