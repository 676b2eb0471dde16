"""The same brokers over ZooKeeper: registration, elections, ISRs, the controller's office."""

import pytest

from tests.conformance.coordination.conftest import zookeeper  # noqa: F401  a fixture
from tests.integration.cluster.conftest import SESSION_TIMEOUT_MS, running

pytestmark = pytest.mark.slow


def test_brokers_over_zookeeper_fail_over_and_come_back(zookeeper, tmp_path):  # noqa: F811
    with running(3, tmp_path, coordination=f"zookeeper:{zookeeper}/brokers-test") as cluster:
        controller, one, two = cluster.roles()
        topic = cluster.create((controller, one, two), (one, two, controller))
        assert cluster.produce(topic, range(50)) == []

        cluster.running.kill(controller)
        took_s = cluster.until_states(topic, {0: (one, [one, two], 1), 1: (one, [one, two, controller], 0)})

        assert took_s < SESSION_TIMEOUT_MS / 1000 + 1.5  # ZooKeeper ends sessions by whole ticks
        assert cluster.running.controller() in (one, two)
        assert cluster.produce(topic, range(50, 100)) == []
        cluster.running.restart(controller)
        cluster.until(lambda: cluster.states(topic)[0] == (one, [one, two, controller], 1))
        assert cluster.values(topic, count=100) == [str(number) for number in range(100)]
