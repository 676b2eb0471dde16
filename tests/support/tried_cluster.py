"""A cluster of processes that can be asked about."""

import asyncio

from replication.coordination import nodes
from replication.local_cluster import LocalCluster
from replication.local_cluster.description import read


class TriedCluster(LocalCluster):
    def address(self, broker):
        host, port = self._brokers[broker].address
        return f"{host}:{port}"

    def controller(self):
        found = asyncio.run(read(self.coordination, lambda tree: tree.get(nodes.CONTROLLER)))
        return None if found is None else nodes.decode_controller(found.data)
