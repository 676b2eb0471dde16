"""Retention, compaction and verification as Spark jobs, and the commands `pylog jobs`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from click.testing import CliRunner

import logstore
from datasource.jobs import compaction, retention, schedule, verify
from datasource.jobs.cli import jobs
from datasource.jobs.tasks import run_tasks
from datasource.session import SETTINGS, java_home
from logstore import StorageError, UnknownTopicError
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[2]


@pytest.fixture
def segments(topics):
    """Two partitions of ten small segments each; most of them may go by size, and did not yet."""
    topics.create("t", partitions=2, segment_bytes="2000")
    topics.create("kept")
    topics.append("kept", ["x"] * 10)
    with logstore.open(topics.path) as store:
        for i in range(10):
            for p in range(2):
                rows = {"value": [f"{i}" * 100] * 12, "partition": pa.array([p] * 12, pa.int32())}
                store.append("t", pa.table(rows))
    with logstore.open(topics.path) as store:  # closing one that appended would let go of them at once
        store.alter_topic("t", config={"retention.bytes": "4000"})
    return topics


def by_partition(frame, topic: str) -> list[dict[str, object]]:
    return [row.asDict() for row in frame.orderBy("partition").collect() if row["topic"] == topic]


# -------------------------------------------------------------------------------------------- retention


@only_long("runs of jobs")
def test_retention_says_what_went_from_where_to_where_and_why(spark, segments):
    with logstore.open(segments.path, mode="r") as store:
        before = [store.log("t", p).segments() for p in range(2)]
        expected = [store.expire("t", p, dry_run=True).removed for p in range(2)]
    assert all(expected)
    would = by_partition(retention.run(spark, path=segments.path, dry_run=True), "t")
    assert [row["status"] for row in would] == ["would be removed"] * 2
    assert [row["bytes_after"] for row in would] == [row["bytes_before"] - row["bytes"] for row in would]
    with logstore.open(segments.path, mode="r") as store:
        assert [store.log("t", p).segments() for p in range(2)] == before
    done = by_partition(retention.run(spark, path=segments.path), "t")
    for row, gone in zip(done, expected, strict=True):
        assert (row["status"], row["segments"], row["reasons"]) == ("removed", len(gone), "retention.bytes")
        assert row["bytes"] == sum(segment.size_bytes for segment in gone)
        assert row["bytes_before"] == sum(segment.size_bytes for segment in before[row["partition"]])
        assert row["bytes_after"] == row["bytes_before"] - row["bytes"]
        assert (row["start_before"], row["start_after"]) == (0, gone[-1].next_offset)
    with logstore.open(segments.path, mode="r") as store:
        assert [extent.start for extent in store.offsets("t").values()] == [row["start_after"] for row in done]
    assert {row["status"] for row in retention.run(spark, path=segments.path).collect()} == {"nothing to do"}


@only_long("runs of jobs")
def test_two_jobs_at_once_do_no_harm(spark, segments):
    frames = []
    threads = [
        threading.Thread(target=lambda: frames.append(retention.run(spark, path=segments.path).collect()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(frames) == 2
    assert {row["status"] for rows in frames for row in rows} <= {"removed", "nothing to do"}
    assert {row["status"] for row in verify.run(spark, path=segments.path).collect()} == {"sound"}


# ------------------------------------------------------------------------------------------- compaction


@only_long("runs of jobs")
def test_compaction_keeps_the_last_record_of_each_key_and_says_so(spark, topics):
    topics.create("c", partitions=2, cleanup_policy="compact", segment_bytes="1000", min_cleanable_dirty_ratio="0.1")
    topics.create("not")
    for i in range(10):
        topics.append("c", [f"{i}-{k}" for k in range(50)], key=[f"k{k}" for k in range(50)])
    would = compaction.run(spark, path=topics.path, dry_run=True)
    assert {(row["topic"], row["status"]) for row in would.collect()} == {("c", "would be compacted")}
    assert len(topics.values("c")) == 500
    for row in by_partition(compaction.run(spark, path=topics.path), "c"):
        assert row["status"] == "compacted"
        assert row["records_after"] < row["records_before"]
        assert row["bytes_after"] < row["bytes_before"]
        assert row["dirty_after"] < row["dirty_before"]
    values = topics.values("c")
    assert len(values) < 500
    assert {f"9-{k}" for k in range(50)} <= set(values)
    again = by_partition(compaction.run(spark, path=topics.path), "c")
    assert [row["status"] for row in again] == ["nothing to do"] * 2
    assert all(row["note"] for row in again)


# ----------------------------------------------------------------------------------------------- verify


def test_verify_reports_damage_with_file_and_position_and_checks_the_rest(spark, segments):
    file = sorted((Path(segments.path) / "t-1").glob("*.log"))[3]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert {row["status"] for row in verify.run(spark, path=segments.path, dry_run=True).collect()} == {"would be read"}
    rows = {(row["topic"], row["partition"]): row for row in verify.run(spark, path=segments.path).collect()}
    assert {place: row["status"] for place, row in rows.items()} == {
        ("kept", 0): "sound",
        ("t", 0): "sound",
        ("t", 1): "damaged",
    }
    (place,) = rows["t", 1]["damage"]
    assert (place["file"], "CRC" in place["reason"]) == (str(file), True)
    assert rows["kept", 0]["segments"] == 1


@only_long("runs of jobs")
def test_verify_has_a_row_for_a_damaged_journal_of_transactions(spark, segments):
    with logstore.open(segments.path) as store:
        for number in range(5):
            with store.transaction("n", batch_id=number) as transaction:
                store.append("kept", pa.table({"value": ["v"]}), transaction=transaction)
    journal = Path(segments.path) / "transactions" / "journal"
    data = bytearray(journal.read_bytes())
    data[40] ^= 1
    journal.write_bytes(data)
    rows = verify.run(spark, path=segments.path).collect()
    (row,) = [row for row in rows if row["topic"] is None]
    assert (row["partition"], row["status"], row["damage"][0]["file"]) == (None, "damaged", str(journal))
    assert {row["status"] for row in rows if row["topic"]} == {"sound"}


def test_verify_has_a_row_for_a_topic_whose_description_is_gone(spark, segments):
    description = Path(segments.path) / "topics" / "t.json"
    description.unlink()
    rows = {row["topic"]: row for row in verify.run(spark, path=segments.path).collect()}
    assert (rows["t"]["partition"], rows["t"]["status"]) == (None, "damaged")
    assert (
        f"{description} is missing, and 2 directories, from t-0 to t-1, hold records"
        in rows["t"]["damage"][0]["reason"]
    )
    assert rows["kept"]["status"] == "sound"


# ------------------------------------------------------------------------------------------ what all share


def test_an_unknown_topic_is_refused_before_anything_is_done(spark, segments):
    for job in schedule.JOBS.values():
        with pytest.raises(UnknownTopicError, match="did you mean 't'"):
            job(spark, path=segments.path, topics=["t", "tt"])


@only_long("every job")
def test_a_damaged_topic_is_in_its_rows_and_the_others_are_done(spark, segments):
    segments.create("compacted", cleanup_policy="compact")
    (Path(segments.path) / "topics" / "kept.json").write_text("{")
    for name, job in schedule.JOBS.items():
        rows = {(row["topic"], row["partition"]): row for row in job(spark, path=segments.path).collect()}
        assert "kept.json: not a topic description" in str(rows.pop(("kept", 0)))
        assert "failed" not in {row["status"] for row in rows.values()}, name
        assert len(rows) == (1 if name == "compaction" else 3)


def divide(item: int) -> float:
    if item == 3:
        raise StorageError("the disk of three is full")
    return 12 / item


def test_what_fails_in_one_task_is_data_and_keeps_no_other_from_ending(spark):
    seen: list[tuple[int, int]] = []
    done = run_tasks(spark, [1, 2, 3, 0], divide, lambda ended, total: seen.append((ended, total)))
    assert [one.result for one in done] == [12, 6, None, None]
    assert [one.error for one in done] == [
        None,
        None,
        "the disk of three is full",
        "ZeroDivisionError: division by zero",
    ]
    assert seen[0] == (0, 4)
    assert seen[-1] == (4, 4)
    assert sorted(seen) == seen


class Clock:
    def __init__(self, work_ms: list[int]) -> None:
        self.ms, self.work_ms, self.begun = 0, work_ms, list[int]()

    def monotonic_ms(self) -> int:
        return self.ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.ms += int(duration_ms)

    def work(self) -> None:
        self.begun.append(self.ms)
        if not self.work_ms:
            raise KeyboardInterrupt
        self.ms += self.work_ms.pop(0)
        if self.ms > 60:
            raise StorageError(f"at {self.ms}")


def test_a_schedule_begins_at_intervals_and_late_turns_at_once():
    clock, failed = Clock([10, 70, 10]), list[str]()
    with pytest.raises(KeyboardInterrupt):
        schedule.every(60, clock.work, lambda error: failed.append(str(error)), clock=clock)
    assert clock.begun == [0, 60, 130, 190]
    assert failed == ["at 130", "at 140"]  # and the next turn came


def test_a_schedule_ends_when_nobody_reads_what_it_says():
    def work() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        schedule.every(60, work, print, clock=Clock([]))


# ------------------------------------------------------------------------------------------ the commands


def pylog_jobs(*arguments: object):
    return CliRunner().invoke(jobs, [str(argument) for argument in arguments])


def test_a_command_prints_a_table_or_json(spark, segments):
    done = pylog_jobs("verify", "--path", segments.path)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == [
        "TOPIC",
        "PARTITION",
        "STATUS",
        "SEGMENTS",
        "BYTES",
        "SECONDS",
    ]
    rows = json.loads(pylog_jobs("retention", "--path", segments.path, "--output", "json", "--dry-run").stdout)
    assert [row["status"] for row in rows] == ["nothing to do", "would be removed", "would be removed"]


def test_a_command_ends_with_1_and_the_places_when_there_is_damage(spark, segments):
    file = sorted((Path(segments.path) / "t-0").glob("*.log"))[0]
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    done = pylog_jobs("verify", "--topic", "t", "--path", segments.path)
    assert done.exit_code == 1
    assert f"{file}: damaged at byte" in done.stderr
    assert "1 partition failed or damaged: t-0" in done.stderr


def test_run_runs_the_jobs_in_their_order(spark, segments):
    done = pylog_jobs("run", "--job", "verify", "--job", "retention", "--job", "tiering", "--path", segments.path,
                      "--output", "json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert [json.loads(line)["job"] for line in done.stdout.splitlines()] == [
        "tiering",
        "retention",
        "verify",
    ]
    would = pylog_jobs("run", "--job", "retention", "--dry-run", "--path", segments.path)
    assert would.stdout.splitlines()[1].split() == ["TOPIC", "PARTITION", "STATUS", "SEGMENTS", "BYTES",
        "BYTES", "BEFORE", "BYTES", "AFTER", "START", "BEFORE", "START", "AFTER", "REASONS", "SECONDS"]  # fmt: skip
    unitless = pylog_jobs("run", "--every", "60", "--path", segments.path)
    assert unitless.exit_code == 2
    assert "Invalid value for '--every': 60 of what? Give a unit: 60s, 60m, 60h" in unitless.stderr
    refused = pylog_jobs("run", "--every", "soon", "--path", segments.path)
    assert refused.exit_code == 2
    assert "a length of time" in refused.stderr


@pytest.mark.slow
@only_long("a JVM")
def test_ctrl_c_in_the_middle_of_a_job_is_one_line(segments):
    code = "from datasource.jobs.cli import main; main()"
    job = ["run", "--every", "1ms", "--job", "verify", "--output", "json", "--path", segments.path]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, *job], env=environment, cwd=ROOT, stdout=pipe, stderr=pipe
    ) as running:
        assert json.loads(running.stdout.readline())["job"] == "verify"  # and the next one begins at once
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert err == b"pylog: interrupted\n"
    assert running.returncode == 130


@pytest.mark.slow
@only_long("a JVM")
def test_spark_submit_takes_conf_and_is_quiet_runs_a_job_and_ends_as_the_command_does(segments):
    file = sorted((Path(segments.path) / "t-0").glob("*.log"))[0]
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    job = ROOT / "datasource" / "jobs" / "__main__.py"
    done = subprocess.run(
        [submit, "--verbose", "--master", "local[1]", job, "verify", "--path", segments.path],
        env=os.environ
        | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        | {"SPARK_CONF_DIR": str(ROOT / "conf")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    _, _, table = done.stdout.partition("TOPIC")
    rows = [line.split()[:3] for line in table.splitlines()]
    assert rows[1:4] == [["kept", "0", "sound"], ["t", "0", "damaged"], ["t", "1", "sound"]], done.stderr
    assert f"{file}: damaged at byte" in done.stdout  # Spark puts the two together
    assert done.returncode == 1
    for name, value in SETTINGS.items():  # as conf/spark-defaults.conf has them
        assert f"({name},{value})" in done.stderr
    assert "WARN" not in done.stderr.replace("WARNING: Using incubator modules", "")
    assert "default log4j profile" not in done.stderr


@only_long("every job")
def test_the_examples_of_the_help_pages_run(spark, segments, monkeypatch):
    monkeypatch.chdir(Path(segments.path).parent)
    Path("data").symlink_to(segments.path)
    page = (ROOT / "docs" / "cli.md").read_text()
    examples = re.findall(r"^\s+\$ pylog jobs (.*)$", page, re.MULTILINE)
    assert len(examples) == 6
    for example in examples:
        done = pylog_jobs(*example.split())
        assert done.exit_code == 0, f"{example}: {done.output}"
