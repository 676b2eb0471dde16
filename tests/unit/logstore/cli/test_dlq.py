"""`pylog dlq` on a directory; tests/unit/logstore/tools/test_dead_letters.py has what is sent again, and how often."""

import pyarrow as pa
import pytest

import logstore
from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas.misfits import STORED, dead_letters


@pytest.fixture
def misfits(pylog, path):
    pylog("topics", "create", "orders").ok()
    pylog("topics", "create", "misfits", "--config", "cleanup.policy=compact").ok()
    rows = [
        {"key": b"k", "value": b"\xff\n", "offset": 1, "timestamp": 7, "headers": [{"key": "trace", "value": b"t"}]},
        {"key": None, "value": b"x" * 90, "offset": 2, "timestamp": 8, "headers": []},
        {"key": b"k", "value": None, "offset": 3, "timestamp": 9, "headers": [{"key": "dlq.tries", "value": b"2"}]},
    ]
    records = pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA).select(list(STORED))
    reasons = dict.fromkeys(range(3), "no JSON")
    with logstore.open(path) as store:
        store.append(
            "misfits", dead_letters(records, reasons, topic="orders", partition=0, name="a", query="q", now_ms=1500)
        )


def test_they_are_listed_and_shown(pylog, misfits):
    assert pylog("dlq", "list", "misfits").ok().lines == [
        "TOPIC   REASON   RECORDS  FIRST MS  LAST MS",
        "orders  no JSON        3      1500     1500",
    ]
    lines = pylog("dlq", "show", "misfits").ok().lines
    assert lines[1].split()[-2:] == ["k", r"\xff\n"]
    assert lines[2].endswith("x" * 80 + "…")
    (row,) = pylog("dlq", "show", "misfits", "--max-messages", 1, "--output", "json").ok().json
    assert row["value"] == {"base64": "/wo="}
    assert (row["headers"], row["query"], row["timestamp_ms"]) == ([["trace", "t"]], "q", 7)


def test_a_topic_without_dead_letters_is_told(pylog, misfits):
    pylog("topics", "create", "empty").ok()
    done = pylog("dlq", "list", "empty").ok()
    assert (done.out, done.err) == ("", "empty has no dead letters\n")


def test_filters_choose_and_wrong_ones_are_refused(pylog, misfits):
    def shown(*filters):
        return [row["offset"] for row in pylog("dlq", "show", "misfits", *filters, "--output", "json").ok().json]

    assert shown("--key", "k") == [1, 3]
    assert shown("--since", "1970-01-01T00:00:01.5Z", "--until", 1501) == [1, 2, 3]
    assert shown("--since", 1501) == shown("--until", 1500) == shown("--reason", "json") == []
    assert pylog("dlq", "show", "misfits", "--since", "yesterday").code == 2
    assert "did you mean 'misfits'" in pylog("dlq", "list", "misfit").failed()
    assert "name another topic" in pylog("dlq", "replay", "misfits", "--to", "misfits").failed()


def test_a_replay_says_what_is_sent_and_what_stays(pylog, misfits):
    would = pylog("dlq", "replay", "misfits", "--dry-run", "--max-messages", 1).ok()
    assert would.err.splitlines() == [
        "would send 1 record",
        "1 record with 3 tries or more: left there, --max-tries 4 takes those with 3",
        "1 record more than --max-messages: left there",
    ]
    assert len(would.lines) == 2
    assert pylog("consume", "orders", "--from-beginning").ok().lines == []
    assert pylog("dlq", "replay", "misfits").ok().err.splitlines()[0] == "sent 2 records"
    assert pylog("dlq", "replay", "misfits", "--max-tries", 4, "--output", "json").ok().json[0]["tries"] == 3
    assert pylog("dlq", "list", "misfits").ok().lines == []
