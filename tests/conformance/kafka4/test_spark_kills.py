"""A stream of Spark into a real Kafka 4.4 is exactly once while its brokers, its driver and its workers are killed -9.

The proof is that of tests/spark/kills, at brokers of another kind. By hand, with many more kills:

    PYLOG_SEED=7 pytest -n0 --soak tests/conformance/kafka4/test_spark_kills.py
"""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

import pytest

from replication.client.admin import controller
from replication.client.kafka_client import KafkaClient
from replication.tools.topics import described
from tests.spark.kills.killer import Run, catch_up, compare, end, kinds, stop, strike, wait_for_batch
from tests.spark.kills.places import TOPICS, Cluster
from tests.support.asker import until
from tests.support.kafka4 import SAFE, is_whole
from tests.support.repeats import only_long, soaked

SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))
KILLS = soaked(1, 30)  # `test_spark` kills a leader, too
WHOLE_WITHIN_S = 120
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(600 + 100 * KILLS),
    only_long("a real Kafka 4.4, and JVMs of Spark that are killed"),
]
FIRST = ("everything at deciding", "broker at written")


class RealKafka(Cluster):
    """The three brokers of the tests here; they have no transactions of two phases, and cannot be paused."""

    kinds = {  # noqa: RUF012
        kind: often for kind, often in Cluster.kinds.items() if kind.startswith(("worker", "driver", "every", "broker"))
    }

    def __init__(self, kafka):
        self._kafka, self._client = kafka, KafkaClient(kafka.bootstrap)
        self.options = {"kafka.bootstrap.servers": kafka.bootstrap}
        for topic, partitions in TOPICS.items():
            self._client.create_topic(topic, partitions=partitions, replicas=3, **SAFE)
        self._mender, self._mending = ThreadPoolExecutor(1), None

    def strike(self, what, dice):
        """Kill the controller or the leader of what is written; it comes back soon, or once it leads nothing."""
        self._mend()
        leader = self._client.topic("out").leaders[dice.randrange(TOPICS["out"])].broker
        victim = dice.choice((leader, self._client.run(controller)))
        self._kafka.kill(victim)
        self._mending = self._mender.submit(self._back, victim, is_missed=dice.random() < 0.5)

    def _back(self, victim, *, is_missed):
        if is_missed:
            until(lambda: self._leads_nothing(victim), WHOLE_WITHIN_S)
        self._kafka.start(victim)
        until(lambda: is_whole(self._client), WHOLE_WITHIN_S)

    def _leads_nothing(self, broker):
        partitions = [each for topic in described(self._client, None) for each in topic["partitions"]]
        return all(each["leader"] != broker for each in partitions if len(each["replicas"]) > 1)

    def close(self):
        self._mend()
        self._mender.shutdown()
        self._client.close()


def test_a_killed_stream_copies_every_record_once_and_in_order(three_brokers, tmp_path):
    print(f"PYLOG_SEED={SEED}")
    place = RealKafka(three_brokers)
    run = Run(tmp_path, place, random.Random(SEED))
    try:
        run.start()
        wait_for_batch(run, 0)  # a batch 0 that was not planned to its end, Spark itself refuses
        for kind in islice(chain(FIRST, kinds(run)), KILLS):
            strike(run, kind)
            print(f"{kind}, {run.batches()} batches", flush=True)
        catch_up(run)
        stop(run)
        found = compare(run)
        print(found, dict(run.kills))
        assert found["records"] > 5_000
    finally:
        end(run)
        place.close()
