"""Our own members of share groups, on our own brokers."""

import asyncio
import time

import pytest

from replication.client.kafka_client import KafkaClient
from tests.support.commands import run_pylog
from tests.support.in_process import begun_by_an_earlier_release, brokers_in_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_brokers_that_know_no_share_groups_are_told_of_in_one_line_within_seconds(tmp_path):
    asyncio.run(begun_by_an_earlier_release(f"sqlite:{tmp_path / 'tree.db'}"))
    with brokers_in_process(tmp_path, (1,)) as running, KafkaClient(running.bootstrap) as client:
        client.create_topic("mine")
        client.append("mine", [{"value": "a"}])
        begun = time.monotonic()
        refused = run_pylog("consume", "mine", "--share-group", "g", "--bootstrap-server", running.bootstrap).failed()
        assert "share groups need Kafka 4.1 or later" in refused
        assert time.monotonic() - begun < 10
