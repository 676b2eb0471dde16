"""A cluster of processes whose brokers can be stopped where they stand, and asked about."""

import asyncio
import os
import signal

from replication.coordination import nodes
from replication.local_cluster import LocalCluster


class TriedCluster(LocalCluster):
    def pause(self, broker):
        os.kill(self.pid(broker), signal.SIGSTOP)

    def resume(self, broker):
        if broker in self.live:
            os.kill(self.pid(broker), signal.SIGCONT)

    def address(self, broker):
        host, port = self._brokers[broker].address
        return f"{host}:{port}"

    def controller(self):
        found = asyncio.run(self._read(lambda tree: tree.get(nodes.CONTROLLER)))
        return None if found is None else nodes.decode_controller(found.data)
