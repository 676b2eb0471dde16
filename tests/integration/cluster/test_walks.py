"""The two walks of the articles, by commands alone, on eight broker processes; `pytest -s` prints what they print."""

import json
import re
from contextlib import ExitStack

import pytest

from replication.tools.state_logs import merged
from tests.integration.cluster.conftest import running
from tests.support.commands import run_pylog
from tests.support.repeats import only_long

pytestmark = pytest.mark.slow

# Leaders of partitions 0 to 7, and ISRs as sets.
ASSIGNED = ["1:4:3", "2:5:4", "3:6:5", "4:7:6", "5:8:7", "6:1:8", "7:2:1", "8:3:2"]
EVERYBODY = [set(map(int, row.split(":"))) for row in ASSIGNED]
WITHOUT_THREE = [{3}, {5}, {3, 6, 5}, {7, 6}, {5, 8, 7}, {6, 8}, {7}, {8, 3}]
WITH_ONE_AGAIN = [{3, 1}, {5}, {3, 6, 5}, {7, 6}, {5, 8, 7}, {6, 8, 1}, {7, 1}, {8, 3}]

# Assigned replicas, leader, ISR: as a reassignment from 1,2,3 to 4,5,6 passes them.
TABLE = [
    ({1, 2, 3}, 1, {1, 2, 3}),
    ({1, 2, 3, 4, 5, 6}, 1, {1, 2, 3}),
    ({1, 2, 3, 4, 5, 6}, 1, {1, 2, 3, 4, 5, 6}),
    ({1, 2, 3, 4, 5, 6}, 4, {1, 2, 3, 4, 5, 6}),
    ({1, 2, 3, 4, 5, 6}, 4, {4, 5, 6}),
    ({4, 5, 6}, 4, {4, 5, 6}),
]
_STATE = re.compile(r"Leader:(-?\d+),ISR:([\d,]*),LeaderEpoch:\d+[^ ]*?(?:AllReplicas:([\d,]+)|\) )")
_DONE = re.compile(r" reassigned partition .* to replicas ([\d,]+)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(8, tmp_path_factory.mktemp("eight")) as made:
        yield made


@pytest.fixture
def pylog(cluster):
    return lambda *words, **more: run_pylog(*words, "--bootstrap-server", cluster.running.bootstrap, **more)


def found(pylog, topic):
    (told,) = pylog("topics", "describe", topic, "--output", "json").ok().json
    return [(row["leader"], set(row["isr"])) for row in told["partitions"]]


@only_long("brokers that restart")
def test_preferred_leaders_come_back_with_their_brokers(cluster, pylog):
    pylog("topics", "create", "topic1", "--replica-assignment", ",".join(ASSIGNED)).ok()

    def until(title, leaders, isrs):
        cluster.until(lambda: found(pylog, "topic1") == list(zip(leaders, isrs, strict=True)), timeout_s=40)
        print(f"\n{title}\n{pylog('topics', 'describe', 'topic1').ok().out}")

    until("begin", [1, 2, 3, 4, 5, 6, 7, 8], EVERYBODY)
    cluster.running.stop(1, 2, 4)
    until("1, 2 and 4 stopped", [3, 5, 3, 7, 5, 6, 7, 8], WITHOUT_THREE)
    cluster.running.restart(1)
    until("1 started", [3, 5, 3, 7, 5, 6, 7, 8], WITH_ONE_AGAIN)
    elected = pylog("elect-leaders", "--all-topic-partitions", "--output", "json")
    assert elected.code == 1, "2 and 4 cannot lead"
    changed = {row["partition"]: (row["leader"], row["error"]) for row in elected.json if row["topic"] == "topic1"}
    assert changed.keys() == {0, 1, 3}
    assert changed[0] == (1, None)
    until("elected", [1, 5, 3, 7, 5, 6, 7, 8], WITH_ONE_AGAIN)
    cluster.running.restart(2, 4)
    until("2 and 4 started", [1, 5, 3, 7, 5, 6, 7, 8], EVERYBODY)
    # All, those of other topics too: their replicas come into sync when they do.
    cluster.until(lambda: pylog("elect-leaders", "--all-topic-partitions").code == 0, timeout_s=40)
    until("elected", [1, 2, 3, 4, 5, 6, 7, 8], EVERYBODY)


@only_long("eight brokers")
def test_a_topic_moves_to_4_5_6_7_through_the_six_rows_of_the_table(cluster, pylog, tmp_path):
    topic = "topic2"
    pylog("topics", "create", topic, "--replica-assignment", "1:2:3,2:3:8").ok()
    assert cluster.produce(topic, ["x" * 1000] * 200) == []
    (tmp_path / "topics.json").write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    words = ("--topics-to-move-json-file", tmp_path / "topics.json", "--broker-list", "4,5,6,7")
    planned = pylog("reassign-partitions", "--generate", *words).ok().json
    assert all(set(row["replicas"]) <= {4, 5, 6, 7} for row in planned["partitions"])
    planned["partitions"][0]["replicas"] = [4, 5, 6]  # it begins anywhere: those of the table
    plan = ("--reassignment-json-file", tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text(json.dumps(planned))
    pylog("reassign-partitions", "--execute", *plan).ok()
    cluster.until(lambda: pylog("reassign-partitions", "--verify", *plan).code == 0, timeout_s=40)
    assert set().union(*(isr for _, isr in found(pylog, topic))) <= {4, 5, 6, 7}
    assert cluster.values(topic, count=200) == ["x" * 1000] * 200

    passed = rows_of(cluster, topic)
    print("\n".join(f"{sorted(assigned)} {leader}/{sorted(isr)}" for assigned, leader, isr in passed))
    rest = iter(passed)
    assert all(row in rest for row in TABLE), passed


def rows_of(cluster, topic):
    """(assigned replicas, leader, ISR) of partition 0, in the order in which controller and brokers noted them.

    Brokers are told of the wanted replicas before they are the only ones in the tree: the controller notes that.
    """
    rows, assigned, is_done = [], set(), False
    with ExitStack() as files:
        logs = [cluster.running.log_dir(broker) / "broker" / "state-change.log" for broker in range(1, 9)]
        texts = [files.enter_context(log.open(encoding="utf-8")) for log in logs]
        for entry in merged(texts, topic=topic, partitions=(0,), start="", end="~"):
            if done := _DONE.search(entry.text):
                assigned, is_done = numbers(done[1]), True
                rows.append((assigned, *rows[-1][1:]))
            elif told := _STATE.search(entry.text):
                assigned = assigned if is_done else assigned | numbers(told[3] or "")
                row = assigned, int(told[1]), numbers(told[2])
                if row not in rows:
                    rows.append(row)
    return rows


def numbers(text):
    return {int(number) for number in text.split(",") if number}
