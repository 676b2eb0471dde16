"""`pylog merge-state-logs`: logs of brokers in one order, filtered, and drawn."""

import pytest

from replication.model.cluster import LeaderAndIsr, TopicPartition
from replication.model.state_changes import ControllerLines, RequestLines, StateChange, format_line
from tests.support.commands import run_pylog

T0, T1, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 0)
TEN = 36_000_000  # ten o'clock, in ms


def leadership(leader, epoch, *isr):
    return LeaderAndIsr(leader, epoch, isr, 1, 0)


@pytest.fixture
def logs(tmp_path):
    """Those of two brokers; the first one is the controller."""
    controller, broker = ControllerLines(1, 1), RequestLines(2, 1, 1, 7)
    first, second = leadership(1, 0, 1, 2), leadership(2, 1, 2)
    written = {
        "1.log": [
            (0, controller.telling_leadership(T0, first, 1)),
            (1, controller.telling_leadership(T0, first, 2)),
            (2, controller.telling_leadership(OTHER, first, 1)),
            (3, controller.election_failed(T1, "nobody\nis alive")),
            (10, controller.telling_leadership(T0, second, 2)),
            (11, controller.telling_metadata(T0, second, 1)),
            (20, controller.telling_leadership(T0, leadership(-1, 2), 2)),
        ],
        "2.log": [
            (1, broker.received(T0, first, (1, 2))),
            (9, broker.handling(T1, "leader")),
            (12, StateChange("INFO", "Broker 2 says nothing of a partition")),
        ],
    }
    for name, lines in written.items():
        (tmp_path / name).write_text("".join(format_line(TEN + at, change) + "\n" for at, change in lines))
    return [tmp_path / name for name in written]


def times(*words):
    told = run_pylog("merge-state-logs", *words, "--output", "json").ok()
    return [row["time"][-3:] for row in told.json_lines]


def test_lines_of_all_brokers_are_in_the_order_of_time(logs):
    assert times(*logs) == ["000", "001", "001", "002", "003", "009", "010", "011", "012", "020"]
    shown = run_pylog("merge-state-logs", *logs).ok().lines
    assert shown[0].startswith("[1970-01-01 10:00:00,000] TRACE Controller 1 epoch 1 sending become-leader")
    failed = next(number for number, line in enumerate(shown) if " ERROR " in line)
    assert shown[failed + 1] == "is alive (state.change.logger)"


def test_lines_are_chosen_by_topic_partition_and_time(logs):
    assert times(*logs, "--topic", "other") == ["002"]
    assert times(*logs, "--topic", "t", "--partitions", "1") == ["003", "009"]
    assert times(*logs, "--topic", "t", "--partitions", "0,1", "--start-time", "1970-01-01 10:00:00,010") == [
        "010", "011", "020"
    ]  # fmt: skip
    assert times(*logs, "--start-time", "1970-01-01T10:00:00.003", "--end-time", "1970-01-01T10:00:00.009") == [
        "003", "009"
    ]  # fmt: skip


def test_leader_and_isr_are_drawn_over_time(logs):
    assert run_pylog("merge-state-logs", *logs, "--topic", "t", "--timeline").ok().lines == [
        "t-0                      1 2",
        "1970-01-01 10:00:00,000  ● ○  epoch 0",
        "1970-01-01 10:00:00,010  · ●  epoch 1",
        "1970-01-01 10:00:00,020  · ·  epoch 2",
    ]
    told = run_pylog("merge-state-logs", *logs, "--timeline", "--output", "json").ok().json_lines
    assert [(row["topic"], row["leader"], row["isr"]) for row in told] == [
        ("other", 1, [1, 2]), ("t", 1, [1, 2]), ("t", 2, [2]), ("t", -1, [])
    ]  # fmt: skip


def test_wrong_usage_is_told(logs, tmp_path):
    for words in (
        ("--partitions", "0"), ("--topic", "t", "--partitions", "x"), ("--start-time", "noon")
    ):  # fmt: skip
        assert run_pylog("merge-state-logs", *logs, *words).code == 2
    assert run_pylog("merge-state-logs").code == 2
    assert "none" in run_pylog("merge-state-logs", tmp_path / "none").err
    (tmp_path / "empty").write_text("what is no log\n")
    assert run_pylog("merge-state-logs", tmp_path / "empty").ok().out == ""
