"""`pylog cluster recover-coordination`: what it refuses, what it says, what it reads of directories, what it writes."""

import json
import sqlite3

import pytest
from click.testing import CliRunner

from logstore.cli import cli as pylog
from logstore.config import LogConfig
from logstore.env import Env
from logstore.store.meta_properties import DirectoryOwner
from replication.coordination import nodes
from replication.coordination.sqlite_file import facts_of
from replication.model.cluster import TopicPartition
from replication.replica.storage.damage_notes import DamageNote
from replication.replica.storage.log_dir import ReplicaLogDir
from replication.tools.recovery_plan import STEP
from tests.support.partition import appended, batch

T0 = TopicPartition("orders", 0)
TOPIC_ID = "A" * 22


@pytest.fixture
def run():
    def run(*arguments):
        return CliRunner().invoke(pylog, ["cluster", "recover-coordination", *map(str, arguments)])

    return run


def directory_of(path, broker, *epochs, cluster_id="mine"):
    """A broker's directory with a record per leader epoch; left as a killed broker leaves it."""
    found = ReplicaLogDir.open(path / f"broker-{broker}", Env())
    found.log_dir.claim(DirectoryOwner(broker, cluster_id))
    found.create_logs({T0: TOPIC_ID})
    found.log_dir.mark_dirty()
    log = found.open_log(T0, TOPIC_ID, LogConfig())
    for epoch in epochs:
        appended(log, batch(b"x"), leader_epoch=epoch)
    return found, log


def left(found, log):
    log.close()
    found.log_dir.close()


def rows_of(ran):
    return {(row["topic"], row["partition"]): row for row in json.loads(ran.stdout)}


def node(path, name):
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT data FROM node WHERE path = ?", (name,)).fetchone()
    return None if found is None else found[0]


def test_what_it_needs_is_said(run, tmp_path):
    assert "give --dir, or --coordination" in run().output
    assert "only a SQLite file" in run("--coordination", "zookeeper:h:1").output
    assert "several brokers of one cluster; these are none" in run("--dir", tmp_path).output
    (tmp_path / "broker-1").mkdir()
    assert "is not the directory of a broker" in run("--dir", tmp_path).output


def test_directories_of_two_clusters_are_refused(run, tmp_path):
    for broker, name in ((1, "mine"), (2, "another")):
        left(*directory_of(tmp_path, broker, cluster_id=name))
    ran = run("--dir", tmp_path, "--yes")
    assert ran.exit_code == 1
    assert "broker 2 of cluster another" in ran.output
    assert not (tmp_path / "coordination.db").exists()


def test_a_directory_in_use_is_refused(run, tmp_path):
    found, log = directory_of(tmp_path, 1, 0)
    ran = run("--dir", tmp_path, "--yes")
    assert (ran.exit_code, "is in use: stop all brokers" in ran.output) == (1, True)
    left(found, log)
    assert run("--dir", tmp_path, "--yes").exit_code == 0


def test_nothing_is_written_without_yes(run, tmp_path):
    left(*directory_of(tmp_path, 1, 0, 3))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    said = run("--dir", tmp_path, "--output", "json")
    dry = run("--dir", tmp_path, "--output", "json", "--dry-run")
    assert (said.exit_code, dry.exit_code) == (1, 0)
    assert rows_of(said) == rows_of(dry)
    assert rows_of(dry)["orders", 0]["leader_epoch"] == 3 + STEP
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_the_store_has_what_the_directories_know_and_what_was_there_is_aside(run, tmp_path):
    left(*directory_of(tmp_path, 1, 0, 3))
    left(*directory_of(tmp_path, 2, 0, 2, 2, 2))
    store = tmp_path / "coordination.db"
    store.write_bytes(b"garbage")
    (tmp_path / "coordination.db-wal").write_bytes(b"more of it")
    ran = run("--coordination", f"sqlite:{store}", "--log-dir", tmp_path / "broker-1", "--log-dir",
              tmp_path / "broker-2", "--yes")  # fmt: skip
    assert ran.exit_code == 0, ran.output
    (aside,) = [path for path in tmp_path.glob("coordination.db.lost-*") if not path.name.endswith("-wal")]
    assert (aside.read_bytes(), aside.with_name(f"{aside.name}-wal").exists()) == (b"garbage", True)
    assert not (tmp_path / "coordination.db-wal").exists()
    assert facts_of(store).cluster_id == "mine"
    state = json.loads(node(store, nodes.state_path(T0)))
    assert (state["leader"], state["isr"], state["leader_epoch"]) == (1, [1], 3 + STEP)
    assert int(node(store, nodes.CONTROLLER_EPOCH)) == state["controller_epoch"] == STEP
    assert node(store, nodes.topic_id_path("orders")) == TOPIC_ID.encode()
    assert json.loads(node(store, nodes.topic_config_path("orders")))["config"]["retention.ms"] == "-1"
    again = run("--dir", tmp_path, "--without-copy", "--yes", "--output", "json")  # once more, over a sound one
    assert again.exit_code == 0, again.output


def test_a_log_ends_where_recovery_would_end_it(run, tmp_path):
    """Half a batch, and one whose bits flipped, behind what is known to be on disk."""
    found, log = directory_of(tmp_path, 1, 0, 0)
    log.flush()
    sound = log.log_end_offset
    appended(log, batch(b"last"), leader_epoch=5)
    left(found, log)
    file = tmp_path / "broker-1" / "orders-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)
    row = rows_of(run("--dir", tmp_path, "--dry-run", "--output", "json"))["orders", 0]
    assert (row["log_end"], row["leader_epoch"]) == (sound, STEP)


def test_a_replica_that_is_noted_as_damaged_leads_nothing(run, tmp_path):
    found, log = directory_of(tmp_path, 1, 0, 9)
    found.notes.put(T0, DamageNote(TOPIC_ID, 0, "bits flipped"))
    left(found, log)
    left(*directory_of(tmp_path, 2, 0))
    row = rows_of(run("--dir", tmp_path, "--dry-run", "--output", "json"))["orders", 0]
    assert row["leader"] == 2
    assert "bits flipped" in row["note"]


def test_the_level_and_the_fields_of_a_later_release_are_those_of_the_copy(run, tmp_path):
    left(*directory_of(tmp_path, 1, 0, 3))
    store = tmp_path / "coordination.db"
    assert run("--dir", tmp_path, "--yes").exit_code == 0
    assert int(node(store, nodes.CONTROLLER_EPOCH))  # of level 0

    def put(path, data):
        with sqlite3.connect(store) as db:
            db.execute("UPDATE node SET data = ? WHERE path = ?", (data, path))

    put(nodes.FEATURES, b'{"version":1,"epoch":3,"features":{"pylog.version":1}}')
    put(nodes.CLUSTER_ID, nodes.encode_cluster_id("mine", 1))
    put(nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(7, 1))
    for path in (nodes.topic_path("orders"), nodes.state_path(T0)):
        put(path, node(store, path)[:-1] + b',"later":[1]}')
    store.rename(tmp_path / "coordination.db.copy")
    ran = run("--dir", tmp_path, "--yes")
    assert ran.exit_code == 0, ran.output
    assert nodes.decode_features(node(store, nodes.FEATURES)) == (1, 3)
    assert facts_of(store).cluster_id == "mine"
    assert not isinstance(json.loads(node(store, nodes.CLUSTER_ID))["id"], str)
    assert not node(store, nodes.CONTROLLER_EPOCH).isdigit()
    for path in (nodes.topic_path("orders"), nodes.state_path(T0)):
        assert json.loads(node(store, path))["later"] == [1]
