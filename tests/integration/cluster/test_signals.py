"""SIGTERM and Ctrl-C end every long command of a cluster within seconds: nothing is lost, and nobody waits for it."""

import json
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from replication.client.group_admin import describe_group
from replication.client.kafka_client import KafkaClient
from replication.errors import KafkaError
from replication.model.cluster import TopicPartition
from tests.support.commands import run_pylog
from tests.support.fork_server import quick
from tests.support.repeats import times
from tests.support.waits import remains

pytestmark = pytest.mark.slow
ENDS_WITHIN_S = 30
PYLOG = quick("from logstore.cli import main; main()")


def started(*words, given=None):
    command = [sys.executable, "-c", PYLOG, *map(str, words)]
    pipes = dict.fromkeys(("stdout", "stderr") if given is None else ("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, text=True, **pipes)
    if given is not None:
        process.stdin.write(given)
        process.stdin.close()
        process.stdin = None  # `communicate` would flush it
    return process


def ended(process, number):
    """The exit code and what it said, once it was told to end."""
    process.send_signal(number)
    out, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def test_what_is_watched_is_shown_again_until_a_signal(cluster):
    watch = ("cluster", "status", "--watch", "--interval", 0.1, "--groups", 0)
    with started(*watch, "--bootstrap-server", cluster.running.bootstrap) as process:
        shown = 0
        while shown < 2:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            shown += line.count("Controller: ")
        code, _, _ = ended(process, signal.SIGTERM)
    assert code in (0, 1)  # as the last look found it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT][: times(1, 2)])
def test_a_member_of_a_group_commits_what_it_printed_and_leaves(cluster, number):
    topic = cluster.create((1, 2))
    group = f"g-{topic}"
    assert cluster.produce(topic, [f"v{n}" for n in range(2000)]) == []
    where = ("--bootstrap-server", cluster.running.bootstrap)
    with started("consume", topic, "--group", group, "--from-beginning", *where) as process:
        first = [process.stdout.readline() for _ in range(2000)]
        code, rest, _ = ended(process, number)
    assert (code, len(first), rest) == (0, 2000, "")
    with KafkaClient(cluster.running.bootstrap) as client:
        tp = TopicPartition(topic, 0)
        assert client.committed(group, [tp])[tp].offset == 2000
        found = client.run(partial(describe_group, group=group))
        assert (found.state, len(found.members)) == ("Empty", 0)


def enough(process):
    """The reader closes the pipe after three records, each longer than what a file holds back."""
    lines = [process.stdout.readline() for _ in range(3)]
    process.stdout.close()
    process.stdout = None
    return lines


def told_to_end(process):
    """It is terminated while it waits for a reader that reads on then."""
    lines = [process.stdout.readline()]
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    return [*lines, *process.stdout]


@pytest.mark.parametrize("how", ["--max-messages", told_to_end, enough][: times(2, 3)])
def test_a_member_of_a_group_commits_no_more_than_it_printed(cluster, how):
    """And no less, but for records that were on their way to the reader."""
    topic = cluster.create((1, 2))
    group = f"g-{topic}"
    assert cluster.produce(topic, [f"{n:0100}" for n in range(5000)]) == []
    words = ["consume", topic, "--group", group, "--from-beginning", "--bootstrap-server", cluster.running.bootstrap]
    if how == "--max-messages":
        lines = run_pylog(*words, how, 7).ok().out.splitlines()
        assert len(lines) == 7
    else:
        with started(*words) as process:
            lines = how(process)
            process.communicate(timeout=ENDS_WITHIN_S)
            assert process.returncode == 0
    with KafkaClient(cluster.running.bootstrap) as client:
        tp = TopicPartition(topic, 0)
        committed = client.committed(group, [tp])[tp].offset
        assert client.run(partial(describe_group, group=group)).state == "Empty"
    rest = run_pylog(*words, "--max-messages", 5000 - committed, "--timeout-ms", 30_000).ok().out.splitlines()
    assert [int(line) for line in rest] == list(range(committed, 5000))
    if how is enough:
        assert 3 <= committed < 5000, "what the pipe holds counts as printed"
    else:
        assert len(lines) - 1 <= committed <= len(lines) < 5000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT][: times(1, 2)])
def test_a_measurement_of_consuming_ends_and_leaves_its_group(cluster, number):
    topic = cluster.create((1, 2))
    assert cluster.produce(topic, ["v"]) == []
    group = f"perf-{topic}"
    words = ("perf", "consume", "--topic", topic, "--messages", 10**6, "--timeout", 60_000, "--group", group)
    with (
        KafkaClient(cluster.running.bootstrap) as client,
        started(*words, "--bootstrap-server", cluster.running.bootstrap) as process,
    ):

        def has_joined():
            try:
                return client.run(partial(describe_group, group=group)).state == "Stable"
            except KafkaError:  # there is no such group yet
                return False

        cluster.until(has_joined)
        code, _, err = ended(process, number)
        assert code in (0, 143 if number == signal.SIGTERM else 130), err
        assert not client.run(partial(describe_group, group=group)).members


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT][: times(1, 2)])
def test_who_waits_for_a_reassignment_ends_and_it_goes_on(cluster, number):
    topic = cluster.create((1,))
    assert cluster.produce(topic, ["v" * 100_000] * 10) == []
    plan = json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [2]}]})
    where = ("reassign-partitions", "--reassignment-json-file", "-", "--bootstrap-server", cluster.running.bootstrap)
    run_pylog(*where, "--execute", "--throttle", 60_000, input=plan).ok()
    with started(*where, "--verify", "--wait", given=plan) as process:
        remains(lambda: process.poll() is None, 1)
        code, _, err = ended(process, number)
    assert code == (143 if number == signal.SIGTERM else 130), err
    waited = run_pylog(*where, "--verify", "--wait", input=plan).ok()
    assert "throttle removed" in waited.err


LONG = {
    "consume": ("consume", "{topic}", "--from-beginning", "--follow"),
    "verifiable-consumer": ("verifiable-consumer", "--topic", "{topic}", "--group-id", "v-{topic}"),
    "verifiable-producer": ("verifiable-producer", "--topic", "{topic}", "--throughput", "20"),
    "perf": ("perf", "produce", "--topic", "{topic}", "--num-records", "100000", "--throughput", "100",
             "--reporting-interval", "200"),
    "status": ("cluster", "status", "--watch"),
    "verify-replicas": ("verify-replicas", "--topics-include", "{topic}", "--report-interval", "100"),
}  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT][: times(1, 2)])
@pytest.mark.parametrize("name", [*LONG][: times(2, len(LONG))])
def test_a_long_command_ends(cluster, name, number):
    topic = cluster.create((1, 2))
    assert cluster.produce(topic, ["v"]) == []
    words = [word.format(topic=topic) for word in LONG[name]]
    with started(*words, "--bootstrap-server", cluster.running.bootstrap) as process:
        said = process.stderr if name in ("perf", "verify-replicas") else process.stdout
        assert said.readline(), "it has begun"
        code, _, err = ended(process, number)
    good = 143 if number == signal.SIGTERM else 130
    assert code in (0, good), err
    assert len(err.splitlines()) <= 100
