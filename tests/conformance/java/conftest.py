"""Three brokers for programs in Java."""

import pytest

from tests.support.tried_cluster import TriedCluster


@pytest.fixture(scope="package")
def cluster():
    settings = {
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.num.partitions": 3,
        "zookeeper.session.timeout.ms": 2000,
        "group.initial.rebalance.delay.ms": 0,
    }
    with TriedCluster(3, settings=settings) as running:
        yield running
