"""Encoding of LeaderAndIsr and UpdateMetadata by hand: kio takes 20 µs for a partition, and there may be thousands."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from replication.protocol import interbroker as ib
from replication.protocol.kio_entities import encode_entity
from replication.protocol.wire import COMPACT

_HEAD = struct.Struct(">iiq")
_NO_TAGS = b"\x00"
SHORT_MAX = 126  # a count that takes one byte


def request(body: ib.LeaderAndIsrRequest | ib.UpdateMetadataRequest) -> bytes:
    """The body of a request, as kio writes it."""
    parts = [_HEAD.pack(body.controller_id, body.controller_epoch, body.broker_epoch)]
    if isinstance(body, ib.LeaderAndIsrRequest):
        parts.append(struct.pack(">b", body.type))
        others: Iterable[Any] = body.live_leaders
    else:
        others = body.live_brokers
    parts.append(COMPACT.put_count(len(body.topic_states)))
    for topic in body.topic_states:
        topic_id = topic.topic_id.bytes if topic.topic_id is not None else bytes(16)
        count = COMPACT.put_count(len(topic.partition_states))
        parts += (COMPACT.put_string(topic.topic_name), topic_id, count)
        parts += map(_partition, topic.partition_states)
        parts.append(_NO_TAGS)
    rows = [encode_entity(other) for other in others]
    parts += (COMPACT.put_count(len(rows)), *rows, _NO_TAGS)
    return b"".join(parts)


def _partition(row: ib.LeaderAndIsrPartition | ib.UpdateMetadataPartition) -> bytes:
    isr, replicas = row.isr, row.replicas
    if len(isr) > SHORT_MAX or len(replicas) > SHORT_MAX:
        return encode_entity(row)
    layout = _layout(len(isr), len(replicas))
    head = layout.pack(
        row.partition_index,
        row.controller_epoch,
        row.leader,
        row.leader_epoch,
        len(isr) + 1,
        *isr,
        row.zk_version,
        len(replicas) + 1,
        *replicas,
    )
    if isinstance(row, ib.UpdateMetadataPartition):
        return head + _ids(row.offline_replicas) + _NO_TAGS
    return head + _ids(row.adding_replicas) + _ids(row.removing_replicas) + struct.pack("?", row.is_new) + _NO_TAGS


@lru_cache(maxsize=1024)
def _layout(isr: int, replicas: int) -> struct.Struct:
    """The layout of a partition: its index, three epochs and the leader, the ISR, the node's version, the replicas."""
    return struct.Struct(f">iiiiB{isr}iiB{replicas}i")


def _ids(brokers: Sequence[int]) -> bytes:
    return COMPACT.put_count(len(brokers)) + struct.pack(f">{len(brokers)}i", *brokers)
