"""A cluster of processes whose brokers can be stopped where they stand, and asked about."""

import asyncio
import os
import signal

from replication.coordination import nodes
from replication.local_cluster import LocalCluster
from tests.support.stopping import stop


class TriedCluster(LocalCluster):
    def pause(self, broker):
        stop(self.pid(broker), self.coordination)

    def resume(self, broker):
        if broker in self.live:
            os.kill(self.pid(broker), signal.SIGCONT)

    def address(self, broker):
        host, port = self._brokers[broker].address
        return f"{host}:{port}"

    def controller(self):
        found = asyncio.run(self._read(lambda tree: tree.get(nodes.CONTROLLER)))
        return None if found is None else nodes.decode_controller(found.data)
