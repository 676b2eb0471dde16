"""A cluster of processes that can be asked about."""

import asyncio

from replication.coordination import nodes
from replication.coordinators.binary import partition_of
from replication.local_cluster import LocalCluster
from replication.local_cluster.description import read
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition


class TriedCluster(LocalCluster):
    def address(self, broker):
        host, port = self._brokers[broker].address
        return f"{host}:{port}"

    def is_whole(self):
        """Is every partition led, and every replica in sync?"""
        found = self.describe()
        return all(
            state.leader > 0 and len(state.isr) == len(found.topics[tp.topic].partitions[tp.partition])
            for tp, state in found.leadership.items()
        )

    def coordinator(self, name, topic=OFFSETS_TOPIC):
        """The leader of the partition that has the group, or the transactional id, by the tree; None: none yet."""
        found = self.describe()
        partitions = found.topics[topic].partitions if topic in found.topics else ()
        tp = TopicPartition(topic, partition_of(name, len(partitions))) if partitions else None
        return found.leadership[tp].leader if tp in found.leadership else None

    def controller(self):
        found = asyncio.run(read(self.coordination, lambda tree: tree.get(nodes.CONTROLLER)))
        return None if found is None else nodes.decode_controller(found.data)
