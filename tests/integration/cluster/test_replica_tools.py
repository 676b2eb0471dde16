"""The commands for replicas on a running cluster, elections and reassignments: what they print, refuse and change."""

import json

import pytest

from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from replication.tools.reassignments import request
from tests.support.commands import rows, rows_of, run_pylog

pytestmark = pytest.mark.slow


def test_the_preferred_replica_leads_again_after_an_election(pylog, cluster, monkeypatch):
    _, stays, stopped = cluster.roles()
    topic = cluster.create((stopped, stays), (stays, stopped))
    cluster.running.stop(stopped)
    cluster.until(lambda: cluster.state(topic).leader == stays)
    lost = pylog("elect-leaders", "--topic", topic, "--partition", 0)
    assert lost.code == 1
    assert "preferred leader not available" in lost.out
    cluster.running.restart(stopped)
    cluster.until(lambda: set(cluster.state(topic).isr) == {stays, stopped})
    cluster.until(lambda: not cluster.running.not_in_sync(stopped))  # nor with what other tests have made

    wanted = json.dumps({"partitions": [{"topic": topic, "partition": p} for p in (0, 1)]})
    told = pylog("elect-leaders", "--path-to-json-file", "-", input=wanted)
    assert rows(told) == [[topic, "0", str(stays), str(stopped), "-"]]
    assert told.err == "elected 1 leader; 1 led before\n"
    assert cluster.state(topic).leader == stopped
    again = pylog("elect-leaders", "--all-topic-partitions", "--output", "json").ok().json
    assert topic not in {row["topic"] for row in again}

    assert "no topic 'nosuch'" in pylog("elect-leaders", "--topic", "nosuch", "--partition", 0).failed()
    assert pylog("elect-leaders").code == 2
    assert pylog("elect-leaders", "--topic", topic).code == 2
    assert pylog("elect-leaders", "--path-to-json-file", "-", input="{}").code == 2

    unclean = ("elect-leaders", "--election-type", "unclean", "--all-topic-partitions")
    assert pylog("elect-leaders", "--election-type", "dirty", "--all-topic-partitions").code == 2
    refused = pylog(*unclean)
    assert (refused.code, "say --yes" in refused.err) == (2, True)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stdin: True)
    assert pylog(*unclean, input="n\n").err.endswith("Hold it? [y/N]: n\npylog: nothing was changed\n")
    led = pylog(*unclean, input="y\n").ok()
    assert (led.out, "elected 0 leaders; " in led.err) == ("", True)
    wrong = pylog("elect-leaders", "--election-type", "unclean", "--yes", "--topic", topic, "--partition", 7)
    assert (wrong.code, "unknown topic or partition" in wrong.out) == (1, True)


def test_replicas_move_to_other_brokers_and_back(pylog, cluster, tmp_path):
    topic = cluster.create((1, 2))
    assert cluster.produce(topic, range(10)) == []
    (tmp_path / "topics.json").write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    made = ("reassign-partitions", "--generate", "--topics-to-move-json-file", tmp_path / "topics.json")
    planned = pylog(*made, "--broker-list", "1,3").ok()
    ((row),) = planned.json["partitions"]
    assert sorted(row["replicas"]) == [1, 3]
    (tmp_path / "plan.json").write_text(planned.out.replace(str(row["replicas"]), "[3, 1]"))
    plan = ("--reassignment-json-file", tmp_path / "plan.json")

    begun = pylog("reassign-partitions", "--execute", *plan).ok()
    (tmp_path / "back.json").write_text(begun.out)
    cluster.until(lambda: pylog("reassign-partitions", "--verify", *plan).code == 0)
    assert rows(pylog("reassign-partitions", "--verify", *plan)) == [[topic, "0", "3,1", "3,1", "complete"]]
    assert cluster.running.describe().topics[topic].partitions[0] == (3, 1)
    assert cluster.values(topic, count=10) == [str(n) for n in range(10)]

    undone = pylog("reassign-partitions", "--verify", "--reassignment-json-file", tmp_path / "back.json")
    assert undone.code == 1
    assert rows_of(undone) == [[topic, "0", "3,1", "1,2", "failed"]]
    pylog("reassign-partitions", "--execute", "--reassignment-json-file", tmp_path / "back.json").ok()
    cluster.until(lambda: cluster.running.describe().topics[topic].partitions[0] == (1, 2))

    logs = [cluster.running.log_dir(broker) / "broker" / "state-change.log" for broker in (1, 2, 3)]
    told = run_pylog("merge-state-logs", *logs, "--topic", topic, "--timeline", "--output", "json").ok().json_lines
    assert (told[0]["leader"], told[0]["isr"]) == (1, [1, 2])
    assert {frozenset(row["isr"]) for row in told} >= {frozenset({1, 2, 3}), frozenset({1, 3})}
    assert (told[-1]["leader"], sorted(told[-1]["isr"])) == (1, [1, 2])


def test_a_reassignment_under_way_is_listed_and_can_be_cancelled(pylog, cluster, tmp_path):
    controller, stays, stopped = cluster.roles()
    topic = cluster.create((stays,))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [stays, stopped]}]}))
    with KafkaClient(cluster.running.address(controller)) as client:  # which asks none but this one
        cluster.running.pause(stopped)  # its session ends soon, and nothing is moved to a broker that is dead
        (begun,) = request(client, {TopicPartition(topic, 0): (stays, stopped)})
    assert begun["error"] is None
    cluster.until(lambda: rows_of(pylog("reassign-partitions", "--list"))[:1])
    (moving,) = pylog("reassign-partitions", "--list", "--output", "json").ok().json
    assert (moving["topic"], moving["adding"], moving["removing"]) == (topic, [stopped], [])
    pending = pylog("reassign-partitions", "--verify", "--reassignment-json-file", plan)
    assert (pending.code, rows_of(pending)[0][-2:]) == (1, ["in", "progress"])

    pylog("reassign-partitions", "--cancel", "--reassignment-json-file", plan).ok()
    cluster.until(lambda: not rows_of(pylog("reassign-partitions", "--list")))
    cluster.running.resume(stopped)
    cluster.until(lambda: cluster.running.describe().topics[topic].partitions[0] == (stays,))
    assert "no reassignment in progress" in pylog(
        "reassign-partitions", "--cancel", "--reassignment-json-file", plan
    ).err.lower()  # fmt: skip


def test_what_is_wrong_with_a_plan_is_refused(pylog, cluster):
    topic = cluster.create((1, 2))

    def tried(name, *replicas):
        plan = json.dumps({"partitions": [{"topic": name, "partition": 0, "replicas": replicas}]})
        return pylog("reassign-partitions", "--execute", "--reassignment-json-file", "-", input=plan)

    assert "no topic 'nosuch'" in tried("nosuch", 1).failed()
    refused = tried(topic, 1, 99)
    assert (refused.code, refused.json["partitions"][0]["replicas"]) == (1, [1, 2])
    assert "name live brokers" in refused.err
    assert tried(topic, 1, 1).code == 2
    assert pylog("reassign-partitions").code == 2
    assert pylog("reassign-partitions", "--execute", "--list").code == 2
    assert pylog("reassign-partitions", "--execute").code == 2
    assert pylog("reassign-partitions", "--generate", "--broker-list", "1").code == 2
