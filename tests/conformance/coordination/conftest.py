"""One suite for every coordination store. ZooKeeper is started from Debian's `zookeeper` package.

PYLOG_ZOOKEEPER=HOST:PORT names a server that runs already (its sessions must be allowed to be as short as 1.5 s).
Without either, the tests of that back end are skipped.
"""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.repeats import only_long
from tests.support.trees import SqliteRoom, ZooKeeperRoom

ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
STARTS_WITHIN_S = 60


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """host:port of a server."""
    if running := os.environ.get("PYLOG_ZOOKEEPER"):
        yield running
        return
    pytest.importorskip("kazoo", reason="kazoo is not installed")
    if not ZOOKEEPER_JAR.exists() or not shutil.which("java"):
        pytest.skip("no ZooKeeper here: apt install zookeeper, or set PYLOG_ZOOKEEPER=HOST:PORT")
    folder = tmp_path_factory.mktemp("zookeeper")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "zoo.cfg").write_text(
        f"dataDir={folder}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "tickTime=250\nmaxClientCnxns=0\nadmin.enableServer=false\n"
    )
    command = ["java", "-Xmx128m", "-cp", f"/etc/zookeeper/conf:{ZOOKEEPER_JAR}"]
    command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(folder / "zoo.cfg")]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        wait_for_port(port, server, folder / "server.log")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def wait_for_port(port, server, log):
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"ZooKeeper did not start: {log.read_text()[-2000:]}")


@pytest.fixture(params=["sqlite", pytest.param("zookeeper", marks=only_long("a JVM"))])
def room(request, tmp_path):
    """An empty store, to open sessions with, and to cut off."""
    if request.param == "sqlite":
        made = SqliteRoom(tmp_path / "coordination.db")
    else:
        made = ZooKeeperRoom(request.getfixturevalue("zookeeper"), tmp_path.name)
    yield made
    made.end()


@pytest.fixture
def sqlite_room(tmp_path):
    made = SqliteRoom(tmp_path / "coordination.db")
    yield made
    made.end()
