"""A real broker among hostile clients: it lives, its memory is bounded, others are served, and each costs one line."""

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest

from replication.broker.log_lines import LINES_MAX
from replication.local_cluster import LocalCluster
from replication.protocol.apis import SERVED, ApiKey, encode_request
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.support.fork_server import quick
from tests.support.fuzz import frame_of, mutated
from tests.support.inside import brokers_of
from tests.support.repeats import only_long

from .tools import Confluent

SEED = int(os.environ.get("PYLOG_FUZZ", "1").split(":")[0])
AT_ONCE = 16
IDLE = 2_000  # 5,000 are tested beside the server itself
# A broker that gets 700 file descriptors, and has to ask for most of them.
FEW_DESCRIPTORS = quick("""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 700))
from replication.local_cluster import LocalCluster
with LocalCluster(1, sys.argv[1]) as running:
    print(running.bootstrap, flush=True)
    sys.stdin.read()
""")
GROWTH_BYTES = 150 << 20
SIZES = (-1, -(2**31), 0, 7, 2**31 - 1, 104_857_601, 0x16030100, 0x47455420)


@pytest.fixture(scope="module")
def alone():
    """A cluster of one broker, which nobody else uses."""
    with LocalCluster(1) as running:
        yield running


@pytest.fixture
def port(alone):
    return int(alone.bootstrap.rpartition(":")[2])


@pytest.fixture
def unhurt(alone):
    """It is the same process with not much more memory, it serves, and it met nothing that it had not foreseen."""
    process = brokers_of(alone)[1].process
    before = resident_bytes(process.pid)
    serves(alone, "before")
    yield
    serves(alone, "after")
    assert process.poll() is None
    assert resident_bytes(process.pid) - before < GROWTH_BYTES
    assert "ERROR" not in log_of(alone)


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def log_of(cluster):
    return (cluster.directory / "broker-1" / "broker" / "server.log").read_text()


def serves(cluster, word, count=50):
    with Confluent(cluster.bootstrap) as client:
        start = max(0, client.offset_at("served", 0, -1)) if word != "before" else 0
        client.produce("served", [f"{word} {n}" for n in range(count)])
        start = client.offset_at("served", 0, -1) - count
        found = client.consume("served", count, offset=start)
    assert [value for *_, value in found] == [f"{word} {n}" for n in range(count)]


def connect(port, host="127.0.0.1"):
    """Come from this address."""
    found = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(host, 0))
    found.settimeout(20)
    return found


def outcome(port, data, host="127.0.0.1"):
    """The broker's reaction: "answered" or "closed". Not to do either is a failure."""
    with connect(port, host) as peer:
        try:
            peer.sendall(data)
            return "answered" if peer.recv(4) else "closed"
        except ConnectionError:
            return "closed"


def test_requests_of_every_api_and_version_with_any_content(unhurt, port):
    rng = random.Random(SEED)
    asked = []
    for key, versions in SERVED.items():
        for version in range(versions.first, versions.last + 1):
            valid = frame_of(key, version, rng)
            asked += [struct.pack(">i", len(frame)) + frame for frame in (valid, mutated(valid, rng))]
    with ThreadPoolExecutor(AT_ONCE) as threads:  # some are answered after seconds
        outcomes = Counter(threads.map(partial(outcome, port), asked))
    assert min(outcomes["answered"], outcomes["closed"]) > 50


def test_bytes_that_are_no_requests(unhurt, port, alone):
    rng = random.Random(SEED)
    before = log_of(alone).count("\n")
    garbage = [struct.pack(">i", size) + bytes(100) for size in SIZES]
    garbage += [struct.pack(">i", 500) + rng.randbytes(500) for _ in range(100)]
    garbage += [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(508),
    ]
    for data in garbage:
        assert outcome(port, data) == "closed"
    assert log_of(alone).count("\n") - before <= LINES_MAX + 20  # and what the others did


def test_names_of_clients_keep_the_log_text_and_its_lines_whole(unhurt, port, alone):
    name = "t\0\n[2026-01-01 00:00:00,000] INFO forged"
    request = ProduceRequest(0, 1000, (ProduceTopic(name, (ProducePartition(0, bytes(100)),)),))
    wire = b"".join(map(bytes, encode_request(ApiKey.PRODUCE, 7, 1, name, request)))
    assert outcome(port, wire, host="127.0.0.2") == "closed"  # acks=0 of a topic that is none
    assert "forged" in log_of(alone)
    for line in log_of(alone).splitlines():
        assert line.isprintable()
        assert not line.startswith("[2026-01-01")


def test_half_requests_slow_readers_and_thousands_of_idle_connections(unhurt, port, alone):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rng = random.Random(SEED)
    metadata = struct.pack(">ihhih", 14, 3, 1, 1, -1) + struct.pack(">i", -1)
    try:
        with contextlib.ExitStack() as opened:
            for number in range(min(IDLE, hard - 500)):
                peer = opened.enter_context(connect(port))
                match number % 5:
                    case 0:  # half a request, which says that it is a large one
                        peer.sendall(struct.pack(">ihh", 100 << 20, 0, 9) + rng.randbytes(200))
                    case 1:  # half a small one
                        peer.sendall(struct.pack(">ihh", 900, 3, 1) + rng.randbytes(20))
                    case 2:  # asks, and never reads
                        peer.sendall(metadata * 20)
            serves(alone, "meanwhile")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@only_long("thousands of connections")
def test_more_connections_than_there_are_descriptors_do_not_keep_logs_from_their_files(tmp_path):
    running = subprocess.Popen(
        [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        bootstrap = running.stdout.readline().strip()
        port = int(bootstrap.rpartition(":")[2])
        early = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        early.produce("served", "before")
        assert early.flush(20) == 0
        with contextlib.ExitStack() as opened:
            for _ in range(1000):
                opened.enter_context(connect(port))
            for number in range(20):  # logs that were not open yet, too
                early.produce(f"new-{number}", "meanwhile")
            assert early.flush(20) == 0
        with Confluent(bootstrap) as late:
            late.produce("served", ["after"])
            assert [value for *_, value in late.consume("served", 2)] == ["before", "after"]
    finally:
        running.communicate("")
    log = (tmp_path / "broker-1" / "broker" / "server.log").read_text()
    assert log.count("others are turned away") == 1
    assert "ERROR" not in log
