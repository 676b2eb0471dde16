"""A Kafka before 0.10, which ends the connection when it is asked for its versions, is named as such at once."""

import os
import socket
import struct
import subprocess
import threading
import time

import pytest

from replication.client.connection import UnsupportedVersionError
from replication.client.kafka_client import KafkaClient
from tests.support.kafka4 import free_ports
from tests.support.kafka_tools import QUIET, kafka_home
from tests.support.repeats import only_long

METADATA = 3


def read(connection, size):
    found = b""
    while len(found) < size and (more := connection.recv(size - len(found))):
        found += more
    return found


def serve(connection, manner):
    """As a Kafka 0.9, which is silent, or ends the connection: it answers Metadata 0 only, of no brokers and topics."""
    with connection:
        while size := read(connection, 4):
            asked = read(connection, *struct.unpack(">i", size))
            key, version, correlation = struct.unpack_from(">hhi", asked)
            if (key, version) == (METADATA, 0):
                connection.sendall(struct.pack(">iiii", 12, correlation, 0, 0))
            elif manner == "ends":
                return


@pytest.mark.parametrize("manner", ["is silent", "ends"])
def test_a_broker_that_does_not_tell_its_versions_and_answers_the_oldest_request_is_too_old(manner):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection, manner), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        with (
            KafkaClient(f"127.0.0.1:{server.getsockname()[1]}") as client,
            pytest.raises(UnsupportedVersionError, match=r"a Kafka before 0\.10"),
        ):
            client.topics()
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
@only_long("starts a ZooKeeper and a Kafka 0.9")
def test_a_real_kafka_0_9_is_named(tmp_path):
    home, (tree, port) = kafka_home(), free_ports(2)
    (tmp_path / "zoo").write_text(f"dataDir={tmp_path}/tree\nclientPort={tree}\nclientPortAddress=127.0.0.1\n")
    (tmp_path / "broker").write_text(
        f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path}/logs\n"
        f"zookeeper.connect=127.0.0.1:{tree}\nlog.cleaner.enable=false\n"
    )
    running = []
    try:
        for script, config, at in (
            ("zookeeper-server-start.sh", "zoo", tree),
            ("kafka-server-start.sh", "broker", port),
        ):
            command = ["bash", str(home / "bin" / script), str(tmp_path / config)]
            with (tmp_path / f"{config}.log").open("w") as log:
                running.append(
                    subprocess.Popen(
                        command, env=os.environ | QUIET | {"LOG_DIR": str(tmp_path)}, stdout=log, stderr=log
                    )
                )
            until_listening(at)
        with KafkaClient(f"127.0.0.1:{port}") as client, pytest.raises(UnsupportedVersionError, match=r"before 0\.10"):
            client.topics()
    finally:
        for each in running:
            each.kill()
            each.wait()


def until_listening(port, within_s=60):
    end_s = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.1)
        else:
            return
