"""The files of a partition's leader, where that broker runs on this machine: a reader may read them itself.

Law: only offsets below what the leader calls committed are read, so the records are those that it would send. Only
directories of pylog's brokers are read, and only while the broker of this id leads the partition of this topic id.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logstore.config import Isolation as IsolationName
from logstore.config import LogConfig
from logstore.env import SYSTEM
from logstore.errors import OffsetOutOfRangeError, PylogError
from logstore.log.isolation import end_of
from logstore.log.log import Log
from logstore.log.segments.directory import topic_id_of
from logstore.store.meta_properties import DirectoryOwner, owner_of
from logstore.store.reading import read_isolated
from replication.client.attempts import LOST
from replication.client.cluster import Cluster
from replication.client.fetching import FETCH_BYTES, LATEST, list_offsets
from replication.client.metadata import NO_EPOCH
from replication.client.settings import topic_settings
from replication.errors import UnsupportedVersionError
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey
from replication.protocol.messages import Isolation

if TYPE_CHECKING:
    import pyarrow as pa

ANSWER_MS = 5_000  # a broker that is slower is read over the network

logger = logging.getLogger(__name__)


class LocalReplica(NamedTuple):
    """The directory of a leader's replica on this machine."""

    directory: Path
    topic_id: str
    is_compacted: bool

    def read(
        self, start: int, end: int, columns: Sequence[str], isolation: Isolation
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the records of a range in these columns, each time with the offset where the next ones begin.

        Raises: PylogError, OSError: the files are damaged or went, or are not those of this topic any more.
        """
        policy = "compact" if self.is_compacted else "delete"  # a gap in the offsets is damage, or is not
        config = LogConfig(cleanup_policy=frozenset({policy}))
        log = Log.open(self.directory, topic_id=self.topic_id, config=config, env=SYSTEM, read_only=True)
        level: IsolationName = "read_committed" if isolation else "read_uncommitted"
        asked = columns if "offset" in columns else [*columns, "offset"]
        try:
            if (readable_end := end_of(log, level)) < end:
                raise OffsetOutOfRangeError(end, log.log_start_offset, readable_end, self.directory.name)
            for rows in read_isolated(log, start, end, asked, level, batch_bytes=FETCH_BYTES):
                yield rows.select(columns), rows["offset"][-1].as_py() + 1
        finally:
            log.close()


async def local_replica(
    cluster: Cluster, tp: TopicPartition, end: int, isolation: Isolation, leader_epoch: int = NO_EPOCH
) -> LocalReplica | None:
    """The leader's replica, if its files are here and everything below `end` is committed; else None.

    Also None if another leader than that of `leader_epoch` leads: it may have cut the log.
    """
    try:
        leader = await cluster.leader(tp)
        assert cluster.metadata is not None  # it named the leader
        address = cluster.metadata.brokers.get(leader.broker)
        if address is None or not await is_this_machine(address.host):
            return None
        topic_id = (await cluster.topic(tp.topic)).id
        directory = await _directory(cluster, leader.broker, tp)
        owner = DirectoryOwner(leader.broker, cluster.metadata.cluster_id)
        if directory is None or not _is_replica(directory, owner, topic_id):
            return None
        settings = await topic_settings(cluster, tp.topic)
        found = (await list_offsets(cluster, {tp: LATEST}, isolation=isolation))[tp]
        if leader_epoch not in (NO_EPOCH, leader.epoch):
            return None
        if found.offset < end or await cluster.leader(tp) != leader:
            return None
    except (*LOST, PylogError) as error:
        logger.info("tp=%s is read over the network: %s", tp, error)
        return None
    return LocalReplica(directory, topic_id, settings.is_compacted)


async def _directory(cluster: Cluster, broker: int, tp: TopicPartition) -> Path | None:
    """Where the broker says that it has the replica; None: it does not say."""
    request = {"topics": [{"topic": tp.topic, "partitions": [tp.partition]}]}
    try:
        answer = await cluster.call(broker, ApiKey.DESCRIBE_LOG_DIRS, request, timeout_ms=ANSWER_MS)
    except UnsupportedVersionError:
        return None
    for result in answer.results:
        if any(topic.name == tp.topic and topic.partitions for topic in result.topics):
            return Path(result.log_dir) / str(tp)
    return None


def _is_replica(directory: Path, owner: DirectoryOwner, topic_id: str) -> bool:
    return topic_id != "" and owner_of(directory.parent, SYSTEM) == owner and topic_id_of(directory, SYSTEM) == topic_id


async def is_this_machine(host: str) -> bool:
    """True if an address of the host is one of this machine's: then a socket can be bound to it."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False
