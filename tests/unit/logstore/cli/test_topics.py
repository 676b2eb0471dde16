"""`pylog topics`."""

import os
import pty
import shutil
import subprocess
import sys

import pytest

import logstore


def test_a_topic_that_is_refused_leaves_no_directory(pylog, path):
    assert "'a b'" in pylog("topics", "create", "a b").failed()
    assert "no.such" in pylog("topics", "create", "t", "--config", "no.such=1").failed()
    assert "retention.ms" in pylog("topics", "create", "t", "--config", "retention.ms=soon").failed()
    assert not path.exists()


def test_create_makes_the_directory_and_the_topic(pylog, path):
    ran = pylog("topics", "create", "orders", "--partitions", 3, "--config", "retention.ms=86400000").ok()
    assert ran.lines == ["TOPIC   PARTITIONS  CONFIG", "orders           3  retention.ms=86400000"]
    assert ran.err == "created topic orders\n"
    with logstore.open(path) as store:
        assert store.topic("orders").partitions == 3


def test_a_topic_may_be_named_by_option_as_in_kafka_topics(pylog):
    pylog("topics", "create", "--topic", "orders").ok()
    assert pylog("topics", "list").ok().lines[1].split() == ["orders", "1", "-"]


def test_naming_two_topics_or_none_is_wrong_usage(pylog):
    assert pylog("topics", "create", "a", "--topic", "b").code == 2
    assert pylog("topics", "create").code == 2


def test_creating_a_topic_twice_fails_unless_it_may_exist(pylog):
    pylog("topics", "create", "orders").ok()
    assert "exists already" in pylog("topics", "create", "orders").failed()
    again = pylog("topics", "create", "orders", "--partitions", 9, "--if-not-exists").ok()
    assert again.lines[1].split()[1] == "1"


def test_only_create_makes_a_directory(pylog, path):
    for command in (
        ("topics", "list"),
        ("topics", "describe"),
        ("produce", "orders"),
        ("consume", "orders"),
        ("verify",),
    ):
        assert "no such directory" in pylog(*command, input="x\n").failed()
    assert not path.exists()


def test_list_as_json_has_everything(pylog):
    pylog("topics", "create", "a", "--config", "segment.bytes=1000").ok()
    pylog("topics", "create", "b", "--partitions", 2).ok()
    a, b = pylog("topics", "list", "--output", "json").ok().json
    assert (a["topic"], a["partitions"], a["config"]) == ("a", 1, {"segment.bytes": "1000"})
    assert (b["topic"], b["partitions"], b["config"]) == ("b", 2, {})
    assert len(a["topic_id"]) == 22


def test_topics_with_overrides_leaves_out_the_others(pylog):
    pylog("topics", "create", "a", "--config", "segment.bytes=1000").ok()
    pylog("topics", "create", "b").ok()
    for command in ("list", "describe"):
        shown = pylog("topics", command, "--topics-with-overrides", "--output", "json").ok().json
        assert [topic["topic"] for topic in shown] == ["a"]


def test_describe_shows_offsets_and_sizes_of_each_partition(pylog, path):
    pylog("topics", "create", "orders", "--partitions", 2).ok()
    pylog("produce", "orders", "--partition", 1, input="a\nb\n").ok()
    (topic,) = pylog("topics", "describe", "orders", "--output", "json").ok().json
    empty, full = topic["partitions"]
    assert (empty["start"], empty["end"], empty["offsets"]) == (0, 0, 0)
    assert (full["start"], full["end"], full["offsets"]) == (0, 2, 2)
    assert full["bytes"] == (path / "orders-1" / f"{0:020}.log").stat().st_size
    assert topic["settings"]["retention.ms"] == "-1"
    lines = pylog("topics", "describe", "orders").ok().lines
    assert lines[0].startswith(f"Topic: orders  TopicId: {topic['topic_id']}  Partitions: 2")
    assert lines[1].split() == ["PARTITION", "START", "END", "OFFSETS", "SEGMENTS", "BYTES"]
    assert lines[3].split()[:4] == ["1", "0", "2", "2"]


def test_describe_shows_that_there_are_no_settings(pylog):
    pylog("topics", "create", "a").ok()
    pylog("topics", "create", "b", "--config", "retention.ms=5").ok()
    heads = [line for line in pylog("topics", "describe").ok().lines if line.startswith("Topic:")]
    assert [head.split("Configs: ")[1] for head in heads] == ["-", "retention.ms=5"]


def test_describe_goes_on_behind_a_partition_that_cannot_be_opened(pylog, path):
    pylog("topics", "create", "t", "--partitions", 3).ok()
    pylog("produce", "t", "--partition", 2, input="a\n").ok()
    shutil.rmtree(path / "t-1")
    ran = pylog("topics", "describe", "t", "--output", "json")
    sound, missing, full = ran.json[0]["partitions"]
    assert ran.code == 1
    assert (sound["end"], full["end"]) == (0, 1)
    assert missing["end"] is None
    assert "t-1 is missing" in missing["error"]
    ran = pylog("topics", "describe", "t")
    assert ran.code == 1
    assert [line.split() for line in ran.lines[3:5]] == [["1", *"-----"], ["2", "0", "1", "1", "1", "69"]]
    assert [line.split(":")[0] for line in ran.err.splitlines()] == [str(path / "t-1"), "pylog"]


def test_describe_of_an_unknown_topic_names_the_near_ones(pylog):
    pylog("topics", "create", "orders").ok()
    assert "did you mean 'orders'?" in pylog("topics", "describe", "order").failed()


def test_alter_changes_and_removes_settings_and_adds_partitions(pylog):
    pylog("topics", "create", "orders", "--config", "segment.ms=1000", "--config", "flush.ms=5").ok()
    ran = pylog(
        "topics",
        "alter",
        "orders",
        "--partitions",
        4,
        "--config",
        "flush.ms=7",
        "--delete-config",
        "segment.ms",
    ).ok()
    assert ran.lines[1].split() == ["orders", "4", "flush.ms=7"]
    assert "keys hash over" in ran.err


def test_alter_of_nothing_is_wrong_usage_and_shrinking_fails(pylog):
    pylog("topics", "create", "orders", "--partitions", 2).ok()
    assert pylog("topics", "alter", "orders").code == 2
    assert "can grow, not shrink" in pylog("topics", "alter", "orders", "--partitions", 1).failed()


def test_topics_are_listed_and_described_by_a_regular_expression(pylog):
    for name in ("orders.v1", "orders-v1", "payments"):
        pylog("topics", "create", name).ok()

    def found(command, text):
        return [topic["topic"] for topic in pylog("topics", command, "--topic", text, "--output", "json").ok().json]

    for command in ("list", "describe"):
        assert found(command, "orders.+") == ["orders-v1", "orders.v1"]
        assert found(command, "orders.v1") == ["orders.v1"]
        assert "not a regular expression" in pylog("topics", command, "orders(").err
    assert found("list", "nothing.*") == []
    assert pylog("topics", "describe", "nothing.*").failed() == "pylog: no topic's name matches 'nothing.*'\n"
    assert pylog("topics", "describe", "nothing.*", "--if-exists").ok().err == "no topic's name matches 'nothing.*'\n"


def test_a_regular_expression_deletes_only_what_was_agreed_to(pylog):
    for name in ("test-1", "test-2", "orders"):
        pylog("topics", "create", name).ok()
    refused = "pylog: 'test-.*' would delete 2 topics with all records: test-1, test-2; add --yes if they may go\n"
    assert pylog("topics", "delete", "test-.*").failed() == refused
    assert len(pylog("topics", "list", "--output", "json").ok().json) == 3
    gone = pylog("topics", "delete", "test-.*", "--yes", "--output", "json").ok()
    assert [topic["topic"] for topic in gone.json] == ["test-1", "test-2"]
    assert [topic["topic"] for topic in pylog("topics", "list", "--output", "json").ok().json] == ["orders"]
    assert "no topic's name matches" in pylog("topics", "delete", "test-.*", "--yes").failed()


@pytest.mark.parametrize(
    ("topic", "question"),
    [
        ("orders", "Delete topic orders with all its records? [y/N]: "),
        ("ord.*", "Delete 1 topic with all records: orders? [y/N]: "),
    ],
)
@pytest.mark.parametrize(("typed", "is_deleted"), [("n", False), ("y", True), (None, True)])
def test_a_person_at_a_terminal_confirms_that_a_topic_is_deleted(pylog, path, topic, question, typed, is_deleted):
    given = ["--yes"] if typed is None else []
    pylog("topics", "create", "orders").ok()
    ours, theirs = pty.openpty()
    os.write(ours, f"{typed}\n".encode())
    command = [sys.executable, "-c", "from logstore.cli import main; main()", "topics", "delete", topic]
    run = subprocess.run(
        [*command, *given, "--path", path], stdin=theirs, capture_output=True, text=True, timeout=60, check=False
    )
    os.close(ours)
    os.close(theirs)
    said = "deleted topic orders\n" if is_deleted else "pylog: nothing was changed\n"
    assert run.stderr == (question if not given else "") + said
    assert run.returncode == (not is_deleted)
    assert len(pylog("topics", "list", "--output", "json").ok().json) == (not is_deleted)


def test_delete_removes_the_topic(pylog):
    pylog("topics", "create", "orders").ok()
    assert pylog("topics", "delete", "orders").ok().err == "deleted topic orders\n"
    assert pylog("topics", "list", "--output", "json").ok().json == []
    assert "no topic 'orders'" in pylog("topics", "delete", "orders").failed()
    assert pylog("topics", "delete", "orders", "--if-exists").ok().err == "there is no topic orders\n"


def test_a_bad_setting_is_refused_with_what_is_near(pylog):
    assert "did you mean 'retention.ms'" in pylog("topics", "create", "a", "--config", "retention.mss=1").failed()
    assert "whole number" in pylog("topics", "create", "a", "--config", "retention.ms=soon").failed()
    assert pylog("topics", "create", "a", "--config", "retention.ms").code == 2


def test_a_bad_topic_name_is_refused(pylog):
    assert "only ASCII letters" in pylog("topics", "create", "bad/name").failed()


def test_if_exists_makes_a_missing_topic_no_error(pylog):
    pylog("topics", "create", "orders").ok()
    for command in (("delete",), ("describe",), ("alter", "--partitions", 2)):
        ran = pylog("topics", *command, "--topic", "nothing", "--if-exists", "--output", "json").ok()
        assert (ran.json, ran.err) == ([], "there is no topic nothing\n")
        assert "no topic 'nothing'" in pylog("topics", *command, "--topic", "nothing").failed()


def test_a_damaged_description_is_named_and_the_other_topics_are_shown(pylog, path):
    pylog("topics", "create", "a").ok()
    pylog("topics", "create", "b").ok()
    (path / "topics" / "a.json").write_text("{")
    for command in (("list",), ("list", "--topics-with-overrides"), ("describe",)):
        ran = pylog("topics", *command)
        assert ran.code == 1
        assert "a.json: not a topic description" in ran.err
        assert ("b" in ran.out.split()) == (len(command) == 1)
    assert pylog("topics", "delete", "b", "--if-exists").ok()
