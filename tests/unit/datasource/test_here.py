"""`pylog retention`, `compact` and `tier`: maintenance by this process alone."""

import json
import random
import subprocess
import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import logstore
from tests.support.commands import run_pylog

SPARK = {"pyspark", "py4j"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


def value(i, k):
    """A value of JSON that no codec makes small."""
    return json.dumps({"id": i, "more": random.Random(f"{i} {k}").randbytes(40).hex()})


def filled(path, **config):
    """A topic `t` of two partitions with ten segments each, in which keys repeat."""
    with logstore.open(path) as store:
        store.create_topic("t", partitions=2, config={"segment.bytes": "2000"} | config)
        for i in range(10):
            for p in range(2):
                rows = {"key": [f"k{k}" for k in range(12)], "value": [value(i, k) for k in range(12)]}
                store.append("t", pa.table(rows | {"partition": pa.array([p] * 12, pa.int32())}))


def settings(path, **config):
    with logstore.open(path) as store:
        store.alter_topic("t", config=config)


def test_retention_deletes_what_a_dry_run_announces(path):
    filled(path)
    settings(path, **{"retention.bytes": "4000"})
    would = run_pylog("retention", "--dry-run", "--path", path, "--output", "json").ok().json
    assert [(row["partition"], row["status"], row["start_after"] > 0) for row in would] == [
        (0, "would be removed", True),
        (1, "would be removed", True),
    ]
    done = run_pylog("retention", "--topic", "t", "--path", path, "--output", "json").ok().json
    assert [row | {"status": "", "seconds": 0} for row in done] == [row | {"status": "", "seconds": 0} for row in would]
    with logstore.open(path, mode="r") as store:
        assert [extent.start for extent in store.offsets("t").values()] == [row["start_after"] for row in done]
    titles, *lines = run_pylog("retention", "--path", path).ok().lines
    assert titles.split()[:4] == ["TOPIC", "PARTITION", "STATUS", "SEGMENTS"]
    assert ["nothing to do" in line for line in lines] == [True, True]


def test_compact_keeps_the_last_record_of_each_key(path):
    filled(path, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"})
    run_pylog("topics", "create", "other", "--path", path).ok()
    rows = run_pylog("compact", "--path", path, "--output", "json").ok().json
    assert [(row["topic"], row["partition"], row["status"]) for row in rows] == [("t", p, "compacted") for p in (0, 1)]
    assert all(row["records_after"] < row["records_before"] for row in rows)
    with logstore.open(path, mode="r") as store:
        left = store.read("t", partition=0).read_all().to_pylist()
    assert len(left) < 120
    assert {row["key"]: row["value"] for row in left} == {f"k{k}".encode(): value(9, k).encode() for k in range(12)}
    again = run_pylog("compact", "--path", path)
    assert again.ok().out.count("nothing to do") == 2
    assert again.err.startswith("t-0: ")  # why


def test_tier_copies_each_record_once_and_retention_waits_for_it(path):
    filled(path, **{"remote.storage.enable": "true"})
    settings(path, **{"retention.bytes": "4000"})
    kept = run_pylog("retention", "--path", path, "--output", "json").ok().json
    assert {row["status"] for row in kept} == {"nothing to do"}
    would = run_pylog("tier", "--dry-run", "--path", path, "--output", "json").ok().json
    assert [(row["status"], row["end"]) for row in would] == [("would be tiered", 120)] * 2
    for status in ("tiered", "nothing to do"):
        rows = run_pylog("tier", "--schema", "id bigint", "--path", path, "--output", "json").ok().json
        assert [(row["status"], row["end"], row["bad"]) for row in rows] == [(status, 120, 0)] * 2
    table = DeltaTable(str(path / "tiered" / "t")).to_pyarrow_table(columns=["partition", "offset", "id"])
    assert sorted(table.select(["partition", "offset"]).to_pylist(), key=lambda r: (r["partition"], r["offset"])) == [
        {"partition": p, "offset": o} for p in range(2) for o in range(120)
    ]
    assert set(table.column("id").to_pylist()) == set(range(10))
    run_pylog("retention", "--path", path).ok()  # what opened the store since then has applied it, maybe
    with logstore.open(path, mode="r") as store:
        assert all(extent.start > 0 for extent in store.offsets("t").values())


def test_a_partition_that_fails_is_a_row_and_ends_the_command_with_exit_code_1(path):
    filled(path)
    first = min((path / "t-1").glob("*.log"))
    first.write_bytes(b"no batch at all" * 50)
    ran = run_pylog("tier", "--path", path, "--output", "json")
    assert (ran.code, [row["status"] for row in ran.json]) == (1, ["tiered", "failed"])
    assert ran.err.splitlines()[-1] == "pylog: 1 partition failed or damaged: t-1"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["retention"], "give a directory"),
        (["retention", "--bootstrap-server", "127.0.0.1:1"], "retention is for a directory: the brokers"),
        (["compact", "--bootstrap-server", "127.0.0.1:1"], "compaction is for a directory: the brokers"),
        (["tier", "--bootstrap-server", "127.0.0.1:1"], "--table"),
        (["tier", "--bootstrap-server", "nowhere", "--table", "x"], "nowhere"),
    ],
)
def test_a_wrong_place_is_refused_as_the_jobs_refuse_it(given, says):
    ran = run_pylog(*given, env={"PYLOG_PATH": None, "PYLOG_BOOTSTRAP": None})
    assert ran.code == 2
    assert says in " ".join(ran.err.split())


def test_an_unknown_topic_and_a_wrong_schema_are_one_line(path):
    filled(path)
    assert "no topic 'u'" in run_pylog("retention", "--topic", "u", "--path", path).failed()
    assert "write columns and types" in run_pylog("tier", "--schema", "id bigin", "--path", path).failed()


@pytest.mark.parametrize("command", ["retention", "compact", "tier"])
def test_they_load_no_spark(command, path):
    filled(path, **{"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "1"})
    code = (
        "import json, sys\nfrom logstore.cli import cli\n"
        f"cli([{command!r}, '--path', {str(path)!r}, '--output', 'json'], standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {row["topic"] for row in json.loads(done.stdout)} == {"t"}
    loaded = {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}
    assert not loaded & SPARK
