"""The source counts by headers, over a cluster, as many records as it reads there."""

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from replication.client.kafka_client import KafkaClient
from tests.support.counting import KINDS, LATEST, LOG, counted, fill
from tests.support.repeats import only_long

pytestmark = pytest.mark.slow


@only_long("brokers that compact")
def test_as_many_as_a_read_gives_from_brokers(cluster):
    with KafkaClient(cluster.running.bootstrap) as client:
        for name, partitions, config in (("log", 2, LOG), ("latest", 1, LATEST), ("empty", 1, {})):
            cluster.create(*[(1, 2, 3)] * partitions, name=name, **config)

        def aborted(topic: str, rows: pa.Table) -> None:
            fate = {"transactional.id": "counted", "log_level": 0}
            producer = Producer({"bootstrap.servers": cluster.running.bootstrap, **fate})
            producer.init_transactions(30)
            producer.begin_transaction()
            for row in rows.to_pylist():
                producer.produce(topic, row["value"], row["key"], row["partition"])
            assert producer.flush(30) == 0
            producer.abort_transaction(30)

        fill(client.append, aborted)
        client.append("latest", pa.table({"key": ["last"], "value": ["x" * 1900]}))
        place = {"kafka.bootstrap.servers": cluster.running.bootstrap}
        cluster.until(lambda: counted(place, {"subscribe": "latest"}) < (60, 60), timeout_s=90)
        for kind in (*KINDS, {"shortCircuit": "true"}, {"subscribe": "latest", "shortCircuit": "true"}):
            by_headers, rows = counted(place, kind)
            assert by_headers == rows, kind
        assert counted(place, {}) == (130, 130)
        assert counted(place, {"isolation": "read_uncommitted"}) == (140, 140)
