"""A broker registers once it serves, and not before."""

import pytest

from replication.broker.broker import Broker
from replication.config.broker import BrokerConfig
from replication.coordination import features
from replication.coordination.tree import CoordinationError
from tests.support.in_process import brokers_in_process
from tests.support.site import until


def test_a_broker_whose_session_ends_while_it_starts_fails_and_is_not_registered_half_ready(tmp_path, caplog):
    config = BrokerConfig.from_properties(
        {
            "broker.id": 2,
            "log.dirs": str(tmp_path / "broker-2"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "coordination": f"sqlite:{tmp_path / 'tree.db'}",
        }
    )
    with brokers_in_process(tmp_path, (1,)) as running:
        late, tree = Broker(config), running.brokers[1].lifecycle.tree
        is_free = late.lifecycle.wait_until_free

        async def loses_its_session(own):
            await is_free(own)
            await tree.end_session(own.token)
            await until(lambda: not late.lifecycle.has_session())

        late.lifecycle.wait_until_free = loses_its_session
        with pytest.raises(CoordinationError):
            running.do(late.start())
        assert "is not registered" not in caplog.text
        assert set(running.do(features.read_registered(tree))[0]) == {1}
        running.do(late.stop())
