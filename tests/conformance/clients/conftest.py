"""A cluster of three brokers for the tests of clients, and the four clients."""

import pytest

from replication.local_cluster import LocalCluster

from . import tools


@pytest.fixture(scope="package")
def cluster():
    settings = {"offsets.topic.num.partitions": 3, "default.replication.factor": 3, "num.partitions": 3}
    with LocalCluster(3, settings=settings) as running:
        yield running


@pytest.fixture(params=tools.TOOLS, scope="package")
def tool(request, cluster):
    """One of the clients."""
    with tools.TOOLS[request.param](cluster.bootstrap) as made:
        yield made


@pytest.fixture(scope="package")
def all_tools(cluster):
    """Those that are here."""
    made = [tool(cluster.bootstrap) for name, tool in tools.TOOLS.items() if tools.is_here(name)]
    yield made
    for each in made:
        each.close()
