"""A cluster of processes whose brokers can be stopped where they stand, and asked about."""

import asyncio
import os
import signal
import sqlite3
from contextlib import closing, suppress

from replication.coordination import nodes
from replication.local_cluster import LocalCluster


class TriedCluster(LocalCluster):
    def pause(self, broker):
        """Stop a broker, but not while it holds the lock of the coordination file: nobody could decide anything."""
        for _ in range(20):
            os.kill(self.pid(broker), signal.SIGSTOP)
            if self._is_unlocked():
                return
            os.kill(self.pid(broker), signal.SIGCONT)

    def _is_unlocked(self):
        kind, _, path = self.coordination.partition(":")
        if kind != "sqlite":
            return True
        with (
            closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as file,
            suppress(sqlite3.OperationalError),
        ):
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
            return True
        return False

    def resume(self, broker):
        if broker in self.live:
            os.kill(self.pid(broker), signal.SIGCONT)

    def address(self, broker):
        host, port = self._brokers[broker].address
        return f"{host}:{port}"

    def controller(self):
        found = asyncio.run(self._read(lambda tree: tree.get(nodes.CONTROLLER)))
        return None if found is None else nodes.decode_controller(found.data)
