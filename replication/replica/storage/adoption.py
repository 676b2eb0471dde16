"""Adoption: a stand-alone directory becomes a broker's; its topics are created in the cluster with this one replica.

It happens once, when a broker first opens a directory without an owner; after a crash it is repeated. From then on the
library may only read the directory: its appends could not be told from those of a leader of another epoch. Topics keep
their ids and settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from logstore.env import Env
from logstore.errors import TopicExistsError
from logstore.store.description import TopicDescription, new_topic_id
from logstore.store.log_dir import LogDir
from logstore.store.meta_properties import DirectoryOwner
from logstore.store.recovery import take_over
from logstore.store.store import LogStore
from replication.coordination import cluster, topics
from replication.coordination.tree import Tree
from replication.model.cluster import BrokerId
from replication.replica.storage.store_check import check_owner

logger = logging.getLogger(__name__)

RETENTION_MS = "retention.ms"  # the only setting whose default differs in a broker


async def take(tree: Tree, log_dir: LogDir, broker: BrokerId, env: Env) -> Sequence[TopicDescription]:
    """Make the directory this broker's if it has no owner yet; return the topics that it brought.

    Raises: NotAStoreError: it belongs to another broker or cluster; TopicExistsError: the cluster has another topic
    with one of the names.
    """
    owner = DirectoryOwner(broker, await cluster.read_cluster_id(tree, new_topic_id()))
    if log_dir.owner is None:
        adopted = await asyncio.to_thread(_settled_topics, log_dir, env)
        for topic in adopted:
            await _adopt(tree, topic, broker)
        await asyncio.to_thread(log_dir.claim, owner)
        return adopted
    check_owner(log_dir.path, log_dir.owner, owner)
    return ()


def _settled_topics(log_dir: LogDir, env: Env) -> Sequence[TopicDescription]:
    """Return the topics, after recovering from the last crash and ending every transaction."""
    store = LogStore(log_dir, env)
    if not store.topics():
        return ()
    take_over(store.logs, store.transactions)
    return store.topics()


async def _adopt(tree: Tree, topic: TopicDescription, broker: BrokerId) -> None:
    settings = {RETENTION_MS: str(topic.config.retention_ms), **topic.overrides}
    try:
        await topics.create_topic(
            tree, topic.name, topic.topic_id, dict.fromkeys(range(topic.partitions), (broker,)), settings
        )
    except TopicExistsError:
        known = (await cluster.read_topics(tree)).get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            raise
    logger.info("broker=%d topic=%s id=%s partitions=%d adopted", broker, topic.name, topic.topic_id, topic.partitions)
