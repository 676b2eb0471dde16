"""`pylog cluster start` and `pylog broker start` as processes: one line out, signals in, what is left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import logstore
from tests.support.fork_server import quick
from tests.support.repeats import only_long

pytestmark = pytest.mark.slow


PYLOG = quick("from logstore.cli import main; main()")


@contextmanager
def pylog(group, *arguments, **options):
    """A command in the foreground, and its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PYLOG, group, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        **options,
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def is_refused(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def produce(bootstrap, topic, values):
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0


def consume(bootstrap, topic, count):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in (consumer.poll(15) for _ in range(count)) if message is not None]
    finally:
        consumer.close()


def test_a_cluster_says_where_it_is_and_stops_whole_at_sigterm(tmp_path):
    with pylog("cluster", "start", "--brokers", 2, "--dir", tmp_path, "--set", "num.partitions=3") as (
        process,
        line,
    ):
        name, _, bootstrap = line.partition("=")
        assert name == "bootstrap"
        addresses = bootstrap.split(",")
        assert len(addresses) == 2
        produce(bootstrap, "made-by-asking", [b"x"])
        assert len(list(tmp_path.glob("broker-*/made-by-asking-*"))) == 3

        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 0
        assert all(map(is_refused, addresses))
        assert (tmp_path / "broker-1" / ".kafka_cleanshutdown").exists()


@only_long("a cluster of its own")
def test_ctrl_c_stops_all_brokers_at_once_and_each_of_them_cleanly(tmp_path):
    """They all hear it, as in a terminal. Nobody can take what the last ones lead, and nobody waits for that."""
    patient = ["controlled.shutdown.max.retries=3", "controlled.shutdown.retry.backoff.ms=120000"]
    settings = [*patient, "default.replication.factor=3", "num.partitions=12"]
    options = [word for each in settings for word in ("--set", each)]
    with pylog("cluster", "start", "--dir", tmp_path, *options, start_new_session=True) as (process, line):
        produce(line.partition("=")[2], "everywhere", [b"x"])
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
        assert "killed" not in process.stderr.read()
    for broker in tmp_path.glob("broker-?"):
        said = (broker / "broker" / "server.log").read_text()
        assert "Controlled shutdown succeeded" in said
        assert "Proceeding" not in said
        assert (broker / ".kafka_cleanshutdown").exists()


def test_brokers_end_when_the_process_that_started_them_is_killed(tmp_path):
    with pylog("cluster", "start", "--brokers", 1, "--dir", tmp_path) as (process, line):
        address = line.partition("=")[2]
        process.kill()
        process.wait()
        until = time.monotonic() + 10
        while not is_refused(address):
            assert time.monotonic() < until
            time.sleep(0.1)


def test_a_broker_serves_the_directory_of_a_program_and_the_program_reads_what_clients_wrote(tmp_path):
    with logstore.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=1)
        store.append("orders", pa.table({"value": [b"from the library"]}))
    config = tmp_path / "server.properties"
    config.write_text(f"broker.id=7\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/data\n")

    with pylog("broker", "start", "--config", config) as (process, line):
        bootstrap = line.partition("=")[2]
        assert consume(bootstrap, "orders", 1) == [b"from the library"]
        produce(bootstrap, "orders", [b"from a client"])
        assert consume(bootstrap, "orders", 2) == [b"from the library", b"from a client"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0

    with logstore.open(tmp_path / "data", mode="r") as store:
        rows = store.read("orders", partition=0).read_all()
        assert rows.column("value").to_pylist() == [b"from the library", b"from a client"]


def test_a_second_broker_of_the_same_id_is_refused_with_a_line_that_says_why(tmp_path):
    same = ["--set", "broker.id=1", "--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set",
            "zookeeper.session.timeout.ms=500", "--coordination", f"sqlite:{tmp_path}/tree.db"]  # fmt: skip
    with pylog("broker", "start", *same, "--set", f"log.dirs={tmp_path}/a") as (_, line):
        assert line.startswith("bootstrap=")
        produce(line.partition("=")[2], "orders", [b"which only the first has"])
        made = [tmp_path / "tree.db", tmp_path / "a", *(tmp_path / "a").rglob("*")]
        assert {each.stat().st_mode & 0o027 for each in made} == {0}, "others may neither read nor write"
        stores = list(tmp_path.glob("tree.db*"))
        assert {each.stat().st_mode & 0o777 for each in stores if each.suffix != ".lock"} == {0o600}, stores
        with pylog("broker", "start", *same, "--set", f"log.dirs={tmp_path}/b") as (second, nothing):
            assert nothing == ""
            assert second.wait(20) == 1
            said = second.stderr.read()
            assert "a broker with id 1 is registered: waiting for that to end, up to 1.5 s" in said
            assert "a broker with id 1 is registered, and still was after 1500 ms" in said
            log = (tmp_path / "b" / "broker" / "server.log").read_text()
            assert " ERROR " not in log, "its own replicas are not here, and that is no loss"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 in this Python")
def test_an_ipv6_address_is_told_in_brackets_and_clients_find_the_broker_there(tmp_path):
    settings = ["--set", "listeners=PLAINTEXT://[::1]:0", "--set", f"log.dirs={tmp_path}/data"]
    with pylog("broker", "start", *settings) as (process, line):
        bootstrap = line.partition("=")[2]
        assert re.fullmatch(r"\[::1\]:\d+", bootstrap), process.stderr.read()
        produce(bootstrap, "orders", [b"over IPv6"])
        assert consume(bootstrap, "orders", 1) == [b"over IPv6"]
    assert f"started at {bootstrap}" in (tmp_path / "data" / "broker" / "server.log").read_text()


@pytest.mark.parametrize("where", ["listeners=PLAINTEXT://0.0.0.0:0", "advertised.listeners=PLAINTEXT://h:0"])
def test_an_address_that_nobody_can_connect_to_is_refused_before_anything_is_written(tmp_path, where):
    with pylog("broker", "start", "--set", where, "--set", f"log.dirs={tmp_path}/data") as (process, line):
        assert line == ""
        assert process.wait(20) == 1
        (said,) = process.stderr.read().strip().splitlines()
        assert "no client can connect to" in said
    assert not (tmp_path / "data").exists()


def test_what_a_broker_does_stands_in_its_text_logs(tmp_path):
    with pylog("cluster", "start", "--brokers", 1, "--dir", tmp_path) as (_, line):
        produce(line.partition("=")[2], "told", [b"x"])
        logs = tmp_path / "broker-1" / "broker"
        texts = read_lines(logs / "state-change.log")
        assert any("changed partition [told,0] from NewPartition to OnlinePartition" in text for text in texts)
        assert any("completed LeaderAndIsr request" in text for text in texts)
        form = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] [A-Z]+ .+ \([\w.]+\)")
        for name, says in (
            ("controller.log", "incremented epoch to 1"),
            ("server.log", "started at 127.0.0.1"),
            ("state-change.log", "completed LeaderAndIsr request"),
        ):
            lines = read_lines(logs / name)
            assert all(form.fullmatch(each) for each in lines), lines
            assert any(says in each for each in lines)


def read_lines(path: Path):
    return path.read_text().splitlines()


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ["--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", "--set", f"log.dirs={tmp_path}/data"]
        with pylog("broker", "start", *settings) as (process, line):
            assert line == ""
            assert process.wait(20) == 1
            (said,) = process.stderr.read().splitlines()  # and not that a broker shut down: none was there
            assert said.startswith(f"pylog: listeners: cannot listen at 127.0.0.1:{port}")


def test_a_store_of_coordination_that_is_none_is_said_in_one_line(tmp_path):
    settings = ["--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", f"log.dirs={tmp_path}/data"]
    with pylog("broker", "start", *settings, "--coordination", "etcd:x") as (process, line):
        assert line == ""
        assert process.wait(20) == 1
        (said,) = process.stderr.read().splitlines()
        assert said.startswith("pylog: coordination 'etcd:x' must be sqlite:PATH or zookeeper:")
