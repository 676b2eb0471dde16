"""A Kafka before 0.10, which ends the connection when it is asked for its versions, is named as such at once."""

import itertools
import os
import socket
import struct
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from replication.client.kafka_client import KafkaClient
from replication.errors import UnsupportedVersionError
from tests.support.kafka4 import free_ports
from tests.support.kafka_tools import QUIET, kafka_home
from tests.support.repeats import only_long

METADATA, API_VERSIONS = 3, 18
LATE_S = 1.2


def read(connection, size):
    found = b""
    while len(found) < size and (more := connection.recv(size - len(found))):
        found += more
    return found


def serve(connection, manner, is_first):
    """Answer like a Kafka 0.9, which is silent, or ends the connection: it answers Metadata 0 only, of no brokers and
    topics.

    Or as a later one whose first connection is cut, or is answered late.
    """
    with connection:
        while size := read(connection, 4):
            asked = read(connection, *struct.unpack(">i", size))
            key, version, correlation = struct.unpack_from(">hhi", asked)
            if (key, version) == (METADATA, 0):
                connection.sendall(struct.pack(">iiii", 12, correlation, 0, 0))
            elif manner == "ends" or (manner == "is cut once" and is_first):
                return
            elif key == API_VERSIONS and manner not in ("is silent", "ends"):
                time.sleep(LATE_S if is_first else 0)
                connection.sendall(struct.pack(">iihihhh", 16, correlation, 0, 1, METADATA, 99, 99))


@contextmanager
def broker(manner):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            for number in itertools.count():
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection, manner, number == 0), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("manner", ["is silent", "ends"])
def test_a_broker_that_does_not_tell_its_versions_and_answers_the_oldest_request_is_too_old(manner):
    with (
        broker(manner) as address,
        KafkaClient(address) as client,
        pytest.raises(UnsupportedVersionError, match=r"a Kafka before 0\.10"),
    ):
        client.topics()


@pytest.mark.parametrize("manner", ["is cut once", "is late once"])
def test_a_broker_whose_connection_is_cut_or_that_was_busy_is_asked_again(manner):
    with (
        broker(manner) as address,
        KafkaClient(address) as client,
        pytest.raises(UnsupportedVersionError, match="speaks METADATA in versions 99 to 99"),
    ):
        client.topics()


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
