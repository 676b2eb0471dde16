"""Sail, a Spark without Java, in a process of its own: over a directory, and with --long over brokers."""

import datetime
import json
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from datasource.connector import sail
from datasource.jobs.remote_tasks import GROUP
from datasource.topics.interface import PartitionRange
from tests.spark import over_sail
from tests.spark.test_typed import declare
from tests.support.repeats import only_long

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    only_long("Sail, in processes of their own"),
    pytest.mark.skipif(find_spec("pysail") is None, reason='pip install -e ".[test,sail]" brings Sail'),
    pytest.mark.skipif(pyspark.__version__ >= "4.3", reason="Sail 0.7.2 refuses PySpark 4.3"),
]
ROOT = Path(__file__).parents[2]

NEW_YEAR_MS = 1767225600_000  # 2026-01-01 00:00 UTC: in New York it is 19 h on the day before
KEYS = [["a", "b", "c", None][n % 4] for n in range(40)]
VALUES = [None if n == 3 else bytes([n, 0xFF, 0]) for n in range(40)]
TIMES = [NEW_YEAR_MS + 3_600_000 * n for n in range(40)]
HEADERS = [[{"key": "h", "value": bytes([n])}, {"key": "nothing", "value": None}][: n % 3] for n in range(40)]


def run(program, *arguments, cwd, code=0):
    """The last line that a Python program prints; it finds no Java, and no session of this process."""
    hidden = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    paths = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=cwd,
        env=environment | {"PYTHONPATH": paths, "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def new_york(milliseconds):
    """The time there, in winter."""
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone(datetime.timedelta(hours=-5)))


def record(n):
    headers = [{"key": h["key"], "value": h["value"] and h["value"].hex()} for h in HEADERS[n]]
    key, value = KEYS[n] and KEYS[n].encode().hex(), VALUES[n] and VALUES[n].hex()
    return {"topic": "orders", "partition": n % 3, "offset": n // 3, "key": key, "value": value,
            "micros": TIMES[n] * 1000, "timestampType": 0, "headers": headers or None}  # fmt: skip


def stored(topics, topic):
    """The records of each partition, in no order, read without Spark."""
    source = topics.location.read()
    ranges = [PartitionRange(topic, p, extent.start, extent.end) for p, extent in source.offsets(topic).items()]
    batches = [
        (r.partition, batch) for r in ranges for batch in source.read(r, ["key", "value", "timestamp", "headers"])
    ]
    return Counter((partition, str(row)) for partition, batch in batches for row in batch.to_pylist())


@pytest.fixture
def found(topics, tmp_path):
    """The facts that the program found. Each topic is filled, or empty for it to write."""
    for topic, partitions in (("orders", 3), ("counts", 2), ("copy", 3), ("once", 1), ("empty", 2)):
        topics.create(topic, partitions)
    topics.create("states", cleanup_policy="compact")
    topics.append("orders", VALUES, key=KEYS, timestamp=TIMES, headers=HEADERS, partition=[n % 3 for n in range(40)])
    for topic in ("paid", "paid.on"):
        topics.create(topic)
        declare(topics, "n int, at timestamp", topic)
    topics.append("paid", ['{"n": 1, "at": "2026-01-01T00:00:00Z"}', "nonsense"], timestamp=TIMES[:2])
    return json.loads(run(["-m", over_sail.__name__], json.dumps(topics.options), cwd=tmp_path).splitlines()[-1])


def test_batches_without_java(topics, found):
    assert found["rows"] == [record(n) for n in sorted(range(40), key=lambda n: (n % 3, n))]
    assert found["count"] == found["count by headers"] == 40
    assert sorted(row["offset"] for row in found["offsets"]) == sorted(n // 3 for n in range(40))
    assert found["empty"] == [[], 0]

    # The session's time zone says which hour it is, as in Spark.
    hours = {(row["partition"], row["offset"]): (row["hour"], row["text"]) for row in found["hours"]}
    there = [new_york(milliseconds) for milliseconds in TIMES]
    assert hours == {(n % 3, n // 3): (time.hour, f"{time:%Y-%m-%d %H}") for n, time in enumerate(there)}
    assert sorted(row["hour"] for row in found["of a schema"]) == sorted(time.hour for time in there)

    assert found["views"] == ["counts", "orders"]
    assert {row["key"]: row["value"] for row in found["grouped"]} == {"a": "10", "b": "10", "c": "10", None: "10"}
    assert sorted(row["hour"] for row in found["grouped hours"]) == sorted(time.hour for time in there[-4:])
    assert stored(topics, "copy") == stored(topics, "orders")
    assert stored(topics, "once").total() == 3  # the second write of this number is none
    assert found["jobs"] == ["sound"]
    assert found["tasks"] == [abs(number) for number in range(-GROUP, 2)]
    assert found["others"] == 7
    assert found["frozen"] == 0

    typed = found["typed"]
    assert "MisfitError: paid-0 at offset 1: value: not JSON" in typed["misfit"][1]
    fits, misfit = sorted(typed["named"], key=lambda row: row["bad"] or "")
    assert fits == {"n": 1, "at": 19, "hour": 19, "bad": None}
    assert misfit == {"n": None, "at": None, "hour": 20, "bad": "nonsense"}
    assert typed["written"] == [{"n": 2, "_offset": 0}]
    assert typed["view"] == [{"n": 1, "hour": 19}]
    assert typed["letters"] == [{"key": "sail|paid|0|1"}]

    assert found["unregistered"][1].startswith(f"InvalidRequestError: {sail.UNKNOWN}\n")
    assert refusals(found) == REFUSED
    assert (stored(topics, "copy").total(), stored(topics, "counts").total()) == (40, 4)


OURS = "InvalidRequestError"  # from the client, before anything is sent
REFUSED = {
    **dict.fromkeys(
        (
            "stream",
            "stream to a table",
            "stream to foreachBatch",
            "stream that is collected",
            "stream in a view",
            "stream in SQL",
            "stream of a view",
            "stream write",
            "upsert",
        ),
        (OURS, sail.STREAM),
    ),
    "observe": (OURS, sail.NO_EVENTS),
    "no mode": (OURS, sail.MODE),
    "mode ignore": (OURS, sail.MODE),
    **dict.fromkeys(("saveAsTable", "writeTo", "create as select"), (OURS, sail.TABLE)),
}
# Sail's own words around the line, and after it a traceback of two lines of pylog.
OF_THE_SERVER = {
    "mode overwrite": "InvalidRequestError: a log is append-only: write with .mode('append')",
    "time without a zone": "InvalidRecordError: column 'timestamp' must be timestamp, not timestamp_ntz",
    "no such topic": "UnknownTopicError: no topic 'ordrs' in ",
    "misspelt option": "InvalidConfigError: unknown option 'startingoffset'; did you mean 'startingOffsets'?",
    "no such partition": "InvalidRecordError: partition 77 in row 0: the topic has partitions 0 to 2",
}


def refusals(found):
    """Those of the client, after a look at those of the server."""
    texts = {name: tuple(error) for name, error in found["refused"].items()}
    for name, line in OF_THE_SERVER.items():
        _, text = texts.pop(name)
        assert line in text.splitlines()[0], name
        assert text.count("  File ") <= 2, text
    return texts


@pytest.mark.directory
def test_readers_do_not_wait_for_a_write_whose_process_died(topics, tmp_path):
    """Sail's process decides about a write: what it leaves undecided is given up at once, not 15 minutes later."""
    topics.create("once")
    assert run(["-m", over_sail.__name__], json.dumps(topics.options), "die", cwd=tmp_path, code=9) == ""
    topics.append("once", ["later"])
    assert topics.values("once") == ["later"]
    assert topics.everything("once").count("lost") == 10


@pytest.fixture
def server(tmp_path):
    """The address of a server that works in another directory."""
    command = [sys.executable, "-m", "pysail", "spark", "server", "--ip", "127.0.0.1", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    with subprocess.Popen(command, cwd="/", env=environment, stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stderr.readline, "")
        yield next(f"sc://127.0.0.1:{found[1]}" for line in lines if (found := re.search(r" on \S*:(\d+)\.\.\.", line)))
        process.kill()


@pytest.mark.directory
def test_a_server_elsewhere_needs_absolute_paths(topics, server, tmp_path):
    topics.create("orders")
    found = json.loads(run(["-m", over_sail.__name__], json.dumps(topics.options), server, cwd=tmp_path))
    line = (
        f"must be absolute over Spark Connect, whose server works elsewhere than you: write '{tmp_path}/log' for the "
    )
    for name, (kind, text) in found["relative"].items():
        assert (kind, line in text) == ("InvalidConfigError", True), (name, text)
    assert found["count"] == len(topics.values("orders")) == 1


def test_the_example_prints_what_its_page_shows(tmp_path):
    page = (ROOT / "docs" / "examples.md").read_text()
    shown = re.search(r"^## Without Java\n.*?^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    assert run([ROOT / "notebooks" / "examples" / "no_jvm.py"], tmp_path, cwd=tmp_path).strip() == shown.strip()
