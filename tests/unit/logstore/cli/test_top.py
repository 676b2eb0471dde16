"""`pylog top` on a directory."""

import json
import os
import pty
import select
import subprocess
import sys
import threading
import time

import pytest

import logstore

COMMAND = [sys.executable, "-c", "from logstore.cli import main; main()", "top"]


@pytest.fixture
def filled(path):
    with logstore.open(path) as store:
        for name in ("idle", "orders"):
            store.create_topic(name, partitions=2)
        store.append("orders", [{"value": "x"}] * 5)
        yield store


def checkpoint(directory, ids, offsets, *, place=None):
    """Write a checkpoint like Spark, with the JSON of this release, or with more in it."""
    (directory / "offsets").mkdir(parents=True)
    (directory / "commits").mkdir()
    value = {"v": 1, "ids": ids, "offsets": offsets} | ({"place": place} if place else {})
    for batch in (0, 1):
        (directory / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(value)}')
    (directory / "offsets" / "2").write_text("v1\n{}\nplanned, and not committed")
    for batch in (0, 1):
        (directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_once_shows_topics_and_the_lag_of_queries_by_their_checkpoints(pylog, filled, tmp_path):
    ids = {"orders": filled.topic("orders").topic_id}
    checkpoint(tmp_path / "all" / "old", ids, {"orders": {"0": 1, "1": 0}})
    checkpoint(tmp_path / "all" / "new", ids, {"orders": {"0": 1, "1": 0}}, place="/somewhere/data")
    checkpoint(tmp_path / "all" / "torn", {}, {})
    (tmp_path / "all" / "torn" / "offsets" / "1").write_text("v1")
    (tmp_path / "all" / "young" / "offsets").mkdir(parents=True)
    checkpoint(tmp_path / "all" / "other", {"orders": "another"}, {"orders": {"0": 1}}, place="/elsewhere")
    options = ("--once", "--every", "100ms", "--checkpoint", tmp_path / "all")
    behind = sum(each.end for each in filled.offsets("orders").values()) - 1
    lines = pylog("top", *options, "--output", "json").ok().json_lines
    topics = {line["topic"]: line for line in lines if line["kind"] == "topic"}
    assert (topics["orders"]["records"], topics["orders"]["in_per_s"], topics["idle"]["records"]) == (5, 0, 0)
    assert [(line["reader"], line["lag"]) for line in lines if line["kind"] == "query"] == [
        ("new", behind), ("old", behind)
    ]  # fmt: skip
    torn = f"query torn: {tmp_path}/all/torn/offsets/1 names no source"
    young = "query young: it has committed no batch yet"
    other = "query other: its topic 'orders' is not here, or was made again; it reads /elsewhere"
    assert [line["text"] for line in lines if line["kind"] == "problem"] == [torn, young, other]
    shown = pylog("top", *options).ok()
    assert shown.lines[0].split() == ["TOPIC", "PARTITIONS", "RECORDS", "BYTES", "IN", "PER", "S", "OUT", "PER", "S"]
    assert shown.err == f"{torn}\n{young}\n{other}\n"


def test_times_need_a_unit(pylog, filled):
    assert "60 of what? Give a unit: 60s" in pylog("top", "--every", 60).err
    assert "at least 100ms" in pylog("top", "--every", "1ms").err
    assert pylog("top", "--every", "soon").code == 2


def test_it_loads_no_spark(filled, path):
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); " + COMMAND[2]
    given = ["top", "--once", "--every", "100ms", "--path", path, "--checkpoint", path]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=True, timeout=60)
    assert not {"pyspark", "py4j", "pandas", "numba"} & set(done.stderr.split())


def test_without_a_terminal_it_prints_what_comes_in_until_its_reader_has_enough(filled, path):
    command = [*COMMAND, "--every", "200ms", "--output", "json", "--path", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        filled.append("idle", [{"value": "y"}] * 40)
        rates = [line["in_per_s"] for line in lines]
        while not any(rates):
            line = json.loads(process.stdout.readline())
            rates.append(line["in_per_s"])
        assert line["topic"] == "idle", "the busiest comes first"
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_on_a_terminal_q_ends_it_and_the_terminal_is_as_it_was(filled, path):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "--every", "200ms", "--path", path],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    ) as process:
        os.close(theirs)
        ended = threading.Timer(60, process.kill)  # else one that does not end would be waited for for ever
        ended.start()
        shown, end = b"", time.monotonic() + 30
        while b"orders" not in shown and time.monotonic() < end:
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 65536)
        os.write(ours, b"q")
        while select.select([ours], [], [], 10)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        assert process.wait(20) == 0
        ended.cancel()
        assert process.stderr.read() == b""
    os.close(ours)
    assert b"q: quit" in shown
    assert shown.endswith(b"\x1b[?25h\x1b[?1049l"), "the cursor and the former screen are shown again"
