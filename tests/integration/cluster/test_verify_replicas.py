"""`pylog verify-replicas` on a running cluster: it finds what differs, where, and changes nothing by looking."""

import asyncio
import signal
import threading

import pyarrow as pa
import pytest

from logstore.records.batch import batches, seal
from replication.client.kafka_client import KafkaClient
from replication.errors import ErrorCode
from replication.model.cluster import topic_uuid
from replication.network.channel import connect
from replication.protocol.apis import ApiKey
from replication.protocol.messages import EXAMINER, FetchPartition, FetchRequest, FetchTopic
from replication.tools.replica_verification import ReplicaVerification
from tests.integration.cluster.test_commands import pylog
from tests.support.commands import run_pylog

pytestmark = pytest.mark.slow


def verify(cluster, topic, *options):
    where = ("--bootstrap-server", cluster.running.bootstrap)
    return run_pylog("verify-replicas", "--topics-include", topic, *options, *where)


def log_of(cluster, broker, topic, partition=0):
    return cluster.running.log_dir(broker) / f"{topic}-{partition}" / f"{0:020d}.log"


def overwrite(path, number, change):
    """Change the bytes of one batch on the disk."""
    data = path.read_bytes()
    at, header = list(batches(data))[number]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(change(data[at : at + header.size_bytes]))


def flipped(batch):
    """One bit of its last value is another one."""
    return batch[:-2] + bytes([batch[-2] ^ 1]) + batch[-1:]


def with_crc(batch):
    made = bytearray(batch)
    seal(made, 0, len(made))
    return made


def produce_each(cluster, topic, *values):
    """Each in a batch of its own."""
    with KafkaClient(cluster.running.bootstrap) as client:
        for value in values:
            client.append(topic, pa.table({"value": [value]}))


def test_replicas_that_are_alike_are_and_one_that_is_behind_has_a_lag(cluster):
    controller, stays, stopped = cluster.roles()
    topic = cluster.create((stays, controller), (controller, stays), (stays, stopped))
    for partition in range(3):
        assert cluster.produce(topic, ["x" * 100] * 50, partition=partition) == []
    told = verify(cluster, f"{topic}|nosuch", "--output", "json").ok()
    assert {row["partition"]: (row["start"], row["end"], row["lag"], row["findings"]) for row in told.json} == {
        partition: (0, 50, 0, []) for partition in range(3)
    }
    sizes = {row["partition"]: row["bytes"] for row in told.json}
    assert sizes[0] == 2 * log_of(cluster, stays, topic).stat().st_size
    assert told.err.startswith(f"compared {sum(sizes.values())} bytes of 3 partitions; largest lag 0")

    cluster.running.stop(stopped)
    cluster.until(lambda: stopped not in cluster.state(topic, 2).isr)
    lost = verify(cluster, topic, "--output", "json")
    assert lost.code == 1
    (finding,) = lost.json[2]["findings"]
    assert (finding["broker"], finding["offset"], lost.json[0]["findings"]) == (stopped, 0, [])


def test_a_flipped_byte_and_another_batch_are_found_at_their_offsets(cluster):
    topic = cluster.create((1, 2, 3))
    produce_each(cluster, topic, *"abcdefgh")
    before = cluster.states(topic)
    overwrite(log_of(cluster, 2, topic), 2, lambda batch: with_crc(flipped(batch)))
    found = verify(cluster, topic, "--output", "json")
    row = found.json[0]
    ((broker, offset, reason),) = (finding.values() for finding in row["findings"])
    assert (found.code, broker, offset) == (1, 2, 2)
    assert reason.startswith("the batch of offset 2 has")
    assert cluster.states(topic) == before

    overwrite(log_of(cluster, 3, topic), 3, flipped)
    (line,) = (line for line in verify(cluster, topic).lines if "broker 3" in line)
    assert line.split()[7] == "3"
    assert "KAFKA_STORAGE_ERROR" in line  # and it is mended from now on


def test_it_goes_on_beside_writers_from_where_replicas_were_alike(cluster):
    topic, is_over = cluster.create((1, 2, 3)), threading.Event()
    with KafkaClient(cluster.running.bootstrap) as client:

        def write():
            while not is_over.is_set():
                client.append(topic, pa.table({"value": ["x" * 1000] * 20}))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            verification, end, runs = ReplicaVerification(client, topic, fetch_bytes=30_000), 0, 0
            while runs < 5 or end == 0:  # the first append may take longer than five looks
                runs += 1
                (row,) = verification.run()
                assert (row["start"], row["findings"], row["lag"]) == (end, [], 0)
                end = row["end"]
        finally:
            is_over.set()
            writer.join()


@pytest.mark.parametrize("version", [4, 8, 12, 13, 15, 16])
def test_a_follower_shows_an_examiner_all_it_has_and_others_nothing(cluster, version):
    topic = cluster.create((1, 2))
    assert cluster.produce(topic, ["a", "b"]) == []
    topic_id = topic_uuid(cluster.running.describe().topics[topic].id)

    async def asked(replica_id):
        host, port = cluster.running.address(2).split(":")
        client = await connect(host, int(port), timeout_s=10)
        wanted = FetchTopic(topic, topic_id, (FetchPartition(0, 0, 1 << 20),))
        request = FetchRequest(0, 0, (wanted,), replica_id=replica_id)
        answer = await client.send(ApiKey.FETCH, version, "test", request)
        client.end(ConnectionAbortedError())
        ((row,),) = (found.partitions for found in answer.topics)
        return row.error_code, bytes(row.records)

    assert asyncio.run(asked(-1))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert asyncio.run(asked(EXAMINER)) == (ErrorCode.NONE, log_of(cluster, 2, topic).read_bytes())
    assert cluster.state(topic).isr == (1, 2)


def test_what_is_wrong_with_the_options_is_refused(cluster):
    assert "not a regular expression" in verify(cluster, "(").err
    assert verify(cluster, "(").code == 2
    assert "no topic's name matches" in verify(cluster, "nosuch").failed()
    assert verify(cluster, ".*", "--fetch-size", 0).code == 2


def test_with_an_interval_it_compares_what_is_new_again_and_again_until_it_is_stopped(cluster):
    topic = cluster.create((1, 2))
    assert cluster.produce(topic, ["x" * 100] * 50) == []
    where = ("--bootstrap-server", cluster.running.bootstrap, "--output", "json")
    every = ("--report-interval", 100)
    with pylog("verify-replicas", "--topics-include", topic, *every, *where) as (process, line):
        assert line == "["
        threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would hold the command up
        compared = (int(said.split()[1]) for said in process.stderr if said.startswith("compared "))
        first = next(compared)
        assert first == 2 * log_of(cluster, 1, topic).stat().st_size
        assert next(compared) == 0
        assert cluster.produce(topic, ["y" * 100] * 50) == []
        again = next(found for found in compared if found)
        assert again <= first
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(30) == 0
