"""LocalCluster and its command, before a process is started: what is refused, and what each broker is given."""

import builtins
import sys

import pytest
from click.testing import CliRunner

from logstore.cli import cli as pylog
from logstore.env import SYSTEM
from logstore.errors import InvalidConfigError, NotAStoreError, StorageError, StoreLockedError
from logstore.store.log_dir import LogDir
from logstore.store.meta_properties import DirectoryOwner
from replication.cli.brokers import broker, cluster
from replication.config.broker import BrokerConfig
from replication.coordination.own_file import check_directory
from replication.local_cluster import ClusterDescription, DescribedTopic, LocalCluster, LocalClusterError
from replication.local_cluster.process import MENDING_TIMEOUT_S, READY_TIMEOUT_S
from replication.local_cluster.settings import DEFAULTS
from replication.model.cluster import BrokerInfo, LeaderAndIsr, TopicPartition
from tests.conftest import BROKERS
from tests.support.inside import brokers_of


@pytest.fixture
def command(monkeypatch):
    """`pylog`, with the commands of brokers, whatever is installed."""
    monkeypatch.setattr(pylog, "commands", {"broker": broker, "cluster": cluster})
    monkeypatch.setattr("logstore.cli._added", dict)

    def run(*arguments):
        ran = CliRunner().invoke(pylog, [str(each) for each in arguments])
        assert ran.exit_code == 1, ran.output
        (line,) = ran.stderr.splitlines()
        assert ran.stdout == ""
        return line

    return run


def files_of(directory):
    return sorted(
        (str(each.relative_to(directory)), each.read_bytes()) for each in directory.rglob("*") if each.is_file()
    )


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("broker.id", "7", "--brokers"),
        ("log.dirs", "/data", "--dir"),
        ("log.dir", "/data", "--dir"),
        ("listeners", "PLAINTEXT://127.0.0.1:9092", "pylog broker start"),
        ("advertised.listeners", "PLAINTEXT://127.0.0.1:9092", "pylog broker start"),
        ("coordination", "sqlite:/data/tree.db", "--coordination STORE"),
        ("zookeeper.connect", "127.0.0.1:2181", "--coordination zookeeper:"),
        ("parent", "1", "no setting"),
    ],
)
def test_what_a_cluster_gives_its_brokers_itself_is_refused_with_a_hint(command, tmp_path, key, value, hint):
    line = command("cluster", "start", "--dir", tmp_path / "new", "--set", f"{key}={value}")
    assert line.startswith(f"pylog: {key}: ")
    assert hint in line
    assert not (tmp_path / "new").exists()


def test_more_replicas_than_brokers_are_refused_unless_others_may_take_part(command, tmp_path):
    factor = "default.replication.factor"
    line = command("cluster", "start", "--brokers", 1, "--dir", tmp_path / "new", "--set", f"{factor}=3")
    assert line.startswith(f"pylog: {factor}=3: more replicas than the cluster has brokers (1)")
    assert not (tmp_path / "new").exists()
    LocalCluster(3, tmp_path, {factor: 3})
    LocalCluster(1, tmp_path, {factor: 3}, coordination=f"sqlite:{tmp_path}/shared.db")


def test_the_brokers_of_a_cluster_count_the_metrics_port_up(tmp_path):
    def ports(brokers, port):
        made = LocalCluster(brokers, tmp_path, {"metrics.port": port})
        return [each.config.metrics_port for each in brokers_of(made).values()]

    assert ports(3, 9404) == [9404, 9405, 9406]
    assert ports([5, 2], "9404") == [9404, 9405]
    assert ports(2, 0) == [0, 0]
    assert ports(2, -1) == [-1, -1]
    with pytest.raises(InvalidConfigError, match=r"metrics\.port"):
        LocalCluster(2, tmp_path, {"metrics.port": 65_535})


def test_the_help_says_what_differs_from_the_defaults():
    said = " ".join(cluster.commands["start"].help.split())
    defaults = dict(DEFAULTS.items() - BROKERS.items())
    assert all(f"{key}={value}" in said for key, value in defaults.items())
    assert all(BrokerConfig.from_properties({key: value}) != BrokerConfig() for key, value in defaults.items())


def test_a_broker_that_is_none_of_the_cluster_is_an_error_that_names_those_there_are(tmp_path):
    made = LocalCluster([1, 4], tmp_path)
    for ask in (made.kill, made.stop, made.restart, made.pid, made.log_dir):
        with pytest.raises(LocalClusterError, match=r"no broker 9 .* \[1, 4\]"):
            ask(9)


def test_without_the_libraries_of_a_cluster_the_extra_is_named(command, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] in ("kio", "replication")]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def lacking(name, *arguments, **options):
        if name.split(".")[0] == "kio":
            raise ModuleNotFoundError("No module named 'kio'", name="kio")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    hint = 'pylog: clusters need kio: pip install "pyspark-pylog[cluster]"'
    assert command("cluster", "start") == hint
    assert command("broker", "start") == hint


def test_where_no_directory_can_be_made_one_line_says_so(command, tmp_path):
    assert command("cluster", "start", "--dir", "/proc/x").startswith("pylog: /proc/x: cannot create: ")
    line = command("broker", "start", "--set", "log.dirs=/proc/rev")
    assert line.startswith("pylog: /proc/rev/broker: cannot create: ")
    with pytest.raises(StorageError):
        SYSTEM.files.mkdir("/proc/rev")


def test_a_file_of_settings_that_is_no_text_is_refused_in_one_line(command, tmp_path):
    (tmp_path / "server.properties").write_bytes(b"broker.id=1\nbroker.rack=\xff\n")
    line = command("broker", "start", "--config", tmp_path / "server.properties")
    assert line == f"pylog: {tmp_path}/server.properties: byte 24 is not UTF-8 text"


def test_a_directory_of_something_else_is_refused_and_left_as_it_was(command, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    line = command("broker", "start", "--set", f"log.dirs={tmp_path}")
    assert f"{tmp_path} is not a pylog store" in line
    assert files_of(tmp_path) == [("thesis.txt", b"mine")]


@pytest.fixture
def store(tmp_path):
    """The directory of broker 3, open in this process."""
    opened = LogDir.open(tmp_path / "broker-3", read_only=False, create=True, env=SYSTEM, alone_for="broker")
    opened.claim(DirectoryOwner(3, "a-cluster"))
    yield opened
    opened.close()


def test_a_directory_in_use_or_of_another_broker_is_refused_and_left_as_it_was(command, store):
    def start(number, *more):
        return command("broker", "start", "--set", f"log.dirs={store.path}", "--set", f"broker.id={number}", *more)

    before = files_of(store.path)
    assert "is open in another process; broker needs it alone" in start(3)
    assert files_of(store.path) == before
    store.close()

    before = files_of(store.path)
    assert "belongs to broker 3 of cluster a-cluster; this is broker 4" in start(4, "--coordination", "sqlite:/no/x")
    assert "name the store with --coordination" in start(3)
    assert files_of(store.path) == before
    check_directory(str(store.path), 3, "sqlite:x")


def test_a_cluster_whose_directory_is_in_use_starts_nothing_and_writes_nothing(tmp_path, store):
    (tmp_path / "broker-3.stderr").write_text("said by the one that runs")
    before = files_of(tmp_path)
    with pytest.raises(StoreLockedError):
        LocalCluster(3, tmp_path).start()
    assert files_of(tmp_path) == before


def test_a_cluster_leaves_the_directory_of_something_else_alone(tmp_path):
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / "thesis.txt").write_text("mine")
    with pytest.raises(NotAStoreError):
        LocalCluster(1, tmp_path).start()
    assert files_of(tmp_path) == [("broker-1/thesis.txt", b"mine")]


def test_a_broker_that_did_not_end_in_good_order_has_more_time_to_start(tmp_path):
    def time_to_start_s():
        return brokers_of(LocalCluster([3], tmp_path, {"zookeeper.session.timeout.ms": 1000}))[3]._time_to_start_s()

    assert time_to_start_s() == READY_TIMEOUT_S + 3
    opened = LogDir.open(tmp_path / "broker-3", read_only=False, create=True, env=SYSTEM, alone_for="broker")
    assert time_to_start_s() == MENDING_TIMEOUT_S + 3
    opened.mark_clean()
    opened.close()
    assert time_to_start_s() == READY_TIMEOUT_S + 3


def test_what_lacks_a_leader_or_a_replica_in_sync_is_counted_by_who_is_up(tmp_path, monkeypatch):
    states = [(1, (1,)), (3, (3,)), (1, (1,)), (-1, (2,)), (1, (1, 2))]  # leader and ISR
    found = ClusterDescription(
        brokers={broker: BrokerInfo(broker, 9) for broker in (1, 2)},
        topics={"t": DescribedTopic({0: (1, 2), 1: (2, 3), 2: (1,), 3: (2,), 4: (1, 2)}, "x", False)},
        leadership={TopicPartition("t", n): LeaderAndIsr(leader, 5, isr, 1) for n, (leader, isr) in enumerate(states)},
    )
    made = LocalCluster(2, tmp_path)
    monkeypatch.setattr(made, "describe", lambda: found)
    assert (made.leaderless(2), made.leaderless(1)) == (2, 3)
    assert (made.not_in_sync(2), made.not_in_sync(1)) == (2, 0)  # 0, to copy; 3, to be elected
