"""LocalCluster: brokers as processes of this machine, for tests, notebooks and `pylog cluster start`.

Every broker has a directory `broker-ID` below that of the cluster, keeps its port over restarts, and ends with this
process. The coordination store is a SQLite file, unless another store is named.

From the ground up: `settings`, those of each broker; `description`, what the coordination store holds; `process`, one
broker; `brokers`, all of them, started and stopped; `cluster`, with questions to the cluster, and faults for tests.
"""

from replication.local_cluster.cluster import LocalCluster
from replication.local_cluster.description import ClusterDescription, DescribedTopic
from replication.local_cluster.process import LocalClusterError

__all__ = ["ClusterDescription", "DescribedTopic", "LocalCluster", "LocalClusterError"]
