"""What there is to say about a topic beside its records: settings, offsets, sizes. For tools."""

from __future__ import annotations

from typing import Any

from logstore.catalog import TopicInfo
from logstore.store import LogStore


def describe_topic(store: LogStore, info: TopicInfo) -> dict[str, Any]:
    """Return the topic's settings, and the offsets [start, end), segments and bytes of each partition."""
    partitions = []
    for partition, extent in store.offsets(info.name).items():
        segments = store.log(info.name, partition).segments()
        partitions.append(
            {
                "partition": partition,
                "start": extent.start,
                "end": extent.end,
                "offsets": extent.count,
                "segments": len(segments),
                "bytes": sum(segment.size_bytes for segment in segments),
            }
        )
    return {
        "topic": info.name,
        "topic_id": info.topic_id,
        "config": dict(info.overrides),
        "settings": info.config.to_properties(),
        "partitions": partitions,
    }
