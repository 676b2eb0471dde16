"""The commands for transactions on a running cluster: what they print, what they refuse, and what they change."""

import time

import pyarrow as pa
import pytest

from datasource.topics.interface import Batch, TransactionSettings
from datasource.topics.transactions.batches import ClusterTransactions
from logstore.records.batch import TRANSACTIONAL, Record, build
from replication.client.kafka_client import Isolation, KafkaClient, KafkaError
from tests.support.commands import rows, run_pylog

pytestmark = pytest.mark.slow


def test_an_open_transaction_is_listed_described_and_aborted(pylog, cluster):
    topic, id = cluster.create((1, 2)), f"id-{next(cluster.names)}"
    with KafkaClient(cluster.running.bootstrap) as client:
        pair = client.init_producer(id, timeout_ms=60_000).pair
        with client.transactional_producer(id, pair) as producer:
            producer.append(topic, pa.table({"value": ["a", "b"]}))
            producer.flush()
            assert [id, str(pair.producer_id), "Ongoing"] in rows(pylog("transactions", "list", "--state", "Ongoing"))
            (told,) = pylog("transactions", "describe", id, "--output", "json").ok().json
            assert (told["state"], told["timeout_ms"], told["partitions"]) == ("Ongoing", 60_000, [f"{topic}-0"])
            assert rows(pylog("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", 0)) == []
            where = ("--topic", topic, "--partition", 0, "--start-offset", 0)
            assert "abort that transactional id" in pylog("transactions", "abort", *where).failed()

            assert (
                pylog("transactions", "abort", id, "--dry-run").ok().err
                == f"would abort the open transaction of {id}\n"
            )
            assert pylog("transactions", "abort", id).ok().err == f"aborted the open transaction of {id}\n"
            with pytest.raises(KafkaError, match="took this transactional id over"):
                client.end_transaction(id, pair, commits=True)
        assert [id] not in [row[:1] for row in rows(pylog("transactions", "list", "--state", "Ongoing"))]
        client.append(topic, pa.table({"value": ["c"]}))
        end = client.extents(topic, isolation=Isolation.READ_COMMITTED)[0].end
        assert [row for batch in client.read(topic, 0, 0, end) for row in batch["value"].to_pylist()] == [b"c"]

    assert "no transactional id 'nosuch'" in pylog("transactions", "describe", "nosuch").failed()
    assert "no transactional id 'nosuch'" in pylog("transactions", "abort", "nosuch").failed()
    assert pylog("transactions", "abort").code == 2
    assert pylog("transactions", "abort", "--dead").code == 2
    assert pylog("transactions", "abort", id, "--topic", topic).code == 2
    assert pylog("transactions", "list", "--committed").code == 2
    assert run_pylog("transactions", "list", "--state", "Ongoing", "--path", "data").code == 2


def test_a_transaction_that_no_coordinator_knows_is_found_and_aborted_in_its_log(pylog, cluster):
    topic = cluster.create((1,))
    record = Record(1, round(time.time() * 1000), None, b"hangs")
    hanging = build([record], attributes=TRANSACTIONAL, leader_epoch=0, producer=(987_654, 0, 0))
    with KafkaClient(cluster.running.bootstrap) as client:
        client.append(topic, pa.table({"value": ["a"]}))
    log = next(cluster.running.log_dir(1).glob(f"{topic}-0/*.log"))
    cluster.running.kill(1)
    gone = pylog("log-dirs", "--broker-list", 1)  # the others may still believe in it
    assert gone.code in (1, 2)
    assert "does not answer" in gone.err or "not up" in gone.err
    with log.open("ab") as file:
        file.write(hanging)
    cluster.running.restart(1)
    cluster.until(lambda: cluster.state(topic).leader == 1)

    assert rows(pylog("transactions", "find-hanging", "--topic", topic)) == []
    found = pylog("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", 0)
    assert [row[:5] for row in rows(found)] == [[topic, "0", "987654", "0", "1"]]
    where = ("--topic", topic, "--partition", 0)
    assert "there are [1]" in pylog("transactions", "abort", *where, "--start-offset", 0).failed()
    assert "--partition 0 --start-offset 1" in found.err
    pylog("transactions", "abort", *where, "--start-offset", 1).ok()
    assert rows(pylog("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", 0)) == []


def test_what_a_dead_driver_of_spark_left_is_released(pylog, cluster):
    topic, name = cluster.create((1, 2)), f"query-{next(cluster.names)}"
    decisions = f"decisions-{name}"
    cluster.create((1, 2), name=decisions)
    settings = TransactionSettings(driver="gone", timeout_ms=60_000, decision_topic=decisions)
    with KafkaClient(cluster.running.bootstrap) as client:
        transactions = ClusterTransactions(client, settings)
        transactions.claim(name, "run")
        with transactions.begun(Batch(name=name, batch_id=0, run="run"), (0, 0)) as part:
            part.append(topic, pa.table({"value": [b"a"]}), partitioner="murmur3", compression=None)
            part.prepare()
        assert [each for each in client.list_transactions(states=["Ongoing"]) if name in each.transactional_id]
        assert pylog("transactions", "release", name, "--decision-topic", decisions).ok().err == f"released {name}\n"
        assert not [each for each in client.list_transactions(states=["Ongoing"]) if name in each.transactional_id]
        before = client.topics().keys()
        for wrong, said in (
            ((name + "x", decisions), f"did you mean {name!r}"),
            ((name, "nosuch"), "no topic 'nosuch'"),
        ):
            assert said in pylog("transactions", "release", wrong[0], "--decision-topic", wrong[1]).failed()
        assert client.topics().keys() == before, "no topic is made for a name that is wrong"
