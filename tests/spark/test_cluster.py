"""The same source over a cluster: what a DataFrame writes is there once, and read as from a directory."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

import logstore
from datasource import lag, lag_of_group, observe
from datasource.delta.owner import owner_of, read_note
from datasource.delta.tiering import ReportRow, goal, plan, prepare
from datasource.delta.topic_tables import find, table_of
from datasource.jobs import compaction, retention, tasks, tiering, verify
from datasource.jobs.cli import jobs as jobs_command
from datasource.topics import cluster as cluster_topics
from datasource.topics.locations import Location
from logstore import InvalidRequestError
from logstore.progress import no_progress
from replication.client.groups import Committed
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from tests.integration.cluster.test_damage import flip, log_of, until_flushed
from tests.spark.test_tiering import places
from tests.support.repeats import only_long, times
from tests.support.secured import PASSWORD, USER, secured_broker

TIMEOUT_S = 60


def columns(count, begin=0):
    return {
        "key": pa.array([f"k{n}" for n in range(begin, begin + count)]),
        "value": pa.array([f"v{n}" for n in range(begin, begin + count)]),
    }


def test_a_frame_written_to_a_cluster_is_read_back(spark, client, over, topic):
    frame = spark.range(3000).selectExpr(
        "cast(id as string) key", "concat('v', id) value", "timestamp_millis(1700000000000 + id) timestamp"
    )
    frame.write.format("pylog").options(**over, topic=topic, exactlyOnce=False).mode("append").save()
    found = spark.read.format("pylog").options(**over, subscribe=topic).load()
    rows = found.selectExpr(
        "cast(key as string)", "cast(value as string)", "partition", "offset", "timestamp"
    ).collect()
    assert sorted(row.value for row in rows) == sorted(f"v{n}" for n in range(3000))
    assert {row.value: row.key for row in rows} == {f"v{n}": str(n) for n in range(3000)}
    assert {p: e.end for p, e in client.extents(topic).items()} == {
        p: sum(row.partition == p for row in rows) for p in range(3)
    }


@only_long("brokers of its own")
def test_a_secured_cluster_is_written_and_read_and_nothing_shows_a_password(spark, tmp_path):
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    with secured_broker(tmp_path / "secured") as (listener, certificates):
        jaas = f"{module} required username={USER} password={json.dumps(PASSWORD, ensure_ascii=False)};"
        security = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": jaas,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificates / "ca.pem",
        }
        with KafkaClient(listener.address, security=security) as client:
            client.create_topic("t", partitions=2)
        over = {f"kafka.{name}": value for name, value in security.items()}
        over["kafka.bootstrap.servers"] = listener.address
        frame = spark.range(200).selectExpr("concat('v', id) value")
        frame.write.format("pylog").options(**over, topic="t", exactlyOnce=False).mode("append").save()
        found = spark.read.format("pylog").options(**over, subscribe="t").load()
        assert sorted(bytes(row.value).decode() for row in found.collect()) == sorted(f"v{n}" for n in range(200))
        stream = spark.readStream.format("pylog").options(**over, subscribe="t", groupId="g")
        query = stream.option("startingOffsets", "earliest").load().writeStream.format("noop")
        with observe(spark, port=0) as seen:
            query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            query.awaitTermination()
            progress = str(seen.last_progress(query, timeout_s=60))
            observed = [str(seen), repr(seen), json.dumps(seen.queries()), seen.metrics()]
        assert listener.address in observed[0]
        assert lag_of_group(listener.address, "g", security=security)["offsetsBehindLatest"] == 0
        shown = [found._jdf.queryExecution().toString(), str(query.lastProgress), repr(found), progress, *observed]
        shown += [
            file.read_text()
            for file in (tmp_path / "checkpoint").rglob("*")
            if file.is_file() and file.suffix != ".crc"
        ]
        assert len(shown) > 9
        assert not [text for text in shown if "word" in text or PASSWORD in text]
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in security.items()), encoding="utf-8")
        told = ["run", "--bootstrap-server", listener.address, "--command-config", str(file), "--dry-run"]
        told += ["--job", "tiering", "--table", str(tmp_path / "lake"), "--job", "verify", "--output", "json"]
        done = CliRunner().invoke(jobs_command, told)
        turns = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(turn["job"], turn["rows"][1]["status"]) for turn in turns] == [
            ("tiering", "would be tiered"),
            ("verify", "would be read"),
        ], done.output
        wrong = over | {"kafka.sasl.jaas.config": f"{module} required username=ada password=hidden;"}
        refusing = spark.read.format("pylog").options(**wrong, subscribe="t").load()
        with pytest.raises(Exception, match="user or password is wrong") as refused:
            refusing.collect()
        assert "hidden" not in str(refused.value)


@only_long("jobs of Spark")
def test_keys_go_to_the_partitions_where_a_directory_has_them(spark, client, over, topic, tmp_path):
    rows = pa.table(columns(500))
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("t", partitions=3)
        store.append("t", rows)
        wanted = {p: store.read("t", partition=p).read_all()["value"].to_pylist() for p in range(3)}
    client.append(topic, rows)
    found = spark.read.format("pylog").options(**over, subscribe=topic).load().orderBy("partition", "offset").collect()
    assert {p: [bytes(row.value) for row in found if row.partition == p] for p in range(3)} == wanted


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"startingOffsets": '{"T":{"0":1,"1":-2,"2":0}}'}, ["b0", "a1", "a2", "b1", "b2"]),
        ({"endingOffsets": '{"T":{"0":1,"1":0,"2":0}}'}, ["a0"]),
        (
            {"startingTimestamp": 1700000001000, "startingOffsetsByTimestampStrategy": "latest"},
            ["a1", "a2", "b1", "b2"],
        ),
        ({"endingTimestamp": datetime.fromtimestamp(1700000001, UTC)}, ["a0", "b0"]),
        ({"minPartitions": 5}, ["a0", "a1", "a2", "b0", "b1", "b2"]),
        ({"maxRecordsPerPartition": 1}, ["a0", "a1", "a2", "b0", "b1", "b2"]),
        ({"shortCircuit": True, "kafka.client.rack": "r"}, ["a0", "a1", "a2", "b0", "b1", "b2"]),
        ({"isolation": "read_uncommitted"}, ["a0", "a1", "a2", "b0", "b1", "b2"]),
    ][:: times(3, 1)],
)
def test_options_say_what_is_read(spark, client, over, cluster, options, values):
    topic = cluster.create((1, 2, 3), (2, 3, 1), (3, 1, 2))
    times = [1700000000000, 1700000001000, 1700000002000]
    for partition, name in ((0, "a"), (1, "b")):
        client.append(
            topic,
            pa.table(
                {
                    "value": [f"{name}{n}" for n in range(3)],
                    "timestamp": times,
                    "partition": pa.array([partition] * 3, pa.int32()),
                }
            ),
        )
    options = {name: str(value).replace('"T"', f'"{topic}"') for name, value in options.items()}
    found = spark.read.format("pylog").options(**over, subscribe=topic, **options).load()
    assert sorted(bytes(row.value).decode() for row in found.collect()) == sorted(values)


def test_a_stream_reads_a_cluster_while_its_leaders_die(spark, client, over, cluster, topic, tmp_path):
    """The stream writes each acknowledged record once: sink is a directory, exactly once."""
    sink = tmp_path / "sink"
    with logstore.open(sink) as store:
        store.create_topic("out", partitions=1)
    stop, sent = threading.Event(), []

    def produce():
        with KafkaClient(cluster.running.bootstrap) as producer:
            while not stop.is_set():
                begin = len(sent)
                producer.append(topic, pa.table(columns(50, begin)))
                sent.extend(range(begin, begin + 50))
                time.sleep(0.02)

    writing = threading.Thread(target=produce)
    query = (
        spark.readStream.format("pylog")
        .options(**over, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=400)
        .load()
        .select("key", "value")
        .writeStream.format("pylog")
        .options(path=str(sink), topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        writing.start()
        for broker in (1, 2)[: times(1, 2)]:
            cluster.until(lambda wanted=broker * 300: len(sent) > wanted, timeout_s=TIMEOUT_S)
            cluster.running.kill(broker)
            more = len(sent) + 200
            cluster.until(lambda more=more: len(sent) > more, timeout_s=TIMEOUT_S)
            cluster.running.restart(broker)
        stop.set()
        writing.join(TIMEOUT_S)
        query.processAllAvailable()
    finally:
        stop.set()
        query.stop()
    with logstore.open(sink, mode="r") as store:
        found = store.read("out", partition=0).read_all()["value"].to_pylist()
    assert sorted(found, key=lambda v: int(v[1:])) == [f"v{n}".encode() for n in sent]


def test_a_stream_commits_to_its_group_and_another_one_goes_on_there(spark, client, over, cluster, topic, tmp_path):
    """Tools of Kafka see the group where the query is; with a new checkpoint nothing comes twice."""
    group = f"of-{topic}"

    def run(number):
        frame = spark.readStream.format("pylog").options(
            **over, subscribe=topic, groupId=group, startingOffsets="group"
        )
        out = frame.load().selectExpr("cast(value as string) value").writeStream.format("memory")
        out = out.queryName(f"of_group_{number}").option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
        query = out.trigger(availableNow=True).start()
        query.awaitTermination(TIMEOUT_S)
        assert lag(query.lastProgress)["offsetsBehindLatest"] == 0
        return {row.value for row in spark.table(f"of_group_{number}").collect()}

    client.commit(group, {TopicPartition(topic, p): Committed(0) for p in range(3)})
    client.append(topic, pa.table(columns(200)))
    assert lag_of_group(over["kafka.bootstrap.servers"], group)["offsetsBehindLatest"] == 200
    assert run(1) == {f"v{n}" for n in range(200)}
    ends = {p: extent.end for p, extent in client.extents(topic).items()}
    asked = ConsumerGroupTopicPartitions(group, [Position(topic, p) for p in range(3)])
    seen = cluster.administer("list_consumer_group_offsets", [asked])[group].topic_partitions
    assert {each.partition: each.offset for each in seen} == ends
    client.append(topic, pa.table(columns(50, 200)))
    assert lag_of_group(over["kafka.bootstrap.servers"], group)["offsetsBehindLatest"] == 50
    assert run(2) == {f"v{n}" for n in range(200, 250)}
    again = spark.read.format("pylog").options(**over, subscribe=topic, groupId=group, startingOffsets="group")
    assert again.load().count() == 0


# ------------------------------------------------------------------------------------------------- the jobs


@only_long("runs of tiering")
def test_what_brokers_deleted_is_read_from_the_table_though_a_run_died_behind_its_commit(
    spark, client, over, cluster, tmp_path
):
    """Every record is in the table once, and in table and log together."""
    bootstrap, table = over["kafka.bootstrap.servers"], str(tmp_path / "lake" / "{topic}")
    topic = cluster.create((1, 2, 3), (2, 3, 1), segment_bytes=500)
    location = Location(bootstrap=bootstrap)

    def run():
        rows = tiering.run(spark, bootstrap=bootstrap, topics=topic, table=table).collect()
        assert all(row["note"] is None for row in rows)
        return {row["status"] for row in rows}

    def append(begin):
        for n in range(begin, begin + 200, 20):  # batches, so that there are segments
            client.append(topic, pa.table(columns(20, n)))

    append(0)
    directory = table_of(topic, table)
    owner = owner_of(location, location.read().topic(topic), directory)
    task, lines = (
        prepare(find(location, owner, directory, None)),
        {p: ReportRow(topic=topic, partition=p) for p in (0, 1)},
    )
    tiering.through_package(spark, task, plan(task, goal(task, lines), lines), no_progress)  # and here it dies
    assert read_note(owner).tiered == {}
    assert run() == {"nothing to do"}
    ends = {p: extent.end for p, extent in client.extents(topic).items()}
    assert {p: end for p, (end, _) in read_note(owner).tiered.items()} == ends
    append(200)
    assert run() == {"tiered"}

    def keep(retention_bytes):
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[
            ConfigEntry("retention.bytes", retention_bytes, incremental_operation=AlterConfigOpType.SET)
        ])  # fmt: skip
        cluster.administer("incremental_alter_configs", [resource])

    keep("500")
    cluster.until(lambda: all(extent.start for extent in client.extents(topic).values()), TIMEOUT_S)
    keep("-1")
    append(400)
    read = spark.read.format("pylog").options(**over, subscribe=topic)
    assert read.load().count() < 600
    union = read.options(includeTiered=True, tieredTable=table).load()
    assert sorted(bytes(row.value) for row in union.collect()) == sorted(b"v%d" % n for n in range(600))
    assert run() == {"tiered"}
    assert places(directory) == [(p, n) for p, e in client.extents(topic).items() for n in range(e.end)]


@only_long("jobs of Spark")
def test_verify_tells_damage_from_what_a_leader_refuses(spark, client, over, cluster, topic, monkeypatch):
    bootstrap = over["kafka.bootstrap.servers"]
    alone = cluster.create((3,), flush_messages=1)
    for value in ("first", "second", "third"):
        client.append(alone, pa.table({"value": [value]}))
    client.append(topic, pa.table(columns(300)))
    until_flushed(cluster, 3, alone, 3)
    flip(log_of(cluster, 3, alone), "second")

    rows = verify.run(spark, bootstrap=bootstrap, topics=[topic, alone]).collect()
    assert {(row.topic, row.status) for row in rows} == {(topic, "sound"), (alone, "damaged")}
    assert all(row.bytes > 0 for row in rows)
    ((damage,),) = [row.damage for row in rows if row.damage]
    assert damage.file == f"{alone}-0 as its leader sends it from offset 0 on"
    assert "CRC" in damage.reason

    cluster.running.kill(3)
    cluster.running.restart(3)  # it reads what it has, and serves no damage from then on
    cluster.until(lambda: cluster.states(alone)[0][0] == 3)
    impatient = KafkaClient(bootstrap, timeout_ms=1500)
    monkeypatch.setattr(cluster_topics, "client_of", lambda *_: impatient)
    monkeypatch.setattr(tasks, "run_tasks", lambda _, items, work, __: [tasks.guarded(work, i) for i in items])
    (row,) = verify.run(spark, bootstrap=bootstrap, topics=alone).collect()
    assert (row.status, row.damage) == ("failed", [])
    assert f"fetch of {alone}-0 at offset 1 did not succeed" in row.note
    assert "kafka storage error" in row.note
    impatient.close()


def test_what_cannot_be_read_or_written_is_one_clear_line(spark, over, topic, tmp_path):
    def message(work):
        with pytest.raises(Exception) as caught:  # noqa: PT011  Spark wraps it, in its own ways
            work()
        return str(caught.value)

    def load(**options):
        return spark.read.format("pylog").options(**options).load()

    write = spark.range(1).selectExpr("cast(id as string) value").write.format("pylog").mode("append")
    assert "decisionTopic" in message(write.options(**over, topic=topic, decisionTopic=" ").save)
    assert "did you mean" in message(load(**over, subscribe=f"{topic}x").collect)
    assert "leave one away" in message(lambda: load(**over, path="/tmp", subscribe=topic))
    assert "no HOST:PORT" in message(lambda: load(subscribe=topic, **{"kafka.bootstrap.servers": "nowhere"}))
    assert "commits nothing" in message(load(**over, subscribe=topic, groupId="g").collect)
    union = {**over, "subscribe": topic, "includeTiered": True}
    assert "option 'tieredTable' names" in message(lambda: load(**union))
    assert "cannot be read as a Delta table" in message(load(**union, tieredTable=str(tmp_path)).collect)
    for job in (retention, compaction):
        with pytest.raises(InvalidRequestError, match=r"the brokers of a cluster apply .* by themselves"):
            job.run(spark, bootstrap=over["kafka.bootstrap.servers"])
    with pytest.raises(InvalidRequestError, match=r"over a cluster --table \(table=\) names the Delta table"):
        tiering.run(spark, bootstrap=over["kafka.bootstrap.servers"])
