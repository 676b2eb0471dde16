"""Our commands on share groups of any brokers."""

import signal
import subprocess
import sys
import time

from replication.client import group_admin
from tests.support.commands import run_pylog
from tests.support.share_life import WITHIN_MS, append, from_the_beginning, shown


class Tools:
    def __init__(self, client, group):
        self.client, self.group = client, group

    def run(self, *words):
        return run_pylog(*words, "--bootstrap-server", self.client.where)

    def consume(self, topic, *words):
        return self.run("consume", topic, "--share-group", self.group, *words)

    def described(self, column):
        rows = self.run("groups", "describe", self.group, "--output", "json").ok().json
        return [row[column] for row in rows]

    def reset(self, *words):
        return self.run("groups", "reset-offsets", "--group", self.group, *words, "--output", "json").ok().json


def consume_accepts_what_it_prints(client, topic, group):
    """On a topic of one partition."""
    from_the_beginning(client, group)
    append(client, topic, 0, 10)
    tools = Tools(client, group)
    assert tools.consume(topic, "--max-messages", 4).ok().lines == ["0", "1", "2", "3"]
    found = tools.consume(topic, "--max-messages", 6, "--output", "json").ok().json_lines
    assert [(row["offset"], row["value"]) for row in found] == [(n, str(n)) for n in range(4, 10)]
    assert tools.consume(topic, "--timeout-ms", 1500).ok().lines == []
    assert ctrl_c_ends_it(client, topic, group) == ["10", "11"]
    with client.share_consumer(topic, group) as member:
        append(client, topic, 12, 1)
        assert shown(member.poll(WITHIN_MS)) == [(12, 1)]


def ctrl_c_ends_it(client, topic, group):
    append(client, topic, 10, 2)
    program = (sys.executable, "-c", "from logstore.cli import main; main()")
    command = [*program, "consume", topic, "--share-group", group, "--follow"]
    with subprocess.Popen(
        [*command, "--bootstrap-server", client.where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        lines = [running.stdout.readline().strip() for _ in range(2)]
        begun = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert time.monotonic() - begun < 10
    assert (running.returncode, out, err) == (0, "", "2 records\n")
    assert client.run(group_admin.describe_group, group).members == ()
    return lines


def groups_are_listed_described_reset_and_deleted(client, topic, group):
    """On a topic of two partitions with five records each."""
    tools = Tools(client, group)
    from_the_beginning(client, group)
    append(client, topic, 0, 10)
    assert len(tools.consume(topic, "--max-messages", 10).ok().lines) == 10
    listed = tools.run("groups", "list", "--output", "json").ok().json
    assert {"group": group, "state": "Empty", "protocol_type": "share", "type": "share"} in listed
    (state,) = tools.run("groups", "describe", group, "--state", "--output", "json").ok().json
    assert (state["state"], state["type"], state["members"]) == ("Empty", "share", 0)
    assert tools.described("lag") == [0, 0]
    assert sum(tools.described("log_end_offset")) == 10
    assert f"group {group} has no members" in tools.run("groups", "describe", group).ok().err
    with client.share_consumer(topic, group) as member:
        while not member.assignment:
            member.poll(100)
        (shown,) = tools.run("groups", "members", group, "--output", "json").ok().json
        assert shown["assignment"] == [f"{topic}-0", f"{topic}-1"]
        assert tools.described("consumer_id") == [None, None]
        refused = tools.run("groups", "reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute")
        assert "non empty group" in refused.failed()
    assert [row["new_offset"] for row in tools.reset("--topic", topic, "--to-earliest")] == [0, 0]
    assert tools.described("lag") == [0, 0]
    tools.reset("--topic", f"{topic}:1", "--to-offset", 2, "--execute")
    assert tools.described("current_offset")[1] == 2
    tools.reset("--all-topics", "--to-earliest", "--execute")
    assert (tools.described("current_offset"), sum(tools.described("lag"))) == ([0, 0], 10)
    assert len(tools.consume(topic, "--max-messages", 10).ok().lines) == 10
    refused = tools.run("groups", "delete-offsets", "--group", group, "--topic", f"{topic}:0").failed()
    assert "a share group forgets whole topics" in refused
    tools.run("groups", "delete-offsets", "--group", group, "--topic", topic).ok()
    assert tools.described("partition") == []
    assert tools.run("groups", "delete", group).ok().err == "deleted 1 group\n"
    assert "not found" in tools.run("groups", "delete", group).failed()
    assert "not found" in tools.run("groups", "describe", group).failed()


def bad_input_has_one_clear_line(client, topic, group):
    """`group` is a group of consumers with committed offsets."""
    tools = Tools(client, group)
    assert "is not a share group" in tools.consume(topic, "--timeout-ms", 20_000).failed()
    assert "no topic 'none'" in tools.consume("none").failed()
    for words, said in (
        (("--from-beginning",), "share.auto.offset.reset=earliest is a setting of the group"),
        (("--isolation-level", "read_committed"), "share.isolation.level is a setting of the group"),
        (("--partition", 0), "--partition is not for a share group"),
        (("--offset", "latest"), "--offset is not for a share group"),
        (("--view", "latest"), "--view is not for a share group"),
        (("--group", "g"), "give --group or --share-group, not both"),
        (("--group-protocol", "consumer"), "--group-protocol is of a group"),
    ):
        refused = tools.consume(topic, *words)
        assert refused.code == 2
        assert said in refused.err.replace("\n", " ")
    elsewhere = run_pylog("consume", topic, "--share-group", group, "--path", "/none")
    assert (elsewhere.code, "--share-group needs a cluster" in elsewhere.err) == (2, True)
